"""Pages of a list, and the cursor of the next page.

Pages are by key, not by number: the next page begins below the last item of this one. New jobs therefore
neither repeat nor skip items.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.model.errors import InputError

MOST_ROWS = 200
ROOM = 150_000  # bytes of items in one answer

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the items, and where to go on."""

    items: list[Json]
    next: str | None

    def document(self) -> Json:
        return {"items": self.items, "next": self.next}


def to_cursor(kind: str, *key: int | str) -> str:
    return (
        base64.urlsafe_b64encode(json.dumps([kind, *key], separators=(",", ":")).encode())
        .decode()
        .rstrip("=")
    )


def from_cursor(text: str, kind: str, *types: type) -> list[Any]:
    """The key behind which to go on."""
    try:
        found = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        found = None
    fits = (
        isinstance(found, list)
        and len(found) == len(types) + 1
        and found[0] == kind
        and all(type(part) is wanted for part, wanted in zip(found[1:], types, strict=True))
        and all(not isinstance(part, int) or abs(part) < 1 << 62 for part in found)
        and all("\0" not in part and part.isprintable() for part in found if isinstance(part, str))
    )
    if not fits or not isinstance(found, list):
        raise InputError("the cursor is none of this list; take `next` of the page before as it is")
    return found[1:]


def cut_to_room(rows: Sequence[Json], kind: str, key: str, limit: int, room: int = ROOM) -> Page:
    """As many of the rows as fit; the next page starts behind the last one that does.

    `rows` may hold one more than `limit`, which says that there are more.
    """
    used, count = 0, 0
    for row in rows[:limit]:
        used += len(json.dumps(row, separators=(",", ":")))
        if count and used > room:
            break
        count += 1
    shown = list(rows[:count])
    return Page(shown, to_cursor(kind, shown[-1][key]) if count < len(rows) else None)
