"""Backfilling: holes are filled, and reservations are kept."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from dovetail.core.core import Core, Step
from dovetail.mechanisms.order.keys import arrival, shortest, waiting_in_order
from dovetail.mechanisms.place.placement import Placement
from dovetail.mechanisms.queue.easy_backfill import _first_of
from dovetail.model.cluster import Tenant, parse_cluster
from dovetail.model.grant import Spots
from dovetail.model.job import Job
from dovetail.model.view import Entry, JobView, Plan, Queue, View
from dovetail.policies.classic import fifo
from dovetail.policies.composed import Composed
from dovetail.sim.run import Run
from dovetail.testing.build import Incident, Shape, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

HOUR = 3600.0
EIGHT = cluster(nodes=1, gpus=8)

HOLE = [
    job("A", gpus=6, hours=10),
    job("H", gpus=8, hours=1),
    job("B", gpus=2, hours=4),
    job("C", gpus=2, hours=12),
]


def not_on_reserved_devices(queue: Queue, shape: Shape, head: JobView, within: int | None) -> Entry | None:
    return _first_of(queue, shape, head, None) if within is None else None


def spare_is_not_counted(
    view: View, plan: Plan, job: JobView, spots: Spots, time: int, spare: dict[int, int]
) -> bool:
    return plan.start(job, spots)


def counting_gpus(view: View, place: Placement) -> Plan:
    """EASY by the number of GPUs that fall free, wherever they are."""
    plan = view.draft()
    free = plan.room.free_gpus
    shadow = spare = -1  # of the first job that does not fit
    for waiting in waiting_in_order(arrival)(view):
        spots = place.find(plan.room, waiting)
        if shadow < 0 and spots is None:
            shadow = view.now
            for runner in sorted(view.running.values(), key=lambda runner: runner.ends_at(view.now)):
                if free >= waiting.gpus:
                    break
                free, shadow = free + runner.gpus, runner.ends_at(view.now)
            spare = free - waiting.gpus
        elif spots is not None and shadow < 0:
            plan.start(waiting, spots)
            free -= waiting.gpus
        elif spots is not None and view.now + waiting.estimate <= shadow:
            plan.start(waiting, spots)
        elif spots is not None and waiting.gpus <= spare:
            plan.start(waiting, spots)
            spare -= waiting.gpus
    return plan


BY_COUNT = Composed(order=arrival, serve=counting_gpus)
EASY = "dovetail.mechanisms.queue.easy_backfill"
MUTANTS = (
    mutant(
        "backfill",
        "a reservation for the first",
        "any job that fits starts",
        killed_by="test_the_first_is_not_delayed",
        factory=lambda **_: fifo(discipline="skip"),
    ),
    mutant(
        "backfill",
        "a reservation for the first",
        "spare devices are given away more than once",
        killed_by="test_spare_devices_are_used_once",
        replace={f"{EASY}:_put": spare_is_not_counted},
    ),
    mutant(
        "backfill",
        "nodes are reserved",
        "a number of GPUs is reserved, wherever they are",
        killed_by="test_nodes_are_reserved_and_not_a_number_of_gpus",
        factory=lambda **_: BY_COUNT,
    ),
    mutant(
        "backfill",
        "holes are filled",
        "no job overtakes another",
        killed_by="test_the_hole_is_filled",
        factory=lambda **_: fifo(),
    ),
    mutant(
        "backfill",
        "holes are filled",
        "no job runs on reserved devices, however short",
        killed_by="test_the_hole_is_filled",
        replace={f"{EASY}:_first_of": not_on_reserved_devices, f"{EASY}:needed": lambda job, now: 1 << 62},
    ),
    mutant(
        "backfill",
        "holes are filled",
        "spare devices of a reserved node stay idle",
        killed_by="test_spare_devices_are_used_once",
        replace={f"{EASY}:place_behind": lambda *_: None},
    ),
    mutant(
        "backfill",
        "a reservation for every job (conservative)",
        "for the first job only",
        killed_by="test_conservative_protects_the_second_too",
        options={"variant": "easy"},
    ),
    mutant(
        "backfill",
        "order of arrival",
        "the shortest goes first",
        killed_by="test_the_first_is_not_delayed",
        replace={"dovetail.policies.backfill:arrival": shortest},
    ),
)


@claim(
    "backfill", "a later job starts if it does not delay the first: B at once, C never before H, H on time"
)
@pytest.mark.parametrize("options", [{}, {"variant": "conservative"}, {"depth": 10}])
def test_the_first_is_not_delayed(options: dict[str, Any]) -> None:
    def check(result: Run) -> None:
        assert result.start("B") == 0
        assert result.start("H") == 10 * HOUR == run(HOLE, EIGHT, "fifo").start("H")
        assert result.start("C") == 11 * HOUR

    skip = run(HOLE, EIGHT, "fifo", discipline="skip")
    tells_apart(check, run(HOLE, EIGHT, "backfill", **options), skip)
    assert (skip.start("C"), skip.start("H")) == (4 * HOUR, 16 * HOUR)


@claim("backfill", "the hole is filled: B does not wait behind H as it does under strict order")
def test_the_hole_is_filled() -> None:
    def check(result: Run) -> None:
        assert result.start("B") == 0

    tells_apart(check, run(HOLE, EIGHT, "backfill"), run(HOLE, EIGHT, "fifo"))


@claim("backfill", "a job of any duration starts on devices that the first will not need, as far as they go")
def test_spare_devices_are_used_once() -> None:
    jobs = [
        job("A", gpus=4, hours=10),
        job("H", gpus=6, hours=1),  # leaves two of eight GPUs
        job("long", gpus=2, hours=20),
        job("longer", gpus=2, hours=21),
    ]

    def check(result: Run) -> None:
        assert [result.start(name) / HOUR for name in ("H", "long", "longer")] == [10, 0, 11]

    ours = run(jobs, EIGHT, "backfill")
    tells_apart(check, ours, run(jobs, EIGHT, "fifo"))
    tells_apart(check, ours, run(jobs, EIGHT, "fifo", discipline="skip"))


@claim(
    "backfill", "conservative backfill reserves for every job: the second in the queue is not delayed either"
)
def test_conservative_protects_the_second_too() -> None:
    jobs = [
        job("A", gpus=6, hours=10),
        job("first", gpus=4, hours=10),
        job("second", gpus=4, hours=10),
        job("long", gpus=2, hours=20),
    ]

    def check(result: Run) -> None:
        assert [result.start(name) / HOUR for name in ("first", "second", "long")] == [10, 10, 20]

    eager = run(jobs, EIGHT, "backfill")
    tells_apart(check, run(jobs, EIGHT, "backfill", variant="conservative"), eager)
    assert [eager.start(name) / HOUR for name in ("first", "second", "long")] == [10, 20, 0]


@claim("backfill", "nodes are reserved, not a number of GPUs: the gang starts when one node is free for it")
def test_nodes_are_reserved_and_not_a_number_of_gpus() -> None:
    """Six GPUs free at 1 h are no help to a gang of four if they are three and three."""
    jobs = [
        job("a1", gpus=3, hours=1),
        job("b1", gpus=3, hours=1),
        job("a2", gpus=1, hours=5),
        job("b2", gpus=1, hours=6),
        job("wide", gpus=4, hours=1),
        job("long", gpus=2, hours=8),
        job("short", gpus=2, hours=4),
        job("longer", gpus=1, hours=9),
        job("longest", gpus=1, hours=10),
    ]

    def check(result: Run) -> None:
        assert result.start("wide") == 5 * HOUR  # on the node of a2
        assert result.start("long") == 1 * HOUR  # on the other
        assert result.start("short") == 1 * HOUR  # on the node reserved: it is gone in time
        assert result.start("longer") == 1 * HOUR  # the last GPU of the other
        assert result.start("longest") == 6 * HOUR  # though a GPU is free from 1 h on

    two = cluster(nodes=2, gpus=4)
    by_count = run(jobs, two, BY_COUNT)
    tells_apart(check, run(jobs, two, "backfill"), by_count)
    assert by_count.start("wide") == 6 * HOUR


def random_jobs(seed: int, count: int = 60) -> list[Job]:
    rng = Random(seed)
    at = 0.0
    jobs = []
    for i in range(count):
        at += rng.expovariate(1 / 40)
        gpus = rng.choice([1, 1, 1, 2, 2, 4, 6, 8])
        jobs.append(job(f"j{i}", gpus=gpus, seconds=rng.choice([20, 60, 200, 600, 601]), at=round(at)))
    return jobs


@pytest.mark.parametrize("variant", ["easy", "conservative"])
@pytest.mark.parametrize("seed", range(12))
def test_no_reservation_is_broken(variant: str, seed: int) -> None:
    """With exact durations no job starts later than any of its reservations said."""
    promised: dict[str, int] = {}

    def watch(core: Core, step: Step) -> None:
        for name, reservation in core.calendar.items():
            promised[name] = min(promised.get(name, reservation.start), reservation.start)

    result = run(random_jobs(seed), cluster(nodes=3, gpus=4), "backfill", variant=variant, on_step=watch)
    assert result.finished == 60
    assert len(promised) > 10
    late = {name: at for name, at in promised.items() if result.start(name) * 1e6 > at}
    assert late == {}


@pytest.mark.parametrize("seed", range(12))
def test_both_ways_of_easy_agree(seed: int) -> None:
    """On one node there is no choice of places, so the index and the outlook give the same schedule."""
    short, long = (run(random_jobs(seed), EIGHT, "backfill", depth=depth) for depth in (None, 1000))
    assert list(short.jobs.start) == list(long.jobs.start)


@pytest.mark.parametrize("variant", ["easy", "conservative"])
@pytest.mark.parametrize("factor", [0.3, 1.7])
def test_wrong_durations_starve_no_job(variant: str, factor: float) -> None:
    rng = Random(7)
    jobs = [
        job(
            f"j{i}", gpus=j.shape.gpus, seconds=j.work / 1e6, at=j.arrived_at / 1e6, estimate=j.work / 1e6 * f
        )
        for i, j in enumerate(random_jobs(3))
        for f in [rng.choice([factor, 1.0])]
    ]
    assert run(jobs, cluster(nodes=3, gpus=4), "backfill", variant=variant).finished == 60


@pytest.mark.parametrize("variant", ["easy", "conservative"])
def test_a_first_that_the_index_cannot_place(variant: str) -> None:
    """Two tasks of three GPUs each: not six GPUs anywhere, so nodes and tasks are counted."""
    pair = Shape(tasks=2, each=3)
    jobs = [
        job("a", gpus=2, hours=2),
        job("b", gpus=3, hours=1),
        job("pair", shape=pair, hours=1),
        job("long", gpus=2, hours=9),
        job("short", gpus=2, hours=1),
    ]
    result = run(jobs, cluster(nodes=2, gpus=4), "backfill", variant=variant)
    assert result.start("pair") == 2 * HOUR
    assert result.start("short") <= 1 * HOUR
    assert result.start("long") == 3 * HOUR


@pytest.mark.parametrize("variant", ["easy", "conservative"])
def test_others_go_on_while_the_first_misses_its_node(variant: str) -> None:
    jobs = [job("big", gpus=8, hours=1, at=60), job("small", gpus=2, hours=1, at=120)]
    lost = [Incident("n0", at=0, back_at=int(5 * HOUR * 1e6))]
    result = run(jobs, cluster(nodes=2, gpus=4), "backfill", variant=variant, incidents=lost)
    assert result.start("small") == 120
    assert result.start("big") == 5 * HOUR


@pytest.mark.parametrize("variant", ["easy", "conservative"])
def test_a_tenant_at_its_limit_delays_no_other_tenant(variant: str) -> None:
    teams = cluster(nodes=1, gpus=8, tenants=[Tenant("full", limit=2), Tenant("free")])
    jobs = [
        job("one", gpus=2, hours=1, tenant="full"),
        job("two", gpus=2, hours=1, tenant="full"),
        job("other", gpus=2, hours=1, tenant="free"),
    ]
    result = run(jobs, teams, "backfill", variant=variant)
    assert result.start("other") == 0
    assert result.start("two") == 1 * HOUR


def test_what_a_reserved_node_spares_is_for_its_type_only() -> None:
    """The node of A100s will have four to spare when `first` starts; a job that wants a V100 waits."""
    mixed = parse_cluster("1x8:A100,1x2:V100")
    jobs = [
        job("a", gpus=6, hours=10, types=["A100"]),
        job("v", gpus=2, hours=5, types=["V100"]),
        job("first", gpus=4, hours=1, types=["A100"], at=1),
        job("other", gpus=2, hours=20, types=["V100"], at=2),
        job("spared", gpus=2, hours=20, types=["A100"], at=3),
    ]
    for variant in ("easy", "conservative"):
        result = run(jobs, mixed, "backfill", variant=variant)
        assert result.start("other") == 5 * HOUR
        assert result.start("spared") == 3
