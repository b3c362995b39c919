"""Kubernetes' own scheduler: pods without gangs."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.mechanisms.place.pods import Eviction, cheapest_eviction
from dovetail.model.grant import Spots, devices_of, nodes_of
from dovetail.model.job import Shape
from dovetail.model.view import JobView, Room
from dovetail.policies.volcano import volcano
from dovetail.sim.run import Run
from dovetail.testing.build import cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

ONE = cluster(nodes=1, gpus=1)
FOUR = cluster(nodes=1, gpus=4)
TWO_GANGS = [job("first", gpus=4, seconds=100), job("second", gpus=4, seconds=100)]


def whole_job(spots: Spots, shape: Shape, node: int) -> Spots:
    return ()


def highest_priority(room: Room, shape: Shape, priority: int, running: Iterable[JobView]) -> Eviction | None:
    """Evict from the node whose pods have the highest priority that is below the pod's own."""
    lower = [job for job in running if job.priority < priority]
    highest = max((job.priority for job in lower), default=0)
    return cheapest_eviction(room, shape, priority, [job for job in lower if job.priority == highest])


KUBERNETES = "dovetail.policies.kubernetes"
MUTANTS = (
    mutant(
        "k8s-default",
        "no gangs",
        "all pods of a job are bound together, or none",
        killed_by="test_deadlock",
        factory=lambda **_: volcano(),
    ),
    mutant(
        "k8s-default",
        "spreading",
        "the fullest node is taken",
        killed_by="test_spread_leaves_no_empty_node",
        options={"score": "pack"},
    ),
    mutant(
        "k8s-default",
        "priority",
        "pods wait by time alone",
        killed_by="test_pods_wait_by_priority",
        replace={f"{KUBERNETES}:_entry": lambda job, queued_at: (0, queued_at, 0, job.seq, job)},
    ),
    mutant(
        "k8s-default",
        "eviction",
        "no pod is evicted",
        killed_by="test_eviction_breaks_gangs",
        options={"preempt": False},
    ),
    mutant(
        "k8s-default",
        "eviction",
        "all pods of a job are evicted together",
        killed_by="test_eviction_breaks_gangs",
        replace={f"{KUBERNETES}:without_one": whole_job},
    ),
    mutant(
        "k8s-default",
        "eviction",
        "pods of the highest priority below its own are evicted",
        killed_by="test_eviction_takes_the_lowest_priority",
        replace={f"{KUBERNETES}:cheapest_eviction": highest_priority},
    ),
    mutant(
        "k8s-default",
        "back-off",
        "a pod is tried as soon as there is room",
        killed_by="test_back_off_doubles_up_to_ten_seconds",
        options={"backoff": 0.0},
    ),
    mutant(
        "k8s-default",
        "back-off",
        "the back-off does not grow",
        killed_by="test_back_off_doubles_up_to_ten_seconds",
        options={"backoff_most": 1.0},
    ),
    mutant(
        "k8s-default",
        "back-off",
        "the back-off grows without an end",
        killed_by="test_back_off_doubles_up_to_ten_seconds",
        options={"backoff_most": 1_000.0},
    ),
)


@claim("k8s-default", "without gangs two jobs can each hold half of what both need, for ever")
def test_deadlock() -> None:
    def check(result: Run) -> None:
        assert result.finished == 0
        assert result.stalled == ["first", "second"]
        halves = [sum(spot[1].bit_count() for spot in stretch.spots) for stretch in result.stretches[-2:]]
        assert halves == [2, 2]

    tells_apart(check, run(TWO_GANGS, FOUR, "k8s-default"), run(TWO_GANGS, FOUR, "volcano"))


