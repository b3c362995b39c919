"""Variables and ports, tested without processes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dovetail.engines.contract import Launch, NodeShare
from dovetail.engines.local.environment import (
    LOOPBACK,
    check_passed,
    environment_of,
    free_port,
    inherited,
    processes,
)
from dovetail.model.errors import InputError

PLANE = {
    "PATH": "/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "LC_ALL": "C",
    "TMPDIR": "/scratch",
    "NCCL_SOCKET_IFNAME": "ib0",
    "NVIDIA_DRIVER_CAPABILITIES": "all",
}
OF_ITS_SHELL = {
    "AWS_SECRET_ACCESS_KEY": "x",
    "DOVETAIL_TOKEN": "x",
    "DOVETAIL_DATABASE": "x",
    "PGPASSWORD": "x",
    "SLURM_JOB_ID": "x",
    "WORLD_SIZE": "x",
    "NOTIFY_SOCKET": "x",
    "MAKEFLAGS": " -j4 --jobserver-auth=3,4",
    "SSH_AUTH_SOCK": "x",
    "PYTHONPATH": "x",
    "CUDA_VISIBLE_DEVICES": "3",
    "NVIDIA_VISIBLE_DEVICES": "3",
    "https_proxy": "http://user:password@proxy",
    "BASH_FUNC_ls%%": "() { :; }",
}


def test_a_job_gets_what_describes_the_machine_and_nothing_else_of_the_plane() -> None:
    assert inherited({**PLANE, **OF_ITS_SHELL}) == PLANE
    passed = inherited({**PLANE, **OF_ITS_SHELL}, passed=["https_proxy", "unset"])
    assert passed == {**PLANE, "https_proxy": OF_ITS_SHELL["https_proxy"]}


def test_another_account_has_its_own_home() -> None:
    assert inherited(PLANE, own_account=True).keys() == PLANE.keys() - {"HOME", "TMPDIR"}
    assert "TMPDIR" in inherited(PLANE, own_account=True, passed=["TMPDIR"])


@pytest.mark.parametrize("name", ["", "A=B", "A B", "PGPASSWORD", "DOVETAIL_TOKEN", "CUDA_VISIBLE_DEVICES"])
def test_variables_that_cannot_be_passed_on_are_refused(name: str) -> None:
    check_passed(["HF_HOME", "https_proxy"], ["PGPASSWORD"])
    with pytest.raises(InputError):
        check_passed(["HF_HOME", name], ["PGPASSWORD"])


def test_a_user_can_set_the_master_port_but_not_devices_and_ranks() -> None:
    env = (
        ("MASTER_PORT", "1234"),
        ("CUDA_VISIBLE_DEVICES", "9"),
        ("NODE_RANK", "9"),
        ("DOVETAIL_JOB_ID", "other"),
    )
    (process,) = processes(
        Launch("j", 1, (NodeShare("n0", ("3",)),), ("true",), env=env), Path("/run"), 20_000
    )
    found = process.env
    assert (found["MASTER_PORT"], found["CUDA_VISIBLE_DEVICES"], found["NODE_RANK"]) == ("1234", "3", "0")
    assert found["DOVETAIL_JOB_ID"] == "j"


def test_slurm_variables_of_an_array() -> None:
    env = (("DOVETAIL_ARRAY_ID", "a"), ("DOVETAIL_ARRAY_INDEX", "5"))
    launch = Launch("a_5", 2, (NodeShare("n0", ()),), ("true",), env=env, slurm_names=True)
    found = processes(launch, Path("/run"), 20_000)[0].env
    assert (found["SLURM_ARRAY_JOB_ID"], found["SLURM_ARRAY_TASK_ID"]) == ("a", "5")
    assert (found["SLURM_JOB_ID"], found["SLURM_RESTART_COUNT"]) == ("a_5", "1")


def test_slurm_variables_of_gpus_and_cpus() -> None:
    shares = (NodeShare("n0", ("0", "1"), cpus=8_000), NodeShare("n1", ("2", "3"), cpus=8_000))
    by_node = processes(Launch("j", 1, shares, ("true",), slurm_names=True), Path("/run"), 20_000)[1].env
    assert (by_node["SLURM_GPUS"], by_node["SLURM_GPUS_ON_NODE"]) == ("4", "2")
    assert (by_node["SLURM_CPUS_PER_TASK"], by_node["SLURM_CPUS_ON_NODE"]) == ("8", "8")
    launch = Launch("j", 1, shares, ("true",), slurm_names=True, per_gpu=True)
    assert processes(launch, Path("/run"), 20_000)[3].env["SLURM_CPUS_PER_TASK"] == "4"
    bare = processes(
        Launch("j", 1, (NodeShare("n0", ()),), ("true",), slurm_names=True), Path("/run"), 20_000
    )
    assert "SLURM_CPUS_PER_TASK" not in bare[0].env, "the job asked for no number of CPUs"
    assert bare[0].env["SLURM_GPUS"] == "0"


def test_a_port_is_free_and_given_once() -> None:
    first = free_port("j", 1)
    assert free_port("j", 1, taken={first}) != first
    with socket.socket() as listener:
        listener.bind((LOOPBACK, first))
        listener.listen()
        assert free_port("j", 1) != first


def test_the_environment_is_empty_before_the_start(tmp_path: Path) -> None:
    assert environment_of(tmp_path) == {}
    (tmp_path / "environment.json").write_text("[]")
    assert environment_of(tmp_path) == {}
