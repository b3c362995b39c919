"""Attempts of the local engine that are resized by a restart within them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from tests.engines.conftest import Bench, bash, belonging_to, eventually

from dovetail.engines.contract import Fenced, NodeShare, NodeUp, Resized
from dovetail.engines.local.engine import LocalEngine
from dovetail.engines.local.supervisor_process import supervisor_pid
from dovetail.model.units import SECOND

ONE = (NodeShare("n0", ("0",)),)
TWO = (NodeShare("n0", ("0", "1")),)
SPREAD = (NodeShare("n0", ("0", "1")), NodeShare("n1", ("4",)))

# Counts steps, and saves the last one when it is told to stop.
STEPS = r"""
saved="$DOVETAIL_CHECKPOINT_DIR/step"
step=$(cat "$saved" 2>/dev/null || echo 0)
echo "from $step on [$CUDA_VISIBLE_DEVICES] $NODE_RANK/$NNODES $NPROC_PER_NODE attempt $DOVETAIL_ATTEMPT"
trap 'echo $step > "$saved"; exit 0' TERM
while :; do step=$((step + 1)); echo "step $step"; sleep 0.05; done
"""


@pytest.fixture
def resizing(bench: Bench) -> Bench:
    bench.restart(LocalEngine(bench.root, resizes=True))
    return bench


def again(bench: Bench) -> LocalEngine:
    """The engine of a plane that was started again."""
    return bench.restart(LocalEngine(bench.root, resizes=True))


def confirmed(bench: Bench) -> list[Resized | NodeUp]:
    def found() -> list[Resized | NodeUp]:
        bench.engine.wait(0.05)
        return bench.engine.confirmations()

    return eventually(found)


def begun(bench: Bench) -> list[str]:
    return [line for line in bench.log().splitlines() if line.startswith("from")]


def steps_of(log: str) -> list[int]:
    return [int(line.split()[1]) for line in log.splitlines() if line.startswith("step")]


def test_an_attempt_goes_on_from_its_checkpoint_on_other_devices(resizing: Bench, tmp_path: Path) -> None:
    resizing.engine.start(bash(STEPS, shares=ONE, checkpoint_dir=str(tmp_path / "saved")))
    resizing.wait_for_output("step 3")
    resizing.engine.resize("j", 1, 5, TWO)
    assert confirmed(resizing) == [Resized("j", 1, 5)]
    eventually(lambda: len(begun(resizing)) == 2)
    resizing.engine.resize("j", 1, 9, ONE)
    assert confirmed(resizing) == [Resized("j", 1, 9)]
    eventually(lambda: len(begun(resizing)) == 3)
    assert [line.split("on ")[1] for line in begun(resizing)] == [
        "[0] 0/1 1 attempt 1",
        "[0,1] 0/1 2 attempt 1",
        "[0] 0/1 1 attempt 1",
    ]
    assert resizing.engine.poll() == []
    resizing.engine.stop("j", 1, "over", 20 * SECOND)
    assert resizing.end().cause == "stopped"
    steps = steps_of(resizing.log())
    assert steps == list(range(1, len(steps) + 1)), "no step was lost, and none was done twice"


def test_variables_and_logs_follow_the_tasks(resizing: Bench, tmp_path: Path) -> None:
    text = "echo $RANK/$WORLD_SIZE $LOCAL_RANK $CUDA_VISIBLE_DEVICES; trap 'exit 0' TERM; sleep 300 & wait"
    resizing.engine.start(bash(text, shares=ONE, per_gpu=True))
    resizing.wait_for_output("0/1 0 0")
    resizing.engine.resize("j", 1, 1, SPREAD)
    assert confirmed(resizing) == [Resized("j", 1, 1)]
    eventually(lambda: len(resizing.log().splitlines()) == 4)
    files = [file.read_text() for file in resizing.engine.logs("j", 1)]
    assert files == ["0/1 0 0\n0/3 0 0,1\n", "1/3 1 0,1\n", "2/3 0 4\n"]


def test_devices_are_free_when_the_processes_on_them_have_ended(resizing: Bench) -> None:
    text = "trap '' TERM; echo here; while :; do sleep 0.1; done"
    resizing.engine.start(bash(text, shares=TWO, grace=2 * SECOND))
    resizing.wait_for_output("here")
    pids = json.loads((resizing.folder() / "pids.json").read_text())["processes"]
    resizing.engine.resize("j", 1, 1, ONE)
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        assert resizing.engine.confirmations() == [], "the job may take its grace"
        time.sleep(0.05)
    assert confirmed(resizing) == [Resized("j", 1, 1)]
    assert not Path(f"/proc/{pids[0][0]}").exists()


def test_an_attempt_that_ends_meanwhile_has_ended(resizing: Bench) -> None:
    text = 'trap "touch $DOVETAIL_RUN_DIR/finished; exit 0" TERM; echo here; sleep 300 & wait'
    resizing.engine.start(bash(text, shares=TWO))
    resizing.wait_for_output("here")
    resizing.engine.resize("j", 1, 1, ONE)
    end = resizing.end()
    assert (end.code, end.cause, end.finished) == (0, "exited", True)
    assert resizing.log() == "here\n"
    resizing.engine.resize("j", 1, 2, TWO)
    assert resizing.engine.confirmations() == []


def test_a_stop_while_it_is_resized_is_a_stop(resizing: Bench) -> None:
    text = "trap '' TERM; echo here; while :; do sleep 0.1; done"
    resizing.engine.start(bash(text, shares=TWO, grace=60 * SECOND))
    resizing.wait_for_output("here")
    resizing.engine.resize("j", 1, 1, ONE)
    time.sleep(0.3)
    resizing.engine.stop("j", 1, "cancelled", SECOND // 2)
    end = resizing.end()
    assert (end.cause, end.code) == ("stopped", 137)
    assert "(cancelled)" in end.detail
    assert resizing.log() == "here\n"


@pytest.mark.parametrize("after", [0.0, 0.02, 0.1, 0.3, 0.6])
def test_a_supervisor_that_is_killed_leaves_a_whole_attempt_or_none(resizing: Bench, after: float) -> None:
    text = "echo on $CUDA_VISIBLE_DEVICES; trap 'sleep 0.2; exit 0' TERM; sleep 300 & wait"
    resizing.engine.start(bash(text, shares=TWO))
    resizing.wait_for_output("on 0,1")
    resizing.engine.resize("j", 1, 1, ONE)
    time.sleep(after)
    if pid := supervisor_pid(resizing.folder()):
        os.kill(pid, signal.SIGKILL)
    end = resizing.end()
    assert end.cause == "lost"
    eventually(lambda: not belonging_to(resizing.root))


@pytest.mark.parametrize("after", [0.0, 0.1, 0.4])
def test_a_plane_that_dies_orders_it_again_and_hears_of_it(resizing: Bench, after: float) -> None:
    text = "echo on $CUDA_VISIBLE_DEVICES; trap 'sleep 0.2; exit 0' TERM; sleep 300 & wait"
    resizing.engine.start(bash(text, shares=TWO))
    resizing.wait_for_output("on 0,1")
    old = resizing.engine
    old.resize("j", 1, 7, ONE)
    time.sleep(after)
    engine = again(resizing)
    with pytest.raises(Fenced):
        old.resize("j", 1, 8, SPREAD)
    engine.resize("j", 1, 7, ONE)
    assert confirmed(resizing) == [Resized("j", 1, 7)]
    eventually(lambda: resizing.log() == "on 0,1\non 0\n")
    again(resizing).resize("j", 1, 12, ONE)  # a plane that starts says what it believes
    assert confirmed(resizing) == [Resized("j", 1, 12)]
    assert resizing.log() == "on 0,1\non 0\n", "it has these devices already"


def test_the_last_of_several_orders_counts(resizing: Bench) -> None:
    text = "echo on $CUDA_VISIBLE_DEVICES; trap 'sleep 0.5; exit 0' TERM; sleep 300 & wait"
    resizing.engine.start(bash(text, shares=ONE))
    resizing.wait_for_output("on 0")
    resizing.engine.resize("j", 1, 3, TWO)
    time.sleep(0.2)
    resizing.engine.resize("j", 1, 4, (NodeShare("n0", ("7",)),))
    assert confirmed(resizing) == [Resized("j", 1, 4)]
    eventually(lambda: resizing.log() == "on 0\non 7\n")


def test_a_resize_file_of_the_job_is_not_followed(resizing: Bench) -> None:
    text = "echo here; trap 'exit 0' TERM; sleep 300 & wait"
    resizing.engine.start(bash(text))
    resizing.wait_for_output("here")
    (resizing.folder() / "resize.json").write_text('{"number": 1e99}')
    time.sleep(1.5)
    assert resizing.engine.poll() == []
    resizing.engine.resize("j", 1, 3, ONE)
    assert confirmed(resizing) == [Resized("j", 1, 3)]
