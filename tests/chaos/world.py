"""One run of the simulation: a room with planes, clients and faults, drawn from a seed, and what came of
it.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import sqlalchemy as sa
from tests.chaos import policies
from tests.chaos.clients import CALLERS, POLICIES, Client
from tests.chaos.database import ChaosStore, DatabaseLock, Server, template
from tests.chaos.disk import Disk
from tests.chaos.faults import FAULTS, NEED_TWO_PLANES, Injector
from tests.chaos.invariants import PATIENCE, RULES, Invariants, Violation
from tests.chaos.kernel import Kernel
from tests.chaos.room import SECOND, Process, Room, Trap, any_of
from tests.chaos.simulated_modules import simulated

from dovetail.control import disk_reserve, plane_state, serve
from dovetail.control import store as store_module
from dovetail.control.plane import Plane
from dovetail.engines.local import cgroup_limits
from dovetail.model.units import MIB
from dovetail.policies.registry import POLICIES as REGISTRY

HOUR = 3_600 * SECOND
KEEP_DAYS = 10.0
LONGEST_DRAIN = 96 * HOUR
QUICK_STARTS = 5  # that a plane has to come up in; after them it is started less often
LONGEST_RESTART = 60 * SECOND
KINDS: dict[str, float] = {"plain": 4, "saves": 3, "deaf": 1, "broken": 1, "again": 1, "reports": 1}


@dataclass(frozen=True)
class Mix:
    """How much happens in a simulated hour. Long runs have less of it: quiet hours cost little."""

    acts: float = 1.0  # times as long between two acts of a client
    faults: float = 1.0  # times as long between two faults
    probe: float = 60.0  # seconds between two requests that must be answered
    refused: float = LONGEST_RESTART / SECOND  # seconds between two starts that are refused for good
    nap: float = 30.0  # seconds up to which idle waits are stretched; a third of it with two planes


DEFAULT = Mix()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has shown."""

    seed: int
    faults: tuple[str, ...]
    violation: Violation | None
    digest: str  # of all steps
    hours: float  # simulated
    steps: int
    struck: dict[str, int]
    jobs: int
    states: dict[str, int]
    deeds: dict[str, int]
    commits: int
    starts: int  # of planes
    cpu: float
    log: list[str]


@dataclass(eq=False)
class PlaneProcess:
    """A plane under a service manager, which starts it again when it has ended."""

    name: str
    folder: Path
    port: int
    process: Process | None = None
    up: serve.Up | None = None
    starts: int = 0
    refused: int = 0  # times in a row that it ended before it was up


@dataclass(eq=False)
class World:
    """All that a run consists of."""

    room: Room
    kernel: Kernel
    server: Server
    file: Path
    planes: list[PlaneProcess]
    policy: str
    disk: Disk | None  # None: no power is lost
    refused_every: float  # seconds between two starts of a plane with another state folder
    obstructed_until: int = 0
    closing: bool = False
    words: str = "no plane has come up"  # of the plane that ended last
    next_look: int = 0  # of the service manager
    bound_to: Path | None = None  # the state folder with which the database belongs

    def obstruct(self, seconds: float) -> None:
        """A fault keeps planes from their work for this long."""
        self.obstructed_until = max(self.obstructed_until, self.room.now + round(seconds * SECOND))

    def obstructed(self) -> bool:
        """Whether a fault keeps all planes from their work."""
        if self.room.now < self.obstructed_until:
            return True
        for made in self.planes:
            process = made.process
            if self.bound_to not in (None, made.folder):
                continue  # it is refused
            if process is None or (not process.stopped and self.server.reachable(process)):
                return False
        return True

    def living(self) -> Iterator[tuple[Process, Plane]]:
        for made in self.planes:
            if made.up is not None and made.process is not None and made.process.alive:
                yield made.process, made.up.plane

    def cut_power(self) -> None:
        """The machine stops, and starts again."""
        self.room.boot += 1
        self.obstruct(60)
        for made in self.planes:
            made.refused = 0  # the service manager starts again too
        self.kernel.power_lost(self.disk)

    # -- planes

    def ended(self, made: PlaneProcess) -> None:
        """The service manager starts a plane again, together with others that have ended.

        A plane that ends again and again before it is up is started less often, as by RestartMaxDelaySec of
        systemd. The rule that some plane leads allows for longer than that.
        """
        room = self.room
        if self.next_look <= room.now:
            self.next_look = room.now + round((2.0 + room.random.random() * 3.0) * SECOND)
        more = 0 if made.refused < QUICK_STARTS else LONGEST_RESTART
        if more and self.bound_to not in (None, made.folder):
            more = round(self.refused_every * SECOND)
        room.at(self.next_look + more, lambda: self.start(made))

    def start(self, made: PlaneProcess) -> None:
        if self.closing:
            return
        made.starts += 1
        made.up = None
        wanted = serve.Wanted(
            folder=made.folder,
            virtual="2x4:A100",
            port=made.port,
            policy=self.policy if made.starts == 1 else None,
            database=self.server.url,
            keep_days=KEEP_DAYS,
        )

        def main() -> None:
            self.room.io("the plane starts", 1.0)
            try:
                with serve.plane_up(wanted) as up:
                    made.up, made.refused = up, 0
                    self.bound_to = self.bound_to or made.folder
                    over = plane_event(self.room)
                    up.plane.on_failure(over.set)
                    self.room.note("the plane is up")
                    if up.plane.failed is None:
                        over.wait()
                    self.room.note(f"the plane has failed: {type(up.plane.failed).__name__}")
                    self.words = f"the last one failed: {up.plane.failed!r}"[:300]
            except Exception as error:
                made.refused += 1
                self.room.struck["other-folder"] += self.bound_to not in (None, made.folder)
                self.room.note(f"the plane ends: {type(error).__name__}")
                self.words = f"the last one ended: {error!r}"[:300]
            finally:
                made.up = None

        made.process = self.room.spawn(made.name, main)
        made.process.at_end.append(lambda: self.ended(made))


