"""Arithmetic on a job's declared profile: scaling, batch size, communication time, regimes.

Pure functions that the simulator's true speed (sim.true_speed) and estimates (model.estimate) both use.
"""

from __future__ import annotations

from dovetail.model.goodput import stage_at
from dovetail.model.grant import Terms
from dovetail.model.job import Profile


def regime_at(profile: Profile | None, done: int, work: int) -> tuple[float, int]:
    """The speed-up of a job after this much of its work is done, and the work at which that regime ends.

    A job that increases its batch size in the course of training gets faster, whatever it holds.

    >>> regime_at(Profile(regimes=((1, 1.0), (1, 4.0))), 60, 100)
    (4.0, 100)
    """
    if profile is None or not profile.regimes:
        return 1.0, work
    return stage_at(profile.regimes, done, work)


def one_way(size: float, bandwidth: float) -> float:
    """Seconds to send this number of bytes once."""
    return size / bandwidth


def ring(size: float, gpus: int, bandwidth: float) -> float:
    """Seconds of a ring all-reduce: each of n devices sends 2(n-1)/n of the bytes."""
    return 2 * (gpus - 1) / gpus * size / bandwidth


def scaled(profile: Profile, tasks: int, type: str = "") -> float:
    """Throughput of this number of tasks: interpolated between known points, linear without any."""
    if profile.server_speed is not None:
        return profile.server_speed.at(tasks)
    curve = profile.curve
    if profile.curves:
        curve = profile.curves.get(type, curve)
    if not curve:
        return float(tasks)
    if tasks in curve:
        return curve[tasks]
    known = sorted(curve)
    below = max((n for n in known if n < tasks), default=0)
    above = min((n for n in known if n > tasks), default=0)
    if not above:
        return curve[below]  # beyond the last known point it is constant
    low = curve.get(below, 0.0)
    return low + (curve[above] - low) * (tasks - below) / (above - below)


def on_terms(profile: Profile, terms: Terms) -> float:
    """The factor on speed of another batch size and a lower clock."""
    gain = terms.clock
    if terms.batch and profile.batch and terms.batch != profile.batch:
        ratio = terms.batch / profile.batch
        step = 1.0 - profile.batch_cost + profile.batch_cost * ratio
        noise = profile.noise_scale
        efficiency = (noise + profile.batch) / (noise + terms.batch) if noise else 1.0
        gain *= ratio / step * efficiency
    return gain
