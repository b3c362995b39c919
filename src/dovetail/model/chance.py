"""Random numbers that a replay repeats: seeded by the run and the number of the decision."""

from __future__ import annotations

from random import Random as Random
from typing import Protocol


class Numbered(Protocol):
    @property
    def seed(self) -> int: ...
    @property
    def number(self) -> int: ...


def chance(view: Numbered) -> Random:
    """A source of randomness for one decision; the same view gives the same numbers."""
    return Random(view.seed * 1_000_003 + view.number)


def seeded(seed: int) -> Random:
    """A source that depends on the run's seed alone, for a policy that counts its draws."""
    return Random(seed)


def seeded_by(seed: int, *of: object) -> Random:
    """A source for one thing of a run, whatever else is drawn: the same on every machine."""
    return Random("/".join(map(str, (seed, *of))))
