"""What jobs print: in pieces by offset, the last lines, or as it comes.

Offsets count bytes of the file; what is sent is UTF-8 whatever the job wrote, never cut within a character.
A stream sends whole lines as events, so what a job is writing shows when its line is finished (a carriage
return finishes one too). Lines of several files are marked with the rank they are from.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import anyio
from fastapi import APIRouter, Header, Query
from fastapi.responses import PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from dovetail.control.api.auth import Call, Viewing, Watching
from dovetail.control.api.jobs import named
from dovetail.control.api.limits import Stream
from dovetail.control.api.openapi import JobId, event_stream, problems, text
from dovetail.control.api.problems import invalid, not_found
from dovetail.control.api.watch import EventStream, Patience, event
from dovetail.control.states import State
from dovetail.engines.contract import Engine

LARGEST = 64_000  # bytes of a log in one answer: bad bytes grow threefold
EVERY = 0.3  # seconds between looks at a file
LOOK = 5.0  # seconds between looks at the job if no change is reported
READERS = 4  # threads that read logs for streams

router = APIRouter(tags=["logs"])

AttemptNumber = Annotated[int | None, Query(ge=1, le=1_000_000, description="Nothing: the last one.")]
NodeOrRank = Annotated[
    str | None,
    Query(
        max_length=100,
        pattern=r"^[^\u0000]*$",
        description="Of the files of an attempt, the one of this node, or of this number (0, 1, ...).",
    ),
]


class Piece(NamedTuple):
    """Part of a file."""

    data: bytes
    next: int  # where to go on
    size: int  # of the file


class Log(NamedTuple):
    """One file of an attempt."""

    path: Path
    open: Callable[[Path], AbstractContextManager[BinaryIO]]

    def read(self, offset: int, limit: int) -> Piece:
        """From an offset on; nothing if there is no such file, or none to show."""
        try:
            with self.open(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                data = os.pread(file.fileno(), limit, offset) if offset < size else b""
        except OSError:
            return Piece(b"", offset, 0)
        return Piece(data, offset + len(data), size)


def plainly_opened(path: Path) -> BinaryIO:
    """Open a regular file only: a job may put a pipe there, which blocks, or a link to another file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise PermissionError(f"{path} is not a regular file")
    return os.fdopen(handle, "rb")


def logs_of(engine: Engine, job: str, epoch: int) -> list[Log]:
    """The files of an attempt; an engine that knows the owner of the files opens them itself."""
    open_log = getattr(engine, "open_log", None)
    opened = plainly_opened if open_log is None else partial(open_log, job, epoch)
    return [Log(path, opened) for path in engine.logs(job, epoch)]


