"""Commands to a running plane: on jobs, nodes, tenants and the policy.

Each command returns when its effect is in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.control import clock
from dovetail.control.chosen_policy import named_policy
from dovetail.control.eras import change_rules, current_policy, tenant_of_row
from dovetail.control.limits import ROLES, Amounts, Scope
from dovetail.control.plane import Plane
from dovetail.control.plane_state import PlaneState
from dovetail.control.problems import RequestError
from dovetail.control.records import Record
from dovetail.control.tenant_shares import beyond_cluster
from dovetail.control.tokens import Caller
from dovetail.control.unix_accounts import checked_account
from dovetail.model.cluster import Cluster, Tenant, with_tenants
from dovetail.model.errors import CannotLoad, UnknownName

# --- jobs -------------------------------------------------------------------------------------------


def cancel(plane: Plane, ids: Sequence[str]) -> list[str]:
    """Cancel jobs. Like the next four commands, it returns the jobs that it changed."""
    return plane.change(lambda state, now: _each(state, ids, lambda r: state.ledger.cancel(r, now)))


def hold(plane: Plane, ids: Sequence[str]) -> list[str]:
    """Keep jobs out of the queue until they are released; a running job is stopped first."""
    return plane.change(lambda state, now: _each(state, ids, lambda r: state.ledger.hold(r, now, "user")))


def release(plane: Plane, ids: Sequence[str]) -> list[str]:
    return plane.change(lambda state, now: _each(state, ids, lambda r: state.ledger.release(r, now)))


def requeue(plane: Plane, ids: Sequence[str]) -> list[str]:
    """Stop running jobs, which wait in the queue again."""
    return plane.change(lambda state, now: _each(state, ids, lambda r: state.ledger.requeue(r, now)))


def set_priority(plane: Plane, caller: Caller, ids: Sequence[str], priority: int) -> list[str]:
    """Give jobs another priority, as far as the limits of the caller allow it: all of them or none."""

    def run(state: PlaneState, now: int) -> list[str]:
        records = state.ledger.index.records
        for tenant in {records[name].tenant for name in ids if name in records}:
            state.limits.check_priority(caller, tenant, priority)
        return _each(state, ids, lambda record: state.ledger.prioritise(record, priority, now))

    return plane.change(run)


TO_JOBS: Mapping[str, Callable[[Plane, Sequence[str]], list[str]]] = {
    "cancel": cancel,
    "hold": hold,
    "release": release,
    "requeue": requeue,
}


def _each(state: PlaneState, ids: Sequence[str], act: Callable[[Record], bool]) -> list[str]:
    """The jobs that `act` changed."""
    records = state.ledger.index.records
    named = [records[name] for name in dict.fromkeys(ids) if name in records]
    return [record.id for record in named if act(record)]


# --- nodes ------------------------------------------------------------------------------------------


def drain(plane: Plane, node: str, why: str) -> None:
    """Start no more jobs on a node."""
    plane.change(lambda state, now: state.ledger.drain(_known(state, node), why or "drained", now))


def resume(plane: Plane, node: str) -> None:
    plane.change(lambda state, now: state.ledger.rejoin(_known(state, node), now))


def _known(state: PlaneState, node: str) -> str:
    if node not in state.header.cluster.number:
        raise UnknownName("node", node, state.header.cluster.number)
    return node


# --- tenants ----------------------------------------------------------------------------------------


def set_tenant(plane: Plane, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Make the tenant `name`, or change what else is named; returns all that it is now, and `notes`.

    Weight, quota, borrow, limit, parent and account: what is left out stays as it is. `allow_root` goes with
    the account root. The notes are warnings about what was named, one line each.
    """
    name = wanted["name"]
    given = {key: value for key, value in wanted.items() if key != "allow_root"}
    if "account" in given or wanted.get("allow_root"):
        checked_account(name, given.get("account", ""), bool(wanted.get("allow_root")))

    def run(state: PlaneState, now: int) -> dict[str, Any]:
        cluster, accounts = state.header.cluster, state.accounts.of_tenant
        row = {**_row_of(cluster.tenants.get(name, Tenant(name)), accounts.get(name, "")), **given}
        _check_place(cluster, row)
        tenants = {**cluster.tenants, name: tenant_of_row(row)}
        change_rules(state, with_tenants(cluster, tenants.values()), current_policy(state), now)
        state.ledger.batch.tenants.append(row)
        accounts[name] = row["account"]
        named = "quota" in given or "limit" in given
        return {**row, "notes": beyond_cluster(state.header.cluster, name) if named else []}

    return plane.change(run)


