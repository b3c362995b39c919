"""The cluster as a stream: all nodes in a short form first, then those that changed, at most once a second.

The loop is asked once for all readers: a board keeps the last overview while there are readers, and asks for
another only if the core has taken a step since. All callers of a tenant see the same, and so do all admins:
one view is drawn for each tenant. The view remembers the version in which every node last changed, so that a
slow reader is sent all that it missed at once, and nothing is queued.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from dovetail.control import questions
from dovetail.control.api.auth import Call, Watching
from dovetail.control.api.limits import Stream
from dovetail.control.api.openapi import event_stream, problems
from dovetail.control.api.watch import EventStream, Patience, event
from dovetail.control.clock import iso
from dovetail.model.errors import DovetailError
from dovetail.model.units import WHOLE

if TYPE_CHECKING:
    from dovetail.control.cluster_state import NodeState, Overview
    from dovetail.control.plane import Plane
    from dovetail.control.tokens import Caller

EVERY = 1.0  # seconds between two looks, at least
GLANCE = 0.1  # seconds between two glances at whether there is something to look at
MOST_JOBS = 20  # that are named on one device
STATES = {"up": "u", "drained": "d", "lost": "l", "off": "o"}

log = logging.getLogger("dovetail.api")
router = APIRouter(tags=["cluster"])


# --- what is drawn ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """The cluster as those of one tenant see it, or an admin."""

    overview: Overview
    version: int
    layout: int  # the version since when there are these nodes
    types: list[str]
    tenants: list[str]
    tenants_at: list[int]  # the version with which each was first seen
    rows: list[str]  # JSON
    rows_at: list[int]  # the version with which each last changed
    told: dict[int, bytes] = field(default_factory=dict)  # the event for a reader, by the version it has seen

    def whole(self) -> bytes:
        """The first event; for a reader that has seen nothing, or other nodes."""
        return self._event(-1, "cluster", self._whole)

    def since(self, version: int) -> bytes:
        """What changed after a version."""
        return self._event(version, "changes", lambda: self._changes(version))

    def _event(self, key: int, kind: str, text: Any) -> bytes:
        if key not in self.told:
            self.told[key] = f"event: {kind}\ndata: {text()}\n\n".encode()
        return self.told[key]

    def _whole(self) -> str:
        types, tenants = _json(self.types), _json(self.tenants)
        return f'{{{self._head()},"types":{types},"tenants":{tenants},"nodes":[{",".join(self.rows)}]}}'

    def _changes(self, version: int) -> str:
        rows = ",".join(
            f'"{number}":{row}'
            for number, (row, at) in enumerate(zip(self.rows, self.rows_at, strict=True))
            if at > version
        )
        new = [name for name, at in zip(self.tenants, self.tenants_at, strict=True) if at > version]
        return f'{{{self._head()},"tenants":{_json(new)},"nodes":{{{rows}}}}}'

    def _head(self) -> str:
        seen = self.overview
        return (
            f'"now":"{iso(seen.now)}","policy":{_json(seen.policy)},"waiting":{seen.waiting},'
            f'"running":{seen.running},"asked":{_json(seen.asked)},"policy_failure":{_json(seen.policy_failure)}'
        )


def drawn(overview: Overview, tenant: str | None, before: Picture | None = None) -> Picture:
    """The picture of an overview, with what has changed since the one before; that one if nothing has.

    It is for the callers of a tenant; with None for those that see all.
    """
    version = before.version + 1 if before else 1
    if before is None or _layout(before.overview) != _layout(overview):
        types = list(dict.fromkeys(node.type for node in overview.nodes))
        picture = Picture(overview, version, version, types, [], [], [], [])
        rows = [_row(node, picture, overview, tenant) for node in overview.nodes]
        picture.rows.extend(rows)
        picture.rows_at.extend([version] * len(rows))
        return picture
    picture = Picture(
        overview, version, before.layout, before.types, list(before.tenants), list(before.tenants_at),
        list(before.rows), list(before.rows_at),
    )  # fmt: skip
    news = _figures(before.overview) != _figures(overview)
    for number, (old, node) in enumerate(zip(before.overview.nodes, overview.nodes, strict=True)):
        if old != node and (row := _row(node, picture, overview, tenant)) != before.rows[number]:
            picture.rows[number], picture.rows_at[number] = row, version
            news = True
    return picture if news else before


def _layout(overview: Overview) -> list[tuple[str, str, int]]:
    return [(node.name, node.type, node.gpus) for node in overview.nodes]


def _figures(overview: Overview) -> tuple[Any, ...]:
    return overview.policy, overview.policy_failure, overview.waiting, overview.running, overview.asked


def _row(node: NodeState, picture: Picture, overview: Overview, tenant: str | None) -> str:
    devices = [_device(held, picture, overview, tenant) for _, held in node.devices]
    kind = picture.types.index(node.type)
    return _json([node.name, kind, STATES[node.state], node.why[:200], devices])


def _device(held: list[tuple[str, int]], picture: Picture, overview: Overview, tenant: str | None) -> Any:
    """The jobs on a device: 0 for none, one word or 1 if one job has all of it, a list if it is shared."""
    if not held:
        return 0
    shares: list[list[Any]] = []
    others = 0
    for job, milli in held:
        owner = overview.tenants.get(job, "")
        if (tenant is None or owner == tenant) and len(shares) < MOST_JOBS:
            shares.append([job, milli, _number(picture, owner)])
        else:
            others += milli
    if len(held) == 1 and held[0][1] >= WHOLE:
        return f"{shares[0][0]}:{shares[0][2]}" if shares else 1
    return [*shares, [None, others]] if others else shares


def _number(picture: Picture, tenant: str) -> int:
    if tenant not in picture.tenants:
        picture.tenants.append(tenant)
        picture.tenants_at.append(picture.version)
    return picture.tenants.index(tenant)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# --- readers ----------------------------------------------------------------------------------------


class View:
    """The readers that see the same picture, and that picture."""

    def __init__(self, tenant: str | None) -> None:
        self.tenant = tenant
        self.picture: Picture | None = None
        self.readers: set[Reader] = set()

    def show(self, picture: Picture) -> None:
        if picture is not self.picture:
            self.picture = picture
            for reader in self.readers:
                reader.rung.set()


class Reader:
    """One reader, and the last version that it was sent."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.lost = False
        self.rung = asyncio.Event()
        self._seen = 0

    def take(self) -> bytes:
        """What is to be told now; nothing if nothing is new."""
        self.rung.clear()
        picture, seen = self.view.picture, self._seen
        if picture is None or picture.version == seen:
            return b""
        self._seen = picture.version
        return picture.whole() if seen < picture.layout else picture.since(seen)


