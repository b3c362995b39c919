"""Control groups: for real where this machine lets us, and on folders that look like other machines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.engines.conftest import Bench, bash

from dovetail.engines import cgroup
from dovetail.engines.launch import Share
from dovetail.model.units import GIB, MIB

HERE = cgroup.detect()
kept_here = pytest.mark.skipif(not HERE.memory, reason=HERE.sentence())


# --- this machine -----------------------------------------------------------------------------------


def test_what_is_enforced_is_said(bench: Bench) -> None:
    said = bench.engine.describe_limits()
    assert said.endswith(".")
    assert "enforced" in said
    assert said == HERE.sentence()


@kept_here
def test_over_its_memory_is_the_end(bench: Bench) -> None:
    eat = f"{sys.executable} -I -S -c 'x = b\"x\" * (300 << 20)'; exit 1"
    end = bench.run(bash(eat, shares=(Share("n0", (), memory=64 * MIB),)))
    assert (end.code, end.cause) == (137, "oom")
    assert "over its memory limit" in end.detail
    assert "\n" not in end.detail
    assert left_over(bench) == []


@kept_here
def test_within_its_memory_it_is_left_alone(bench: Bench) -> None:
    end = bench.run(bash("kill -KILL $$", shares=(Share("n0", (), memory=64 * MIB),)))
    assert (end.code, end.cause) == (137, "exited")


@kept_here
def test_limits_stand_while_it_runs(bench: Bench) -> None:
    bench.engine.start(bash("cat /proc/self/cgroup; echo up; sleep 300", shares=(Share("n0", (), 500, GIB),)))
    bench.says("up")
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
    """The groups of this test's attempt that are there."""
    launch = (bench.folder() / "launch.json").read_text()
    found = [p for base in {HERE.memory, HERE.cpu} if base for p in Path(base).glob(f"{cgroup.PREFIX}j-*")]
    return [group for group in found if str(group) in launch]


# --- other machines ---------------------------------------------------------------------------------


def machine(folder: Path, mounts: str, membership: str) -> cgroup.Limits:
    (folder / "mountinfo").write_text(mounts)
    (folder / "membership").write_text(membership)
    return cgroup.detect(str(folder / "mountinfo"), str(folder / "membership"))


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    limits = machine(tmp_path, "21 1 0:20 / /proc rw - proc proc rw\n", "")
    assert limits.sentence() == "Memory and CPU limits are not enforced: no control groups are mounted."
    assert cgroup.groups(limits, "j-1-0", 500, GIB) == []


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


def test_v2_that_is_not_handed_down(tmp_path: Path) -> None:
    own = tmp_path / "cg" / "user.slice"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpu memory pids\n")
    limits = machine(tmp_path, f"30 1 0:26 / {tmp_path}/cg rw - cgroup2 cgroup2 rw\n", "0::/user.slice\n")
    assert "is not delegated to the plane" in limits.sentence()
    assert "Delegate=yes" in limits.sentence()


def test_v1_that_is_not_mounted_whole(tmp_path: Path) -> None:
    mounts = f"30 1 0:26 / {tmp_path}/gone rw - cgroup cgroup rw,memory\n"
    said = machine(tmp_path, mounts, "4:memory:/x\n").sentence()
    assert f"{tmp_path}/gone/x is not writable (No such file or directory)" in said
    assert "the cpu controller is not mounted" in said


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
def test_the_own_group_is_found_in_what_is_mounted(seen: str, own: str, folder: str) -> None:
    assert cgroup._below(("/cg", seen), own) == folder


def test_what_is_written_for_a_share() -> None:
    second = cgroup.Limits(2, "/cg", "/cg")
    assert cgroup.groups(second, "j-1-0", 1500, GIB) == [
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
    assert cgroup.groups(second, "j-1-0", 0, 0) == [("/cg/dovetail-j-1-0", [])]
    first = cgroup.Limits(1, "/m", "/c")
    assert cgroup.groups(first, "k", 1, 0) == [
        ("/m/dovetail-k", []),
        ("/c/dovetail-k", [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "1000")]),
    ]
    assert [group for group, _ in cgroup.groups(cgroup.Limits(1, "/m", "", "why"), "k", 500, 1)] == [
        "/m/dovetail-k"
    ]


def test_v2_counts_what_it_killed(tmp_path: Path) -> None:
    assert not cgroup.ran_out_of_memory(str(tmp_path))
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 0\n")
    assert not cgroup.ran_out_of_memory(str(tmp_path))
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 1\n")
    assert cgroup.ran_out_of_memory(str(tmp_path))
