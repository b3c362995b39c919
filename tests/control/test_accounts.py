"""Which account of the machine a job runs as: never root because something was left out."""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.control.harness import commanded, eventually

from dovetail import Client
from dovetail.client.connection import Refused
from dovetail.control import commands, tables
from dovetail.control.plane import Plane
from dovetail.control.request import parse_request
from dovetail.control.serve import Wanted, plane_up
from dovetail.control.submission import submit
from dovetail.control.tokens import Caller
from dovetail.model.errors import InputError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other accounts")

ADMIN = Caller("a", "default", "root", "admin")
ANN = Caller("t", "red", "ann", "user")


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plane]:
    monkeypatch.delenv("DOVETAIL_ALLOW_ROOT", raising=False)
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        Path(folder).chmod(0o711)  # other accounts pass through it
        with plane_up(Wanted(folder=Path(folder) / "state", virtual="1x4:A100", port=1)) as up:
            yield up.plane


def submitted(plane: Plane, caller: Caller, **more: Any) -> str:
    body = {"run": "id -un", "resources": {"gpus": 1}, **more}
    return submit(plane, caller, parse_request(body), body).id


def ran_as(plane: Plane, id: str) -> str:
    """The account that an ended job ran as."""

    def ended() -> Any:
        with plane.store.reading() as connection:
            query = sa.select(tables.jobs).where(tables.jobs.c.id == id, tables.jobs.c.ended_at.is_not(None))
            return connection.execute(query).first()

    row = eventually(ended, "the end of the job")
    assert row.state == "completed", row
    return (plane.settings.folder / "attempts" / id / str(row.epoch) / "output.log").read_text().strip()


def test_a_user_of_a_tenant_without_account_is_refused(plane: Plane) -> None:
    with pytest.raises(InputError, match="tenant red has no account, and this plane runs as root") as error:
        submitted(plane, ANN)
    assert "dovetail tenant set red --account" in str(error.value)
    commands.set_tenant(plane, {"name": "red", "quota": 2})
    with pytest.raises(InputError, match="has no account"):
        submitted(plane, ANN)
    commands.set_tenant(plane, {"name": "red", "account": "nobody"})
    assert ran_as(plane, submitted(plane, ANN)) == "nobody"


def test_what_an_admin_submits_runs_as_the_plane_does(plane: Plane) -> None:
    assert ran_as(plane, submitted(plane, ADMIN)) == "root"
    commands.set_tenant(plane, {"name": "red", "account": "nobody"})
    assert ran_as(plane, submitted(plane, ADMIN, queue="red")) == "nobody"


def test_what_a_change_leaves_out_stays(plane: Plane) -> None:
    commands.set_tenant(plane, {"name": "red", "account": "nobody", "quota": 2, "weight": 3.0})
    row = commands.set_tenant(plane, {"name": "red", "quota": 4})
    assert (row["account"], row["quota"], row["weight"]) == ("nobody", 4, 3.0)
    assert ran_as(plane, submitted(plane, ANN)) == "nobody"
    assert commands.set_tenant(plane, {"name": "red", "quota": None})["quota"] is None


def test_a_job_keeps_the_account_that_it_was_accepted_with(plane: Plane) -> None:
    commands.set_tenant(plane, {"name": "red", "account": "nobody"})
    dropped, changed = submitted(plane, ANN, hold=True), submitted(plane, ANN, hold=True)
    commands.drop_tenant(plane, "red")
    commands.release(plane, [dropped])
    assert ran_as(plane, dropped) == "nobody"
    with pytest.raises(InputError, match="has no account"):
        submitted(plane, ANN)
    commands.set_tenant(plane, {"name": "red", "account": "daemon"})
    commands.release(plane, [changed])
    assert ran_as(plane, changed) == "nobody"
    assert ran_as(plane, submitted(plane, ANN)) == "daemon"


def test_a_job_of_an_older_plane_does_not_become_root(plane: Plane) -> None:
    """Its row does not say which account it was accepted with."""
    commands.set_tenant(plane, {"name": "red", "account": "nobody"})
    id = submitted(plane, ANN, hold=True)

    def forget(state: Any, now: int) -> None:
        from dataclasses import replace

        asked = state.ledger.index.asked
        asked[id] = replace(asked[id], account=None)

    plane.change(forget)
    commands.drop_tenant(plane, "red")
    commands.release(plane, [id])

    def ended() -> Any:
        with plane.store.reading() as connection:
            query = sa.select(tables.jobs).where(tables.jobs.c.id == id, tables.jobs.c.state == "failed")
            return connection.execute(query).first()

    assert "has no account" in eventually(ended, "that it failed").reason


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"account": "nosuchone"}, "no account is named nosuchone on this machine"),
        ({"account": "root"}, "would run as root; if you mean that, add --allow-root"),
        ({"account": "nobody", "allow_root": True}, "goes with the account root"),
    ],
)
def test_a_wrong_account_is_refused_when_it_is_set(plane: Plane, row: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        commands.set_tenant(plane, {"name": "red", **row})


def test_root_is_allowed_in_words(plane: Plane) -> None:
    commands.set_tenant(plane, {"name": "red", "account": "root", "allow_root": True})
    assert ran_as(plane, submitted(plane, ANN)) == "root"
    row = commands.set_tenant(plane, {"name": "red", "weight": 2.0})  # a change of something else
    assert row["account"] == "root"


def test_root_is_allowed_for_all_tenants_when_the_plane_starts(tmp_path: Path) -> None:
    wanted = Wanted(folder=tmp_path / "state", virtual="1x4:A100", port=1, allow_root=True)
    with plane_up(wanted) as up:
        assert ran_as(up.plane, submitted(up.plane, ANN)) == "root"


@pytest.mark.slow(5)
def test_the_command_says_who_jobs_run_as(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOVETAIL_ALLOW_ROOT", raising=False)
    with commanded(tmp_path, "--virtual", "1x2") as client:
        said = (tmp_path / "up.log").read_text()
        assert "jobs of admins run as root" in said
        assert "dovetail tenant set NAME --account USER" in said
        client.set_tenant("red", quota=2)
        token = client.create_token("ann", tenant="red", user="ann", role="user")["token"]
        with Client(client.connection.url, token) as ann, pytest.raises(Refused, match="red has no account"):
            ann.submit({"run": "true", "resources": {"gpus": 1}})
        with pytest.raises(Refused, match="would run as root"):
            client.set_tenant("red", account="root")
        client.set_tenant("red", account=pwd.getpwnam("nobody").pw_name)
        assert client.set_tenant("red", quota=1)["account"] == "nobody"
        assert client.set_tenant("red", account="root", allow_root=True)["account"] == "root"
