"""The states of a job as its user sees them, and what an attempt's end makes of it.

`held` jobs are unknown to the core: their user, a dependency or a begin time keeps them from the queue.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from dovetail.engines.contract import Exit

REQUEUE_ME = 75  # EX_TEMPFAIL: the job itself asks to be started again


class State(StrEnum):
    """The state of a job."""

    PENDING = "pending"
    HELD = "held"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    NODE_FAILED = "node-failed"
    OUT_OF_MEMORY = "out-of-memory"
    REFUSED = "refused"

    @property
    def final(self) -> bool:
        return self not in ACTIVE

    @property
    def letter(self) -> str:
        """As `squeue` would abbreviate it."""
        return LETTERS[self]


ACTIVE = frozenset({State.PENDING, State.HELD, State.RUNNING, State.STOPPING})
ACTIVE_WORDS = sorted(state.value for state in ACTIVE)
LETTERS = {
    State.PENDING: "PD",
    State.HELD: "PD",
    State.RUNNING: "R",
    State.STOPPING: "CG",
    State.COMPLETED: "CD",
    State.FAILED: "F",
    State.CANCELLED: "CA",
    State.TIMEOUT: "TO",
    State.NODE_FAILED: "NF",
    State.OUT_OF_MEMORY: "OOM",
    State.REFUSED: "F",
}


class Verdict(NamedTuple):
    """What becomes of a job after its attempt has ended by itself."""

    state: State  # pending: it is started again
    why: str
    counts: bool = True  # against the retries it has


def verdict(exit: Exit, retry_on: Collection[str], retries_left: int) -> Verdict:
    """What the end of an attempt means for the job, if the attempt was not told to stop."""
    if exit.finished and exit.cause in ("exited", "stopped"):
        return Verdict(State.COMPLETED, "")
    match exit.cause:
        case "exited" if exit.code == 0:
            return Verdict(State.COMPLETED, "")
        case "exited" if exit.code == REQUEUE_ME:
            return Verdict(State.PENDING, f"it asked to be started again (exit {REQUEUE_ME})", counts=False)
        case "exited":
            names, end = {f"exit:{exit.code}"}, State.FAILED
        case "timeout":
            names, end = {"timeout"}, State.TIMEOUT
        case "lost":
            names, end = {"node-failure"}, State.NODE_FAILED
        case "oom":  # it would only run out again
            names, end = set(), State.OUT_OF_MEMORY
        case _:
            names, end = set(), State.FAILED
    if retries_left > 0 and names & set(retry_on):
        return Verdict(State.PENDING, exit.detail or f"exit {exit.code}")
    return Verdict(end, exit.detail)
