"""HiGHS with every status checked: a result that is not optimal is an error, and so is a rejected option.

HiGHS is imported when the first program is made (130 ms), never with a module. It uses one thread, so that
runs are equal bit for bit and the other cores stay free for the control plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.solve.errors import SolveFailed

if TYPE_CHECKING:
    import highspy

ALWAYS: dict[str, bool | int | float | str] = {"output_flag": False, "parallel": "off", "random_seed": 0}


def fresh(asked: str, **options: bool | int | float | str) -> highspy.Highs:
    """A new solver with no model in it."""
    import highspy  # noqa: PLC0415

    solver: highspy.Highs = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in (ALWAYS | options).items():
        taken(solver.setOptionValue(name, value), f"{asked}, option {name}={value}")
    return solver


def taken(status: highspy.HighsStatus, asked: str) -> None:
    """Raise unless HiGHS accepted a call without warning."""
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
