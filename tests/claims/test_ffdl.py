"""FfDL: gangs are placed whole and packed, and a failure costs at most what was not saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from dovetail.mechanisms.order.round_robin import round_robin
from dovetail.mechanisms.preempt.reclaim import reclaim
from dovetail.model.cluster import Tenant, parse_cluster
from dovetail.model.grant import devices_of, nodes_of
from dovetail.model.job import Shape
from dovetail.model.view import JobView, Plan, Room, View
from dovetail.policies.ffdl.biased_sampling import _cost
from dovetail.policies.kubernetes import k8s_default
from dovetail.policies.philly import philly
from dovetail.sim.run import Run
from dovetail.testing.build import Checkpoint, Incident, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

HOUR, MINUTE = 3600.0, 60.0
TWO = cluster(nodes=2, gpus=4)
HALVES = [Tenant("A", quota=4), Tenant("B", quota=4)]


def in_order_of_arrival(view: View, over: Callable[[JobView], bool], *, strict: bool) -> Iterator[JobView]:
    return round_robin(view, lambda job: 0, strict=strict)


def overtaking(view: View, over: Callable[[JobView], bool], *, strict: bool) -> Iterator[JobView]:
    return round_robin(view, over)


def one_queue_for_all(view: View, over: Callable[[JobView], bool], *, strict: bool) -> Iterator[JobView]:
    for first in round_robin(view, over, strict=strict):
        yield first
        if first.spots is None:
            return


def within_quota_only(view: View, over: Callable[[JobView], bool], *, strict: bool) -> Iterator[JobView]:
    return (job for job in round_robin(view, over, strict=strict) if not over(job))


def earliest_stopped(
    plan: Plan,
    job: JobView,
    others: Sequence[JobView],
    may_leave: Callable[[JobView], bool],
    fits: Callable[[], bool],
) -> Sequence[JobView]:
    return reclaim(plan, job, others[::-1], may_leave, fits)


def emptiest(room: Room, shape: Shape, drawn: dict[int, int]) -> tuple[int, int, int]:
    nodes, racks, stranded = _cost(room, shape, drawn)
    return nodes, racks, -stranded


FFDL = "dovetail.policies.ffdl.policy"
SAMPLING = "dovetail.policies.ffdl.biased_sampling"
MUTANTS = (
    mutant(
        "ffdl",
        "whole gangs",
        "pods are placed one by one",
        killed_by="test_no_gpu_waits_for_its_siblings",
        factory=lambda **_: k8s_default(),
    ),
    mutant(
        "ffdl",
        "biased sampling",
        "the first place that is found is taken",
        killed_by="test_gangs_larger_than_a_node_stay_in_one_rack",
        replace={f"{FFDL}:sampled_spots": lambda room, shape, *_: room.anywhere(shape)},
    ),
    mutant(
        "ffdl",
        "biased sampling",
        "one placement is drawn, not many",
        killed_by="test_gangs_larger_than_a_node_stay_in_one_rack",
        options={"samples": 1},
    ),
    mutant(
        "ffdl",
        "biased sampling",
        "all nodes are drawn equally often",
        killed_by="test_good_nodes_are_drawn_more_often",
        replace={f"{SAMPLING}:_weight": lambda *_: 1.0},
    ),
    mutant(
        "ffdl",
        "packing",
        "of equal placements the emptiest nodes are taken",
        killed_by="test_small_jobs_are_packed",
        replace={f"{SAMPLING}:_cost": emptiest},
    ),
    mutant(
        "ffdl",
        "a queue for each tenant",
        "a job that does not fit is overtaken by its own tenant's jobs",
        killed_by="test_a_tenant_delays_no_other_tenant",
        replace={f"{FFDL}:round_robin": overtaking},
    ),
    mutant(
        "ffdl",
        "a queue for each tenant",
        "a job that does not fit blocks all tenants",
        killed_by="test_a_tenant_delays_no_other_tenant",
        replace={f"{FFDL}:round_robin": one_queue_for_all},
    ),
    mutant(
        "ffdl",
        "a queue for each tenant",
        "the scheduler of Philly",
        killed_by="test_a_tenant_delays_no_other_tenant",
        factory=lambda **_: philly(),
    ),
    mutant(
        "ffdl",
        "jobs within quota first",
        "the first to arrive goes first",
        killed_by="test_jobs_within_quota_go_first",
        replace={f"{FFDL}:round_robin": in_order_of_arrival},
    ),
    mutant(
        "ffdl",
        "jobs over quota",
        "they wait though GPUs are idle",
        killed_by="test_a_job_over_quota_is_admitted_and_preempted",
        replace={f"{FFDL}:round_robin": within_quota_only},
    ),
    mutant(
        "ffdl",
        "jobs over quota",
        "they are not preempted",
        killed_by="test_a_job_over_quota_is_admitted_and_preempted",
        replace={f"{FFDL}:reclaim": lambda *_: ()},
    ),
    mutant(
        "ffdl",
        "jobs over quota",
        "the earliest are preempted",
        killed_by="test_a_job_over_quota_is_admitted_and_preempted",
        replace={f"{FFDL}:reclaim": earliest_stopped},
    ),
)


def idle_gpu_hours(result: Run) -> float:
    """GPU-hours held by jobs that had not all their GPUs."""
    asked = dict(zip(result.jobs.id, result.jobs.gpus, strict=True))
    return sum(
        devices_of(held.spots) * (held.end - held.start) / HOUR / 1e6
        for held in result.stretches
        if devices_of(held.spots) < asked[held.job]
    )


@claim("ffdl", "no GPU is held by a job that is not whole")
def test_no_gpu_waits_for_its_siblings() -> None:
    jobs = [job("five", gpus=5, hours=1), job("gang", gpus=4, hours=1)]

    def check(result: Run) -> None:
        assert idle_gpu_hours(result) == 0

    pods = run(jobs, TWO, "k8s-default", score="spread")
    ours = run(jobs, TWO, "ffdl")
    tells_apart(check, ours, pods)
    assert idle_gpu_hours(pods) == 4  # four of five pods, for the hour that the gang of four runs
    assert [ours.finish(name) / HOUR for name in ("five", "gang")] == [1, 2]


@claim("ffdl", "two gangs that each could hold half run one after the other instead of waiting for ever")
def test_no_deadlock() -> None:
    jobs = [job("a", gpus=8, hours=1), job("b", gpus=8, hours=1)]

    def check(result: Run) -> None:
        assert result.finished == 2

    tells_apart(check, run(jobs, TWO, "ffdl"), run(jobs, TWO, "k8s-default", score="spread"))


@claim("ffdl", "pack, do not spread: eight small jobs leave seven of eight nodes empty")
@pytest.mark.parametrize("seed", range(10))
def test_small_jobs_are_packed(seed: int) -> None:
    on = cluster(nodes=8, gpus=8)
    jobs = [job(f"j{i}", hours=1) for i in range(8)]

    def nodes(result: Run) -> int:
        return len({node for held in result.stretches for node in nodes_of(held.spots)})

    def check(result: Run) -> None:
        assert nodes(result) == 1

    spread = run(jobs, on, "k8s-default", score="spread")
    tells_apart(check, run(jobs, on, "ffdl", seed=seed), spread)
    assert nodes(spread) == 8


@claim("ffdl", "after a node fails its jobs resume from their last checkpoint: at most one period is lost")
def test_a_failure_costs_at_most_a_period() -> None:
    """n0 and n1 each run a gang; n0 fails at 25 min and at once its job goes on elsewhere."""
    on = cluster(nodes=3, gpus=4)
    failure = [Incident("n0", at=25 * 60_000_000)]
    period = 10 * MINUTE

    def outcome(saved: Checkpoint) -> Run:
        jobs = [job(f"j{i}", gpus=4, hours=1, checkpoint=saved) for i in range(2)]
        return run(jobs, on, "ffdl", incidents=failure)

    def check(result: Run) -> None:
        lost = [jct - HOUR for jct in result.jct()]
        assert max(lost) <= period
        assert sorted(lost) == [0, 5 * MINUTE]

    tells_apart(check, outcome(Checkpoint(every=int(period * 1e6))), outcome(Checkpoint()))


@claim("ffdl", "a job over its tenant's quota runs on idle GPUs, and is preempted for a job within quota")
def test_a_job_over_quota_is_admitted_and_preempted() -> None:
    on = cluster(nodes=2, gpus=4, tenants=HALVES)
    saved = Checkpoint(every=10 * 60_000_000)
    jobs = [
        job("a1", gpus=4, hours=2, tenant="A", checkpoint=saved),
        job("a2", gpus=4, hours=2, at=1, tenant="A", checkpoint=saved),
        job("b", gpus=4, hours=1, at=600, tenant="B", checkpoint=saved),
    ]

    def check(result: Run) -> None:
        assert result.start("a2") == 1
        assert result.start("b") == 600
        assert list(result.jobs.stops) == [0, 1, 0]
        assert result.finished == 3

    tells_apart(check, run(jobs, on, "ffdl"), run(jobs, on, "fifo"))


@claim("ffdl", "of two tenants with waiting jobs the one within its quota is served, and no job is stopped")
def test_jobs_within_quota_go_first() -> None:
    on = cluster(nodes=2, gpus=4, tenants=HALVES)
    jobs = [
        job("a1", gpus=4, hours=2, tenant="A"),
        job("b1", gpus=4, hours=1, tenant="B"),
        job("a2", gpus=4, hours=1, at=10, tenant="A"),  # over quota, and first in line
        job("b2", gpus=4, hours=1, at=20, tenant="B"),
    ]

    def check(result: Run) -> None:
        assert result.start("b2") == 1 * HOUR
        assert result.start("a2") == 2 * HOUR
        assert result.preemptions == 0

    tells_apart(check, run(jobs, on, "ffdl"), run(jobs, on, "fifo"))


@claim("ffdl", "the best of many drawn placements: a gang wider than a node is in one rack in every run")
def test_gangs_larger_than_a_node_stay_in_one_rack() -> None:
    on = cluster(nodes=6, gpus=4, racks=3)
    jobs = [job("a", gpus=1, hours=1), job("gang", gpus=8, hours=1)]

    def racks(policy: str, **options: int) -> list[int]:
        found = []
        for seed in range(10):
            result = run(jobs, on, policy, seed=seed, **options)
            (held,) = [held for held in result.stretches if held.job == "gang"]
            found.append(len({on.nodes[node].rack for node in nodes_of(held.spots)}))
        return found

    def check(found: list[int]) -> None:
        assert found == [1] * 10

    ours = racks("ffdl")
    tells_apart(check, ours, racks("fifo"))
    tells_apart(check, ours, racks("ffdl", samples=1))


@claim("ffdl", "good nodes are drawn more often: 20 draws find the one node of 61 that holds a gang whole")
def test_good_nodes_are_drawn_more_often() -> None:
    on = parse_cluster("60x1,1x4")

    def nodes(samples: int) -> list[int]:
        runs = [
            run([job("gang", gpus=4, hours=1)], on, "ffdl", samples=samples, seed=seed) for seed in range(10)
        ]
        return [len(nodes_of(result.stretches[0].spots)) for result in runs]

    def check(found: list[int]) -> None:
        assert found.count(1) >= 8  # drawn equally often, it would be found in about 3 of 10
        assert sum(found) / 10 <= 1.5

    tells_apart(check, nodes(20), nodes(1))


@claim("ffdl", "each tenant has a queue in order of arrival, whose head blocks that queue and no other")
def test_a_tenant_delays_no_other_tenant() -> None:
    on = cluster(nodes=1, gpus=4)  # without quotas, so that none is over
    jobs = [
        job("a1", gpus=2, hours=1, tenant="A"),
        job("a2", gpus=4, hours=1, at=1, tenant="A"),
        job("a3", gpus=1, hours=1, at=2, tenant="A"),
        job("b1", gpus=1, hours=1, at=3, tenant="B"),
    ]

    def check(result: Run) -> None:
        assert result.start("b1") == 3
        assert result.start("a3") >= result.start("a2")

    tells_apart(check, run(jobs, on, "ffdl"), run(jobs, on, "fifo"))


def test_tasks_of_several_gpus_stay_whole() -> None:
    result = run([job("a", gpus=1, hours=1), job("pair", shape=Shape(tasks=2, each=3), hours=1)], TWO, "ffdl")
    assert result.finished == 2
    (held,) = [held for held in result.stretches if held.job == "pair"]
    assert sorted(spot[1].bit_count() for spot in held.spots) == [3, 3]


def test_the_same_seed_places_alike() -> None:
    jobs = [job(f"j{i}", gpus=1 + i % 6, minutes=20, at=60 * i) for i in range(40)]
    on = cluster(nodes=4, gpus=4)
    one, two = (run(jobs, on, "ffdl", seed=3) for _ in range(2))
    assert one.stretches == two.stretches
    assert one.finished == 40
