"""Errors of solvers: a well-formed problem that has no solution, or for which none was found.

A malformed problem (a negative capacity, a NaN, shapes that do not match) is a `ValueError`, raised before
anything is solved.
"""

from __future__ import annotations

from dovetail.model.errors import DovetailError


class SolveFailed(DovetailError):
    """The solver stopped without an optimum; says what was asked and what it answered."""

    def __init__(self, asked: str, found: str) -> None:
        super().__init__(f"{asked}: {found}")


class Infeasible(SolveFailed):
    """No shares meet all floors (deadlines) at once."""
