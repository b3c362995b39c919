"""The plane's own record of a job: what its user asked for, and where it stands."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from dovetail.control.states import State

# The columns that change after a job was submitted; a record that changed writes them all.
CHANGING = (
    "state",
    "reason",
    "priority",
    "held_by",
    "eligible_at",
    "first_started_at",
    "started_at",
    "ended_at",
    "epoch",
    "restarts",
    "retries",
    "exit_code",
    "cause",
    "placement",
    "wanted",
    "gpu_time",
    "lost_time",
    "held_time",
    "progress",
)
CONSTANT = (
    "id",
    "seq",
    "request",
    "array",
    "task",
    "name",
    "kind",
    "tenant",
    "user",
    "model",
    "gpus",
    "load",
    "nodes",
    "cpus",
    "memory",
    "types",
    "dependency",
    "at_most",
    "begin_at",
    "time_limit",
    "submitted_at",
)

Placement = list[dict[str, Any]]  # [{"node": "n0", "devices": [0, 1]}]


@dataclass(slots=True, kw_only=True)
class Record:
    """One job. The first half is as submitted; the second changes, and only on the loop's thread."""

    id: str
    seq: int
    request: str  # the id of what was asked, which the members of an array share
    array: str | None = None
    task: int | None = None
    name: str = ""
    kind: str = "train"
    tenant: str = ""
    user: str = ""
    model: str = ""
    gpus: int = 0
    load: int = 0
    nodes: int = 1
    cpus: int | None = None  # milli-cores on each node,
    memory: int | None = None  # and bytes, if it asked for some
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
    retries: int = 0  # how many of its own failures were forgiven
    exit_code: int | None = None
    cause: str = ""
    placement: Placement | None = None
    wanted: str = ""  # once it has stopped: cancelled | requeued | held; "": back to the queue
    gpu_time: int = 0
    lost_time: int = 0
    held_time: int = 0  # microseconds that its attempts lasted, those that have ended
    progress: dict[str, Any] | None = None

    def constant(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in CONSTANT}

    def changing(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in CHANGING}
        row["state"] = self.state.value
        row["placement"] = None if self.placement is None else json.dumps(self.placement)
        row["progress"] = None if self.progress is None else json.dumps(self.progress)
        return row

    @classmethod
    def from_row(cls, row: Any) -> Record:
        """As `tables.jobs` holds it."""
        read = {name: row[name] for name in (*CONSTANT, *CHANGING)}
        read["state"] = State(read["state"])
        for name in ("placement", "progress"):
            read[name] = None if read[name] is None else json.loads(read[name])
        return cls(**read)


@dataclass(slots=True)
class Attempt:
    """One start of a job; what is known of its end comes later."""

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
