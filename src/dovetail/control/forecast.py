"""When a waiting job will start: the plane's own core, run forward.

One run serves all who ask: it goes as far as the question needs and is kept until the cluster has moved on.
Two are made, one as if everything ran for as long as it was said to, one as if all that runs and waits took
half of what it has left: between them a job probably starts, since estimates tend to be limits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from dovetail.core.core import Core, Step
from dovetail.model.action import Start, Stop
from dovetail.model.errors import DovetailError
from dovetail.model.grant import nodes_of
from dovetail.model.job import Job
from dovetail.model.units import SECOND
from dovetail.sim.forward import forward

GOOD_FOR = 5.0  # real seconds that a forecast is kept
HASTE = 0.5  # of what is left, if all goes quickly


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
    placement: list[tuple[str, int]] = field(default_factory=list)  # node, GPUs there
    preempts: list[tuple[str, str]] = field(default_factory=list)  # job, tenant
    cost: float | None = None


class _Ahead:
    """One run into the future, taken as far as it was needed."""

    def __init__(self, core: Core, pace: float) -> None:
        self.now = core.now
        self.starts: dict[str, int] = dict.fromkeys(core.running, core.now)
        self._steps: Iterator[Step] | None = forward(core, pace=pace)

    def start_of(self, job: str, budget: float) -> int | None:
        """When it starts, if that can be found within so many seconds of CPU."""
        until = time.thread_time() + budget
        while job not in self.starts and self._steps is not None and time.thread_time() < until:
            try:
                step = next(self._steps, None)
            except DovetailError:  # a policy may not like a world that runs ahead of its memory
                step = None
            if step is None:
                self._steps = None
                break
            self.now = step.now
            for action in step.actions:
                if isinstance(action, Start):
                    self.starts.setdefault(action.job, step.now)
        return self.starts.get(job)


class Forecasts:
    """The forecasts of a plane, shared by all who ask."""

    def __init__(self, budget: float = 0.05) -> None:
        self._lock = threading.Lock()
        self._budget = budget
        self._made = 0.0
        self._number = -1
        self._likely: _Ahead | None = None
        self._early: _Ahead | None = None
        self._said: dict[str, int] = {}  # what was told, to learn how far off it was

    def clear(self) -> None:
        self._likely = self._early = None
        self._made = 0.0

    def core_for(self, core: Core) -> Core | None:
        """A copy of the core to run forward, if a new forecast is due. On the loop's thread."""
        fresh = time.monotonic() - self._made < GOOD_FOR or core.number == self._number
        if self._likely is not None and fresh:
            return None
        self._made, self._number = time.monotonic(), core.number
        return core.fork()

    def starts_at(self, fork: Core | None, job: str) -> Window | None:
        with self._lock:
            if fork is not None:
                self._likely, self._early = _Ahead(fork.fork(), 1.0), _Ahead(fork, HASTE)
            likely, early = self._likely, self._early
            if likely is None or early is None:
                return None
            latest = likely.start_of(job, self._budget)
            first = early.start_of(job, self._budget)
        if latest is not None:
            self._said[job] = latest
        low = first if first is not None else early.now
        if latest is None:
            return Window(low, None, None)
        return Window(min(low, latest), latest, latest + (latest - min(low, latest)) // 2)

    def error(self, job: str, started_at: int) -> float | None:
        """By how many seconds the last word on its start was wrong."""
        said = self._said.pop(job, None)
        return None if said is None else (started_at - said) / SECOND

    def of_new(self, fork: Core, job: Job, now: int) -> Forecast:
        """A job that is not there yet, at the end of the queue."""
        found = Forecast(fits=True, starts_at=None)
        arrives = max(now, fork.now) + 1
        arriving = _arriving(job, arrives)
        tenants = {name: active.tenant for name, active in fork.jobs.items()}
        early = fork.fork()
        likely = self._new_start(fork, arriving, 1.0, found, tenants)
        low = self._new_start(early, arriving, HASTE, None, tenants)
        if likely is None:
            found.starts_at = Window(low if low is not None else arrives, None, None)
        else:
            least = min(low if low is not None else likely, likely)
            found.starts_at = Window(least, likely, likely + (likely - least) // 2)
        prices = [fork.cluster.nodes[fork.cluster.number[node]] for node, _ in found.placement]
        if any(node.price for node in prices):
            hours = job.estimate / 3600 / SECOND
            found.cost = sum(
                node.price * hours * gpus / max(node.gpus, 1)
                for node, (_, gpus) in zip(prices, found.placement, strict=True)
            )
        return found

    def _new_start(
        self, core: Core, job: Job, pace: float, found: Forecast | None, tenants: dict[str, str]
    ) -> int | None:
        until = time.thread_time() + 10 * self._budget
        try:
            for step in forward(core, [job], pace):
                begins = next((a for a in step.actions if isinstance(a, Start) and a.job == job.id), None)
                if begins is not None:
                    if found is not None:
                        nodes = core.cluster.nodes
                        found.placement = [
                            (nodes[n].name, sum(s[1].bit_count() for s in begins.spots if s[0] == n))
                            for n in sorted(nodes_of(begins.spots))
                        ]
                        found.preempts = [
                            (a.job, tenants.get(a.job, "")) for a in step.actions if isinstance(a, Stop)
                        ]
                    return step.now
                if time.thread_time() > until:
                    return None
        except DovetailError:
            return None
        return None


def _arriving(job: Job, at: int) -> Job:
    return Job(
        id=job.id,
        arrived_at=at,
        shape=job.shape,
        work=job.work,
        estimate=job.estimate,
        tenant=job.tenant,
        user=job.user,
        priority=job.priority,
        deadline=job.deadline,
        model=job.model,
        traits=job.traits,
    )
