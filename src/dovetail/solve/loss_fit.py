"""The loss curve 1 / (slope k + start) + floor that fits the losses reported after k epochs.

Peng et al., "Optimus", EuroSys 2018, section 3.1. For a given floor f, 1 / (l - f) is linear in k. It is
fitted by non-negative least squares, each point with the weight (l - f)^2, so that errors count as errors of
the loss. The floor with the smallest error is searched in steps that get finer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dovetail.solve.non_negative import DEPENDENT, Vector
from dovetail.solve.portable import dot, rounded

STEPS = 8  # floors that are tried in a round
ROUNDS = 12  # each searches the two steps around the best floor of the round before
LEAST = 1e-9  # the smallest start: the loss before training is finite


def fitted_loss(epochs: ArrayLike, losses: ArrayLike) -> tuple[float, float, float]:
    """Slope, start and floor; losses that do not fall have the slope 0.

    >>> slope, start, floor = fitted_loss([1, 2, 3, 4], [1 / (0.5 * k + 0.4) + 0.1 for k in (1, 2, 3, 4)])
    >>> round(slope, 3), round(start, 3), round(floor, 3)
    (0.5, 0.4, 0.1)
    """
    k, losses = np.asarray(epochs, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    low, high = 0.0, float(losses.min())
    best = _with_floor(k, losses, low)
    for _ in range(ROUNDS):
        step = (high - low) / STEPS
        best = min([best, *(_with_floor(k, losses, low + step * i) for i in range(STEPS))])
        floor = best[1]
        low, high = max(low, floor - step), min(high, floor + step)
    _, floor, slope, start = best
    if start <= 0 and slope <= 0:
        return 0.0, float(1.0 / max(losses.min(), LEAST)), 0.0
    found = rounded([slope, max(start, LEAST), floor])
    return float(found[0]), float(found[1]), float(found[2])


def _line(around: Vector, middle: float, weight: Vector, above: Vector) -> tuple[float, float]:
    """Slope and start of at least 0 (solve.non_negative) for two columns, in closed form."""
    square, wanted = weight * weight, weight * above
    both, first, second = float(square.sum()), dot(square, around), dot(square * around, around)
    value, tilt = float(wanted.sum()), dot(wanted, around)
    whole = both * second - first * first
    if both > 0 and whole > DEPENDENT * both * second:
        slope = (both * tilt - first * value) / whole
        start = (value - slope * first) / both - slope * middle
        if slope >= 0 and start >= 0:
            return slope, start
        if slope >= 0:  # through 0: the start would be negative
            k = around + middle
            return dot(wanted, k) / dot(square * k, k), 0.0
    return 0.0, value / both if both > 0 else 0.0


def _with_floor(k: Vector, losses: Vector, floor: float) -> tuple[float, float, float, float]:
    """The error of the best curve with this floor, the floor, its slope and its start."""
    above = losses - floor
    weight = above * above
    slope, start = _line(k - k.mean(), float(k.mean()), weight, above)
    bottom = slope * k + start
    if bottom.min() <= 0:
        return np.inf, floor, 0.0, 0.0
    wrong = losses - floor - 1.0 / bottom
    return float(rounded(dot(wrong, wrong))), floor, float(slope), float(start)
