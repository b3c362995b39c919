"""Which random worlds a property test draws, and how many.

By default the worlds are the same at every run, so a build that passed passes again. The environment changes
that:

    DOVETAIL_EXAMPLES=5    five times as many worlds, still the same ones at every run
    DOVETAIL_SEARCH=2      new worlds at every run, twice as many; a failure is shrunk to a small example
    DOVETAIL_CASE=FILE     only the one world of a case: a failure that a search found and kept

A case is a JSON file. Its `choices` are what Hypothesis drew, so the case stays valid while the body of the
test changes. It becomes another world when the strategies of the test change; its `example` is the text of
the world that failed, to write a plain test from.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import ExampleDatabase


@dataclass(frozen=True, slots=True)
class Case:
    """A world in which a property test failed."""

    test: str  # node id of pytest
    error: str
    example: list[str]  # lines
    choices: str  # base64

    @property
    def name(self) -> str:
        function = self.test.rpartition("::")[2].partition("[")[0]
        digest = hashlib.sha256(f"{self.test} {self.choices}".encode()).hexdigest()
        return f"{function}-{digest[:8]}.json"

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / self.name
        file.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return file


def read_case(file: Path) -> Case:
    return Case(**json.loads(file.read_text(encoding="utf-8")))


class Failures(ExampleDatabase):
    """The failing choices of the test that runs; starts with those of a case, if there is one to replay.

    Hypothesis looks up choices by a digest of the test's source. This database ignores the digest: one test
    runs at a time, and a case must survive an edit of its test.
    """

    def __init__(self, case: Case | None = None) -> None:
        super().__init__()
        self._case = case
        self._kept: dict[bytes, set[bytes]] = {}

    def fetch(self, key: bytes) -> Iterable[bytes]:
        if self._case is not None and _is_primary(key):
            return (base64.b64decode(self._case.choices),)
        return tuple(self._kept.get(key, ()))

    def save(self, key: bytes, value: bytes) -> None:
        self._kept.setdefault(key, set()).add(value)

    def delete(self, key: bytes, value: bytes) -> None:
        self._kept.get(key, set()).discard(value)

    def clear(self) -> None:
        self._kept.clear()

    def smallest(self) -> bytes | None:
        """The choices that Hypothesis shrank the failure to."""
        found = [value for key, values in self._kept.items() if _is_primary(key) for value in values]
        return min(found, key=lambda value: (len(value), value), default=None)

    def case(self, test: str, error: BaseException) -> Case | None:
        if (choices := self.smallest()) is None:
            return None
        notes = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
        text = str(error).partition("\n")[0]
        return Case(test, f"{type(error).__name__}: {text}", notes, base64.b64encode(choices).decode())


def _is_primary(key: bytes) -> bool:
    """Hypothesis keeps the shrunk failure under the plain key, and others under keys made from it."""
    return not key.endswith((b".secondary", b".pareto"))


def searching() -> bool:
    return float(os.environ.get("DOVETAIL_SEARCH", "0")) > 0


def replaying() -> Path | None:
    file = os.environ.get("DOVETAIL_CASE", "")
    return Path(file) if file else None


FAILURES = Failures(read_case(file) if (file := replaying()) else None)


def searched(examples: int) -> settings:
    """The settings of a property test that draws this number of random worlds."""
    suppressed = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    if replaying():
        return settings(
            database=FAILURES, deadline=None, phases=[Phase.reuse], suppress_health_check=suppressed
        )
    if searching():
        return settings(
            max_examples=max(1, round(examples * float(os.environ["DOVETAIL_SEARCH"]))),
            database=FAILURES,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
            suppress_health_check=suppressed,
        )
    return settings(
        max_examples=max(1, round(examples * float(os.environ.get("DOVETAIL_EXAMPLES", "1")))),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=suppressed,
    )
