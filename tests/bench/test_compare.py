"""Seeds, intervals, and the best policies."""

from __future__ import annotations

import pytest

from dovetail.bench.compare import COLUMNS, Comparison, compared, interval
from dovetail.bench.policy_choice import PolicyChoice
from dovetail.bench.resample import Generated, Given, resampled
from dovetail.model.errors import InputError
from dovetail.model.units import DAY, HOUR
from dovetail.testing.build import cluster, job
from dovetail.traces import Trace

MEAN = COLUMNS[0]
DAYS = 28
JOBS = [
    job(f"{day}.{n}", minutes=30, at=86_400 * day + 3_600 * n, deadline=86_400 * day + 36_000)
    for day in range(DAYS)
    for n in range(3 if day % 7 < 5 else 1)
]


def test_seed_0_is_the_trace_itself() -> None:
    assert resampled(JOBS, 0) is JOBS


def test_other_seeds_draw_whole_days() -> None:
    made = resampled(JOBS, 1)
    assert made == resampled(JOBS, 1) != resampled(JOBS, 2)
    assert len({j.id for j in made}) == len(made)
    assert [j.arrived_at for j in made] == sorted(j.arrived_at for j in made)
    for j in made:
        day, at = divmod(j.arrived_at, DAY)
        origin, n = (int(part) for part in j.id.split("+")[0].split("."))
        assert int(j.id.split("+")[1]) == day
        assert origin % 7 == day % 7, "a weekday is drawn among its like"
        assert at == n * HOUR
        assert j.deadline is not None
        assert j.deadline - j.arrived_at == 10 * HOUR - n * HOUR


def test_short_traces_are_cut_finer_and_bursts_drawn_by_job() -> None:
    short = [job(str(n), minutes=5, at=600 * n) for n in range(50)]
    made = resampled(short, 3)
    assert made
    assert made[-1].arrived_at <= short[-1].arrived_at + 600 * 10**6
    burst = [job(str(n), minutes=5) for n in range(20)]
    drawn = resampled(burst, 3)
    assert len(drawn) == 20
    assert {j.arrived_at for j in drawn} == {0}
    assert resampled([job("only", minutes=5)], 9)[0].work == 300 * 10**6


def test_a_generated_trace_is_generated_for_each_seed() -> None:
    source = Generated("philly", 20, 16, 0.5)
    assert source.jobs(0) == source.jobs(0) != source.jobs(1)


def test_the_interval_is_students() -> None:
    found = interval([10.0, 12.0, 14.0])
    assert found.mean == 12
    assert found.half == pytest.approx(4.303 * 2 / 3**0.5)
    assert interval([5.0]).half is None
    assert interval([1.0, 2.0] * 50).half == pytest.approx(1.984 * 0.5025 / 10, rel=0.01)


def comparison(seeds: int = 1, *policies: str) -> Comparison:
    small = [job("long", hours=10), *(job(f"s{n}", hours=1, at=60 * n) for n in range(1, 5))]
    return compared(
        Given(Trace("small", small)),
        cluster(nodes=1, gpus=1),
        [PolicyChoice(policy) for policy in policies or ("fifo", "srtf")],
        seeds=seeds,
        workers=1,
    )


def test_the_best_is_marked_and_only_if_there_is_one() -> None:
    found = comparison()
    assert set(found.best(MEAN)) == {"srtf"}
    utilization = next(column for column in COLUMNS if column.key == "utilization")
    assert found.best(utilization) == frozenset(), "all are equal"
    assert comparison(1, "fifo").best(MEAN) == frozenset()


def test_paired_differences_are_significant_where_intervals_overlap() -> None:
    """Traces differ a lot, policies little but always: seed by seed the gap is sure."""
    from dataclasses import replace

    found = comparison(3)
    first = found.results["fifo"][0]

    def with_mean(label: str, mean: float) -> tuple[object, ...]:
        metrics = first.metrics
        return (replace(first, label=label, metrics=replace(metrics, jct=replace(metrics.jct, mean=mean))),)

    def grid(**means: list[float]) -> Comparison:
        results = {
            label: tuple(with_mean(label, mean)[0] for mean in values) for label, values in means.items()
        }
        return replace(found, labels=tuple(means), results=results)  # type: ignore[arg-type]

    sure = grid(a=[10.0, 100.0, 1000.0], b=[11.0, 101.5, 1001.0])
    assert [set(sure.best(MEAN)), set(sure.level(MEAN))] == [{"a"}, set()]
    unsure = grid(a=[10.0, 100.0, 1000.0], b=[50.0, 90.0, 1020.0])
    assert [set(unsure.best(MEAN)), set(unsure.level(MEAN))] == [{"a"}, {"b"}]


def test_progress_is_reported_for_each_run() -> None:
    told: list[tuple[str, int, float]] = []
    compared(
        Given(Trace("small", [job("a", hours=1)])),
        cluster(nodes=1, gpus=1),
        [PolicyChoice("fifo")],
        workers=1,
        progress=lambda label, seed, share: told.append((label, seed, share)),
    )
    assert told[0] == ("fifo", 0, 0.0)
    assert told[-1] == ("fifo", 0, 1.0)


def test_a_failed_worker_process_is_reported() -> None:
    class Broken:
        name, varies = "broken", ""

        def jobs(self, seed: int) -> list[object]:
            raise InputError(f"no trace for seed {seed}")

    with pytest.raises(InputError, match="no trace for seed 0"):
        compared(Broken(), cluster(nodes=1, gpus=1), [PolicyChoice("fifo"), PolicyChoice("sjf")], workers=1)  # type: ignore[arg-type]
