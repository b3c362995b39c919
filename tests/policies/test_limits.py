"""A job that its tenant's limit keeps waiting evicts no other job: that would be in vain."""

from __future__ import annotations

import pytest

from dovetail.core.core import Core
from dovetail.model.action import Stop
from dovetail.model.cluster import Tenant
from dovetail.model.event import SUBMITTED, Event
from dovetail.model.job import Job, Traits
from dovetail.model.units import SECOND
from dovetail.policies.registry import POLICIES
from dovetail.testing.build import cluster, job

TENANTS = (
    Tenant("all"),
    Tenant("a", parent="all", limit=4, quota=6, weight=3),
    Tenant("b", parent="all", quota=2, weight=1),
)


@pytest.mark.parametrize("name", POLICIES.names())
def test_a_job_above_its_tenants_limit_evicts_no_job(name: str) -> None:
    """Tenant a holds 4 GPUs, its limit. Tenant b borrows: it holds 4 with a quota of 2.

    A policy with schedules may stop jobs of its own accord: those that it stops anyway do not count.
    """
    late = job("a1", gpus=1, hours=10, at=1, tenant="a", priority=5)
    core, stops = played(name, late)
    assert "a1" in {waits.id for waits in core.queue}
    assert stops == [] or stops == played(name, None)[1]


def played(name: str, late: Job | None) -> tuple[Core, list[Stop]]:
    """The stops after a second, with or without a late job."""
    core = Core(cluster(nodes=2, gpus=4, tenants=list(TENANTS)), POLICIES.make(name))
    first = job("a0", gpus=4, hours=10, tenant="a", traits=Traits(preemptible=False))
    events: list[Event] = [(0, SUBMITTED, first.id, 0, first)]
    for number in range(4):
        lent = job(f"b{number}", gpus=1, hours=10, tenant="b")
        events.append((0, SUBMITTED, lent.id, 0, lent))
    core.handle(0, events)
    stops: list[Stop] = []
    step = core.handle(SECOND, [(SECOND, SUBMITTED, late.id, 0, late)] if late is not None else [])
    for _ in range(5):
        stops += [action for action in step.actions if isinstance(action, Stop)]
        if core.alarm is None:
            break
        step = core.handle(core.alarm, [])
    return core, stops
