"""Server-sent events: changes of jobs as they happen.

The loop's thread reports changes to the event loop, which keeps the last of them: a listener that was cut off
goes on where it was (Last-Event-ID). A listener that reads too slowly, or comes back too late, is sent
`event: lost` and should read the list again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dovetail.control.api.auth import Call, Watching, Wiring
from dovetail.control.api.limits import Stream
from dovetail.control.api.openapi import event_stream, problems
from dovetail.control.states import LETTERS, State
from dovetail.control.tokens import Caller

if TYPE_CHECKING:
    from dovetail.control.plane import Change, Plane

REMEMBERED = 10_000  # changes
MOST_WAITING = REMEMBERED  # changes that one reader may be behind
CHECK_TOKEN = 30.0  # seconds

router = APIRouter(tags=["jobs"])
Batch = tuple[str, tuple["Change", ...]]  # the word for a moment, and what changed


class Hub:
    """Passes changes on to all listeners. Everything but `_heard` is for the event loop's thread."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        # Ids are words, not numbers: a number would tell how much happens to other tenants.
        self._number = 0
        self._word = secrets.token_hex(8)  # of the last moment
        self._numbers = {self._word: 0}
        self._recent: deque[Batch] = deque()
        self._kept = 0
        self._listeners: set[Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._undo: Callable[[], None] | None = None

    def open(self) -> None:
        """Start to listen; to be called where the event loop runs."""
        self._loop = asyncio.get_running_loop()
        self._undo = self._plane.subscribe(self._heard)

    def close(self) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _heard(self, changes: list[Change]) -> None:
        """On the loop's thread: must return at once."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the event loop is closed already
                self._loop.call_soon_threadsafe(self._tell, tuple(changes))

    def _tell(self, changes: tuple[Change, ...]) -> None:
        self._number += 1
        self._word = secrets.token_hex(8)
        self._numbers[self._word] = self._number
        self._recent.append((self._word, changes))
        self._kept += len(changes)
        while self._kept > REMEMBERED and len(self._recent) > 1:
            word, gone = self._recent.popleft()
            self._kept -= len(gone)
            self._before(word)
        for listener in self._listeners:
            listener.put((self._word, changes))

    def _before(self, word: str) -> None:
        """A listener that has heard this moment can go on; one that has heard only earlier ones cannot."""
        number = self._numbers[word]
        for known in [known for known, at in self._numbers.items() if at < number]:
            del self._numbers[known]

    def listen(self, caller: Caller, only: str | None = None) -> Listener:
        listener = Listener(caller, only)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    @property
    def now(self) -> str:
        """The position of a new listener."""
        return self._word

    def since(self, last: str) -> list[Batch] | None:
        """What was said after the event of this id; None if that is not known any more."""
        number = self._numbers.get(last)
        if number is None:
            return None
        return [batch for batch in self._recent if self._numbers[batch[0]] > number]


class Listener:
    """What one reader has still to be told."""

    def __init__(self, caller: Caller, only: str | None) -> None:
        self._caller, self._only = caller, only
        self._waiting: deque[Batch] = deque()
        self._count = 0
        self.lost = False
        self.rung = asyncio.Event()

    def put(self, batch: Batch) -> None:
        word, changes = batch
        mine = tuple(change for change in changes if self._concerns(change))
        if not mine or self.lost:
            return
        self._count += len(mine)
        if self._count > MOST_WAITING:
            self.lost = True
            self._waiting.clear()
        else:
            self._waiting.append((word, mine))
        self.rung.set()

    def take(self) -> list[Batch]:
        found = list(self._waiting)
        self._waiting.clear()
        self._count = 0
        self.rung.clear()
        return found

    def _concerns(self, change: Change) -> bool:
        if not self._caller.sees(change.tenant):
            return False
        return self._only is None or self._only in (change.id, change.id.partition("_")[0])


# --- the form of a stream ---------------------------------------------------------------------------


class EventStream(StreamingResponse):
    """Keeps its place among the streams for as long as it is sent, and not longer."""

    def __init__(self, wiring: Wiring, stream: Stream, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._wiring, self._stream = wiring, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["dovetail.call"]
        call.leaving.close()  # from now on it is counted as a stream only
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._wiring.streams.close(self._stream)


def event(kind: str, data: Any = None, id: str = "") -> bytes:
    """One event; `data` is sent as JSON."""
    lines = [f"id: {id}"] if id else []
    lines += [f"event: {kind}", "data: " + ("{}" if data is None else json.dumps(data))]
    return ("\n".join(lines) + "\n\n").encode()


class Patience:
    """When a stream has to say that it lives, has to look whether its token does, and has to end."""

    def __init__(self, call: Call, stream: Stream) -> None:
        at = call.wiring.settings
        self._call, self._stream = call, stream
        self.keep_alive = at.keep_alive
        self._ends_at = time.monotonic() + at.longest_stream
        self._said_at = self._checked_at = time.monotonic()

    def said(self) -> None:
        self._said_at = time.monotonic()

    async def wait(self, rung: asyncio.Event, most: float) -> None:
        """Until there is something, or the stream is told to end, at most so long."""
        most = min(most, self.keep_alive, max(0.0, self._ends_at - time.monotonic()))
        waits = [asyncio.ensure_future(one.wait()) for one in (rung, self._stream.over)]
        try:
            await asyncio.wait(waits, timeout=most, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def over(self) -> bool:
        now = time.monotonic()
        if self._stream.over.is_set() or now >= self._ends_at:
            return True
        if now - self._checked_at >= CHECK_TOKEN:
            self._checked_at = now
            return not await run_in_threadpool(self._call.wiring.tokens.alive, self._call.caller.token)
        return False

    def sign_of_life(self) -> bytes:
        """A comment, if nothing else was said for a while."""
        if time.monotonic() - self._said_at < self.keep_alive:
            return b""
        self.said()
        return b": \n\n"


# --- watch ------------------------------------------------------------------------------------------


@router.get(
    "/watch",
    operation_id="watch",
    summary="Changes of jobs as they happen",
    responses={**event_stream("Events: ready, job {id, state, letter}, lost."), **problems(429)},
)
async def watch(
    call: Watching,
    job: Annotated[str | None, Query(max_length=40, description="Only this job, or this array.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> StreamingResponse:
    """Server-sent events. `ready` comes first; `lost` means that some were missed: look at the list again."""
    stream = call.wiring.streams.open(call.caller.token)
    return EventStream(call.wiring, stream, _changes(call, stream, job, last_event_id))


async def _changes(call: Call, stream: Stream, only: str | None, last: str | None) -> AsyncIterator[bytes]:
    hub, patience = call.wiring.hub, Patience(call, stream)
    listener = hub.listen(call.caller, only)
    try:
        missed = hub.since(last) if last else []
        for batch in missed or ():
            listener.put(batch)
        if missed is None:
            yield event("lost", {"why": "too long ago"}, hub.now)
        else:
            yield event("ready", id=last or hub.now)
        while not await patience.over():
            batches = listener.take()
            if listener.lost:
                yield event("lost", {"why": "read too slowly"})
                return
            if batches:
                yield b"".join(_said(word, changes) for word, changes in batches)
                patience.said()
            elif sign := patience.sign_of_life():
                yield sign
            await patience.wait(listener.rung, patience.keep_alive)
    finally:
        hub.leave(listener)


def _said(id: str, changes: Sequence[Change]) -> bytes:
    """The changes of one moment; only the last carries the id, so a half-read moment is told again."""
    last = len(changes) - 1
    return b"".join(
        event(
            "job",
            {
                "id": change.id,
                "state": change.state,
                "letter": LETTERS[State(change.state)],
                "tenant": change.tenant,
            },
            id if at == last else "",
        )
        for at, change in enumerate(changes)
    )
