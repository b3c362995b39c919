"""The common workloads: six kinds of cluster days on which every policy is measured.

Jobs are drawn from a seed. Durations are log-normal, with a median of 20 minutes and at most 6 hours, so that
no single job decides the length of the trace. Most jobs ask for one GPU, a few for 16. Arrivals are
random; they are scaled so that the *load* is exact: the work of all jobs over what the cluster can do between
the first and the last arrival. What every workload has in common:

- A declared duration is wrong by up to a factor of two either way, since users and predictors guess.
- A stop takes 10 s to save and a restart 50 s to restore, on the job's GPUs; a resize is a pause of 30 s.
- A gang on more nodes than it needs is 1.25 times slower.
- Jobs belong to four tenants, with three users each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from dovetail.model.cluster import Cluster, Tenant, parse_cluster, with_tenants
from dovetail.model.errors import UnknownName
from dovetail.model.job import Checkpoint, Job, Profile, Traits, gang
from dovetail.model.units import HOUR, MINUTE, SECOND

JOBS = 300
LOAD = 0.9
MEDIAN, SPREAD, LONGEST = 20 * 60, 1.2, 6 * 3_600  # of durations, in seconds
SIZES = {1: 50, 2: 20, 4: 17, 8: 10, 16: 3}  # GPUs: jobs of 100
TENANTS = ("north", "east", "south", "west")
RESIZE = 30 * SECOND
COSTS = Checkpoint(save=10 * SECOND, restore=50 * SECOND, resize=RESIZE)
SPLIT = 1.25
ONE_TYPE = "4x8"
THREE_TYPES = "2x8:V100,2x8:P100,2x8:K80"

Draw = Callable[[Random, int], list[Job]]


@dataclass(frozen=True, slots=True)
class Workload:
    """A cluster, and jobs for each seed."""

    name: str
    stresses: str  # what it is hard on, for people
    spec: str  # of the cluster
    draw: Draw
    tenants: tuple[Tenant, ...] = ()
    dated: bool = False  # jobs have deadlines

    @property
    def cluster(self) -> Cluster:
        made = parse_cluster(self.spec)
        return with_tenants(made, self.tenants) if self.tenants else made

    def jobs(self, seed: int, count: int = JOBS) -> list[Job]:
        """The jobs of a seed, in order of arrival, with a load of LOAD."""
        drawn = self.draw(Random(f"{self.name}/{seed}"), count)
        return _loaded(drawn, self.cluster)


def offered_load(jobs: Iterable[Job], cluster: Cluster) -> float:
    """The work of the jobs over what the cluster can do between the first and the last arrival.

    The speed of a job differs by type of GPU: the cluster's capacity for a job is the sum of its speeds on
    all GPUs.
    """
    listed = list(jobs)
    span = listed[-1].arrived_at - listed[0].arrived_at
    return math.fsum(_cluster_time(job, cluster) for job in listed) / span


def _cluster_time(job: Job, cluster: Cluster) -> float:
    """How long the job would take if it could use the whole cluster."""
    speeds = job.traits.profile.speeds if job.traits.profile else {}
    capacity = math.fsum(node.gpus * speeds.get(node.type.name, node.type.speed) for node in cluster.nodes)
    return job.work * job.shape.gpus / capacity


def _loaded(jobs: list[Job], cluster: Cluster) -> list[Job]:
    """The same jobs with their arrivals moved apart or together until the load is LOAD."""
    first = jobs[0].arrived_at
    stretch = offered_load(jobs, cluster) / LOAD

    def moved(job: Job) -> Job:
        arrived_at = round((job.arrived_at - first) * stretch / SECOND) * SECOND
        deadline = None if job.deadline is None else job.deadline - job.arrived_at + arrived_at
        return replace(job, arrived_at=arrived_at, deadline=deadline)

    return list(map(moved, jobs))


# --- draws -----------------------------------------------------------------------------------------


def _drawn_job(rng: Random, number: int, at: float, *, gpus: int = 0, tenant: str = "") -> Job:
    seconds = min(max(round(rng.lognormvariate(math.log(MEDIAN), SPREAD)), 60), LONGEST)
    wrong = 2 ** rng.uniform(-1, 1)
    gpus = gpus or rng.choices(tuple(SIZES), tuple(SIZES.values()))[0]
    tenant = tenant or rng.choice(TENANTS)
    return Job(
        f"j{number}",
        round(at * HOUR),
        gang(gpus),
        seconds * SECOND,
        max(round(seconds * wrong), 1) * SECOND,
        tenant=tenant,
        user=f"{tenant}-{rng.randrange(3)}",
        traits=_traits(),
    )


@lru_cache
def _traits() -> Traits:
    return Traits(checkpoint=COSTS, profile=Profile(split=SPLIT))


def _arrivals(rng: Random, count: int) -> list[float]:
    """Arrivals of a Poisson process with one job an hour."""
    at, found = 0.0, []
    for _ in range(count):
        found.append(at)
        at += rng.expovariate(1.0)
    return found


def _uniform(rng: Random, count: int) -> list[Job]:
    return [_drawn_job(rng, number, at) for number, at in enumerate(_arrivals(rng, count))]


def _mixed_types(rng: Random, count: int) -> list[Job]:
    """Jobs of the models that Gavel's authors measured; durations are those on V100."""
    return [_measured(rng, job) for job in _uniform(rng, count)]


