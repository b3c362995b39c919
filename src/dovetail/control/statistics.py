"""Figures about the plane itself, since it started."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dovetail.control.forecast import Forecasts
from dovetail.control.ledger import Ledger


@dataclass(slots=True)
class Statistics:
    """Counters that the loop keeps and metrics show."""

    ticks: int = 0
    decisions: int = 0
    commits: int = 0
    last_cycle: float = 0.0
    cycle_seconds: float = 0.0
    preemptions: dict[str, int] = field(default_factory=dict)  # by reason
    policy_failures: dict[str, int] = field(default_factory=dict)  # by policy
    eta_errors: deque[float] = field(default_factory=lambda: deque(maxlen=1_000))

    def count(self, ledger: Ledger, forecasts: Forecasts, decided: bool, cycle: float) -> None:
        """Add one tick, and what the ledger did in it."""
        self.ticks += 1
        self.decisions += decided
        self.last_cycle = cycle
        self.cycle_seconds += cycle
        for record in ledger.started:
            if record.restarts == 0 and record.started_at is not None:
                error = forecasts.error(record.id, record.started_at)
                if error is not None:
                    self.eta_errors.append(error)
        for why in ledger.preempted:
            self.preemptions[why] = self.preemptions.get(why, 0) + 1
        ledger.started.clear()
        ledger.preempted.clear()
