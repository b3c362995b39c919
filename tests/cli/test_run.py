"""`run` and `logs -f` on a real plane whose GPUs are taken, and when they are told to end."""

from __future__ import annotations

import os
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


def started(place: Place, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*DOVETAIL, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=place.folder, env=place.env,
    )  # fmt: skip


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
