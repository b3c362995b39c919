"""What can go wrong in a solver, as opposed to in a question.

A wrong question (a negative capacity, a NaN, shapes that do not match) is a `ValueError` before anything is
solved. What is raised here says that the question was well formed and had no answer, or that none was found.
"""

from __future__ import annotations

from dovetail.model.errors import DovetailError


class SolveFailed(DovetailError):
    """The solver stopped without an optimum; says what was asked and what it answered."""

    def __init__(self, asked: str, found: str) -> None:
        super().__init__(f"{asked}: {found}")


class Infeasible(SolveFailed):
    """No shares meet all floors (deadlines) at once."""
