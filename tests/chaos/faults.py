"""Faults: each has a name, strikes a part of the room, and heals by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.chaos import policies
from tests.chaos.database import corrupt_snapshot
from tests.chaos.room import SECOND, Process, Trap

if TYPE_CHECKING:
    from tests.chaos.world import World

# name: what it is, and how often it strikes compared with the others
FAULTS: dict[str, tuple[str, float]] = {
    "kill-plane": ("a plane is killed, at a yield point of its work or while it waits", 4),
    "stop-plane": ("a plane is stopped for seconds to many minutes, and continued", 3),
    "cut-session": ("the database lets go of the leader's session", 2),
    "depose": ("the leader is stopped in the middle of its work, loses its session, and is continued", 2),
    "database-away": ("a plane does not reach the database for some time", 1),
    "lost-answer": ("the answers to some commits are lost", 1),
    "kill-supervisor": ("a supervisor is killed", 3),
    "stop-supervisor": ("a supervisor is stopped for some seconds", 3),
    "disk-full": ("nothing can be written for some time", 1),
    "slow-disk": ("whatever is written takes long", 1),
    "clock-jump": ("the wall clock is wrong for some time, by seconds to 40 days", 1),
    "corrupt-snapshot": ("some bits of the newest snapshot flip while no plane runs", 1),
    "changed-policy": ("a plane is killed, and the code of its policy is another when it starts again", 2),
    "power-loss": ("the machine stops, loses what is not on disk, and starts again", 1),
    "rubbish": ("jobs report rubbish", 0),
    "vandals": ("jobs write to all files that they can reach", 0),
    "other-folder": ("the second plane has a state folder of its own", 0),
    "second-plane": ("two planes share the database", 0),
}
NEED_TWO_PLANES = frozenset({"cut-session", "depose", "other-folder"})


@dataclass(eq=False)
class Injector:
    """Strikes at random moments, with what is allowed."""

    world: World
    allowed: frozenset[str]
    every: float  # mean seconds between two faults
    closing: bool = False

    def run(self) -> None:
        weights = {name: FAULTS[name][1] for name in FAULTS if name in self.allowed and FAULTS[name][1]}
        if not weights:
            return
        room = self.world.room
        while True:
            room.sleep(room.random.expovariate(1.0 / self.every))
            if self.closing:
                return
            name = room.random.choices(list(weights), list(weights.values()))[0]
            strike: Callable[[], bool | None] = getattr(self, "_" + name.replace("-", "_"))
            struck = strike()
            if struck is not False:
                room.note(f"fault: {name}")
            room.struck[name] += bool(struck)

    # Each fault returns whether it has struck: False if there is nothing to strike, None if it strikes later
    # and is counted then.

    def _trap(self, process: Process, most: float, deed: str, fault: str) -> None:
        pick = self.world.room.random
        process.trap = Trap(1 + int(pick.expovariate(1 / most)), deed, fault)

    def _plane(self) -> Process | None:
        living = [p.process for p in self.world.planes if p.process is not None and p.process.alive]
        return self.world.room.random.choice(living) if living else None

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        room = self.world.room
        room.at(room.now + round(seconds * SECOND), call)

    def _span(self, low: float, high: float) -> float:
        """Seconds, as often short as long."""
        pick = self.world.room.random
        return float(low * (high / low) ** pick.random())

    # -- planes

    def _kill_plane(self) -> bool | None:
        process, room = self._plane(), self.world.room
        if process is None:
            return False
        self.world.obstruct(10)
        if room.random.random() < 0.7:
            self._trap(process, 15, "kill", "kill-plane")
            return None
        self._later(0.0, lambda: room.kill(process))
        return True

    def _stop_plane(self) -> bool | None:
        process, room = self._plane(), self.world.room
        if process is None or process.stopped:
            return False
        trapped = room.random.random() < 0.7
        if trapped:
            self._trap(process, 15, "stop", "stop-plane")
        else:
            room.stop(process)

        def resumed() -> None:
            process.trap = None
            if process.alive:
                room.note(f"{process.name} is continued")
                room.resume(process)

        self._later(self._span(1.0, 1800.0), resumed)
        return None if trapped else True

    def _cut_session(self) -> bool:
        session = self.world.server.locked()
        if session is None:
            return False
        session.cut = True
        return True

    def _depose(self) -> bool | None:
        session, room = self.world.server.locked(), self.world.room
        if session is None or session.process.stopped:
            return False
        process = session.process
        self._trap(process, 30, "stop", "depose")

        def cut() -> None:
            if process.stopped:
                session.cut = True

        def resumed() -> None:
            process.trap = None
            if process.alive:
                room.note(f"{process.name} is continued")
                room.resume(process)

        wait = self._span(1.0, 60.0)
        self._later(wait, cut)
        self._later(wait + self._span(5.0, 300.0), resumed)
        return None

    def _database_away(self) -> bool:
        process = self._plane()
        if process is None:
            return False
        self.world.server.unreachable[process.name] = self.world.room.now + round(self._span(1, 300) * SECOND)
        return True

    def _lost_answer(self) -> None:
        self.world.server.lost_answers = 0.2

        def healed() -> None:
            self.world.server.lost_answers = 0.0

        self._later(self._span(5, 120), healed)
        self.world.obstruct(120)

    # -- supervisors

    def _supervisor(self) -> Process | None:
        room = self.world.room
        found = [p for p in room.processes.values() if p.name.startswith("supervisor") and not p.stopped]
        return room.random.choice(found) if found else None

    def _kill_supervisor(self) -> bool | None:
        process, room = self._supervisor(), self.world.room
        if process is None:
            return False
        if room.random.random() < 0.4:
            self._trap(process, 6, "kill", "kill-supervisor")
            return None
        self._later(0.0, lambda: room.kill(process))
        return True

    def _stop_supervisor(self) -> bool:
        process, room = self._supervisor(), self.world.room
        if process is None:
            return False
        room.stop(process)
        self._later(self._span(1.0, 900.0), lambda: room.resume(process) if process.alive else None)
        return True

    # -- disk, clock, machine

    def _disk_full(self) -> bool:
        room = self.world.room
        room.disk_full = True
        span = self._span(2, 600)

        def healed() -> None:
            room.disk_full = False

        self._later(span, healed)
        self.world.obstruct(span)
        return True

    def _slow_disk(self) -> bool:
        room, span = self.world.room, self._span(2, 120)
        room.slow_until = room.now + round(span * SECOND)
        self.world.obstruct(span + 60)
        return True

    def _clock_jump(self) -> bool:
        room = self.world.room
        jump = round(self._span(5, 40 * 86_400) * SECOND) * room.random.choice((1, -1))
        room.wall_offset += jump
        room.note(f"the wall clock jumps by {jump / SECOND:.0f} s")

        def healed() -> None:
            room.wall_offset -= jump

        self._later(self._span(60, 3_600), healed)
        return True

    def _corrupt_snapshot(self) -> None:
        for made in self.world.planes:
            if made.process is not None:
                process = made.process
                self._later(0.0, lambda process=process: self.world.room.kill(process))  # type: ignore[misc]

        def corrupted() -> None:
            found = corrupt_snapshot(self.world.file, self.world.room)
            self.world.room.struck["corrupt-snapshot"] += found

        self._later(0.000_01, corrupted)
        self.world.obstruct(10)

    def _changed_policy(self) -> bool:
        for made in self.world.planes:
            if made.process is not None:
                process = made.process
                self._later(0.0, lambda process=process: self.world.room.kill(process))  # type: ignore[misc]

        def changed() -> None:
            policies.VERSION[0] += 1

        self._later(0.0, changed)
        self.world.obstruct(10)
        return True

    def _power_loss(self) -> bool | None:
        room = self.world.room
        found = [process for process in room.processes.values() if process.machine != "outside"]
        if found and room.random.random() < 0.7:
            self._trap(room.random.choice(found), 15, "power", "power-loss")
            return None
        self._later(0.0, self.world.cut_power)
        return True
