"""Every published format, read from a small sample of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.model.cluster import parse_cluster
from dovetail.model.errors import TraceError
from dovetail.model.estimate import task_range
from dovetail.model.job import Arch, Job, Kind, Role, Shape, Traits, gang
from dovetail.model.units import GIB, HOUR, MIB, MINUTE, SECOND
from dovetail.testing.build import run
from dovetail.traces import FORMATS, load_trace
from dovetail.traces.formats import sniffed

SAMPLES = Path(__file__).parent / "samples"


def jobs_of(name: str, **options: object) -> dict[str, Job]:
    trace = load_trace(SAMPLES / name, **options)  # type: ignore[arg-type]
    assert trace.jobs == sorted(trace.jobs, key=lambda job: job.arrived_at)
    return {job.id: job for job in trace.jobs}


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("own.csv", "csv"),
        ("own.jsonl", "jsonl"),
        ("philly.json", "philly-json"),
        ("philly.csv", "philly-csv"),
        ("itp.csv", "itp"),
        ("elasticflow.csv", "elasticflow"),
        ("elasticflow_sim.csv", "elasticflow"),
        ("elasticflow_best_effort.csv", "elasticflow"),
        ("helios.csv", "helios"),
        ("lucid.csv", "lucid"),
        ("acme.csv", "acme"),
        ("pai", "pai"),
        ("pai/pai_task_table.csv", "pai"),
        ("pai_sim.csv", "pai-sim"),
        ("openb.csv", "openb"),
        ("spot_gpu.csv", "spot-gpu"),
        ("pollux.csv", "pollux"),
        ("tiresias.csv", "tiresias"),
        ("muri.csv", "muri"),
        ("chronus.csv", "chronus"),
        ("synergy.csv", "synergy"),
        ("gavel.trace", "gavel"),
        ("gavel_old.trace", "gavel"),
        ("shockwave.trace", "gavel"),
    ],
)
def test_the_format_of_a_file_is_detected(name: str, format: str) -> None:
    assert sniffed(SAMPLES / name) == format
    assert format in FORMATS.names()


def test_every_format_has_a_reader() -> None:
    for name in FORMATS.names():
        assert "path" in FORMATS.options(name)


def test_our_csv() -> None:
    jobs = jobs_of("own.csv")
    a = jobs["a"]
    assert (a.arrived_at, a.work, a.estimate, a.deadline) == (0, 9_000 * SECOND, 3 * HOUR, 4 * HOUR)
    assert a.shape == gang(4, ("A100", "V100"), 16_000, 64 * GIB)
    assert (a.user, a.tenant, a.priority, a.model) == ("ann", "vision", 1, "resnet50")
    assert (a.traits.least, a.traits.most) == (2, 8)
    assert jobs["b"] == Job("b", 1_500_000, Shape(1, 1, 500), 90_250_000, 90_250_000, "vision", "bob")
    assert jobs["c"].shape == Shape(1, 0, cpus=2_500, memory=GIB)
    assert jobs["d"].shape == Shape(2, 8)
    assert (jobs["d"].traits.least, jobs["d"].traits.most, jobs["d"].priority) == (1, None, -1)


def test_our_jsonl() -> None:
    jobs = jobs_of("own.jsonl")
    assert jobs["a"] == Job("a", 0, gang(4), HOUR, HOUR)
    b = jobs["b"]
    assert b.shape == Shape(
        2, 4, types=("A100",), cpus=1_500, memory=1_024, roles=(Role("ps", 2, cpus=4_000),)
    )
    assert (b.arrived_at, b.estimate, b.fails_after, b.group) == (500_000, 90 * SECOND, 30 * SECOND, "study")
    traits = jobs["c"].traits
    assert (traits.kind, traits.arch, traits.least, traits.most) == (Kind.TRIAL, Arch.ALLREDUCE, 1, 8)
    assert (traits.checkpoint.every, traits.checkpoint.save) == (10 * MINUTE, 2_500_000)
    assert traits.profile is not None
    assert traits.profile.curve == {1: 1.0, 8: 6.5}


def test_philly_log_sums_attempts_and_drops_jobs_that_never_ran() -> None:
    trace = load_trace(SAMPLES / "philly.json")
    assert [(job.id[-4:], job.arrived_at, job.shape.gpus, job.work) for job in trace.jobs] == [
        ("0002", 0, 1, 90 * SECOND),
        ("0001", 10 * MINUTE, 3, 10 * MINUTE),
    ]
    assert (trace.jobs[0].tenant, trace.jobs[0].user) == ("aaaaaa", "0000bb")
    assert trace.began == "2017-10-07 01:00:00"
    assert trace.notes == (
        "1 rows dropped: never started",
        "1 rows dropped: no attempt with a start and a later end",
    )


def test_philly_csv_is_sorted_and_starts_at_0() -> None:
    trace = load_trace(SAMPLES / "philly.csv")
    assert len(trace.jobs) == 10
    assert trace.jobs[0].arrived_at == 0
    assert {job.tenant for job in trace.jobs} >= {"11cb48", "6214e9", "6c71a0"}


def test_itp_and_elasticflow_say_the_same_of_the_same_jobs() -> None:
    raw, made = jobs_of("itp.csv"), jobs_of("elasticflow.csv")
    assert raw.keys() == made.keys()
    for name, job in raw.items():
        assert (job.arrived_at, job.work, job.shape) == (
            made[name].arrived_at,
            made[name].work,
            made[name].shape,
        )
        assert made[name].deadline is not None
        assert made[name].model


def test_elasticflow_jobs_are_elastic_where_speeds_are_known() -> None:
    plain = jobs_of("elasticflow_best_effort.csv")["0"]
    assert plain.traits == Traits()
    job = jobs_of("elasticflow_best_effort.csv", throughputs=SAMPLES / "throughputs_A100")["0"]
    assert job.traits.elastic
    assert job.traits.profile is not None
    curve = job.traits.profile.curve
    assert (job.traits.least, job.traits.most) == (min(curve), max(curve))
    assert job.work == plain.work


def test_helios_keeps_gpu_jobs_that_ran() -> None:
    trace = load_trace(SAMPLES / "helios.csv")
    assert [(job.id, job.arrived_at, job.shape, job.work) for job in trace.jobs] == [
        ("101", 0, gang(8), HOUR),
        ("104", 23 * HOUR + 50 * MINUTE, gang(16), 24 * HOUR),
    ]
    assert set(trace.notes) == {
        "1 rows dropped: no GPUs (keep them with cpus=true)",
        "1 rows dropped: never started",
        "1 rows dropped: duration 0",
    }
    with_cpus = jobs_of("helios.csv", cpus=True)
    assert with_cpus["101"].shape == gang(8, cpus=64_000)
    assert with_cpus["102"].shape == gang(0, cpus=4_000)


def test_lucid_knows_how_busy_a_job_keeps_its_gpu() -> None:
    jobs = jobs_of("lucid.csv")
    assert (jobs["2"].arrived_at, jobs["1"].arrived_at, jobs["1"].tenant, jobs["1"].model) == (
        0,
        10 * SECOND,
        "vcA",
        "ResNet18",
    )
    assert jobs["1"].traits.profile is not None
    assert jobs["1"].traits.profile.use == 0.4
    assert jobs["1"].traits is jobs["3"].traits


def test_acme() -> None:
    jobs = jobs_of("acme.csv")
    assert jobs.keys() == {"s1", "s2"}
    assert (jobs["s1"].arrived_at, jobs["s1"].work, jobs["s1"].model) == (
        5 * SECOND,
        120 * SECOND,
        "Evaluation",
    )
    assert jobs["s2"].shape == gang(256)


def test_pai_tables_become_gangs_with_roles() -> None:
    trace = load_trace(SAMPLES / "pai")
    jobs = {job.id: job for job in trace.jobs}
    assert jobs.keys() == {"j1", "j2", "j3"}
    assert jobs["j1"].shape == Shape(1, 1, 500, types=("MISC",), cpus=6_000, memory=round(29.296875 * GIB))
    assert (jobs["j1"].arrived_at, jobs["j1"].work, jobs["j1"].user) == (1_000 * SECOND, 600 * SECOND, "u1")
    assert jobs["j2"].shape == Shape(
        4, 1, types=("V100",), cpus=4_000, memory=20 * GIB, roles=(Role("ps", 1, 6_000, 10 * GIB),)
    )
    assert jobs["j2"].work == 905 * SECOND
    assert jobs["j3"].shape == Shape(3, 2, types=("T4",), cpus=8_000, memory=20 * GIB)
    assert any("unequal" in note for note in trace.notes)
    assert any("never ended" in note for note in trace.notes)
    assert jobs_of("pai", cpus=True)["j5"].shape == Shape(3, 0, cpus=4_000, memory=20 * GIB)


def test_pai_task_table_alone_needs_its_job_table_only_for_submission(tmp_path: Path) -> None:
    copy = tmp_path / "pai_task_table.csv"
    copy.write_text((SAMPLES / "pai" / "pai_task_table.csv").read_text())
    first = load_trace(copy).jobs[0]
    assert (first.id, first.arrived_at, first.user) == ("j1", 1_010 * SECOND, "")


def test_pai_simulator() -> None:
    jobs = jobs_of("pai_sim.csv")
    assert jobs["a"].shape == Shape(1, 1, 500, cpus=6_000)
    assert jobs["b"].shape == Shape(4, 1, cpus=8_000)
    assert jobs["c"].shape == Shape(2, 2, cpus=8_000)
    assert jobs["d"].shape == Shape(1, 0, cpus=4_000)
    assert "e" not in jobs
    typed = jobs_of("pai_sim.csv", types=True)
    assert [typed[name].shape.types for name in "abcd"] == [("T4",), ("V100",), ("MISC",), ()]


def test_openb_pods() -> None:
    jobs = jobs_of("openb.csv")
    assert jobs["openb-pod-0001"].shape == Shape(1, 1, 460, cpus=6_000, memory=12_288 * MIB)
    assert jobs["openb-pod-0005"].shape == Shape(1, 0, cpus=20_000, memory=65_536 * MIB)
    assert jobs["openb-pod-0009"].shape.types == ("V100M16", "V100M32")
    assert jobs["openb-pod-0017"].shape.gpus == 8
    assert jobs["openb-pod-0017"].shape.tasks == 1
    assert jobs["openb-pod-0012"].work == (10_959_245 - 6_595_531) * SECOND
    assert jobs["openb-pod-0061"].work == 125 * SECOND  # never scheduled: from its creation
    assert "openb-pod-7285" not in jobs


def test_spot_gpu() -> None:
    jobs = jobs_of("spot_gpu.csv")
    assert jobs["437"].shape == Shape(16, 1, types=("A100-SXM4-80GB",), cpus=15_000)
    assert jobs["438"].shape == Shape(2, 8, types=("A100-SXM4-80GB",), cpus=120_000)
    assert jobs["439"].shape == Shape(1, 1, 500, types=("A10",), cpus=8_000)
    assert (jobs["239"].priority, jobs["239"].traits.preemptible, jobs["239"].tenant) == (1, False, "13")
    assert jobs["437"].traits.preemptible
    assert "440" not in jobs


def test_pollux_durations_come_from_measured_tables() -> None:
    jobs = jobs_of("pollux.csv", profiles=SAMPLES / "pollux_profiles")
    # What Pollux' own simulator needed for them without waiting, its start-up of 30 to 90 s included.
    for name, finished in (("cifar10-0", 947), ("cifar10-3", 564), ("bert-4", 2534)):
        assert 0.75 * finished < jobs[name].work / SECOND < finished
    with pytest.raises(TraceError, match=r"has no durations; give profiles=DIRECTORY"):
        load_trace(SAMPLES / "pollux.csv")
    with pytest.raises(TraceError, match="no validation runs of cifar10"):
        load_trace(SAMPLES / "pollux.csv", profiles=SAMPLES)


def test_pollux_jobs_have_a_fitted_model_of_their_goodput() -> None:
    jobs = jobs_of("pollux.csv", profiles="pollux")
    on = parse_cluster("4x4")
    # What Pollux' own simulator needed for them; a model without accumulated gradients is slower.
    for name, finished in (("cifar10-0", 947), ("cifar10-3", 564), ("bert-4", 2534)):
        alone = replace(jobs[name], arrived_at=0, traits=replace(jobs[name].traits, least=None, most=None))
        assert 0.75 * finished < run([alone], on, "fifo").jct()[0] < 1.5 * finished
    assert task_range(jobs["bert-4"].shape, jobs["bert-4"].traits) == (1, 64)


def test_tiresias() -> None:
    jobs = jobs_of("tiresias.csv")
    assert (jobs["1"].arrived_at, jobs["1"].shape, jobs["1"].work) == (30 * SECOND, gang(8), 147 * SECOND)
    assert jobs["1"].traits.profile is not None
    assert jobs["1"].traits.profile.skewed
    assert jobs["2"].traits == Traits()


def test_muri_counts_in_milliseconds() -> None:
    job = jobs_of("muri.csv")["1"]
    assert (job.arrived_at, job.work, job.priority, job.model) == (
        1_456 * SECOND,
        926_133 * SECOND,
        1,
        "resnet18",
    )


def test_chronus_counts_in_minutes_and_deadlines_from_submission() -> None:
    jobs = jobs_of("chronus.csv")
    assert (jobs["0"].arrived_at, jobs["0"].work) == (5_601 * MINUTE, 96 * MINUTE)
    assert jobs["0"].deadline == (5_601 + 159) * MINUTE
    assert jobs["1"].deadline == (7_505 + 235) * MINUTE
    assert jobs["10"].deadline is None  # best effort
    assert "224" not in jobs
    assert jobs_of("chronus.csv", unit=1)["0"].work == 96 * SECOND


def test_synergy_needs_the_time_of_an_iteration() -> None:
    assert jobs_of("synergy.csv", iteration=0.5)["0"].work == round(3_349 * 0.5 * SECOND)
    with pytest.raises(TraceError, match="give iteration=SECONDS"):
        load_trace(SAMPLES / "synergy.csv")


def test_gavel_durations_are_steps_over_throughput() -> None:
    trace = load_trace(SAMPLES / "gavel.trace", throughputs=SAMPLES / "gavel_throughputs.json")
    first = trace.jobs[0]
    assert (first.model, first.shape) == ("ResNet-18 (batch size 128)", gang(4))
    profile = first.traits.profile
    assert profile is not None
    assert profile.speeds["V100"] == 1.0
    assert 0 < profile.speeds["K80"] < profile.speeds["P100"] < 1.0
    on_k80 = load_trace(
        SAMPLES / "gavel.trace", throughputs=SAMPLES / "gavel_throughputs.json", reference="k80"
    ).jobs[0]
    assert on_k80.work == pytest.approx(first.work / profile.speeds["K80"], rel=1e-6)
    with pytest.raises(TraceError, match="give throughputs=FILE"):
        load_trace(SAMPLES / "gavel.trace")
    with pytest.raises(TraceError, match="no GPU type 'a100'"):
        load_trace(SAMPLES / "gavel.trace", throughputs=SAMPLES / "gavel_throughputs.json", reference="a100")


def test_shockwave_has_durations_of_its_own() -> None:
    job = load_trace(SAMPLES / "shockwave.trace").jobs[1]
    assert (job.arrived_at, job.work, job.shape) == (55 * SECOND, 3_338 * SECOND, gang(1))


def test_shockwave_s_growing_batches_make_jobs_faster_as_they_go(tmp_path: Path) -> None:
    read = {job.id: job for job in load_trace(SAMPLES / "shockwave.trace", throughputs="gavel").jobs}
    plain = load_trace(SAMPLES / "shockwave.trace").jobs
    assert [read[job.id].work for job in plain] == [job.work for job in plain]  # at the first batch
    modes = [line.split("\t")[7] for line in (SAMPLES / "shockwave.trace").read_text().splitlines()]
    growing = [job for job in read.values() if job.traits.profile and job.traits.profile.regimes]
    assert growing
    assert all(modes[int(job.id)] != "static" for job in growing)
    for job in growing:
        assert job.traits.profile is not None
        assert job.traits.profile.regimes[0][1] == 1.0
    (tmp_path / "wild.trace").write_text(
        (SAMPLES / "shockwave.trace").read_text().replace("\tgns\t", "\twild\t")
    )
    with pytest.raises(TraceError, match="mode 'wild' is unknown"):
        load_trace(tmp_path / "wild.trace", throughputs="gavel")


def test_gavel_of_old_has_seven_fields() -> None:
    trace = load_trace(SAMPLES / "gavel_old.trace", throughputs=SAMPLES / "gavel_throughputs.json")
    assert len(trace.jobs) == 8
    assert trace.jobs[1].arrived_at == 6 * SECOND


def test_gpu_types_that_the_cluster_lacks_are_dropped() -> None:
    trace = load_trace(SAMPLES / "openb.csv", cluster_types=["V100M32"])
    jobs = {job.id: job for job in trace.jobs}
    assert jobs["openb-pod-0009"].shape.types == ("V100M32",)
    assert jobs["openb-pod-0013"].shape.types == ()
    assert any("take any GPU type" in note for note in trace.notes)
