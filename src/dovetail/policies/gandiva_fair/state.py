"""What Gandiva_fair is told once, and what it keeps between decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dovetail.mechanisms.estimate.measured_speeds import MeasuredSpeeds
from dovetail.model.view import JobView
from dovetail.policies.gandiva_fair.servers import Home
from dovetail.policies.gandiva_fair.stride import Passes
from dovetail.policies.gandiva_fair.tickets import Tickets


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The options; times in microseconds."""

    length: int  # of a quantum
    trade: bool
    trade_every: int
    balance_every: int
    measures: bool  # speeds are measured
    by_tenant: bool  # tickets are the tenants' weights
    owner: Callable[[JobView], str]


@dataclass(frozen=True, slots=True)
class TicketState:
    """What is kept between decisions. While no job waits, only what was measured."""

    ends_at: int = 0  # of the quantum; 0: no job waited
    homes: Mapping[str, Home] = field(default_factory=dict)  # of waiting jobs; others are where they run
    servers: Mapping[int, Passes] = field(default_factory=dict)  # with waiting jobs
    central: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # gangs: (since, service by then)
    tickets: Tickets = field(default_factory=dict)
    traded_at: int | None = None
    traded_for: frozenset[tuple[str, float]] = frozenset()  # the owners and types of the last trade
    balanced_at: int = 0
    measured: MeasuredSpeeds = field(default_factory=MeasuredSpeeds)
    profiles: bool = False  # some speeds are not measured yet
    tried: frozenset[tuple[str, int, str]] = (
        frozenset()
    )  # models and GPUs that moved to be profiled on a type
