"""Remedies for callers: each token has a budget of CPU for trials, and the same question is answered once.

To try a remedy the whole core is rebuilt, which takes 40 ms with 10,000 jobs. A user who asks now and then is
always answered; a program that asks without a pause is told when to ask again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

from dovetail.control.buckets import Buckets
from dovetail.control.forecast import Forecasts
from dovetail.control.remedies import Case, Remedy, remedies
from dovetail.control.standing import Standing

AT_ONCE = 0.5  # seconds of CPU that a token may spend on trials, and
PART = 0.05  # of the time in the long run
GOOD_FOR = 5.0  # seconds for which an answer is kept, if nothing has changed
MOST_KEPT = 1_000


class Answer(NamedTuple):
    """What would help, or the seconds until that can be tried."""

    remedies: list[Remedy]
    wait: float = 0.0


class _Kept(NamedTuple):
    state: Hashable  # that it was an answer for
    until: float
    remedies: list[Remedy]


class RemedyAnswers:
    """The remedies that were told lately. For any thread."""

    def __init__(self) -> None:
        self._budget = Buckets(PART, AT_ONCE)
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()

    def of(self, forecasts: Forecasts, token: str, standing: Standing, now: int, case: Case) -> Answer:
        question, at = (token, case.job.id), time.monotonic()
        may = case.waits, case.releasable, case.replaceable, case.own, case.most_priority
        state = standing.record.number, case.job, may
        kept = self._kept.get(question)
        if kept is not None and kept.state == state and at < kept.until:
            return Answer(list(kept.remedies))
        if wait := self._budget.take(token, 0.0):
            return Answer([], wait)
        began = time.thread_time()
        found = forecasts.tried(lambda trial: remedies(trial, case), standing, now)
        self._budget.charge(token, time.thread_time() - began)
        self._kept.pop(question, None)
        self._kept[question] = _Kept(state, at + GOOD_FOR, found)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return Answer(list(found))
