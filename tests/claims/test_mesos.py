"""Two-level offers: what they are bad at, and the remedy."""

from __future__ import annotations

from dovetail.core.core import Core, Step
from dovetail.sim.run import Run
from dovetail.testing.build import cluster, job, run
from dovetail.testing.claims import claim, tells_apart

TWO_NODES = cluster(nodes=2, gpus=8)
# One GPU for 160 s every 8 s: 20 GPUs' worth on 16, so something of B's is always waiting.
STREAM = [job(f"b{i}", seconds=160, at=8 * i, tenant="B") for i in range(500)]
WIDE = job("a", gpus=8, seconds=600, at=400, tenant="A")
HORIZON = 4_000.0  # while the stream lasts


@claim(
    "mesos-drf",
    "a framework that needs 8 GPUs at once starves beside single-GPU jobs, unless some are reserved",
)
def test_wide_job_starves_without_reservation() -> None:
    def check(result: Run) -> None:
        assert result.start("a") <= WIDE.arrived_at / 1e6 + 2 + 160  # at the latest when its node is empty
        assert result.finish("a") < HORIZON

    reserved = run([*STREAM, WIDE], TWO_NODES, "mesos-drf", reserve={"A": 8}, until=HORIZON)
    tells_apart(check, reserved, run([*STREAM, WIDE], TWO_NODES, "mesos-drf", until=HORIZON))


def test_the_starved_job_runs_when_the_stream_ends() -> None:
    result = run([*STREAM, WIDE], TWO_NODES, "mesos-drf")
    assert result.finished == len(STREAM) + 1
    assert result.start("a") > STREAM[-1].arrived_at / 1e6


@claim(
    "mesos-drf",
    "the framework that holds least is offered first: a new one gets every freed GPU until it is level",
)
def test_lowest_share_first() -> None:
    old = [job(f"old{i}", seconds=100 + 10 * i, tenant="old") for i in range(16)]
    more = [job(f"more{i}", seconds=500, at=1, tenant="old") for i in range(8)]
    new = [job(f"new{i}", seconds=500, at=2, tenant="new") for i in range(8)]

    def check(result: Run) -> None:
        assert max(result.start(f"new{i}") for i in range(4)) < min(
            result.start(f"more{i}") for i in range(8)
        )

    jobs, eight = old + more + new, cluster(nodes=1, gpus=8)
    tells_apart(check, run(jobs, eight, "mesos-drf"), run(jobs, eight, "fifo"))


def test_offers_are_exclusive_and_answered_a_round_later() -> None:
    held: list[tuple[int, list[str]]] = []

    def watch(core: Core, step: Step) -> None:
        held.append((step.now, sorted(core.holds)))

    jobs = [job("a", gpus=4, seconds=10, tenant="A"), job("b", gpus=4, seconds=10, tenant="B")]
    result = run(jobs, cluster(nodes=1, gpus=8), "mesos-drf", on_step=watch)
    assert (result.start("a"), result.start("b")) == (1, 2)
    assert held[0] == (0, ["offer 1 to A"])
    assert held[1] == (1_000_000, ["offer 2 to B"])
    assert held[-1][1] == []
