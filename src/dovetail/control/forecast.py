"""When a waiting job will start: the plane's own core, run forward.

One run answers the questions of all callers: it goes as far as a question needs, and is kept until the
cluster has changed. It takes every estimate as true. Estimates tend to be upper limits, and new jobs may go
first. The answer is therefore a window: from half of the expected wait to one and a half times that.

The loop only takes down the state of its core, once for all callers of a moment. What is made of that is
the business of the caller's thread: one at a time runs ahead, and pauses while the loop is at work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from dovetail.control.standing import Standing
from dovetail.control.trial import Trial
from dovetail.core.core import Core, Step
from dovetail.core.record import recorded, take_apart
from dovetail.model.action import Answer, Start, Stop
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
SLOW_RECORD = 0.02  # seconds of CPU; a record of the core that took longer is used again
LONGEST_RECORD = 30.0  # for `REST` times as long, or so many seconds
PLAN_GOOD_FOR = 2.0  # real seconds in which the same job gets the same answer, if nothing has changed
MOST_PLANS = 100  # answers that are kept
STRETCH = 0.005  # seconds of CPU after which a run looks whether the loop is at work, and
PAUSE = 0.05  # seconds that it waits for it then, at most


T = TypeVar("T")


class Window(NamedTuple):
    """Between when and when a job starts, in the plane's time; None: later than was looked."""

    low: int
    likely: int | None
    high: int | None


@dataclass(slots=True)
class Forecast:
    """Where and when a job would start that is not submitted yet."""

    fits: bool
    starts_at: Window | None
    placement: list[tuple[str, float]] = field(default_factory=list)  # node, GPUs there
    preempts: list[tuple[str, str]] = field(default_factory=list)  # job, tenant
    cost: float | None = None
    hours: float = 0.0  # its estimated run time
    notes: list[str] = field(default_factory=list)  # further remarks
    promised_by: int | None = None  # the policy promises that it has ended by then
    refused: str = ""  # why the policy would refuse it


class _Plan(NamedTuple):
    """The answer for a job that is not submitted yet."""

    standing: Standing
    job: Job
    made: float  # on the monotonic clock
    found: Forecast


class _Ahead:
    """One run into the future, as far as it was needed so far."""

    def __init__(self, standing: Standing, now: int) -> None:
        began = time.thread_time()
        core = standing.core(now)
        self.began = self.now = core.now
        runs = {name for name, job in core.running.items() if job.started}
        self.known = core.jobs.keys() - runs  # a preempted job counts as waiting
        self.starts: dict[str, int] = dict.fromkeys(core.running.keys() - runs, core.now)
        self._core = core
        self._steps: Iterator[Step] | None = forward(core)
        self.cost = standing.took + time.thread_time() - began  # seconds of CPU so far

    def start_of(self, job: str, budget: float, pause: Callable[[], object]) -> int | None:
        """When it starts, if that can be found within so many seconds of CPU."""
        if job not in self.known:
            return None
        began = at = time.thread_time()
        while job not in self.starts and self._steps is not None and at < began + budget:
            try:
                step = next(self._steps, None)
            except DovetailError:  # a policy may fail on a state ahead of its memory
                step = None
            at = time.thread_time()
            if step is None:
                self._steps = None
                break
            self.now = step.now
            for action in step.actions:
                if isinstance(action, Start):
                    self.starts.setdefault(action.job, step.now)
            pause()
        self.cost += at - began
        return self.starts.get(job)

    def end(self) -> None:
        """Go no further; what was found stays."""
        self._steps = None
        take_apart(self._core)


