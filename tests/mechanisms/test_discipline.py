"""How far down the queue a decision looks."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.model.cluster import Tenant
from dovetail.testing.build import cluster, job, run


@pytest.mark.parametrize(("policy", "options"), [("fifo", {"discipline": "skip"}), ("sjf", {})])
def test_a_tenant_at_its_limit_delays_only_its_own_jobs(policy: str, options: dict[str, Any]) -> None:
    """Red may hold one GPU; blue's job of the same shape does not wait for red's second."""
    on = cluster(nodes=1, gpus=4, tenants=[Tenant("red", limit=1), Tenant("blue")])
    jobs = [
        job("red1", seconds=100, tenant="red"),
        job("red2", seconds=100, tenant="red", at=1),
        job("blue", seconds=100, tenant="blue", at=2),
    ]
    result = run(jobs, on, policy, **options)
    assert result.start("blue") == 2
    assert result.start("red2") == 100
