"""`make chaos`: play simulated worlds with new seeds until the time is over or a rule is broken.

python -m tests.chaos [--seed N] [--hours H] [--minutes M] [--faults A,B] [--rules C,D] [--log FILE]
    [--acts F] [--rest F] [--probe S] [--refused S] [--nap S]
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.world import Outcome

TOTALS_EVERY = 10  # worlds
HASH_SEED = "0"  # sets of texts are walked in an order that depends on it


class Totals:
    """What all worlds have shown."""

    def __init__(self) -> None:
        self.worlds = self.failed = 0
        self._struck: Counter[str] = Counter()
        self._states: Counter[str] = Counter()
        self._figures: dict[str, float] = defaultdict(float)

    def add(self, found: Outcome) -> None:
        self.worlds += 1
        self.failed += found.violation is not None
        self._struck.update(found.struck)
        self._states.update(found.states)
        for name in ("hours", "steps", "jobs", "cpu", "commits", "starts"):
            self._figures[name] += getattr(found, name)

    def __str__(self) -> str:
        sums = self._figures
        return "\n".join((
            f"{self.worlds} worlds, {sums['hours']:.0f} simulated hours, {sums['steps']:.0f} steps, "
            f"{sums['commits']:.0f} commits, {sums['starts']:.0f} starts of planes, "
            f"{self._struck.total()} faults, {sums['jobs']:.0f} jobs, {sums['cpu']:.0f} s of CPU: "
            f"{self.failed or 'none'} failed",
            "  faults: " + ", ".join(f"{count} {name}" for name, count in self._struck.most_common()),
            "  jobs: " + ", ".join(f"{count} {name}" for name, count in self._states.most_common()),
        ))  # fmt: skip


def main(words: list[str]) -> int:
    from tests.chaos.database import drop_template
    from tests.chaos.faults import FAULTS
    from tests.chaos.invariants import RULES
    from tests.chaos.world import Mix, play

    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Simulate the whole plane.")
    parser.add_argument("--seed", type=int, help="play this seed only")
    parser.add_argument("--seeds", type=int, help="play this many seeds, from --seed on")
    parser.add_argument("--hours", type=float, default=24.0, help="simulated hours of each world")
    parser.add_argument("--minutes", type=float, default=10.0, help="draw new seeds for this long")
    parser.add_argument("--faults", default="", help="only these, separated by commas")
    parser.add_argument("--rules", default="", help="only these count, separated by commas")
    parser.add_argument("--acts", type=float, default=1.0, help="times as long between two acts of a client")
    parser.add_argument("--rest", type=float, default=1.0, help="times as long between two faults")
    parser.add_argument("--probe", type=float, default=60.0, help="seconds between two probes of the plane")
    parser.add_argument(
        "--refused",
        type=float,
        default=60.0,
        help="seconds between two starts of a plane that is always refused",
    )
    parser.add_argument(
        "--nap", type=float, default=30.0, help="seconds up to which idle waits are stretched"
    )
    parser.add_argument("--go-on", action="store_true", help="do not end at the first seed that fails")
    parser.add_argument("--log", help="write the steps of the last world to this file")
    parser.add_argument("--hangs", type=float, help="show where it is after this many seconds, and end")
    given = parser.parse_args(words)
    if given.hangs:
        faulthandler.dump_traceback_later(given.hangs, exit=True)
    faults = frozenset(given.faults.split(",")) if given.faults else frozenset(FAULTS)
    rules = frozenset(given.rules.split(",")) if given.rules else frozenset(RULES)
    if unknown := rules - RULES.keys():
        print(
            f"error: no rule is named {', '.join(sorted(unknown))}; there are {', '.join(RULES)}",
            file=sys.stderr,
        )
        return 2
    if unknown := faults - FAULTS.keys():
        print(
            f"error: no fault is named {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}",
            file=sys.stderr,
        )
        return 2
    mix = Mix(given.acts, given.rest, given.probe, given.refused, given.nap)
    until = time.monotonic() + 60.0 * given.minutes
    totals = Totals()
    told: list[int] = []  # signals: a run that is told to stop ends after its world
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    gc.freeze()  # what is imported stays
    gc.set_threshold(20_000, 20, 50)
    try:
        while True:
            if given.seed is None:
                seed = random.SystemRandom().randrange(2**32)
            else:
                seed = given.seed + totals.worlds
            found = play(seed, given.hours, faults, rules=rules, keep_log=bool(given.log), mix=mix)
            totals.add(found)
            verdict = f"BROKEN {found.violation}" if found.violation else "ok"
            print(
                f"seed {seed}: {found.hours:.0f} h, {found.steps} steps, {found.jobs} jobs, "
                f"{sum(found.struck.values())} faults, {found.cpu:.1f} s, {found.digest}: {verdict}",
                flush=True,
            )
            if given.log:
                with open(given.log, "w", encoding="utf-8") as file:
                    file.write("\n".join(found.log) + "\n")
            if found.violation is not None:
                print(f"  again: {_again(given, seed)}")
                print("  keep it: tests/chaos/cases.json")
                if not given.go_on:
                    break
            if given.seed is not None and totals.worlds >= (given.seeds or 1):
                break
            if told or (given.seed is None and time.monotonic() > until):
                break
            if totals.worlds % TOTALS_EVERY == 0:
                print(totals, flush=True)
    finally:
        drop_template()
    print(totals)
    return 1 if totals.failed else 0


def _again(given: argparse.Namespace, seed: int) -> str:
    """The command that plays this world again."""
    names = ("hours", "faults", "acts", "rest", "probe", "refused", "nap")
    told = [f"--{name} {getattr(given, name)}" for name in names if getattr(given, name)]
    return " ".join(["python -m tests.chaos", f"--seed {seed}", *told])


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.chaos", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
