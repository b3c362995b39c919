"""FfDL: gangs are placed whole and packed, and a failure costs at most what was not saved."""

from __future__ import annotations

import pytest

from dovetail.model.cluster import Tenant
from dovetail.model.grant import devices_of, nodes_of
from dovetail.sim.run import Run
from dovetail.testing.build import Checkpoint, Incident, Shape, cluster, job, run
from dovetail.testing.claims import claim, tells_apart

HOUR, MINUTE = 3600.0, 60.0
TWO = cluster(nodes=2, gpus=4)


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
@pytest.mark.parametrize("seed", range(5))
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
    on = cluster(nodes=2, gpus=4, tenants=[Tenant("A", quota=4), Tenant("B", quota=4)])
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


def test_gangs_larger_than_a_node_stay_in_one_rack() -> None:
    on = cluster(nodes=6, gpus=4, racks=3)
    for seed in range(5):
        result = run([job("a", gpus=1, hours=1), job("gang", gpus=8, hours=1)], on, "ffdl", seed=seed)
        (held,) = [held for held in result.stretches if held.job == "gang"]
        assert len({on.nodes[node].rack for node in nodes_of(held.spots)}) == 1


def test_a_tenant_delays_no_other_tenant() -> None:
    on = cluster(nodes=1, gpus=4, tenants=[Tenant("A"), Tenant("B")])
    jobs = [
        job("a1", gpus=2, hours=1, tenant="A"),
        job("a2", gpus=4, hours=1, at=1, tenant="A"),
        job("a3", gpus=1, hours=1, at=2, tenant="A"),
        job("b1", gpus=1, hours=1, at=3, tenant="B"),
    ]
    result = run(jobs, on, "ffdl")
    assert result.start("b1") == 3
    assert result.start("a3") >= result.start("a2")


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
