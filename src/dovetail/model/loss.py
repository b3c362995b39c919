"""The loss of a training job: how it falls with the epochs, and what a job reports of it.

Peng et al., "Optimus", EuroSys 2018, section 3.1: after k epochs of stochastic gradient descent the loss is
l(k) = 1 / (b0 k + b1) + b2. A job may declare such a curve as its truth (`Profile.loss`): then it reports its
loss at the end of each epoch in the simulator, as a real job does by `job.report`. A policy sees what was
reported (`JobView.loss`), never the curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

MOST_EPOCHS = 1 << 20  # no job trains longer: a curve that still falls then has no end


class LossPoint(NamedTuple):
    """One report of a job."""

    loss: float
    epoch: int  # whole epochs done
    done: int  # the work done by then, in microseconds of the reference run


@dataclass(frozen=True, slots=True)
class LossCurve:
    """l(k) = 1 / (slope k + start) + floor, over k epochs."""

    slope: float
    start: float = 1.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        figures = (self.slope, self.start, self.floor)
        if not all(map(math.isfinite, figures)) or min(figures) < 0 or self.start <= 0:
            raise ValueError(f"a loss has a start above 0, a slope and a floor of at least 0: {self}")

    def at(self, epoch: float) -> float:
        """The loss after this many epochs.

        >>> LossCurve(slope=1.0, floor=0.5).at(3)
        0.75
        """
        return 1.0 / (self.slope * epoch + self.start) + self.floor


def epochs_to_converge(curve: LossCurve, threshold: float, patience: int = 1) -> int:
    """The epoch at which a job ends: the loss fell by less than this part of it in so many epochs in a row.

    The part by which the loss falls shrinks from epoch to epoch, so the first such epoch is bisected.

    >>> epochs_to_converge(LossCurve(slope=1.0, start=1.0), 0.11, patience=3)
    11
    """
    low, high = 1, MOST_EPOCHS
    while low < high:
        middle = (low + high) // 2
        before = curve.at(middle - 1)
        if before - curve.at(middle) < threshold * before:
            high = middle
        else:
            low = middle + 1
    return min(low + patience - 1, MOST_EPOCHS)


def epoch_end(done: int, work: int, epochs: int) -> int:
    """The work at which the epoch ends that a job is in.

    >>> epoch_end(0, 100, 3), epoch_end(34, 100, 3)
    (34, 67)
    """
    return -(-work * (done * epochs // work + 1) // epochs)


def epochs_in(done: int, work: int, epochs: int) -> int:
    """The whole epochs in this much of the work."""
    return done * epochs // work
