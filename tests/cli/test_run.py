"""`run` and `logs -f` on a real plane whose GPUs are taken, and when they are told to end."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.cli.test_habits import DOVETAIL, Place, place_in
from tests.control.harness import PATIENCE, eventually


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_in(tmp_path_factory.mktemp("run")) as made:
        yield made


@contextmanager
def full(place: Place) -> Iterator[str]:
    """All GPUs are taken, by this job."""
    job = place.client.submit({"run": "sleep 1000", "nodes": 2, "resources": {"gpus": 4}})
    try:
        eventually(lambda: job.refresh().attempt, "its start")
        yield job.id
    finally:
        place.client.cancel(job.id)
        job.wait()


@contextmanager
def started(place: Place, *words: str, before: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*before, *DOVETAIL, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place.folder,
        env=place.env,
    ) as process:
        try:
            yield process
        finally:  # a test that fails does not wait for it
            process.kill()


def newest(place: Place) -> str:
    return str(next(iter(place.client.jobs())).id)


# --- a job that waits ------------------------------------------------------------------------------


def test_run_says_that_its_job_waits(place: Place) -> None:
    with full(place) as holder, started(place, "run", "--gpus", "1", "--", "echo", "my turn") as run:
        assert run.stderr is not None
        said = run.stderr.readline()
        id = newest(place)
        assert id != holder
        assert said.startswith(f"note: {id} waits: It asks for 1 GPU; none is free")
        assert said.endswith(f"; see dovetail why {id}\n")
        place.client.cancel(holder)
        output, more = run.communicate(timeout=PATIENCE)
    assert (run.returncode, output) == (0, "my turn\n"), more


def test_a_quiet_run_says_nothing(place: Place) -> None:
    with (
        full(place) as holder,
        started(place, "run", "--quiet", "--gpus", "1", "--", "echo", "my turn") as run,
    ):
        eventually(lambda: newest(place) != holder, "the job")
        id = newest(place)
        # Only a note could take the place of this wait, which is longer than what `run` waits before it.
        eventually(lambda: place.client.why(id).sentence, "the reason")
        with pytest.raises(subprocess.TimeoutExpired):
            run.communicate(timeout=2.0)
        place.client.cancel(holder)
        assert run.communicate(timeout=PATIENCE) == ("my turn\n", "")


def test_logs_say_that_the_job_waits(place: Place) -> None:
    with full(place) as holder:
        job = place.client.submit({"run": "echo my turn", "resources": {"gpus": 1}})
        with started(place, "logs", "-f", job.id) as logs:
            assert logs.stderr is not None
            assert logs.stderr.readline().startswith(f"note: {job.id} waits: It asks for 1 GPU; none is free")
            place.client.cancel(holder)
            assert logs.communicate(timeout=PATIENCE) == ("my turn\n", "")


def test_logs_say_that_an_array_waits(place: Place) -> None:
    with full(place) as holder:
        job = place.client.submit({"run": "echo my turn", "array": "0-1", "resources": {"gpus": 1}})
        with started(place, "logs", "-f", job.id) as logs:
            assert logs.stderr is not None
            said = f"note: no job of {job.id} has started yet; see dovetail why {job.id}_0\n"
            assert logs.stderr.readline() == said
            place.client.cancel(holder)
            output, more = logs.communicate(timeout=PATIENCE)
            assert (sorted(output.splitlines()), more) == (["[0] my turn", "[1] my turn"], "")


# --- a command that is told to end -----------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_the_job(place: Place, number: signal.Signals) -> None:
    job = ("bash", "-c", "echo ready; exec sleep 1000")
    heard = ("env", "--default-signal")  # the tests may run under nohup themselves
    with started(place, "run", "--quiet", "--", *job, before=heard) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        id = newest(place)
        run.send_signal(number)
        _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 128 + number
    assert said == f"note: cancelling {id}; ^C again stops waiting for it\n"
    assert place.client.job_info(id).state == "cancelled"


def test_a_second_signal_does_not_overtake_the_cancellation(place: Place) -> None:
    """The job does not end when it is told to, so the first signal cannot end the command."""
    stubborn = "trap '' TERM; echo ready; until [ -e stubborn.go ]; do sleep 0.1; done"
    with started(place, "run", "--quiet", "--grace", "1000s", "--", "bash", "-c", stubborn) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == "ready\n"
        id = newest(place)
        run.send_signal(signal.SIGINT)
        assert run.stderr.readline().startswith("note: cancelling")
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=PATIENCE)
    state = place.client.job_info(id).state
    (place.folder / "stubborn.go").touch()
    assert (run.returncode, state) == (130, "stopping")


def test_a_signal_that_is_ignored_stays_ignored(place: Place) -> None:
    """As under nohup."""
    job = "echo ready; until [ -e nohup.go ]; do sleep 0.1; done; echo on"
    with started(place, "run", "--quiet", "--", "bash", "-c", job, before=("nohup",)) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        run.send_signal(signal.SIGHUP)
        (place.folder / "nohup.go").touch()
        output, _ = run.communicate(timeout=PATIENCE)
    assert (run.returncode, output) == (0, "on\n")


# --- several processes -----------------------------------------------------------------------------


def test_run_shows_the_output_of_all_ranks(place: Place) -> None:
    ranks = ["[rank 0] I am 0", "[rank 1] I am 1"]
    done = place.type("run", "--quiet", "-N", "2", "-G", "1", "--", "bash", "-c", "echo I am $NODE_RANK")
    assert sorted(done.stdout.splitlines()) == ranks, done.stderr
    again = place.type("logs", "-f", newest(place))
    assert sorted(again.stdout.splitlines()) == ranks, again.stderr


def test_run_shows_the_output_of_the_processes_of_all_gpus(place: Place) -> None:
    done = place.type("run", "--quiet", "-G", "2", "--per-gpu", "--", "bash", "-c", "echo I am $RANK")
    assert sorted(line[-6:] for line in done.stdout.splitlines()) == ["I am 0", "I am 1"], done.stderr


# --- what was asked wrongly ------------------------------------------------------------------------


def test_a_wrong_question_is_answered_with_its_cause(place: Place) -> None:
    job = place.client.submit({"run": "echo ready; sleep 1000"})
    eventually(lambda: "ready" in "".join(job.logs()), "its start")
    for words, cause in (
        (("logs", job.id, "--rank", "4"), "there is no rank 4; the job has rank 0 only"),
        (("cancel", job.id, "--array", "3-7"), f"{job.id} is one job, not an array"),
        (("submit", "--gpus", "H100:1", "--", "true"), "no node has H100; there is A100; name one of these"),
    ):
        done = place.type(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert cause in done.stderr
        assert done.stderr.count("\n") == 1
    place.client.cancel(job.id)


def test_submit_and_wait_says_that_the_job_goes_on(place: Place) -> None:
    with started(place, "submit", "--wait", "--", "sleep", "1000") as submit:
        assert submit.stdout is not None
        id = submit.stdout.readline().split()[1]
        submit.send_signal(signal.SIGINT)
        _, said = submit.communicate(timeout=PATIENCE)
    assert submit.returncode == 130
    assert f"no longer waiting for {id}, which goes on; dovetail cancel {id} ends it" in said
    place.client.cancel(id)
