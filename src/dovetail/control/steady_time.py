"""Time that does not jump: the wall clock at one moment, and from then on the clock of the kernel.

The wall clock can be set, and then durations that are computed from it are wrong. The time since the machine
was booted cannot; it also counts while the machine sleeps. Steady time starts from the wall clock and runs by
the time since boot. It approaches the wall clock by at most a thousandth, so that small corrections (NTP) are
followed, durations stay right, and time never goes back. A jump of the wall clock is said once, and not
followed. See docs/decisions/0032-two-clocks.md.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dovetail.model.units import SECOND

SLEW = 0.001  # of the time that passes
JUMP = 10 * SECOND  # a larger difference is said
KEY = "steady"  # in the store

log = logging.getLogger("dovetail.plane")


def wall_time() -> int:
    """Microseconds since 1970, as the wall clock reads."""
    return time.time_ns() // 1_000


def boot_time() -> int:
    """Microseconds since the machine was booted."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def boot_id() -> str:
    """A word that changes with each boot."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


class SteadyTime:
    """Microseconds since 1970 that never jump. Any thread may ask."""

    def __init__(
        self, wall: Callable[[], int] = wall_time, boot: Callable[[], int] = boot_time, id: str | None = None
    ) -> None:
        self._wall, self._boot = wall, boot
        self._id = boot_id() if id is None else id
        self._lock = threading.Lock()
        self._now, self._at = wall(), boot()
        self._resumed = False
        self._said = 0  # the difference to the wall clock of which the log tells

    def now(self) -> int:
        with self._lock:
            at = self._boot()
            passed, self._at = max(0, at - self._at), at
            off = self._wall() - self._now - passed
            most = round(passed * SLEW)
            self._now += passed + min(max(off, -most), most)
            if abs(off - self._said) > JUMP:
                self._said = off
                self._say(off)
            return self._now

    def of_wall(self, wall: int) -> int:
        """The steady time at a reading of the wall clock, by how the two differ now.

        Less than a second does not count, so that a reading has the same time whenever it is asked for.
        """
        off = self.now() - self._wall()
        return wall + off if abs(off) >= SECOND else wall

    def kept(self) -> str:
        """What the next process of this machine needs to go on."""
        now = self.now()
        return json.dumps({"boot": self._id, "at": self._at, "now": now})

    def resume(self, kept: str | None) -> None:
        """Go on from what an earlier process kept, if the machine was not booted since.

        Only the first call of a process counts: from then on its own time is the better one.
        """
        if kept is None or self._resumed:
            return
        self._resumed = True
        try:
            said = json.loads(kept)
            boot, at, now = str(said["boot"]), int(said["at"]), int(said["now"])
        except (ValueError, KeyError, TypeError):
            return
        with self._lock:
            if boot and boot == self._id and at <= (here := self._boot()):
                self._now, self._at = now + here - at, here

    def _say(self, off: int) -> None:
        if abs(off) <= JUMP:
            log.info("the wall clock and the time of the plane agree again")
            return
        way = "ahead of" if off > 0 else "behind"
        log.warning(
            "the wall clock is %.0f s %s the time of the plane: it was set, or was wrong when the plane "
            "started. The plane keeps its own time, and durations stay right; a plane that is started with "
            "--set-clock takes the time of the wall clock",
            abs(off) / SECOND,
            way,
        )


STEADY = SteadyTime()  # of this process
