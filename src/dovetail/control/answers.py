"""What the plane says about itself: why a job waits, what the nodes hold, who has which share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dovetail.control.dependencies import Dependency, parse_dependency
from dovetail.control.forecast import Window, end_of_running
from dovetail.control.ledger import Ledger
from dovetail.control.quotas import TooMuch
from dovetail.control.records import Record
from dovetail.control.states import State
from dovetail.core.active import ActiveJob
from dovetail.core.core import Core
from dovetail.core.explain import ahead_of, binding
from dovetail.core.room import Room
from dovetail.mechanisms.fair import water_filled
from dovetail.model.cluster import Cluster
from dovetail.model.grant import load_of, milli_of
from dovetail.model.job import Job, Shape
from dovetail.model.units import WHOLE

MOST_NAMED = 20
MOST_CLOSED = 3  # nodes of which the reason is told
OVER_QUOTA = "AssocGrpGRES"
NOTHING_FREE = "nothing it could use is free: it starts when one of those who hold it ends"

_HELD = {
    "JobHeldUser": ("Its user holds it.", "dovetail release {id}"),
    "JobHeldAdmin": ("An administrator holds it.", "ask an administrator to release it"),
    "BeginTime": ("Its begin time has not come.", ""),
    "Dependency": ("It waits for other jobs: {dependency}.", ""),
    "JobArrayTaskLimit": (
        "{at_most} of its array may run at once, and as many do.",
        "submit the array with a higher %limit",
    ),
    "ReqNodeNotAvail": (
        "The cluster has become too small for it.",
        "bring the nodes back, or cancel it and ask for less",
    ),
}


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody on devices that a waiting job could use."""

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
    ahead: int = 0  # jobs before it that the one who asks may know of,
    ahead_others: bool = False  # and whether there are others
    never: bool = False  # as things are it waits for ever: there is nothing to forecast


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node and what it holds."""

    name: str
    type: str
    gpus: int
    free: int  # wholly
    state: str  # up | drained | lost | off
    why: str
    cpus: int
    memory: int
    devices: list[tuple[int, list[tuple[str, int]]]]  # index, and (job, milli-GPUs) on it


@dataclass(frozen=True, slots=True)
class Overview:
    """The cluster at a glance."""

    now: int
    moment: tuple[int, int]  # the era and the step it shows
    policy: str
    nodes: list[NodeState]
    tenants: dict[str, str]  # of the jobs on the nodes
    waiting: int  # jobs that only wait for resources
    running: int
    asked: float  # GPUs that those who wait ask for


@dataclass(frozen=True, slots=True)
class ShareState:
    """What a tenant may have and has."""

    tenant: str
    parent: str
    weight: float
    quota: int | None
    borrow: int | None
    limit: int | None
    account: str
    used: float
    running: int
    pending: int
    fair: float  # GPUs it would have by weight


def why(
    ledger: Ledger,
    record: Record,
    now: int,
    visible: Callable[[str], bool],
    too_much: Callable[[Job], TooMuch | None] = lambda job: None,
) -> Why:
    """What keeps it waiting, who holds what it needs, and what would let it start."""
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
            f"It was told to stop ({record.reason}) and is on its way out.",
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
        if closed.needed:  # whoever holds the rest may keep it
            answer.holders = []
    return answer


def ends_at(ledger: Ledger, record: Record, now: int) -> Window | None:
    """When a job that runs is expected to end; None for others, and if nobody said how long it takes."""
    job = ledger.core.running.get(record.id)
    if job is None or record.state is not State.RUNNING or record.started_at is None:
        return None
    if job.awaiting is not None or not says_how_long(ledger, record):
        return None
    latest = None if record.time_limit is None else record.started_at + record.time_limit
    return end_of_running(job.ends_at(now), now, latest)


def says_how_long(ledger: Ledger, record: Record) -> bool:
    """Whether its estimate is one, and not what the scheduler takes for want of it."""
    request = ledger.book.asked[record.request].request
    return bool(request.expected or request.time)


@dataclass(frozen=True, slots=True)
class OutOfUse:
    """Nodes that a job could use, were they not closed."""

    nodes: tuple[str, ...]
    sentence: str
    helps: tuple[str, ...]  # with these back it could start now, or could at all
    needed: bool  # without them it never starts

    def remedy(self, other: str) -> str:
        if not self.helps:
            return other
        words = (
            f"an administrator can bring {_listed(self.helps)} back:  dovetail resume {' '.join(self.helps)}"
        )
        return words if self.needed or other in ("", NOTHING_FREE) else f"{words}; or: {other}"


def out_of_use(core: Core, shape: Shape) -> OutOfUse | None:
    """What is missing to a job because nodes are closed; None if it loses nothing by it."""
    nodes, closed = core.cluster.nodes, core.closed_nodes()
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
    """What is free now, in a room of its own."""
    room = Room(core.cluster)
    for spots, _ in core.holds.values():
        room.take(spots)
    for job in core.running.values():
        room.take(job.spots or ())
    for number in core.closed_nodes():
        room.close(number)
    return room


def _holds(room: Room, shape: Shape, back: list[int]) -> bool:
    """Whether it would hold it with these nodes opened."""
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
    """What change would let it start now, tried against what is free."""
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


def nodes(core: Core) -> list[NodeState]:
    """All nodes, with who is on which device."""
    held: dict[int, dict[int, list[tuple[str, int]]]] = {}
    for job in core.running.values():
        for place, mask, share, _, _ in job.spots or ():
            there = held.setdefault(place, {})
            for device in range(mask.bit_length()):
                if mask >> device & 1:
                    there.setdefault(device, []).append((job.id, milli_of(share)))
    closed = core.closed_nodes()
    found = []
    for number, node in enumerate(core.cluster.nodes):
        reason = closed.get(number, "")
        state = "up" if number not in closed else ("off" if reason == "switched off" else "drained")
        there = held.get(number, {})
        found.append(
            NodeState(
                node.name,
                node.type.name,
                node.gpus,
                core.room.free_on(number).bit_count(),
                state,
                reason,
                node.cpus,
                node.memory,
                [(device, there.get(device, [])) for device in range(node.gpus)],
            )
        )
    return found


def overview(ledger: Ledger, policy: str, now: int) -> Overview:
    """All nodes and their jobs, and how many jobs there are."""
    core = ledger.core
    waiting = asked = 0
    for job in core.jobs.values():
        if job.spots is None:
            waiting += 1
            asked += job.shape.load
    return Overview(
        now,
        (ledger.era, core.number),
        policy,
        nodes(core),
        {job.id: job.tenant for job in core.running.values()},
        waiting,
        len(core.running),
        asked / WHOLE,
    )


def shares(ledger: Ledger, accounts: Mapping[str, str]) -> list[ShareState]:
    """What each tenant may have and has."""
    core = ledger.core
    running: dict[str, int] = {}
    pending: dict[str, int] = {}
    for record in ledger.book:
        count = running if record.state in (State.RUNNING, State.STOPPING) else pending
        count[record.tenant] = count.get(record.tenant, 0) + 1
    known = core.cluster.tenants
    names = sorted({*known, *running, *pending, *(name for name, used in core.used.items() if used)})
    fair = fair_shares(core)
    found = []
    for name in names:
        tenant = known.get(name)
        found.append(
            ShareState(
                name,
                tenant.parent if tenant else "",
                tenant.weight if tenant else 1.0,
                tenant.quota if tenant else None,
                tenant.borrow if tenant else None,
                tenant.limit if tenant else None,
                accounts.get(name, ""),
                core.used.get(name, 0) / WHOLE,
                running.get(name, 0),
                pending.get(name, 0),
                fair.get(name, 0.0),
            )
        )
    return found


def fair_shares(core: Core) -> dict[str, float]:
    """GPUs that each tenant with work would have, were they divided by weight and without breaks.

    Each gets what is its own first, as far as it wants it, and the rest is divided by weight; nobody gets
    more than it wants or may have. Every tenant counts by its own weight, whoever its parent is.
    """
    wants: dict[str, float] = {}
    for job in core.jobs.values():
        load = job.held if job.spots is not None else job.shape.load
        wants[job.tenant] = wants.get(job.tenant, 0.0) + load / WHOLE
    own = dict.fromkeys(wants, 0.0)
    for name, tenant in core.cluster.tenants.items():
        if name in wants:
            bounds = [wants[name]] + ([] if tenant.limit is None else [float(tenant.limit)])
            if tenant.quota is not None and tenant.borrow is not None:
                bounds.append(float(tenant.quota + tenant.borrow))
            wants[name] = min(bounds)
            own[name] = min(wants[name], float(tenant.quota or 0))
    closed = core.closed_nodes()
    gpus = float(sum(node.gpus for number, node in enumerate(core.cluster.nodes) if number not in closed))
    much = min(1.0, gpus / sum(own.values())) if any(own.values()) else 1.0
    own = {name: amount * much for name, amount in own.items()}
    weights = {name: tenant.weight for name, tenant in core.cluster.tenants.items()}
    rest = {name: max(0.0, wants[name] - amount) for name, amount in own.items()}
    more = water_filled(max(0.0, gpus - sum(own.values())), rest, weights)
    return {name: own[name] + more[name] for name in wants}


def never(shape: Shape, cluster: Cluster) -> str:
    """Why the empty cluster could not hold it."""
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
        f"the job asks for more CPU or memory beside its {shape.gpus} GPUs{kind} than a node has; take less"
    )


def needs(dependency: str) -> tuple[Dependency, ...]:
    """The jobs that a dependency names."""
    return tuple(need for need in parse_dependency(dependency) if need.job)
