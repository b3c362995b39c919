"""What is to be expected of a job whose speed changes as it goes along.

A job that lets its batch grow runs in regimes, each faster or slower than the last (`Profile.regimes`).
Which speeds there are is known beforehand; how much of the work falls to each is not. It is learned from the
work that is done: the parts are taken to be drawn from a Dirichlet distribution, at first equal and worth
one whole run; the mean of what remains of them, once the parts seen so far are counted, is what to expect
(Zheng et al., "Shockwave", NSDI 2023, section 5; this rule is the one of its published code).

Deviation: how far a job is, and in which regime, is read off its declared duration; a real job says it
itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from dovetail.model.job import Profile
from dovetail.model.view import JobView

Forecast = Literal["posterior", "constant", "declared"]
Stretch = tuple[float, float]  # microseconds of work on the reference, and how many times as fast it goes


def behind(profile: Profile | None, done: float, whole: float) -> list[Stretch]:
    """The work that is done, by regime, in the order in which it was.

    >>> behind(Profile(regimes=((1, 1.0), (1, 4.0))), 60, 100)
    [(50.0, 1.0), (10.0, 4.0)]
    """
    regimes = profile.regimes if profile is not None else ()
    if not regimes:
        return [(float(done), 1.0)] if done > 0 else []
    total, begun, found = sum(part for part, _ in regimes), 0.0, list[Stretch]()
    for part, speed in regimes:
        ends = begun + part / total * whole
        if done > begun:
            found.append((min(done, ends) - begun, speed))
        begun = ends
    return found


def ahead(profile: Profile | None, done: float, whole: float, forecast: Forecast) -> list[Stretch]:
    """The work that is left, as it is expected to go: the present regime first.

    `constant`: all of it as fast as now. `declared`: as the profile says, which nobody can know.

    >>> ahead(Profile(regimes=((1, 1.0), (1, 4.0))), 0, 100, "posterior")
    [(50.0, 1.0), (50.0, 4.0)]
    """
    left = max(whole - done, 0.0)
    regimes = profile.regimes if profile is not None else ()
    if not regimes or left <= 0:
        return [(left, 1.0)] if left > 0 else []
    if forecast == "declared":
        return _without(behind(profile, whole, whole), done)
    seen = behind(profile, done, whole)
    now = _without(behind(profile, whole, whole), done)[0][1]
    if forecast == "constant":
        return [(left, now)]
    speeds = [now, *(speed for _, speed in regimes)]
    modes = list(dict.fromkeys(speeds))
    had = {mode: sum(work for work, speed in seen if speed == mode) / whole for mode in modes}
    total = 1.0 + sum(had.values())
    rest = {mode: max((1.0 / len(modes) + had[mode]) / total - had[mode], 0.0) for mode in modes}
    scale = left / sum(rest.values())
    return [(rest[mode] * scale, mode) for mode in modes if rest[mode] > 0]


def _without(stretches: Iterable[Stretch], done: float) -> list[Stretch]:
    """What is left once so much is done."""
    found = []
    for work, speed in stretches:
        gone = min(work, done)
        done -= gone
        if work > gone:
            found.append((work - gone, speed))
    return found


def time_of(stretches: Iterable[Stretch]) -> float:
    """How long it takes on the reference."""
    return sum(work / speed for work, speed in stretches)


def work_in(stretches: Iterable[Stretch], time: float) -> float:
    """How much of it is done in so much time on the reference."""
    done = 0.0
    for work, speed in stretches:
        if work >= time * speed:
            return done + time * speed
        done += work
        time -= work / speed
    return done


def seen_regime(job: JobView, now: int) -> float:
    """How many times as fast as its reference it goes at this stage."""
    profile = job.traits.profile
    if profile is None or not profile.regimes:
        return 1.0
    return ahead(profile, min(job.done_at(now), job.estimate - 1), job.estimate, "constant")[0][1]
