"""Records of jobs and attempts, as the plane keeps them in memory and in the store."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

from dovetail.control import tables
from dovetail.control.states import State
from dovetail.model.waiting import Waits

Placement = list[dict[str, Any]]  # [{"node": "n0", "devices": [0, 1]}]


@dataclass(slots=True, kw_only=True)
class Record:
    """One job. The first half is as submitted; the second changes, and only on the loop's thread."""

    id: str
    seq: int
    request: str  # id of the submission, which the members of an array share
    array: str | None = None
    task: int | None = None
    name: str = ""
    kind: str = "train"
    tenant: str = ""
    user: str = ""
    model: str = ""
    gpus: int = 0
    gpus_least: int | None = None  # the fewest with which it runs, if it is elastic
    load: int = 0
    nodes: int = 1
    cpus: int | None = None  # milli-cores on each node, if requested
    memory: int | None = None  # bytes on each node, if requested
    types: str = ""
    dependency: str | None = None
    at_most: int | None = None
    begin_at: int | None = None
    time_limit: int | None = None
    submitted_at: int = 0

    state: State = State.HELD
    reason: str = ""
    priority: int = 0
    held_by: str = ""  # user | admin: until it is released
    eligible_at: int | None = None
    first_started_at: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    epoch: int = 0  # of its last start
    restarts: int = 0
    retries: int = 0  # restarts after its own failures
    exit_code: int | None = None
    cause: str = ""
    placement: Placement | None = None
    wanted: str = ""  # once it has stopped: cancelled | requeued | held; "": back to the queue
    gpu_time: int = 0
    lost_time: int = 0
    held_time: int = 0  # microseconds of the attempts that have ended
    held_load: int | None = None  # what the running attempt of an elastic job holds, in milli-GPUs
    held_since: int | None = None  # since when, if it was resized
    wait_time: int = 0  # microseconds that the job has waited, the waits that are over
    wait_at_start: int = 0  # of `wait_time`, up to the last start
    waiting_since: int | None = None  # stays set if the job ended while it waited
    progress: dict[str, Any] | None = None
    preempted_by: list[dict[str, Any]] | None = None  # `preemptions.kept`, until it starts again

    def wait_begins(self, now: int) -> None:
        """The job is eligible and does not run."""
        self.wait_time, self.waiting_since = Waits(self.wait_time, self.waiting_since).begun(now)

    def wait_ends(self, now: int) -> None:
        """The job starts, or is held."""
        self.wait_time, self.waiting_since = Waits(self.wait_time, self.waiting_since).ended(now)

    @property
    def holds(self) -> tuple[int, int | None]:
        """What its running attempt holds, in milli-GPUs, and since when."""
        load = self.load if self.held_load is None else self.held_load
        return load, self.started_at if self.held_since is None else self.held_since

    def constant(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in CONSTANT}

    def changing(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in CHANGING}
        row["state"] = self.state.value
        row["placement"] = None if self.placement is None else json.dumps(self.placement)
        row["progress"] = None if self.progress is None else json.dumps(self.progress)
        row["preempted_by"] = None if self.preempted_by is None else json.dumps(self.preempted_by)
        return row

    @classmethod
    def from_row(cls, row: Any) -> Record:
        """From a row of `tables.jobs`."""
        read = {name: row[name] for name in (*CONSTANT, *CHANGING)}
        read["state"] = State(read["state"])
        for name in ("placement", "progress", "preempted_by"):
            read[name] = None if read[name] is None else json.loads(read[name])
        return cls(**read)


_NAMES = [one.name for one in fields(Record)]
CONSTANT = tuple(_NAMES[: _NAMES.index("state")])
CHANGING = tuple(_NAMES[_NAMES.index("state") :])  # a record that changed writes all of these
assert set(_NAMES) == set(tables.jobs.c.keys())


@dataclass(slots=True)
class Segment:
    """What an attempt holds from a resize on."""

    job: str
    epoch: int
    started_at: int
    placement: Placement
    types: str
    load: int


@dataclass(slots=True)
class AttemptRecord:
    """One start of a job. How it ended is filled in later."""

    job: str
    epoch: int
    placement: Placement = field(default_factory=list)
    types: str = ""
    load: int = 0
    started_at: int = 0
    ended_at: int | None = None
    exit_code: int | None = None
    cause: str = ""
    detail: str = ""
    waited: int = 0  # microseconds that the job waited for this start
    preempted_by: list[dict[str, Any]] | None = None  # `preemptions.kept`; None: it was not preempted
    resized: bool = False
