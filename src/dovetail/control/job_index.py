"""All jobs that have not ended, and what keeps some of them from the queue.

The core hears of a job once it is eligible: once only resources can keep it waiting. The other conditions are
checked here: a hold, a begin time, dependencies on other jobs, and the limit on running jobs of an array.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from dovetail.control.dependencies import Dependency, parse_dependency
from dovetail.control.records import Record
from dovetail.control.request import JobRequest
from dovetail.control.states import State
from dovetail.model.job import Job

Lookup = Callable[[Collection[str]], Mapping[str, str]]  # states by id, also of jobs that are over

HELD_BY_USER, HELD_BY_ADMIN, BEGIN, DEPENDENCY, ARRAY_LIMIT, NEVER, NO_ROOM = (
    "JobHeldUser",
    "JobHeldAdmin",
    "BeginTime",
    "Dependency",
    "JobArrayTaskLimit",
    "DependencyNeverSatisfied",
    "ReqNodeNotAvail",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One submission: what its jobs have in common."""

    request: JobRequest
    body: Any
    workdir: str
    job: Job | None  # as the core sees each of its jobs, but for id, arrival and priority; None: no node fits
    account: str | None = None  # that its jobs run as (unix_accounts)


class JobIndex:
    """Records by id, and indexes to find the jobs that are not eligible yet."""

    def __init__(self, lookup: Lookup) -> None:
        self.records: dict[str, Record] = {}
        self.asked: dict[str, Asked] = {}
        self._lookup = lookup
        self._users: dict[str, int] = {}  # of each submission: jobs that are not over
        self._active: Counter[tuple[str, str]] = Counter()  # jobs that are not over, by tenant and by user
        self._members: dict[str, dict[str, Record]] = {}  # of each array, in order
        self._waiting_for: dict[str, set[str]] = {}  # job or array -> jobs that depend on it
        self._singles: dict[tuple[str, str, str], dict[str, Record]] = {}
        self._depends: dict[str, tuple[Dependency, ...]] = {}
        self._begins: list[tuple[int, str]] = []
        self._admitted: dict[str, int] = {}  # of each array: members that the core knows
        self._over: dict[str, State] = {}  # ended, and not committed yet: the lookup does not know
        self._looked: dict[str, dict[str, State]] = {}  # what the lookup told since the last commit

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())

    def add(self, record: Record, asked: Asked) -> None:
        self.records[record.id] = record
        self.asked[record.request] = asked
        self._users[record.request] = self._users.get(record.request, 0) + 1
        self._active.update((("tenant", record.tenant), ("user", record.user)))
        if record.array is not None:
            self._members.setdefault(record.array, {})[record.id] = record
        self._singles.setdefault(_single(record), {})[record.id] = record
        if record.dependency:
            self._depends[record.id] = needs = parse_dependency(record.dependency)
            for need in needs:
                self._waiting_for.setdefault(need.job, set()).add(record.id)
        if record.begin_at is not None:
            heappush(self._begins, (record.begin_at, record.id))
        if record.state is not State.HELD:
            self.admit(record)

    def admit(self, record: Record) -> None:
        """The core knows the job from now on."""
        if record.array is not None:
            self._admitted[record.array] = self._admitted.get(record.array, 0) + 1

    def withdraw(self, record: Record) -> None:
        """The core no longer knows the job, which has not ended."""
        if record.array is not None:
            self._admitted[record.array] -= 1

    def committed(self) -> None:
        """The ends reported so far are in the store."""
        self._over.clear()
        self._looked.clear()

    def remove(self, record: Record, *, was_admitted: bool) -> None:
        """The job has ended."""
        del self.records[record.id]
        self._over[record.id] = record.state
        if was_admitted:
            self.withdraw(record)
        for owner in (("tenant", record.tenant), ("user", record.user)):
            self._active[owner] -= 1
            if not self._active[owner]:
                del self._active[owner]
        self._users[record.request] -= 1
        if not self._users[record.request]:
            del self._users[record.request], self.asked[record.request]
        if record.array is not None:
            members = self._members[record.array]
            members.pop(record.id, None)
            if not members:
                del self._members[record.array]
                self._admitted.pop(record.array, None)
        single = _single(record)
        self._singles[single].pop(record.id)
        if not self._singles[single]:
            del self._singles[single]
        for need in self._depends.pop(record.id, ()):
            self._waiting_for.get(need.job, set()).discard(record.id)

    def active_of(self, kind: str, name: str) -> int:
        """Jobs of a tenant or a user that have not ended."""
        return self._active[kind, name]

    def members(self, array: str) -> list[Record]:
        return list(self._members.get(array, {}).values())

    def next_begin(self) -> int | None:
        """The next moment at which a begin time comes."""
        return self._begins[0][0] if self._begins else None

    def due(self, now: int) -> list[Record]:
        """Jobs with a begin time that has come."""
        found = []
        while self._begins and self._begins[0][0] <= now:
            record = self.records.get(heappop(self._begins)[1])
            if record is not None:
                found.append(record)
        return found

    def affected(self, over: Record) -> list[Record]:
        """Held jobs that may become eligible because this job has started or ended."""
        names: Iterable[str] = (over.id, over.array) if over.array is not None else (over.id,)
        found = [self.records[name] for key in names for name in self._waiting_for.get(key or "", ())]
        if over.array is not None and over.at_most is not None:
            limited = (r for r in self._members.get(over.array, {}).values() if r.reason == ARRAY_LIMIT)
            found += islice(limited, over.at_most)
        waiting = self._waiting_for.get("")
        if waiting:
            found += [r for r in self._singles.get(_single(over), {}).values() if r.id in waiting]
        return sorted({r.id: r for r in found if r.state is State.HELD}.values(), key=lambda r: r.seq)

    def gate(self, record: Record, now: int) -> str:
        """Why a job may not enter the queue yet, in a word; "" if it is eligible."""
        if record.held_by:
            return {"user": HELD_BY_USER, "admin": HELD_BY_ADMIN, "cluster": NO_ROOM}[record.held_by]
        if record.begin_at is not None and record.begin_at > now:
            return BEGIN
        needs = self._depends.get(record.id)
        if needs and (word := self._unmet(record, needs, now)):
            return word
        full = record.at_most is not None and self._admitted.get(record.array or "", 0) >= record.at_most
        return ARRAY_LIMIT if full else ""

    def _unmet(self, record: Record, needs: tuple[Dependency, ...], now: int) -> str:
        found = [self._met(record, need, now) for need in needs]
        if needs[0].either:
            if True in found:
                return ""
            return NEVER if all(met is None for met in found) else DEPENDENCY
        if None in found:
            return NEVER
        return "" if all(found) else DEPENDENCY

    def _met(self, record: Record, need: Dependency, now: int) -> bool | None:
        """Whether a dependency is met; None if it never can be."""
        if need.kind == "singleton":
            others = self._singles.get(_single(record), {}).values()
            return not any(other.seq < record.seq for other in others)
        target = need.job
        if need.kind == "aftercorr" and record.task is not None and "_" not in target:
            target = f"{target}_{record.task}"
        states = self._states(target)
        if not states:
            return need.kind == "afterany" or None
        final = [state for state in states if state.final]
        if need.kind == "after":
            started = [self._started(name) for name in self._names(target)]
            times = [at + need.delay for at in started if at is not None]
            if len(times) == len(started) and max(times) > now:
                heappush(self._begins, (max(times), record.id))
            return len(times) == len(started) and max(times) <= now
        if need.kind == "afterany":
            return len(final) == len(states)
        good = State.COMPLETED
        if need.kind == "afternotok":
            if any(state is good for state in final):
                return None
            return len(final) == len(states)
        if any(state is not good for state in final):
            return None
        return len(final) == len(states)

    def _names(self, target: str) -> list[str]:
        return [r.id for r in self.members(target)] or [target]

    def _started(self, name: str) -> int | None:
        record = self.records.get(name)
        return 0 if record is None else record.first_started_at

    def _states(self, target: str) -> list[State]:
        record = self.records.get(target)
        if record is not None:
            return [record.state]
        if target in self._over:
            return [self._over[target]]
        known = self._looked.get(target)
        if known is None:
            known = {name: State(state) for name, state in self._lookup([target]).items()}
            self._looked[target] = known
        found = dict(known)
        for name in known:
            if name in self._over:
                found[name] = self._over[name]
            elif name in self.records:
                found[name] = self.records[name].state
        return list(found.values())


def _single(record: Record) -> tuple[str, str, str]:
    return record.tenant, record.user, record.name
