"""What must be true at every step, each with its sentence.

The room knows the truth: which processes of jobs live, what clients were told, how much time has passed.
Each rule compares what the planes do with it: at every step, at every commit, or at every start and end
of an attempt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.chaos.database import ChaosStore
from tests.chaos.kernel import Attempt, Kernel
from tests.chaos.room import SECOND, Process, Room
from tests.control.harness import disagreements

from dovetail.control import retention
from dovetail.control.dependencies import parse_dependency
from dovetail.control.recovery import core_after
from dovetail.control.states import State
from dovetail.control.store import Batch
from dovetail.core.snapshot import snapshot
from dovetail.model.errors import DovetailError
from dovetail.model.units import DAY

if TYPE_CHECKING:
    from dovetail.control.plane import Plane

RULES = {
    "accepted": "a job that was accepted exists until the end, and ends",
    "final": "a job that is over stays as it is",
    "decided": "only attempts that are on record run, and each starts once",
    "one attempt": "a job has one attempt at a time",
    "one holder": "a device has one holder at a time",
    "eligible": "a job that is held, waits for another job or is over is not started",
    "done": "a job that ended with 0 before it was told to stop has completed, and is not run again",
    "tenant": "no tenant sees or uses a job of another",
    "same story": "the core and the records tell the same story",
    "journal": "the journal rebuilds the state",
    "leads": "if nothing is in the way, some plane takes work",
    "idle": "a plane that has nothing to do waits",
    "time": "the time of a plane that leads goes on as time does",
    "charged": "an attempt is charged the time that it ran",
    "kept": "output is kept for as long as was promised",
}
PATIENCE = 240.0  # seconds from a probe to its answer: a client may first ask a plane that is stopped
SAMPLE_EVERY = 120 * SECOND
FROZEN = 300 * SECOND
LONGEST_GAP = round(retention.LONGEST_GAP * DAY)
TOLERANCE = 120.0  # seconds


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken."""

    rule: str
    at: int
    detail: str

    def __str__(self) -> str:
        return f"{RULES[self.rule]}: {self.detail} (at {self.at / SECOND:.3f} s)"


@dataclass(eq=False)
class Known:
    """One accepted job, as its client knows it."""

    id: str
    tenant: str
    kind: str
    held: bool = False  # its client was told so, and has not asked for its release
    cancelled: bool = False  # its client has asked for that


