"""Why does a job wait? The reason is computed on request, by the code that decides.

The policy decides once more, on a draft that is rolled back, and notes a reason for each job that it passes
over. A job that the policy did not reach waits behind one of those jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dovetail.core import shortage
from dovetail.core.active import ActiveJob
from dovetail.core.core import Core
from dovetail.core.draft import Note
from dovetail.model.errors import InputError
from dovetail.model.units import spoken


@dataclass(frozen=True, slots=True)
class Reason:
    """The binding constraint of a waiting job."""

    job: str
    word: str  # Slurm's reason: Resources, Priority, ...; Running if the job does not wait
    sentence: str
    ahead: int = 0  # jobs before it in the queue
    rule: str = ""  # of the policy that keeps it waiting though its resources are free, or a quota
    behind: str = ""  # the job that waits for room or quota and that it must not delay

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


def binding(
    core: Core, job: ActiveJob, notes: Sequence[Note], shown: Shown = by_id, *, ends: bool = True
) -> Reason:
    """The reason from the notes of `core.notes`, without the job's place in the queue.

    With `ends` it says when the first of the jobs that hold the resources should end.
    """
    if job.spots is not None:
        return _holding(core, job, shown)
    for note in notes:
        if note.job == job.id:
            return _noted(core, job, note, shown, ends)
    if (equal := _note_of_equal(core, job, notes)) is not None:
        other = core.jobs[equal.job]
        why = _noted(core, other, equal, shown, ends)
        text = f"It stands behind {shown(other)}, which waits: {why.sentence}"
        return Reason(job.id, "Priority", text, rule=f"{shown(other)} goes before it", behind=other.id)
    held = _missing(core, job, shown, ends)
    rule = "the policy did not come to it at this moment"
    return Reason(job.id, "Priority", f"{rule[:1].upper()}{rule[1:]}. {held}", rule=rule)


def _note_of_equal(core: Core, job: ActiveJob, notes: Sequence[Note]) -> Note | None:
    """The note of a job that stands for this one: of the same shape and group, or the only one."""
    group = core.policy.group or (lambda job: None)
    mine = group(job)
    alike = [note for note in notes if core.jobs[note.job].shape == job.shape]
    exact = (note for note in alike if group(core.jobs[note.job]) == mine)
    found = next(exact, None) or next(iter(alike), None)
    return found or (notes[0] if len(notes) == 1 else None)


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
        if job.started:
            return Reason(job.id, "Running", f"It grows onto {names} as soon as {others} has made room.")
        return Reason(job.id, "Completing", f"It has been given {names}, where {others} is still stopping.")
    return Reason(job.id, "Running", f"It has run on {names} for {spoken(core.now - job.started_at)}.")


def _noted(core: Core, job: ActiveJob, note: Note, shown: Shown, ends: bool) -> Reason:
    """The reason that the policy gave for passing over a job."""
    behind = core.jobs.get(note.behind)
    if behind is not None:
        fits = core.room.anywhere(job.shape) is not None
        rule = f"starting it now would delay {shown(behind)}, which goes before it and waits"
        if note.word != "Priority":
            rule = f"{note.detail}: {shown(behind)}"
        room = "There is room for it, but " if fits and note.word == "Priority" else ""
        return Reason(job.id, note.word, f"{_capital(room + rule)}.", rule=rule, behind=behind.id)
    if note.detail:
        return Reason(job.id, note.word, f"{_capital(note.detail)}.", rule=note.detail)
    return Reason(job.id, note.word, _missing(core, job, shown, ends))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _missing(core: Core, job: ActiveJob, shown: Shown, ends: bool) -> str:
    """What the job asks for, what is free, and which jobs hold the rest."""
    now = core.now
    found = shortage.missing(core.room, job.shape)
    if found is None:
        return "There is room for it."
    asks = shortage.sentence(job.shape, found)
    holders = shortage.holders(core, job.shape, found.resources)
    if not holders:
        return f"{asks}."
    first = holders[0]
    until = first.ends_at(now)
    when = f"in {spoken(until - now)}" if until > now else "any moment"
    rest = "them all" if not any(short.free for short in found.shortages) else "the rest"
    if len(holders) == 1:
        return f"{asks}. {shown(first)} holds {rest}{f' and should end {when}' * ends}."
    last = f"; the first to end should be {shown(first)}, {when}" * ends
    return f"{asks}. {len(holders)} jobs hold {rest}{last}."
