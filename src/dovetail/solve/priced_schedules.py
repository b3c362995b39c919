"""The schedule of one job over time slots with the largest utility minus priced cost, by dynamic programming.

A node has a price for each slot: what one GPU costs there. It rises exponentially with the GPUs that are
taken, from `low` on an empty node to `high` on a full one. In each slot a job takes one of several options
(a number of GPUs, on the cheapest nodes that have them) or none. An option does some units of the job's work.
(Bao et al., "Online Job Scheduling in Distributed Machine Learning Clusters", INFOCOM 2018, section 4.)

The work is in whole units. Only the last slot of a schedule may be used in part, and is paid for in part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dovetail.solve.portable import rounded

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Schedule(NamedTuple):
    """What is chosen: utility minus cost, and the options in order of time."""

    surplus: float
    choices: tuple[tuple[int, int], ...]  # (slot, option)


class Options(NamedTuple):
    """What a job may do in each slot: rows are slots, columns are options."""

    units: Ints  # of work that an option does in the slot
    cost: Floats  # infinite if the option is not possible


def price(taken: int, capacity: int, low: float, high: float) -> float:
    """What the next GPU of a node costs: low * (high / low) ** (taken / capacity).

    >>> [price(taken, 4, 1.0, 16.0) for taken in range(5)]
    [1.0, 2.0, 4.0, 8.0, 16.0]
    """
    return float(rounded(low * (high / low) ** (taken / capacity)))


def prices(taken: Ints, capacity: Sequence[int], low: float, high: float) -> Floats:
    """The price of each node (a column) in each slot (a row)."""
    found = np.empty(taken.shape)
    for node, size in enumerate(capacity):
        of_node = np.array([price(count, max(size, 1), low, high) for count in range(size + 1)])
        found[:, node] = of_node[np.clip(taken[:, node], 0, size)]
    return found


class Places(NamedTuple):
    """The nodes that a gang would take in each slot."""

    cost: Floats  # of the gang in each slot; infinite: there is no room
    nodes: Ints  # how many it takes


def cheapest(price: Floats, room: Ints, tasks: int, each: int, *, one_node: bool) -> Places:
    """What a gang costs on the cheapest nodes that have room; `room` counts tasks."""
    if one_node:
        cost = np.where(room >= tasks, price, np.inf).min(axis=1) * (tasks * each)
        return Places(cost, np.ones(len(room), np.int64))
    order = np.argsort(price, axis=1, kind="stable")
    taken = _greedy(np.take_along_axis(room, order, 1), tasks)
    cost = (taken * np.take_along_axis(price, order, 1)).sum(axis=1) * each
    enough = taken.sum(axis=1) == tasks
    return Places(np.where(enough, cost, np.inf), (taken > 0).sum(axis=1))


def chosen(price: Floats, room: Ints, tasks: int, before: Ints, *, one_node: bool) -> Ints:
    """The tasks on each node in one slot, at the cost that `cheapest` says.

    Of nodes at one price, those where the job was before (`before`: its tasks there) come first.
    """
    found = np.zeros(len(price), np.int64)
    usable = np.flatnonzero(room >= (tasks if one_node else 1))
    order = usable[np.lexsort((usable, -before[usable], price[usable]))]
    found[order] = _greedy(room[order][None, :], tasks)[0]
    return found


def _greedy(room: Ints, tasks: int) -> Ints:
    """Tasks on each node, in this order, until all have a place."""
    here = np.maximum(room, 0)
    return np.asarray(np.clip(tasks - (here.cumsum(axis=1) - here), 0, here))


def best_schedule(options: Options, work: int, utility: Floats) -> Schedule | None:
    """The schedule with the largest utility minus cost; of equals, the one that ends first.

    `utility[t]` is what it is worth if the job ends in slot t. None: no schedule does all the work.
    """
    units, cost = options
    usable = (units > 0) & np.isfinite(cost)
    if work <= 0 or not usable.any():
        return None
    cheapest_unit = float((cost[usable] / units[usable]).min())
    later = np.maximum.accumulate(utility[::-1])[::-1]  # the most that ending then or later is worth
    spent = np.full(work, np.inf)  # by units done, which are less than all
    spent[0] = 0.0
    steps = np.full((len(utility), work), -1, np.int16)
    best: tuple[float, int, int, int] | None = None  # surplus, slot, option, units done before
    for slot in range(len(utility)):
        if best is not None and later[slot] - work * cheapest_unit <= best[0]:
            break
        before = spent.copy()
        for option in np.flatnonzero(usable[slot]).tolist():
            does, costs = int(units[slot, option]), float(cost[slot, option])
            last = np.arange(max(work - does, 0), work)  # units done before, if the job ends here
            ended = before[last] + costs * ((work - last) / does)
            least = int(ended.argmin())
            surplus = float(utility[slot] - ended[least])
            if np.isfinite(surplus) and (best is None or surplus > best[0]):
                best = (surplus, slot, option, int(last[least]))
            if does < work:
                reached = before[: work - does] + costs
                better = reached < spent[does:]
                spent[does:][better] = reached[better]
                steps[slot, does:][better] = option
    if best is None:
        return None
    surplus, slot, option, done = best
    choices = [(slot, option)]
    while done > 0:
        slot -= 1
        option = int(steps[slot, done])
        if option >= 0:
            choices.append((slot, option))
            done -= int(units[slot, option])
    return Schedule(surplus, tuple(reversed(choices)))
