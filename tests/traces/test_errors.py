"""What is wrong with a file is said in one line: file, line, problem, remedy."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dovetail.model.errors import BadOption, InputError, TraceError, UnknownName
from dovetail.model.job import Checkpoint, Job, Traits, gang
from dovetail.traces import load_trace, write_csv

HEADER = "id,submit,gpus,duration"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; a trace has a header and at least one row"),
        (f"{HEADER}\n", "no jobs in it; a trace needs at least one row below its header"),
        (f"{HEADER}\na,0,1,0\n", "no jobs in it (1 rows dropped: duration 0)"),
        ("id,submit,gpus\na,0,1\n", "line 1: no column 'duration'; found id, submit, gpus; needed are "),
        (f"{HEADER},colour\na,0,1,5,red\n", "line 1: unknown column 'colour'"),
        (
            "x,y,z\n1,2,3\n",
            "line 1: no known format has the columns x, y, z; a CSV file needs id, submit, gpus, duration; "
            "if it is a file of another format, convert it: dovetail trace convert --format F",
        ),
        (f"{HEADER}\na,0,1,5\nb,0,1,-5\n", "line 3: duration is -5; times and durations are at least 0"),
        (f"{HEADER}\na,-1,1,5\n", "line 2: submit is -1; times and durations are at least 0"),
        (f"{HEADER}\na,0,1,soon\n", "line 2: duration is 'soon'; give seconds, or 2h30m"),
        (f"{HEADER}\na,0,1,nan\n", "line 2: duration is 'nan'"),
        (f"{HEADER}\na,0,1,inf\n", "line 2: duration is 'inf'"),
        (f"{HEADER}\na,0,1,\n", "line 2: duration is empty"),
        (f"{HEADER}\na,0,1.5,5\n", "line 2: gpus is '1.5'; give a whole number of at least 0"),
        (f"{HEADER}\na,0,-1,5\n", "line 2: gpus is '-1'; give a whole number of at least 0"),
        (f"{HEADER}\na,0,two,5\n", "line 2: gpus is 'two'; give a number"),
        (f"{HEADER}\n,0,1,5\n", "line 2: id is empty; give each job its own id"),
        (
            f"{HEADER}\na,0,1\n",
            "line 2: 3 fields instead of 4; the columns are id,submit,gpus,duration",
        ),
        (f"{HEADER}\na,0,1,5\nb,0,1,5\na,1,1,5\n", "2 jobs have the id 'a'; give each job its own id"),
        (f"{HEADER},priority\na,0,1,5,high\n", "line 2: priority is 'high'; give a whole number"),
        (f"{HEADER},memory\na,0,1,5,lots\n", "line 2: memory is 'lots'; give bytes, or 32G"),
        (f"{HEADER},milli\na,0,1,5,2000\n", "line 2: milli is 2000"),
        (f"{HEADER},each\na,0,6,5,4\n", "line 2: 6 GPUs in tasks of 4; gpus must be a multiple of each"),
        (f"{HEADER},min_gpus\na,0,2,5,4\n", "line 2: gpus 2 with min_gpus 4"),
        (f"{HEADER},estimate\na,0,1,5,1\nb,0,1,5,x\n", "line 3: estimate is 'x'"),
        ('{"id": "a"}\n', "line 1: no 'submit'; a job needs id, submit, duration and gpus or shape"),
        ('{"id": "a",\n', "line 1: is not valid JSON"),
        ('{"id": "a", "submit": 0, "duration": 1, "gpu": 1}\n', "unknown field 'gpu'; did you mean gpus?"),
        ('{"id": "a", "submit": 0, "duration": 1}\n', "needs either gpus or shape"),
        ('{"id": "a", "submit": 0, "duration": -1, "gpus": 1}\n', "duration is -1"),
        ('{"id": "a", "submit": 0, "duration": 1, "gpus": 1.5}\n', "gpus is 1.5; give a whole number"),
        ('{"id": 7, "submit": 0, "duration": 1, "gpus": 1}\n', "id is 7; give a text"),
        ('{"id": "a", "submit": 0, "duration": 1, "shape": {"task": 1}}\n', "did you mean tasks?"),
        ('{"id": "a", "submit": 0, "duration": 1, "shape": {"tasks": 0}}\n', "no job has the shape"),
        ('{"id": "a", "submit": 0, "duration": 1, "gpus": 1, "traits": {"kind": "x"}}\n', "choose train | "),
        ('[{"status": "Pass"}]\n', "line 1: is not a job of the Philly log"),
        ('[{"status": "Pass"\n', "line 1: is not valid JSON"),
    ],
)
def test_a_broken_trace(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    said = str(caught.value)
    assert said.startswith(str(path))
    assert message in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("format", "text", "message"),
    [
        ("itp", "job_id,submission_time,duration,num_gpu\na,0,-3,1\n", "line 2: duration is -3"),
        (
            "itp",
            "job_id,submission_time,duration,num_gpu\na,0,x,1\n",
            "line 2: duration is 'x'; give a number",
        ),
        ("itp", "job_id,submission_time,num_gpu\na,0,1\n", "no column 'duration'"),
        ("philly-csv", "timestamp,duration,num_gpus,cluster\nnow,1,1,c\n", "line 2: timestamp is 'now'"),
        ("gavel", "a\tb\n", "line 1: 2 tab-separated fields"),
        ("pai", "a,b\n", "line 1: 2 fields instead of 10"),
    ],
)
def test_a_broken_foreign_trace(tmp_path: Path, format: str, text: str, message: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"trace") as caught:
        load_trace(path, format=format)
    assert message in str(caught.value)


def test_files_that_cannot_be_decompressed(tmp_path: Path) -> None:
    rows = "".join(f"{number},0,1,5\n" for number in range(1_000))
    whole = gzip.compress(f"{HEADER}\n{rows}".encode())
    for name, content, message in (
        ("cut.csv.gz", whole[: len(whole) // 2], "cannot be decompressed"),
        ("plain.csv.gz", f"{HEADER}\n".encode(), "is named .gz but is not compressed"),
        ("latin.csv", b"id,submit,gpus,duration\n\xe9,0,1,5\n", "is not UTF-8 text"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(TraceError, match=message):
            load_trace(path)


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"no trace is named 'phily'; did you mean philly\?"):
        load_trace("phily")
    with pytest.raises(UnknownName, match="no trace is named 'itp:11'"):
        load_trace("itp:11")
    with pytest.raises(TraceError, match="no such file"):
        load_trace("missing.csv")
    with pytest.raises(TraceError, match="is a directory without pai_task_table"):
        load_trace(tmp_path)
    path = tmp_path / "a.csv"
    path.write_text(f"{HEADER}\na,0,1,5\n")
    with pytest.raises(UnknownName, match="no trace format is named 'cvs'; did you mean csv"):
        load_trace(path, format="cvs")
    with pytest.raises(BadOption, match="trace format csv has no option 'throughput'"):
        load_trace(path, throughput="x")


def test_csv_refuses_jobs_it_cannot_express(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    for job in (
        Job("a", 0, gang(1), 1, 1, group="study"),
        Job("a", 0, gang(1), 1, 1, traits=Traits(checkpoint=Checkpoint(save=1))),
        Job("a", 0, gang(1), 0, 0),
    ):
        with pytest.raises(InputError, match=r"write \.jsonl instead"):
            write_csv([job], path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="cannot be written"):
        write_csv([], tmp_path / "none" / "out.csv")
