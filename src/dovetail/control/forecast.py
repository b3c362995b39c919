"""When a waiting job will start: the plane's own core, run forward.

One run serves all who ask: it goes as far as the question needs and is kept until the cluster has moved on.
It takes every estimate for true. Estimates tend to be limits, and newcomers may go first, so the answer is
a window: from half of the time to wait to half as much again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dovetail.core.core import Core, Step
from dovetail.model.action import Start, Stop
from dovetail.model.errors import DovetailError
from dovetail.model.grant import load_of, nodes_of
from dovetail.model.job import Job
from dovetail.model.units import HOUR, SECOND, WHOLE
from dovetail.sim.forward import forward

GOOD_FOR = 5.0  # real seconds that a forecast is kept at least, and
REST = 50.0  # for so many times the CPU it took, but
LONGEST = 60.0  # no longer; for a job that came after it was made,
SHORTEST_REST = 10.0  # so many times only
AT_ONCE = 0.5  # seconds of CPU that one may take, and
PART = 0.1  # of the time since it was made


class Window(NamedTuple):
    """Between when and when a job starts, in the plane's time; None: later than was looked."""

    low: int
    likely: int | None
    high: int | None


@dataclass(slots=True)
class Forecast:
    """What would become of a job that is not submitted yet."""

    fits: bool
    starts_at: Window | None
    placement: list[tuple[str, float]] = field(default_factory=list)  # node, GPUs there
    preempts: list[tuple[str, str]] = field(default_factory=list)  # job, tenant
    cost: float | None = None
    hours: float = 0.0  # that it is said to take
    notes: list[str] = field(default_factory=list)  # what else there is to know


class _Ahead:
    """One run into the future, taken as far as it was needed."""

    def __init__(self, core: Core, took: float) -> None:
        began = time.thread_time()
        self.began = self.now = core.now
        runs = {name for name, job in core.running.items() if job.awaiting is None}
        self.known = core.jobs.keys() - runs  # one that ran and waits again is as good as new
        self.starts: dict[str, int] = dict.fromkeys(core.running.keys() - runs, core.now)
        self._steps: Iterator[Step] | None = forward(core)
        self.cost = took + time.thread_time() - began  # seconds of CPU so far

    def start_of(self, job: str, budget: float) -> int | None:
        """When it starts, if that can be found within so many seconds of CPU."""
        if job not in self.known:
            return None
        began = at = time.thread_time()
        while job not in self.starts and self._steps is not None and at < began + budget:
            try:
                step = next(self._steps, None)
            except DovetailError:  # a policy may not like a world that runs ahead of its memory
                step = None
            at = time.thread_time()
            if step is None:
                self._steps = None
                break
            self.now = step.now
            for action in step.actions:
                if isinstance(action, Start):
                    self.starts.setdefault(action.job, step.now)
        self.cost += at - began
        return self.starts.get(job)


