"""Playing a journal again: the same events must give the same actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from dovetail.core.core import Core, Step
from dovetail.core.explain import Reason, explain
from dovetail.core.journal import Header, read_journal
from dovetail.model.errors import JournalError, ReplayMismatch
from dovetail.model.estimate import DECLARED
from dovetail.model.event import SUBMITTED
from dovetail.model.view import Policy

Make = Callable[[Header], Policy]


def replayed(path: str | Path, make: Make) -> Iterator[tuple[Core, Step]]:
    """The core after each step of a journal; raises where it would act otherwise than it did."""
    header, steps = read_journal(path)
    estimator = DECLARED if header.errors is None else header.errors.estimator(DECLARED)
    core = Core(header.cluster, make(header), header.seed, estimator)
    for old in steps:
        core.number = old.number - 1
        new = core.handle(old.now, old.events, failure=old.failure)
        if new.actions != old.actions:
            raise ReplayMismatch(
                f"{path}: step {old.number} at t={old.now / 1e6:.10g} s gave {new.actions}, the journal has "
                f"{old.actions}; the policy {header.policy} has changed since it was written"
            )
        yield core, new


def core_at(path: str | Path, make: Make, number: int) -> tuple[Core, Step]:
    """The core as it was after a step."""
    last = 0
    for core, step in replayed(path, make):
        if step.number == number:
            return core, step
        last = step.number
    raise JournalError(f"{path}: has no step {number}; its steps go from 1 to {last}")


def reasons(
    path: str | Path, make: Make, job_id: str, at: int | None = None
) -> Iterator[tuple[Step, Reason]]:
    """Why a job waited: each time the reason changed, or at one step."""
    known, said = False, ""
    for core, step in replayed(path, make):
        known = known or any(event[1] == SUBMITTED and event[2] == job_id for event in step.events)
        if job_id not in core.jobs or (at is not None and step.number < at):
            continue
        reason = explain(core, job_id)
        if at is not None or reason.word != said:
            said = reason.word
            yield step, reason
        if at is not None:
            return
    if not known:
        raise JournalError(f"{path}: no job {job_id!r} was ever submitted in this run")
