"""Commands on their way to the loop, and the callers that wait for the answers.

Commands are of three kinds: changes, quick questions and slow questions. A tick takes changes first, and
answers questions after its commit, so that a submission or a cancellation never waits behind the questions of
others. Within a kind the owners (the tokens) take turns: one that sends much waits for itself.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from dovetail.control.plane_state import PlaneState
from dovetail.model.errors import DovetailError

MOST_AT_ONCE = 1_000  # changes in a tick
CHANGES_SECONDS = 0.1  # in a tick, after which no further change is taken
QUESTIONS_SECONDS = 0.02  # in a tick while a change waits for the next one, and
LONGEST_QUESTIONS_SECONDS = 0.2  # while none does

T = TypeVar("T")

owner: ContextVar[str] = ContextVar("owner", default="")  # of the commands that this context sends


class Unavailable(DovetailError):
    """The plane cannot answer now: it does not lead, or is closing."""


@dataclass(slots=True)
class Command(Generic[T]):
    """A call that the loop makes, and the future that gets its result."""

    run: Callable[[PlaneState, int], T]  # on the thread of the loop, with the time
    changes: bool  # its result is told after the commit
    slow: bool = False  # a question that takes the loop more than a few milliseconds, if many jobs wait
    owner: str = field(default_factory=owner.get)
    future: Future[T] = field(default_factory=Future)


class FairQueue:
    """Commands of several owners: one of each in turn, those of an owner in the order in which they came."""

    def __init__(self) -> None:
        self._by_owner: OrderedDict[str, deque[Command[Any]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._by_owner)

    def add(self, command: Command[Any]) -> None:
        self._by_owner.setdefault(command.owner, deque()).append(command)

    def put_back(self, command: Command[Any]) -> None:
        """To be taken next."""
        self._by_owner.setdefault(command.owner, deque()).appendleft(command)
        self._by_owner.move_to_end(command.owner, last=False)

    def pop(self) -> Command[Any]:
        name, commands = next(iter(self._by_owner.items()))
        command = commands.popleft()
        if commands:
            self._by_owner.move_to_end(name)
        else:
            del self._by_owner[name]
        return command


class Inbox:
    """The commands that wait. Any thread may add some; the loop takes them."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.monotonic
        self._turn = threading.Lock()
        self._changes, self._quick, self._slow = FairQueue(), FairQueue(), FairQueue()

    def __bool__(self) -> bool:
        return bool(self._changes or self._quick or self._slow)

    def add(self, command: Command[Any]) -> None:
        with self._turn:
            self._queue_of(command).add(command)

    def put_back(self, command: Command[Any]) -> None:
        """To be taken next."""
        with self._turn:
            self._queue_of(command).put_back(command)

    def changes(self) -> Iterator[Command[Any]]:
        """The changes of one tick: at least one, if there is one."""
        began = self._clock()
        for _ in range(MOST_AT_ONCE):
            command = self._popped(self._changes)
            if command is None:
                return
            yield command
            if self._clock() - began >= CHANGES_SECONDS:
                return

    def questions(self) -> Iterator[Command[Any]]:
        """The questions of one tick: a quick and a slow one at least, if there are; more if there is time.

        Quick questions go first, but not all of the time: then no slow one would ever be answered.
        """
        began = self._clock()
        for queue in (self._quick, self._slow):
            while (command := self._popped(queue)) is not None:
                yield command
                spent = self._clock() - began
                if spent >= (QUESTIONS_SECONDS if self._changes else LONGEST_QUESTIONS_SECONDS):
                    break

    def refuse_all(self, why: str, kind: type[DovetailError] = Unavailable) -> None:
        for queue in (self._changes, self._quick, self._slow):
            while (command := self._popped(queue)) is not None:
                if not command.future.done():
                    command.future.set_exception(kind(why))

    def _queue_of(self, command: Command[Any]) -> FairQueue:
        return self._changes if command.changes else self._slow if command.slow else self._quick

    def _popped(self, queue: FairQueue) -> Command[Any] | None:
        with self._turn:
            return queue.pop() if queue else None
