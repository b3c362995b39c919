"""Two-level offers: what they are bad at, and the remedy."""

from __future__ import annotations

import pytest

from dovetail.core.core import Core, Step
from dovetail.mechanisms.fair.dominant_share import Holdings, Vector
from dovetail.model.cluster import Tenant
from dovetail.policies.classic import fifo
from dovetail.policies.drf import drf
from dovetail.sim.run import Run
from dovetail.testing.build import Shape, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

TWO_NODES = cluster(nodes=2, gpus=8)
# One GPU for 160 s every 8 s: 20 GPUs' worth on 16, so something of B's is always waiting.
STREAM = [job(f"b{i}", seconds=160, at=8 * i, tenant="B") for i in range(500)]
WIDE = job("a", gpus=8, seconds=600, at=400, tenant="A")
HORIZON = 4_000.0  # while the stream lasts


def without_weight(holdings: Holdings, name: str) -> float:
    most = [part / whole for part, whole in zip(holdings.of(name), holdings.total, strict=True) if whole]
    return max(most, default=0.0)


def gpus_alone(amount: Vector, total: Vector) -> float:
    return amount[0] / total[0] if total[0] else 0.0


SHARES = "dovetail.mechanisms.fair.dominant_share"
MUTANTS = (
    mutant(
        "mesos-drf",
        "the lowest share is offered first",
        "frameworks are offered by name",
        killed_by="test_lowest_share_first",
        replace={f"{SHARES}:Holdings.dominant": lambda holdings, name: 0.0},
    ),
    mutant(
        "mesos-drf",
        "the lowest share is offered first",
        "the highest share is offered first",
        killed_by="test_lowest_share_first",
        replace={f"{SHARES}:Holdings.dominant": lambda holdings, name: -without_weight(holdings, name)},
    ),
    mutant(
        "mesos-drf",
        "the dominant resource",
        "GPUs alone count",
        killed_by="test_dominant_share_of_cpu",
        replace={f"{SHARES}:dominant": gpus_alone},
    ),
    mutant(
        "mesos-drf",
        "weights",
        "all frameworks have the same weight",
        killed_by="test_weighted_share",
        replace={f"{SHARES}:Holdings.dominant": without_weight},
    ),
    mutant(
        "mesos-drf",
        "offers to one framework at a time",
        "the master starts jobs of all frameworks itself",
        killed_by="test_offers_are_exclusive_and_answered_a_round_later",
        factory=lambda **_: drf(),
    ),
    mutant(
        "mesos-drf",
        "the master does not know the jobs",
        "the master waits for room for the first job",
        killed_by="test_wide_job_starves_without_reservation",
        factory=lambda **_: fifo(),
    ),
    mutant(
        "mesos-drf",
        "declined offers",
        "an offer is repeated at once",
        killed_by="test_declined_offer_is_not_repeated",
        options={"decline": 0.0},
    ),
    mutant(
        "mesos-drf",
        "reservations",
        "all nodes are offered to all frameworks",
        killed_by="test_wide_job_starves_without_reservation",
        options={"reserve": None},
    ),
)


@claim(
    "mesos-drf",
    "a framework that needs 8 GPUs at once starves beside single-GPU jobs, unless some are reserved",
)
def test_wide_job_starves_without_reservation() -> None:
    open_to_all = run([*STREAM, WIDE], TWO_NODES, "mesos-drf", until=HORIZON)
    assert open_to_all.start("a") > HORIZON

    def check(result: Run) -> None:
        assert result.start("a") <= WIDE.arrived_at / 1e6 + 2 + 160  # at the latest when its node is empty
        assert result.finish("a") < HORIZON

    reserved = run([*STREAM, WIDE], TWO_NODES, "mesos-drf", reserve={"A": 8}, until=HORIZON)
    tells_apart(check, reserved, open_to_all)


def test_the_starved_job_runs_when_the_stream_ends() -> None:
    result = run([*STREAM, WIDE], TWO_NODES, "mesos-drf")
    assert result.finished == len(STREAM) + 1
    assert result.start("a") > STREAM[-1].arrived_at / 1e6


