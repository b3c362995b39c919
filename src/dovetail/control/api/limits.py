"""Limits on requests at once and on open streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.control.api.problems import Refusal


class Requests:
    """The requests of each token that are not answered yet. For the event loop's thread only."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count: Counter[str] = Counter()

    @contextmanager
    def counted(self, token: str) -> Iterator[None]:
        """One more, as long as it takes; refused above the limit."""
        if self._count[token] >= self._most:
            raise Refusal(
                "too-many",
                f"{self._most} requests with this token are not answered yet; wait for their answers",
                headers={"Retry-After": "2"},
            )
        self._count[token] += 1
        try:
            yield
        finally:
            self._count[token] -= 1
            if not self._count[token]:
                del self._count[token]


class Streams:
    """The open streams; each of them can be ended. For the event loop's thread only."""

    def __init__(self, most: int, most_per_token: int) -> None:
        self._most, self._most_per_token = most, most_per_token
        self._open: dict[str, list[Stream]] = {}
        self._count = 0
        self._closing = False

    def open(self, token: str) -> Stream:
        """Open one more stream, which must be closed; refused above the limit."""
        if self._closing:
            raise Refusal("unavailable", "the plane is going down", headers={"Retry-After": "2"})
        if self._count >= self._most or len(self._open.get(token, ())) >= self._most_per_token:
            raise Refusal(
                "too-many",
                f"too many streams are open ({self._most_per_token} for each token, {self._most} in all)",
                headers={"Retry-After": "5"},
            )
        stream = Stream(token)
        self._open.setdefault(token, []).append(stream)
        self._count += 1
        return stream

    def close(self, stream: Stream) -> None:
        mine = self._open.get(stream.token, [])
        if stream in mine:
            self._count -= 1
            mine.remove(stream)
            if not mine:
                del self._open[stream.token]

    def end(self, token: str | None = None) -> None:
        """End the streams of a token, or all streams for good."""
        self._closing = self._closing or token is None
        for key, streams in self._open.items():
            if token is None or key == token:
                for stream in streams:
                    stream.end()

    def __len__(self) -> int:
        return self._count


class Stream:
    """An open stream."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.over = asyncio.Event()

    def end(self) -> None:
        self.over.set()