def whole_characters(data: bytes) -> bytes:
    """The bytes without an incomplete last character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue  # within a character: look at where it begins
        needs = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return data[:-back] if needs > back else data
    return data


def as_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@router.get(
    "/jobs/{id}/logs",
    operation_id="read_logs",
    summary="What it printed",
    response_class=PlainTextResponse,
    responses={
        **text(
            "Output from the offset on, or the last lines.",
            {
                "X-Next-Offset": "Where to go on.",
                "X-Size": "Of the file, bytes.",
                "X-Attempt": "Which start of the job this is of; 0: it was not started yet.",
                "X-Files": "How many files the attempt has.",
            },
        ),
        **problems(404, 409),
    },
)
def read_logs(
    call: Viewing,
    id: JobId,
    *,
    attempt: AttemptNumber = None,
    node: NodeOrRank = None,
    offset: Annotated[int, Query(ge=0, le=1 << 60)] = 0,
    limit: Annotated[int, Query(ge=1, le=LARGEST)] = LARGEST,
    tail: Annotated[int | None, Query(ge=0, le=10_000, description="The last lines, instead.")] = None,
) -> Response:
    row = named(call, id)
    epoch = _epoch(row, attempt)
    files = chosen(call, row, epoch, node)
    over = State(row.state).final or epoch < row.epoch
    piece = Piece(b"", offset, 0)
    if files and tail is not None:
        size = files[0].read(0, 0).size
        piece = files[0].read(max(0, size - limit), limit)
        piece = piece._replace(data=_last_lines(piece.data, tail, whole=size <= limit))
    elif files:
        piece = files[0].read(offset, max(limit, 4))
        data = piece.data
        if not (over and piece.next >= piece.size):
            data = whole_characters(data)
        piece = piece._replace(data=data, next=offset + len(data))
    headers = {
        "X-Next-Offset": str(piece.next),
        "X-Size": str(piece.size),
        "X-Attempt": str(epoch),
        "X-Files": str(len(files)),
    }
    return PlainTextResponse(as_text(piece.data), headers=headers)


def _epoch(row: Any, attempt: int | None) -> int:
    if attempt is not None and attempt > row.epoch:
        raise not_found(f"attempt {attempt} of this job")
    return int(attempt or row.epoch)


def chosen(call: Call, row: Any, epoch: int, node: str | None) -> Sequence[Log]:
    """The files of an attempt, or the one that is meant."""
    files = logs_of(call.plane.engine, row.id, epoch) if epoch else []
    if node is None or not epoch:
        return files
    if node.isascii() and node.isdigit():
        at = int(node[:9])
    else:
        page = call.lists.attempts(call.caller, row.id, None, 200)
        items = [item for item in page.items if item["attempt"] == epoch]
        names = [part["node"] for item in items for part in item["placement"]]
        if node not in names:
            raise not_found(f"node {node[:64]!r} in this attempt")
        at = names.index(node) * max(1, len(files) // max(1, len(names)))
    if at >= len(files):
        if not files:
            return []
        last = f"ranks 0 to {len(files) - 1}" if len(files) > 1 else "rank 0 only"
        raise invalid("query/node", f"there is no rank {at}; the job has {last}")
    return files[at : at + 1]


def _last_lines(data: bytes, count: int, *, whole: bool) -> bytes:
    if count == 0:
        return b""
    lines = data.splitlines(keepends=True)
    if not whole and len(lines) > 1:
        lines = lines[1:]  # its beginning was not read
    return b"".join(lines[-count:])


# --- as it comes ------------------------------------------------------------------------------------


@router.get(
    "/jobs/{id}/logs/stream",
    operation_id="follow_logs",
    summary="What it prints, as it comes",
    responses={
        **event_stream(
            "Lines as data; event: attempt when it was started again; event: end when it is over."
        ),
        **problems(404, 409, 429),
    },
)
async def follow_logs(
    call: Watching,
    id: JobId,
    *,
    attempt: Annotated[
        int | None,
        Query(ge=1, le=1_000_000, description="Only this one; nothing: the last, and those to come."),
    ] = None,
    node: NodeOrRank = None,
    tail: Annotated[int | None, Query(ge=0, le=10_000, description="Begin with the last lines.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=2_000)] = None,
) -> StreamingResponse:
    row = await run_in_threadpool(named, call, id)
    _epoch(row, attempt)
    if node is not None and row.epoch:
        await run_in_threadpool(chosen, call, row, attempt or row.epoch, node)
    stream = call.wiring.streams.open(call.caller.token)
    follower = Follower(call, row, attempt, node)
    follower.resume(last_event_id)
    return EventStream(call.wiring, stream, _followed(follower, stream, tail))


class Follower:
    """The position of a stream in the files of an attempt. Its methods block: they run in a thread."""

    def __init__(self, call: Call, row: Any, only: int | None, node: str | None) -> None:
        self.call, self.row, self._only, self._node = call, row, only, node
        self.epoch: int = only or row.epoch
        self.offsets: list[int] = []
        self.rests: list[bytes] = []

    def resume(self, last: str | None) -> None:
        """The position in an event's id: the attempt, and how far each file was read."""
        attempt, _, offsets = (last or "").partition(":")
        numbers = offsets.split(",") if offsets else []
        if not all(len(n) < 19 and n.isascii() and n.isdigit() for n in (attempt, *numbers)):
            return
        if 1 <= int(attempt) <= self.row.epoch and (self._only is None or int(attempt) == self._only):
            self.epoch = int(attempt)
            self.offsets = [int(n) for n in numbers]

    @property
    def id(self) -> str:
        """Up to where whole lines were sent."""
        sent = (at - len(rest) for at, rest in zip(self.offsets, self.rests, strict=True))
        return f"{self.epoch}:{','.join(map(str, sent))}"

    def start_at_tail(self, lines: int) -> None:
        for at, file in enumerate(self._files()):
            size = file.read(0, 0).size
            piece = file.read(max(0, size - LARGEST), LARGEST)
            self._grow(at + 1)
            self.offsets[at] = size - len(_last_lines(piece.data, lines, whole=size <= LARGEST))

    def _grow(self, count: int) -> None:
        self.offsets += [0] * (count - len(self.offsets))
        self.rests += [b""] * (len(self.offsets) - len(self.rests))

    def _files(self) -> Sequence[Log]:
        return chosen(self.call, self.row, self.epoch, self._node) if self.epoch else []

    def _several(self, files: Sequence[Log]) -> bool:
        """Whether lines name their process: also while only the first process of several has begun."""
        return self._node is None and (len(files) > 1 or self.row.nodes > 1)

    def lines(self) -> list[str]:
        """Whole lines that are new."""
        found: list[str] = []
        files = self._files()
        self._grow(len(files))
        for at, file in enumerate(files):
            piece = file.read(self.offsets[at], LARGEST)
            self.offsets[at] = piece.next
            if 0 < piece.size < piece.next:  # it was cut to the limit for output: go on at its end
                self.offsets[at], self.rests[at] = piece.size, b""
            if piece.data:
                found += self._cut(at, self.rests[at] + piece.data, several=self._several(files))
        return found

    def leftovers(self) -> list[str]:
        """Lines that were never finished."""
        files = self._files()
        found = []
        for at, rest in enumerate(self.rests):
            if rest:
                found.append(_marked(rest, at if self._several(files) else None))
                self.rests[at] = b""
        return found

    def _cut(self, at: int, data: bytes, *, several: bool) -> list[str]:
        parts = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self.rests[at] = parts.pop()
        if data.endswith(b"\r"):  # its \n may be the next byte
            self.offsets[at] -= 1
            parts, self.rests[at] = parts[:-1], parts[-1] if parts else b""
        if len(self.rests[at]) > LARGEST:
            parts.append(self.rests[at])
            self.rests[at] = b""
        return [_marked(part, at if several else None) for part in parts]

    def look(self) -> None:
        """The state of the job."""
        row = self.call.lookup.job(self.call.caller, self.row.id)
        self.row = self.row if row is None else row

    @property
    def attempt_over(self) -> bool:
        return self.row.epoch > self.epoch or State(self.row.state).final

    def next_attempt(self) -> bool:
        """Go on to the next attempt, if there is one."""
        if self._only is not None or self.row.epoch <= self.epoch:
            return False
        self.epoch += 1
        self.offsets, self.rests = [], []
        return True