@claim(
    "k8s-default",
    "spreading eight single-GPU pods over eight nodes leaves no node empty; packing leaves seven",
)
def test_spread_leaves_no_empty_node() -> None:
    jobs = [job(f"pod{i}", hours=1) for i in range(8)]

    def check(result: Run) -> None:
        used = set().union(*(nodes_of(stretch.spots) for stretch in result.stretches))
        assert len(used) == 8

    eight = cluster(nodes=8, gpus=8)
    packed = run(jobs, eight, "k8s-default", score="pack")
    tells_apart(check, run(jobs, eight, "k8s-default"), packed)
    assert {node for stretch in packed.stretches for node in nodes_of(stretch.spots)} == {0}


@claim(
    "k8s-default", "pods of higher priority evict single pods, and leave the rest of a gang idle on its GPUs"
)
def test_eviction_breaks_gangs() -> None:
    jobs = [job("gang", gpus=4, seconds=100), job("urgent", seconds=50, at=10, priority=5)]
    jobs += [job("later", seconds=10, at=10)]

    def check(result: Run) -> None:
        assert (result.start("urgent"), result.start("later")) == (10, 60)  # one GPU was freed, not four
        assert result.finish("gang") == 160  # it stood still while a pod was missing
        held = [(s.start, s.end, devices_of(s.spots)) for s in result.stretches if s.job == "gang"]
        assert held == [(0, 10e6, 4), (10e6, 70e6, 3), (70e6, 160e6, 4)]  # but kept the other three

    tells_apart(check, run(jobs, FOUR, "k8s-default"), run(jobs, FOUR, "k8s-default", preempt=False))


@claim("k8s-default", "of pods on two nodes the one of lower priority is evicted, though the other is newer")
def test_eviction_takes_the_lowest_priority() -> None:
    jobs = [job("low", seconds=100, priority=1), job("middle", seconds=100, at=1, priority=2)]
    jobs += [job("urgent", seconds=100, at=10, priority=5)]

    def check(result: Run) -> None:
        assert result.start("urgent") == 10
        assert (result.finish("middle"), result.finish("low")) == (101, 191)  # low waits from 10 to 101
        assert list(result.jobs.stops) == [1, 0, 0]

    two = cluster(nodes=2, gpus=1)
    tells_apart(check, run(jobs, two, "k8s-default"), run(jobs, two, "k8s-default", preempt=False))


@claim(
    "k8s-default", "pods wait by priority, then by time: one of higher priority that came later goes first"
)
def test_pods_wait_by_priority() -> None:
    jobs = [
        job("holder", seconds=10, priority=9),
        job("early", seconds=10, at=1),
        job("high", seconds=10, at=2, priority=5),
        job("late", seconds=10, at=3),
    ]

    def check(result: Run) -> None:
        assert [result.start(name) for name in ("high", "early", "late")] == [10, 20, 30]

    # Without eviction, by which a pod of higher priority would get its place even if it were tried later.
    tells_apart(check, run(jobs, ONE, "k8s-default", preempt=False), run(jobs, ONE, "fifo"))


@claim(
    "k8s-default",
    "a pod that fits no node waits 1 s, then 2, 4, 8 and never more than 10, though room is free",
)
def test_back_off_doubles_up_to_ten_seconds() -> None:
    """Whenever the pod is tried, a more urgent one has just come; between these the GPU is idle."""
    tries = [0, 1, 3, 7, 15, 25]
    jobs = [job(f"urgent{at}", seconds=0.5, at=at, priority=5) for at in tries]
    jobs += [job("pod", seconds=1)]

    def check(result: Run) -> None:
        assert result.start("pod") == 35

    tells_apart(check, run(jobs, ONE, "k8s-default"), run(jobs, ONE, "k8s-default", backoff=0.0))


def test_back_off_delays_the_retry() -> None:
    jobs = [job("holder", gpus=4, seconds=1.2), job("one", at=0.1, seconds=1), job("two", at=0.9, seconds=1)]
    result = run(jobs, FOUR, "k8s-default", backoff=1.0)
    assert result.start("one") == 1.2  # failed at 0.1, back-off over at 1.1
    assert result.start("two") == 1.9  # failed at 0.9: room at 1.2, but its back-off ends at 1.9
