"""Shares in turns: stride scheduling that knows gangs.

Everybody has tickets, and a pass: the time it has had, in GPU-time over tickets. Whoever has the smallest
pass goes next, and its pass grows with what it takes, a gang's by all of its GPUs; so passes keep together,
and GPU-time is had in proportion to tickets (Waldspurger, Weihl, "Stride Scheduling", 1995). A gang that does
not fit beside those before it keeps its small pass, and is the first of the next quantum; smaller jobs fill
the gap meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

Tickets = Mapping[str, Mapping[str, float]]  # owner -> type -> milli-GPUs that are its own


class Turn(NamedTuple):
    """A job that runs: whose it is, on which type, and what it holds."""

    owner: str
    kind: str
    load: int


@dataclass(frozen=True, slots=True)
class Passes:
    """How far everybody is, at a moment; times in microseconds."""

    at: int = 0
    turns: Mapping[str, Turn] = field(default_factory=dict)  # who runs since then
    tickets: Tickets = field(default_factory=dict)
    owners: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by owner and type
    jobs: Mapping[str, float] = field(default_factory=dict)


def advanced(passes: Passes, now: int) -> Passes:
    """The passes once those who run have been charged up to now; what is had without tickets is free."""
    spent = now - passes.at
    if not spent:
        return passes
    owners, jobs = dict(passes.owners), dict(passes.jobs)
    for id, (owner, kind, load) in passes.turns.items():
        jobs[id] = jobs.get(id, 0.0) + load * spent
        tickets = passes.tickets.get(owner, {}).get(kind, 0.0)
        if tickets > 0:
            owners[owner, kind] = owners.get((owner, kind), 0.0) + load * spent / tickets
    return replace(passes, at=now, owners=owners, jobs=jobs)


def joined(passes: Passes, tickets: Tickets, jobs: Mapping[str, Iterable[str]]) -> Passes:
    """The passes under new tickets. Who comes, or comes back, starts level with the last of those present.

    `jobs` are everybody's: a new one starts level with the last of its owner's.
    """
    owners = dict(passes.owners)
    for kind in sorted({kind for mine in tickets.values() for kind, amount in mine.items() if amount > 0}):
        here = [owner for owner, mine in tickets.items() if mine.get(kind, 0.0) > 0]
        before = [owner for owner in here if passes.tickets.get(owner, {}).get(kind, 0.0) > 0]
        level = min((owners.get((owner, kind), 0.0) for owner in before), default=0.0)
        for owner in here:
            if owner not in before:
                owners[owner, kind] = max(owners.get((owner, kind), 0.0), level)
    mine: dict[str, float] = {}
    for ids in jobs.values():
        known = list(ids)
        level = min((passes.jobs[id] for id in known if id in passes.jobs), default=0.0)
        mine |= {id: passes.jobs.get(id, level) for id in known}
    return replace(passes, tickets=tickets, owners=owners, jobs=mine)


def in_turn(
    passes: Passes, kind: str, lines: Mapping[str, Sequence[tuple[str, int]]], room: int, length: int
) -> list[str]:
    """Who runs on a type in the next quantum, first come first.

    `lines` are everybody's jobs with their loads, in the order in which their owner wants them. Those without
    tickets of the type come after all who have some, alike.
    """
    waiting = {owner: list(line) for owner, line in lines.items()}
    taken = dict.fromkeys(lines, 0)

    def place(owner: str) -> tuple[bool, float, str]:
        tickets = passes.tickets.get(owner, {}).get(kind, 0.0)
        if tickets <= 0:
            return True, float(taken[owner]), owner
        return False, passes.owners.get((owner, kind), 0.0) + taken[owner] * length / tickets, owner

    heads = [place(owner) for owner, line in waiting.items() if line]
    heapify(heads)
    order: list[str] = []
    while heads and room > 0:
        owner = heappop(heads)[2]
        line = waiting[owner]
        spot = next((i for i, (_, load) in enumerate(line) if load <= room), None)
        if spot is None:
            continue
        id, load = line.pop(spot)
        order.append(id)
        room -= load
        taken[owner] += load
        if line:
            heappush(heads, place(owner))
    return order