def _row_of(tenant: Tenant, account: str) -> dict[str, Any]:
    """A tenant as a row of the store."""
    names = ("name", "parent", "weight", "quota", "borrow", "limit")
    return {key: getattr(tenant, key) for key in names} | {"account": account}


def _check_place(cluster: Cluster, row: Mapping[str, Any]) -> None:
    """Refuse a parent that does not exist or would go in a circle, and borrowing without one."""
    name, parent = row["name"], row["parent"]
    if parent and parent not in cluster.tenants:
        raise RequestError.at("/parent", f"no tenant is named {parent}; make it first")
    if parent and name in cluster.line(parent):
        raise RequestError.at("/parent", f"{name} would be its own ancestor")
    if row["borrow"] is not None and not parent:
        detail = "borrowing is from those under the same parent; name a parent, or leave it out"
        raise RequestError.at("/borrow", detail)


def drop_tenant(plane: Plane, name: str) -> None:
    def run(state: PlaneState, now: int) -> None:
        known = state.header.cluster.tenants
        if name not in known:
            raise UnknownName("tenant", name, known)
        tenants = [tenant for tenant in known.values() if tenant.name != name]
        change_rules(state, with_tenants(state.header.cluster, tenants), current_policy(state), now)
        state.ledger.batch.dropped_tenants.append(name)
        state.accounts.of_tenant.pop(name, None)

    plane.change(run)


# --- limits -----------------------------------------------------------------------------------------


def set_limits(plane: Plane, scope: Scope, amounts: Amounts) -> list[str]:
    """Set limits of a role, a tenant or a user; what is not named stays. Returns warnings, one line each."""
    kind, name = scope
    if kind == "role" and name not in ROLES:
        raise RequestError.at("/name", f"limits are for the roles {' and '.join(ROLES)}, not {name}")

    def run(state: PlaneState, now: int) -> list[str]:
        state.ledger.batch.values.append(state.limits.set(scope, amounts))
        known = kind == "role" or plane.store.knows(kind, name)
        if kind == "tenant":
            known = known or name in state.header.cluster.tenants
        return [] if known else [f"no token and no job is of {kind} {name} yet; is the name right?"]

    return plane.change(run)


def drop_limits(plane: Plane, scope: Scope) -> None:
    """Forget the limits of a role, a tenant or a user: those of a new plane hold again."""

    def run(state: PlaneState, now: int) -> None:
        known = [name for kind, name in state.limits.rows if kind == scope[0]]
        if scope not in state.limits.rows:
            raise UnknownName(f"{scope[0]} with limits", scope[1], known)
        state.ledger.batch.values.append(state.limits.drop(scope))

    plane.change(run)


# --- the policy -------------------------------------------------------------------------------------


def switch_policy(plane: Plane, name: str, options: Mapping[str, Any]) -> None:
    """Go on under another policy. No job is lost, and the switch itself stops no job."""
    named = named_policy(name, options)
    try:
        chosen = named.make()
    except CannotLoad as error:
        late = "if it was installed after the plane was started, restart the plane"
        raise CannotLoad(f"{error}; {late}") from error

    def run(state: PlaneState, now: int) -> None:
        change_rules(state, state.header.cluster, chosen, now)
        state.deciding.choose(named, clock.steady_now())
        state.ledger.batch.values.append(state.deciding.row())

    plane.change(run)
