"""What the plane says about itself: why a job waits, what the nodes hold, who has which share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dovetail.control.dependencies import Dependency, parse_dependency
from dovetail.control.forecast import Window
from dovetail.control.ledger import Ledger
from dovetail.control.records import Record
from dovetail.control.states import State
from dovetail.core.active import ActiveJob
from dovetail.core.core import Core
from dovetail.core.explain import ahead_of, binding
from dovetail.model.cluster import Cluster
from dovetail.model.grant import load_of, milli_of
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE

MOST_NAMED = 20

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
    ahead: int = 0  # jobs before it that the one who asks may know of,
    ahead_others: bool = False  # and whether there are others


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


def why(ledger: Ledger, record: Record, now: int, visible: Callable[[str], bool]) -> Why:
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
    return answer


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
    return "nothing it could use is free: it starts when one of those who hold it ends"


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
            )
        )
    return found


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
