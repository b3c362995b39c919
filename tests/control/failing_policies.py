"""Policies that fail, each in its own way. All else they do as first come first served does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dovetail.model.units import SECOND
from dovetail.model.view import JobView, Key, Plan, Policy, View
from dovetail.policies.classic import fifo


class Failing:
    """First come first served, but for its way to fail."""

    def __init__(self) -> None:
        self._fifo: Policy = fifo()
        self.order, self.group, self.quantum = self._fifo.order, self._fifo.group, self._fifo.quantum

    def decide(self, view: View) -> Plan:
        return self._fifo.decide(view)


class AtThirdSeconds(Failing):
    """Raises at times that are divisible by three seconds, after it has drafted: so it does in a replay."""

    def decide(self, view: View) -> Plan:
        plan = super().decide(view)
        if view.now // SECOND % 3 == 0:
            raise ZeroDivisionError("it is the third second")
        return plan


class KeepsItsObject(Failing):
    """Keeps an object in its memory that cannot be stored."""

    def decide(self, view: View) -> Plan:
        plan = super().decide(view)
        plan.memory = object()
        return plan


class RaisesInItsOrder(Failing):
    """Raises when a job of two GPUs enters the queue."""

    def __init__(self) -> None:
        super().__init__()
        key = self.order.key

        def broken(job: JobView, now: int) -> Key:
            if job.shape.gpus == 2:
                raise KeyError("two GPUs")
            return key(job, now)

        self.order = replace(self.order, key=broken)


REGISTERED: dict[str, Any] = {
    "at-third-seconds": f"{__name__}:AtThirdSeconds",
    "keeps-its-object": f"{__name__}:KeepsItsObject",
    "raises-in-its-order": f"{__name__}:RaisesInItsOrder",
}
