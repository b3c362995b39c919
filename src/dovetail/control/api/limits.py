"""Limits on the rate of requests, on requests at once, and on open streams."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dovetail.control.api.problems import Refusal

MOST_BUCKETS = 10_000


class Buckets:
    """A token bucket for each key: `rate` a second in the long run, `burst` at once.

    One that is full again need not be remembered, so no more are kept than speak in a while.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self._clock = rate, burst, clock
        self._full_at: dict[str, float] = {}  # when the bucket of a key is full again
        self._turn = threading.Lock()

    def take(self, key: str, amount: float = 1.0) -> float:
        """0.0 if there was enough, else the seconds until there is."""
        with self._turn:
            now = self._clock()
            full_at = max(self._full_at.get(key, now), now) + amount / self.rate
            wait = full_at - now - self.burst / self.rate
            if wait > 1e-9:
                return wait
            if len(self._full_at) >= MOST_BUCKETS:
                self._full_at = {k: at for k, at in self._full_at.items() if at > now}
            self._full_at[key] = full_at
            return 0.0


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
