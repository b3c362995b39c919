"""Why a job does not run: the resource that is short, the jobs that hold it, the rule of the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dovetail.control.forecast import Window, end_of_running
from dovetail.control.ledger import Ledger
from dovetail.control.quotas import TooMuch
from dovetail.control.records import Record
from dovetail.control.remedies import Case, Remedy, closed_nodes
from dovetail.control.request import DEFAULT_ESTIMATE, JobRequest
from dovetail.control.run_times import Source, source_of, told, with_estimate
from dovetail.control.states import State
from dovetail.core.active import ActiveJob
from dovetail.core.core import Core
from dovetail.core.explain import Reason, ahead_of, binding
from dovetail.core.room import Room
from dovetail.core.shortage import Shortage, missing, suiting
from dovetail.core.shortage import holders as holders_of
from dovetail.mechanisms.quota.tenant_quota import nominal
from dovetail.model.cluster import Cluster, Tenant
from dovetail.model.grant import milli_of
from dovetail.model.job import Job, Shape
from dovetail.model.units import WHOLE, spoken

MOST_NAMED = 20
MOST_CLOSED = 3  # nodes of which the reason is told
OVER_QUOTA = "AssocGrpGRES"
OTHER = "a job of another tenant"

_HELD = {
    "JobHeldUser": "Its user holds it. Queue it with dovetail release {id}.",
    "JobHeldAdmin": "An administrator holds it.",
    "BeginTime": "Its begin time has not come.",
    "Dependency": "It waits for other jobs: {dependency}.",
    "JobArrayTaskLimit": "{at_most} jobs of its array may run at once, and that many do.",
    "ReqNodeNotAvail": "The cluster has become too small for it.",
}


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that holds what a waiting job is short of."""

    job: str
    tenant: str
    gpus: float
    cpus: float
    memory: int
    ends_at: int | None
    estimate: Source  # what its end rests on


@dataclass(slots=True)
class Why:
    """What keeps a job from running."""

    job: str
    state: State
    reason: str
    sentence: str
    short: Sequence[Shortage] = ()
    rule: str = ""  # of the policy, if it holds the job back
    behind: str | None = None  # the job that it must not delay, if the caller may see it
    holders: list[Holder] = field(default_factory=list)
    remedies: list[Remedy] = field(default_factory=list)
    remedies_in: float = 0.0  # seconds until they can be tried, if the caller has asked too often
    assumed: str = ""  # what the times rest on, if not on estimates of users
    estimate: int | None = None
    estimate_source: Source | None = None
    starts_at: Window | None = None
    ends_at: Window | None = None
    ahead: int = 0  # jobs before it in the queue that the caller may see
    ahead_others: bool = False  # whether jobs of other tenants are before it too
    never: bool = False  # the job cannot start as the cluster is: there is nothing to forecast
    preempted_by: list[dict[str, Any]] = field(default_factory=list)  # as far as the caller may know

    @property
    def remedy(self) -> str:
        """How it could start sooner, in words."""
        return "; or: ".join(remedy.text for remedy in self.remedies if remedy.kind != "wait")


Visible = Callable[[str], bool]


def explained(
    ledger: Ledger,
    record: Record,
    now: int,
    visible: Visible,
    too_much: Callable[[Job], TooMuch | None] = lambda job: None,
) -> Why:
    """Why a job waits, what it is short of, and which jobs hold that."""
    core = ledger.core
    if record.state is State.HELD:
        values = {"id": record.id, "dependency": record.dependency or "", "at_most": record.at_most}
        sentence = _HELD.get(record.reason, "It is held.").format(**values)
        return Why(record.id, record.state, record.reason, sentence)
    if record.state is State.STOPPING:
        sentence = f"It was told to stop ({record.reason}) and has not stopped yet."
        return Why(record.id, record.state, "Completing", sentence)
    job = core.jobs.get(record.id)
    if job is None:
        return Why(record.id, record.state, "Starting", "The scheduler has not seen it yet.")

    def shown(other: ActiveJob) -> str:
        return other.id if visible(other.tenant) else OTHER

    reason = binding(core, job, ledger.notes() if job.spots is None else (), shown, ends=False)
    answer = Why(record.id, record.state, reason.word, reason.sentence, rule=reason.rule)
    request = ledger.index.asked[record.request].request
    answer.estimate, answer.estimate_source = job.estimate, source_of(request, job.estimate)
    if record.state is not State.PENDING or job.filed is None:
        return answer
    if over := too_much(job.spec):
        sentence = f"{over.sentence[:1].upper()}{over.sentence[1:]}."
        return replace_reason(answer, OVER_QUOTA, sentence)
    _explain_waiting(answer, ledger, job, reason, now, visible)
    if closed := out_of_use(core, job.shape):
        answer.sentence = f"{answer.sentence} {closed.sentence}"
        if closed.needed:  # the jobs on other nodes do not matter
            answer.never, answer.holders, answer.short = True, [], ()
    answer.assumed = _assumed(answer, now)
    return answer


