"""The reference policies on two worked examples that a reader can check by hand."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.mechanisms.order.keys import arrival, shortest
from dovetail.model.view import Order
from dovetail.policies.classic import fifo, sjf, srsf, srtf
from dovetail.sim.run import Run
from dovetail.testing.build import cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

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


WIDE_OR_LONG = [
    job("blocker", gpus=8, seconds=1),
    job("wide", gpus=8, seconds=50),
    job("long", gpus=1, seconds=100),
]

FIFO_KEYS = "dovetail.policies.classic:arrival"
MUTANTS = (
    mutant(
        "fifo",
        "no overtaking",
        "a job that does not fit is passed over",
        killed_by="test_strict_fifo_blocks_behind_its_head",
        options={"discipline": "skip"},
    ),
    mutant(
        "fifo",
        "order of arrival",
        "the shortest goes first",
        killed_by="test_strict_fifo_blocks_behind_its_head",
        replace={FIFO_KEYS: shortest},
    ),
    mutant(
        "fifo",
        "order of arrival",
        "the last to arrive goes first",
        killed_by="test_fifo_goes_by_arrival",
        replace={FIFO_KEYS: Order(lambda job, now: (-job.arrived_at,))},
    ),
    mutant(
        "sjf",
        "shortest first",
        "the first to arrive goes first",
        killed_by="test_sjf_lets_the_longest_wait",
        replace={"dovetail.policies.classic:shortest": arrival},
    ),
    mutant(
        "sjf",
        "the duration counts",
        "time x GPUs counts",
        killed_by="test_sjf_counts_time_alone",
        options={"by": "service"},
    ),
    mutant(
        "sjf",
        "no preemption",
        "shorter jobs preempt longer ones",
        killed_by="test_sjf_lets_a_running_job_end",
        options={"preempt": True},
    ),
    mutant(
        "srtf",
        "remaining time",
        "the declared duration counts",
        killed_by="test_srtf_counts_what_remains",
        factory=lambda **_: sjf(preempt=True),
    ),
    mutant(
        "srtf",
        "remaining time",
        "the remaining service counts",
        killed_by="test_srtf_counts_time_alone",
        factory=srsf,
    ),
    mutant(
        "srtf",
        "preemption",
        "running jobs are left alone",
        killed_by="test_srtf_preempts_the_longer_job",
        factory=lambda **_: sjf(),
    ),
    mutant(
        "srsf",
        "GPUs count",
        "the remaining time alone counts",
        killed_by="test_srsf_counts_gpus",
        factory=srtf,
    ),
    mutant(
        "srsf",
        "remaining service",
        "the declared service counts",
        killed_by="test_srsf_counts_what_remains",
        factory=lambda **_: sjf(by="service", preempt=True),
    ),
    mutant(
        "srsf",
        "preemption",
        "running jobs are left alone",
        killed_by="test_srsf_preempts",
        factory=lambda **_: sjf(by="service"),
    ),
    mutant(
        "priority",
        "order by priority",
        "the first to arrive goes first",
        killed_by="test_priority_goes_first",
        factory=lambda **_: fifo(discipline="skip"),
    ),
    mutant(
        "priority",
        "preemption",
        "running jobs are left alone",
        killed_by="test_priority_goes_first",
        options={"preempt": False},
    ),
    mutant(
        "priority",
        "aging",
        "a job that waits does not rise",
        killed_by="test_aging_ends_starvation",
        options={"aging": 0.0},
    ),
)


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


@claim(
    "fifo", "the order of arrival decides, not the length: a long job goes before a short one that came later"
)
def test_fifo_goes_by_arrival() -> None:
    jobs = [job("running", seconds=10), job("long", seconds=100, at=1), job("short", seconds=1, at=2)]

    def check(result: Run) -> None:
        assert (result.start("long"), result.start("short")) == (10, 110)

    one = cluster(nodes=1, gpus=1)
    tells_apart(check, run(jobs, one, "fifo"), run(jobs, one, "sjf"))


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


@claim("sjf", "time alone decides: eight GPUs for 50 s go before one for 100 s")
def test_sjf_counts_time_alone() -> None:
    def check(result: Run) -> None:
        assert result.start("wide") < result.start("long")

    tells_apart(check, run(WIDE_OR_LONG, EIGHT, "sjf"), run(WIDE_OR_LONG, EIGHT, "srsf"))


@claim("sjf", "a running job ends: a shorter one that comes later waits for it")
def test_sjf_lets_a_running_job_end() -> None:
    jobs = [job("old", seconds=100), job("new", seconds=1, at=10)]

    def check(result: Run) -> None:
        assert (result.finish("old"), result.finish("new")) == (100, 101)

    one = cluster(nodes=1, gpus=1)
    tells_apart(check, run(jobs, one, "sjf"), run(jobs, one, "srtf"))


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


@claim("srtf", "a job that is nearly done is not preempted for a shorter one: the remaining time counts")
def test_srtf_counts_what_remains() -> None:
    jobs = [job("old", seconds=100), job("new", seconds=20, at=90)]

    def check(result: Run) -> None:
        assert (result.finish("old"), result.finish("new")) == (100, 120)
        assert result.preemptions == 0

    one = cluster(nodes=1, gpus=1)
    tells_apart(check, run(jobs, one, "srtf"), run(jobs, one, "sjf", preempt=True))


@claim("srsf", "time x GPUs decides: one GPU for 100 s goes before eight for 50 s")
def test_srsf_counts_gpus() -> None:
    def check(result: Run) -> None:
        assert result.start("long") < result.start("wide")

    tells_apart(check, run(WIDE_OR_LONG, EIGHT, "srsf"), run(WIDE_OR_LONG, EIGHT, "srtf"))


@claim("srtf", "time alone decides: eight GPUs for 50 s go before one for 100 s")
def test_srtf_counts_time_alone() -> None:
    def check(result: Run) -> None:
        assert result.start("wide") < result.start("long")

    tells_apart(check, run(WIDE_OR_LONG, EIGHT, "srtf"), run(WIDE_OR_LONG, EIGHT, "srsf"))


@claim(
    "srsf", "the remaining service counts: a wide job that is nearly done is not preempted for a smaller one"
)
def test_srsf_counts_what_remains() -> None:
    jobs = [job("old", gpus=8, seconds=100), job("new", gpus=1, seconds=200, at=90)]

    def check(result: Run) -> None:  # 80 GPU-seconds remain of 800, and 200 are asked for
        assert (result.finish("old"), result.start("new")) == (100, 100)

    tells_apart(check, run(jobs, EIGHT, "srsf"), run(jobs, EIGHT, "sjf", by="service", preempt=True))


@claim("srsf", "a job with less service left preempts: 8 GPU-seconds do not wait for 800")
def test_srsf_preempts() -> None:
    jobs = [job("old", gpus=8, seconds=100), job("new", gpus=8, seconds=1, at=10)]

    def check(result: Run) -> None:
        assert result.finish("new") == 11

    tells_apart(check, run(jobs, EIGHT, "srsf"), run(jobs, EIGHT, "sjf", by="service"))


@claim("priority", "the job of higher priority goes first, whenever it arrived, and preempts the others")
def test_priority_goes_first() -> None:
    jobs = [job("low", seconds=100, priority=1), job("middle", seconds=10, at=1, priority=2)]
    jobs += [job("high", seconds=50, at=2, priority=3)]

    def check(result: Run) -> None:
        assert [result.finish(name) for name in ("high", "middle", "low")] == [52, 61, 160]

    one = cluster(nodes=1, gpus=1)
    tells_apart(check, run(jobs, one, "priority"), run(jobs, one, "fifo"))


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
