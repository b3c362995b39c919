"""Batch schedulers: an account that used little goes first, and holes are filled."""

from __future__ import annotations

from math import log

import pytest

from dovetail.model.cluster import Tenant
from dovetail.policies.slurm.priority_factors import Usage, fair_share, usage_now, used_by
from dovetail.sim.run import Run
from dovetail.testing.build import Shape, cluster, job, run
from dovetail.testing.claims import claim, tells_apart

HOUR, DAY = 3600.0, 86_400.0
FOUR = cluster(nodes=1, gpus=4, tenants=[Tenant("A"), Tenant("B")])
EIGHT = cluster(nodes=1, gpus=8)

FLOOD = [
    *(job(f"a{i}", minutes=40, tenant="A") for i in range(100)),
    job("b", minutes=40, at=HOUR, tenant="B"),
]


@claim("slurm", "an account that floods the queue does not keep another out: its job is the next to start")
def test_the_idle_account_is_next() -> None:
    _next_to_start("slurm")


@claim("openpbs", "an account that floods the queue does not keep another out: its job is the next to start")
def test_openpbs_lets_the_idle_account_be_next() -> None:
    _next_to_start("openpbs")


def _next_to_start(system: str) -> None:
    def check(result: Run) -> None:
        after = [at / 1e6 for at in result.jobs.start if at / 1e6 > HOUR]
        assert result.start("b") == min(after) == 80 * 60

    fifo = run(FLOOD, FOUR, "fifo")
    tells_apart(check, run(FLOOD, FOUR, system), fifo)
    assert fifo.start("b") == max(fifo.jobs.start) / 1e6


@claim("slurm", "backfill fills the hole before the first job in the queue and does not delay it")
def test_slurm_fills_the_hole() -> None:
    jobs = [
        job("A", gpus=6, hours=10),
        job("H", gpus=8, hours=1, at=60),
        job("B", gpus=2, hours=4, at=120),
        job("C", gpus=2, hours=12, at=120),
    ]

    def check(result: Run) -> None:
        assert result.start("B") == 120
        assert result.start("H") == 10 * HOUR
        assert result.start("C") == 11 * HOUR

    tells_apart(check, run(jobs, EIGHT, "slurm"), run(jobs, EIGHT, "fifo", discipline="skip"))
    with pytest.raises(AssertionError):  # strict order does not fill it
        check(run(jobs, EIGHT, "fifo"))


@claim("slurm", "usage decays with its half-life")
def test_the_past_is_forgotten() -> None:
    """A took 40 GPU-hours four weeks ago, which count 2.5 now, and B took 8 an hour ago."""
    one = cluster(nodes=1, gpus=4, tenants=[Tenant("A"), Tenant("B")])
    jobs = [
        job("long ago", gpus=4, hours=10, tenant="A"),
        job("just now", gpus=4, hours=2, at=28 * DAY, tenant="B"),
        job("b", gpus=4, hours=1, at=28 * DAY + 60, tenant="B"),
        job("a", gpus=4, hours=1, at=28 * DAY + 120, tenant="A"),
    ]

    def check(result: Run) -> None:
        assert result.start("a") < result.start("b")

    tells_apart(check, run(jobs, one, "slurm"), run(jobs, one, "slurm", half_life=0.0))


@claim("openpbs", "only the first job in the queue has a reservation: others are backfilled behind it alone")
def test_openpbs_backfills_around_one() -> None:
    jobs = [
        job("A", gpus=6, hours=10),
        job("first", gpus=4, hours=10, at=60),
        job("second", gpus=4, hours=10, at=120),
        job("long", gpus=2, hours=20, at=180),
    ]

    def check(result: Run) -> None:
        assert result.start("long") == 180
        assert result.start("first") == 10 * HOUR
        assert result.start("second") == 20 * HOUR

    tells_apart(check, run(jobs, EIGHT, "openpbs"), run(jobs, EIGHT, "slurm"))
    deep = run(jobs, EIGHT, "openpbs", backfill_depth=2)
    assert deep.start("second") == 10 * HOUR
    strict = run(jobs, EIGHT, "openpbs", strict_ordering=True)
    assert [strict.start(name) / HOUR for name in ("first", "second", "long")] == [10, 10, 20]


def test_the_backfill_pass_comes_every_half_minute() -> None:
    """Two holes of one GPU: the second candidate comes 10 s after a pass and is served 20 s later."""
    jobs = [
        job("A", gpus=6, hours=10),
        job("H", gpus=8, hours=1, at=100),
        job("B", gpus=1, hours=1, at=110),
    ]
    assert run(jobs, EIGHT, "slurm").start("B") == 130
    assert run(jobs, EIGHT, "slurm", interval=0.0).start("B") == 110


def test_nothing_rings_when_nothing_happens() -> None:
    """A job waits for ten days: passes follow events, not the clock."""
    jobs = [job("A", gpus=8, hours=240), job("H", gpus=8, hours=1, at=100), job("I", gpus=8, hours=1, at=110)]
    result = run(jobs, EIGHT, "slurm")
    assert result.finished == 3
    assert result.decisions < 12


def test_a_full_partition_shuts_only_itself() -> None:
    parts = cluster(nodes=1, gpus=4, partitions=frozenset({"gpu"}))
    other = cluster(nodes=1, gpus=4, partitions=frozenset({"debug"}))
    both = type(parts)((*parts.nodes, *(type(n)("d0", n.gpus, partitions=n.partitions) for n in other.nodes)))
    wide, small = Shape(4, partition="gpu"), Shape(2, partition="debug")
    jobs = [
        job("first", shape=wide, hours=2),
        job("second", shape=wide, hours=2, at=1),
        job("third", shape=small, hours=1, at=2),
    ]
    result = run(jobs, both, "slurm", depth=1)
    assert result.start("third") == 2


def test_usage_decays_exactly() -> None:
    day = 86_400_000_000
    held = usage_now(0, {}, {"a": 2000})
    assert used_by(held, day, 0) == {"a": 2.0 * day}
    assert used_by(held, day, day)["a"] == pytest.approx(2 * day * 0.5 / log(2))
    twice = usage_now(day, used_by(held, day, day), {"a": 2000})
    assert used_by(twice, 2 * day, day)["a"] == pytest.approx(used_by(held, 2 * day, day)["a"])
    assert used_by(Usage(0, (("a", 8.0),)), 3 * day, day) == {"a": 1.0}


def test_fair_share_of_accounts_in_a_tree() -> None:
    tree = cluster(tenants=[Tenant("x"), Tenant("y"), Tenant("x1", "x"), Tenant("x2", "x")])
    factors = fair_share(tree, {"x": 4.0, "x1": 4.0, "y": 4.0}, ())
    assert factors["x"] == factors["y"] == 0.5  # each used its half
    assert factors["x1"] == 0.25  # all of x's half, of which its share is half
    assert factors["x2"] == 0.5  # idle, and yet a member of x
    assert fair_share(tree, {}, ("new",))["new"] == 1.0
