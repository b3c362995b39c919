"""A state folder and its database belong together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.control import harness

from dovetail.control.binding import FILE, bind
from dovetail.control.serve import Wanted, plane_up
from dovetail.control.store import FOLDER, BadStore, Store, url_of
from dovetail.model.errors import InputError


def start(folder: Path, database: str | None = None, **more: Any) -> str:
    """Start a plane and stop it; returns the id that its folder and its database have."""
    with plane_up(Wanted(folder=folder, database=database, virtual="1x1", port=1, **more)) as up:
        assert up.plane.leads
        return up.plane.store.folder


def refused(folder: Path, database: str | None = None, **more: Any) -> str:
    with pytest.raises(InputError) as error:
        start(folder, database, **more)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_second_state_folder_on_the_same_database_is_refused(
    database: Callable[[], str], tmp_path: Path
) -> None:
    url, one, two = database(), tmp_path / "one", tmp_path / "two"
    with plane_up(Wanted(folder=one, database=url, virtual="1x1", port=1)) as up:
        assert up.plane.leads
        said = refused(two, url)
        assert f"belongs to the state folder {one}, not to {two}; start with --state {one}" in said
        assert f"the plane at {up.url} leads" in refused(two, url, rebind=True)
        assert not two.exists(), "nothing is written"
        with plane_up(Wanted(folder=one, database=url, virtual="1x1", port=2)) as other:
            assert not other.plane.leads, "a second plane on the same folder waits"


def test_up_with_another_state_folder_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    start(tmp_path / "one", url)
    words = ["up", "--state", str(tmp_path / "two"), "--database", url, "--virtual", "1x1"]
    port = ["--port", str(harness.free_port())]
    command = [sys.executable, "-m", "dovetail.cli", *words, *port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"error: the database {url} belongs to the state folder {tmp_path / 'one'}, "
        f"not to {tmp_path / 'two'}; start with --state {tmp_path / 'one'}, "
        f"or if its files are lost, add --rebind\n"
    )


def test_a_folder_of_another_database_is_refused(database: Callable[[], str], tmp_path: Path) -> None:
    url, folder = database(), tmp_path / "state"
    start(folder, url)
    said = refused(folder)  # --database was forgotten
    assert f"the state folder {folder} belongs to the database postgresql+psycopg://postgres@/" in said
    assert "name it with --database" in said
    assert not (folder / "plane.db").exists(), "nothing is written"
    other = database()
    assert "belongs to the database" in refused(folder, other)
    assert start(folder, url)


def test_a_database_or_a_folder_that_is_lost_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    first = start(folder)
    (folder / "plane.db").rename(tmp_path / "lost")
    said = refused(folder)
    assert "is new or was emptied; restore it from a backup" in said
    assert not (folder / "plane.db").exists()
    (tmp_path / "lost").rename(folder / "plane.db")
    assert start(folder) == first
    (folder / FILE).unlink()
    assert f"the state folder {folder} of the database" in refused(folder)
    second = start(folder, rebind=True)
    assert second != first
    assert start(folder) == second


def test_a_folder_may_be_moved_with_its_database(tmp_path: Path) -> None:
    first = start(tmp_path / "state")
    (tmp_path / "state").rename(tmp_path / "moved")
    assert start(tmp_path / "moved") == first
    url = f"sqlite:///{tmp_path / 'moved' / 'plane.db'}"
    assert f"start with --state {tmp_path / 'moved'}," in refused(tmp_path / "other", url)


def test_a_plane_from_before_is_bound_at_its_first_start(tmp_path: Path) -> None:
    with harness.stored(tmp_path) as store:
        assert store.value("folder") is None
    start(tmp_path)
    with harness.stored(tmp_path) as store:
        assert json.loads(store.value("folder") or "")["folder"] == str(tmp_path)


def test_a_first_start_that_was_interrupted_is_no_reason_to_refuse(tmp_path: Path) -> None:
    with harness.stored(tmp_path) as store:
        first = bind(tmp_path, store)
        store.keep("folder", json.dumps({"id": first, "folder": str(tmp_path)}))
        kept = json.loads((tmp_path / FILE).read_text())
        (tmp_path / FILE).write_text(json.dumps({**kept, "bound": False}))  # killed before the last write
        assert bind(tmp_path, store) == first
        with store.transaction() as connection:
            connection.exec_driver_sql("DELETE FROM meta WHERE key = 'folder'")
        (tmp_path / FILE).write_text(json.dumps({**kept, "bound": False}))  # killed before the second
        assert bind(tmp_path, store) == first


def test_a_power_cut_cannot_leave_the_id_to_the_database_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file, its folder and the name of the folder are on disk before the database has the id."""
    folder = tmp_path / "state"
    folder.mkdir()
    store = Store(url_of(None, folder))
    store.migrate()
    synced: list[tuple[str, bool, bool]] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        in_database = store.value(FOLDER) is not None
        synced.append((os.readlink(f"/proc/self/fd/{handle}"), (folder / FILE).exists(), in_database))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    try:
        bind(folder, store)
    finally:
        store.close()
    assert (str(folder), True, False) in synced
    assert (str(tmp_path), True, False) in synced
    assert synced[0][0].startswith(f"{folder}/.{FILE}."), synced


def test_two_planes_that_start_at_once_agree(database: Callable[[], str], tmp_path: Path) -> None:
    url = url_of(database(), tmp_path)
    stores = [Store(url) for _ in range(4)]
    stores[0].migrate()
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda store=store: found.append(bind(tmp_path, store))) for store in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for store in stores:
        store.close()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_a_plane_that_waits_does_not_lead_on_a_database_that_was_bound_anew(
    database: Callable[[], str], tmp_path: Path
) -> None:
    url = url_of(database(), tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    waits, leads = Store(url), Store(url)
    try:
        waits.migrate()
        waits.folder = bind(tmp_path / "one", waits)
        leads.folder = bind(tmp_path / "two", leads, rebind=True)
        with pytest.raises(BadStore, match="was bound to another state folder"):
            waits.lead("http://one")
        assert leads.lead("http://two")
    finally:
        waits.close()
        leads.close()
