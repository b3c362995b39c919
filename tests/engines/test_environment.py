"""Variables and ports, where no process is needed to see them."""

from __future__ import annotations

import socket
from pathlib import Path

from dovetail.engines.environment import LOOPBACK, environment_of, free_port, inherited, processes
from dovetail.engines.launch import Launch, Share


def test_the_planes_own_is_not_passed_on() -> None:
    plane = {
        "PATH": "/bin",
        "HOME": "/root",
        "DOVETAIL_TOKEN": "x",
        "DOVETAIL_DATABASE": "x",
        "PGPASSWORD": "x",
        "SLURM_JOB_ID": "x",
        "WORLD_SIZE": "x",
        "NOTIFY_SOCKET": "x",
        "MAKEFLAGS": " -j4 --jobserver-auth=3,4",
        "MFLAGS": "-j4",
        "MAKELEVEL": "1",
        "SITE_KEY": "x",
    }
    assert inherited(plane, secrets={"SITE_KEY"}) == {"PATH": "/bin", "HOME": "/root"}


def test_a_user_may_choose_where_processes_meet_but_not_what_they_hold() -> None:
    env = (
        ("MASTER_PORT", "1234"),
        ("CUDA_VISIBLE_DEVICES", "9"),
        ("NODE_RANK", "9"),
        ("DOVETAIL_JOB_ID", "other"),
    )
    (process,) = processes(Launch("j", 1, (Share("n0", ("3",)),), ("true",), env=env), Path("/run"), 20_000)
    found = process.env
    assert (found["MASTER_PORT"], found["CUDA_VISIBLE_DEVICES"], found["NODE_RANK"]) == ("1234", "3", "0")
    assert found["DOVETAIL_JOB_ID"] == "j"


def test_names_of_slurm_for_a_member_of_an_array() -> None:
    env = (("DOVETAIL_ARRAY_ID", "a"), ("DOVETAIL_ARRAY_INDEX", "5"))
    launch = Launch("a_5", 2, (Share("n0", ()),), ("true",), env=env, slurm_names=True)
    found = processes(launch, Path("/run"), 20_000)[0].env
    assert (found["SLURM_ARRAY_JOB_ID"], found["SLURM_ARRAY_TASK_ID"]) == ("a", "5")
    assert (found["SLURM_JOB_ID"], found["SLURM_RESTART_COUNT"]) == ("a_5", "1")


def test_names_of_slurm_for_what_it_was_given() -> None:
    shares = (Share("n0", ("0", "1"), cpus=8_000), Share("n1", ("2", "3"), cpus=8_000))
    by_node = processes(Launch("j", 1, shares, ("true",), slurm_names=True), Path("/run"), 20_000)[1].env
    assert (by_node["SLURM_GPUS"], by_node["SLURM_GPUS_ON_NODE"]) == ("4", "2")
    assert (by_node["SLURM_CPUS_PER_TASK"], by_node["SLURM_CPUS_ON_NODE"]) == ("8", "8")
    launch = Launch("j", 1, shares, ("true",), slurm_names=True, per_gpu=True)
    assert processes(launch, Path("/run"), 20_000)[3].env["SLURM_CPUS_PER_TASK"] == "4"
    bare = processes(Launch("j", 1, (Share("n0", ()),), ("true",), slurm_names=True), Path("/run"), 20_000)
    assert "SLURM_CPUS_PER_TASK" not in bare[0].env, "none were asked for"
    assert bare[0].env["SLURM_GPUS"] == "0"


def test_a_port_is_free_and_promised_once() -> None:
    first = free_port("j", 1)
    assert free_port("j", 1, taken={first}) != first
    with socket.socket() as listener:
        listener.bind((LOOPBACK, first))
        listener.listen()
        assert free_port("j", 1) != first


def test_before_the_start_there_is_no_environment(tmp_path: Path) -> None:
    assert environment_of(tmp_path) == {}
    (tmp_path / "environment.json").write_text("[]")
    assert environment_of(tmp_path) == {}
