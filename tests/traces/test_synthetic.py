"""Generated traces look like what they are named for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.traces import recalibrate

from dovetail.model.errors import BadOption, UnknownName
from dovetail.model.units import SECOND, WHOLE
from dovetail.traces import GENERATORS, describe, generate, load_trace, write_csv
from dovetail.traces.calibration import ITP, PHILLY
from dovetail.traces.trace import Trace


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    """With so many jobs that nothing has to be changed for the load."""
    made = {like: generate(like, jobs=60_000, gpus=1_024, load=0.1, seed=3) for like in GENERATORS}
    assert [len(trace.notes) for trace in made.values()] == [1] * len(made)
    return made


# Mean and median duration (s), mean GPUs, share of jobs on at most one GPU, GPU-seconds a job. Of the shipped
# traces for philly and itp; of published summaries for the rest, but for the share, which is our own choice
# there (calibration.py), and is held here only against change. pai has no published GPU time.
@pytest.mark.parametrize(
    ("like", "mean", "median", "gpus", "single", "service"),
    [
        ("philly", 13_136, 1_144, 1.304, 0.932, 42_811),
        ("itp", 18_722, 10_537, 2.137, 0.832, 84_754),
        ("helios-venus", 13_041, 204, 6.736, 0.55, 98_527),
        ("helios-saturn", 5_253, 124, 4.01, 0.60, 39_566),
        ("acme-seren", 1_414, 122, 5.68, 0.65, 32_404),
        ("pai", 4_787, 481, 0.683, 0.98, None),
    ],
)
def test_generated_jobs_have_the_figures_they_were_fitted_to(
    traces: dict[str, Trace],
    *,
    like: str,
    mean: float,
    median: float,
    gpus: float,
    single: float,
    service: float | None,
) -> None:
    """Medians to 5 %, sizes to 10 %, means to 15 %, GPU time to 25 %: tails this heavy average slowly."""
    told = describe(traces[like])
    jobs = traces[like].jobs
    assert told.durations[0.5] / SECOND == pytest.approx(median, rel=0.05)
    assert told.mean_duration / SECOND == pytest.approx(mean, rel=0.15)
    assert sum(job.shape.load for job in jobs) / WHOLE / len(jobs) == pytest.approx(gpus, rel=0.1)
    assert sum(job.shape.load <= WHOLE for job in jobs) / len(jobs) == pytest.approx(single, abs=0.01)
    if service is not None:
        assert told.gpu_hours * 3600 / told.jobs == pytest.approx(service, rel=0.25)


def test_one_gpu_jobs_hold_little_of_the_gpu_time(traces: dict[str, Trace]) -> None:
    """What the shares were chosen for; the bounds are ours."""
    for like, least, most in (
        ("helios-venus", 0.03, 0.12),
        ("helios-saturn", 0.03, 0.12),
        ("acme-seren", 0.0, 0.03),
    ):
        jobs = traces[like].jobs
        single = sum(job.work for job in jobs if job.shape.gpus == 1)
        assert least <= single / sum(job.work * job.shape.gpus for job in jobs) <= most


def test_pai_shares_gpus(traces: dict[str, Trace]) -> None:
    loads = sorted(job.shape.load for job in traces["pai"].jobs)
    assert (loads[len(loads) // 2], loads[-1]) == (500, 8_000)


@pytest.mark.parametrize("like", GENERATORS)
def test_the_jobs_of_a_small_cluster_fit(like: str) -> None:
    small = generate(like, jobs=2_000, gpus=16, load=0.5, seed=1)
    assert max(job.shape.gpus for job in small.jobs) <= 16


def test_the_same_seed_gives_the_same_jobs() -> None:
    first, again = (generate("philly", 1_000, 64, 0.9, seed=7) for _ in range(2))
    assert first == again
    assert generate("philly", 1_000, 64, 0.9, seed=8).jobs != first.jobs


def test_arrivals_keep_the_rhythm_of_the_day(traces: dict[str, Trace]) -> None:
    jobs = traces["helios-venus"].jobs
    hours = [job.arrived_at // SECOND // 3600 % 24 for job in jobs]
    night, afternoon = (sum(hour in span for hour in hours) for span in (range(3, 6), range(14, 17)))
    assert afternoon > 3 * night


def test_users_are_zipfian(traces: dict[str, Trace]) -> None:
    jobs = [job for job in traces["philly"].jobs if job.tenant == "6214e9"]
    first, second = (sum(job.user == f"6214e9-u{rank}" for job in jobs) for rank in (0, 1))
    assert first / second == pytest.approx(2, rel=0.1)


def test_a_generated_trace_reads_back(tmp_path: Path) -> None:
    for like in ("philly", "pai"):
        trace = generate(like, 500, 64, 0.9, seed=1)
        write_csv(trace.jobs, tmp_path / "made.csv")
        assert load_trace(tmp_path / "made.csv").jobs == trace.jobs
    assert len(generate("philly", 1, 1, 0.9).jobs) == 1


def test_invalid_arguments_of_the_generator() -> None:
    with pytest.raises(UnknownName, match="no generator is named 'phily'; did you mean philly"):
        generate("phily", 1, 1, 1)
    for jobs, gpus, load in ((0, 1, 0.9), (1, 0, 0.9), (1, 1, 0.0), (1, 1, float("nan"))):
        with pytest.raises(BadOption, match="cannot generate"):
            generate("philly", jobs, gpus, load)


def test_the_tables_come_from_the_shipped_traces() -> None:
    for made, found in ((PHILLY, recalibrate.philly()), (ITP, recalibrate.itp())):
        mix = {name: {size // WHOLE: n for size, n in sizes.items()} for name, sizes in made.mix.items()}
        assert mix == found["mix"]
        assert made.quantiles == found["quantiles"]
        assert (made.hours, made.days) == (found["hours"], found["days"])
