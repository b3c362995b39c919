"""Why does a job wait? The reason is computed on request, by the code that decides.

The policy decides once more, on a draft that is rolled back, and notes a reason for each job that it passes
over. A job that the policy did not reach waits behind one of those jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dovetail.core.active import ActiveJob
from dovetail.core.core import Core
from dovetail.core.draft import Note
from dovetail.model.errors import InputError
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE, spoken


@dataclass(frozen=True, slots=True)
class Reason:
    """The binding constraint of a waiting job."""

    job: str
    word: str  # Slurm's reason: Resources, Priority, ...; Running if the job does not wait
    sentence: str
    ahead: int = 0  # jobs before it in the queue

    def __str__(self) -> str:
        return f"{self.job}: {self.word}. {self.sentence}"


Shown = Callable[[ActiveJob], str]


def by_id(job: ActiveJob) -> str:
    return job.id


def explain(core: Core, job_id: str, shown: Shown = by_id) -> Reason:
    """What keeps a job from running now. `shown` names the other jobs: not every user may see their ids."""
    job = core.jobs.get(job_id)
    if job is None:
        raise InputError(
            f"no job {job_id!r} is waiting or running at this moment; it is over, or yet to come"
        )
    if job.spots is not None:
        return binding(core, job, (), shown)
    return replace(binding(core, job, core.notes(), shown), ahead=len(ahead_of(core, job)))


def ahead_of(core: Core, job: ActiveJob) -> list[ActiveJob]:
    """The jobs ahead of a waiting job in the queue, in no particular order."""
    mine = job.filed
    assert mine is not None
    return [other for other in core.queue if (entry := other.filed) is not None and entry < mine]


def binding(core: Core, job: ActiveJob, notes: Sequence[Note], shown: Shown = by_id) -> Reason:
    """The reason from the notes of `core.notes`, without the job's place in the queue."""
    if job.spots is not None:
        return _holding(core, job, shown)
    for note in notes:
        if note.job == job.id:
            return Reason(job.id, note.word, _sentence(core, job, note, shown))
    for note in notes:
        other = core.jobs[note.job]
        if other.shape == job.shape or len(notes) == 1:
            why = _sentence(core, other, note, shown)
            return Reason(job.id, "Priority", f"It stands behind {shown(other)}, which waits: {why}")
    held = _missing(core, job, shown)
    return Reason(job.id, "Priority", f"The policy did not come to it at this moment. {held}")


def _holding(core: Core, job: ActiveJob, shown: Shown) -> Reason:
    names = ", ".join(
        core.cluster.nodes[node].name for node in dict.fromkeys(spot[0] for spot in job.spots or ())
    )
    if job.awaiting is not None:
        others = ", ".join(
            dict.fromkeys(
                shown(core.jobs[name]) if name in core.jobs else "another job"
                for name in sorted(job.awaiting)
            )
        )
        return Reason(job.id, "Completing", f"It has been given {names}, where {others} is still stopping.")
    return Reason(job.id, "Running", f"It has run on {names} for {spoken(core.now - job.started_at)}.")


def _sentence(core: Core, job: ActiveJob, note: Note, shown: Shown) -> str:
    if note.word == "Resources" and not note.detail:
        return _missing(core, job, shown)
    return f"{note.detail[:1].upper()}{note.detail[1:]}." if note.detail else _missing(core, job, shown)


def _missing(core: Core, job: ActiveJob, shown: Shown) -> str:
    """What the job asks for, what is free, and which jobs hold the rest."""
    shape, now = job.shape, core.now
    suits = {
        number: node
        for number, node in enumerate(core.cluster.nodes)
        if (not shape.types or node.type.name in shape.types)
        and (not shape.partition or shape.partition in node.partitions)
    }
    blocks = {number: core.room.free_on(number).bit_count() for number in suits}
    free, largest = sum(blocks.values()), max(blocks.values(), default=0)
    there = "none is" if not free else f"{free} {'is' if free == 1 else 'are'}"
    asks = f"It asks for {_wants(shape)}; {there} free"
    if largest < shape.gpus <= free:  # enough GPUs, but on too many nodes
        name = next(node.name for number, node in suits.items() if blocks[number] == largest)
        asks += f", but no more than {largest} on one node ({name})"
    holders = [
        other for other in core.running.values() if any(spot[0] in suits for spot in other.spots or ())
    ]
    if not holders:
        return f"{asks}."
    first = min(holders, key=lambda other: (other.ends_at(now), other.seq))
    ends = first.ends_at(now)
    when = f"in {spoken(ends - now)}" if ends > now else "any moment"
    rest = "the rest" if free else "them all"
    if len(holders) == 1:
        return f"{asks}. {shown(first)} holds {rest} and should end {when}."
    return f"{asks}. {len(holders)} jobs hold {rest}; the first to end should be {shown(first)}, {when}."


def _wants(shape: Shape) -> str:
    kind = f" of type {'|'.join(shape.types)}" if shape.types else ""
    many = "s" * (shape.gpus != 1)
    if shape.slice:
        return f"{shape.gpus} slice{many} {shape.slice}{kind}"
    part = "" if shape.milli == WHOLE else f"{100 * shape.milli / WHOLE:g} % of "
    return f"{part}{shape.gpus} GPU{many}{kind}"
