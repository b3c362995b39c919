"""The reference policies on two worked examples that a reader can check by hand."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.sim.run import Run
from dovetail.testing.build import cluster, job, run
from dovetail.testing.claims import claim, tells_apart

EIGHT = cluster(nodes=1, gpus=8)
TWO = cluster(nodes=1, gpus=2)

FIVE_RESEARCHERS = [
    job("Alice", gpus=4, hours=6),
    job("Bob", gpus=2, hours=1),
    job("Carol", gpus=1, hours=0.5),
    job("Dave", gpus=2, hours=3),
    job("Eve", gpus=1, hours=0.25),
]

FOUR_JOBS = [
    job("0", seconds=30, at=0, priority=3),
    job("1", seconds=10, at=0, priority=1),
    job("2", seconds=25, at=1, priority=2),
    job("3", seconds=40, at=4, priority=4),
]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@claim("fifo", "no job overtakes another: Eve's job waits an hour behind Dave's though a GPU is free for it")
def test_strict_fifo_blocks_behind_its_head() -> None:
    def check(result: Run) -> None:
        assert [result.start(j.id) / 3600 for j in FIVE_RESEARCHERS] == [0, 0, 0, 0.5, 1.0]
        assert mean(result.jct()) / 3600 == 2.45

    tells_apart(
        check, run(FIVE_RESEARCHERS, EIGHT, "fifo"), run(FIVE_RESEARCHERS, EIGHT, "fifo", discipline="skip")
    )


@pytest.mark.parametrize(("policy", "options"), [("fifo", {"discipline": "skip"}), ("backfill", {})])
def test_skipping_lets_eve_pass(policy: str, options: dict[str, Any]) -> None:
    result = run(FIVE_RESEARCHERS, EIGHT, policy, **options)
    assert result.start("Eve") == 0
    assert result.start("Dave") == 1800
    assert mean(result.jct()) / 3600 == 2.25


@claim("sjf", "the longest job waits for the shorter ones: Alice's job starts last, after half an hour")
def test_sjf_lets_the_longest_wait() -> None:
    def check(result: Run) -> None:
        assert result.start("Alice") == 1800
        assert result.finish("Alice") == 6.5 * 3600

    tells_apart(check, run(FIVE_RESEARCHERS, EIGHT, "sjf"), run(FIVE_RESEARCHERS, EIGHT, "fifo"))


@pytest.mark.parametrize(
    ("policy", "options", "jcts", "mean_jct", "makespan", "busy"),
    [
        ("fifo", {}, [30, 10, 34, 66], 35, 70, 105 / 140),
        ("sjf", {}, [30, 10, 34, 66], 35, 70, 105 / 140),
        ("srtf", {}, [39, 10, 25, 62], 34, 66, 105 / 132),
        ("priority", {"higher_is": "larger"}, [30, 53, 51, 40], 43.5, 53, 105 / 106),
        ("priority", {"higher_is": "smaller"}, [39, 10, 25, 62], 34, 66, 105 / 132),
        ("priority", {"higher_is": "larger", "preempt": False}, [30, 10, 54, 46], 35, 55, 105 / 110),
        ("priority", {"higher_is": "smaller", "preempt": False}, [30, 10, 34, 66], 35, 70, 105 / 140),
    ],
)
def test_four_jobs_on_two_gpus(
    *, policy: str, options: dict[str, Any], jcts: list[float], mean_jct: float, makespan: float, busy: float
) -> None:
    result = run(FOUR_JOBS, TWO, policy, **options)
    assert result.jct() == jcts
    assert mean(result.jct()) == mean_jct
    assert result.makespan == makespan * 1e6
    assert result.utilization == pytest.approx(busy)


@claim("srtf", "a shorter new job preempts a longer one, and the mean completion time is the least possible")
def test_srtf_preempts_the_longer_job() -> None:
    def check(result: Run) -> None:
        assert mean(result.jct()) == 34
        assert result.preemptions == 1

    tells_apart(check, run(FOUR_JOBS, TWO, "srtf"), run(FOUR_JOBS, TWO, "sjf"))


@claim("srsf", "time x GPUs decides: one GPU for 100 s goes before eight for 50 s")
def test_srsf_counts_gpus() -> None:
    jobs = [
        job("blocker", gpus=8, seconds=1),
        job("wide", gpus=8, seconds=50),
        job("long", gpus=1, seconds=100),
    ]

    def check(result: Run) -> None:
        assert result.start("long") < result.start("wide")

    tells_apart(check, run(jobs, EIGHT, "srsf"), run(jobs, EIGHT, "srtf"))


@claim(
    "priority", "with aging a job of the lowest priority still runs under an endless stream of higher ones"
)
def test_aging_ends_starvation() -> None:
    stream = [job(f"high{i}", seconds=100, at=90 * i, priority=10) for i in range(200)]
    jobs = [*stream, job("low", seconds=50, at=10, priority=0)]
    horizon = 90 * 200.0

    def check(result: Run) -> None:
        assert result.finish("low") < horizon

    one = cluster(nodes=1, gpus=1)
    aged = run(jobs, one, "priority", aging=20.0, until=horizon)
    tells_apart(check, aged, run(jobs, one, "priority", aging=0.0, until=horizon))
