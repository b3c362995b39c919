"""Places for the calls that are in work: so many of each kind at a time, and so many of a token.

A call that blocks takes a thread, and while it computes it slows down every other. So each kind of call has
places of its own, and those of one kind never wait for those of another. Within a kind tokens take turns: a
token that asks much waits for itself. One that asks too much at once is refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from typing import NamedTuple

from dovetail.control.api.problems import Refusal


class Width(NamedTuple):
    """How many calls of one kind there may be."""

    what: str  # they are called, in a refusal
    most: int  # in work at once
    per_token: int  # of them
    waiting: int  # further ones of a token that wait


CHANGES = Width("changes", 16, 8, 100)
QUESTIONS = Width("questions", 16, 3, 100)
SLOW = Width("plans, explanations and reports", 4, 1, 8)
LAB = Width("questions to the Lab", 12, 3, 3)
BODIES = Width("requests whose body has not arrived", 1_000, 16, 100)  # they take memory, and no thread
WIDTHS = (CHANGES, QUESTIONS, SLOW, LAB, BODIES)
THREADS = sum(width.most for width in WIDTHS if width is not BODIES) + 16  # with those that streams take


class Lane:
    """The places of one kind of call. For the event loop's thread only."""

    def __init__(self, width: Width) -> None:
        self.width = width
        self._working: Counter[str] = Counter()  # by token
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    def entered(self, token: str) -> bool:
        """Take a place if there is one; it must be left."""
        free = token not in self._waiting and self._has_place(token)
        if free:
            self._working[token] += 1
        return free

    async def enter(self, token: str) -> None:
        """Take a place, which must be left; wait for one if there is none."""
        if self.entered(token):
            return
        line = self._waiting.get(token, ())
        if len(line) >= self.width.waiting:
            _, _, per_token, waiting = self.width
            raise Refusal(
                "too-many",
                f"{waiting} {self.width.what} with this token wait already ({per_token} at a time are worked "
                "on); wait for their answers",
                headers={"Retry-After": "2"},
            )
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(token, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave(token)
            elif place in self._waiting.get(token, ()):
                self._waiting[token].remove(place)
                if not self._waiting[token]:
                    del self._waiting[token]
            raise

    def leave(self, token: str) -> None:
        self._working[token] -= 1
        if not self._working[token]:
            del self._working[token]
        self._give_places()

    def _has_place(self, token: str) -> bool:
        return self._working.total() < self.width.most and self._working[token] < self.width.per_token

    def _give_places(self) -> None:
        """To the next token that may have one, which then goes to the end of the line."""
        for token in list(self._waiting):
            if not self._has_place(token):
                continue
            line = self._waiting[token]
            while line and self._has_place(token):
                place = line.popleft()
                if not place.done():
                    place.set_result(None)
                    self._working[token] += 1
                    break
            if line:
                self._waiting.move_to_end(token)
            else:
                del self._waiting[token]