def replace_reason(answer: Why, reason: str, sentence: str) -> Why:
    """The quota never lets it start: nothing else matters."""
    return Why(
        answer.job,
        answer.state,
        reason,
        sentence,
        rule=sentence.rstrip("."),
        estimate=answer.estimate,
        estimate_source=answer.estimate_source,
        never=True,
    )


def _explain_waiting(
    answer: Why, ledger: Ledger, job: ActiveJob, reason: Reason, now: int, visible: Visible
) -> None:
    """What a job in the queue is short of, which jobs hold it, and how many are before it."""
    core = ledger.core
    before = ahead_of(core, job)
    answer.ahead = sum(1 for other in before if visible(other.tenant))
    answer.ahead_others = answer.ahead < len(before)
    behind = core.jobs.get(reason.behind)
    if behind is not None and visible(behind.tenant):
        answer.behind = behind.id
    if reason.word == OVER_QUOTA:
        if behind is None:
            answer.sentence = _quota_sentence(core, job, answer.sentence)
        line = set(core.cluster.line(job.tenant))
        holding = [one for one in core.running.values() if not line.isdisjoint(core.cluster.line(one.tenant))]
        holding.sort(key=lambda one: (one.ends_at(now), one.seq))
        answer.holders = [_holder(ledger, one, now, None) for one in holding]
        return
    found = missing(core.room, job.shape)
    if found is not None:
        answer.short = found.shortages
        nodes = set(suiting(core.room, job.shape))
        holding = holders_of(core, job.shape, found.resources)
        answer.holders = [_holder(ledger, one, now, nodes) for one in holding]


def _holder(ledger: Ledger, job: ActiveJob, now: int, nodes: set[int] | None) -> Holder:
    """What a job holds on these nodes (None: on all)."""
    spots = [spot for spot in job.spots or () if nodes is None or spot[0] in nodes]
    record = ledger.index.records.get(job.id)
    asked = None if record is None else ledger.index.asked.get(record.request)
    source = Source.ASSUMED if asked is None else source_of(asked.request, job.estimate)
    return Holder(
        job.id,
        job.tenant,
        sum(spot[1].bit_count() * milli_of(spot[2]) for spot in spots) / WHOLE,
        sum(spot[3] for spot in spots) / 1_000,
        sum(spot[4] for spot in spots),
        job.ends_at(now),
        source,
    )


def _quota_sentence(core: Core, job: ActiveJob, before: str) -> str:
    """Whose quota or limit is too small, and how much of it is in use."""
    load, cluster = job.shape.load, core.cluster
    for name in cluster.line(job.tenant):
        tenant, used = cluster.tenants.get(name), core.used.get(name, 0)
        bounds = [] if tenant is None else _bounds(cluster, tenant)
        most = min((bound for bound in bounds if used + load > bound), default=None)
        if most is None:
            continue
        together = any(other.parent == name for other in cluster.tenants.values())
        of = f"The tenants under {name}" if together else f"Tenant {name}"
        held = f"{'their' if together else 'its'} jobs hold {used / WHOLE:g}"
        may = f"{of} may hold {_gpus(most / WHOLE)}{' together' * together}"
        return f"{may}; {held}, and this one asks for {load / WHOLE:g}."
    return before


def _bounds(cluster: Cluster, tenant: Tenant) -> list[int]:
    """The milli-GPUs that a tenant may hold: by its quota, with what it may borrow, and by its limit."""
    quota = nominal(cluster)[tenant.name]
    found = [] if tenant.limit is None else [tenant.limit * WHOLE]
    if tenant.parent not in cluster.tenants:
        return [*found, quota]
    return found if tenant.borrow is None else [*found, quota + tenant.borrow * WHOLE]


def _gpus(count: float) -> str:
    return f"{count:g} GPU{'s' * (count != 1)}"


def _assumed(answer: Why, now: int) -> str:
    """What the times of an answer rest on, where users gave no estimate."""
    parts = []
    if answer.estimate_source is not None and answer.estimate is not None:
        parts.append(told(answer.estimate_source, answer.estimate))
    guessed = [one for one in answer.holders if one.estimate is Source.ASSUMED]
    if guessed:
        parts.append(f"assumed {spoken(DEFAULT_ESTIMATE)} for {_of_holders(len(guessed), answer)}")
    late = sum(1 for one in answer.holders if one.ends_at is not None and one.ends_at <= now)
    if late:
        have = "has" if late == 1 else "have"
        parts.append(
            f"{_of_holders(late, answer)} {have} run longer than estimated, and may need as long again"
        )
    return "; ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Rights:
    """What a caller may do."""

    acts: bool  # change jobs at all
    owns: Callable[[Record], bool]  # whether a job is the caller's own
    may_submit: Callable[[JobRequest, Job], bool]  # whether a request is within its limits
    most_priority: int
    sees: Callable[[str], bool]  # whether jobs of a tenant may be named to it


