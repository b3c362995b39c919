"""The work that is left until training converges, predicted from the losses that a job has reported.

Peng et al., "Optimus", EuroSys 2018, section 3.1. A curve is fitted to the losses (solve.loss_fit). The job
ends at the epoch after which the loss has fallen by less than a threshold, several epochs in a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from dovetail.model.loss import LossCurve, LossPoint, epochs_to_converge
from dovetail.model.view import JobView
from dovetail.solve.loss_fit import fitted_loss

LEAST_POINTS = 3  # a curve of three figures
MOST_POINTS = 64  # beyond this every second one is dropped
Losses = Mapping[str, tuple[LossPoint, ...]]  # by job


def with_reports(known: Losses, jobs: Iterable[JobView]) -> Losses:
    """The points of these jobs, with what they reported last."""
    found = dict[str, tuple[LossPoint, ...]]()
    for job in jobs:
        points, last = known.get(job.id, ()), job.loss
        if last is not None and (not points or last.epoch > points[-1].epoch):
            points = (*points, last)
            if len(points) > MOST_POINTS:
                points = points[::2]
        if points:
            found[job.id] = points
    return found


def predicted_epochs(points: tuple[LossPoint, ...], threshold: float, patience: int) -> int | None:
    """The epochs of the whole training; None while there are too few points."""
    if len(points) < LEAST_POINTS:
        return None
    return _predicted(tuple((point.epoch, point.loss) for point in points), threshold, patience)


def work_left(job: JobView, now: int, points: tuple[LossPoint, ...], epochs: int) -> float:
    """The work of the epochs that are left, at least of one, less what is done since the last."""
    epoch, done = points[-1].epoch, points[-1].done
    each = done / epoch
    since = min(max(job.done_at(now) - done, 0), each / 2)
    return max(max(epochs - epoch, 1) * each - since, 1.0)


@lru_cache(maxsize=4096)
def _predicted(points: tuple[tuple[int, float], ...], threshold: float, patience: int) -> int:
    slope, start, floor = fitted_loss([epoch for epoch, _ in points], [loss for _, loss in points])
    return epochs_to_converge(LossCurve(slope, start, floor), threshold, patience)
