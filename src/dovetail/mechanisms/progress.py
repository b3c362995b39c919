"""What a job's epochs tell of how much is left of it."""

from __future__ import annotations

from dovetail.model.view import JobView


def epochs_done(job: JobView, now: int) -> int:
    """Whole epochs behind it; 0 if it reports none.

    Deviation: a real job counts them itself; here they are worked out from its progress against its declared
    duration, so a wrong declaration counts wrong epochs.
    """
    epochs = job.traits.epochs
    return min(epochs, job.done_at(now) * epochs // job.estimate) if epochs and job.estimate else 0


def extrapolated_service(job: JobView, now: int) -> float:
    """GPU-time left if epochs to come take as much as those behind; before the first ends, GPU-time had."""
    service, done = job.service_at(now), epochs_done(job, now)
    return float(service * (job.traits.epochs - done) / done if done else service)
