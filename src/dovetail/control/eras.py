"""A change of rules while jobs run: another policy, other tenants or another cluster begin a new era.

Within an era the journal can be replayed from any of its snapshots; a new era begins with one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.control.chosen_policy import ChosenPolicy
from dovetail.control.plane_state import PlaneState
from dovetail.control.quotas import Quotas
from dovetail.control.records import Record
from dovetail.control.recovery import Recovered, changed
from dovetail.control.states import State
from dovetail.core.snapshot import snapshot
from dovetail.model.cluster import Cluster, Tenant


def change_rules(state: PlaneState, cluster: Cluster, policy: ChosenPolicy, now: int, why: str = "") -> None:
    """The same jobs under other rules."""
    ledger, old = state.ledger, state.header
    if ledger.events:  # they belong to the old era
        ledger.decide(now)
        ledger.take_policy_error()  # it is on record, and the next decision is that of the new era
    new = policy.header(cluster, old.seed)
    made = changed(snapshot(ledger.core), old, new, policy.policy, ledger.era, ledger.index, why)
    state.header = new
    state.quotas = Quotas(cluster, policy.policy)
    state.forecasts.clear()
    ledger.core, ledger.era = made.core, made.era
    enter_era(state, made, now)


def current_policy(state: PlaneState) -> ChosenPolicy:
    """The policy that decides, as it was chosen."""
    return ChosenPolicy(state.header.policy, state.header.options, state.ledger.core.policy)


def enter_era(state: PlaneState, made: Recovered, now: int) -> None:
    """Write down the new era, and hold the jobs that its cluster is too small for."""
    ledger = state.ledger
    ledger.batch.eras += made.eras
    ledger.batch.snapshots += made.snapshots
    state.snapshot_at = made.core.number
    for stop in made.stops:
        ledger.stop(stop, now)
    for record in list(ledger.index):
        known = record.id in made.core.jobs
        if known or record.state is State.HELD:
            if record.held_by == "cluster" and _could_fit(state, record):
                ledger.unblock(record, now)
        elif record.state is not State.STOPPING:
            ledger.outgrown(record, now)


def _could_fit(state: PlaneState, record: Record) -> bool:
    job = state.ledger.index.asked[record.request].job
    return job is not None and state.ledger.core.room.ever(job.shape)


def tenant_of_row(row: Mapping[str, Any]) -> Tenant:
    """A tenant from its row in the store."""
    return Tenant(row["name"], row["parent"], row["weight"], row["quota"], row["borrow"], row["limit"])
