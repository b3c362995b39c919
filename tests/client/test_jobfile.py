"""Job files and flags as requests. The plane's own parser checks that they are valid."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.client.jobfile import JobFile, JobFileError, from_flags, merged, read_jobfile
from dovetail.control.request import parse_request

TRAIN = """\
# train.yaml
name: llama-sft
kind: train                # train | serve | sweep | batch   (default: train)
queue: research            # = partition / LocalQueue ; account, qos also accepted
nodes: 2                   # SkyPilot num_nodes also accepted; "1..4" makes it elastic
resources:                 # per node
  accelerators: {H100: 8, A100-80GB: 8}   # any of these; A100:8 and [H100:8, A100:8] work too
  gpu_memory: 70GB..       # "give me anything with this much"
  cpus: 32+
  memory: 400GB
  topology: prefer rack    # or: require rack
time: 1-12:00:00
priority: normal
preemptible: true
checkpoint: {every: 20m, grace: 120s, signal: TERM, path: $CKPT_DIR}
retry: {on: [preempted, node-failure, exit:33], max: 5}
deadline: 2026-12-01T09:00
env: {WANDB_PROJECT: sft}
setup: pip install -r requirements.txt
run: torchrun --nnodes=$NNODES --nproc-per-node=$NPROC_PER_NODE --node-rank=$NODE_RANK
     --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT train.py
"""

SKY = """\
name: minGPT
num_nodes: 2
workdir: .
resources:
  cloud: aws
  accelerators: A100:8
  use_spot: true
  memory: 32+
  cpus: 8+
  disk_size: 256
  priority: 5
file_mounts:
  /data: s3://bucket
envs:
  EPOCHS: 010
  DEBUG: yes
  MODEL: 1.0
secrets:
  KEY: abc
setup: pip install torch
run: |
  echo $SKYPILOT_NODE_RANK
  torchrun --nproc_per_node=8 main.py
