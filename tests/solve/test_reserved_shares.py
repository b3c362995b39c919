"""Shares that are reserved over time, against a plain count of what is free."""

from __future__ import annotations

import random

import pytest

from dovetail.solve.reserved_shares import (
    FAR,
    PADDING,
    Profile,
    Request,
    Segment,
    Share,
    minimum_share,
    profile,
    progress,
    progressive_filling,
    without,
)

LEVELS, SPEEDS = (1, 2, 4), (1.0, 1.7, 2.5)


def free_at(free: Profile, at: int) -> int:
    return int(free.free[int(free.times.searchsorted(at, side="right")) - 1])


def held_at(shares: list[Share | None], at: int) -> int:
    return sum(row.gpus for share in shares for row in share or () if row.start <= at < row.end)


def plain_share(free: Profile, request: Request) -> int | None:
    """The smallest level that ends in time, walking over what is free."""
    times = [*free.times.tolist(), FAR]
    for level in request.levels:
        done = 0
        for k, start in enumerate(times[:-1]):
            length = min(times[k + 1], request.deadline) - start
            fit = [
                s
                for n, s in zip(request.levels, request.speeds, strict=True)
                if n <= level and n <= free.free[k]
            ]
            done += int(max(length, 0) * max(fit, default=0.0))
        if done >= request.work:
            return level
    return None


def instance(seed: int) -> tuple[Profile, list[Request]]:
    luck = random.Random(seed)
    rows = []
    for _ in range(luck.randint(0, 5)):
        start = luck.randint(0, 10**7)
        rows.append(Segment(start, start + luck.randint(1, 10**7), luck.randint(1, 2)))
    requests = [
        Request(luck.randint(1, 10**7), luck.randint(1, 2 * 10**7), LEVELS, SPEEDS)
        for _ in range(luck.randint(1, 12))
    ]
    return profile(0, 10, rows), requests


@pytest.mark.parametrize("seed", range(100))
def test_the_share_is_the_smallest_that_ends_in_time(seed: int) -> None:
    free, requests = instance(seed)
    for request in requests:
        share, level = minimum_share(free, request), plain_share(free, request)
        assert (share is None) == (level is None)
        if share is not None and level is not None:
            assert max(row.gpus for row in share) <= level
            assert share[-1].end <= request.deadline
            assert progress(share, request, 0) >= request.work
            assert all(row.gpus <= free_at(free, row.start) for row in share)


@pytest.mark.parametrize("seed", range(100))
def test_filling_takes_no_more_than_is_free_and_gives_enough(seed: int) -> None:
    free, requests = instance(seed)
    shares = progressive_filling(free, requests)
    moments = {0, *free.times.tolist(), *(at for s in shares for row in s or () for at in row[:2])}
    assert all(held_at(shares, at) <= free_at(free, at) for at in moments)
    for share, request in zip(shares, requests, strict=True):
        if share is not None:
            assert progress(share, request, 0) >= request.work
            assert share[-1].end <= request.deadline


@pytest.mark.parametrize("seed", range(100))
def test_filling_at_once_is_filling_one_after_another(seed: int) -> None:
    free, requests = instance(seed)
    at_once = progressive_filling(free, requests)
    for i in sorted(range(len(requests)), key=lambda i: requests[i].deadline):
        share = minimum_share(free, requests[i])
        assert at_once[i] == share
        free = without(free, share or ())


def test_a_share_goes_around_what_is_taken() -> None:
    free = profile(0, 2, [Segment(0, 10_000, 2), Segment(20_000, 30_000, 1)])
    share = minimum_share(free, Request(18_000, 40_000, (1, 2), (1.0, 1.5)))
    assert share == (Segment(10_000, 28_000 + PADDING, 1),)


def test_what_is_taken_twice_shows_below_zero() -> None:
    assert profile(5, 1, [Segment(0, 10, 1), Segment(7, 9, 1)]).free.tolist() == [0, -1, 0, 1]
