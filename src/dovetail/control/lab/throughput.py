"""Which job should run on which type of GPU: time shares, the best assignment, and the trade-off between.

A job of g GPUs on a type of speed s gets g x s done. It is measured against its *equal share*: g GPUs spread
over the types in proportion to how many there are of each. Above 1 it is better off than that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dovetail.control.lab.questions import Frontier, Split, Throughput
from dovetail.mechanisms.objective.share_objectives import max_min, max_sum
from dovetail.model.errors import InputError
from dovetail.solve.device_splits import Split as Found
from dovetail.solve.device_splits import Splits
from dovetail.solve.multiple_choice import best_choice
from dovetail.solve.time_shares import Matrix, Shares, Vector, whole

Json = dict[str, Any]


def shared(asked: Throughput) -> Json:
    """Time shares for an objective, the best assignment of whole jobs to types, and the one given by hand."""
    speed, size, capacity = _arrays(asked)
    scale = _equal_share(speed, size, capacity)
    if asked.sizes == "flexible":  # any part of all devices: no job is limited to its own time
        every = np.full(len(size), max(capacity.sum(), 1.0))
        shares = Shares(speed * every[:, None], every, capacity)
    else:
        every = size
        shares = whole(Shares(speed * size[:, None], size, capacity))
    x = np.zeros(speed.shape)
    can = shares.allowed.any(axis=1)  # the others have no share in anything
    if can.any():
        some = Shares(shares.speed[can], shares.size[can], capacity)
        if asked.objective == "max-sum":
            x[can] = max_sum(some, centred=False).x
        else:
            x[can] = max_min(some, some.size * (size / every)[can], centred=False).x
    reach = shares.reach(x)
    normalised = _over(reach, scale)
    return {
        "shares": _plain(x),
        "devices": _plain(x * every[:, None]),
        "throughput": _plain(reach),
        "normalised": _plain(normalised),
        "equal_share": _plain(scale),
        "total": _plain(reach.sum()),
        "least": _plain(normalised.min()),
        "optimum": _optimum(speed, size, capacity),
        "yours": None if asked.assignment is None else _by_hand(asked, speed, size, scale),
    }


def frontier(asked: Frontier) -> Json:
    """For each weight, and for each floor of the worst-off job, the split that is best for it."""
    speed, size, capacity = _arrays(asked)
    scale = _equal_share(speed, size, capacity)
    splits = Splits(speed, capacity, scale, size if asked.sizes == "fixed" else None)
    points = [_point(weight, splits.between(weight), scale) for weight in sorted(asked.weights)]
    largest, fairest = splits.largest(), splits.fairest()
    reachable = fairest.least - largest.least
    levels = [largest.least + level * reachable for level in sorted(asked.floors)]
    return {
        "points": points,
        "floors": [{"floor": _plain(level)} | _figures(splits.above(level), scale) for level in levels],
        "most": {"total": _plain(largest.total), "least": _plain(largest.least)},
        "fairest": {"total": _plain(fairest.total), "least": _plain(fairest.least)},
        "equal_share": _plain(scale),
    }


def _plain(value: Any) -> Any:
    """For JSON, without the last digits, which are the solver's rounding."""
    return (np.round(value, 6) + 0.0).tolist()


def _arrays(asked: Split) -> tuple[Matrix, Vector, Vector]:
    speed = np.array([job.speeds for job in asked.jobs], dtype=np.float64)
    size = np.array([job.gpus for job in asked.jobs], dtype=np.float64)
    capacity = np.array([kind.count for kind in asked.types], dtype=np.float64)
    if not capacity.any():
        raise InputError("types: no type has a GPU; give one a count above 0")
    return speed, size, capacity


def _equal_share(speed: Matrix, size: Vector, capacity: Vector) -> Vector:
    share: Vector = size * (speed @ (capacity / capacity.sum()))
    return share


def _over(reach: Vector, scale: Vector) -> Vector:
    """Normalised; a job that could run nowhere gets 0 of 0."""
    found: Vector = np.where(scale > 0.0, reach / np.where(scale > 0.0, scale, 1.0), 0.0)
    return found


def _optimum(speed: Matrix, size: Vector, capacity: Vector) -> Json:
    """The most that can be done if every job is on one type, or on none."""
    n, m = speed.shape
    sizes = np.unique(size)  # a configuration is so many GPUs of a type
    use = np.kron(sizes[:, None], np.eye(m))
    value = np.full((n, len(use)), -np.inf)
    for i in range(n):
        at = int(np.searchsorted(sizes, size[i])) * m
        value[i, at : at + m] = np.where(speed[i] > 0.0, speed[i] * size[i], -np.inf)
    found = best_choice(value, use, capacity, exact=True)
    return {
        "assignment": [None if pick < 0 else int(pick) % m for pick in found.pick],
        "total": _plain(found.value),
    }


def _by_hand(asked: Throughput, speed: Matrix, size: Vector, scale: Vector) -> Json:
    assert asked.assignment is not None
    reach = np.array([0.0 if k is None else size[i] * speed[i, k] for i, k in enumerate(asked.assignment)])
    wanted = [
        sum(job.gpus for job, k in zip(asked.jobs, asked.assignment, strict=True) if k == place)
        for place in range(len(asked.types))
    ]
    problems = [
        f"{kind.name}: {want} asked, {kind.count} there"
        for kind, want in zip(asked.types, wanted, strict=True)
        if want > kind.count
    ]
    return {
        "total": _plain(reach.sum()),
        "throughput": _plain(reach),
        "normalised": _plain(_over(reach, scale)),
        "problem": "; ".join(problems) or None,
    }


def _point(weight: float, found: Found, scale: Vector) -> Json:
    return {"weight": weight} | _figures(found, scale)


def _figures(found: Found, scale: Vector) -> Json:
    return {
        "total": _plain(found.total),
        "least": _plain(found.least),
        "throughput": _plain(found.reach),
        "normalised": _plain(_over(found.reach, scale)),
        "shares": _plain(found.held),
    }