class Forecasts:
    """The forecasts of a plane, shared by all callers."""

    def __init__(self, budget: float = 0.04) -> None:
        self._lock = threading.Lock()  # one at a time runs ahead
        self._budget = budget
        self._made = 0.0
        self._number = -1
        self._ahead: _Ahead | None = None
        self._standing: Standing | None = None
        self._standing_at = 0.0
        self._looked_at: tuple[Standing, Core] | None = None  # the core of the last trial, as it stood
        self._plans: list[_Plan] = []
        self._said: dict[str, int] = {}  # the last forecast of each job, to measure its error
        self._at_rest = threading.Event()
        self._at_rest.set()
        self._pause_at = 0.0  # by the CPU time of the thread that has the lock

    def clear(self) -> None:
        self._ahead = None
        self._standing = self._looked_at = None
        self._made = 0.0

    # -- on the loop's thread

    def loop_works(self, works: bool) -> None:
        """Runs pause while the loop is at work: a thread that computes slows down every other."""
        if works:
            self._at_rest.clear()
        else:
            self._at_rest.set()

    def standing(self, core: Core, longest: float = LONGEST_RECORD) -> Standing:
        """The core, taken down once for all callers of this moment.

        One that took long to take down is given to later callers too, at most `longest` seconds.
        """
        kept, at = self._standing, time.monotonic()
        if kept is not None:
            reuse = min(REST * kept.took, longest) if kept.took > SLOW_RECORD else 0.0
            if kept.record.number == core.number or at < self._standing_at + reuse:
                return kept
        began = time.thread_time()
        record = recorded(core)
        took = time.thread_time() - began
        kept = Standing(record, core.cluster, core.policy, core.seed, core.estimator, took)
        self._standing, self._standing_at = kept, at
        return kept

    def core_for(self, core: Core, job: str = "") -> Standing | None:
        """What to run forward, if a new forecast is due."""
        ahead = self._ahead
        if ahead is not None and (self._unchanged(core.number, LONGEST) or self._fresh(ahead, job)):
            return None
        self._made, self._number = time.monotonic(), core.number
        return self.standing(core, longest=0.0)

    def _unchanged(self, number: int, longest: float) -> bool:
        return number == self._number and time.monotonic() - self._made < longest

    def _fresh(self, ahead: _Ahead, job: str) -> bool:
        """Whether the last run is recent enough; a slow run is kept longer, unless the job is new to it."""
        age = time.monotonic() - self._made
        if job and job not in ahead.known:
            return age < SHORTEST_REST * ahead.cost
        return age < min(max(GOOD_FOR, REST * ahead.cost), LONGEST)

    # -- on any thread

    def starts_at(self, standing: Standing | None, job: str, now: int = 0) -> Window | None:
        with self._lock:
            self._pause_at = time.thread_time() + STRETCH
            if standing is not None:
                if self._ahead is not None:
                    self._ahead.end()
                self._ahead = _Ahead(standing, now)
                self._said = {name: at for name, at in self._said.items() if name in self._ahead.known}
            ahead = self._ahead
            if ahead is None:
                return None
            # However many callers there are, the runs take a fraction of the time only.
            earned = AT_ONCE + PART * (time.monotonic() - self._made)
            likely = ahead.start_of(job, min(self._budget, earned - ahead.cost), self._pause)
        if likely is None:
            return Window(ahead.now, None, None)
        self._said[job] = likely
        return _window(ahead.began, likely)

    def is_current(self, number: int) -> bool:
        """Whether the last forecast was made just now, after this step."""
        return self._unchanged(number, GOOD_FOR)

    def tried(self, work: Callable[[Trial], T], standing: Standing, now: int) -> T:
        """Try changes on copies of the core: one caller at a time, like the forecasts."""
        with self._lock:
            self._pause_at = time.thread_time() + STRETCH
            seen = self._looked_at
            if seen is None or seen[0] is not standing:
                if seen is not None:
                    take_apart(seen[1])
                seen = self._looked_at = standing, standing.core()
            return work(Trial(standing, seen[1], now, self._pause))

    def error(self, job: str, started_at: int) -> float | None:
        """By how many seconds the last forecast of its start was wrong."""
        said = self._said.pop(job, None)
        return None if said is None else (started_at - said) / SECOND

    def of_new(self, standing: Standing, job: Job, now: int) -> Forecast:
        """A job that is not submitted yet, at the end of the queue. The same question costs one run."""
        with self._lock:
            self._pause_at = time.thread_time() + STRETCH
            at = time.monotonic()
            self._plans = [plan for plan in self._plans[-MOST_PLANS:] if at - plan.made < PLAN_GOOD_FOR]
            asked = replace(job, arrived_at=0)
            for plan in self._plans:
                if plan.standing is standing and plan.job == asked:
                    return replace(plan.found)
            core = standing.core(now)
            try:
                found = self._found(core, job, now)
            finally:
                take_apart(core)
            self._plans.append(_Plan(standing, asked, time.monotonic(), found))
            return replace(found)

    def _found(self, core: Core, job: Job, now: int) -> Forecast:
        found = Forecast(fits=True, starts_at=None, hours=job.estimate / HOUR)
        arrives = max(now, core.now) + 1
        began = self._look(core, replace(job, arrived_at=arrives), found)
        if found.refused:
            return found
        found.starts_at = Window(core.now, None, None) if began is None else _window(arrives, began)
        nodes = [core.cluster.nodes[core.cluster.number[name]] for name, _ in found.placement]
        if any(node.price for node in nodes):
            found.cost = sum(
                node.price * found.hours * gpus / max(node.gpus, 1)
                for node, (_, gpus) in zip(nodes, found.placement, strict=True)
            )
        return found

    def _look(self, core: Core, job: Job, found: Forecast) -> int | None:
        """When a job starts, where, and which jobs it preempts, if that is found within the budget."""
        tenants = {name: active.tenant for name, active in core.jobs.items()}
        until = time.thread_time() + 5 * self._budget
        try:
            for step in forward(core, [job]):
                for answer in step.actions:
                    if isinstance(answer, Answer) and answer.job == job.id:
                        if answer.answer == "refused":
                            found.fits, found.refused = False, answer.why
                            return None
                        if answer.answer == "accepted":
                            found.promised_by = answer.value
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
                self._pause()
        except DovetailError:  # a policy may fail on a state ahead of its memory
            return None
        return None

    def _pause(self) -> None:
        if time.thread_time() >= self._pause_at:
            self._at_rest.wait(PAUSE)
            self._pause_at = time.thread_time() + STRETCH


def end_of_running(likely: int, now: int, latest: int | None) -> Window:
    """When a running job ends: `likely` by its estimate, `latest` by its time limit.

    Of a job that has run longer than its estimate only the limit is known.
    """
    if likely <= now:
        return Window(now, None, latest)
    return _before(_window(now, likely), latest)


def end_of_waiting(starts: Window, took: int, limit: int | None) -> Window:
    """When a waiting job ends, if it starts within a window and takes as long as estimated."""
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