def plane_event(room: Room) -> Any:
    from tests.chaos.simulated_modules import _Event

    return _Event(room)


@contextmanager
def _installed(world: World, invariants: Invariants) -> Iterator[None]:
    """The product runs in this room until the context ends."""
    two = len(world.planes) > 1
    election = serve._election
    paths = cast("dict[str, str]", REGISTRY.paths)
    store = type("RoomStore", (ChaosStore,), {"server": world.server})
    logger = logging.getLogger("dovetail")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with (
            patch.object(serve, "Store", store),
            patch.object(store_module, "_engine", lambda url: world.server.engine),
            patch.object(
                serve, "_election", lambda s, f: DatabaseLock(world.server, s) if two else election(s, f)
            ),
            patch.object(cgroup_limits, "detect", lambda: cgroup_limits.Limits(why="it is simulated")),
            patch.object(plane_state, "SNAPSHOT_EVERY", 40),
            patch.object(disk_reserve, "LARGEST", MIB),  # it is memory here
            patch.dict(paths, policies.REGISTERED),
            patch.dict(os.environ, {"DOVETAIL_ALLOW_ROOT": "1"}),  # no job of a simulation runs as anybody
            simulated(world.room, world.kernel, world.disk, invariants.removed),
        ):
            yield
    finally:
        logger.setLevel(level)