class Board:
    """The last overview, kept while there are readers. For the event loop's thread only."""

    def __init__(self, plane: Plane, every: float = EVERY) -> None:
        self._plane = plane
        self._every = every
        self._views: dict[str | None, View] = {}
        self._overview: Overview | None = None
        self._looked_at = 0.0
        self._turn = asyncio.Lock()  # one at a time draws
        self._task: asyncio.Task[None] | None = None

    async def join(self, caller: Caller) -> Reader:
        """A new reader; it must leave."""
        tenant = None if caller.admin else caller.tenant
        view = self._views.setdefault(tenant, View(tenant))
        reader = Reader(view)
        view.readers.add(reader)
        try:
            if view.picture is None:
                await self._draw(list(self._views.values()))  # what is new is new for all
        except BaseException:
            self.leave(reader)
            raise
        if self._task is None or self._task.done():
            # It asks for all readers, and not for the token of the one that came first.
            self._task = asyncio.get_running_loop().create_task(self._watch(), context=Context())
        return reader

    def leave(self, reader: Reader) -> None:
        view = reader.view
        view.readers.discard(reader)
        if not view.readers and self._views.get(view.tenant) is view:
            del self._views[view.tenant]

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        """Draw again what has changed, as long as there are readers."""
        while self._views:
            wait = self._looked_at + self._every - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            elif self._overview is not None and self._overview.moment == self._plane.moment:
                await asyncio.sleep(GLANCE)
            else:
                try:
                    await self._draw(list(self._views.values()))
                except Exception as error:
                    if not isinstance(error, DovetailError | TimeoutError):  # it leads no more, or goes down
                        log.exception("the cluster cannot be shown")
                    self._lose_all()
                    return

    async def _draw(self, views: list[View]) -> None:
        async with self._turn:
            overview = self._overview
            if overview is None or time.monotonic() - self._looked_at >= self._every:
                overview = await run_in_threadpool(questions.overview, self._plane)
                self._overview, self._looked_at = overview, time.monotonic()
            for view in views:
                view.show(await run_in_threadpool(drawn, overview, view.tenant, view.picture))

    def _lose_all(self) -> None:
        views, self._views = self._views, {}
        for view in views.values():
            for reader in view.readers:
                reader.lost = True
                reader.rung.set()


@router.get(
    "/cluster/stream",
    operation_id="watch_cluster",
    summary="All nodes and the jobs on each device, as they change",
    responses={
        **event_stream(
            "Events: cluster {now, policy, policy_failure, waiting, running, asked, types, tenants, nodes}, "
            "changes (the same without types, nodes by their number, new tenants only), lost."
        ),
        **problems(429),
    },
)
async def watch_cluster(call: Watching) -> StreamingResponse:
    """Server-sent events, at most one a second and none while nothing changes.

    A node is `[name, type, state, reason, devices]`; type is an index into `types`, state is u(p), d(rained),
    l(ost) or o(ff). A device is 0 if free, `"ID:TENANT"` if one job has all of it (TENANT is an index into
    `tenants`), 1 if that job is another tenant's, and else a list of `[id, milli, tenant]`, with
    `[null, milli]` for what others have of it. `waiting`, `running` and `asked` (GPUs waited for) count all
    jobs. If there are other nodes than before, `cluster` comes again. `lost` means that this plane cannot
    tell any more: connect again, and begin anew.
    """
    stream = call.wiring.streams.open(call.caller.token)
    return EventStream(call.wiring, stream, _told(call, stream))


async def _told(call: Call, stream: Stream) -> AsyncIterator[bytes]:
    board, patience = call.wiring.board, Patience(call, stream)
    try:
        reader = await board.join(call.caller)
    except (DovetailError, TimeoutError):
        yield event("lost", {"why": "this plane cannot tell"})
        return
    try:
        while not await patience.over():
            if reader.lost:
                yield event("lost", {"why": "this plane cannot tell any more"})
                return
            if said := reader.take():
                yield said
                patience.said()
            elif sign := patience.sign_of_life():
                yield sign
            await patience.wait(reader.rung, patience.keep_alive)
    finally:
        board.leave(reader)