@pytest.mark.parametrize(("holder", "newcomer"), [("a", "b"), ("b", "a")])
@claim(
    "mesos-drf",
    "the framework that holds least is offered first: a new one gets every freed GPU until it is level",
)
def test_lowest_share_first(holder: str, newcomer: str) -> None:
    """Whichever of the two names comes first in the alphabet."""
    old = [job(f"old{i}", seconds=100 + 10 * i, tenant=holder) for i in range(16)]
    more = [job(f"more{i}", seconds=500, at=1, tenant=holder) for i in range(8)]
    new = [job(f"new{i}", seconds=500, at=2, tenant=newcomer) for i in range(8)]

    def check(result: Run) -> None:
        assert max(result.start(f"new{i}") for i in range(4)) < min(
            result.start(f"more{i}") for i in range(8)
        )

    jobs, eight = old + more + new, cluster(nodes=1, gpus=8)
    tells_apart(check, run(jobs, eight, "mesos-drf"), run(jobs, eight, "fifo"))


def started_before(result: Run, prefix: str, seconds: float) -> int:
    jobs = result.jobs
    return sum(
        name.startswith(prefix) and 0 <= start < seconds * 1e6
        for name, start in zip(jobs.id, jobs.start, strict=True)
    )


# GPUs fall free one by one, 10 s apart, from 100 to 170 s.
ENDS = tuple(range(100, 180, 10))


@claim("mesos-drf", "weights scale the shares: with weight 3 against 1 a framework gets six GPUs of eight")
def test_weighted_share() -> None:
    jobs = [job(f"first{i}", seconds=end, tenant="light") for i, end in enumerate(ENDS)]
    jobs += [job(f"light{i}", seconds=9_000, at=1, tenant="light") for i in range(8)]
    jobs += [job(f"heavy{i}", seconds=9_000, at=1, tenant="heavy") for i in range(8)]

    def check(result: Run) -> None:
        assert [started_before(result, name, 200) for name in ("heavy", "light")] == [6, 2]

    weighted = cluster(nodes=1, gpus=8, tenants=[Tenant("heavy", weight=3.0), Tenant("light")])
    tells_apart(check, run(jobs, weighted, "mesos-drf"), run(jobs, cluster(nodes=1, gpus=8), "mesos-drf"))


@claim(
    "mesos-drf", "the dominant share counts: frameworks with jobs of 6 cores and of 1 get three GPUs and five"
)
def test_dominant_share_of_cpu() -> None:
    jobs = [job(f"first{i}", shape=Shape(cpus=1_000), seconds=end, tenant="x") for i, end in enumerate(ENDS)]
    jobs += [job(f"cpu{i}", shape=Shape(cpus=6_000), seconds=9_000, at=1, tenant="cpu") for i in range(8)]
    jobs += [job(f"gpu{i}", shape=Shape(cpus=1_000), seconds=9_000, at=1, tenant="gpu") for i in range(8)]

    def check(result: Run) -> None:  # 18 of 32 cores against 5 of 8 GPUs: 0.56 and 0.63
        assert [started_before(result, name, 200) for name in ("cpu", "gpu")] == [3, 5]

    boundless = run(jobs, cluster(nodes=1, gpus=8), "mesos-drf")  # where only GPUs count
    tells_apart(check, run(jobs, cluster(nodes=1, gpus=8, cpus=32_000), "mesos-drf"), boundless)


@claim("mesos-drf", "a framework that declined an offer is not offered the same again for 5 s")
def test_declined_offer_is_not_repeated() -> None:
    jobs = [
        job("holder", gpus=4, seconds=100, tenant="B"),
        job("wide", gpus=8, seconds=100, at=2, tenant="A"),  # offered four GPUs at 2 s, declines at 3 s
        job("small", seconds=100, at=3.5, tenant="A"),
    ]

    def check(result: Run) -> None:
        assert result.start("small") == 9  # offered at 8 s, accepted a round later

    eight = cluster(nodes=1, gpus=8)
    tells_apart(check, run(jobs, eight, "mesos-drf"), run(jobs, eight, "mesos-drf", decline=0.0))


@claim(
    "mesos-drf",
    "an offer holds all that is free: of two frameworks the second waits for the answer of the first",
)
def test_offers_are_exclusive_and_answered_a_round_later() -> None:
    held: list[tuple[int, list[str]]] = []
    eight = cluster(nodes=1, gpus=8)

    def watch(core: Core, step: Step) -> None:
        held.append((step.now, sorted(core.holds)))

    jobs = [job("a", gpus=4, seconds=10, tenant="A"), job("b", gpus=4, seconds=10, tenant="B")]

    def check(result: Run) -> None:
        assert (result.start("a"), result.start("b")) == (1, 2)

    tells_apart(check, run(jobs, eight, "mesos-drf", on_step=watch), run(jobs, eight, "drf"))
    assert held[0] == (0, ["offer 1 to A"])
    assert held[1] == (1_000_000, ["offer 2 to B"])
    assert held[-1][1] == []
