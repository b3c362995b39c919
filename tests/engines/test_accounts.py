"""Jobs that run under an account of their own. Only root can do this."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.conftest import Bench, bash, belonging_to, eventually

from dovetail.model.units import SECOND

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or "nobody" not in {account.pw_name for account in pwd.getpwall()},
    reason="needs root, and an account named nobody",
)


@pytest.fixture
def open_bench() -> Iterator[Bench]:
    """In a folder that others may pass through, as a plane's must be that runs jobs under accounts."""
    folder = Path(tempfile.mkdtemp(prefix="dovetail-accounts-"))
    folder.chmod(0o711)
    bench = Bench(folder / "attempts")
    yield bench
    for job, epoch in bench.engine.known():
        bench.engine.stop(job, epoch, "test over", 0)
        bench.end(job, epoch)
    bench.engine.close()
    eventually(lambda: not belonging_to(folder))
    shutil.rmtree(folder)


def test_it_runs_as_that_account_and_no_more(open_bench: Bench) -> None:
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
    bench.says("ready")
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


def test_it_opens_its_files_as_that_account(open_bench: Bench) -> None:
    target = open_bench.root.parent / "target"
    end = open_bench.run(bash("echo x", account="nobody", output=str(target)))
    assert end.cause == "unstartable"
    assert "cannot open the output file" in end.detail
    assert not target.exists()


def test_its_log_shows_no_file_of_others(open_bench: Bench) -> None:
    """A job may put a link where its log was, and the plane could read what it points to."""
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


def test_a_folder_it_cannot_reach_is_named(bench: Bench) -> None:
    closed = bench.root.parent
    closed.chmod(0o700)
    end = bench.run(bash("echo ran", account="nobody"))
    assert end.cause == "unstartable"
    assert "'nobody' cannot reach" in end.detail
    assert "o+x" in end.detail
