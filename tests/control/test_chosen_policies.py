"""Policies by name, from plug-ins and from files: on planes and the command line, and not for users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control import harness
from tests.control import test_api as api
from tests.control.test_api import Live
from tests.control.test_policy_failures import up

from dovetail.control import stand_in
from dovetail.control.serve import Wanted, plane_up

FIVE = "id,submit,gpus,duration,tenant\nA,0,4,6h,red\nB,0,2,1h,red\nC,0,1,30m,blue\n"
FILE = '''
"""A policy in a file; it leaves a mark when it is run."""

import pathlib
from dovetail.policies.classic import fifo, sjf

with pathlib.Path(__file__).with_name("mark").open("a") as mark:
    mark.write("run\\n")


def mine(*, shortest: bool = False):
    """Mine, in a file."""
    return sjf() if shortest else fifo()


def nothing():
    return None


def unlucky():
    raise RuntimeError("not today")
'''
PLAIN = """
from dovetail.policies.classic import fifo


def {name}():
    return fifo()
"""


def installed(folder: Path, name: str, code: str | None = None) -> None:
    """Install a plug-in with one policy of this name, as any plug-in is: by an entry point."""
    about = folder / f"{name}_plug_in-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-plug-in\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[dovetail.policies]\n{name} = {name}_plug_in:{name}\n")
    if code is None:
        code = PLAIN.format(name=name)
    (folder / f"{name}_plug_in.py").write_text(code)


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of installed plug-ins."""
    folder = tmp_path / "plug-ins"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "code" / "my_policy.py"
    made.parent.mkdir()
    made.write_text(FILE)
    return made


