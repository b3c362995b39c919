"""Arrays of jobs as Slurm writes them: `0-99%8` is a hundred jobs, eight of them at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MOST_MEMBERS = 100_000
LARGEST_INDEX = 9_999_999

_NUMBER = "[0-9]{1,7}"
_RANGE = f"{_NUMBER}(?:-{_NUMBER}(?::[1-9][0-9]{{0,6}})?)?"
PATTERN = f"{_RANGE}(?:,{_RANGE})*(?:%[1-9][0-9]{{0,5}})?"
_WHOLE = re.compile(PATTERN)


def expand_array(text: str | Sequence[int]) -> tuple[tuple[int, ...], int | None]:
    """The indices, ascending and each once, and how many may run at a time (None: all).

    >>> expand_array("1,3,5-9:2%4")
    ((1, 3, 5, 7, 9), 4)
    """
    if not isinstance(text, str):
        return _checked(text), None
    if _WHOLE.fullmatch(text) is None:
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise ValueError(f"{shown!r} is not an array; write 0-99, 1,3,5-9:2 or 0-99%8 (eight at a time)")
    ranges, _, limit = text.partition("%")
    found: set[int] = set()
    for part in ranges.split(","):
        first, _, rest = part.partition("-")
        last, _, step = rest.partition(":")
        span = range(int(first), int(last or first) + 1, int(step or 1))
        if not span:
            raise ValueError(f"{part!r} of the array has the larger index first; write {last}-{first}")
        if len(span) + len(found) > 2 * MOST_MEMBERS:
            raise ValueError(_too_many(len(span)))
        found.update(span)
    return _checked(found), int(limit) if limit else None


def array_text(indices: Iterable[int], at_most: int | None = None) -> str:
    """The shortest text for an array.

    >>> array_text((0, 1, 2, 3, 7, 9), 2)
    '0-3,7,9%2'
    """
    parts: list[list[int]] = []
    for index in sorted(set(indices)):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    text = ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in parts)
    return text if at_most is None else f"{text}%{at_most}"


def _checked(indices: Iterable[int]) -> tuple[int, ...]:
    found = sorted(set(indices))
    if not found:
        raise ValueError("the array has no members; write 0-9 for ten")
    if len(found) > MOST_MEMBERS:
        raise ValueError(_too_many(len(found)))
    if found[0] < 0 or found[-1] > LARGEST_INDEX:
        raise ValueError(
            f"array indices must be from 0 to {LARGEST_INDEX:,}; the array has {found[0]} to {found[-1]}"
        )
    return tuple(found)


def _too_many(count: int) -> str:
    return f"the array has {count:,} members, and the maximum is {MOST_MEMBERS:,}; submit it in parts"
