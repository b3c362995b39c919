"""What would let a waiting job start now. Only what was tried on a copy of the core is told (`trial`).

A remedy is a kind and values, for programs, and a text made of them, for people:

| kind | values | what to do |
| --- | --- | --- |
| release | | release the job |
| resubmit | `ask` | cancel the job, then submit its request again with these keys in place of its own |
| cancel | `jobs` | cancel these running jobs |
| priority | `priority` | give the job this priority |
| resume | `nodes` | let these nodes take jobs again (admins) |
| tenant | `tenant`, `quota` or `limit` | give the tenant this quota or limit (admins) |
| wait | `at` | wait until then; the jobs that run must end as estimated |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail.control.request import JobRequest, parse_request, to_job
from dovetail.control.run_times import RunTimes, with_estimate
from dovetail.control.trial import Change, Outcome, Trial, cancelled, prioritised, resumed, submitted
from dovetail.core.core import Core
from dovetail.core.room import Room
from dovetail.core.shortage import CPUS, GPUS, MEMORY, Missing, missing, suiting
from dovetail.mechanisms.quota.tenant_quota import nominal
from dovetail.model.cluster import Cluster
from dovetail.model.errors import DovetailError
from dovetail.model.job import Job, Shape
from dovetail.model.units import GIB, HOUR, MINUTE, WHOLE

MOST_TOLD = 6
MOST_TRIED = 8  # of one kind, besides
MOST_NAMED = 3  # jobs that a remedy would preempt
BUDGET = 0.25  # seconds of CPU for all trials of one question
NEW = "this-job"  # the id of a job that is not submitted yet
TIMES = (12 * HOUR, 4 * HOUR, 2 * HOUR, HOUR, 30 * MINUTE, 10 * MINUTE)  # limits with which a job may fit in
LEVELS = {"high": 100, "urgent": 1_000}
SMALLEST_MEMORY = 1 << 28  # steps of memory that are proposed


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Something that lets the job start."""

    kind: str
    text: str
    by: str = "user"  # or admin
    ask: Mapping[str, Any] | None = None
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    tenant: str | None = None
    quota: int | None = None
    limit: int | None = None
    priority: int | None = None
    at: int | None = None
    preempts: tuple[str, ...] = ()  # jobs that are stopped for it


@dataclass(frozen=True, slots=True)
class Case:
    """A job that waits, and all that is needed to try remedies for it. Taken on the thread of the loop."""

    job: Job  # as the core sees it, or would if it were released
    epoch: int
    request: JobRequest
    body: Mapping[str, Any]  # the request as it was sent
    run_times: RunTimes
    waits: bool  # in the queue; otherwise it is held
    releasable: bool  # only its hold keeps it from the queue
    replaceable: bool  # it can be submitted again without a loss: it has not run, and stands for itself
    own: tuple[str, ...]  # running jobs that the caller may cancel, the smallest first
    may_submit: Callable[[JobRequest, Job], bool]  # whether a request is within the limits of the caller
    most_priority: int | None  # that the caller may give; None: the caller may not change jobs
    sees: Callable[[str], bool]  # whether jobs of a tenant may be named to the caller


def remedies(trial: Trial, case: Case, budget: float = BUDGET) -> list[Remedy]:
    """The remedies that work now, at most one of each sort."""
    until = time.thread_time() + budget
    found: list[Remedy] = []
    for sort in (_release, _smaller, _shorter, _raise_priority, _resume, _raise_quota, _cancel):
        for remedy in sort(trial, case):
            if remedy is not None:
                found.append(_with_costs(remedy, trial.core, case.sees))
                break
            if time.thread_time() > until:
                return found
        if time.thread_time() > until or len(found) == MOST_TOLD:
            break
    return found


Tried = Iterator[Remedy | None]  # None: it was tried, and the job does not start


# -- by users


def _release(trial: Trial, case: Case) -> Tried:
    if not case.waits and case.releasable:
        name = case.job.id
        tried = trial.outcome(name, [submitted(case.job, case.epoch)])
        yield _if(tried, kind="release", text=f"dovetail release {name}")


def _smaller(trial: Trial, case: Case) -> Tried:
    """The same request with fewer resources; the largest that starts."""
    if case.replaceable and (case.waits or not case.releasable):
        for flags, ask in _asks(trial.core.room, case):
            yield _resubmitted(trial, case, flags, ask)


