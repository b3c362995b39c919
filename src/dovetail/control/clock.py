"""The plane's time: microseconds since 1970, of the wall, or running faster for virtual clusters.

With a scale of 60 a minute of the plane passes in a second. The pair of origins is kept in the store, so that
a plane that comes back goes on in the same time.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from dovetail.model.units import SECOND


def wall_now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1_000


@dataclass(frozen=True, slots=True)
class Clock:
    """A straight line through (wall, plane) moments."""

    wall: int = 0
    plane: int = 0
    scale: float = 1.0
    before: Clock | None = None  # which went until `wall`, if there was one: at another pace, or set since

    def now(self) -> int:
        return self.at(wall_now())

    def at(self, wall: int) -> int:
        """The plane's time at a moment of the wall."""
        if wall < self.wall and self.before is not None:
            return min(self.before.at(wall), self.plane)
        return self.plane + round((wall - self.wall) * self.scale)

    def wall_at(self, plane: int) -> int:
        """The moment of the wall at which the plane's time is this."""
        return self.wall + round((plane - self.plane) / self.scale)

    def wall_span(self, span: int) -> int:
        """How long a stretch of the plane's time takes on the wall, in microseconds."""
        return round(span / self.scale)

    def seconds_until(self, plane: int) -> float:
        """Real seconds from now."""
        return (self.wall_at(plane) - wall_now()) / SECOND

    def to_json(self) -> str:
        kept = {"wall": self.wall, "plane": self.plane, "scale": self.scale}
        before = self.before and {"before": {name: getattr(self.before, name) for name in kept}}
        return json.dumps({**kept, **(before or {})})


def clock_from(kept: str | None, scale: float, least: int) -> Clock:
    """The clock of a plane that wakes up: as before if it runs at the same pace; never behind `least`."""
    now = wall_now()
    if kept is not None:
        said = json.loads(kept)
        before = said.pop("before", None)
        clock = Clock(**said, before=before and Clock(**before))
        if clock.scale == scale and clock.at(now) >= least:
            return clock
        return Clock(now, max(clock.at(now), least), scale, replace(clock, before=None))
    return Clock(now, max(now, least), scale)


def iso(plane: int | None) -> str | None:
    """A moment as ISO 8601 in UTC."""
    if plane is None:
        return None
    moment = datetime.fromtimestamp(plane // SECOND, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + f".{plane % SECOND // 1000:03d}Z"
