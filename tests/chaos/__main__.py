"""`make chaos`: play simulated worlds with new seeds until the time is over or a rule is broken.

python -m tests.chaos [--seed N] [--hours H] [--minutes M] [--faults A,B] [--rules C,D] [--log FILE]
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import sys
import time
from collections import Counter, defaultdict

HASH_SEED = "0"  # sets of texts are walked in an order that depends on it


def main(words: list[str]) -> int:
    from tests.chaos.database import drop_template
    from tests.chaos.faults import FAULTS
    from tests.chaos.invariants import RULES
    from tests.chaos.world import play

    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Simulate the whole plane.")
    parser.add_argument("--seed", type=int, help="play this seed only")
    parser.add_argument("--seeds", type=int, help="play this many seeds, from --seed on")
    parser.add_argument("--hours", type=float, default=24.0, help="simulated hours of each world")
    parser.add_argument("--minutes", type=float, default=10.0, help="draw new seeds for this long")
    parser.add_argument("--faults", default="", help="only these, separated by commas")
    parser.add_argument("--rules", default="", help="only these count, separated by commas")
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
    until = time.monotonic() + 60.0 * given.minutes
    struck: Counter[str] = Counter()
    states: Counter[str] = Counter()
    figures: dict[str, float] = defaultdict(float)
    failed = 0
    number = 0
    try:
        while True:
            if given.seed is None:
                seed = random.SystemRandom().randrange(2**32)
            else:
                seed = given.seed + number
            number += 1
            found = play(seed, given.hours, faults, rules=rules, keep_log=bool(given.log))
            struck.update(found.struck)
            states.update(found.states)
            for name in ("hours", "steps", "jobs", "cpu", "commits", "starts"):
                figures[name] += getattr(found, name)
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
                failed += 1
                again = f" FAULTS={given.faults}" if given.faults else ""
                print(f"  again: make chaos SEED={seed} HOURS={given.hours:g}{again}")
                print("  keep it: tests/chaos/cases.json")
                if not given.go_on:
                    break
            if given.seed is not None and number >= (given.seeds or 1):
                break
            if given.seed is None and time.monotonic() > until:
                break
    finally:
        drop_template()
    print(
        f"{number} worlds, {figures['hours']:.0f} simulated hours, {figures['steps']:.0f} steps, "
        f"{figures['commits']:.0f} commits, {figures['starts']:.0f} starts of planes, "
        f"{sum(struck.values())} faults, {figures['jobs']:.0f} jobs, {figures['cpu']:.0f} s of CPU: "
        f"{failed or 'none'} failed"
    )
    print("  faults: " + ", ".join(f"{count} {name}" for name, count in struck.most_common()))
    print("  jobs: " + ", ".join(f"{count} {name}" for name, count in states.most_common()))
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.chaos", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