@dataclass(eq=False)
class Invariants:
    """The rules, and what they compare with."""

    room: Room
    kernel: Kernel
    rules: frozenset[str]  # that count
    keep: int  # microseconds that output is kept
    planes: Callable[[], Iterable[tuple[Process, Plane]]]
    obstructed: Callable[[], bool]
    last_words: Callable[[], str]
    without_leader: int  # microseconds that no plane may need to take work
    known: dict[str, Known] = field(default_factory=dict)
    violation: Violation | None = None
    states: dict[str, State] = field(default_factory=dict)  # as last committed
    decided: dict[tuple[str, int], int] = field(default_factory=dict)  # attempts on record: begin of the tick
    started: set[tuple[str, int]] = field(default_factory=set)
    running: dict[str, Attempt] = field(default_factory=dict)  # by job
    holders: dict[tuple[str, str], Attempt] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    ended_at: dict[str, tuple[int, int]] = field(default_factory=dict)  # commit of its end: time and boot
    truth: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # begin and end
    began_at: dict[tuple[str, int], int] = field(default_factory=dict)  # in the time of the plane
    led_by: dict[tuple[str, int], Plane] = field(default_factory=dict)
    clear_since: int = 0
    answered_at: int = 0
    commits: int = 0
    checks: int = 0
    _samples: dict[int, tuple[int, int]] = field(default_factory=dict)
    _sampled_at: int = 0

    def broken(self, rule: str, detail: str) -> None:
        if self.violation is None and rule in self.rules:
            # the folder has another name in each run
            self.violation = Violation(rule, self.room.now, re.sub(r"/dev/shm/[\w-]+", "ROOM", detail))
            self.room.note(f"VIOLATION {self.violation}")

    def answered(self) -> None:
        """A plane has taken work."""
        self.answered_at = self.room.now

    # -- at every step

    def step(self) -> None:
        now = self.room.now
        self.checks += 1
        if self.obstructed():
            self.clear_since = now
        elif now - max(self.clear_since, self.answered_at) > self.without_leader:
            told = [f"trouble: {plane.trouble!r}" for _, plane in self.planes()]
            self.broken(
                "leads", f"none has for {self.without_leader // SECOND} s; {told or self.last_words()}"
            )
        if now - self._sampled_at > SAMPLE_EVERY:
            self._sampled_at = now
            self._sample_time(now)

    def spins(self) -> None:
        """A plane has looked for messages many times in one moment."""
        self.broken(
            "idle", f"{self.room.process().name} looks for messages again and again, and does not wait"
        )

    def _sample_time(self, now: int) -> None:
        seen = {}
        for process, plane in self.planes():
            state = plane._state
            if plane.leads and state is not None:
                with self.room.examining(process):
                    shows = max(state.ledger.core.now, plane.clock.now())
                before = self._samples.get(id(plane))
                if before is not None and shows == before[1]:
                    seen[id(plane)] = before
                    if now - before[0] > FROZEN:
                        self.broken("time", f"it has stood still for {(now - before[0]) // SECOND} s")
                else:
                    seen[id(plane)] = (now, shows)
        self._samples = seen

    # -- at every commit

    def committed(self, store: ChaosStore, batch: Batch) -> None:
        self.commits += 1
        plane = next((plane for _, plane in self.planes() if plane.store is store), None)
        records = {r.id: r for r in (*batch.added, *batch.changed.values())}
        for record in records.values():
            before = self.states.get(record.id)
            if before is not None and before.final and record.state is not before:
                self.broken("final", f"{record.id} was {before.value} and is {record.state.value}")
            self.states[record.id] = record.state
            if record.state.final:
                self._over(record)
        for attempt in batch.begun:
            self.began_at[attempt.job, attempt.epoch] = attempt.started_at
            self._begun(attempt.job, attempt.epoch, records.get(attempt.job), plane)
        for ended in batch.ended:
            self._charged(ended, plane)
        if plane is not None and plane._state is not None and plane._state.ledger.batch is batch:
            ledger = plane._state.ledger
            if found := disagreements(ledger):
                self.broken("same story", "; ".join(found[:3]))
            if self.commits % 50 == 0 and plane._state.header.policy != "changing":
                self._rebuilt(store, plane)

    def _over(self, record: Any) -> None:
        self.ended_at.setdefault(record.id, (self.room.now, self.room.boot))
        known = self.known.get(record.id)
        cancelled = record.state is State.CANCELLED and known is not None and known.cancelled
        if record.id in self.done and record.state is not State.COMPLETED and not cancelled:
            self.broken("done", f"{record.id} ended with 0 and is {record.state.value}: {record.reason}")

    def _begun(self, job: str, epoch: int, record: Any, plane: Plane | None) -> None:
        if (job, epoch) in self.decided:
            self.broken("decided", f"attempt {epoch} of {job} was decided twice")
        self.decided[job, epoch] = self.room.now
        if plane is not None:
            self.decided[job, epoch] = round(plane.beat * SECOND)  # its time is that of the tick
            self.led_by[job, epoch] = plane
        if job in self.done:
            self.broken("done", f"{job} ended with 0, and attempt {epoch} starts")
        known = self.known.get(job)
        if known is not None and known.held:
            self.broken("eligible", f"{job} is held, and attempt {epoch} starts")
        if record is None:
            return
        for need in parse_dependency(record.dependency) if record.dependency else ():
            state = self.states.get(need.job)
            if need.kind not in ("afterok", "afterany") or state is None:
                continue
            if not state.final or (need.kind == "afterok" and state is not State.COMPLETED):
                self.broken(
                    "eligible",
                    f"{job} waits {need.kind} for {need.job}, which is {state.value}; it starts",
                )

    def _charged(self, ended: Any, plane: Plane | None) -> None:
        key = (ended.job, ended.epoch)
        span, began = self.truth.get(key), self.began_at.get(key)
        if span is None or began is None or plane is None or self.led_by.get(key) is not plane:
            return
        charged = (ended.ended_at - began) / SECOND
        ran, most = (span[1] - span[0]) / SECOND, (self.room.now - self.decided[key]) / SECOND
        if not ran - TOLERANCE <= charged <= most + TOLERANCE:
            self.broken("charged", f"{key} ran for {ran:.0f} s and is charged {charged:.0f} s")

    def _rebuilt(self, store: ChaosStore, plane: Plane) -> None:
        assert plane._state is not None
        era = store.era()
        if era is None or era["id"] != plane._state.ledger.era:
            return
        live = snapshot(plane._state.ledger.core)
        try:
            replayed = snapshot(core_after(store, era))
        except DovetailError as error:
            self.broken("journal", str(error))
            return
        if live != replayed:
            names = [name for name in live if live[name] != replayed.get(name)]
            self.broken("journal", f"after step {plane._state.ledger.core.number} these differ: {names}")

    # -- at every start and end of an attempt

    def began(self, attempt: Attempt) -> None:
        if attempt.key in self.started:
            self.broken("decided", f"attempt {attempt.epoch} of {attempt.job} was started twice")
        self.started.add(attempt.key)
        if attempt.key not in self.decided:
            self.broken("decided", f"attempt {attempt.epoch} of {attempt.job} is on no record")
        state = self.states.get(attempt.job)
        if state is not None and state.final:
            self.broken("eligible", f"{attempt.job} is {state.value}, and attempt {attempt.epoch} starts")
        other = self.running.get(attempt.job)
        if other is not None and other.ended is None:
            self.broken(
                "one attempt", f"{attempt.job} runs as {other.epoch} in {other.folder} and {attempt.epoch}"
            )
        self.running[attempt.job] = attempt
        for device in attempt.devices:
            holder = self.holders.get(device)
            if holder is not None and holder.ended is None:
                both = f"{holder.key} in {holder.folder} and {attempt.key} in {attempt.folder}"
                self.broken("one holder", f"{device} is held by {both}")
            self.holders[device] = attempt

    def over(self, attempt: Attempt) -> None:
        assert attempt.ended is not None
        self.truth[attempt.key] = (attempt.began, attempt.ended)
        if not attempt.told and all(code == 0 for code in attempt.codes):
            self.done.add(attempt.job)

    def forgotten(self, attempt: Attempt) -> None:
        """The supervisor was killed after it saw the end and before it wrote it: the kernel tells once."""
        self.done.discard(attempt.job)

    # -- when output is removed

    def removed(self, folder: str) -> None:
        job = folder.rpartition("/")[2]
        if job not in self.ended_at:
            self.broken("kept", f"the output of {job} is removed, which has not ended")
            return
        at, boot = self.ended_at[job]
        passed, boots = self.room.now - at, self.room.boot - boot
        # After each boot the wall clock counts. It may be wrong, and of that two days count.
        if passed + boots * LONGEST_GAP < self.keep - 3_600 * SECOND:
            hours = passed / SECOND / 3_600
            self.broken(
                "kept", f"the output of {job} is removed, {hours:.1f} h and {boots} boots after its end"
            )

    # -- at the end

    def at_the_end(self, rows: dict[str, str]) -> None:
        for job, known in self.known.items():
            if job not in rows:
                self.broken("accepted", f"{job} is gone")
            elif not State(rows[job]).final:
                self.broken("accepted", f"{job} ({known.kind}) is still {rows[job]}")
        for job in rows.keys() - self.known.keys():
            self.broken("accepted", f"{job} exists, and no client was told so")
