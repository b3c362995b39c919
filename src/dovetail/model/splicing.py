"""Splicing: a job runs on fewer devices than it has workers, which take turns on them.

The number of workers, the world size, stays, so that the job need not be elastic by itself: its script sees
no change. Each step waits for the device with the most workers. Switching between them costs a part of the
speed (`Traits.splice`). The true speed and the estimate both ask this module.

Shukla et al., "Singularity: Planet-Scale, Preemptive and Elastic Scheduling of AI Workloads", 2022.
"""

from __future__ import annotations

from dovetail.model.job import Shape, Traits


def workers(shape: Shape, traits: Traits) -> int:
    """The world size of a spliced job: the most tasks that it may have devices for."""
    return max(shape.tasks, traits.most or 0)


def spliced(shape: Shape, traits: Traits, tasks: int) -> float:
    """The speed with devices for so many tasks, against that with what the job asked for.

    >>> eight = Traits(splice=0.02)
    >>> spliced(Shape(8), eight, 4), spliced(Shape(8), eight, 3)
    (0.49, 0.32666666666666666)
    >>> spliced(Shape(4), Traits(splice=0.0, most=8), 8)
    2.0
    """
    if tasks == shape.tasks:
        return 1.0
    world = workers(shape, traits)
    return _alone(world, tasks, traits.splice or 0.0) / _alone(world, shape.tasks, traits.splice or 0.0)


def _alone(world: int, tasks: int, cost: float) -> float:
    """The speed against that of one worker on each device."""
    turns = -(-world // tasks)
    return (1.0 - cost) / turns if turns > 1 else 1.0
