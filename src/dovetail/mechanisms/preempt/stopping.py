"""Which running jobs may be stopped without losing what they did since their start."""

from __future__ import annotations

from dovetail.model.view import JobView


def may_be_stopped(job: JobView) -> bool:
    """Whether a job can get fewer GPUs later, or none: it is preemptible, and saves its work then."""
    return job.traits.preemptible and job.traits.checkpoint.on_stop


def must_keep_running(job: JobView, now: int) -> bool:
    """Whether a running job must not be stopped now: it is not preemptible, or this start would be lost.

    A job that saves no checkpoint when it is stopped runs until it has saved one by itself; with rounds
    shorter than that it would never advance.
    """
    if job.spots is None:
        return False
    traits = job.traits
    checkpoint = traits.checkpoint
    if checkpoint.suspends:  # a resumed job has work to lose before one that was restored would have
        return not traits.preemptible or now <= job.live_at
    done = (now - job.started_at - checkpoint.restore) * job.rate
    if not traits.preemptible or done <= 0:
        return True
    return not checkpoint.on_stop and (checkpoint.every is None or done < checkpoint.every)
