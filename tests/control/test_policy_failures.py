"""A policy that fails does not stop the plane: a stand-in decides, and everybody is told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from tests.control import failing_policies, harness

from dovetail.client.client import Client
from dovetail.control import commands, plane_state, stand_in, submission
from dovetail.control.chosen_policy import PLAIN_POLICY, NamedPolicy
from dovetail.control.plane import Plane
from dovetail.control.request import parse_request
from dovetail.control.serve import Wanted, checked, plane_up
from dovetail.control.stand_in import FIRST_PAUSE, LAST, LONGEST_PAUSE, Deciding, deciding_from
from dovetail.control.store import Batch, StoreError
from dovetail.control.tokens import Caller
from dovetail.model.errors import UnknownName
from dovetail.policies.registry import POLICIES

PLUG_IN = '''
from dovetail.policies.classic import fifo


class Flaky:
    """First come first served, but each n-th decision raises."""

    def __init__(self, every, where):
        self._fifo, self._every, self._where, self._asked = fifo(), every, where, 0
        self.order, self.group, self.quantum = self._fifo.order, self._fifo.group, self._fifo.quantum

    def decide(self, view):
        self._asked += 1
        fails = self._asked % self._every == 0
        if fails and self._where == "before":
            raise ZeroDivisionError("the flaky policy has failed")
        plan = self._fifo.decide(view)
        if fails:
            raise KeyError("the flaky policy has failed with a draft")
        return plan


def flaky(*, every: int = 3, where: str = "before"):
    return Flaky(every, where)


def unmakable():
    raise RuntimeError("the plug-in is broken")
'''


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy `flaky` that is installed as any plug-in is: by an entry point."""
    folder = tmp_path / "plug-in"
    about = folder / "flaky_plug_in-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "flaky_plug_in.py").write_text(PLUG_IN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flaky-plug-in\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[dovetail.policies]\nflaky = flaky_plug_in:flaky\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@contextmanager
def up(folder: Path, *words: str) -> Iterator[tuple[Client, subprocess.Popen[bytes]]]:
    """`dovetail up` as a process of its own. It is killed at the end, as a crash would."""
    state, log = folder / "state", folder / "up.log"
    port = str(harness.free_port())
    command = [sys.executable, "-m", "dovetail.cli", "up", "--state", str(state), "--port", port]
    log.write_bytes(b"")
    with log.open("ab") as output:
        plane = subprocess.Popen(
            [*command, "--virtual", "2x2", "--open-metrics", *words], stdout=output, stderr=output
        )
    try:
        harness.eventually(lambda: "dovetail is up" in log.read_text() or plane.poll() is not None, "a plane")
        assert plane.poll() is None, log.read_text()
        with Client(state=state) as client:
            yield client, plane
    finally:
        plane.kill()
        plane.wait()


def submitted(client: Client, count: int, seconds: float = 0.2) -> list[str]:
    return [
        client.submit(
            {"run": f"sleep {seconds}", "resources": {"gpus": 1 + n % 2}, "time": "10m", "name": f"j{n}"}
        ).id
        for n in range(count)
    ]


def all_completed(client: Client, ids: list[str]) -> bool:
    states = {id: client.job_info(id).state for id in ids}
    assert not set(states.values()) & {"failed", "cancelled", "refused"}, states
    return set(states.values()) == {"completed"}


