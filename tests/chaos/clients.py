"""Clients: users of two tenants that submit, cancel, hold, release, requeue, and ask again until they are
answered.

A request runs in the process of a plane, as a handler of its API would run it. The client waits for the
answer; if the plane dies, does not answer, or the answer is lost on the way, the client asks again with
the same key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.chaos.invariants import Invariants, Known
from tests.chaos.room import Room, any_of

from dovetail.control import commands, submission
from dovetail.control.inbox import Unavailable
from dovetail.control.lists import Filter, Lists
from dovetail.control.lookup import Lookup
from dovetail.control.request import parse_request
from dovetail.control.store import StoreError
from dovetail.control.tokens import Caller
from dovetail.model.errors import DovetailError

if TYPE_CHECKING:
    from tests.chaos.world import PlaneProcess

    from dovetail.control.plane import Plane

PATIENCE = 90.0  # seconds that a client waits for an answer
CALLERS = {name: Caller(f"token-{name}", name, f"u-{name}", "user") for name in ("red", "blue")}
POLICIES: dict[str, float] = {"fifo": 1, "backfill": 1, "tiresias-l": 2, "srtf": 2, "kueue": 2}


class Refused(Exception):
    """A plane says no."""


@dataclass(eq=False)
class Box:
    """The answer to one request."""

    result: Any = None
    error: BaseException | None = None
    over: bool = False


@dataclass(eq=False)
class Client:
    """One tenant's user."""

    room: Room
    tenant: str
    invariants: Invariants
    planes: list[PlaneProcess]
    kinds: dict[str, float]
    every: float  # mean seconds between two acts
    lost: float = 0.0  # share of answers that are lost on the way
    deeds: Counter[str] = field(default_factory=Counter)
    closing: bool = False
    most: int = 40

    def run(self) -> None:
        while not self.closing:
            self.room.sleep(self.room.random.expovariate(1.0 / self.every))
            if not self.closing:
                self.act()

    # -- requests

    def ask(self, call: Callable[[Plane], Any]) -> Any:
        """The answer of whichever plane gives one."""
        turn = 0
        while True:
            turn += 1
            made = self.planes[turn % len(self.planes)]
            process, up = made.process, made.up
            if process is None or not process.alive or up is None:
                self.room.sleep(2.0)
                continue
            box = self._sent(process, partial(call, up.plane))
            if box.over and box.error is None:
                self.invariants.answered()  # also if the answer is lost on the way
            if box.over and self.room.random.random() >= self.lost:
                if box.error is None:
                    return box.result
                if isinstance(box.error, DovetailError) and not isinstance(
                    box.error, Unavailable | StoreError
                ):
                    raise Refused(f"{type(box.error).__name__}: {box.error}")
                if not isinstance(box.error, DovetailError | TimeoutError):
                    self.room.note(f"a request failed: {box.error!r}")
            self.room.sleep(1.0 + self.room.random.random() * 2.0)

    def _sent(self, process: Any, call: Callable[[], Any]) -> Box:
        box, me = Box(), self.room.current()
        assert me is not None

        def handler() -> None:
            try:
                box.result = call()
            except Exception as error:
                box.error = error
            box.over = True
            self.room.wake(me)

        self.room.thread(process, "request", handler)
        me.waiting, me.naps = True, 0
        try:
            until = self.room.now + round(PATIENCE * 1e6)
            while not box.over and self.room.now < until and process.alive:
                me.waiting = True
                self.room.sleep(min(5.0, (until - self.room.now) / 1e6))
        finally:
            me.waiting = False
        return box

    # -- what a user does

    def act(self) -> None:
        mine = [k for k in self.invariants.known.values() if k.tenant == self.tenant]
        active = [k for k in mine if not self.over(k)]
        deed = any_of(
            self.room,
            {"submit": 10.0 if len(active) < self.most else 1.0, "cancel": 1, "hold": 1.5, "release": 2}
            | {"requeue": 2, "priority": 1, "peek": 0.5, "policy": 0.15},
        )
        try:
            if deed == "submit":
                ids = self.submit(mine)
                if self.room.random.random() < 0.3:  # in the same moment the user thinks otherwise
                    self.room.sleep(0.005 * 400.0 ** self.room.random.random())
                    chosen = [self.invariants.known[name] for name in ids[-3:]]
                    self.command(self.room.random.choice(("requeue", "requeue", "hold", "cancel")), chosen)
            elif deed == "policy":
                name = any_of(self.room, POLICIES)
                self.ask(lambda plane: commands.switch_policy(plane, name, {}))
            elif deed == "peek":
                self.peek()
            elif active:
                self.command(deed, self.room.random.sample(active, k=min(3, len(active))))
            self.deeds[deed] += 1
        except Refused as error:
            self.deeds["refused"] += 1
            self.room.note(f"{self.tenant} was refused: {error}")
            if not str(error).startswith(("NeverFits", "InputError: the dependency")):
                self.invariants.broken("accepted", f"{deed} was refused: {error}")

    def over(self, known: Known) -> bool:
        state = self.invariants.states.get(known.id)
        return state is not None and state.final

    def submit(self, mine: list[Known], **fixed: Any) -> list[str]:
        pick = self.room.random
        kind = any_of(self.room, self.kinds)
        seconds = round(pick.lognormvariate(5.5, 1.5), 1)
        body: dict[str, Any] = {
            "name": kind,
            "command": ["train", kind, str(min(seconds, 4_000.0))],
            "resources": {"gpus": pick.choice((1, 1, 1, 2, 2, 4))},
            "priority": pick.choice((0, 0, 0, 5, 10)),
            "retry": {"on": ["node-failure"], "max": 5},
            "checkpoint": {"grace": pick.choice(("5s", "30s", "30s", "2m"))},
            "model": pick.choice(("", "gpt", "resnet")),
        }
        if pick.random() < 0.5:
            body["time"] = "8h"
        shape = pick.random()
        if shape < 0.15:
            body["array"] = pick.choice(("0-7", "0-3%2", "1-3", "0-15", "0-4%1"))
        elif shape < 0.30 and mine:
            body["dependency"] = f"{pick.choice(('afterok', 'afterany'))}:{pick.choice(mine[-8:]).id}"
        elif shape < 0.40:
            body["hold"] = True
        elif shape < 0.45:
            body["begin"] = pick.choice(("+1m", "+10m", "+2h"))
        elif shape < 0.50:
            body["nodes"] = 2
        body |= fixed
        request = parse_request(body)
        key, caller = f"{pick.getrandbits(64):x}", CALLERS[self.tenant]
        self.room.note(f"{self.tenant} submits {kind} {body.get('array', '')}")
        got = self.ask(lambda plane: submission.submit(plane, caller, request, body, key))
        for name in got.ids:
            if name in self.invariants.known:
                self.invariants.broken("accepted", f"{name} was given to two submissions")
            if name not in self.invariants.states:
                self.invariants.broken("accepted", f"{name} was accepted, and is not on record")
            self.invariants.known[name] = Known(name, self.tenant, kind, held=bool(body.get("hold")))
            self.deeds["jobs"] += 1
        return list(got.ids)

    def command(self, deed: str, chosen: list[Known]) -> None:
        ids = [k.id for k in chosen]
        for known in chosen:
            known.held = known.held and deed != "release"
            known.cancelled = known.cancelled or deed == "cancel"
        self.room.note(f"{self.tenant} {deed} {ids}")
        if deed == "priority":
            priority = self.room.random.choice((0, 5, 20))
            self.ask(lambda plane: commands.set_priority(plane, CALLERS[self.tenant], ids, priority))
            return
        done = self.ask(lambda plane: commands.TO_JOBS[deed](plane, ids))
        if deed == "hold" and not self.closing:  # else all jobs may have been released in between
            for known in chosen:
                known.held = known.held or known.id in done

    def peek(self) -> None:
        """Look at a job of the other tenant, and try to depend on it."""
        others = [k for k in self.invariants.known.values() if k.tenant != self.tenant]
        if not others:
            return
        other = self.room.random.choice(others).id
        if self.ask(lambda plane: Lookup(plane.store).job(CALLERS[self.tenant], other)) is not None:
            self.invariants.broken("tenant", f"{self.tenant} sees {other}")
        page = self.ask(lambda plane: Lists(plane.store).jobs(CALLERS[self.tenant], Filter(), None, 100))
        if found := {k.id for k in others} & {job["id"] for job in page.items}:
            self.invariants.broken("tenant", f"the jobs of {self.tenant} are listed with {sorted(found)[:3]}")
        try:
            self.submit([], dependency=f"afterany:{other}")
        except Refused:
            return
        self.invariants.broken("tenant", f"a job of {self.tenant} depends on {other}")
