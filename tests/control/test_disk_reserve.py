"""A full disk: jobs can still be cancelled, and their ends are recorded."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.control import harness

from dovetail.control import commands, disk_reserve, submission, tables
from dovetail.control.plane import Plane
from dovetail.control.request import parse_request
from dovetail.control.serve import Wanted, plane_up
from dovetail.control.store import StoreError
from dovetail.control.tokens import Caller

ANN = Caller("ann", "team", "ann", "user")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)]
    try:
        subprocess.run(words, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as problem:
        pytest.skip(f"needs to mount a small file system: {problem}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def submit(plane: Plane, run: str, **more: Any) -> str:
    body = {"run": run, "resources": {"gpus": 1}, **more}
    return submission.submit(plane, ANN, parse_request(body), body).id


def states(plane: Plane) -> dict[str, str]:
    with plane.store.reading() as connection:
        return {row.id: row.state for row in connection.execute(sa.select(tables.jobs))}


def fill(file: Path) -> None:
    with file.open("ab", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError:
            pass


def test_a_job_that_fills_the_disk_can_be_cancelled(small_disk: Path, tmp_path: Path) -> None:
    """The disk stays full, but for the reserve, until the job is gone and its files are removed."""
    folder, full = small_disk / "state", tmp_path / "full"
    with plane_up(Wanted(folder=folder, virtual="1x2:A100")) as up:
        plane = up.plane
        harness.eventually((folder / "reserve").exists)
        culprit = submit(
            plane, f"trap '' TERM; cat /dev/zero > fill; touch {full}; sleep 300", checkpoint={"grace": 0}
        )
        bystander = submit(plane, "sleep 300")
        waiting = submit(plane, "sleep 300")
        harness.eventually(full.exists)
        fill(small_disk / "filler")

        def refused() -> bool:
            try:
                submit(plane, "true")
            except StoreError as error:
                return "full" in str(error)
            return False

        harness.eventually(refused)

        def cancelled() -> bool:
            try:
                commands.TO_JOBS["cancel"](plane, [culprit])
            except StoreError:
                return False
            return True

        harness.eventually(cancelled)
        harness.eventually(lambda: states(plane)[culprit] == "cancelled", "that the culprit is cancelled")
        assert states(plane)[bystander] == "running"
        (small_disk / "filler").unlink()
        (folder / "attempts" / culprit / "1" / "run" / "fill").unlink()
        harness.eventually(lambda: states(plane)[waiting] == "running", "that the next job starts")
        commands.TO_JOBS["cancel"](plane, [bystander, waiting])
        harness.eventually(lambda: set(states(plane).values()) == {"cancelled"})
    harness.nobody_left(folder)


def test_the_reserve_is_given_back_on_a_full_disk_and_made_again_later(small_disk: Path) -> None:
    reserve = small_disk / disk_reserve.NAME
    disk_reserve.keep(small_disk)
    size = reserve.stat().st_size
    assert size == disk_reserve.disk_of(small_disk).reserve > 1_000_000
    disk_reserve.check_space(small_disk)
    assert not disk_reserve.release(small_disk), "not on a disk with space"
    fill(small_disk / "filler")
    with pytest.raises(StoreError, match="is full"):
        disk_reserve.check_space(small_disk)
    assert disk_reserve.release(small_disk)
    assert not disk_reserve.release(small_disk)
    assert disk_reserve.disk_of(small_disk).free >= size
    with pytest.raises(StoreError, match="no job is accepted"):
        disk_reserve.check_space(small_disk)
    disk_reserve.keep(small_disk)
    assert not reserve.exists(), "not while the disk is full"
    (small_disk / "filler").unlink()
    disk_reserve.keep(small_disk)
    assert reserve.stat().st_size == size
