"""Run a core forward from where it is: what would happen if all estimates were true and nothing else came.

This is how a plane says when a job will start: the policy that runs the cluster decides, in a simulated world
that begins with what runs now. A job that has outlived its estimate is taken to need as long again.
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

LETTING_GO = 30 * SECOND  # how long a job that was told to stop may still take


def forward(core: Core, more: Sequence[Job] = ()) -> Iterator[Step]:
    """The steps to come of a core that nobody else uses."""
    world = World(core.cluster)
    for job in list(core.jobs.values()):
        world.adopt(_spec(job, core.now), job, core.now, started=job.awaiting is None)
    for job_id in core.stopping():
        known = core.jobs.get(job_id)
        epoch, kept = (known.epoch, known.done) if known is not None else (0, 0)
        heappush(world.heap, (core.now + LETTING_GO, STOPPED, job_id, epoch, kept))
    if core.moved or core.arrived:  # a core that was moved elsewhere has to be asked before anything happens
        heappush(world.heap, (core.now, RESIZED, "", 0, None))
    return simulate(core, world, more)


def _spec(job: ActiveJob, now: int) -> Job:
    """Its work as far as one can tell."""
    spec = job.spec
    done = job.done_at(now)
    left = spec.estimate - done
    if left <= 0:
        left = max(done, SECOND)
    return replace(spec, work=done + left, fails_after=None)
