"""Token buckets: how much each key may take, at once and in the long run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

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
            self._set(key, full_at, now)
            return 0.0

    def charge(self, key: str, amount: float) -> None:
        """Take an amount that is known only now; if there is not enough, the next ones wait for it."""
        with self._turn:
            now = self._clock()
            self._set(key, max(self._full_at.get(key, now), now) + amount / self.rate, now)

    def _set(self, key: str, full_at: float, now: float) -> None:
        if len(self._full_at) >= MOST_BUCKETS:
            self._full_at = {k: at for k, at in self._full_at.items() if at > now}
        self._full_at[key] = full_at
