"""Gang-aware stride scheduling on one server.

Each owner has tickets and a pass: its GPU-time so far over its tickets. The owner with the smallest pass is
served next, and its pass grows with the GPU-time of the job that runs, all GPUs of a gang included. So passes
stay close together, and GPU-time is in proportion to tickets (Waldspurger, Weihl, "Stride Scheduling", 1995).
A gang that does not fit keeps its small pass, and is first in the next quantum; smaller jobs fill the gap.
Inside an owner the job with the least GPU-time is next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

Tickets = Mapping[str, float]  # owner -> milli-GPUs of the server that it is entitled to


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes on a server at a moment, while jobs wait for it; times in microseconds."""

    at: int = 0
    running: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # since then: owner and milli-GPUs
    tickets: Tickets = field(default_factory=dict)
    owners: Mapping[str, float] = field(default_factory=dict)
    jobs: Mapping[str, float] = field(default_factory=dict)


def charged(passes: Passes, now: int) -> Passes:
    """The passes with running jobs charged up to now; an owner without tickets is not charged."""
    spent = now - passes.at
    if not spent:
        return passes
    owners, jobs = dict(passes.owners), dict(passes.jobs)
    for id, (owner, load) in passes.running.items():
        jobs[id] = jobs.get(id, 0.0) + load * spent
        tickets = passes.tickets.get(owner, 0.0)
        if tickets > 0:
            owners[owner] = owners.get(owner, 0.0) + load * spent / tickets
    return Passes(now, passes.running, passes.tickets, owners, jobs)


def joined(passes: Passes, tickets: Tickets, jobs: Mapping[str, Iterable[str]]) -> Passes:
    """The passes of these owners and jobs. A new or returning owner starts at the smallest pass there.

    `jobs` are the jobs of each owner: a new job starts at the smallest pass of its owner's jobs.
    """
    before = [o for o, amount in tickets.items() if amount > 0 and passes.tickets.get(o, 0.0) > 0]
    level = min((passes.owners.get(owner, 0.0) for owner in before), default=0.0)
    owners = {owner: passes.owners.get(owner, level) for owner in before}
    for owner, amount in tickets.items():
        if amount > 0 and owner not in owners:
            owners[owner] = max(passes.owners.get(owner, level), level)
    mine: dict[str, float] = {}
    for ids in jobs.values():
        known = list(ids)
        least = min((passes.jobs[id] for id in known if id in passes.jobs), default=0.0)
        for id in known:
            mine[id] = passes.jobs.get(id, least)
    return Passes(passes.at, passes.running, tickets, owners, mine)


def next_quantum(
    passes: Passes, lines: Mapping[str, Sequence[tuple[str, int]]], room: int, length: int
) -> list[str]:
    """The jobs that run in the next quantum, in the order in which they were picked.

    `lines` are the jobs of each owner with their loads, in the order that the owner wants. Owners without
    tickets come after all that have some, with equal rights.
    """
    waiting = {owner: list(line) for owner, line in lines.items()}
    taken = dict.fromkeys(lines, 0)

    def place(owner: str) -> tuple[bool, float, str]:
        tickets = passes.tickets.get(owner, 0.0)
        if tickets <= 0:
            return True, float(taken[owner]), owner
        return False, passes.owners.get(owner, 0.0) + taken[owner] * length / tickets, owner

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
