"""Optimus: workers go where they shorten the predicted time to convergence most.

Peng, Bao, Chen, Wu and Guo, "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters",
EuroSys 2018. A curve fitted to the losses that a job reports gives the epochs until it converges
(mechanisms.estimate.convergence); a fitted model gives the speed of a parameter-server job with more or fewer
workers (mechanisms.estimate.server_speeds). Both together are the time that is left. Every ten minutes all
workers are dealt anew, by what one more takes off that time.

Deviation: the number of parameter servers follows that of the workers (`ServerSpeed.per_worker`), where the
paper deals servers one by one as well. A grant has a number of tasks; helpers stay as they were declared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.mechanisms.allocate.marginal_gain import Gain, can_resize, dealt
from dovetail.mechanisms.allocate.sizes import milli_each, whole_cluster
from dovetail.mechanisms.estimate.convergence import Losses, predicted_epochs, with_reports, work_left
from dovetail.mechanisms.estimate.server_speeds import FittedServerSpeeds, Rates
from dovetail.mechanisms.estimate.speeds import estimated
from dovetail.mechanisms.fair.dominant_share import cluster_total, dominant, requested
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.even_spread import even
from dovetail.mechanisms.place.placement import Placement
from dovetail.mechanisms.queue.reviews import review_by
from dovetail.mechanisms.resize.resizing import enact_sizes
from dovetail.mechanisms.share.sharing import exclusive
from dovetail.model.estimate import task_range
from dovetail.model.units import micros
from dovetail.model.view import JobView, Order, Plan, View

EARLY_POINTS = 5  # a job that has reported fewer losses is in its early phase


def optimus(
    *, interval: float = 600.0, early: float = 0.95, threshold: float = 0.01, patience: int = 3
) -> Optimus:
    """Every `interval` seconds each job gets one worker, then the next ones go where they save most time.

    Time is what is left until the loss falls by less than the part `threshold` in `patience` epochs in a row,
    predicted from the losses that were reported; for a job that reports none, its declared duration. What it
    falls by is counted per unit of the worker's dominant resource. The gains of a job that has reported
    fewer than five losses are multiplied by `early`.
    """
    if interval <= 0:
        raise ValueError(f"interval is a time above 0 s, not {interval}")
    if not 0 < early <= 1 or not 0 < threshold < 1:
        raise ValueError(f"early is above 0 and up to 1, threshold below 1, not {early} and {threshold}")
    if patience < 1:
        raise ValueError(f"patience is a number of epochs, at least 1, not {patience}")
    return Optimus(quantum=micros(interval), early=early, threshold=threshold, patience=patience)


@dataclass(frozen=True, slots=True)
class Memory:
    """The losses that active jobs have reported, and the rates at which they ran."""

    at: int = -1
    losses: Losses = field(default_factory=dict)
    rates: Rates = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimus:
    """Predicts, deals and places."""

    quantum: int
    early: float
    threshold: float
    patience: int
    place: Placement = even
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None

    def decide(self, view: View) -> Plan:
        last = view.memory if isinstance(view.memory, Memory) else Memory()
        jobs = [*view.queue, *view.running.values()]
        losses = with_reports(last.losses, jobs)
        speeds = FittedServerSpeeds(view.estimator, last.rates)
        if view.now > last.at:  # jobs that it has just started or resized have not been measured
            speeds = speeds.observed(view)
        plan = view.draft()
        plan.memory = Memory(view.now, losses, speeds.rates)
        if jobs:
            gain = self.gain(estimated(view, speeds), losses)
            sizes = sizes_for(view, jobs, gain)
            enact_sizes(view, plan, sizes, smallest_first(sizes), self.place, exclusive)
            if any(can_resize(job) for job in jobs):
                review_by(plan, (view.now // self.quantum + 1) * self.quantum)
        return plan

    def gain(self, view: View, losses: Losses) -> Gain:
        """What one more task takes off the time that is left, per unit of its dominant resource."""
        total, table = cluster_total(view.cluster), view.table()
        left = self.remaining(view, losses)
        curves = {job.id: curve for job, curve in zip(table.jobs, table.speeds.tolist(), strict=True)}

        def gain(job: JobView, tasks: int) -> float:
            curve, work = curves[job.id], left[job.id]
            if curve[tasks] <= 0 or curve[tasks - 1] <= 0:
                return 0.0
            drop: float = work / curve[tasks - 1] - work / curve[tasks]
            weight = self.early if is_early(job, losses) else 1.0
            return weight * drop / dominant(requested(job.shape.of(1)), total)

        return gain

    def remaining(self, view: View, losses: Losses) -> Mapping[str, float]:
        """The work left of each job: predicted if it can be, else declared."""
        table, found = view.table(), dict[str, float]()
        for job, declared in zip(table.jobs, table.remaining.tolist(), strict=True):
            points = losses.get(job.id, ())
            epochs = predicted_epochs(points, self.threshold, self.patience)
            found[job.id] = declared if epochs is None else work_left(job, view.now, points, epochs)
        return found


def is_early(job: JobView, losses: Losses) -> bool:
    """Whether the predictions of a job that reports its losses are still rough."""
    points = len(losses.get(job.id, ()))
    return points < EARLY_POINTS and (points > 0 or job.traits.epochs > 0)


def sizes_for(view: View, jobs: Sequence[JobView], gain: Gain) -> dict[str, int]:
    """Every job its least in order of arrival, while that fits; then one task after the other by gain."""
    left, ordered = whole_cluster(view), sorted(jobs, key=_fixed_first)
    sizes = dict.fromkeys((job.id for job in ordered), 0)
    for job in ordered:
        tasks = task_range(job.shape, job.traits)[0] if can_resize(job) else job.shape.tasks
        if left.fits(job, tasks):
            left.take(job, tasks)
            sizes[job.id] = tasks
    return sizes | dealt([job for job in ordered if sizes[job.id]], sizes, left, gain)


def _fixed_first(job: JobView) -> tuple[bool, int, int]:
    """Running jobs that cannot be preempted, then the others by arrival."""
    return job.spots is None or job.traits.preemptible, job.arrived_at, job.seq


def smallest_first(sizes: Mapping[str, int]) -> Order:
    """The order of placement: the job with the fewest GPUs finds its nodes first."""

    def key(job: JobView, now: int) -> tuple[int, int, int]:
        return sizes.get(job.id, job.shape.tasks) * milli_each(job), job.arrived_at, job.seq

    return Order(key=key)
