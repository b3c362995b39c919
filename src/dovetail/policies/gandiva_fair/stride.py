"""Gang-aware stride scheduling.

Each owner has tickets and a pass: its GPU-time so far over its tickets. The owner with the smallest pass is
served next, and its pass grows with the GPU-time of the job that runs, all GPUs of a gang included. So passes
stay close together, and GPU-time is in proportion to tickets (Waldspurger, Weihl, "Stride Scheduling", 1995).
A gang that does not fit keeps its small pass, and is first in the next quantum; smaller jobs fill the gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

Tickets = Mapping[str, Mapping[str, float]]  # owner -> GPU type -> milli-GPUs it is entitled to


class RunningJob(NamedTuple):
    """The owner of a running job, the GPU type it runs on, and the milli-GPUs it holds."""

    owner: str
    kind: str
    load: int


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of owners and jobs at a moment; times in microseconds."""

    at: int = 0
    running: Mapping[str, RunningJob] = field(default_factory=dict)  # jobs that run since then
    tickets: Tickets = field(default_factory=dict)
    owners: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by owner and type
    jobs: Mapping[str, float] = field(default_factory=dict)


def charged(passes: Passes, now: int) -> Passes:
    """The passes with running jobs charged up to now; an owner without tickets of a type is not charged."""
    spent = now - passes.at
    if not spent:
        return passes
    owners, jobs = dict(passes.owners), dict(passes.jobs)
    for id, (owner, kind, load) in passes.running.items():
        jobs[id] = jobs.get(id, 0.0) + load * spent
        tickets = passes.tickets.get(owner, {}).get(kind, 0.0)
        if tickets > 0:
            owners[owner, kind] = owners.get((owner, kind), 0.0) + load * spent / tickets
    return replace(passes, at=now, owners=owners, jobs=jobs)


def with_tickets(passes: Passes, tickets: Tickets, jobs: Mapping[str, Iterable[str]]) -> Passes:
    """The passes under new tickets. A new or returning owner starts at the smallest pass of those present.

    `jobs` are the jobs of each owner: a new job starts at the smallest pass of its owner's jobs.
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


def next_quantum(
    passes: Passes, kind: str, lines: Mapping[str, Sequence[tuple[str, int]]], room: int, length: int
) -> list[str]:
    """The jobs that run on a type in the next quantum, in the order in which they were picked.

    `lines` are the jobs of each owner with their loads, in the order that the owner wants. Owners without
    tickets of the type come after all that have some, with equal rights.
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
