"""The time of a plane, in microseconds since 1970. On virtual GPUs it may run faster than real time.

It is a function of steady time (steady_time.py), which follows the wall clock and does not jump.

With a scale of 60 a minute of the plane passes in a second. The origin is in the store, so a plane that is
started again continues in the same time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from dovetail.control.steady_time import STEADY, wall_time
from dovetail.model.units import SECOND


def wall_now() -> int:
    """Microseconds since 1970, for people and for tokens; it may jump."""
    return wall_time()


def steady_now() -> int:
    """Microseconds since 1970, without jumps."""
    return STEADY.now()


@dataclass(frozen=True, slots=True)
class Clock:
    """A linear map from steady time to the time of the plane."""

    wall: int = 0
    plane: int = 0
    scale: float = 1.0
    before: Clock | None = None  # the map that held until `wall`, if there was another

    def now(self) -> int:
        return self.at(steady_now())

    def of_wall(self, wall: int) -> int:
        """The time of the plane at a reading of the wall clock, which may have been set since."""
        return self.at(STEADY.of_wall(wall))

    def at(self, wall: int) -> int:
        """The time of the plane at a steady time."""
        if wall < self.wall and self.before is not None:
            return min(self.before.at(wall), self.plane)
        return self.plane + round((wall - self.wall) * self.scale)

    def wall_at(self, plane: int) -> int:
        """The steady time at a time of the plane: the first at which `at` gives that time or a later one."""
        if plane < self.plane and self.before is not None:
            return min(self.before.wall_at(plane), self.wall)
        return self.wall + round((plane - self.plane) / self.scale)

    def least_span(self, real: int) -> int:
        """Real microseconds as a span of the plane's time, at the slower pace if it was changed."""
        return round(real * min(self.scale, self.scale if self.before is None else self.before.scale))

    def wall_span(self, span: int) -> int:
        """A span of the plane's time as real microseconds."""
        return round(span / self.scale)

    def seconds_until(self, plane: int) -> float:
        """Real seconds from now."""
        return (self.wall_at(plane) - steady_now()) / SECOND

    def to_json(self) -> str:
        kept = {"wall": self.wall, "plane": self.plane, "scale": self.scale}
        before = self.before and {"before": {name: getattr(self.before, name) for name in kept}}
        return json.dumps({**kept, **(before or {})})


def clock_from(kept: str | None, scale: float, least: int) -> Clock:
    """The clock of a plane that starts: as before if the scale is the same; never behind `least`."""
    now = steady_now()
    if kept is not None:
        said = json.loads(kept)
        before = said.pop("before", None)
        clock = Clock(**said, before=before and Clock(**before))
        if clock.scale == scale and clock.at(now) >= least:
            return clock
        return Clock(now, max(clock.at(now), least), scale, replace(clock, before=None))
    return Clock(now, max(now, least), scale)


def iso(plane: int | None) -> str | None:
    """A time as ISO 8601 in UTC."""
    if plane is None:
        return None
    moment = datetime.fromtimestamp(plane // SECOND, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + f".{plane % SECOND // 1000:03d}Z"
