"""Volcano: gangs, queues by weight, and pods beyond a gang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dovetail.mechanisms.fair.dominant_share import Vector
from dovetail.mechanisms.fair.water_filling import water_filled
from dovetail.mechanisms.order.keys import arrival
from dovetail.model.cluster import Cluster, Tenant, parse_cluster
from dovetail.model.grant import devices_of, nodes_of
from dovetail.policies.kubernetes import k8s_default
from dovetail.policies.volcano import Sessions, volcano
from dovetail.sim.run import Run
from dovetail.testing.build import Profile, Shape, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

FOUR = cluster(nodes=1, gpus=4)
EIGHT = cluster(nodes=1, gpus=8, tenants=[Tenant("A"), Tenant("B")])


def without_weights(amount: float, wants: Mapping[str, float], weights: object) -> dict[str, float]:
    return water_filled(amount, wants, {})


def equal_parts(amount: float, wants: Mapping[str, float], weights: object) -> dict[str, float]:
    return dict.fromkeys(wants, amount / max(len(wants), 1))


def gpus_alone(amount: Vector, total: Vector) -> float:
    return amount[0] / total[0] if total[0] else 0.0


def by_arrival(**options: Any) -> Sessions:
    made = volcano(**options)
    assert isinstance(made, Sessions)
    return replace(made, order=arrival)


VOLCANO = "dovetail.policies.volcano"
MUTANTS = (
    mutant(
        "volcano",
        "gangs",
        "pods are bound one by one",
        killed_by="test_gangs_end_the_deadlock",
        factory=lambda **_: k8s_default(),
    ),
    mutant(
        "volcano",
        "gangs",
        "a gang is all pods, whatever the least number",
        killed_by="test_elastic_gang_grows",
        replace={f"{VOLCANO}:least_tasks": lambda job: job.shape.tasks},
    ),
    mutant(
        "volcano",
        "growth",
        "a job keeps the pods it started with",
        killed_by="test_elastic_gang_grows",
        replace={f"{VOLCANO}:_Session.grow": lambda self: None},
    ),
    mutant(
        "volcano",
        "growth by dominant share",
        "the first to arrive grows first",
        killed_by="test_growth_by_dominant_share",
        replace={f"{VOLCANO}:dominant": lambda amount, total: 0.0},
    ),
    mutant(
        "volcano",
        "growth by dominant share",
        "GPUs alone count",
        killed_by="test_growth_by_dominant_share",
        replace={f"{VOLCANO}:dominant": gpus_alone},
    ),
    mutant(
        "volcano",
        "deserved shares",
        "all queues have the same weight",
        killed_by="test_queue_weights",
        replace={f"{VOLCANO}:water_filled": without_weights},
    ),
    mutant(
        "volcano",
        "deserved shares",
        "each queue deserves an equal part, whatever it asks for",
        killed_by="test_unused_share_goes_to_the_others",
        replace={f"{VOLCANO}:water_filled": equal_parts},
    ),
    mutant(
        "volcano",
        "deserved shares",
        "a queue beyond its share starts more",
        killed_by="test_queue_with_its_share_starts_nothing",
        replace={f"{VOLCANO}:_Session._overused": lambda self, queue: False},
    ),
    mutant(
        "volcano",
        "queue rank",
        "the first to arrive goes first, of any queue",
        killed_by="test_hungriest_queue_first",
        replace={f"{VOLCANO}:_Session._rank": lambda self, job: 0.0},
    ),
    mutant(
        "volcano",
        "queue rank",
        "queues go by name",
        killed_by="test_hungriest_queue_first",
        replace={f"{VOLCANO}:_Session._rank": lambda self, job: job.tenant},
    ),
    mutant(
        "volcano",
        "priority",
        "jobs of a queue go by arrival",
        killed_by="test_priority_inside_a_queue",
        factory=by_arrival,
    ),
    mutant(
        "volcano",
        "preemption",
        "no pod is evicted for a higher priority",
        killed_by="test_preemption_inside_a_queue",
        options={"preempt": False},
    ),
    mutant(
        "volcano",
        "reclaim",
        "no pod is evicted for another queue",
        killed_by="test_reclaim_takes_surplus_only",
        options={"reclaim": False},
    ),
    mutant(
        "volcano",
        "reclaim",
        "gangs are broken",
        killed_by="test_no_gang_is_broken",
        replace={f"{VOLCANO}:_Session._spare": lambda self, job: True},
    ),
    mutant(
        "volcano",
        "reclaim",
        "queues within their share lose pods too",
        killed_by="test_reclaim_spares_queues_within_their_share",
        replace={
            f"{VOLCANO}:_Session._queues_to_take_from": lambda self, job: set(self.deserved),
            f"{VOLCANO}:_Session._may_take": lambda self, job, victim: victim.tenant != job.tenant,
        },
    ),
    mutant(
        "volcano",
        "bin-packing",
        "pods are spread over the nodes",
        killed_by="test_packing_keeps_a_node_free",
        options={"score": "spread"},
    ),
    mutant(
        "volcano",
        "one GPU type",
        "pods of a job are on any types",
        killed_by="test_gang_is_on_one_gpu_type",
        options={"mixed_types": True},
    ),
    mutant(
        "volcano",
        "one GPU type",
        "a job grows on any type",
        killed_by="test_gang_is_on_one_gpu_type",
        replace={f"{VOLCANO}:of_type": lambda shape, kind: shape},
    ),
)


def types_of(result: Run, name: str) -> set[str]:
    """The GPU types that a job ever held."""
    nodes = result.cluster.nodes
    return {nodes[n].type.name for s in result.stretches if s.job == name for n in nodes_of(s.spots)}


def started_at_once(result: Run, prefix: str) -> int:
    jobs = result.jobs
    return sum(n.startswith(prefix) and s == 0 for n, s in zip(jobs.id, jobs.start, strict=True))


@claim("volcano", "a gang gets all its pods or none: one of the two runs, then the other")
def test_gangs_end_the_deadlock() -> None:
    gangs = [job("first", gpus=4, seconds=100), job("second", gpus=4, seconds=100)]

    def check(result: Run) -> None:
        assert result.stalled == []
        assert sorted(result.jct()) == [100, 200]

    tells_apart(check, run(gangs, FOUR, "volcano"), run(gangs, FOUR, "k8s-default"))


@claim("volcano", "with fewer pods than all a job starts early and grows as GPUs fall free")
def test_elastic_gang_grows() -> None:
    jobs = [
        job("holder", gpus=2, seconds=100),
        job("elastic", gpus=4, seconds=200, at=0.5, least=2, profile=Profile()),
    ]

    def check(result: Run) -> None:
        assert result.start("elastic") == 1  # the next session
        # Two pods of four for 99 s do 49.5 s of the work; four do the rest from 100 s on.
        assert result.finish("elastic") == pytest.approx(250.5)

    rigid = [jobs[0], job("elastic", gpus=4, seconds=200, at=0.5, profile=Profile())]
    tells_apart(check, run(jobs, FOUR, "volcano"), run(rigid, FOUR, "volcano"))


@claim("volcano", "elastic jobs grow to equal dominant shares: three pods of 4 cores, five of 1 core")
def test_growth_by_dominant_share() -> None:
    shapes = {"cpu": Shape(4, cpus=4_000), "gpu": Shape(4, cpus=1_000)}
    jobs = [
        job(name, shape=shape, seconds=100, least=1, most=8, profile=Profile())
        for name, shape in shapes.items()
    ]

    def check(result: Run) -> None:  # 12 of 20 cores against 5 of 8 GPUs: 0.6 and 0.63
        most = {
            name: max(devices_of(s.spots) for s in result.stretches if s.start == 0 and s.job == name)
            for name in shapes
        }
        assert most == {"cpu": 3, "gpu": 5}

    boundless = run(jobs, cluster(nodes=1, gpus=8), "volcano")  # where only GPUs count
    tells_apart(check, run(jobs, cluster(nodes=1, gpus=8, cpus=20_000), "volcano"), boundless)


@claim("volcano", "queues get what their weights deserve: six GPUs of eight for weight three against one")
def test_queue_weights() -> None:
    jobs = [job(f"{name}{i}", seconds=100, tenant=name) for i in range(8) for name in ("a", "b")]

    def check(result: Run) -> None:
        assert started_at_once(result, "a") == 6

    weighted = cluster(nodes=1, gpus=8, tenants=[Tenant("a", weight=3.0), Tenant("b")])
    tells_apart(check, run(jobs, weighted, "volcano"), run(jobs, cluster(nodes=1, gpus=8), "volcano"))


@claim("volcano", "a queue deserves no more than it asks for, and the others deserve the rest")
def test_unused_share_goes_to_the_others() -> None:
    jobs = [job(f"a{i}", seconds=100, tenant="A") for i in range(8)]
    jobs += [job("b", seconds=100, tenant="B")]

    def check(result: Run) -> None:
        assert (started_at_once(result, "a"), started_at_once(result, "b")) == (7, 1)

    halves = cluster(nodes=1, gpus=8, tenants=[Tenant("A", limit=4), Tenant("B", limit=4)])
    tells_apart(check, run(jobs, EIGHT, "volcano"), run(jobs, halves, "volcano"))


@claim(
    "volcano",
    "a queue that holds what it deserves starts nothing, so that a gang of another queue finds room",
)
def test_queue_with_its_share_starts_nothing() -> None:
    jobs = [job(f"a{i}", gpus=2, seconds=end, tenant="A") for i, end in enumerate((1_000, 1_000, 100))]
    jobs += [job("gang", gpus=4, seconds=100, at=20, tenant="B")]  # two GPUs are free, from 100 s on four
    jobs += [job("late", gpus=2, seconds=1_000, at=30, tenant="A")]

    def check(result: Run) -> None:
        assert (result.start("gang"), result.start("late")) == (100, 200)

    tells_apart(check, run(jobs, EIGHT, "volcano"), run(jobs, EIGHT, "fifo", discipline="skip"))


@claim(
    "volcano", "the queue with the smaller part of its deserved share goes first, though its job came later"
)
def test_hungriest_queue_first() -> None:
    jobs = [
        job("held", gpus=1, seconds=1_000, tenant="A"),  # half of what A deserves
        job("earlier", gpus=2, seconds=100, at=0.2, tenant="A"),
        job("hungry", gpus=3, seconds=100, at=0.4, tenant="B"),
    ]  # both queues are below their share, and only one of the two jobs fits beside the first

    def check(result: Run) -> None:
        assert (result.start("hungry"), result.start("earlier")) == (1, 101)

    four = cluster(nodes=1, gpus=4, tenants=[Tenant("A"), Tenant("B")])
    tells_apart(check, run(jobs, four, "volcano"), run(jobs, four, "fifo", discipline="skip"))


@claim("volcano", "inside a queue the job of higher priority goes first, though it came later")
def test_priority_inside_a_queue() -> None:
    jobs = [job("holder", gpus=4, seconds=100), job("low", gpus=4, seconds=100, at=1)]
    jobs += [job("high", gpus=4, seconds=100, at=2, priority=5)]

    def check(result: Run) -> None:
        assert (result.start("high"), result.start("low")) == (100, 200)

    tells_apart(check, run(jobs, FOUR, "volcano"), run(jobs, FOUR, "fifo"))


@claim("volcano", "pods beyond a gang are evicted for a job of higher priority in the same queue")
def test_preemption_inside_a_queue() -> None:
    jobs = [
        job("grown", gpus=4, seconds=400, least=2, profile=Profile()),
        job("equal", gpus=2, seconds=100, at=5),
        job("high", gpus=2, seconds=100, at=10, priority=5),
    ]

    def check(result: Run) -> None:
        assert result.start("high") == 10
        assert result.start("equal") == 110  # when the other ends: its own priority evicts no pod
        assert result.preemptions == 0

    tells_apart(check, run(jobs, FOUR, "volcano"), run(jobs, FOUR, "volcano", preempt=False))


@claim("volcano", "pods beyond a gang are evicted for a queue below its share; gangs are not broken")
def test_reclaim_takes_surplus_only() -> None:
    jobs = [
        job("grown", gpus=8, seconds=800, tenant="A", least=4, profile=Profile()),
        job("entitled", gpus=4, seconds=100, at=10, tenant="B"),
    ]

    def check(result: Run) -> None:
        assert result.start("entitled") == 10
        assert result.preemptions == 0
        assert result.finish("grown") == pytest.approx(850)  # half speed for 100 s

    tells_apart(check, run(jobs, EIGHT, "volcano"), run(jobs, EIGHT, "volcano", reclaim=False))


@claim("volcano", "no gang is broken for a queue below its share: the queue waits until the gang ends")
def test_no_gang_is_broken() -> None:
    jobs = [job("gang", gpus=6, seconds=100, tenant="A"), job("b", gpus=4, seconds=50, at=10, tenant="B")]

    def check(result: Run) -> None:
        assert (result.finish("gang"), result.start("b")) == (100, 100)

    quotas = cluster(
        nodes=1, gpus=8, tenants=[Tenant("all"), Tenant("A", "all", quota=4), Tenant("B", "all", quota=4)]
    )
    tells_apart(check, run(jobs, EIGHT, "volcano"), run(jobs, quotas, "kueue"))  # which evicts whole jobs


@claim("volcano", "a queue within its share loses no pod, though another queue below its share has no room")
def test_reclaim_spares_queues_within_their_share() -> None:
    jobs = [
        job("gang", gpus=5, seconds=100, tenant="C"),  # over the three GPUs that C deserves, but a gang
        job("within", gpus=3, seconds=300, at=1, tenant="A", least=1, profile=Profile()),
        job("b", gpus=2, seconds=100, at=10, tenant="B", priority=5),
    ]

    def check(result: Run) -> None:
        assert result.start("b") == 100
        assert result.finish("within") == 301

    three = cluster(nodes=1, gpus=8, tenants=[Tenant("A"), Tenant("B"), Tenant("C")])
    tells_apart(check, run(jobs, three, "volcano"), run(jobs, three, "priority"))


@claim("volcano", "two single pods share a node, so that a pod of four GPUs finds the other one empty")
def test_packing_keeps_a_node_free() -> None:
    jobs = [
        job("one", seconds=100),
        job("two", seconds=100),
        job("wide", shape=Shape(1, 4), seconds=100, at=1),
    ]

    def check(result: Run) -> None:
        assert result.start("wide") == 1

    two = cluster(nodes=2, gpus=4)
    tells_apart(check, run(jobs, two, "volcano"), run(jobs, two, "volcano", score="spread"))


@claim("volcano", "all pods of a job are on one GPU type, when it starts and when it grows")
def test_gang_is_on_one_gpu_type() -> None:
    jobs = [
        job("holder", gpus=2, seconds=100, types=["A100"]),
        job("gang", gpus=4, seconds=50, at=1),  # two A100 and four V100 are free
        job("elastic", gpus=4, seconds=100, at=2, least=2, profile=Profile()),  # two A100
    ]
    mixed: Cluster = parse_cluster("1x4:A100,1x4:V100")

    def check(result: Run) -> None:
        assert [types_of(result, name) for name in ("gang", "elastic")] == [{"V100"}, {"A100"}]
        # Two pods of four for 98 s do 49 s of the work; four do the rest once the holder's A100 are free.
        assert result.finish("elastic") == pytest.approx(151)

    tells_apart(check, run(jobs, mixed, "volcano"), run(jobs, mixed, "volcano", mixed_types=True))