def dovetail(folder: Path, *words: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ) | {"DOVETAIL_STATE": str(folder / "state")}
    return subprocess.run(
        [sys.executable, "-m", "dovetail.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=at,
    )


def refused(done: subprocess.CompletedProcess[str], *told: str) -> None:
    """It is one clear line on stderr, with exit code 2."""
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    for words in told:
        assert words in done.stderr


def not_up(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return dovetail(folder, "up", "--port", str(harness.free_port()), "--virtual", "2x2", *words)


# --- names --------------------------------------------------------------------------------------------


def test_the_default_can_be_named_when_a_plane_starts_and_in_the_simulator(tmp_path: Path) -> None:
    (tmp_path / "five.csv").write_text(FIVE)
    with up(tmp_path, "--policy", "fifo") as (client, _):
        assert client.policy()["default"] is False
    with up(tmp_path, "--policy", "default", "--stand-in", "default") as (client, _):
        assert client.policy()["default"] is True
        name = client.policy()["name"]
    refused(not_up(tmp_path, "--policy", "default", "--set", "a=1"), "default includes its options")
    simulated = dovetail(
        tmp_path, "simulate", str(tmp_path / "five.csv"), "--cluster", "1x4", "--policy", "default"
    )
    assert simulated.returncode == 0
    assert simulated.stdout.startswith(name)


def test_a_wrong_value_of_an_option_is_refused_and_not_a_bug(tmp_path: Path) -> None:
    with api.living(tmp_path / "plane", api.FAST) as live:
        answer = live.ask("PUT", "policy", "admin", {"name": "fifo", "options": {"discipline": "zz"}})
        assert answer.status == 422
        assert "policy fifo discipline=zz cannot be made" in answer.json["detail"]
        assert live.get("policy")["name"] == "priority"


# --- plug-ins -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", ["import nosuch_module\n", "def broken(:\n", "x = 1\n", "raise SystemExit(3)\n", "broken = 7\n"]
)
def test_one_broken_plug_in_breaks_no_other(tmp_path: Path, plug_ins: Path, code: str) -> None:
    installed(plug_ins, "sound")
    installed(plug_ins, "broken", code)
    told = "policy broken"
    done = dovetail(tmp_path, "policies")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    (row,) = (line for line in done.stdout.splitlines() if line.split()[:1] == ["broken"])
    assert "broken" in row.split()[1:]
    assert (done.stderr.count("\n"), told in done.stderr) == (1, True)
    systems = {
        one["name"]: one for one in json.loads(dovetail(tmp_path, "policies", "--json").stdout)["systems"]
    }
    assert (systems["sound"]["runs"], systems["sound"]["broken"]) == (True, None)
    assert systems["broken"]["runs"] is False
    assert told in systems["broken"]["broken"]
    assert dovetail(tmp_path, "policies", "sound").returncode == 0
    refused(dovetail(tmp_path, "policies", "broken"), told)
    (tmp_path / "five.csv").write_text(FIVE)
    words = ("simulate", str(tmp_path / "five.csv"), "--cluster", "1x4", "--policy")
    refused(dovetail(tmp_path, *words, "broken"), told)
    assert dovetail(tmp_path, *words, "sound").returncode == 0


def test_a_package_with_damaged_metadata_breaks_no_plug_in(tmp_path: Path, plug_ins: Path) -> None:
    installed(plug_ins, "sound")
    installed(plug_ins, "damaged")
    (plug_ins / "damaged_plug_in-1.0.dist-info" / "entry_points.txt").write_text("[dovetail.policies]\nx\n")
    done = dovetail(tmp_path, "policies", "sound")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_plug_in_may_be_installed_while_a_plane_runs(tmp_path: Path, plug_ins: Path) -> None:
    """Found at once; one that this process cannot load is refused in a line that says to restart it."""
    with up(tmp_path, "--policy", "fifo") as (client, _):
        refused(dovetail(tmp_path, "policy", "late"), "no policy is named 'late'", "install its plug-in")
        installed(plug_ins, "late")
        assert dovetail(tmp_path, "policy", "late").returncode == 0
        assert client.policy()["name"] == "late"
        installed(plug_ins, "broken", "import nosuch_module\n")
        done = dovetail(tmp_path, "policy", "broken")
        refused(done, "policy broken", "No module named 'nosuch_module'", "restart the plane")
        installed(plug_ins, "unmakable", "def unmakable():\n    raise RuntimeError('no luck')\n")
        refused(dovetail(tmp_path, "policy", "unmakable"), "RuntimeError: no luck")
        assert (client.policy()["name"], client.policy()["stand_in"]) == ("late", None)
        assert client.connection.get("/policies")["items"]  # the others are listed


def test_a_plane_that_is_up_has_its_policy_on_record(tmp_path: Path) -> None:
    """Also if it is killed before anything happens."""
    for policy in ("fifo", "sjf"):
        with plane_up(Wanted(folder=tmp_path, policy=policy, virtual="2x2")) as made:
            kept = made.plane.store.value(stand_in.KEY)
            assert kept is not None
            assert json.loads(kept)["chosen"][0] == policy
            era = made.plane.store.era()
            assert era is not None
            assert json.loads(era["header"])["policy"] == policy


def test_a_plane_without_its_plug_in_comes_up_and_says_so(tmp_path: Path, plug_ins: Path) -> None:
    installed(plug_ins, "mine")
    with up(tmp_path, "--policy", "mine") as (client, _):
        assert client.policy()["name"] == "mine"
    (plug_ins / "mine_plug_in-1.0.dist-info" / "entry_points.txt").unlink()
    with up(tmp_path) as (client, _):
        said = (tmp_path / "up.log").read_text()
        assert "policy mine cannot be used: it is not installed" in said
        assert "backfill decides meanwhile; choose another with  dovetail policy" in said
        assert client.policy()["stand_in"]["policy"] == "backfill"
        assert client.policy()["stand_in"]["reason"] == "it is not installed"
        done = dovetail(tmp_path, "policy", "default")
        assert (done.returncode, client.policy()["stand_in"]) == (0, None)
    done = not_up(tmp_path, "--policy", "mine")
    refused(done, "no policy is named 'mine'", "install its plug-in", "without --policy the plane starts")


# --- files --------------------------------------------------------------------------------------------


def test_a_file_is_a_policy_in_every_command(tmp_path: Path, file: Path) -> None:
    (tmp_path / "code" / "five.csv").write_text(FIVE)
    at = tmp_path / "code"
    words = ("five.csv", "--cluster", "1x4")
    done = dovetail(tmp_path, "simulate", *words, "--policy", "my_policy.py:mine", at=at)
    assert (done.returncode, done.stdout.startswith("my_policy.py:mine: 3 jobs")) == (0, True), done
    more = ("--policy", "my_policy.py:mine", "--set", "shortest=true", "--journal", "run.jsonl", "--json")
    shortest = dovetail(tmp_path, "simulate", *words, *more, at=at)
    assert shortest.returncode == 0
    assert dovetail(tmp_path, "replay", "run.jsonl", "--at", "2", at=at).returncode == 0
    assert dovetail(tmp_path, "explain", "run.jsonl", "A", at=at).returncode == 0
    names = "fifo,sjf,my_policy.py:mine:shortest=true"
    compared = dovetail(tmp_path, "compare", *words, "--policies", names, "--json", at=at)
    assert compared.returncode == 0, compared
    by_setting = ("--policies", "fifo,my_policy.py:mine", "--set", "my_policy.py:mine.shortest=true")
    again = dovetail(tmp_path, "compare", *words, *by_setting, at=at)
    assert "my_policy.py:mine shortest=true" in again.stdout
    means = [one["figures"]["jct_mean"]["mean"] for one in json.loads(compared.stdout)["policies"]]
    assert means[1] == means[2] < means[0]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my_policy.py:gone", "has no function 'gone'; it has mine, nothing, unlucky"),
        ("nofile.py:mine", "nofile.py cannot be read: No such file or directory"),
        ("my_policy.py:nothing", "is a NoneType without decide"),
        ("my_policy.py:unlucky", "RuntimeError: not today"),
        ("broken.py:mine", "cannot be loaded: SyntaxError"),
    ],
)
def test_a_file_without_a_policy_is_refused_in_one_line(
    tmp_path: Path, file: Path, name: str, told: str
) -> None:
    (tmp_path / "code" / "five.csv").write_text(FIVE)
    (tmp_path / "code" / "broken.py").write_text("def mine(:\n")
    words = ("simulate", "five.csv", "--cluster", "1x4", "--policy", name)
    refused(dovetail(tmp_path, *words, at=tmp_path / "code"), told)
    refused(not_up(tmp_path, "--policy", str(tmp_path / "code" / name)), told)
    assert not (tmp_path / "state").exists()