def metrics(client: Client, name: str) -> float:
    """The sum of a metric over its labels."""
    with urllib.request.urlopen(f"{client.connection.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


def health(client: Client) -> Any:
    with urllib.request.urlopen(f"{client.connection.url}/health") as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize(("where", "stand_in"), [("before", "backfill"), ("after", "sjf")])
def test_a_policy_that_raises_at_every_third_decision_finishes_all_jobs(
    tmp_path: Path, plug_in: Path, where: str, stand_in: str
) -> None:
    wanted = () if stand_in == "backfill" else ("--stand-in", stand_in)
    with up(tmp_path, "--policy", "flaky", "--set", f"where={where}", *wanted) as (client, plane):
        ids = submitted(client, 12)
        harness.eventually(lambda: all_completed(client, ids), "the end of all jobs")
        assert plane.poll() is None
        assert metrics(client, "dovetail_policy_failures_total") >= 1
        journal = client.connection.get("/journal", {"limit": 200})["items"]
        assert any(
            "the flaky policy has failed" in json.loads(row["line"]).get("failure", "") for row in journal
        )
        assert client.policy()["name"] == "flaky"
    log = (tmp_path / "state" / "plane.log").read_text()
    assert "policy flaky failed" in log
    assert "the flaky policy has failed" in log
    assert f"{stand_in} decides, next try in 1 s" in log


def test_a_policy_that_always_raises_is_replaced_and_everybody_is_told(tmp_path: Path, plug_in: Path) -> None:
    """Also after the plane was killed and started again; until a command chooses another policy."""
    with up(tmp_path, "--policy", "flaky", "--set", "every=1") as (client, plane):
        running = client.submit({"run": "sleep 600", "resources": {"gpus": 1}, "time": "1h"}).id
        harness.eventually(lambda: client.job_info(running).state == "running", "a start by the stand-in")
        ids = submitted(client, 4)
        harness.eventually(lambda: all_completed(client, ids), "the end of all jobs")
        blocked = client.submit({"run": "true", "resources": {"gpus": 2}, "nodes": 2, "time": "1h"}).id
        found = client.policy()
        assert found["name"] == "flaky"
        assert found["stand_in"]["policy"] == "backfill"
        assert "the flaky policy has failed" in found["stand_in"]["reason"]
        assert health(client)["stand_in"] is True
        assert metrics(client, "dovetail_stand_in_policy_decides") == 1
        why = client.connection.get(f"/jobs/{blocked}/why")["sentence"]
        assert "policy flaky failed" in why
        assert "backfill decides" in why
        plan = client.connection.post("/plan", {"run": "true", "resources": {"gpus": 1}, "time": "1h"})
        assert any("policy flaky failed" in note for note in plan["notes"])
        before = client.job_info(running)
        plane.send_signal(signal.SIGKILL)
        plane.wait()

    with up(tmp_path) as (client, plane):
        assert client.policy()["name"] == "flaky"
        assert client.policy()["stand_in"]["policy"] == "backfill"
        ids = submitted(client, 2)
        harness.eventually(lambda: all_completed(client, ids), "the end of all jobs")
        after = client.job_info(running)
        assert (after.state, after.started_at) == ("running", before.started_at)
        client.set_policy("fifo")
        assert client.policy()["stand_in"] is None
        assert health(client)["stand_in"] is False
        assert metrics(client, "dovetail_stand_in_policy_decides") == 0
        client.cancel(running)
        harness.eventually(lambda: client.job_info(blocked).state == "completed", "the end of the last job")


def test_a_plane_comes_up_though_its_policy_cannot_be_made_any_more(tmp_path: Path, plug_in: Path) -> None:
    with up(tmp_path, "--policy", "flaky", "--set", "every=1000") as (client, _):
        ids = submitted(client, 6)
    points = plug_in / "flaky_plug_in-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text().replace(":flaky", ":unmakable"))
    with up(tmp_path) as (client, plane):
        harness.eventually(lambda: all_completed(client, ids), "the end of all jobs")
        assert client.policy()["name"] == "flaky"
        assert client.policy()["stand_in"]["policy"] == "backfill"
        assert plane.poll() is None
    points.unlink()
    with up(tmp_path) as (client, plane):
        ids = submitted(client, 2)
        harness.eventually(lambda: all_completed(client, ids), "the end of all jobs")
        assert client.policy()["stand_in"]["policy"] == "backfill"


def test_an_unknown_stand_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no policy is named 'fifoo'"):
        checked(Wanted(folder=tmp_path, virtual="1x1", stand_in="fifoo"))


# --- how long it pauses -------------------------------------------------------------------------------


def test_pauses_double_and_begin_anew_after_a_long_time_without_a_failure() -> None:
    deciding, wall, pauses = Deciding(NamedPolicy("srtf", {})), 0, []
    for _ in range(12):
        assert deciding.failed("a bug", "", wall).named == PLAIN_POLICY
        assert deciding.failure is not None
        pauses.append(deciding.pause)
        assert not deciding.retry_due(wall + deciding.pause - 1)
        wall += deciding.pause
        assert deciding.retry_due(wall)
        deciding.try_again(wall)
        assert not deciding.retry_due(wall)
    assert pauses == [min(FIRST_PAUSE * 2**n, LONGEST_PAUSE) for n in range(12)]
    wall += LONGEST_PAUSE + 1
    deciding.failed("a bug", "", wall)
    assert deciding.pause == FIRST_PAUSE


def test_the_policy_before_stands_in_if_that_is_wanted() -> None:
    deciding = Deciding(NamedPolicy("fifo", {"discipline": "skip"}))
    deciding.choose(NamedPolicy("srtf", {}), 0)
    assert deciding.failed("a bug", LAST, 0).named == ("fifo", {"discipline": "skip"})
    assert deciding.failed("a bug of the stand-in", LAST, 0).named == PLAIN_POLICY
    assert deciding_from(deciding.row()["value"], PLAIN_POLICY) == deciding
    deciding.choose(NamedPolicy("sjf", {}), 0)  # the policy that failed was no good one
    assert deciding.before == ("fifo", {"discipline": "skip"})


# --- other ways to fail -------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, path in failing_policies.REGISTERED.items():
        monkeypatch.setitem(cast("dict[str, str]", POLICIES.paths), name, path)
    monkeypatch.setattr(stand_in, "FIRST_PAUSE", LONGEST_PAUSE)  # it is not tried again meanwhile


def run_jobs(plane: Plane, gpus: tuple[int, ...]) -> None:
    """Submit jobs one after the other, and see all of them end."""
    ids = []
    for count in gpus:
        body = {"run": "sleep 0.1", "resources": {"gpus": count}, "time": "10m"}
        ids.append(
            submission.submit(plane, Caller("ann", "team", "ann", "user"), parse_request(body), body).id
        )
    lookup = plane.store.states_of
    harness.eventually(lambda: set(lookup(ids).values()) == {"completed"}, "the end of all jobs")


@pytest.mark.usefixtures("failing")
def test_an_order_that_raises_while_a_job_is_queued_is_replaced(tmp_path: Path) -> None:
    """The core fails in the middle of a step: what is on record counts."""
    with plane_up(Wanted(folder=tmp_path, policy="raises-in-its-order", virtual="2x2")) as made:
        run_jobs(made.plane, (1, 2, 1, 2))
        assert made.plane.failed is None
        assert made.plane.policy_failure is not None
        assert "two GPUs" in made.plane.policy_failure.sentence


@pytest.mark.usefixtures("failing")
def test_a_memory_that_cannot_be_stored_is_a_failure_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane_state, "SNAPSHOT_EVERY", 3)
    with plane_up(Wanted(folder=tmp_path, policy="keeps-its-object", virtual="2x2")) as made:
        run_jobs(made.plane, (1, 2, 1, 2))
        assert made.plane.policy_failure is not None
        assert "cannot be stored" in made.plane.policy_failure.sentence


def test_a_policy_that_a_command_chose_is_kept_when_the_state_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plane_up(Wanted(folder=tmp_path, policy="fifo", virtual="2x2")) as made:
        plane = made.plane
        commands.switch_policy(plane, "sjf", {})
        commit = plane.store.commit

        def fails_once(batch: Batch) -> None:
            monkeypatch.setattr(plane.store, "commit", commit)
            raise StoreError("the disk is full")

        monkeypatch.setattr(plane.store, "commit", fails_once)
        with pytest.raises(StoreError, match="the disk is full"):
            run_jobs(plane, (1,))
        harness.eventually(lambda: not plane.trouble, "that the plane records again")
        assert plane.policy == ("sjf", {})
        run_jobs(plane, (1, 2))
        assert plane.ask(lambda state, now: state.header.policy) == "sjf"
