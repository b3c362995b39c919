"""Simulate a core from its present state: what happens if all estimates are right and no other job arrives.

The control plane predicts start times with this: the policy of the cluster decides, in a simulated world that
begins with the jobs that run now. A job that has outlived its estimate is assumed to need as long again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappush

from dovetail.core.active import ActiveJob
from dovetail.core.core import Core, Step
from dovetail.model.event import RESIZED, STOPPED
from dovetail.model.job import Job
from dovetail.model.units import SECOND
from dovetail.sim.simulate import simulate
from dovetail.sim.world import World

LETTING_GO = 30 * SECOND  # how long a job that was told to stop or to shrink may still take


def forward(core: Core, more: Sequence[Job] = ()) -> Iterator[Step]:
    """The steps to come. The core is changed, so pass one that nothing else uses."""
    world = World(core.cluster)
    for job in list(core.jobs.values()):
        on = job.now_on if job.started else None
        world.adopt(_spec(job, core.now), job, core.now, kept=job.done, on=on)
    for job_id in core.stopping.held:
        known = core.jobs.get(job_id)
        epoch, kept = (known.epoch, known.done) if known is not None else (0, 0)
        kind = RESIZED if known is not None and known.started else STOPPED  # a job that shrinks goes on
        heappush(world.heap, (core.now + LETTING_GO, kind, job_id, epoch, None if kind == RESIZED else kept))
    if core.changed or core.arrived:  # a copied core may owe a decision before the first event
        heappush(world.heap, (core.now, RESIZED, "", 0, None))
    return simulate(core, world, more)


def _spec(job: ActiveJob, now: int) -> Job:
    """The job with its estimated work in place of its true work."""
    spec = job.spec
    done = job.done_at(now)
    left = spec.estimate - done
    if left <= 0:
        left = max(done, SECOND)
    return replace(spec, work=done + left, fails_after=None)