def test_a_plane_decides_by_a_file_also_after_a_restart(tmp_path: Path, file: Path) -> None:
    with up(tmp_path, "--policy", f"{file}:mine", "--set", "shortest=true") as (client, _):
        assert client.policy()["name"] == f"{file}:mine"
        assert client.policy()["in_force"] == {"shortest": True}
        job = client.submit({"run": "true", "resources": {"gpus": 1}, "time": "1h"})
        assert job.wait(harness.PATIENCE).state == "completed"
    with up(tmp_path) as (client, _):
        assert (client.policy()["name"], client.policy()["stand_in"]) == (f"{file}:mine", None)
        assert dovetail(tmp_path, "policy", "fifo").returncode == 0
        file.write_text(FILE.replace('"""Mine, in a file."""', 'raise OSError("a newer one")'))
        done = dovetail(tmp_path, "policy", "my_policy.py:mine", at=file.parent)
        refused(done, "OSError: a newer one")  # the path is that of the caller, the code that of now
        file.write_text(FILE)
        assert dovetail(tmp_path, "policy", "my_policy.py:mine", at=file.parent).returncode == 0
        assert client.policy()["name"] == f"{file}:mine"
    file.unlink()
    with up(tmp_path) as (client, _):
        said = (tmp_path / "up.log").read_text()
        assert f"policy {file}:mine cannot be used: policy file {file} cannot be read" in said
        assert client.policy()["stand_in"]["policy"] == "backfill"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with api.living(tmp_path / "plane", api.FAST) as made:
        yield made


def test_no_token_of_a_user_makes_a_plane_load_a_file(live: Live) -> None:
    with tempfile.TemporaryDirectory() as folder:  # its path is short enough for every question
        _only_admins_load(live, Path(folder) / "p.py")


def _only_admins_load(live: Live, file: Path) -> None:
    file.write_text(FILE)
    name, mark = f"{file}:mine", file.with_name("mark")
    jobs = [{"id": "a", "duration": 9}]
    for user in ("ann", "eve", "ops", "admin"):
        for tool, body in (
            ("simulate", {"cluster": "1x2", "jobs": jobs, "policy": name}),
            ("compare", {"cluster": "1x2", "jobs": jobs, "policy": name}),
            ("what-if", {"policy": name}),
        ):
            answer = live.ask("POST", f"lab/{tool}", user, body)
            assert answer.status == 422, answer
            assert "only administrators and the command line may name a policy so" in answer.text
    for user in ("ann", "eve", "ops"):
        assert live.ask("PUT", "policy", user, {"name": name}).status == 403
    assert live.ask("PUT", "policy", "admin", {"name": os.path.relpath(name)}).status == 422
    assert not mark.exists()
    assert live.ask("PUT", "policy", "admin", {"name": name}).json["name"] == name
    assert mark.exists()


def test_a_user_may_ask_what_if_under_the_file_that_an_admin_chose(live: Live, tmp_path: Path) -> None:
    short = tmp_path / "p.py"
    short.write_text(FILE)
    assert live.ask("PUT", "policy", "admin", {"name": f"{short}:mine"}).status == 200
    live.submit("ann", resources={"gpus": 1}, time="1h")
    for body in ({"policy": "sjf"}, {"options": {"shortest": True}}):
        answer = live.ask("POST", "lab/what-if", "ann", body)
        assert answer.status == 200, answer
        assert answer.json["policy"][0] == f"{short}:mine"
