"""`make search`: property tests draw new worlds until the time is over or one fails.

    python -m tests.search [--minutes M] [--kills] [ARGUMENTS OF PYTEST]

Each pass runs the property tests with a new seed, in a new order. A failure is shrunk and kept as a case in
tests/cases; `make test` replays all cases there, so committing the file is all that keeps the failure from
coming back. `--kills` runs the tests that kill planes and engines instead, with new seeds.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time

from tests.conftest import CASES, ROOT

PASSED, NONE_COLLECTED = 0, 5


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.search", description="Search for failures.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kills", action="store_true", help="kill planes and engines, with new seeds")
    given, more = parser.parse_known_args(words)
    start = time.time()
    until = start + 60.0 * given.minutes
    before = set(CASES.glob("*.json"))
    passes = 0
    while time.time() < until:
        seed = random.SystemRandom().randrange(2**32)
        result = one_pass(seed, until - time.time(), more, kills=given.kills)
        passes += 1
        if result == NONE_COLLECTED:
            print("error: no test matches", " ".join(more), file=sys.stderr)
            return 2
        if result != PASSED:
            what = "--kills " if given.kills else ""
            print(f"failed with seed {seed}, {what}pass {passes}, after {time.time() - start:.0f} s")
            again = (
                f"DOVETAIL_CHAOS={seed} "
                if given.kills
                else f"DOVETAIL_SEARCH=1 DOVETAIL_SEARCH_SEED={seed} "
            )
            print(f"run the test again: {again}.venv/bin/pytest TEST")
            for file in sorted(set(CASES.glob("*.json")) - before):
                name = file.relative_to(ROOT)
                print(f"kept {name}\n  replay it: make case CASE={name}\n  commit it: git add {name}")
            return 1
    print(f"no failure in {passes} passes, {time.time() - start:.0f} s")
    return 0


def one_pass(seed: int, seconds: float, more: list[str], *, kills: bool) -> int:
    """Tests that have not started after these seconds, from the end of the collection on, are skipped."""
    environment = {**os.environ, "DOVETAIL_SEARCH_SECONDS": str(seconds)}
    command = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal"]
    if kills:
        environment["DOVETAIL_CHAOS"] = str(seed)
        command += ["-m", "chaos"]
    else:
        environment["DOVETAIL_SEARCH_SEED"] = str(seed)
        environment.setdefault("DOVETAIL_SEARCH", "1")
        command += ["-m", "hypothesis"]
    print(f"seed {seed}", flush=True)
    return subprocess.run([*command, *more], cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