class Forecasts:
    """The forecasts of a plane, shared by all who ask."""

    def __init__(self, budget: float = 0.04) -> None:
        self._lock = threading.Lock()
        self._budget = budget
        self._made = 0.0
        self._number = -1
        self._ahead: _Ahead | None = None
        self._took = 0.0
        self._said: dict[str, int] = {}  # what was told, to learn how far off it was

    def clear(self) -> None:
        self._ahead = None
        self._made = 0.0

    def core_for(self, core: Core, job: str = "") -> Core | None:
        """A copy of the core to run forward, if a new forecast is due. On the loop's thread."""
        ahead = self._ahead
        if ahead is not None and (core.number == self._number or self._fresh(ahead, job)):
            return None
        began = time.thread_time()
        fork = core.fork()
        self._made, self._number, self._took = time.monotonic(), core.number, time.thread_time() - began
        return fork

    def _fresh(self, ahead: _Ahead, job: str) -> bool:
        """Whether the last one is still good: the dearer, the longer; less so for whom it does not know."""
        age = time.monotonic() - self._made
        if job and job not in ahead.known:
            return age < SHORTEST_REST * ahead.cost
        return age < min(max(GOOD_FOR, REST * ahead.cost), LONGEST)

    def starts_at(self, fork: Core | None, job: str) -> Window | None:
        with self._lock:
            if fork is not None:
                self._ahead = _Ahead(fork, self._took)
                self._said = {name: at for name, at in self._said.items() if name in self._ahead.known}
            ahead = self._ahead
            if ahead is None:
                return None
            # However many ask, looking ahead takes a part of the time only: then it is known how far it went.
            earned = AT_ONCE + PART * (time.monotonic() - self._made)
            likely = ahead.start_of(job, min(self._budget, earned - ahead.cost))
        if likely is None:
            return Window(ahead.now, None, None)
        self._said[job] = likely
        return _window(ahead.began, likely)

    def error(self, job: str, started_at: int) -> float | None:
        """By how many seconds the last word on its start was wrong."""
        said = self._said.pop(job, None)
        return None if said is None else (started_at - said) / SECOND

    def of_new(self, fork: Core, job: Job, now: int) -> Forecast:
        """A job that is not there yet, at the end of the queue."""
        found = Forecast(fits=True, starts_at=None, hours=job.estimate / HOUR)
        arrives = max(now, fork.now) + 1
        began = self._look(fork, replace(job, arrived_at=arrives), found)
        found.starts_at = Window(fork.now, None, None) if began is None else _window(arrives, began)
        nodes = [fork.cluster.nodes[fork.cluster.number[name]] for name, _ in found.placement]
        if any(node.price for node in nodes):
            found.cost = sum(
                node.price * found.hours * gpus / max(node.gpus, 1)
                for node, (_, gpus) in zip(nodes, found.placement, strict=True)
            )
        return found

    def _look(self, core: Core, job: Job, found: Forecast) -> int | None:
        """When it starts, and on what and instead of whom, if that can be found soon enough."""
        tenants = {name: active.tenant for name, active in core.jobs.items()}
        until = time.thread_time() + 5 * self._budget
        try:
            for step in forward(core, [job]):
                begins = next((a for a in step.actions if isinstance(a, Start) and a.job == job.id), None)
                if any(isinstance(a, Stop) for a in step.actions) and step.now == job.arrived_at:
                    found.preempts = [
                        (a.job, tenants.get(a.job, "")) for a in step.actions if isinstance(a, Stop)
                    ]
                if begins is not None:
                    nodes = core.cluster.nodes
                    found.placement = [
                        (nodes[n].name, load_of(tuple(s for s in begins.spots if s[0] == n)) / WHOLE)
                        for n in sorted(nodes_of(begins.spots))
                    ]
                    return step.now
                if time.thread_time() > until:
                    return None
        except DovetailError:  # a policy may not like a world that runs ahead of its memory
            return None
        return None


def end_of_running(likely: int, now: int, latest: int | None) -> Window:
    """When one that runs ends, whose estimate says `likely`, and which may run until `latest`.

    Of one that has outlived its estimate only the limit is known.
    """
    if likely <= now:
        return Window(now, None, latest)
    return _before(_window(now, likely), latest)


def end_of_waiting(starts: Window, took: int, limit: int | None) -> Window:
    """When one that waits ends, if it starts within a window and is said to take so long."""
    if starts.likely is None or starts.high is None:
        return Window(starts.low + took // 2, None, None)
    ends = Window(starts.low + took // 2, starts.likely + took, starts.high + took + took // 2)
    return _before(ends, None if limit is None else starts.high + limit)


def _before(window: Window, latest: int | None) -> Window:
    if latest is None or window.likely is None or window.high is None:
        return window
    return Window(min(window.low, latest), min(window.likely, latest), min(window.high, latest))


def _window(now: int, likely: int) -> Window:
    half = (likely - now) // 2
    return Window(likely - half, likely, likely + half)
