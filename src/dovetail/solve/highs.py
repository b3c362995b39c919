"""HiGHS with every answer checked: what is not optimal is an error, and so is an option that was not taken.

HiGHS is imported when the first program is made (130 ms), never with a module. One thread: runs are then
equal bit for bit, and a plane leaves the other cores to others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.solve.errors import SolveFailed

if TYPE_CHECKING:
    import highspy

ALWAYS: dict[str, bool | int | float | str] = {"output_flag": False, "parallel": "off", "random_seed": 0}


def fresh(asked: str, **options: bool | int | float | str) -> highspy.Highs:
    """A solver that knows nothing yet."""
    import highspy  # noqa: PLC0415

    solver: highspy.Highs = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in (ALWAYS | options).items():
        taken(solver.setOptionValue(name, value), f"{asked}, option {name}={value}")
    return solver


def taken(status: highspy.HighsStatus, asked: str) -> None:
    """Raise unless HiGHS took what it was given without a word."""
    import highspy  # noqa: PLC0415

    if status != highspy.HighsStatus.kOk:
        raise SolveFailed(asked, str(status))


def run(solver: highspy.Highs, asked: str) -> None:
    """Solve to optimality or raise."""
    import highspy  # noqa: PLC0415

    status = solver.run()
    found = solver.getModelStatus()
    if status != highspy.HighsStatus.kOk or found != highspy.HighsModelStatus.kOptimal:
        raise SolveFailed(asked, solver.modelStatusToString(found))
