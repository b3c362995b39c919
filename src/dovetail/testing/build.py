"""Small worlds in a line each: `run([job("a", gpus=4, hours=1)], cluster(nodes=1, gpus=4), "fifo")`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dovetail.model.cluster import KNOWN_TYPES, Cluster, GpuType, Links, Node, Tenant
from dovetail.model.job import Checkpoint, Job, Kind, Profile, Role, Shape, Traits, gang
from dovetail.model.units import HOUR, MINUTE, SECOND, micros
from dovetail.model.view import Policy
from dovetail.policies.registry import POLICIES
from dovetail.sim import run as sim_run
from dovetail.sim.run import Run
from dovetail.sim.world import Incident

__all__ = [
    "HOUR",
    "MINUTE",
    "SECOND",
    "Checkpoint",
    "Incident",
    "Kind",
    "Profile",
    "Role",
    "Shape",
    "cluster",
    "job",
    "run",
]


def job(
    id: str,
    *,
    gpus: int = 1,
    seconds: float = 0.0,
    minutes: float = 0.0,
    hours: float = 0.0,
    at: float = 0.0,
    estimate: float | None = None,
    tenant: str = "",
    user: str = "",
    priority: int = 0,
    deadline: float | None = None,
    model: str = "",
    group: str = "",
    types: Sequence[str] = (),
    shape: Shape | None = None,
    fails_after: float | None = None,
    traits: Traits | None = None,
    **more: Any,
) -> Job:
    """A job in the units of a paper: the durations are summed, times are in seconds."""
    work = micros(seconds + 60 * minutes + 3600 * hours)
    return Job(
        id=id,
        arrived_at=micros(at),
        shape=shape or gang(gpus, tuple(types)),
        work=work,
        estimate=work if estimate is None else micros(estimate),
        tenant=tenant,
        user=user,
        priority=priority,
        deadline=None if deadline is None else micros(deadline),
        model=model,
        group=group,
        traits=traits or (Traits(**more) if more else Traits()),
        fails_after=None if fails_after is None else micros(fails_after),
    )


def cluster(
    *,
    nodes: int = 1,
    gpus: int = 8,
    type: str | GpuType = "gpu",
    tenants: Iterable[Tenant] = (),
    links: Links | None = None,
    racks: int = 1,
    **more: Any,
) -> Cluster:
    """Equal nodes, assigned to racks in turn; `more` are fields of Node."""
    kind = type if isinstance(type, GpuType) else KNOWN_TYPES.get(type, GpuType(type))
    per_rack = -(-nodes // racks)
    machines = tuple(
        Node(f"n{i}", gpus, kind, **{"rack": f"r{i // per_rack}" if racks > 1 else "", **more})
        for i in range(nodes)
    )
    return Cluster(machines, links or Links(), {tenant.name: tenant for tenant in tenants})


def run(
    jobs: Iterable[Job], on: Cluster, policy: str | Policy, *, until: float | None = None, **options: Any
) -> Run:
    """Simulate under a policy by name and options; keywords such as `seed` are passed to `sim.run.run`."""
    passed_on = ("incidents", "seed", "speed", "estimator", "errors", "on_step")
    world = {name: options.pop(name) for name in passed_on if name in options}
    made = POLICIES.make(policy, **options) if isinstance(policy, str) else policy
    return sim_run.run(
        sorted(jobs, key=lambda j: j.arrived_at),
        on,
        made,
        name=policy if isinstance(policy, str) else type(policy).__name__,
        until=None if until is None else micros(until),
        trace=True,
        **world,
    )