def _shorter(trial: Trial, case: Case) -> Tried:
    """The same request with a time limit: it may fit in before a job that goes first."""
    if case.replaceable and case.waits and trial.core.room.anywhere(case.job.shape) is not None:
        for limit in TIMES:
            if limit < case.job.estimate:
                flag = f"--time {limit // HOUR}h" if limit >= HOUR else f"--time {limit // MINUTE}m"
                yield _resubmitted(trial, case, flag, {"time": f"{limit // MINUTE}m"}, spare=limit // 10)


def _resubmitted(
    trial: Trial, case: Case, flags: str, ask: Mapping[str, Any], spare: int = 0
) -> Remedy | None:
    """The request with other keys. It is tried with a longer estimate: users do not type at once."""
    name = case.job.id
    ask = {**ask, "hold": False} if case.request.hold else ask
    try:
        request = parse_request({**case.body, **ask})
        job = to_job(request, NEW, 0, case.job.tenant, case.job.user, trial.core.cluster)
    except DovetailError:
        return None
    if not case.may_submit(request, job):  # limits may have changed since it was submitted
        return None
    job = with_estimate(job, request, case.run_times)
    job = replace(job, work=job.work + spare, estimate=job.estimate + spare)
    changes = [submitted(job)]
    if case.waits:
        changes.insert(0, cancelled(name))
    tried = trial.outcome(NEW, changes)
    return _if(
        tried, kind="resubmit", text=f"dovetail cancel {name}, and submit it again with {flags}", ask=ask
    )


def _cancel(trial: Trial, case: Case) -> Tried:
    """One running job of the caller, the smallest whose end is enough."""
    for other in case.own[:MOST_TRIED] if case.waits else ():
        if other in trial.core.running:
            tried = trial.outcome(case.job.id, [cancelled(other)])
            text = f"dovetail cancel {other} (a job of yours that runs)"
            yield _if(tried, kind="cancel", text=text, jobs=(other,))


def _raise_priority(trial: Trial, case: Case) -> Tried:
    name = case.job.id
    for word, value in LEVELS.items() if case.waits and case.most_priority is not None else ():
        assert case.most_priority is not None
        if trial.core.jobs[name].priority < value <= case.most_priority:
            tried = trial.outcome(name, [prioritised(name, value)])
            yield _if(tried, kind="priority", text=f"dovetail priority {name} {word}", priority=value)


# -- by admins


def _resume(trial: Trial, case: Case) -> Tried:
    if case.waits:
        yield from _reopened(trial, case.job, [])


def resume_for(trial: Trial, job: Job) -> Remedy | None:
    """The nodes that a job which is not submitted yet needs to start at once; None if it needs none."""
    if trial.outcome(job.id, [submitted(job)]).starts:
        return None
    tried = _reopened(trial, job, [submitted(job)])
    found = next((remedy for remedy in tried if remedy is not None), None)
    return None if found is None else _with_costs(found, trial.core, lambda tenant: tenant == job.tenant)


def _reopened(trial: Trial, job: Job, then: Sequence[Change]) -> Tried:
    """The first closed node that is enough, or all that the job could use."""
    core = trial.core
    closed = tuple(core.cluster.nodes[n].name for n in closed_nodes(core.cluster, core.closed, job.shape))
    tries: list[tuple[str, ...]] = [(node,) for node in closed[:MOST_TRIED]]
    for nodes in [*tries, closed] if len(closed) > 1 else tries:
        tried = trial.outcome(job.id, [*(resumed(node) for node in nodes), *then])
        text = f"an administrator can bring {listed(nodes)} back:  dovetail resume {' '.join(nodes)}"
        yield _if(tried, kind="resume", by="admin", text=text, nodes=nodes)


def _raise_quota(trial: Trial, case: Case) -> Tried:
    """As much more quota, or a limit as much higher, as the job needs."""
    core, cluster, job = trial.core, trial.core.cluster, case.job
    line = [name for name in cluster.line(job.tenant) if name in cluster.tenants]
    if not case.waits or not job.shape.load or not line:
        return
    for name in line:
        limit, needed = cluster.tenants[name].limit, _gpus(core.used.get(name, 0) + job.shape.load)
        if limit is not None and limit < needed <= cluster.gpus:
            yield _tenant(trial, job, name, "limit", needed)
    mine, quota = cluster.tenants.get(job.tenant), nominal(cluster)
    if mine is None or mine.quota is None:
        return
    left = cluster.gpus - sum(tenant.quota or 0 for tenant in cluster.tenants.values())
    short = max(_gpus(core.used.get(name, 0) + job.shape.load - quota[name]) for name in line)
    for more in dict.fromkeys((short, _gpus(job.shape.load))):
        if 0 < more <= left:
            yield _tenant(trial, job, mine.name, "quota", mine.quota + more)


def _tenant(trial: Trial, job: Job, name: str, setting: str, value: int) -> Remedy | None:
    tenants = trial.core.cluster.tenants
    changed: dict[str, Any] = {setting: value}
    tried = trial.outcome(job.id, [], {**tenants, name: replace(tenants[name], **changed)})
    command = f"dovetail tenant set {name} --{setting} {value}"
    text = f"an administrator can raise the {setting}:  {command}"
    return _if(tried, kind="tenant", by="admin", text=text, tenant=name, **changed)


def _if(tried: Outcome, *, text: str, **values: Any) -> Remedy | None:
    """The remedy, if it works."""
    if not tried.starts:
        return None
    return Remedy(text=text, preempts=tried.stopped, **values)


def _with_costs(remedy: Remedy, core: Core, sees: Callable[[str], bool]) -> Remedy:
    return replace(remedy, text=remedy.text + _costs(core, remedy.preempts, sees))


def _costs(core: Core, stopped: Sequence[str], sees: Callable[[str], bool]) -> str:
    """Which jobs a remedy preempts; only their number, if they are many or the caller may not see all."""
    if not stopped:
        return ""
    many = len(stopped)
    named = many <= MOST_NAMED and all(job in core.jobs and sees(core.jobs[job].tenant) for job in stopped)
    return f" (preempts {listed(stopped) if named else f'{many} job' + 's' * (many > 1)})"


def _gpus(load: int) -> int:
    return -(-load // WHOLE)


def closed_nodes(cluster: Cluster, closed: Mapping[int, str], shape: Shape) -> list[int]:
    """Closed nodes that a job could use if they were open."""
    return [
        number
        for number in sorted(closed)
        if not shape.each
        or (
            (not shape.types or cluster.nodes[number].type.name in shape.types)
            and cluster.nodes[number].gpus >= 1
        )
    ]


# -- smaller requests


def _asks(room: Room, case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """Flags, and keys of the request, that ask for less; those that fit the free room come with the most."""
    shape, request = case.job.shape, case.request
    found: Missing | None = missing(room, shape) if case.waits else None
    short = found.resources if found is not None else (GPUS, CPUS, MEMORY)
    resources = dict(request.document().get("resources", {}))
    if request.resources.types and room.anywhere(replace(shape, types=())) is not None:
        yield f"--gpus any:{shape.each}", {"resources": _with_gpus(resources, shape.each, ())}
    if CPUS in short and shape.cpus:
        for cpus in _less(room, shape, CPUS, 1_000):
            if room.anywhere(replace(shape, cpus=cpus)) is not None:
                yield f"--cpus {cpus // 1_000}", {"resources": resources | {"cpus": cpus // 1_000}}
                break
    if MEMORY in short and shape.memory:
        for memory in _less(room, shape, MEMORY, SMALLEST_MEMORY):
            if room.anywhere(replace(shape, memory=memory)) is not None:
                flag = f"{memory // GIB}G" if memory % GIB == 0 else f"{memory >> 20}M"
                yield f"--memory {flag}", {"resources": resources | {"memory": f"{memory}B"}}
                break
    if shape.each and shape.milli == WHOLE and request.resources.count:
        yield from _fewer_gpus(room, case, resources)


def _fewer_gpus(room: Room, case: Case, resources: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    shape = case.job.shape
    for tasks in _down(shape.tasks):
        if room.anywhere(shape.of(tasks)) is not None:
            yield f"--nodes {tasks}", {"num_nodes" if "num_nodes" in case.body else "nodes": tasks}
    for each in _down(shape.each):
        if room.anywhere(replace(shape, each=each)) is not None:
            types = case.request.resources.types
            flag = f"--gpus {types[0]}:{each}" if types else f"--gpus {each}"
            yield flag, {"resources": _with_gpus(resources, each, types)}


def _with_gpus(resources: Mapping[str, Any], count: int, types: Sequence[str]) -> dict[str, Any]:
    others = {key: value for key, value in resources.items() if key not in ("gpus", "accelerators")}
    if not types:
        return others | {"gpus": count}
    return others | {"accelerators": [f"{name}:{count}" for name in types]}


def _down(most: int) -> list[int]:
    """Smaller numbers to try, the largest first: all of a few, some of many."""
    if most <= MOST_TRIED + 1:
        return list(range(most - 1, 0, -1))
    return [most - 1, most * 3 // 4, most // 2, most // 4, most // 8, 1]


def _less(room: Room, shape: Shape, resource: str, step: int) -> list[int]:
    """Amounts below what the shape asks for that a node has free now, in whole steps, the largest first."""
    asked = shape.cpus if resource == CPUS else shape.memory
    free = {
        min(room.free_cpus(node) if resource == CPUS else room.free_memory(node), asked - 1) // step * step
        for node in suiting(room, shape)
    }
    return sorted((value for value in free if value >= step), reverse=True)


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
