"""Batch schedulers: an account that used little goes first, and holes are filled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import log
from typing import Any, cast

import pytest

from dovetail.model.cluster import Cluster, Tenant
from dovetail.model.view import JobView, Policy
from dovetail.policies.slurm.fair_tree import fair_tree
from dovetail.policies.slurm.policy import Batch, slurm
from dovetail.policies.slurm.priority_factors import Usage, fair_share, usage_now, used_by
from dovetail.sim.run import Run
from dovetail.testing.build import Shape, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

HOUR, DAY = 3600.0, 86_400.0
FOUR = cluster(nodes=1, gpus=4, tenants=[Tenant("A"), Tenant("B")])
EIGHT = cluster(nodes=1, gpus=8)

FLOOD = [
    *(job(f"a{i}", minutes=40, tenant="A") for i in range(100)),
    job("b", minutes=40, at=HOUR, tenant="B"),
]
HOLE = [
    job("A", gpus=6, hours=10),
    job("H", gpus=8, hours=1, at=60),
    job("B", gpus=2, hours=4, at=120),
    job("C", gpus=2, hours=12, at=120),
]
TWO_WAIT = [
    job("A", gpus=6, hours=10),
    job("first", gpus=4, hours=10, at=60),
    job("second", gpus=4, hours=10, at=120),
    job("long", gpus=2, hours=20, at=180),
]


def equal_shares(cluster: Cluster, amounts: Mapping[str, float], tenants: Iterable[str]) -> dict[str, float]:
    alike = {name: replace(tenant, weight=1.0) for name, tenant in cluster.tenants.items()}
    return fair_share(replace(cluster, tenants=alike), amounts, tenants)


def no_time(job: JobView, now: int) -> int:
    return 1


def without_siblings(
    cluster: Cluster, amounts: Mapping[str, float], tenants: Iterable[str]
) -> dict[str, float]:
    """Every account is at the top."""
    flat = {name: replace(tenant, parent="") for name, tenant in cluster.tenants.items()}
    return fair_share(replace(cluster, tenants=flat), amounts, tenants)


def tree_without_levels(
    cluster: Cluster, amounts: Mapping[str, float], tenants: Iterable[str]
) -> dict[str, float]:
    flat = {name: replace(tenant, parent="") for name, tenant in cluster.tenants.items()}
    return fair_tree(replace(cluster, tenants=flat), amounts, tenants)


def tree_of_equals(
    cluster: Cluster, amounts: Mapping[str, float], tenants: Iterable[str]
) -> dict[str, float]:
    alike = {name: replace(tenant, weight=1.0) for name, tenant in cluster.tenants.items()}
    return fair_tree(replace(cluster, tenants=alike), amounts, tenants)


def never_overtaking(**options: Any) -> Policy:
    return replace(cast("Batch", slurm(**options)), overtaking=False)


def one_reservation(**options: Any) -> Policy:
    return replace(cast("Batch", slurm(**options)), reservations=1)


def no_reservation(**options: Any) -> Policy:
    return replace(cast("Batch", slurm(**options)), reservations=0)


POLICY = "dovetail.policies.slurm.policy"
BACKFILL = "dovetail.mechanisms.queue.reserved_backfill"
MUTANTS = (
    mutant(
        "slurm",
        "fair-share",
        "usage does not count",
        killed_by="test_the_idle_account_is_next",
        options={"weight_fair_share": 0.0},
    ),
    mutant(
        "slurm",
        "fair-share",
        "all accounts have the same share",
        killed_by="test_usage_counts_by_share",
        replace={f"{POLICY}:fair_share": equal_shares},
    ),
    mutant(
        "slurm",
        "fair-share",
        "the tree of accounts does not count",
        killed_by="test_an_idle_member_of_a_busy_account_waits",
        replace={f"{POLICY}:fair_share": without_siblings},
    ),
    mutant(
        "slurm",
        "Fair Tree",
        "the classic formula counts",
        killed_by="test_fair_tree_ranks_accounts_before_their_members",
        options={"algorithm": "classic"},
    ),
    mutant(
        "slurm",
        "Fair Tree",
        "all accounts are on one level",
        killed_by="test_fair_tree_ranks_accounts_before_their_members",
        replace={f"{POLICY}:fair_tree": tree_without_levels},
    ),
    mutant(
        "slurm",
        "Fair Tree",
        "all accounts have the same share",
        killed_by="test_fair_tree_ranks_accounts_before_their_members",
        replace={f"{POLICY}:fair_tree": tree_of_equals},
    ),
    mutant(
        "slurm",
        "decay of usage",
        "usage never decays",
        killed_by="test_the_past_is_forgotten",
        options={"half_life": 0.0},
    ),
    mutant(
        "slurm",
        "size",
        "size does not count",
        killed_by="test_the_wide_job_starts_first",
        options={"weight_size": 0.0},
    ),
    mutant(
        "slurm",
        "age",
        "age does not count",
        killed_by="test_age_outweighs_size",
        options={"weight_age": 0.0},
    ),
    mutant(
        "slurm",
        "age",
        "age grows on after a week",
        killed_by="test_age_counts_up_to_a_limit",
        options={"max_age": 1000 * DAY, "weight_age": 1000 * 1000.0 / 7},
    ),
    mutant(
        "slurm",
        "partition",
        "partitions do not count",
        killed_by="test_the_better_partition_goes_first",
        options={"weight_partition": 0.0},
    ),
    mutant(
        "slurm",
        "QOS",
        "QOS does not count",
        killed_by="test_the_higher_qos_goes_first",
        options={"weight_qos": 0.0},
    ),
    mutant(
        "slurm",
        "backfill",
        "no job overtakes another",
        killed_by="test_slurm_fills_the_hole",
        factory=never_overtaking,
    ),
    mutant(
        "slurm",
        "reservations",
        "a job that does not fit is skipped",
        killed_by="test_slurm_fills_the_hole",
        factory=no_reservation,
    ),
    mutant(
        "slurm",
        "reservations",
        "the first waiting job alone has a reservation",
        killed_by="test_every_waiting_job_has_a_reservation",
        factory=one_reservation,
    ),
    mutant(
        "slurm",
        "two passes",
        "backfill comes at every event",
        killed_by="test_the_backfill_pass_comes_every_half_minute",
        options={"interval": 0.0},
    ),
    mutant(
        "slurm",
        "reservations",
        "they may lie any time ahead",
        killed_by="test_reservations_lie_within_a_day",
        options={"window": None},
    ),
    mutant(
        "slurm",
        "declared durations",
        "a job is taken to end at once",
        killed_by="test_slurm_fills_the_hole",
        replace={f"{BACKFILL}:needed": no_time},
    ),
    mutant(
        "openpbs",
        "fair-share",
        "usage does not count",
        killed_by="test_openpbs_lets_the_idle_account_be_next",
        options={"weight_fair_share": 0.0},
    ),
    mutant(
        "openpbs",
        "fair-share",
        "all accounts have the same share",
        killed_by="test_openpbs_counts_usage_by_share",
        replace={f"{POLICY}:fair_share": equal_shares},
    ),
    mutant(
        "openpbs",
        "decay of usage",
        "usage never decays",
        killed_by="test_openpbs_forgets_the_past",
        options={"half_life": 0.0},
    ),
    mutant(
        "openpbs",
        "size",
        "size does not count",
        killed_by="test_openpbs_starts_the_wide_job_first",
        options={"weight_size": 0.0},
    ),
    mutant(
        "openpbs",
        "age",
        "age does not count",
        killed_by="test_openpbs_lets_age_outweigh_size",
        options={"weight_age": 0.0},
    ),
    mutant(
        "openpbs",
        "strict ordering",
        "a job that does not fit is skipped",
        killed_by="test_openpbs_orders_strictly_and_backfills",
        options={"strict_ordering": False},
    ),
    mutant(
        "openpbs",
        "backfill",
        "no job overtakes another",
        killed_by="test_openpbs_orders_strictly_and_backfills",
        options={"backfill_depth": 0},
    ),
    mutant(
        "openpbs",
        "backfill",
        "every waiting job has a reservation",
        killed_by="test_openpbs_backfills_around_one",
        options={"backfill_depth": 99},
    ),
    mutant(
        "openpbs",
        "declared durations",
        "a job is taken to end at once",
        killed_by="test_openpbs_orders_strictly_and_backfills",
        replace={f"{BACKFILL}:needed": no_time},
    ),
)


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
    tells_apart(hole_filled, run(HOLE, EIGHT, "slurm"), run(HOLE, EIGHT, "fifo", discipline="skip"))
    with pytest.raises(AssertionError):  # strict order does not fill it
        hole_filled(run(HOLE, EIGHT, "fifo"))


@claim("openpbs", "strict ordering goes with backfill: the first job is not delayed, and the hole is filled")
def test_openpbs_orders_strictly_and_backfills() -> None:
    ours = run(HOLE, EIGHT, "openpbs", strict_ordering=True)
    tells_apart(hole_filled, ours, run(HOLE, EIGHT, "openpbs", strict_ordering=False))
    tells_apart(hole_filled, ours, run(HOLE, EIGHT, "openpbs", strict_ordering=True, backfill_depth=0))


def hole_filled(result: Run) -> None:
    assert result.start("B") == 120
    assert result.start("H") == 10 * HOUR
    assert result.start("C") == 11 * HOUR


def test_openpbs_without_strict_ordering_skips_and_with_depth_0_blocks() -> None:
    def starts(**options: bool | int) -> list[float]:
        result = run(HOLE, EIGHT, "openpbs", **options)
        return [result.start(name) for name in "HBC"]

    assert starts(strict_ordering=False) == [120 + 16 * HOUR, 120, 120 + 4 * HOUR]
    assert starts(strict_ordering=True, backfill_depth=0) == [10 * HOUR, 11 * HOUR, 11 * HOUR]
    with pytest.raises(ValueError, match="backfill_depth is a number of jobs, 0 or more, not -1"):
        run(HOLE, EIGHT, "openpbs", backfill_depth=-1)


@claim("slurm", "usage decays with its half-life")
def test_the_past_is_forgotten() -> None:
    _forgets("slurm")


@claim("openpbs", "usage decays with its half-life")
def test_openpbs_forgets_the_past() -> None:
    _forgets("openpbs")


def _forgets(system: str) -> None:
    """A took 40 GPU-hours four weeks ago, which count 2.5 now, and B took 8 an hour ago."""
    jobs = [
        job("long ago", gpus=4, hours=10, tenant="A"),
        job("just now", gpus=4, hours=2, at=28 * DAY, tenant="B"),
        job("b", gpus=4, hours=1, at=28 * DAY + 60, tenant="B"),
        job("a", gpus=4, hours=1, at=28 * DAY + 120, tenant="A"),
    ]

    def check(result: Run) -> None:
        assert result.start("a") < result.start("b")

    tells_apart(check, run(jobs, FOUR, system), run(jobs, FOUR, system, half_life=0.0))


@claim("slurm", "usage counts by share: of shares 3 and 1, twice the usage is less")
def test_usage_counts_by_share() -> None:
    _by_share("slurm")


@claim("openpbs", "usage counts by share: of shares 3 and 1, twice the usage is less")
def test_openpbs_counts_usage_by_share() -> None:
    _by_share("openpbs")


def _by_share(system: str) -> None:
    """A used 8 GPU-hours of 12 with three quarters of the shares, B 4 with one."""
    jobs = [
        job("a before", gpus=4, hours=2, tenant="A"),
        job("b before", gpus=4, hours=1, at=2 * HOUR, tenant="B"),
        job("b", gpus=4, hours=1, at=2 * HOUR + 60, tenant="B"),
        job("a", gpus=4, hours=1, at=2 * HOUR + 120, tenant="A"),
    ]

    def check(result: Run) -> None:
        assert [result.start("a"), result.start("b")] == [3 * HOUR, 4 * HOUR]

    shares = cluster(nodes=1, gpus=4, tenants=[Tenant("A", weight=3.0), Tenant("B")])
    tells_apart(check, run(jobs, shares, system), run(jobs, FOUR, system))


@claim("slurm", "an idle member of a busy account goes after an account that used less")
def test_an_idle_member_of_a_busy_account_waits() -> None:
    """x1 used 8 GPU-hours for x, y used 4: x2 is charged for its sibling."""
    tree = [Tenant("x"), Tenant("y"), Tenant("x1", "x"), Tenant("x2", "x")]
    jobs = [
        job("x1 before", gpus=4, hours=2, tenant="x1"),
        job("y before", gpus=4, hours=1, at=2 * HOUR, tenant="y"),
        job("x2", gpus=4, hours=1, at=2 * HOUR + 60, tenant="x2"),
        job("y", gpus=4, hours=1, at=2 * HOUR + 120, tenant="y"),
    ]

    def check(result: Run) -> None:
        assert [result.start("y"), result.start("x2")] == [3 * HOUR, 4 * HOUR]

    flat = cluster(nodes=1, gpus=4, tenants=[Tenant(tenant.name) for tenant in tree])
    ours = run(jobs, cluster(nodes=1, gpus=4, tenants=tree), "slurm")
    tells_apart(check, ours, run(jobs, flat, "slurm"))


@claim(
    "slurm", "Fair Tree: all members of an account that used less of its share go before those of its sibling"
)
def test_fair_tree_ranks_accounts_before_their_members() -> None:
    """x used 16 GPU-hours with two shares, all by x1, and y 12 with one, all by y1."""
    tree = [Tenant("x", weight=2.0), Tenant("y"), *(Tenant(f"{up}{i}", up) for up in "xy" for i in (1, 2))]
    on = cluster(nodes=1, gpus=4, tenants=tree)
    jobs = [
        job("x1 before", gpus=4, hours=4, tenant="x1"),
        job("y1 before", gpus=4, hours=3, at=4 * HOUR, tenant="y1"),
        *(job(name, gpus=4, minutes=1, at=5 * HOUR, tenant=name) for name in ("y1", "y2", "x1", "x2")),
    ]

    def check(result: Run) -> None:
        assert sorted(("x1", "x2", "y1", "y2"), key=result.start) == ["x2", "x1", "y2", "y1"]

    tells_apart(check, run(jobs, on, "slurm", algorithm="fair_tree"), run(jobs, on, "slurm"))


@claim("slurm", "of one account the wide job goes first")
def test_the_wide_job_starts_first() -> None:
    _wide_first("slurm")


@claim("openpbs", "of one account the wide job goes first")
def test_openpbs_starts_the_wide_job_first() -> None:
    _wide_first("openpbs")


def _wide_first(system: str) -> None:
    """Size gives the wide job 500 more, a minute of age the small one 0.1."""
    jobs = [
        job("before", gpus=8, hours=10),
        job("small", gpus=4, hours=1, at=60),
        job("wide", gpus=8, hours=1, at=120),
    ]

    def check(result: Run) -> None:
        assert [result.start("wide"), result.start("small")] == [10 * HOUR, 11 * HOUR]

    tells_apart(check, run(jobs, EIGHT, system), run(jobs, EIGHT, "fifo"))


@claim("slurm", "a small job that waited a week goes before a wide one that waited a day")
def test_age_outweighs_size() -> None:
    _old_first("slurm")


@claim("openpbs", "a small job that waited a week goes before a wide one that waited a day")
def test_openpbs_lets_age_outweigh_size() -> None:
    _old_first("openpbs")


def _old_first(system: str) -> None:
    """Age gives the small job 1000 and the wide one 143; size gives them 500 and 1000."""
    jobs = [
        job("before", gpus=8, hours=8 * 24),
        job("small", gpus=4, hours=1, at=60),
        job("wide", gpus=8, hours=1, at=7 * DAY),
    ]

    def check(result: Run) -> None:
        assert [result.start("small") / DAY, result.start("wide") / HOUR] == [8, 8 * 24 + 1]

    tells_apart(check, run(jobs, EIGHT, system), run(jobs, EIGHT, system, weight_age=0.0))


@claim("slurm", "age counts up to a limit: after a week a wide job goes before a small one of any age")
def test_age_counts_up_to_a_limit() -> None:
    jobs = [
        job("before", gpus=8, hours=40 * 24),
        job("small", gpus=4, hours=1, at=60),
        job("wide", gpus=8, hours=1, at=33 * DAY),
    ]

    def check(result: Run) -> None:
        assert [result.start("wide") / DAY, result.start("small") / HOUR] == [40, 40 * 24 + 1]

    tells_apart(check, run(jobs, EIGHT, "slurm"), run(jobs, EIGHT, "slurm", max_age=40 * DAY))


@claim("slurm", "a job of a partition with a larger factor goes first")
def test_the_better_partition_goes_first() -> None:
    on = cluster(nodes=1, gpus=8, partitions=frozenset({"batch", "urgent"}))
    jobs = [
        job("before", shape=Shape(8, partition="batch"), hours=10),
        job("batch", shape=Shape(8, partition="batch"), hours=1, at=60),
        job("urgent", shape=Shape(8, partition="urgent"), hours=1, at=120),
    ]

    def check(result: Run) -> None:
        assert [result.start("urgent"), result.start("batch")] == [10 * HOUR, 11 * HOUR]

    ours = run(jobs, on, "slurm", partitions={"urgent": 1.0, "batch": 0.1})
    tells_apart(check, ours, run(jobs, on, "slurm", partitions={"urgent": 0.1, "batch": 0.1}))


@claim("slurm", "a job of a higher QOS goes first where QOS has a weight")
def test_the_higher_qos_goes_first() -> None:
    jobs = [
        job("before", gpus=8, hours=10),
        job("low", gpus=8, hours=1, at=60, priority=1),
        job("high", gpus=8, hours=1, at=120, priority=5),
    ]

    def check(result: Run) -> None:
        assert [result.start("high"), result.start("low")] == [10 * HOUR, 11 * HOUR]

    tells_apart(check, run(jobs, EIGHT, "slurm", weight_qos=1000.0), run(jobs, EIGHT, "slurm"))


@claim("slurm", "every waiting job has a reservation: a long job delays neither the first nor the second")
def test_every_waiting_job_has_a_reservation() -> None:
    def check(result: Run) -> None:
        starts = [result.start(name) / HOUR for name in ("first", "second", "long")]
        assert starts == [10, 10, 20]

    tells_apart(check, run(TWO_WAIT, EIGHT, "slurm"), run(TWO_WAIT, EIGHT, "openpbs"))


@claim("openpbs", "only the first job in the queue has a reservation: others are backfilled behind it alone")
def test_openpbs_backfills_around_one() -> None:
    def check(result: Run) -> None:
        assert result.start("long") == 180
        assert result.start("first") == 10 * HOUR
        assert result.start("second") == 20 * HOUR

    tells_apart(check, run(TWO_WAIT, EIGHT, "openpbs"), run(TWO_WAIT, EIGHT, "slurm"))
    with pytest.raises(AssertionError):  # a deeper backfill protects the second job too
        check(run(TWO_WAIT, EIGHT, "openpbs", backfill_depth=2))


@claim(
    "slurm", "a backfill pass comes at most every 30 s: a job that comes 10 s after one waits for the next"
)
def test_the_backfill_pass_comes_every_half_minute() -> None:
    jobs = [
        job("A", gpus=6, hours=10),
        job("H", gpus=8, hours=1, at=100),
        job("B", gpus=1, hours=1, at=110),
    ]

    def check(result: Run) -> None:
        assert result.start("B") == 130

    ours, at_once = run(jobs, EIGHT, "slurm"), run(jobs, EIGHT, "slurm", interval=0.0)
    tells_apart(check, ours, at_once)
    assert at_once.start("B") == 110


@claim("slurm", "nothing is reserved further than a day ahead: until then a long job goes before a wide one")
def test_reservations_lie_within_a_day() -> None:
    jobs = [
        job("A", gpus=6, hours=48),
        job("H", gpus=8, hours=1, at=60),
        job("C", gpus=2, hours=72, at=120),
    ]

    def check(result: Run) -> None:
        assert [result.start("C"), result.start("H")] == [120, 120 + 72 * HOUR]

    tells_apart(check, run(jobs, EIGHT, "slurm"), run(jobs, EIGHT, "slurm", window=None))


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


def test_fair_tree_ranks_ties_and_jobs_of_inner_accounts() -> None:
    tree = cluster(
        tenants=[Tenant("x"), Tenant("y"), Tenant("x1", "x"), Tenant("x2", "x"), Tenant("y1", "y")]
    )
    # x and y are tied, so their members rank together: x2 used nothing, y1 all of y, x1 all of x.
    factors = fair_tree(tree, {"x": 4.0, "x1": 4.0, "y": 4.0, "y1": 4.0}, ())
    assert factors == {"x2": 1.0, "y1": 2 / 3, "x1": 1 / 3}
    assert fair_tree(tree, {}, ()) == {"x1": 1.0, "x2": 1.0, "y1": 1.0}
    # x has jobs of its own, which used 1 of 4: they rank before x1, and the new account before both.
    mixed = fair_tree(tree, {"x": 4.0, "x1": 3.0, "y": 9.0, "y1": 9.0}, ("x", "new"))
    assert mixed == {"new": 1.0, "x2": 0.8, "x": 0.6, "x1": 0.4, "y1": 0.2}
