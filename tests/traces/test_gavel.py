"""Gavel's traces with its throughputs: durations, where a job can run, and what travels on from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.golden.gavel_runs import trace

from dovetail.core.journal import job_from_json, job_to_json
from dovetail.model.errors import TraceError
from dovetail.model.job import Profile
from dovetail.model.units import SECOND
from dovetail.traces import load_trace, write_jsonl
from dovetail.traces.profiles import load_throughputs

MULTI = trace("pub_multi_s42_n120")
LARGE = "ResNet-50 (batch size 128)"


def profile_of(model: str, **options: Any) -> Profile:
    """Of a job with one GPU."""
    jobs = load_trace(trace("pub_single_s7_n100"), throughputs="gavel", **options).jobs
    job = next(job for job in jobs if job.model == model)
    assert job.traits.profile is not None
    return job.traits.profile


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        ("pub_multi_s42_n120", 120),
        ("pub_shipped_max_min_fairness_n96", 96),
        ("pub_shipped_minimize_makespan_n100", 100),
        ("pub_shipped_small_test_n20", 20),
        ("pub_single_s7_n100", 100),
    ],
)
def test_the_golden_traces(name: str, jobs: int) -> None:
    table = load_throughputs("gavel")
    read = load_trace(trace(name), throughputs="gavel")
    assert len(read.jobs) == jobs
    assert read.notes == ("durations are those on V100",)
    for job in read.jobs:
        profile = job.traits.profile
        assert profile is not None
        assert profile.pace == table.single(job.model, job.shape.gpus, "V100")
        assert profile.speeds["V100"] == 1.0
        steps = job.work / SECOND * profile.pace
        assert steps == pytest.approx(round(steps), abs=0.01)  # whole steps


def test_a_job_stays_off_types_that_cannot_hold_it() -> None:
    jobs = load_trace(MULTI, throughputs="gavel", types=["V100", "P100", "K80"]).jobs
    bound = {(job.model, job.shape.gpus): job.shape.types for job in jobs if job.shape.types}
    assert set(bound) <= {(LARGE, gpus) for gpus in (2, 4, 8)}
    assert set(bound.values()) == {("V100", "P100")}
    for job in jobs:
        profile = job.traits.profile
        assert profile is not None
        assert {kind for kind, speed in profile.speeds.items() if not speed} == (
            {"K80"} if job.shape.types else set()
        )


def test_what_a_split_costs_is_as_measured_on_each_type() -> None:
    speeds, worst = load_throughputs("gavel"), dict[str, float]()
    for job in load_trace(MULTI, throughputs="gavel").jobs:
        profile, gpus = job.traits.profile, job.shape.gpus
        assert profile is not None
        for kind in speeds.types:
            together = speeds.single(job.model, gpus, kind)
            apart = speeds.single(job.model, gpus, kind, consolidated=False)
            known = gpus > 1 and together and apart
            assert profile.split_on(kind) == (together / apart if known and together and apart else 1.0)
            worst[kind] = max(worst.get(kind, 0.0), profile.split_on(kind))
    assert worst["V100"] > 3 > worst["P100"] > 2 > worst["K80"]


def test_a_job_that_fits_no_type_of_the_cluster_asks_for_other_types() -> None:
    jobs = load_trace(MULTI, throughputs="gavel", types=["K80"]).jobs
    assert {job.shape.types for job in jobs} == {(), ("P100", "V100")}


def test_types_are_named_as_the_cluster_names_them() -> None:
    speeds = profile_of("A3C", types=["v100", "K80"]).speeds
    assert list(speeds) == ["v100", "K80", "P100"]
    assert speeds["v100"] == 1.0
    with pytest.raises(
        TraceError, match="the throughputs gavel: no GPU type 'A100' in it; found K80, P100, V100"
    ):
        load_trace(MULTI, throughputs="gavel", types=["V100", "A100"])


def test_the_reference_is_v100_unless_given() -> None:
    v100, k80 = profile_of("A3C"), profile_of("A3C", reference="k80")
    assert k80.pace == pytest.approx(v100.pace * v100.speeds["K80"])
    assert k80.speeds["V100"] == pytest.approx(1 / v100.speeds["K80"])


def test_without_v100_the_first_type_is_the_reference(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({"h100": {"('a', 2)": {"null": 4}}, "a100": {}}))
    (tmp_path / "mine.trace").write_text("a\trun\tdir\t-n\t1\t4000\t2\t1\t-1\t0\n")
    read = load_trace(tmp_path / "mine.trace", throughputs=tmp_path / "mine.json")
    assert read.jobs[0].work == 1_000 * SECOND
    assert read.jobs[0].shape.types == ("H100",)  # it was not measured on the other type
    assert read.notes == ("durations are those on H100",)
    (tmp_path / "mine.trace").write_text("b\trun\tdir\t-n\t1\t4000\t2\t1\t-1\t0\n")
    with pytest.raises(
        TraceError, match=r"mine.trace, line 1: no throughput of 'b' on 2 H100 in .*mine.json"
    ):
        load_trace(tmp_path / "mine.trace", throughputs=tmp_path / "mine.json")


def test_the_pace_is_passed_on(tmp_path: Path) -> None:
    jobs = load_trace(MULTI, throughputs="gavel").jobs
    write_jsonl(jobs, tmp_path / "jobs.jsonl")
    assert load_trace(tmp_path / "jobs.jsonl").jobs == jobs
    assert [job_from_json(json.loads(json.dumps(job_to_json(job)))) for job in jobs] == jobs


def test_a_job_knows_its_speed_beside_the_other_models_of_its_trace() -> None:
    table = load_throughputs("gavel")
    jobs = load_trace(MULTI, throughputs="gavel").jobs
    models = {(job.model, job.shape.gpus) for job in jobs}
    met = 0
    for job in jobs:
        profile = job.traits.profile
        assert profile is not None
        for kind, measured in profile.beside.items():
            assert {(other, job.shape.gpus) for other in measured} <= models
            for other, speed in measured.items():
                pair = table.pair(job.model, other, job.shape.gpus, kind)
                assert pair is not None
                assert speed * profile.pace == pytest.approx(pair[0])
                met += 1
    assert met > 1_000