def play(
    seed: int,
    hours: float,
    faults: frozenset[str] = frozenset(FAULTS),
    *,
    rules: frozenset[str] = frozenset(RULES),
    keep_log: bool = False,
    mix: Mix = DEFAULT,
) -> Outcome:
    """Play one world for this many simulated hours, and then until all jobs are over.

    `rules` are those that end the run when they are broken. They change no step before that.
    """
    began = time.process_time()
    policies.VERSION[0] = 0
    folder = Path(tempfile.mkdtemp(prefix="dovetail-chaos-", dir="/dev/shm"))
    try:
        return _play(Room(seed, keep_log=keep_log), seed, hours, faults, rules, folder, began, mix)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _play(
    room: Room,
    seed: int,
    hours: float,
    faults: frozenset[str],
    rules: frozenset[str],
    folder: Path,
    began: float,
    mix: Mix,
) -> Outcome:
    pick = room.random
    allowed = faults
    if faults == frozenset(FAULTS):  # each world has some faults, not all: they hide each other
        allowed = frozenset(name for name in FAULTS if pick.random() < 0.4)
    two = "second-plane" in allowed
    if not two:
        allowed -= NEED_TWO_PLANES
    room.longest_nap = mix.nap / 3.0 if two else mix.nap
    room.longest_stand_by = 10.0 if two else 30.0
    if mix.nap > Mix.nap:
        room.longest_rest, room.growth = mix.nap, 4.0
    kernel = Kernel(room)
    names = ("one", "two") if two else ("one",)
    own = "other-folder" in allowed
    file = folder / "plane.db"
    shutil.copyfile(template() / "plane.db", file)
    server = Server(room, file)
    policy = "changing" if "changed-policy" in allowed else any_of(room, POLICIES)
    planes = [
        PlaneProcess(f"plane-{name}", folder / (f"state-{name}" if own else "state"), 1 + number)
        for number, name in enumerate(names)
    ]
    disk = Disk(room, folder) if "power-loss" in allowed else None
    world = World(room, kernel, server, file, planes, policy, disk, mix.refused)
    room.cut_power = world.cut_power
    invariants = Invariants(
        room,
        kernel,
        rules,
        round(KEEP_DAYS * 24 * HOUR),
        world.living,
        world.obstructed,
        lambda: world.words,
        round((mix.probe + PATIENCE) * SECOND),
    )
    kernel.began, kernel.over, kernel.forgotten = invariants.began, invariants.over, invariants.forgotten
    server.committed = invariants.committed
    room.on_step, room.on_spin = invariants.step, invariants.spins
    kinds = dict(KINDS)
    if "rubbish" in allowed:
        kinds["reports-rubbish"] = 0.5
    if "vandals" in allowed:
        kinds["vandal"] = 0.5
    clients = [
        Client(
            room,
            name,
            invariants,
            planes,
            kinds,
            every=60.0 * mix.acts * 2.0 ** pick.randrange(0, 4),
            lost=0.02,
        )
        for name in ("red", "blue")
    ]
    injector = Injector(world, allowed, every=60.0 * mix.faults * 2.0 ** pick.randrange(0, 5))
    room.note(f"faults {sorted(allowed)}, policy {policy}, planes {len(planes)}")

    def ended() -> bool:
        return invariants.violation is not None

    with _installed(world, invariants):
        try:
            for made in planes:
                world.start(made)
            if disk is not None and pick.random() < 0.3 and planes[0].process is not None:
                planes[0].process.trap = Trap(
                    1 + pick.randrange(80), "power", "power-loss"
                )  # in the first start
            for client in clients:
                room.spawn(f"client-{client.tenant}", client.run, machine="outside")
            room.spawn("prober", lambda: _probe(room, clients[0], world, mix.probe), machine="outside")
            room.spawn("faults", injector.run, machine="outside")
            room.run(round(hours * HOUR), ended)
            if not ended():
                _drained(world, invariants, clients, injector, ended)
        finally:
            world.closing = True
            room.on_step = lambda: None
            room.end()
            server.engine.dispose()
    counts = Counter(state.value for state in invariants.states.values())
    return Outcome(
        seed=seed,
        faults=tuple(sorted(allowed)),
        violation=invariants.violation,
        digest=room.digest,
        hours=room.now / HOUR,
        steps=room.steps,
        struck=dict(+room.struck),
        jobs=len(invariants.known),
        states=dict(counts),
        deeds=dict(sum((client.deeds for client in clients), Counter())),
        commits=invariants.commits,
        starts=sum(made.starts for made in planes),
        cpu=time.process_time() - began,
        log=list(room.tail),
    )


def _probe(room: Room, client: Client, world: World, every: float) -> None:
    """Ask again and again for something that must be written."""
    from dovetail.control import commands

    while not world.closing:
        room.sleep(every)
        client.ask(lambda plane: commands.set_priority(plane, CALLERS["red"], [], 0))


def _drained(
    world: World, invariants: Invariants, clients: list[Client], injector: Injector, ended: Any
) -> None:
    """No more faults and no more requests: all that was accepted has to end."""
    room = world.room
    injector.closing = True
    for client in clients:
        client.closing = True
    room.note("all faults are over")
    room.disk_full, room.slow_until = False, 0
    world.server.unreachable.clear()
    world.server.lost_answers = 0.0
    for process in list(room.processes.values()):
        process.trap = None
        if process.stopped:
            room.resume(process)

    def release() -> None:
        from dovetail.control import commands

        while True:
            held = [k for k in invariants.known.values() if not clients[0].over(k)]
            for known in held:
                known.held = False
            ids = [k.id for k in held]
            clients[0].ask(partial(commands.release, ids=ids))
            room.sleep(600.0)

    room.spawn("releaser", release, machine="outside")

    looked_at = -1  # commits: only a commit ends a job

    def over() -> bool:
        nonlocal looked_at
        if invariants.commits == looked_at:
            return bool(ended())
        looked_at = invariants.commits
        return bool(ended()) or all(clients[0].over(k) for k in invariants.known.values())

    room.run(room.now + 600 * SECOND, ended)  # clients end what they do
    room.run(room.now + LONGEST_DRAIN, over)
    if not ended():
        invariants.at_the_end(_rows(world.file))


def _rows(file: Path) -> dict[str, str]:
    engine = sa.create_engine(f"sqlite:///{file}")
    try:
        with engine.connect() as connection:
            return {row.id: row.state for row in connection.exec_driver_sql("SELECT id, state FROM jobs")}
    finally:
        engine.dispose()
