"""The forecast for a job that changes its speed while it runs.

A job that grows its batch size runs in regimes, each faster or slower than the last (`Profile.regimes`). The
speeds are known beforehand; the fraction of the work in each regime is not. It is learned from the work done:
the fractions are assumed to follow a Dirichlet distribution. Its prior is equal fractions, and counts as much
as one whole run. The forecast is the posterior mean of what remains (Zheng et al., "Shockwave", NSDI 2023,
section 5; this rule is the one of its published code).

Deviation: the progress and the regime of a job are computed from its declared duration; a real job would
report them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from dovetail.model.job import Profile
from dovetail.model.view import JobView

Forecast = Literal["posterior", "constant", "declared"]
Stretch = tuple[float, float]  # microseconds of work on the reference, and how many times as fast it goes


def behind(profile: Profile | None, done: float, whole: float) -> list[Stretch]:
    """The work that is done, by regime, in the order in which it was done.

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
    """The expected regimes of the work that is left, the present one first.

    `constant`: all of it at the present speed. `declared`: as in the profile, which a scheduler cannot know.

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
    """What is left of these stretches after `done` work."""
    found = []
    for work, speed in stretches:
        gone = min(work, done)
        done -= gone
        if work > gone:
            found.append((work - gone, speed))
    return found


def time_of(stretches: Iterable[Stretch]) -> float:
    """How long these stretches take on the reference."""
    return sum(work / speed for work, speed in stretches)


def work_in(stretches: Iterable[Stretch], time: float) -> float:
    """How much work is done within `time` on the reference."""
    done = 0.0
    for work, speed in stretches:
        if work >= time * speed:
            return done + time * speed
        done += work
        time -= work / speed
    return done


def present_speed(job: JobView, now: int) -> float:
    """The speed of a job in its present regime, relative to its reference."""
    profile = job.traits.profile
    if profile is None or not profile.regimes:
        return 1.0
    return ahead(profile, min(job.done_at(now), job.estimate - 1), job.estimate, "constant")[0][1]
