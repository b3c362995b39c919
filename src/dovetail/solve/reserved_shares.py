"""Shares of GPUs that are reserved over time, so that jobs end before their deadlines.

A job has levels: numbers of GPUs, and its speed with each. Its *minimum satisfactory share* is the smallest
level L with which it ends in time, if at each moment it holds the largest of its levels that is at most L and
at most what is free then. Progressive filling gives jobs their shares by deadline, each on what those before
it leave. (Gu et al., "ElasticFlow", ASPLOS 2023. There time has slots; here free GPUs are a step function.)

Times and work are whole microseconds. Work is rounded down wherever a share changes, as a running job counts
it, so what is found here is never too little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PADDING = 1_000  # microseconds by which a reservation is longer, up to the deadline: each resize rounds
FAR = 1 << 52  # later than every deadline; floats are exact up to here


class Segment(NamedTuple):
    """GPUs that are reserved from one time to another."""

    start: int
    end: int
    gpus: int


Share = tuple[Segment, ...]  # in order of time


class Request(NamedTuple):
    """What a job needs: so much work before its deadline, on one of its levels."""

    work: int
    deadline: int
    levels: Sequence[int]  # GPUs, the fewest first
    speeds: Sequence[float]  # with each level; each is faster than the one before


class Profile(NamedTuple):
    """Free GPUs from each of these times to the next; the last goes on for ever."""

    times: Ints
    free: Ints


def profile(now: int, capacity: int, reserved: Iterable[Segment]) -> Profile:
    """What is free from now on, with these segments reserved. It is below 0 where too much is reserved."""
    rows = np.array([row for row in reserved if row.end > now], np.int64).reshape(-1, 3)
    if not len(rows):
        return Profile(np.array([now], np.int64), np.array([capacity], np.int64))
    starts, ends, gpus = np.maximum(rows[:, 0], now), rows[:, 1], rows[:, 2]
    at = np.concatenate(([now], starts, ends))
    change = np.concatenate(([capacity], -gpus, gpus))
    order = np.argsort(at, kind="stable")
    at, free = at[order], np.cumsum(change[order])
    last = np.append(at[1:] != at[:-1], True)
    return Profile(at[last], free[last])


def progress(share: Iterable[Segment], request: Request, now: int) -> int:
    """The work that a share does from now on."""
    speed = dict(zip(request.levels, request.speeds, strict=True))
    return sum(int((end - max(start, now)) * speed.get(gpus, 0.0)) for start, end, gpus in share if end > now)


def minimum_share(free: Profile, request: Request) -> Share | None:
    """The share of the smallest level with which the job ends in time; None: it ends in time with none."""
    now, deadline = int(free.times[0]), request.deadline
    if request.work <= 0:
        return ()
    for rank, (level, speed) in enumerate(zip(request.levels, request.speeds, strict=True)):
        if speed <= 0 or request.work > (deadline - now) * speed:
            continue  # too late even if all of it is free
        found = constant(free, request, level, speed) or varying(free, request, rank)
        if found is not None:
            return found
    return None


def constant(free: Profile, request: Request, level: int, speed: float) -> Share | None:
    """This level from now to the end, if it is free all the time."""
    now = int(free.times[0])
    end = now + ceil(request.work / speed)
    if end > request.deadline or free.free[0] < level:
        return None
    until = int(free.times.searchsorted(end))
    if free.free[:until].min() < level:
        return None
    return (Segment(now, _padded(end, request.deadline, free, until - 1), level),)


def varying(free: Profile, request: Request, rank: int) -> Share | None:
    """This level, or at each moment the largest smaller one that is free then."""
    deadline, levels = request.deadline, request.levels
    many = int(free.times.searchsorted(deadline))
    if not many:
        return None
    times = free.times[:many]
    ranks_by_free = _ranks_by_free(tuple(levels[: rank + 1]))
    largest = ranks_by_free[np.minimum(np.maximum(free.free[:many], 0), len(ranks_by_free) - 1)]
    speeds = np.array((*request.speeds[: rank + 1], 0.0))[largest]
    lengths = np.empty(many)
    np.subtract(times[1:], times[:-1], out=lengths[:-1])
    lengths[-1] = deadline - times[-1]
    done = np.floor(lengths * speeds).cumsum()
    last = int(done.searchsorted(request.work))
    if last == many:
        return None
    before = int(done[last - 1]) if last else 0
    begun = int(times[last])
    end = begun + ceil((request.work - before) / float(speeds[last]))
    if end > deadline:
        return None
    changes = (largest[1 : last + 1] != largest[:last]).nonzero()[0] + 1
    starts = [int(times[0]), *times[changes].tolist()]
    ends = [*starts[1:], _padded(end, deadline, free, last)]
    ranks = [int(largest[0]), *largest[changes].tolist()]
    rows = zip(starts, ends, ranks, strict=True)
    return tuple(Segment(start, end, levels[rank]) for start, end, rank in rows if rank >= 0)


@lru_cache(maxsize=1024)
def _ranks_by_free(levels: tuple[int, ...]) -> Ints:
    """The rank of the largest level that is at most 0, 1, 2 ... GPUs; -1: none is."""
    found = np.searchsorted(levels, np.arange(levels[-1] + 1), side="right") - 1
    found.flags.writeable = False
    return found


def soonest(free: Profile, request: Request) -> Share:
    """What ends the job as soon as it can be, for a deadline that cannot be met."""
    late = request._replace(deadline=FAR)
    rank = next((r for r in reversed(range(len(request.levels))) if request.speeds[r] > 0), None)
    return () if rank is None else varying(free, late, rank) or ()


def without(free: Profile, share: Share) -> Profile:
    """What is free once a share is reserved too."""
    times, left = free.times, free.free.copy()
    for start, end, gpus in share:
        first, last = times.searchsorted((start, end)).tolist()
        for k, at in ((last, end), (first, start)):  # the later one first: the other place stays right
            if k == len(times) or times[k] != at:
                times = np.concatenate((times[:k], (at,), times[k:]))
                left = np.concatenate((left[:k], left[k - 1 : k], left[k:]))
                last += k == first and at == start
        left[first:last] -= gpus
    return Profile(times, left)


def progressive_filling(free: Profile, requests: Sequence[Request]) -> list[Share | None]:
    """Minimum satisfactory shares by deadline (of equals, in this order); None: no share is enough.

    The jobs with the first deadlines whose smallest conceivable shares fit together get just these; that is
    found for all of them at once. The others are filled one after another.
    """
    shares: list[Share | None] = [None] * len(requests)
    order = sorted(range(len(requests)), key=lambda i: requests[i].deadline)
    at_once = _that_fit(free, [requests[i] for i in order])
    for i, found in zip(order, at_once, strict=False):
        shares[i] = found
    left = _less(free, [segment for share in at_once for segment in share])
    for i in order[len(at_once) :]:
        share = minimum_share(left, requests[i])
        shares[i] = share
        if share:
            left = without(left, share)
    return shares


def marginal_return(speeds: Sequence[float], levels: Sequence[int], least: int, rank: int) -> float:
    """GPU time that is saved later, for each GPU that a job has now beyond the level of this rank.

    The next level does more work now; with the minimum share (of rank `least`) it would have cost GPU time.
    """
    more = speeds[rank + 1] - speeds[rank]
    return more * levels[least] / speeds[least] / (levels[rank + 1] - levels[rank])


def _that_fit(free: Profile, requests: Sequence[Request]) -> list[Share]:
    """The smallest conceivable shares, of as many of the first jobs as they fit together for."""
    now, found = int(free.times[0]), list[Share]()
    for request in requests:
        share = smallest(now, request)
        if share is None:
            break
        found.append(share)
    ends, gpus = np.array([share[0][1:] if share else (now, 0) for share in found]).reshape(-1, 2).T
    low, high = 0, len(found)
    while low < high:  # that the first n fit is monotone in n
        middle = (low + high + 1) // 2
        order = np.argsort(ends[:middle])
        at, held = ends[order], np.append(0, np.cumsum(gpus[order]))
        taken = held[-1] - held[at.searchsorted(free.times, side="right")]  # just after each change
        fits = bool((free.free >= taken).all())
        low, high = (middle, high) if fits else (low, middle - 1)
    return found[:low]


def smallest(now: int, request: Request) -> Share | None:
    """The smallest share with which the job ends in time if it has all GPUs for itself."""
    work, deadline, levels, speeds = request
    if work <= 0:
        return ()
    for level, speed in zip(levels, speeds, strict=True):
        if 0 < work <= (deadline - now) * speed and (end := now + ceil(work / speed)) <= deadline:
            return (Segment(now, min(end + PADDING, deadline), level),)
    return None


def _less(free: Profile, segments: Sequence[Segment]) -> Profile:
    """What is free once all of these are reserved too."""
    now, times = int(free.times[0]), free.times
    taken = profile(now, 0, segments)
    at = np.union1d(times, taken.times)
    left = free.free[times.searchsorted(at, side="right") - 1]
    return Profile(at, left + taken.free[taken.times.searchsorted(at, side="right") - 1])


def _padded(end: int, deadline: int, free: Profile, k: int) -> int:
    """The end, later by the padding, as far as what is free does not change before."""
    until = int(free.times[k + 1]) if k + 1 < len(free.times) else FAR
    return max(end, min(end + PADDING, deadline, until))
