"""What is written reads back equal."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.model.goodput import Goodput, StepTime
from dovetail.model.job import PLAIN, Arch, Checkpoint, Job, Kind, Profile, Role, Shape, Traits, gang
from dovetail.model.units import WHOLE
from dovetail.traces import load_trace, write_csv, write_jsonl
from dovetail.traces.trace import many

times = st.integers(0, 10**14)  # up to three years, to the microsecond
words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), max_size=8).map(str.strip)
names = st.text("abcXYZ019-_.:ü", min_size=1, max_size=12)
cpus = st.integers(0, 10**6)
memory = st.integers(0, 1 << 40)
positive = st.floats(0.01, 100, allow_nan=False)
kinds = st.sampled_from(["A100", "V100", "T4"])
types = st.lists(st.sampled_from(["A100", "V100", "T4"]), unique=True, max_size=3).map(tuple)

roles = st.builds(Role, names, st.integers(1, 9), cpus, memory)
shapes = st.builds(
    Shape,
    st.integers(1, 64),
    st.integers(0, 8),
    st.integers(1, WHOLE),
    st.sampled_from(["", "1g", "3g"]),
    types,
    cpus,
    memory,
    st.lists(roles, max_size=2).map(tuple),
    words,
)
checkpoints = st.builds(Checkpoint, st.none() | times, st.booleans(), times, times, times)
step_times = st.builds(StepTime, positive, positive, positive, positive, positive, positive, st.floats(1, 10))
goodputs = st.builds(
    Goodput,
    st.dictionaries(kinds, step_times, max_size=2).map(lambda steps: {"": StepTime(0.1), **steps}),
    st.integers(1, 99),
    st.sampled_from([0, 512]),
    st.integers(0, 64),
    st.lists(st.tuples(positive, positive), max_size=3).map(tuple),
)
profiles = st.builds(Profile, goodput=goodputs) | st.builds(
    Profile,
    speeds=st.dictionaries(kinds, positive, max_size=3),
    curve=st.dictionaries(st.integers(1, 64), positive, max_size=4),
    curves=st.dictionaries(
        kinds, st.dictionaries(st.integers(1, 64), positive, min_size=1, max_size=4), max_size=2
    ),
    split=positive | st.dictionaries(kinds, positive, min_size=1),
    use=st.floats(0, 1),
    hurt=st.floats(0, 1),
    cpus=cpus,
    compute=positive,
    gradient=positive,
    servers=st.integers(0, 9),
    batch=st.integers(0, 9_999),
    batch_cost=st.floats(0, 1),
    noise_scale=positive,
    skewed=st.booleans(),
    pace=positive,
    regimes=st.lists(st.tuples(positive, positive), max_size=3).map(tuple),
    beside=st.dictionaries(
        st.sampled_from(["A100", "V100"]), st.dictionaries(words, st.floats(0, 9), max_size=2), max_size=2
    ),
)
counts = st.none() | st.integers(0, 99)
traits = st.builds(
    Traits,
    st.sampled_from(Kind),
    st.sampled_from(Arch),
    counts,
    counts,
    checkpoints,
    st.none() | profiles,
    st.integers(0, 99),
    st.integers(0, 9),
    st.booleans(),
)
everything = st.lists(
    st.builds(
        Job, names, times, shapes | st.builds(gang, st.integers(0, 64)), times, times, words, words,
        st.integers(-9, 9), st.none() | times, words, words, traits, st.none() | times,
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda job: job.id,
)  # fmt: skip


@st.composite
def csv_jobs(draw: st.DrawFn) -> list[Job]:
    """Jobs that the columns of our CSV can say."""
    jobs = []
    for name in draw(st.lists(names, min_size=1, max_size=5, unique=True)):
        tasks, each, milli = draw(st.integers(1, 64)), draw(st.integers(1, 8)), draw(st.integers(1, WHOLE))
        shape = Shape(tasks, each, milli, types=draw(types), cpus=draw(cpus), memory=draw(memory))
        if draw(st.booleans()):
            shape = gang(draw(st.integers(0, 64)))
        kind = PLAIN
        if shape.each and draw(st.booleans()):
            kind = Traits(
                least=draw(st.none() | st.integers(0, shape.tasks)), most=draw(st.none() | st.just(99))
            )
        work = draw(st.integers(1, 10**14))
        jobs.append(
            Job(name, draw(times), shape, work, draw(st.just(work) | times), draw(words), draw(words),
                draw(st.integers(-9, 9)), draw(st.none() | times), draw(words), traits=kind)
        )  # fmt: skip
    return jobs


def in_order(jobs: list[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: job.arrived_at)


@settings(max_examples=150, deadline=None)
@given(jobs=csv_jobs(), suffix=st.sampled_from(["", ".gz", ".xz"]))
def test_csv_round_trip(jobs: list[Job], suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"jobs.csv{suffix}"
        write_csv(jobs, path)
        assert [p.name for p in Path(folder).iterdir()] == [path.name]
        assert load_trace(path).jobs == in_order(jobs)


@settings(max_examples=150, deadline=None)
@given(jobs=everything, suffix=st.sampled_from(["", ".gz", ".xz"]))
def test_jsonl_round_trip(jobs: list[Job], suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"jobs.jsonl{suffix}"
        write_jsonl(jobs, path)
        assert load_trace(path).jobs == in_order(jobs)


def test_only_what_is_needed_is_written(tmp_path: Path) -> None:
    jobs = [Job("a", 1_500_000, gang(2), 60_000_000, 60_000_000)]
    write_csv(jobs, tmp_path / "a.csv")
    write_jsonl(jobs, tmp_path / "a.jsonl")
    assert (tmp_path / "a.csv").read_text() == "id,submit,gpus,duration\na,1.5,2,60\n"
    assert (tmp_path / "a.jsonl").read_text() == '{"id": "a", "submit": 1.5, "duration": 60, "gpus": 2}\n'


def test_equal_jobs_give_equal_files(tmp_path: Path) -> None:
    jobs = [Job("a", 0, gang(2), 60_000_000, 60_000_000)]
    write_csv(jobs, tmp_path / "a.csv.gz")
    write_csv(jobs, tmp_path / "b.csv.gz")
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("old")

    def broken() -> object:
        yield Job("a", 0, gang(2), 1, 1)
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError):
        write_jsonl(broken(), path)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_many_makes_what_job_makes() -> None:
    made = many(2, id=["a", "b"], arrived_at=[0, 1], shape=[gang(1), gang(2)], work=[5, 6], estimate=[5, 7])
    assert made == [Job("a", 0, gang(1), 5, 5), Job("b", 1, gang(2), 6, 7)]
    assert made[0].traits is PLAIN
    with pytest.raises(TypeError, match="a job needs work"):
        many(1, id=["a"], arrived_at=[0], shape=[gang(1)], estimate=[1])