def _of_holders(count: int, answer: Why) -> str:
    """So many of the jobs that hold what is short."""
    many = len(answer.holders)
    return "the job that holds it" if many == 1 else f"{count} of the {many} jobs that hold it"


def case_of(ledger: Ledger, record: Record, now: int, rights: Rights) -> Case | None:
    """What is needed to try remedies; None for a job that runs, or that the cluster could never hold."""
    asked = ledger.index.asked.get(record.request)
    if asked is None or asked.job is None or record.state not in (State.PENDING, State.HELD):
        return None
    active = ledger.core.jobs.get(record.id)
    waits = active is not None and active.filed is not None
    if active is not None and not waits:
        return None
    job = replace(asked.job, id=record.id, priority=record.priority)
    job = active.spec if active is not None else with_estimate(job, asked.request, ledger.run_times)
    free = replace(record, held_by="") if record.held_by in ("user", "admin") else record
    running = [
        other
        for other in ledger.core.running.values()
        if (known := ledger.index.records.get(other.id)) is not None
        and known.state is State.RUNNING
        and rights.acts
        and rights.owns(known)
        and not ledger.index.affected(known)  # its end would let other jobs into the queue
    ]
    running.sort(key=lambda other: (other.held, other.seq))
    return Case(
        job=job,
        epoch=record.epoch,
        request=asked.request,
        body=asked.body,
        run_times=ledger.run_times,
        waits=waits,
        releasable=rights.acts and bool(record.held_by) and not ledger.index.gate(free, now),
        replaceable=rights.acts
        and rights.owns(record)
        and record.array is None
        and record.first_started_at is None
        and not (asked.request.begin or asked.request.dependency or ledger.index.affected(record)),
        own=tuple(other.id for other in running),
        may_submit=rights.may_submit,
        most_priority=rights.most_priority if rights.acts else None,
        sees=rights.sees,
    )


def expected_end(ledger: Ledger, record: Record, now: int) -> Window | None:
    """When a running job is expected to end; None for other jobs, and without an estimate."""
    job = ledger.core.running.get(record.id)
    if job is None or record.state is not State.RUNNING or record.started_at is None:
        return None
    if not job.started or not says_how_long(ledger, record):
        return None
    latest = None if record.time_limit is None else record.started_at + record.time_limit
    return end_of_running(job.ends_at(now), now, latest)


def says_how_long(ledger: Ledger, record: Record) -> bool:
    """Whether its length is known: from its user, or from earlier runs."""
    job = ledger.core.jobs.get(record.id)
    request = ledger.index.asked[record.request].request
    return job is not None and source_of(request, job.estimate) is not Source.ASSUMED


# -- nodes out of use


@dataclass(frozen=True, slots=True)
class OutOfUse:
    """Nodes that a job could use if they were not closed."""

    nodes: tuple[str, ...]
    sentence: str
    needed: bool  # without them the job never starts


def out_of_use(core: Core, shape: Shape) -> OutOfUse | None:
    """Closed nodes that a job could use; None if there are none."""
    nodes, closed = core.cluster.nodes, core.closed
    lost = closed_nodes(core.cluster, closed, shape)
    if not lost:
        return None
    told = [_closed_sentence(core, n, closed[n]) for n in lost[:MOST_CLOSED]]
    if len(lost) > MOST_CLOSED:
        told.append(f"{len(lost) - MOST_CLOSED} more nodes are out of use.")
    empty = Room(core.cluster)
    for number in closed:
        empty.close(number)
    needed = empty.anywhere(shape) is None
    if needed:
        told.append("Without them it can never start.")
    return OutOfUse(tuple(nodes[n].name for n in lost), " ".join(told), needed)


def _closed_sentence(core: Core, number: int, why: str) -> str:
    name, gpus = core.cluster.nodes[number].name, core.cluster.nodes[number].gpus
    for job in core.running.values():
        gpus -= sum(spot[1].bit_count() for spot in job.spots or () if spot[0] == number)
    word = why if why in ("drained", "switched off", "given back") else f"drained ({why})"
    if gpus <= 0:
        return f"{name} takes no new work: {word}."
    return f"{gpus} GPU{'s' * (gpus > 1)} of {name} {'are' if gpus > 1 else 'is'} out of use: {word}."
