"""Why does a job wait? Worked out when somebody asks, by the code that decides.

The policy decides once more on a draft that is thrown away, and says of each job that it passes over why.
A job it never came to waits behind one of those.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.core.active import ActiveJob
from dovetail.core.core import Core
from dovetail.core.draft import Note
from dovetail.model.errors import InputError
from dovetail.model.units import spoken


@dataclass(frozen=True, slots=True)
class Reason:
    """The binding constraint of a waiting job."""

    job: str
    word: str  # as Slurm says it: Resources, Priority, ...; Running if it does not wait
    sentence: str
    ahead: int = 0  # jobs before it in the queue

    def __str__(self) -> str:
        return f"{self.job}: {self.word}. {self.sentence}"


def explain(core: Core, job_id: str) -> Reason:
    """What keeps a job from running now."""
    job = core.jobs.get(job_id)
    if job is None:
        raise InputError(
            f"no job {job_id!r} is waiting or running at this moment; it is over, or yet to come"
        )
    if job.spots is not None:
        return _holding(core, job)
    assert job.filed is not None
    mine = job.filed[:2]
    ahead = sum(1 for other in core.queue if other.filed is not None and other.filed[:2] < mine)
    notes = core.notes()
    for note in notes:
        if note.job == job_id:
            return Reason(job_id, note.word, _sentence(core, job, note), ahead)
    for note in notes:
        other = core.jobs[note.job]
        if other.shape == job.shape or len(notes) == 1:
            why = _sentence(core, other, note)
            return Reason(job_id, "Priority", f"It stands behind {other.id}, which waits: {why}", ahead)
    held = _missing(core, job)
    return Reason(job_id, "Priority", f"The policy did not come to it at this moment. {held}", ahead)


def _holding(core: Core, job: ActiveJob) -> Reason:
    names = ", ".join(
        core.cluster.nodes[node].name for node in dict.fromkeys(spot[0] for spot in job.spots or ())
    )
    if job.awaiting is not None:
        others = ", ".join(sorted(job.awaiting))
        return Reason(job.id, "Completing", f"It has been given {names}, where {others} is still stopping.")
    return Reason(job.id, "Running", f"It has run on {names} for {spoken(core.now - job.started_at)}.")


def _sentence(core: Core, job: ActiveJob, note: Note) -> str:
    if note.word == "Resources" and not note.detail:
        return _missing(core, job)
    return f"{note.detail[:1].upper()}{note.detail[1:]}." if note.detail else _missing(core, job)


def _missing(core: Core, job: ActiveJob) -> str:
    """What it asks for against what there is, and who has the rest."""
    room, shape = core.room, job.shape
    kind = f" of type {'|'.join(shape.types)}" if shape.types else ""
    wants = f"{shape.gpus} GPU{'s' * (shape.gpus != 1)}{kind}"
    blocks = [
        room.free_on(node).bit_count()
        for node, machine in enumerate(core.cluster.nodes)
        if not shape.types or machine.type.name in shape.types
    ]
    free, largest = sum(blocks), max(blocks, default=0)
    holders = sorted(core.running.values(), key=lambda other: (other.ends_at(core.now), other.seq))
    if not holders:
        return f"It asks for {wants}; {free} are free, at most {largest} on one node."
    first = holders[0]
    ends = (
        f"in {spoken(first.ends_at(core.now) - core.now)}"
        if first.ends_at(core.now) > core.now
        else "any moment"
    )
    return (
        f"It asks for {wants}; {free} are free, at most {largest} on one node. "
        f"{len(holders)} jobs hold the rest; the first to end should be {first.id}, {ends}."
    )