def _measured(rng: Random, job: Job) -> Job:
    gpus = min(job.shape.gpus, 8)  # the widest that was measured
    model = rng.choice(_models(gpus))
    return replace(job, shape=gang(gpus), model=model, traits=_measured_traits(model, gpus))


@lru_cache
def _models(gpus: int) -> tuple[str, ...]:
    """The models that run on this many GPUs of every type."""
    from dovetail.traces.profiles import load_throughputs  # noqa: PLC0415  (reads a table of 2 MB)

    table = load_throughputs("gavel")
    return tuple(
        model for model in table.models() if all(table.single(model, gpus, kind) for kind in table.types)
    )


@lru_cache
def _measured_traits(model: str, gpus: int) -> Traits:
    from dovetail.traces.profiles import load_throughputs  # noqa: PLC0415

    table = load_throughputs("gavel")
    paces = {kind: table.single(model, gpus, kind) or 0.0 for kind in table.types}
    fastest = paces["V100"]
    speeds = {kind: round(pace / fastest, 3) for kind, pace in paces.items()}
    return Traits(checkpoint=COSTS, profile=Profile(speeds=speeds, split=SPLIT, pace=fastest))


def _elastic(rng: Random, count: int) -> list[Job]:
    return [replace(job, traits=_elastic_traits(job.shape.gpus)) for job in _uniform(rng, count)]


@lru_cache
def _elastic_traits(asked: int) -> Traits:
    """From half of the request to twice the request; n GPUs are n^0.9 times as fast as one."""
    least, most = max(asked // 2, 1), 2 * asked
    curve = {tasks: round(tasks**0.9, 3) for tasks in range(1, most + 1)}
    return Traits(checkpoint=COSTS, least=least, most=most, profile=Profile(curve=curve, split=SPLIT))


def _deadline(rng: Random, count: int) -> list[Job]:
    """Two jobs of three have a deadline: 1.2 to 5 times their duration, and ten minutes, after arrival."""

    def dated(job: Job) -> Job:
        patience = rng.uniform(1.2, 5.0)
        if rng.random() < 1 / 3:
            return job
        due = job.arrived_at + round(job.work * patience / SECOND) * SECOND + 10 * MINUTE
        return replace(job, deadline=due)

    return [dated(job) for job in _uniform(rng, count)]


def _bursty(rng: Random, count: int) -> list[Job]:
    """Three jobs of four belong to studies: twenty jobs of one user and one size, all within minutes."""
    made: list[Job] = []
    lone = count // 4
    for number, at in enumerate(_arrivals(rng, lone)):
        made.append(_drawn_job(rng, number, at))
    span = made[-1].arrived_at / HOUR
    while len(made) < count:
        at, gpus, tenant = rng.uniform(0, span), rng.choice((1, 1, 2, 4)), rng.choice(TENANTS)
        size = min(20, count - len(made))
        study = f"study{len(made)}"
        for place in range(size):
            job = _drawn_job(rng, len(made), at + place * span / 20_000, gpus=gpus, tenant=tenant)
            made.append(replace(job, group=study, user=f"{tenant}-0"))
    return sorted(made, key=lambda job: (job.arrived_at, job.id))


# Quotas and demand do not agree: north asks for most of the cluster and owns little of it.
_QUOTAS = {"north": 8, "east": 12, "south": 8, "west": 4}
_DEMAND = {"north": 55, "east": 20, "south": 15, "west": 10}


def _multi_tenant(rng: Random, count: int) -> list[Job]:
    made = []
    for number, at in enumerate(_arrivals(rng, count)):
        tenant = rng.choices(tuple(_DEMAND), tuple(_DEMAND.values()))[0]
        size = min(rng.choices(tuple(SIZES), tuple(SIZES.values()))[0], _QUOTAS[tenant])
        made.append(_drawn_job(rng, number, at, gpus=size, tenant=tenant))
    return made


WORKLOADS: Mapping[str, Workload] = {
    made.name: made
    for made in (
        Workload(
            "uniform", "order, and gangs that have to fit: one GPU type, steady arrivals", ONE_TYPE, _uniform
        ),
        Workload(
            "mixed-types",
            "which job gets which GPU: three types, speeds as measured for Gavel",
            THREE_TYPES,
            _mixed_types,
        ),
        Workload("elastic", "sizes: each job runs on half to twice the GPUs it asks for", ONE_TYPE, _elastic),
        Workload("deadline", "urgency: two jobs of three have a deadline", ONE_TYPE, _deadline, dated=True),
        Workload("bursty", "surges: three jobs of four come in studies of twenty at once", ONE_TYPE, _bursty),
        Workload(
            "multi-tenant",
            "shares: four tenants with quotas, one of which asks for half of the cluster and owns a quarter",
            ONE_TYPE,
            _multi_tenant,
            # with a common parent, so that a tenant may borrow what the others leave idle
            (
                Tenant("campus"),
                *(Tenant(name, "campus", float(quota), quota) for name, quota in _QUOTAS.items()),
            ),
        ),
    )
}


def named_workload(name: str) -> Workload:
    if name not in WORKLOADS:
        raise UnknownName("workload", name, WORKLOADS)
    return WORKLOADS[name]
