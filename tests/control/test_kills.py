"""Nothing is lost when planes, supervisors and jobs are killed and stopped, at whatever moment."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.conftest import chaos_seed
from tests.control import harness
from tests.control.test_postgres import NAMES, boot, leads

from dovetail.engines.local.processes import start_ticks

SIGNALS = 125
LONGEST_STOP = 1.0  # seconds


def attempts_in(folder: Path) -> list[Path]:
    """Attempts that have started and not ended."""
    found = [path.parent for path in (folder / "attempts").glob("*/*/started.json")]
    return sorted(path for path in found if not (path / "exit.json").exists())


def pid_in(attempt: Path, target: str) -> int | None:
    """The supervisor of an attempt, or a process of its job; None if there is none any more."""
    with suppress(OSError, ValueError, IndexError):
        if target == "job":
            pid, ticks = json.loads((attempt / "pids.json").read_text())["processes"][0]
            return int(pid) if start_ticks(pid) == ticks else None
        pid = json.loads((attempt / "started.json").read_text())["pid"]
        return int(pid) if b"supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes() else None
    return None


@pytest.fixture(scope="module")
def nursery() -> Iterator[harness.Nursery]:
    with harness.nursed() as made:
        yield made


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.slow(60)
@pytest.mark.parametrize("seed", [70, 80, 90, 100])
def test_five_hundred_signals_lose_nothing(
    database: Callable[[], str], nursery: harness.Nursery, tmp_path: Path, seed: int
) -> None:
    """Two planes on PostgreSQL, their supervisors and jobs: SIGKILL, or SIGSTOP and later SIGCONT."""
    url, pick = database(), random.Random(chaos_seed(seed))
    line = harness.Line(tmp_path, NAMES, patient=True)
    driver = harness.Driver(tmp_path, line, seed=chaos_seed(seed + 1), most=10)
    sent: Counter[str] = Counter()
    struck: set[tuple[str, int]] = set()  # attempts of which a process was killed

    def up() -> bool:
        for name in NAMES:
            if nursery.dead(name, 0.001):
                boot(nursery, tmp_path, name, url, seed=sum(sent.values()), lease=5.0)
        return any(leads(tmp_path, name) for name in NAMES)

    def strike(pid: int, target: str, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            sent[f"{number.name} {target}"] += 1
        if number == signal.SIGSTOP:
            time.sleep(pick.random() * LONGEST_STOP)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def strike_attempt(target: str, number: signal.Signals) -> None:
        found = attempts_in(tmp_path)
        attempt = pick.choice(found) if found else None
        pid = None if attempt is None else pid_in(attempt, target)
        if attempt is not None and pid is not None:
            if number == signal.SIGKILL:
                struck.add((attempt.parent.name, int(attempt.name)))
            strike(pid, target, number)

    driver.start()
    while sum(sent.values()) < SIGNALS and driver.is_alive():
        harness.eventually(up, "a leader")
        time.sleep(pick.random() * 0.2)
        target = pick.choice(("plane", "supervisor", "job"))
        number = pick.choice((signal.SIGKILL, signal.SIGSTOP))
        if target != "plane":
            strike_attempt(target, number)
        elif number == signal.SIGKILL:
            nursery.kill(pick.choice(NAMES))
            sent["SIGKILL plane"] += 1
        else:
            strike(nursery.pids[pick.choice(NAMES)], target, number)
    harness.eventually(up, "a leader")
    driver.finish()
    for name in NAMES:
        nursery.kill(name, signal.SIGTERM)
    found = harness.nothing_lost(tmp_path, driver, url, struck)
    print(f"{sum(sent.values())} signals: {dict(sent)}; {found}")
    assert len(sent) == 6, sent
    assert found["causes"]["lost"], found
    assert found["jobs"] > SIGNALS / 10, found
