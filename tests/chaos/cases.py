"""Worlds that once broke a rule: the seed, the faults, the rule, and what it was.

A case with an item is a known defect of the code as it is: it must fail until the item is fixed, and
then its item is taken away. A case without one was fixed, and must pass.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

FILE = Path(__file__).with_name("cases.json")


@dataclass(frozen=True, slots=True)
class Case:
    """One world that once failed."""

    seed: int
    hours: float
    faults: tuple[str, ...]  # empty: drawn by the seed
    rule: str  # that was broken, by its name in invariants.RULES
    finds: str
    mix: dict[str, float] = field(default_factory=dict)  # of world.Mix, where it differs from the default
    item: int | None = None  # of the issue "Nothing lost, no one let in", while it is not fixed

    @property
    def name(self) -> str:
        return f"{'-'.join(self.faults) or 'all'}-{self.seed}-{self.rule}"


def cases() -> list[Case]:
    return [Case(**{**case, "faults": tuple(case["faults"])}) for case in json.loads(FILE.read_text("utf-8"))]


def write(found: list[Case]) -> None:
    lines = ",\n".join(" " + json.dumps(asdict(case), ensure_ascii=False) for case in found)
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
