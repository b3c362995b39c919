"""The store when something is wrong with it: half made, full, damaged, of another version, or not there."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.control import harness

from dovetail.control import commands, migrations, startup, submission, tables
from dovetail.control.plane import Plane
from dovetail.control.request import parse_request
from dovetail.control.serve import Wanted, plane_up
from dovetail.control.store import BadStore, Batch, Store, StoreError, url_of
from dovetail.control.tokens import Caller

ANN = Caller("ann", "team", "ann", "user")


# --- migrations --------------------------------------------------------------------------------------


def shape(url: str) -> dict[str, Any]:
    """All that a database knows of the tables but the order of their columns."""
    engine = sa.create_engine(url)
    seen = sa.inspect(engine)
    found = {}
    for name in seen.get_table_names():
        columns = {column.pop("name"): column for column in map(dict, seen.get_columns(name))}
        for column in columns.values():
            column["type"] = str(column["type"])
        parts: list[Any] = [
            seen.get_foreign_keys(name),
            seen.get_unique_constraints(name),
            seen.get_indexes(name),
        ]
        found[name] = (
            columns,
            seen.get_pk_constraint(name),
            [sorted(part, key=lambda one: str(one["name"])) for part in parts],
        )
    engine.dispose()
    return found


def wanted_shape(url: str) -> dict[str, Any]:
    """What the code expects: its tables, and that of the version."""
    engine = sa.create_engine(url)
    tables.metadata.create_all(engine)
    migrations.schema.create(engine)
    engine.dispose()
    return shape(url)


def migrate(url: str, version: int = migrations.LATEST) -> None:
    with contextlib.closing(Store(url)) as store:
        store.migrate(version)


def test_migrations_lead_to_the_tables_on_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'migrated.db'}"
    migrate(url)
    found = shape(url)
    assert found == wanted_shape(f"sqlite:///{tmp_path / 'made.db'}")
    assert len(found["jobs"][0]) > 40
    migrate(url)  # once more changes nothing
    assert shape(url) == found


def test_migrations_lead_to_the_tables_on_postgresql(database: Callable[[], str]) -> None:
    url = url_of(database(), Path())
    migrate(url)
    found = shape(url)
    assert found == wanted_shape(url_of(database(), Path()))
    migrate(url)
    assert shape(url) == found


def test_planes_of_one_process_make_their_tables_at_the_same_time(tmp_path: Path) -> None:
    """As with `dovetail fidelity`, which starts one for each policy."""
    urls = [f"sqlite:///{tmp_path / f'{number}.db'}" for number in range(6)]
    start = threading.Barrier(len(urls))

    def made(url: str) -> dict[str, Any]:
        start.wait()
        migrate(url)
        return shape(url)

    with ThreadPoolExecutor(len(urls)) as threads:
        found = list(threads.map(made, urls))
    expected = wanted_shape(f"sqlite:///{tmp_path / 'made.db'}")
    assert all(one == expected for one in found)


def test_a_plane_killed_while_it_makes_its_tables_can_be_started_again(tmp_path: Path) -> None:
    with harness.nursed() as nursery:
        survived = False
        for number in range(1, 100, 3):
            folder = tmp_path / str(number)
            folder.mkdir()
            nursery.boot("plane", folder, fault=("migrate inside", number))
            harness.eventually(lambda: nursery.dead("plane", 0.05) or (folder / "plane.sock").exists())  # noqa: B023
            survived = "plane" in nursery.pids
            nursery.kill("plane")
            nursery.boot("plane", folder)
            line = harness.Line(folder)
            harness.eventually(lambda: nursery.dead("plane", 0.05) or (folder / "plane.sock").exists())  # noqa: B023
            assert not list(folder.glob("*.failed")), [f.read_text() for f in folder.glob("*.failed")]
            assert line.ask(do="states") == {}
            line.hang_up()
            nursery.kill("plane")
            if survived:
                break
        assert survived
        assert number > 10


# --- a full disk -------------------------------------------------------------------------------------


def submit(plane: Plane, run: str = "true", key: str | None = None, **more: Any) -> str:
    body = {"run": run, "resources": {"gpus": 1}, **more}
    return submission.submit(plane, ANN, parse_request(body), body, key).id


def rows(plane: Plane) -> dict[str, str]:
    with plane.store.reading() as connection:
        return {
            row.id: row.state for row in connection.execute(sa.select(tables.jobs.c.id, tables.jobs.c.state))
        }


def test_a_database_without_room_refuses_clearly_and_goes_on_later(tmp_path: Path) -> None:
    with plane_up(Wanted(folder=tmp_path / "state", virtual="2x4:A100")) as up:
        plane = up.plane
        accepted = [submit(plane)]
        harness.eventually(lambda: set(rows(plane).values()) == {"completed"})
        room = [1_000_000]

        def limited(connection: Any, *_: Any) -> None:
            connection.execute(f"PRAGMA max_page_count={room[0]}")

        sa.event.listen(plane.store.engine, "checkout", limited)
        with plane.store.reading() as connection:
            room[0] = int(connection.exec_driver_sql("PRAGMA page_count").scalar_one()) + 8
        refusals = []
        filler = "x" * 3_000
        for number in range(40):
            try:
                accepted.append(submit(plane, f"true # {filler}", key=f"k{number}", hold=True))
            except StoreError as error:
                refusals.append((number, str(error)))
                if len(refusals) == 2:
                    break
        assert len(refusals) == 2
        assert all("full" in told and "\n" not in told for _, told in refusals)
        assert set(rows(plane)) == set(accepted)
        room[0] = 1_000_000

        def again() -> str:
            try:
                return submit(plane, f"true # {filler}", key=f"k{refusals[0][0]}", hold=True)
            except StoreError:
                return ""

        # The key of one that was refused is not taken for that of one that was accepted.
        accepted.append(harness.eventually(again))
        assert set(commands.release(plane, accepted)) == set(accepted[1:])
        harness.eventually(lambda: set(rows(plane).values()) == {"completed"})
        assert set(rows(plane)) == set(accepted)
        assert not plane.trouble


def test_a_plane_that_cannot_write_does_not_read_its_jobs_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a hundred thousand jobs, a look each second would take all of the machine."""
    done: list[str] = []
    commit, loaded = Store.commit, startup.loaded

    def full(store: Store, batch: Batch) -> None:
        done.append("write")
        if done.count("write") < 4:
            raise StoreError("the disk is full")
        commit(store, batch)

    def counted(*given: Any) -> Any:
        done.append("load")
        return loaded(*given)

    with plane_up(Wanted(folder=tmp_path / "state", virtual="1x2:A100")) as up:
        monkeypatch.setattr(startup, "loaded", counted)
        monkeypatch.setattr(Store, "commit", full)
        with pytest.raises(StoreError):
            submit(up.plane)
        harness.eventually(lambda: "load" in done and not up.plane.trouble, "that the plane records again")
        assert done[:5] == ["write"] * 4 + ["load"]
        submit(up.plane)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A file system of few megabytes, yet more than a log of the database takes, if one may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    try:
        made = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    except OSError:
        made = False
    yield folder if made else None
    if made:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_refuses_clearly_and_goes_on_later(small_disk: Path | None) -> None:
    """As above, with database, attempts and exits on that disk. Where none may be mounted that must do."""
    if small_disk is None:
        return
    traces = harness.traces_in(small_disk.parent)
    with harness.nursed() as nursery:
        nursery.boot("plane", small_disk)
        line = harness.Line(small_disk)

        def submitted(kind: str, key: str, **more: Any) -> list[str]:
            asked = {"caller": "red", "key": key, "body": harness.body(kind, traces, gpus=1, **more)}
            ids: list[str] = line.ask(do="submit", **asked)
            return ids

        accepted = submitted("long", "before")
        accepted += submitted("abrupt", "array", array="0-19%6")
        harness.eventually(lambda: line.ask(do="states").get("running"))
        with open(small_disk / "filler", "wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(b"x" * 4096)
        told = ""
        for number in range(300):  # what the log has left may do for some
            try:
                accepted += submitted("short", f"k{number}")
            except harness.Refused as error:
                told = str(error)
                break
        assert told.startswith("StoreError"), told
        assert "full" in told or "No space" in told
        (small_disk / "filler").unlink()

        def again() -> list[str]:
            try:
                return submitted("short", f"k{number}")
            except harness.Refused:
                return []

        accepted += harness.eventually(again)
        harness.eventually(lambda: set(line.ask(do="states")) == {"completed"}, line.ask(do="states"))
        assert line.ask(do="states") == {"completed": len(accepted)}
        line.hang_up()
        nursery.kill("plane", signal.SIGTERM)
        harness.nobody_left(small_disk)
        _, ended = harness._trace(traces / "trace")
        assert {key[0] for key in ended} == set(accepted)
        assert len(ended) == len(accepted)


# --- what `dovetail up` says -------------------------------------------------------------------------


def up_fails(folder: Path, *options: str, port: int | None = None) -> str:
    """What it says on its way out: exit code 2 and one line."""
    command = [sys.executable, "-m", "dovetail.cli", "up", "--state", str(folder), "--virtual", "1x1:A100"]
    command += ["--port", str(port or harness.free_port()), *options]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 2, (made.returncode, made.stderr)
    assert made.stdout == ""
    assert made.stderr.count("\n") == 1, made.stderr
    assert made.stderr.startswith("error: ")
    return made.stderr


def made_store(folder: Path) -> Path:
    """The database of a plane that has run some jobs."""
    with plane_up(Wanted(folder=folder, virtual="2x4:A100")) as up:
        for _ in range(3):
            submit(up.plane, array="0-9")
        harness.eventually(lambda: set(rows(up.plane).values()) == {"completed"})
    return folder / "plane.db"


def test_a_state_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    said = up_fails(tmp_path / "file" / "state")
    assert "cannot be written" in said
    assert (tmp_path / "file").read_text() == "mine"


def test_a_corrupt_database_is_named_and_left_alone(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage"
    garbage.mkdir()
    (garbage / "plane.db").write_bytes(os.urandom(20_000))
    damaged = made_store(tmp_path / "damaged")
    data = bytearray(damaged.read_bytes())
    for page in range(2, len(data) // 4096, 3):
        data[page * 4096 : page * 4096 + 64] = bytes(b ^ 0xFF for b in data[page * 4096 : page * 4096 + 64])
    damaged.write_bytes(data)
    for file in (garbage / "plane.db", damaged):
        before = file.read_bytes()
        said = up_fails(file.parent)
        assert "corrupt" in said
        assert str(file) in said
        assert file.read_bytes() == before


def test_whichever_page_is_damaged_it_is_said_in_one_line(tmp_path: Path) -> None:
    file = made_store(tmp_path)
    whole = file.read_bytes()
    told = set()
    for start in range(4096, len(whole), 4096):
        file.write_bytes(
            whole[:start] + bytes(b ^ 0xFF for b in whole[start : start + 64]) + whole[start + 64 :]
        )
        try:
            Store(url_of(None, tmp_path)).close()
        except BadStore as error:
            told.add(str(error))
    assert len(told) > 10  # some pages are free, and damage there is no loss
    assert all("corrupt" in line and "\n" not in line for line in told)


def test_a_torn_log_costs_only_what_was_torn_off(tmp_path: Path) -> None:
    """The last commits may be gone with the disk's promise; the plane goes on from those before."""
    traces = harness.traces_in(tmp_path)
    with harness.nursed() as nursery:
        nursery.boot("plane", tmp_path)
        line = harness.Line(tmp_path)
        for _ in range(10):
            line.ask(do="submit", caller="red", key=None, body=harness.body("short", traces, hold=True))
        nursery.kill("plane")
        line.hang_up()
        log = tmp_path / "plane.db-wal"
        os.truncate(log, log.stat().st_size * 2 // 3 + 11)
        nursery.boot("plane", tmp_path)
        assert 0 < line.ask(do="states")["held"] <= 10
        assert line.ask(do="disagreements") == []
        line.hang_up()
        nursery.kill("plane", signal.SIGTERM)
    assert not list(tmp_path.glob("*.failed"))


def as_alembic_kept_it(url: str, version: str) -> None:
    """Give the database the table in which earlier commits kept the version, instead of ours."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE dovetail_schema")
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)")
        connection.exec_driver_sql(f"INSERT INTO alembic_version VALUES ('{version}')")
    engine.dispose()


@pytest.mark.parametrize("keeps", ["dovetail", "alembic"])
def test_a_database_of_a_newer_version(tmp_path: Path, keeps: str) -> None:
    url = url_of(None, tmp_path)
    migrate(url)
    if keeps == "alembic":
        as_alembic_kept_it(url, "9999")
    else:
        with contextlib.closing(sqlite3.connect(tmp_path / "plane.db")) as database, database:
            database.execute("UPDATE dovetail_schema SET version = 9999")
    before = dumped(tmp_path / "plane.db")
    said = up_fails(tmp_path)
    assert f"newer Dovetail (its tables have version 9999, known are those up to {migrations.LATEST})" in said
    assert dumped(tmp_path / "plane.db") == before


def dumped(file: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(file)) as database:
        return list(database.iterdump())


def test_a_port_that_is_taken_and_a_second_plane(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with harness.listening() as taken:
        said = up_fails(folder, port=taken)
        assert "cannot listen" in said
        assert not folder.exists()
    with plane_up(Wanted(folder=folder, virtual="1x1:A100")) as up:
        said = up_fails(folder)
        assert "already runs" in said
        assert str(os.getpid()) in said
        submit(up.plane)
        harness.eventually(lambda: set(rows(up.plane).values()) == {"completed"})


def test_passwords_stay_out_of_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = "hunter2-s3cret"
    urls = (
        f"postgresql://ann:{secret}@127.0.0.1:1/plane",
        f"postgres://ann:{secret}@127.0.0.1:1/plane?connect_timeout=1",
        f"postgresql://ann@127.0.0.1:1/plane?password={secret}",
        f"mysql://ann:{secret}@127.0.0.1/plane",
        f"postgresql://ann:{secret}@[bad",
        f"postgresql://ann:{secret}@127.0.0.1:port/plane",
    )
    for url in urls:
        with pytest.raises(BadStore) as raised:
            Store(url_of(url, tmp_path))
        assert secret not in str(raised.value), url
        assert "\n" not in str(raised.value)
    said = up_fails(tmp_path / "state", "--database", urls[0])
    assert secret not in said
    for file in (tmp_path / "state").glob("*"):
        assert file.is_dir() or secret not in file.read_text()
    assert secret not in caplog.text


# --- a store of an earlier release ------------------------------------------------------------------


DATA = Path(__file__).parent / "data"


def test_a_database_of_the_first_version_is_upgraded(tmp_path: Path) -> None:
    """A plane of that version made it: one job ran twice, one waited for it, and one is held."""
    with contextlib.closing(sqlite3.connect(tmp_path / "plane.db")) as database:
        database.executescript((DATA / "schema-version-1.sql").read_text())
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
    with plane_up(Wanted(folder=tmp_path, virtual="1x2")) as up:
        assert rows(up.plane) == {"854xyh": "completed", "j6fd8g": "completed", "xggddm": "held"}
        assert up.plane.policy == ("kueue", {"whole": True, "score": "pack"}), "it keeps its own"
        commands.release(up.plane, ["xggddm"])
        harness.eventually(lambda: set(rows(up.plane).values()) == {"completed"}, "the end of all jobs")
        with up.plane.store.reading() as connection:
            columns = (tables.jobs.c.held_time, tables.jobs.c.wait_time)
            found = connection.execute(sa.select(*columns).order_by(tables.jobs.c.seq)).all()
    assert [tuple(row) for row in found[:2]] == [(3_293_620, 0), (2_207_772, 2_261_194)]
    assert shape(url_of(None, tmp_path)) == wanted_shape(f"sqlite:///{tmp_path / 'made.db'}")


def test_every_earlier_version_is_upgraded_on_postgresql(database: Callable[[], str]) -> None:
    expected = wanted_shape(url_of(database(), Path()))
    for version in migrations.VERSIONS:
        url = url_of(database(), Path())
        migrate(url, version)
        assert (shape(url) == expected) == (version == migrations.LATEST)
        as_alembic_kept_it(url, f"{version:04}")
        migrate(url)
        assert shape(url) == expected, version


def test_the_table_of_another_program_that_uses_alembic_is_left_alone(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "plane.db")) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)")
        database.execute("INSERT INTO alembic_version VALUES ('0004')")
    migrate(url_of(None, tmp_path))
    with contextlib.closing(sqlite3.connect(tmp_path / "plane.db")) as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [("0004",)]
        assert database.execute("SELECT version FROM dovetail_schema").fetchall() == [(migrations.LATEST,)]
    found = shape(url_of(None, tmp_path))
    assert found.pop("alembic_version")
    assert found == wanted_shape(f"sqlite:///{tmp_path / 'made.db'}")


class Canary:
    """Unpickled it leaves a file behind."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self._file,))


@pytest.mark.parametrize("last", [3, 0])  # the step of the last snapshot; the journal goes on to step 3
def test_a_snapshot_of_version_1_is_used_without_its_pickle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, last: int
) -> None:
    """It kept the memory of a policy as a pickle, which could run any code when it was read."""
    folder, sung = tmp_path / "state", tmp_path / "sung"
    folder.mkdir()
    with contextlib.closing(sqlite3.connect(folder / "plane.db")) as database:
        database.executescript((DATA / "snapshot-version-1.sql").read_text())
        database.execute("DELETE FROM snapshots WHERE number > ?", (last,))
        query = "SELECT state FROM snapshots WHERE number = ?"
        taken = json.loads(zlib.decompress(database.execute(query, (last,)).fetchone()[0]))
        assert taken["version"] == 1
        taken["memory"] = base64.b64encode(pickle.dumps(Canary(sung))).decode()
        state = zlib.compress(json.dumps(taken).encode())
        database.execute("UPDATE snapshots SET state = ? WHERE number = ?", (state, last))
        database.commit()
    with plane_up(Wanted(folder=folder, virtual="1x2")) as up:
        assert up.plane.policy[0] == "slurm"
        assert up.plane.policy_failure is None
        before = rows(up.plane)
        assert sorted(before.values()) == ["pending", "pending", "running"]
        harness.eventually(lambda: set(rows(up.plane).values()) == {"completed"}, "the end of all jobs")
    assert not sung.exists()
    assert "version 1" in caplog.text
    with plane_up(Wanted(folder=folder, virtual="1x2")) as up:  # and from now on there is no pickle
        assert up.plane.policy[0] == "slurm"
    with contextlib.closing(sqlite3.connect(folder / "plane.db")) as database:
        for (state,) in database.execute("SELECT state FROM snapshots WHERE era > 0"):
            assert json.loads(zlib.decompress(state))["version"] > 1


def test_a_migration_tells_its_steps(tmp_path: Path) -> None:
    """So that `up` can show how far it is; a database that is up to date has none."""
    told: list[tuple[int, int]] = []
    store = Store(url_of(None, tmp_path))
    store.migrate(2)
    store.migrate(told=lambda done, steps: told.append((done, steps)))
    steps = told[0][1]
    assert told == [(done, steps) for done in range(steps + 1)]
    assert steps > 1
    store.migrate(told=lambda done, steps: told.append((-1, steps)))
    assert told[-1][0] != -1
    store.close()
