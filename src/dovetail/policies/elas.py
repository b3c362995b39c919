"""E-LAS: attained service, combined with the progress that a job reports (Sultana et al., ICPP 2020)."""

from __future__ import annotations

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.placement import Placement
from dovetail.mechanisms.preempt.full_ranking import by_fit, ranked
from dovetail.mechanisms.queue.discipline import Discipline
from dovetail.model.units import micros
from dovetail.model.view import JobView, Plan, Policy, View
from dovetail.policies.composed import Composed


def e_las(*, period: float = 60.0, hysteresis: float = 0.1) -> Policy:
    """Least remaining service first, as far as the epochs of a job show; its duration need not be known.

    A job with s GPU-seconds of service and a fraction r of its epochs done ranks by s (1 - r) / r; before its
    first epoch ends, by s. A waiting job preempts a running one if it ranks lower by more than `hysteresis`.
    Decisions are made every `period` seconds.

    The key is reconstructed: the paper says that both quantities are combined.
    """
    quantum = micros(period)
    return Composed(order=arrival, serve=least_remaining_service(hysteresis, quantum), quantum=quantum)


def least_remaining_service(hysteresis: float, period: int) -> Discipline:
    """Ranks all active jobs in every period."""

    def serve(view: View, place: Placement) -> Plan:
        now = view.now

        def rank(job: JobView) -> float:
            # A running job counts as nearer to its end, so that a smaller difference preempts no job.
            factor = 1.0 if job.spots is None else 1.0 - hysteresis
            return extrapolated_service(job, now) * factor

        plan = by_fit(view, place, ranked(view, rank))
        if len(view.queue):
            plan.review_at = now + period  # ranks change as jobs run
        return plan

    return serve


def epochs_done(job: JobView, now: int) -> int:
    """The whole epochs that a job has done; 0 if it reports none.

    Deviation: a real job counts its epochs itself; here they are computed from its progress and its declared
    duration, so a wrong declaration gives wrong epochs.
    """
    epochs = job.traits.epochs
    return min(epochs, job.done_at(now) * epochs // job.estimate) if epochs and job.estimate else 0


def extrapolated_service(job: JobView, now: int) -> float:
    """Remaining GPU-time if epochs take as much as those done; before the first ends, GPU-time so far."""
    service, done = job.service_at(now), epochs_done(job, now)
    return float(service * (job.traits.epochs - done) / done if done else service)
