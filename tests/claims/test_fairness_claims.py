"""Fairness between tenants: tickets and trade."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dovetail.model.cluster import Cluster, Tenant, parse_cluster, with_tenants
from dovetail.model.grant import load_of
from dovetail.model.job import Job
from dovetail.policies.gandiva_fair.trade import Holding, Trade, after_trades, trades
from dovetail.sim.run import Run
from dovetail.testing.build import Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart

HOUR = 3600.0


def seen(jobs: Sequence[Job], on: Cluster, policy: str, until: float, **options: Any) -> Run:
    """What a policy does up to a time; something comes then, so that all is counted up to it."""
    return run([*jobs, job("the end", seconds=1, at=until)], on, policy, until=until, **options)


def gpu_time(result: Run, prefix: str, until: float = float("inf")) -> float:
    """GPU-seconds that jobs of a name had up to a time."""
    end = min(result.until, until * 1e6)
    had = sum(
        max(min(s.end, end) - s.start, 0) * load_of(s.spots)
        for s in result.stretches
        if s.job.startswith(prefix)
    )
    return had / 1e9


# -- gandiva-fair


@claim(
    "gandiva-fair", "trading at a price between two speed-ups: 9 and 24 become 9.75 and 27, then 10.5 and 30"
)
def test_both_gain_by_a_trade() -> None:
    held = {"A": Holding(4, 4), "B": Holding(4, 4)}
    speedups = {"A": 1.25, "B": 5.0}

    def worth(made: Sequence[Trade]) -> tuple[float, float]:
        after = after_trades(held, made)
        return after["A"].worth(1.25), after["B"].worth(5.0)

    def check(made: Sequence[Trade]) -> None:
        steps = [worth(made[:n]) for n in range(len(made) + 1)]
        assert steps == [(9, 24), (9.75, 27), (10.5, 30)]

    tells_apart(check, trades(held, speedups, price=2.0, unit=1.0), [])
    assert sum(worth([])) == 33


def work_a_second(
    on: Cluster, speeds: dict[str, dict[str, float]], count: int, hours: float, policy: str, **options: Any
) -> dict[str, float]:
    """What each tenant's jobs get done, in the unit of their speeds."""
    jobs = [
        job(f"{tenant}{i}", hours=1000, tenant=tenant, profile=Profile(speeds=speed))
        for i in range(count)
        for tenant, speed in speeds.items()
    ]
    result = seen(jobs, on, policy, hours * HOUR, **options)
    done = dict.fromkeys(speeds, 0.0)
    for s in result.stretches:
        tenant, kind = s.job[0], result.cluster.nodes[s.spots[0][0]].type.name
        if tenant in done:
            done[tenant] += (s.end - s.start) / 1e6 * load_of(s.spots) / 1000 * speeds[tenant][kind]
    return {tenant: work / (hours * HOUR) for tenant, work in done.items()}


@claim(
    "gandiva-fair",
    "after trade no tenant has less than its share of each type is worth, and the cluster does more work",
)
def test_trade_helps_every_tenant() -> None:
    """Three users, 4 V100 and 4 K80 each; the one with speed-up 2 makes the price for the other two."""
    on = with_tenants(parse_cluster("3x4:V100,3x4:K80"), [Tenant(name) for name in "ABC"])
    speeds = {"A": {"V100": 1.25, "K80": 1.0}, "B": {"V100": 5.0, "K80": 1.0}, "C": {"V100": 2.0, "K80": 1.0}}
    share = {"A": 9.0, "B": 24.0, "C": 12.0}

    def check(done: dict[str, float]) -> None:
        assert all(done[name] >= 0.995 * share[name] for name in share)
        assert sum(done.values()) > 1.1 * sum(share.values())

    ours = work_a_second(on, speeds, 20, 2.0, "gandiva-fair")
    without = work_a_second(on, speeds, 20, 2.0, "gandiva-fair", trade=False)
    tells_apart(check, ours, without)
    tells_apart(check, ours, work_a_second(on, speeds, 20, 2.0, "tiresias-l"))
    assert ours == pytest.approx({"A": 10.5, "B": 30.0, "C": 13.5}, rel=0.01)
    assert without == pytest.approx(share, rel=0.01)  # A and B together: 33


@claim("gandiva-fair", "trade improves on the fair split of 2 V100 and 2 K80 where sizes are flexible")
def test_trade_improves_on_the_fair_split() -> None:
    on = with_tenants(parse_cluster("1x2:V100,1x2:K80"), [Tenant("A"), Tenant("B")])
    speeds = {"A": {"V100": 80.0, "K80": 10.0}, "B": {"V100": 70.0, "K80": 50.0}}

    def check(done: dict[str, float]) -> None:
        assert done["A"] >= 0.995 * 90
        assert done["B"] >= 0.995 * 120
        assert sum(done.values()) > 1.2 * 210

    ours = work_a_second(on, speeds, 4, 6.0, "gandiva-fair")
    tells_apart(check, ours, work_a_second(on, speeds, 4, 6.0, "gandiva-fair", trade=False))
    # B's own speed-up, 1.4, is the price: A turns its K80 into 1/1.4 of a V100, and B loses nothing.
    assert ours == pytest.approx({"A": 80 * (1 + 1 / 1.4), "B": 70 * (1 - 1 / 1.4) + 2 * 50}, rel=0.01)


@pytest.mark.parametrize(
    ("mine", "theirs"), [((8, 1), (8, 1)), ((3, 4), (5, 1)), ((6, 1), (2, 4)), ((4, 3), (6, 1))]
)
@claim(
    "gandiva-fair",
    "tickets 2 to 1 give GPU-time 2 to 1 at every moment, up to a quantum of one job, gangs or not",
)
def test_time_follows_tickets(mine: tuple[int, int], theirs: tuple[int, int]) -> None:
    on = cluster(nodes=1, gpus=4, tenants=[Tenant("A", weight=2.0), Tenant("B")])
    jobs = [job(f"A{i}", gpus=mine[1], hours=100, tenant="A") for i in range(mine[0])]
    jobs += [job(f"B{i}", gpus=theirs[1], hours=100, tenant="B") for i in range(theirs[0])]
    quantum, widest = 60.0, max(mine[1], theirs[1])

    def check(result: Run) -> None:
        for minute in range(1, 181):
            a, b = (gpu_time(result, name, 60.0 * minute) for name in "AB")
            assert abs(a - 2 / 3 * (a + b)) <= quantum * widest
            assert a + b == 4 * 60 * minute

    ours = seen(jobs, on, "gandiva-fair", 3 * HOUR)
    tells_apart(check, ours, seen(jobs, on, "tiresias-l", 3 * HOUR))
    tells_apart(check, ours, seen(jobs, on, "drf", 3 * HOUR))
