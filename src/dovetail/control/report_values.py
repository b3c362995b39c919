"""The values of a job's report that the plane keeps.

A report is a line that the job wrote, so anything may be in it: NaN, an integer of 400 digits, text that no
database stores, lists within lists. The plane keeps a few short names with plain values and drops the rest.
What is kept can be stored in every database, written as JSON, shown on a terminal and used in arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from dovetail.model.loss import MOST_EPOCHS

Value = bool | int | float | str

MOST_VALUES = 20
LONGEST_NAME = 64
LONGEST_TEXT = 200
LARGEST_INTEGER = 1 << 53  # JavaScript, which the page runs on, knows larger ones only roughly
RATES = (1e-9, 1e12)  # steps a second that can be meant
LARGEST_LOSS = 1e12


def checked_report(raw: Mapping[str, object]) -> dict[str, Value]:
    """The values of a report that are kept, the first ones if there are too many."""
    kept: dict[str, Value] = {}
    for name, value in raw.items():
        if len(kept) == MOST_VALUES:
            break
        if _is_plain(name, LONGEST_NAME) and _is_kept(value):
            kept[name] = value  # type: ignore[assignment] # what is kept is a Value
    return kept


def merged_progress(before: Mapping[str, object], lines: Iterable[Mapping[str, object]]) -> dict[str, Value]:
    """The progress of a job after more lines: a value that a line leaves out stays as it was.

    `step` is the last step that was reported, `checkpoint_step` the last one that was saved.

    >>> merged_progress({"step": 9, "loss": 0.5}, [{"step": 10}, {"checkpoint": True, "step": 8}])
    {'step': 10, 'loss': 0.5, 'checkpoint_step': 8}
    """
    found = {name: value for name, value in before.items() if name != "checkpoint"}
    for line in lines:
        if is_checkpoint(line):
            found |= {
                "checkpoint_step" if name == "step" else name: value
                for name, value in line.items()
                if name != "checkpoint"
            }
        else:
            found |= line
    return checked_report(found)


def is_checkpoint(line: Mapping[str, object]) -> bool:
    """Whether a line says that work was saved (`job.checkpointed`); else it reports progress."""
    return line.get("checkpoint") is True


def rate_of(report: Mapping[str, object]) -> float | None:
    """The steps a second that a checked report tells, if it tells them."""
    rate = report.get("steps_per_second")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not RATES[0] <= rate <= RATES[1]:
        return None
    return float(rate)


def loss_of(report: Mapping[str, object]) -> tuple[float, int] | None:
    """The loss and the whole epochs done that a checked report tells, if it tells both."""
    loss, epoch = report.get("loss"), report.get("epoch")
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in (loss, epoch)):
        return None
    assert isinstance(loss, int | float)
    assert isinstance(epoch, int | float)
    if not 0 <= loss <= LARGEST_LOSS or not 1 <= epoch <= MOST_EPOCHS:
        return None
    return float(loss), int(epoch)


def _is_kept(value: object) -> bool:
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return -LARGEST_INTEGER <= value <= LARGEST_INTEGER
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str) and _is_plain(value, LONGEST_TEXT)


def _is_plain(text: str, longest: int) -> bool:
    """Whether it is short and printable: no NUL, no lone surrogate, nothing that steers a terminal."""
    return len(text) <= longest and text.isprintable()
