"""The state of a plane that leads. Only the thread of its loop touches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dovetail.control.forecast import Forecasts
from dovetail.control.job_reports import JobReports
from dovetail.control.ledger import Ledger
from dovetail.control.limits import Limits
from dovetail.control.quotas import Quotas
from dovetail.control.remedy_answers import RemedyAnswers
from dovetail.control.stand_in import Deciding
from dovetail.control.steady_time import KEY as STEADY_KEY
from dovetail.control.steady_time import STEADY
from dovetail.control.store import packed
from dovetail.control.unix_accounts import Accounts
from dovetail.core.journal import Header
from dovetail.core.snapshot import snapshot

SNAPSHOT_EVERY = 1_000  # steps; at most so many are replayed when a plane starts


@dataclass(frozen=True, slots=True)
class Submitted:
    """The answer to a submission."""

    id: str
    ids: list[str]
    count: int
    array: bool
    notes: Sequence[str] = ()  # warnings, one line each


class CoreSnapshot(NamedTuple):
    """The core between two steps, and the rules it goes by."""

    taken: dict[str, Any]
    header: Header
    names: dict[str, str]  # of the jobs, by id


@dataclass(slots=True)
class PlaneState:
    """Jobs, core and rules, as of the last tick."""

    ledger: Ledger
    header: Header  # of the era: the policy that decides
    deciding: Deciding  # the policy that was chosen
    quotas: Quotas
    accounts: Accounts  # of the machine, by tenant
    reports: JobReports
    next_seq: int  # of the next job
    limits: Limits  # on what users may ask for
    forecasts: Forecasts = field(default_factory=Forecasts)
    remedies: RemedyAnswers = field(default_factory=RemedyAnswers)
    snapshot_at: int = 0  # the step of the last snapshot
    keys: dict[tuple[str, str], tuple[bytes, Submitted]] = field(default_factory=dict)  # of this tick
    reasons: tuple[int, Mapping[str, str]] = (-1, {})  # the step, and why each job waits

    def snapshot_due(self) -> bool:
        return self.ledger.core.number - self.snapshot_at >= SNAPSHOT_EVERY

    def add_snapshot(self) -> None:
        """A snapshot of the core goes into the next commit."""
        ledger = self.ledger
        number = ledger.core.number
        self.snapshot_at = number
        row = {"era": ledger.era, "number": number, "state": packed(snapshot(ledger.core))}
        ledger.batch.snapshots.append(row)
        ledger.batch.values.append({"key": STEADY_KEY, "value": STEADY.kept()})