"""


LAUGHS = "l0: &l0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


def read(text: str, **over: Any) -> JobFile:
    return read_jobfile(text + "\n", over)


def test_a_dovetail_file() -> None:
    found = read_jobfile(TRAIN)
    assert found.ignored == []
    assert found["retry"] == {"on": ["preempted", "node-failure", "exit:33"], "max": 5}
    assert found["deadline"] == datetime(2026, 12, 1, 9).astimezone().isoformat()
    assert found["run"].startswith("torchrun --nnodes=$NNODES")
    assert found["run"].endswith("train.py")
    assert found.line_of("/checkpoint/every") == 15
    assert found.line_of("/retry/on/7") == 16
    assert found.where("/resources/accelerators") == "<text>, line 7"
    request = parse_request(dict(found))
    assert request.resources.types == ("H100", "A100-80GB")
    assert request.retry is not None
    assert request.retry.max == 5


def test_a_skypilot_file() -> None:
    found = read_jobfile(SKY)
    assert {(one.what, one.line) for one in found.ignored} == {
        ("file_mounts", 12),
        ("resources.cloud", 5),
        ("resources.use_spot", 7),
        ("resources.disk_size", 10),
    }
    assert found["env"] == {"EPOCHS": "010", "DEBUG": "yes", "MODEL": "1.0", "KEY": "abc"}
    assert found["resources"] == {"accelerators": "A100:8", "memory": "32GB", "cpus": "8+"}
    assert found["priority"] == 5
    assert found["workdir"] == str(Path.cwd())
    assert found["run"].startswith("export SKYPILOT_NODE_RANK=$NODE_RANK ")
    assert found["setup"] == "pip install torch"
    assert parse_request(found).node_count == 2


def test_skypilots_choices_become_gpu_types() -> None:
    found = read(
        "resources: {any_of: [{accelerators: A100:8, cloud: aws}, {accelerators: {H100: 8}}]}\nrun: x"
    )
    assert found["resources"] == {"accelerators": ["A100:8", "H100:8"]}
    assert [one.what for one in found.ignored] == ["resources.any_of.cloud"]


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("time: 10:00", "time", "10:00"),
        ("time: 90s", "time", "90s"),
        ("time: 1:30:00", "time", "1:30:00"),
        ("array: 0-9%2", "array", "0-9%2"),
        ("array: 7", "array", 7),
        ("array: [1, 2]", "array", [1, 2]),
        ("hold: yes", "hold", True),
        ("hold: false", "hold", False),
        ("name: no", "name", "no"),
        ("name: 2026-12-01", "name", "2026-12-01"),
        ("gpu_share: 0.5", "gpu_share", 0.5),
        ("gpu_share: 50%", "gpu_share", "50%"),
        ("retry: {on: preempted}", "retry", {"on": ["preempted"]}),
        ("resources: {memory: 64+}", "resources", {"memory": "64GB"}),  # only SkyPilot writes that
        ("num_nodes: 1\nresources: {memory: 64}", "resources", {"memory": "64GB"}),
        ("resources: {memory: 64, use_spot: true}", "resources", {"memory": "64GB"}),
        ("resources: {memory: 64G}", "resources", {"memory": "64G"}),
        ("begin: +2h", "begin", "+2h"),
        ("begin: 2026-12-01T09:00Z", "begin", "2026-12-01T09:00Z"),
        ("setup:", "setup", None),
        ("env: {A: 1.10, B: '', C: 0x1F}", "env", {"A": "1.10", "B": "", "C": "0x1F"}),
        ("base: &b {A: 1}\nenv: {<<: *b, B: 2}", "env", {"A": "1", "B": "2"}),
    ],
)
def test_scalars_of_yaml(line: str, key: str, value: object) -> None:
    found = read(f"{line}\nrun: x")
    assert found.get(key) == value
    found.pop("base", None)
    parse_request(dict(found))


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ("run: [x", "<text>, line 2", "expected"),
        ("a: 1\n\tb: 2", "<text>, line 2", "cannot start any token"),
        ("run: x\nname: a\nname: b", "<text>, line 3", "'name' is repeated"),
        ("run: x\n---\nrun: y", "<text>, line 2", "write one file for each job"),
        ("- a\n- b", "<text>, line 1", "not a mapping of keys"),
        ("# nothing", "<text>", "it is empty"),
        ("run: x\nenv:\n  HF_TOKEN:", "<text>, line 3", "HF_TOKEN has no value"),
        ("run: x\nenvs:\n  HF_TOKEN: null", "<text>, line 3", "HF_TOKEN has no value"),
        ("run: x\nservice: {}", "<text>, line 2", "services do not run live yet"),
        ("run: !!python/object:os.system x", "<text>, line 1", "put it in quotes"),
        ("run: !!binary aGVsbG8=", "<text>, line 1", "put it in quotes"),
        ("? [a]\n: b", "<text>, line 1", "keys are plain words"),
        ("a: &a [*a]", "<text>, line 1", "nested too deep"),
        ("a: " + "[" * 50 + "]" * 50, "<text>, line 1", "nested too deep"),
        ("a: " + "[" * 20_000, "<text>", "nested too deep"),
        ("a: \x01", "<text>", "it is not valid YAML"),
        (LAUGHS, "", "too many values"),
    ],
)
def test_an_error_names_file_and_line(text: str, where: str, problem: str) -> None:
    with pytest.raises(JobFileError) as caught:
        read(text)
    assert str(caught.value).startswith(where)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "fit.yaml"
    file.write_bytes("\ufeffrun: x\r\nenv: {A: ü}\r\n".encode())
    assert dict(read_jobfile(file)) == {"run": "x", "env": {"A": "ü"}, "name": "fit"}
    assert read_jobfile(str(file), {"name": "other"})["name"] == "other"
    script = tmp_path / "fit.sh"
    script.write_text("echo hello\n")
    assert read_jobfile(script)["run"] == "echo hello\n"
    assert read_jobfile(script)["name"] == "fit"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="there is no such file"):
        read_jobfile(tmp_path / "none.yaml")
    with pytest.raises(JobFileError, match="it cannot be read: Is a directory"):
        read_jobfile(tmp_path)
    binary = tmp_path / "a.yaml"
    binary.write_bytes(b"a: 1\n\xff\n")
    with pytest.raises(JobFileError, match="line 2: it is not text"):
        read_jobfile(binary)
    binary.write_bytes(b"#" * 1_000_001)
    with pytest.raises(JobFileError, match="more than 1,000,000 bytes"):
        read_jobfile(binary)
    with pytest.raises(JobFileError, match="cannot be read"):
        read_jobfile("a\0b")


def test_a_variable_without_a_value_may_come_from_a_flag() -> None:
    assert read("run: x\nenvs: {HF_TOKEN: null}", env={"HF_TOKEN": "abc"})["env"] == {"HF_TOKEN": "abc"}


@given(st.text(max_size=60))
def test_any_text_is_a_job_file_or_raises_a_job_file_error(text: str) -> None:
    try:
        found = read_jobfile(text + "\n")
    except JobFileError:
        return
    assert isinstance(found, dict)


# -- merging ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "over", "expected"),
    [
        ({"name": "a", "time": 1}, {"name": "b", "time": None}, {"name": "b", "time": 1}),
        ({"env": {"A": "1", "B": "2"}}, {"env": {"B": "3"}}, {"env": {"A": "1", "B": "3"}}),
        ({"num_nodes": 2}, {"nodes": 4}, {"nodes": 4}),
        ({"partition": "a", "account": "b"}, {"queue": "c"}, {"queue": "c"}),
        ({"run": "a"}, {"command": ["b"]}, {"command": ["b"]}),
        (
            {"resources": {"accelerators": "A100:8", "cpus": 4}},
            {"resources": {"gpus": 2}},
            {"resources": {"accelerators": "A100:2", "cpus": 4}},
        ),
        (
            {"resources": {"accelerators": {"A100": 8, "H100": 8}}},
            {"resources": {"gpus": 2}},
            {"resources": {"accelerators": ["A100:2", "H100:2"]}},
        ),
        ({"resources": {"accelerators": 8}}, {"resources": {"gpus": 2}}, {"resources": {"accelerators": 2}}),
        ({"resources": {"accelerators": "A100:8"}}, {"resources": {"gpus": 0}}, {"resources": {"gpus": 0}}),
        (
            {"resources": {"gpus": 8}},
            {"resources": {"accelerators": "V100:1"}},
            {"resources": {"accelerators": "V100:1"}},
        ),
        ({"resources": 8}, {"resources": {"gpus": 1}}, {"resources": {"gpus": 1}}),
    ],
)
def test_later_values_override_earlier_ones(
    base: dict[str, Any], over: dict[str, Any], expected: dict[str, Any]
) -> None:
    before = repr((base, over))
    assert merged(base, over) == expected
    assert repr((base, over)) == before


# -- flags -----------------------------------------------------------------------------------------


def test_without_flags_the_request_is_empty() -> None:
    assert from_flags() == {}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"gpus": 4}, {"resources": {"gpus": 4}}),
        ({"gpus": "4"}, {"resources": {"gpus": 4}}),
        ({"gpus": "a100:4"}, {"resources": {"accelerators": "a100:4"}}),
        ({"gpus": 4, "gpu_type": "A100"}, {"resources": {"accelerators": "A100:4"}}),
        ({"gpu_type": "A100"}, {"resources": {"accelerators": "A100:1"}}),
        ({"cpus": 4, "memory": "32G"}, {"resources": {"cpus": 4, "memory": "32G"}}),
        ({"priority": "high"}, {"priority": "high"}),
        ({"priority": "-5"}, {"priority": -5}),
        ({"env": ["A=1", "B", "C=x=y"]}, {"env": {"A": "1", "B": "here", "C": "x=y"}}),
        ({"hold": False}, {}),
        ({"hold": True}, {"hold": True}),
        ({"preemptible": False}, {"preemptible": False}),
        ({"checkpoint_every": "20m"}, {"checkpoint": {"every": "20m"}}),
        ({"grace": "2m"}, {"checkpoint": {"grace": "2m"}}),
        ({"retry": 3}, {"retry": {"max": 3}}),
        ({"retry": "exit:33,timeout"}, {"retry": {"on": ["exit:33", "timeout"]}}),
        ({"retry": "exit:33@3"}, {"retry": {"on": ["exit:33"], "max": 3}}),
        ({"per_gpu": True}, {"launch": "gpu"}),
        ({"time": "2h", "nodes": 2, "array": "0-9"}, {"time": "2h", "nodes": 2, "array": "0-9"}),
    ],
)
def test_flags(flags: dict[str, Any], expected: dict[str, Any]) -> None:
    found = from_flags(**flags, environ={"B": "here"})
    assert found == expected
    parse_request({"run": "x", **found})


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-u", "src/train.py", "--lr", "1"], "train.py"),
        (["./run.sh"], "run.sh"),
        (["nvidia-smi"], "nvidia-smi"),
        (["a\nb"], "a_b"),
    ],
)
def test_a_command_runs_in_the_current_folder_and_names_the_job(command: list[str], name: str) -> None:
    found = from_flags(command=command)
    assert found == {"command": command, "name": name, "workdir": str(Path.cwd())}
    parse_request(found)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"time": "30"}, "30 has no unit; write 30s, 30m or 30h"),
        ({"env": ["NOT_SET_ANYWHERE"]}, "is not set here"),
        ({"gpus": "a100:4", "gpu_type": "V100"}, "names a type"),
        ({"retry": "x@y"}, "is not understood"),
    ],
)
def test_flags_that_are_refused(flags: dict[str, Any], problem: str) -> None:
    with pytest.raises(JobFileError, match=problem):
        from_flags(**flags, environ={})
