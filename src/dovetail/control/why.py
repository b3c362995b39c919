"""Why a job does not run: the reason, the jobs that hold what it needs, a remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dovetail.control.forecast import Window, end_of_running
from dovetail.control.ledger import Ledger
from dovetail.control.quotas import TooMuch
from dovetail.control.records import Record
from dovetail.control.states import State
from dovetail.core.active import ActiveJob
from dovetail.core.core import Core
from dovetail.core.explain import ahead_of, binding
from dovetail.core.room import Room
from dovetail.model.cluster import Cluster
from dovetail.model.grant import load_of
from dovetail.model.job import Job, Shape
from dovetail.model.units import WHOLE

MOST_NAMED = 20
MOST_CLOSED = 3  # nodes of which the reason is told
OVER_QUOTA = "AssocGrpGRES"
NOTHING_FREE = "no GPUs that it could use are free: it starts when a job that holds them ends"

_HELD = {
    "JobHeldUser": ("Its user holds it.", "dovetail release {id}"),
    "JobHeldAdmin": ("An administrator holds it.", "ask an administrator to release it"),
    "BeginTime": ("Its begin time has not come.", ""),
    "Dependency": ("It waits for other jobs: {dependency}.", ""),
    "JobArrayTaskLimit": (
        "{at_most} jobs of its array may run at once, and that many do.",
        "submit the array with a higher %limit",
    ),
    "ReqNodeNotAvail": (
        "The cluster has become too small for it.",
        "bring the nodes back, or cancel it and ask for less",
    ),
}


@dataclass(frozen=True, slots=True)
class Holder:
    """A job on devices that a waiting job could use."""

    job: str
    tenant: str
    gpus: float
    ends_at: int | None


@dataclass(slots=True)
class Why:
    """What keeps a job from running."""

    job: str
    state: State
    reason: str
    sentence: str
    holders: list[Holder] = field(default_factory=list)
    remedy: str = ""
    starts_at: Window | None = None
    ends_at: Window | None = None
    ahead: int = 0  # jobs before it in the queue that the caller may see
    ahead_others: bool = False  # whether jobs of other tenants are before it too
    never: bool = False  # the job cannot start as the cluster is: there is nothing to forecast
    preempted_by: list[dict[str, Any]] = field(default_factory=list)  # as far as the caller may know


def explained(
    ledger: Ledger,
    record: Record,
    now: int,
    visible: Callable[[str], bool],
    too_much: Callable[[Job], TooMuch | None] = lambda job: None,
) -> Why:
    """Why a job waits, which jobs hold what it needs, and what would let it start."""
    core = ledger.core
    if record.state is State.HELD:
        sentence, remedy = _HELD.get(record.reason, ("It is held.", ""))
        told = {"id": record.id, "dependency": record.dependency or "", "at_most": record.at_most}
        return Why(
            record.id,
            record.state,
            record.reason,
            sentence.format(**told),
            remedy=remedy.format(**told),
        )
    if record.state is State.STOPPING:
        return Why(
            record.id,
            record.state,
            "Completing",
            f"It was told to stop ({record.reason}) and has not stopped yet.",
        )
    job = core.jobs.get(record.id)
    if job is None:
        return Why(record.id, record.state, "Starting", "The scheduler has not seen it yet.")

    def shown(other: ActiveJob) -> str:
        return other.id if visible(other.tenant) else "a job of another tenant"

    reason = binding(core, job, ledger.notes() if job.spots is None else (), shown)
    answer = Why(record.id, record.state, reason.word, reason.sentence)
    if record.state is not State.PENDING or job.filed is None:
        return answer
    if over := too_much(job.spec):
        sentence = f"{over.sentence[:1].upper()}{over.sentence[1:]}."
        return Why(record.id, record.state, OVER_QUOTA, sentence, remedy=over.remedy, never=True)
    before = ahead_of(core, job)
    answer.ahead = sum(1 for other in before if visible(other.tenant))
    answer.ahead_others = answer.ahead < len(before)
    suits = {n for n, node in enumerate(core.cluster.nodes) if _suits(job.shape, core.cluster, n)}
    holding = [j for j in core.running.values() if any(s[0] in suits for s in j.spots or ())]
    holding.sort(key=lambda other: (other.ends_at(now), other.seq))
    answer.holders = [
        Holder(other.id, other.tenant, load_of(other.spots or ()) / WHOLE, other.ends_at(now))
        for other in holding[:MOST_NAMED]
    ]
    answer.remedy = _remedy(core, job, bool(before))
    if closed := out_of_use(core, job.shape):
        answer.sentence = f"{answer.sentence} {closed.sentence}"
        answer.never = closed.needed
        answer.remedy = closed.remedy(answer.remedy)
        if closed.needed:  # the jobs on other nodes do not matter
            answer.holders = []
    return answer


def expected_end(ledger: Ledger, record: Record, now: int) -> Window | None:
    """When a running job is expected to end; None for other jobs, and without an estimate."""
    job = ledger.core.running.get(record.id)
    if job is None or record.state is not State.RUNNING or record.started_at is None:
        return None
    if job.awaiting is not None or not says_how_long(ledger, record):
        return None
    latest = None if record.time_limit is None else record.started_at + record.time_limit
    return end_of_running(job.ends_at(now), now, latest)


def says_how_long(ledger: Ledger, record: Record) -> bool:
    """Whether the user gave an estimate or a time limit; otherwise the scheduler assumes one."""
    request = ledger.index.asked[record.request].request
    return bool(request.expected or request.time)


@dataclass(frozen=True, slots=True)
class OutOfUse:
    """Nodes that a job could use if they were not closed."""

    nodes: tuple[str, ...]
    sentence: str
    helps: tuple[str, ...]  # with these nodes back the job could start now, or at all
    needed: bool  # without them the job never starts

    def remedy(self, other: str) -> str:
        if not self.helps:
            return other
        words = (
            f"an administrator can bring {_listed(self.helps)} back:  dovetail resume {' '.join(self.helps)}"
        )
        return words if self.needed or other in ("", NOTHING_FREE) else f"{words}; or: {other}"


def out_of_use(core: Core, shape: Shape) -> OutOfUse | None:
    """Closed nodes that a job could use; None if there are none."""
    nodes, closed = core.cluster.nodes, core.closed
    lost = [
        n for n in sorted(closed) if _suits(shape, core.cluster, n) and nodes[n].gpus >= min(shape.each, 1)
    ]
    if not lost:
        return None
    told = [_closed_sentence(core, n, closed[n]) for n in lost[:MOST_CLOSED]]
    if len(lost) > MOST_CLOSED:
        told.append(f"{len(lost) - MOST_CLOSED} more nodes are out of use.")
    empty = Room(core.cluster)
    for number in closed:
        empty.close(number)
    needed = empty.anywhere(shape) is None
    room = empty if needed else _room_now(core)
    helps: list[int] = []
    if needed or room.best(shape) is None:
        helps = next(
            ([n] for n in lost if _holds(room, shape, [n])), lost if _holds(room, shape, lost) else []
        )
    if needed:
        told.append("Without them it can never start.")
    return OutOfUse(
        tuple(nodes[n].name for n in lost), " ".join(told), tuple(nodes[n].name for n in helps), needed
    )


def _closed_sentence(core: Core, number: int, why: str) -> str:
    name, gpus = core.cluster.nodes[number].name, core.cluster.nodes[number].gpus
    for job in core.running.values():
        gpus -= sum(spot[1].bit_count() for spot in job.spots or () if spot[0] == number)
    word = why if why in ("drained", "switched off", "given back") else f"drained ({why})"
    if gpus <= 0:
        return f"{name} takes no new work: {word}."
    return f"{gpus} GPU{'s' * (gpus > 1)} of {name} {'are' if gpus > 1 else 'is'} out of use: {word}."


def _room_now(core: Core) -> Room:
    """A copy of the free capacity now."""
    room = Room(core.cluster)
    for spots, _ in core.holds.values():
        room.take(spots)
    for job in core.running.values():
        room.take(job.spots or ())
    for number in core.closed:
        room.close(number)
    return room


def _holds(room: Room, shape: Shape, back: list[int]) -> bool:
    """Whether the shape fits once these nodes are open again."""
    for number in back:
        room.open(number)
    found = room.anywhere(shape) is not None
    for number in back:
        room.close(number)
    return found


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _suits(shape: Shape, cluster: Cluster, node: int) -> bool:
    return not shape.types or cluster.nodes[node].type.name in shape.types


def _remedy(core: Core, job: ActiveJob, others_first: bool) -> str:
    """A change that would let the job start now, tried on the free capacity."""
    shape, room = job.shape, core.room
    if room.best(shape) is not None:
        return "its devices are free: it waits for its turn" + (
            "; a higher priority would help" if others_first else ""
        )
    if shape.types:
        anyway = replace(shape, types=())
        spots = room.best(anyway)
        if spots is not None:
            other = core.cluster.nodes[spots[0][0]].type.name
            return f"there is room on {other}: accept other types of GPU"
    for each in range(shape.each - 1, 0, -1):
        if room.best(replace(shape, each=each)) is not None:
            return f"{each * shape.tasks} GPUs are free where it could run: ask for fewer"
    for tasks in range(shape.tasks - 1, 0, -1):
        if room.best(shape.of(tasks)) is not None:
            return f"{tasks * shape.each} GPUs are free where it could run: ask for fewer"
    if shape.cpus or shape.memory:
        lean = replace(shape, cpus=0, memory=0)
        if room.best(lean) is not None:
            return "its GPUs are free, but not the CPU or memory beside them: ask for less of those"
    return NOTHING_FREE


def never_fits(shape: Shape, cluster: Cluster) -> str:
    """Why not even the empty cluster could hold a shape."""
    suiting = [n for i, n in enumerate(cluster.nodes) if _suits(shape, cluster, i)]
    kind = f" of type {' or '.join(shape.types)}" if shape.types else ""
    if shape.types and not suiting:
        there = ", ".join(dict.fromkeys(node.type.name for node in cluster.nodes))
        return f"the job asks for GPUs{kind}, and the cluster has {there}; name one of those, or any"
    largest = max((node.gpus for node in suiting), default=0)
    if shape.each > largest:
        return (
            f"the job asks for {shape.each} GPUs{kind} on one node, and the largest node has {largest}; "
            "ask for fewer, or for more nodes"
        )
    total = sum(node.gpus for node in suiting)
    if shape.gpus > total or shape.tasks > len(suiting):
        return (
            f"the job asks for {shape.tasks} x {shape.each} GPUs{kind}, and the whole cluster has "
            f"{len(suiting)} such nodes with {total} GPUs; ask for fewer"
        )
    return (
        f"the job asks for more CPU or memory beside its {shape.gpus} GPUs{kind} than a node has; "
        "ask for less"
    )
