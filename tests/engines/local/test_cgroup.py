"""Control groups: real ones if this machine allows it, and folders that imitate other machines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.engines.conftest import Bench, bash

from dovetail.engines.contract import NodeShare
from dovetail.engines.local import cgroup, cgroup_limits
from dovetail.model.units import GIB, MIB

HERE = cgroup_limits.detect()
enforced_here = pytest.mark.skipif(not HERE.memory, reason=HERE.sentence())


# --- this machine -----------------------------------------------------------------------------------


def test_the_sentence_about_limits(bench: Bench) -> None:
    sentence = bench.engine.describe_limits()
    assert sentence.endswith(".")
    assert "enforced" in sentence
    assert sentence == HERE.sentence()


@enforced_here
def test_a_job_over_its_memory_limit_is_killed(bench: Bench) -> None:
    eat = f"{sys.executable} -I -S -c 'x = b\"x\" * (300 << 20)'; exit 1"
    end = bench.run(bash(eat, shares=(NodeShare("n0", (), memory=64 * MIB),)))
    assert (end.code, end.cause) == (137, "oom")
    assert "over its memory limit" in end.detail
    assert "\n" not in end.detail
    assert left_over(bench) == []


@enforced_here
def test_a_kill_within_the_memory_limit_is_not_out_of_memory(bench: Bench) -> None:
    end = bench.run(bash("kill -KILL $$", shares=(NodeShare("n0", (), memory=64 * MIB),)))
    assert (end.code, end.cause) == (137, "exited")


@enforced_here
def test_limits_are_set_while_the_job_runs(bench: Bench) -> None:
    bench.engine.start(
        bash("cat /proc/self/cgroup; echo up; sleep 300", shares=(NodeShare("n0", (), 500, GIB),))
    )
    bench.wait_for_output("up")
    groups = left_over(bench)
    assert groups
    values = {
        file: (group / file).read_text().split()
        for group in groups
        for file in LIMITS
        if (group / file).exists()
    }
    if HERE.version == 1:
        assert values["memory.limit_in_bytes"] == [str(GIB)]
        if HERE.cpu:
            assert (values["cpu.cfs_quota_us"], values["cpu.cfs_period_us"]) == (["50000"], ["100000"])
    else:
        assert values["memory.max"] == [str(GIB)]
        assert values["cpu.max"] == ["50000", "100000"]
    assert groups[0].name in bench.log()
    bench.engine.stop("j", 1, "over", 0)
    bench.end()
    assert left_over(bench) == []


LIMITS = ("memory.limit_in_bytes", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.max", "cpu.max")


def left_over(bench: Bench) -> list[Path]:
    """The control groups of this test's attempt that exist."""
    launch = (bench.folder() / "launch.json").read_text()
    found = [
        p for base in {HERE.memory, HERE.cpu} if base for p in Path(base).glob(f"{cgroup_limits.PREFIX}j-*")
    ]
    return [group for group in found if str(group) in launch]


# --- other machines ---------------------------------------------------------------------------------


def machine(folder: Path, mounts: str, membership: str) -> cgroup_limits.Limits:
    (folder / "mountinfo").write_text(mounts)
    (folder / "membership").write_text(membership)
    return cgroup_limits.detect(str(folder / "mountinfo"), str(folder / "membership"))


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    limits = machine(tmp_path, "21 1 0:20 / /proc rw - proc proc rw\n", "")
    assert limits.sentence() == "Memory and CPU limits are not enforced: no control groups are mounted."
    assert cgroup_limits.groups(limits, "j-1-0", 500, GIB) == []


def test_v2_without_the_controllers(tmp_path: Path) -> None:
    own = tmp_path / "cg" / "user.slice"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("pids\n")
    (own / "cgroup.subtree_control").write_text("")
    limits = machine(tmp_path, f"30 1 0:26 / {tmp_path}/cg rw - cgroup2 cgroup2 rw\n", "0::/user.slice\n")
    assert limits.version == 0
    assert limits.sentence() == (
        f"Memory and CPU limits are not enforced: {own} has no cpu and no memory controller."
    )


def test_v2_that_is_not_delegated(tmp_path: Path) -> None:
    own = tmp_path / "cg" / "user.slice"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpu memory pids\n")
    limits = machine(tmp_path, f"30 1 0:26 / {tmp_path}/cg rw - cgroup2 cgroup2 rw\n", "0::/user.slice\n")
    assert "is not delegated to the plane" in limits.sentence()
    assert "Delegate=yes" in limits.sentence()


def test_v1_with_missing_mounts(tmp_path: Path) -> None:
    mounts = f"30 1 0:26 / {tmp_path}/gone rw - cgroup cgroup rw,memory\n"
    sentence = machine(tmp_path, mounts, "4:memory:/x\n").sentence()
    assert f"{tmp_path}/gone/x is not writable (No such file or directory)" in sentence
    assert "the cpu controller is not mounted" in sentence


@pytest.mark.parametrize(
    ("seen", "own", "folder"),
    [
        ("/", "/", "/cg"),
        ("/", "/a/b", "/cg/a/b"),
        ("/a", "/a/b", "/cg/b"),
        ("/a", "/a", "/cg"),
        ("/", "/../x", "/cg"),
    ],
)
def test_the_folder_of_the_own_group(seen: str, own: str, folder: str) -> None:
    assert cgroup_limits._own_folder(("/cg", seen), own) == folder


def test_the_settings_of_a_group() -> None:
    second = cgroup_limits.Limits(2, "/cg", "/cg")
    assert cgroup_limits.groups(second, "j-1-0", 1500, GIB) == [
        (
            "/cg/dovetail-j-1-0",
            [
                ("memory.max", str(GIB)),
                ("?memory.swap.max", "0"),
                ("?memory.oom.group", "1"),
                ("cpu.max", "150000 100000"),
            ],
        )
    ]
    assert cgroup_limits.groups(second, "j-1-0", 0, 0) == [("/cg/dovetail-j-1-0", [])]
    first = cgroup_limits.Limits(1, "/m", "/c")
    assert cgroup_limits.groups(first, "k", 1, 0) == [
        ("/m/dovetail-k", []),
        ("/c/dovetail-k", [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "1000")]),
    ]
    assert [
        group for group, _ in cgroup_limits.groups(cgroup_limits.Limits(1, "/m", "", "why"), "k", 500, 1)
    ] == ["/m/dovetail-k"]


def test_out_of_memory_kills_are_counted(tmp_path: Path) -> None:
    assert not cgroup.ran_out_of_memory(str(tmp_path))
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 0\n")
    assert not cgroup.ran_out_of_memory(str(tmp_path))
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 1\n")
    assert cgroup.ran_out_of_memory(str(tmp_path))
