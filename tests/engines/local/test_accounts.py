"""Jobs that run under another UNIX account. Only root can start them."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engines.conftest import Bench, bash, belonging_to, eventually

from dovetail.engines.local.processes import start_ticks
from dovetail.model.units import SECOND

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or "nobody" not in {account.pw_name for account in pwd.getpwall()},
    reason="needs root, and an account named nobody",
)


@pytest.fixture
def open_bench() -> Iterator[Bench]:
    """In a folder that other accounts can enter, as a plane with accounts needs it."""
    folder = Path(tempfile.mkdtemp(prefix="dovetail-accounts-"))
    folder.chmod(0o711)
    (folder / "state").mkdir(mode=0o711)
    bench = Bench(folder / "state" / "attempts")
    yield bench
    for job, epoch in bench.engine.known():
        bench.engine.stop(job, epoch, "test over", 0)
        bench.end(job, epoch)
    bench.engine.close()
    eventually(lambda: not belonging_to(folder))
    shutil.rmtree(folder)


def test_a_job_has_the_rights_of_its_account_only(open_bench: Bench) -> None:
    bench = open_bench
    (bench.root.parent / "checkpoints").mkdir(mode=0o711)
    text = """
        id -un; id -Gn; echo $HOME $USER
        echo '{"step": 1}' >> $DOVETAIL_RUN_DIR/reports.jsonl
        touch $DOVETAIL_RUN_DIR/finished $DOVETAIL_CHECKPOINT_DIR/model here
        cd $DOVETAIL_RUN_DIR/..
        for file in launch.json exit.json started.json environment.json new; do
            (echo x > $file) 2>/dev/null && echo wrote $file; cat $file 2>/dev/null && echo read $file
            rm -f $file 2>/dev/null; mv run/here $file 2>/dev/null && echo moved $file
        done
        trap 'cat $DOVETAIL_RUN_DIR/stop.json; exit 0' TERM
        echo ready; sleep 300 & wait
    """
    checkpoints = str(bench.root.parent / "checkpoints" / "j")
    bench.engine.start(bash(text, account="nobody", checkpoint_dir=checkpoints))
    bench.wait_for_output("ready")
    bench.engine.stop("j", 1, "preempted", 20 * SECOND)
    end = bench.end()
    assert (end.code, end.cause, end.finished) == (0, "stopped", True)
    account = pwd.getpwnam("nobody")
    lines = bench.log().splitlines()
    assert lines[0] == "nobody"
    assert "root" not in lines[1]
    assert lines[2] == f"{account.pw_dir} nobody"
    assert lines[3] == "ready"
    assert json.loads(lines[4])["why"] == "preempted"
    assert bench.engine.reports("j", 1, 0)[0] == [{"step": 1}]


def test_output_files_are_opened_as_the_account(open_bench: Bench) -> None:
    target = open_bench.root.parent.parent / "target"
    end = open_bench.run(bash("echo x", account="nobody", output=str(target)))
    assert end.cause == "unstartable"
    assert "cannot open the output file" in end.detail
    assert not target.exists()


def test_a_log_shows_only_files_of_the_account(open_bench: Bench) -> None:
    """A job can replace its log by a link to a file that only the plane can read."""
    secret = open_bench.root.parent / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    open_bench.run(bash("echo mine", account="nobody", output="out"))
    (log,) = open_bench.engine.logs("j", 1)
    assert log.read_text() == "mine\n"
    open_bench.run(bash(f"rm out; ln -s {secret} out", job="k", account="nobody", output="out"))
    assert open_bench.engine.logs("k", 1) == []
    owned = open_bench.folder("j") / "run" / "out"
    owned.unlink()
    os.link(secret, owned)
    assert open_bench.engine.logs("j", 1) == []
    with pytest.raises(PermissionError), open_bench.engine.open_log("j", 1, owned):
        pass


def test_a_folder_that_the_account_cannot_reach_is_named(bench: Bench) -> None:
    closed = bench.root.parent
    closed.chmod(0o700)
    end = bench.run(bash("echo ran", account="nobody"))
    assert end.cause == "unstartable"
    assert "'nobody' cannot reach" in end.detail
    assert "o+x" in end.detail


# --- what root hands over, and what it refuses to ---------------------------------------------------


def owners(folder: Path) -> dict[str, int]:
    """The owners of the state folder and of what lies directly in it or in its folder of checkpoints."""
    found = {".": folder.stat().st_uid}
    for path in (*folder.iterdir(), *(folder / "checkpoints").iterdir()):
        found[str(path.relative_to(folder))] = path.lstat().st_uid
    return found


@pytest.mark.parametrize(
    "path", ["checkpoints/..", "checkpoints/other", "checkpoints/j/..", "checkpoints", ""]
)
@pytest.mark.parametrize("linked", [False, True])
def test_a_checkpoint_path_gives_nothing_of_the_plane_away(
    open_bench: Bench, path: str, linked: bool
) -> None:
    """From the state folder a planted launch.json would be run as root."""
    state = open_bench.root.parent
    (state / "checkpoints" / "other").mkdir(parents=True)
    before, above = owners(state), state
    if linked:
        above = state.parent / "link"
        above.symlink_to(state)
    end = open_bench.run(bash("echo ran", account="nobody", checkpoint_dir=f"{above}/{path}"))
    assert (end.cause, end.code) == ("unstartable", 127)
    assert "it lies in the state folder of the plane; name another" in end.detail
    assert owners(state) == before


def test_the_own_folder_for_checkpoints_is_made_for_the_account(open_bench: Bench) -> None:
    state, nobody = open_bench.root.parent, pwd.getpwnam("nobody")
    launch = bash("touch $DOVETAIL_CHECKPOINT_DIR/model", account="nobody")
    launch = replace(launch, checkpoint_dir=str(state / "checkpoints" / "j"))
    assert open_bench.run(launch).code == 0
    made = (state / "checkpoints" / "j").stat()
    assert (made.st_uid, made.st_gid, made.st_mode & 0o777) == (nobody.pw_uid, nobody.pw_gid, 0o700)
    assert (state / "checkpoints").stat().st_uid == 0
    assert open_bench.run(replace(launch, epoch=2)).code == 0, "the next attempt finds it"


def test_a_link_in_place_of_the_own_folder_is_not_followed(open_bench: Bench) -> None:
    state = open_bench.root.parent
    (state / "checkpoints").mkdir()
    target = state.parent / "target"
    target.mkdir()
    (state / "checkpoints" / "j").symlink_to(target)
    end = open_bench.run(bash("echo ran", account="nobody", checkpoint_dir=str(state / "checkpoints" / "j")))
    assert end.cause == "unstartable"
    assert target.stat().st_uid == 0


def test_a_checkpoint_folder_of_the_user_is_made_by_the_account(open_bench: Bench) -> None:
    home, nobody = open_bench.root.parent.parent / "home", pwd.getpwnam("nobody")
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    assert open_bench.run(bash("true", account="nobody", checkpoint_dir=f"{home}/saves")).code == 0
    assert (home / "saves").stat().st_uid == nobody.pw_uid
    end = open_bench.run(bash("true", job="k", account="nobody", checkpoint_dir=f"{home}/../no/saves"))
    assert end.cause == "unstartable"
    assert "Permission denied" in end.detail


def test_root_follows_no_file_of_another_account(open_bench: Bench) -> None:
    """However a folder came to belong to an account: what lies there is not run as root."""
    nobody, trap = pwd.getpwnam("nobody"), open_bench.root.parent / "trap"
    open_bench.run(bash(f"id -u > {trap}"))
    trap.unlink()
    content = json.loads((open_bench.folder() / "launch.json").read_text())
    planted = {"p": open_bench.folder("p"), "q": open_bench.folder("q")}
    for job, folder in planted.items():
        (folder / "run").mkdir(parents=True)
        (folder / "launch.json").write_text(json.dumps({**content, "job": job, "groups": [[]]}))
        (open_bench.root / ".active" / f"{job}@1").touch()
        os.chown(folder / "launch.json", nobody.pw_uid, nobody.pw_gid)
    os.chown(planted["q"].parent, nobody.pw_uid, nobody.pw_gid)
    open_bench.restart()
    end = open_bench.end("p")
    assert end.detail == "its launch.json cannot be read: it belongs to another account"
    assert open_bench.end("q").detail == f"{planted['q'].parent} belongs to another account"
    assert not (planted["q"] / "exit.json").exists()
    assert not trap.exists()


def test_reports_of_another_account_are_not_read(open_bench: Bench) -> None:
    secret = open_bench.root.parent / "secret"
    secret.write_text('{"step": 1}\n')
    open_bench.run(bash("true", account="nobody"))
    os.link(secret, open_bench.folder() / "run" / "reports.jsonl")
    assert open_bench.engine.reports("j", 1, 0) == ([], 0)


def test_the_supervisor_is_out_of_reach_of_its_job(open_bench: Bench) -> None:
    text = "echo up $PPID; kill -KILL $PPID 2>/dev/null && echo killed; sleep 300"
    open_bench.engine.start(bash(text, account="nobody"))
    open_bench.wait_for_output("up")
    open_bench.engine.stop("j", 1, "over", 0)
    assert open_bench.end().cause == "stopped"
    assert "killed" not in open_bench.log()


def test_a_job_under_an_account_dies_with_its_supervisor(open_bench: Bench) -> None:
    """A change of the account undoes the tie to the supervisor, so it is made after that."""
    open_bench.engine.start(bash("trap '' TERM; echo up; while :; do sleep 0.1; done", account="nobody"))
    open_bench.wait_for_output("up")
    leader = json.loads((open_bench.folder() / "pids.json").read_text())["processes"][0][0]
    os.kill(json.loads((open_bench.folder() / "started.json").read_text())["pid"], signal.SIGKILL)
    eventually(lambda: not start_ticks(leader))