def _marked(line: bytes, rank: int | None) -> str:
    said = as_text(line)
    return said if rank is None else f"[rank {rank}] {said}"


async def _followed(follower: Follower, stream: Stream, tail: int | None) -> AsyncIterator[bytes]:
    call = follower.call
    hub, patience = call.wiring.hub, Patience(call, stream)
    listener = hub.listen(call.caller, follower.row.id)
    threads = _threads()
    looked_at = asyncio.get_running_loop().time()

    async def away(work: Any, *args: Any) -> Any:
        return await anyio.to_thread.run_sync(work, *args, limiter=threads)

    try:
        if tail is not None and not follower.offsets:
            await away(follower.start_at_tail, tail)
        yield event("attempt", {"attempt": follower.epoch})
        last_look = False
        while not await patience.over():
            lines = await away(follower.lines)
            if lines:
                yield _event_of(lines, follower.id)
                patience.said()
                continue
            if last_look:  # over, and nothing was left to read
                rest = await away(follower.leftovers)
                if rest:
                    yield _event_of(rest, follower.id)
                if not follower.next_attempt():
                    yield event("end", {"state": follower.row.state, "exit_code": follower.row.exit_code})
                    return
                yield event("attempt", {"attempt": follower.epoch})
                last_look = follower.attempt_over
                continue
            if follower.attempt_over:
                last_look = True
                continue
            if sign := patience.sign_of_life():
                yield sign
            await patience.wait(listener.rung, EVERY)
            now = asyncio.get_running_loop().time()
            if listener.rung.is_set() or now - looked_at > LOOK:
                listener.take()
                looked_at = now
                await away(follower.look)
    finally:
        hub.leave(listener)


def _event_of(lines: list[str], id: str) -> bytes:
    data = "".join(f"data: {part}\n" for line in lines for part in (line.splitlines() or [""]))
    return f"id: {id}\n{data}\n".encode("utf-8", "replace")


_LIMITERS: dict[int, anyio.CapacityLimiter] = {}


def _threads() -> anyio.CapacityLimiter:
    """A few threads of their own, so that a slow disk holds up streams only."""
    loop = id(asyncio.get_running_loop())
    if loop not in _LIMITERS:
        _LIMITERS.clear()
        _LIMITERS[loop] = anyio.CapacityLimiter(READERS)
    return _LIMITERS[loop]
