"""Nothing is lost when a plane is killed, at whatever moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import chaos_seed
from tests.control import harness

from dovetail.client.client import Client

FEW = pytest.param(20, 20, marks=pytest.mark.slow(15))
MANY = [pytest.param(50, seed, marks=[pytest.mark.long, pytest.mark.slow(20)]) for seed in (30, 40, 50, 60)]


@pytest.mark.chaos
@pytest.mark.parametrize(("number", "seed"), [FEW, *MANY])
def test_two_hundred_kills_lose_nothing(tmp_path: Path, number: int, seed: int) -> None:
    """Some at a random moment, some while the plane starts, some inside a commit or a call of the engine."""
    pick = random.Random(chaos_seed(seed))
    driver = harness.Driver(tmp_path, harness.Line(tmp_path), seed=chaos_seed(seed + 1), rules=0.1)

    def worked() -> bool:
        """Enough has been done between the kills; on a busy machine that takes more of them."""
        done = len(driver.kinds) > number / 2 and driver.deeds["requeue"] > 2 and by_itself
        return bool(done and driver.policies - {"dovetail"}) or not driver.is_alive()

    with harness.nursed() as nursery:
        driver.start()
        kills = by_itself = 0
        while kills < number or not worked():
            way = pick.random()
            fault = (pick.choice(harness.POINTS), pick.randint(1, 4)) if way < 0.4 else None
            nursery.boot("plane", tmp_path, snapshots=40, fault=fault)
            if fault is not None:
                by_itself += nursery.dead("plane", 1.5)
            elif way < 0.5:
                time.sleep(pick.random() * 0.15)  # while it starts
            else:
                line = harness.Line(tmp_path)
                line.ask(do="leads")
                line.hang_up()
                if way > 0.97:  # a plane that is told to end writes a last snapshot
                    nursery.kill("plane", signal.SIGTERM)
                    continue
                time.sleep(pick.random() * 0.3)
            nursery.kill("plane")
            kills += 1
        nursery.boot("plane", tmp_path, snapshots=40)
        driver.finish()
        nursery.kill("plane", signal.SIGTERM)
    found = harness.nothing_lost(tmp_path, driver)
    assert by_itself, found
    assert found["jobs"] > number / 2, found
    assert found["causes"]["stopped"], found
    assert found["eras"] > 1, found


@pytest.mark.chaos
@pytest.mark.slow(15)
def test_the_real_command_is_killed_and_started_again(tmp_path: Path) -> None:
    """The same through `dovetail up` and HTTP; the client asks again by itself until it is answered."""
    folder, port, pick = tmp_path / "state", harness.free_port(), random.Random(chaos_seed(40))
    driver = harness.Driver(folder, harness.Line(folder), seed=chaos_seed(41))
    over = threading.Event()
    trouble: list[BaseException] = []

    def submits() -> None:
        try:
            with Client(state=folder, patience=harness.PATIENCE) as client:
                while not over.is_set():
                    kind = pick.choice(("short", "gang", "long", "again"))
                    job = client.submit(harness.body(kind, driver.traces, gpus=pick.choice((1, 2))))
                    driver.kinds[job.id] = kind
                    if pick.random() < 0.1 and client.cancel(job.id):
                        driver.cancelled.add(job.id)
                    over.wait(0.1)
        except BaseException as error:
            trouble.append(error)

    def accepted(jobs: int) -> None:
        harness.eventually(lambda: trouble or len(driver.kinds) >= jobs, f"that {jobs} jobs are accepted")

    thread = threading.Thread(target=submits)
    for number in range(6):
        with _up(folder, port) as plane:
            if number == 0:
                thread.start()
            if number < 5:
                accepted(3 * number + 3)
                time.sleep(pick.random())
                plane.kill()
                continue
            over.set()
            thread.join(harness.PATIENCE)
            assert not trouble, trouble
            with Client(state=folder) as client:
                harness.eventually(lambda: not list(client.jobs(active=True)), "that every job is over")
            plane.send_signal(signal.SIGTERM)
            assert plane.wait(harness.PATIENCE) in (0, -signal.SIGTERM)
    driver.deeds["cancel"] = len(driver.cancelled)
    assert harness.nothing_lost(folder, driver)["jobs"] > 10


@contextmanager
def _up(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "dovetail.cli", "up", "--state", str(folder), "--port", str(port)]
    plane = subprocess.Popen([*command, "--virtual", "2x4:A100"], stdout=subprocess.PIPE, text=True)
    try:
        assert plane.stdout is not None
        assert "is up at" in plane.stdout.readline()
        yield plane
    finally:
        plane.kill()
        plane.communicate()
