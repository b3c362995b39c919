"""A policy whose code changes: from one start of a plane to the next it orders the queue another way."""

from __future__ import annotations

from typing import Any

from dovetail.model.view import Plan, View
from dovetail.policies.classic import fifo, sjf

VERSION = [0]  # of the code that is installed


class Changing:
    """First come first served, or shortest job first, by the version that is installed when it is made."""

    def __init__(self) -> None:
        self._policy: Any = fifo() if VERSION[0] % 2 == 0 else sjf()
        self.order, self.group, self.quantum = self._policy.order, self._policy.group, self._policy.quantum

    def decide(self, view: View) -> Plan:
        plan: Plan = self._policy.decide(view)
        return plan


REGISTERED = {"changing": f"{__name__}:Changing"}
