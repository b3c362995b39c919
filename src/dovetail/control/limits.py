"""Limits on what users may ask for, and the one place that refuses what is above them.

A limit is set for a role, a tenant or a user. What is not set for a user holds as it is set for the tenant,
and then as for the role:

| limit | on | set for a user or a role | set for a tenant |
|---|---|---|---|
| priority | the priority of a job | the first of user, tenant and role that has one | |
| gpus | the GPUs of one job | likewise | |
| time | the time limit of one job, which must then have one | likewise | |
| jobs | jobs that have not ended, queued or running | of each user | of the tenant together, besides |

Tokens of the role admin have the limits of that role only: none, unless an admin sets some. A limit is
checked when something is asked for (a submission, a plan, another priority); jobs that are there already stay
as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dovetail.control.tokens import Caller
from dovetail.model.errors import InputError
from dovetail.model.units import SECOND, WHOLE, spoken

Kind = Literal["role", "tenant", "user"]
What = Literal["priority", "gpus", "time", "jobs"]
Scope = tuple[str, str]  # a kind and a name
Amounts = Mapping[str, int | None]  # by what; None: no limit; `time` in microseconds

WHATS: tuple[What, ...] = ("priority", "gpus", "time", "jobs")
ROLES = ("user", "admin")  # a viewer asks for nothing
KEY = "limits"  # in the store
# docs/decisions/0035-limits.md says why.
DEFAULTS: Mapping[Scope, Amounts] = {
    ("role", "user"): {"priority": 100, "jobs": 10_000},
    ("role", "admin"): {},
}
_PLACES: Mapping[What, str] = {
    "priority": "/priority",
    "gpus": "/resources",
    "time": "/time",
    "jobs": "/array",
}


class OverLimit(InputError):
    """Something above a limit was asked for."""

    def __init__(self, what: What, message: str) -> None:
        self.pointer = _PLACES[what]
        super().__init__(message)


class Limit(NamedTuple):
    """The most that may be asked for, and for which role, tenant or user that is set."""

    what: What
    most: int | None  # None: no limit
    kind: str = ""  # "": nothing is set
    name: str = ""


class AskedFor(NamedTuple):
    """What a submission asks for."""

    priority: int
    load: int  # milli-GPUs of each job
    time: int | None
    jobs: int


@dataclass(slots=True)
class Limits:
    """All limits of a plane."""

    rows: dict[Scope, dict[str, int | None]] = field(default_factory=dict)  # what admins have set

    def of(self, scope: Scope) -> Amounts:
        """What is set for a role, a tenant or a user."""
        return {**DEFAULTS.get(scope, {}), **self.rows.get(scope, {})}

    def all(self) -> Iterator[tuple[Scope, Amounts]]:
        """Roles first, then tenants and users by name."""
        for scope in sorted(DEFAULTS.keys() | self.rows.keys(), key=lambda one: (one not in DEFAULTS, one)):
            yield scope, self.of(scope)

    def in_force(self, caller: Caller, tenant: str) -> list[Limit]:
        """The limits of a caller that submits for a tenant; of `jobs` there may be two."""
        role, user = ("role", caller.role), ("user", caller.user)
        if caller.admin:
            return [self._first(what, (role,)) for what in WHATS]
        found = [self._first(what, (user, ("tenant", tenant), role)) for what in WHATS[:-1]]
        found.append(self._first("jobs", (user, role)))
        whole = self._first("jobs", (("tenant", tenant),))
        return [*found, whole] if whole.kind else found

    def _first(self, what: What, scopes: Sequence[Scope]) -> Limit:
        for scope in scopes:
            if what in (set_here := self.of(scope)):
                return Limit(what, set_here[what], *scope)
        return Limit(what, None)

    # -- refusals

    def check_job(
        self, caller: Caller, tenant: str, wanted: AskedFor, active: Callable[[str, str], int]
    ) -> None:
        """Refuse a submission that is above a limit; `active` counts the jobs of a tenant or user."""
        for limit in self.in_force(caller, tenant):
            if limit.most is None:
                continue
            match limit.what:
                case "priority":
                    _check_priority(limit, limit.most, wanted.priority, caller)
                case "gpus":
                    _check_gpus(limit, limit.most, wanted.load, caller)
                case "time":
                    _check_time(limit, limit.most, wanted.time, caller)
                case "jobs":
                    _check_jobs(limit, limit.most, wanted.jobs, caller, active)

    def check_priority(self, caller: Caller, tenant: str, priority: int) -> None:
        """Refuse a priority that is above the limit."""
        limit = next(one for one in self.in_force(caller, tenant) if one.what == "priority")
        if limit.most is not None:
            _check_priority(limit, limit.most, priority, caller)

    # -- changes

    def set(self, scope: Scope, amounts: Amounts) -> dict[str, str]:
        """Set what is named, and leave the rest; returns all limits as the store keeps them."""
        self.rows.setdefault(scope, {}).update(amounts)
        return self.row()

    def drop(self, scope: Scope) -> dict[str, str]:
        """Forget what was set."""
        self.rows.pop(scope, None)
        return self.row()

    def row(self) -> dict[str, str]:
        kept = [[kind, name, amounts] for (kind, name), amounts in sorted(self.rows.items())]
        return {"key": KEY, "value": json.dumps(kept)}


def limits_from(kept: str | None) -> Limits:
    """As the store kept them."""
    read: list[Any] = [] if kept is None else json.loads(kept)
    return Limits({(kind, name): dict(amounts) for kind, name, amounts in read})


def _check_priority(limit: Limit, most: int, asked: int, caller: Caller) -> None:
    if asked > most:
        raise _over(limit, caller, f"the job asks for priority {asked:,}", f"{most:,}", asked)


def _check_gpus(limit: Limit, most: int, load: int, caller: Caller) -> None:
    if load > most * WHOLE:
        raise _over(limit, caller, f"the job asks for {_gpus(load / WHOLE)}", _gpus(most), -(-load // WHOLE))


def _check_time(limit: Limit, most: int, asked: int | None, caller: Caller) -> None:
    if asked is None:
        raise _over(limit, caller, "the job has no time limit", spoken(most), "none")
    if asked > most:
        raise _over(
            limit, caller, f"the job asks for {spoken(asked)}", spoken(most), f"{-(-asked // SECOND)}s"
        )


def _check_jobs(
    limit: Limit, most: int, asked: int, caller: Caller, active: Callable[[str, str], int]
) -> None:
    kind, name = ("tenant", limit.name) if limit.kind == "tenant" else ("user", caller.user)
    then = active(kind, name) + asked
    if then > most:
        more = "one more job" if asked == 1 else f"{asked:,} more jobs"
        told = f"with {more}, {kind} {name} would have {then:,} jobs that have not ended"
        raise _over(limit, caller, told, f"{most:,}", then)


def _over(limit: Limit, caller: Caller, asked: str, most: str, enough: int | str) -> OverLimit:
    """What was asked, the limit, whose it is, and what to do; `enough` is a limit that would allow it."""
    fewer = "submit fewer, wait until some have ended" if limit.what == "jobs" else f"ask for {most} or less"
    # A limit of a role is raised for the one user: the others keep it.
    kind, name = (limit.kind, limit.name) if limit.kind == "tenant" else ("user", caller.user)
    if caller.admin:
        kind, name = limit.kind, limit.name
    return OverLimit(
        limit.what,
        f"{asked}, and the limit of {limit.kind} {limit.name} is {most}; {fewer}, or let an administrator "
        f"raise it (dovetail limits set {kind} {name} --{limit.what} {enough})",
    )


def _gpus(count: float) -> str:
    return f"{count:g} GPU{'s' * (count != 1)}"
