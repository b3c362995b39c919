"""Jobs and broken parts for the claims of systems that admit by prices."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.model.job import Job
from dovetail.solve.priced_schedules import Floats, Ints
from dovetail.testing.build import Profile, job


def flat(taken: Ints, capacity: Sequence[int], low: float, high: float) -> Floats:
    return np.full(taken.shape, low)


def worth(id: str, utility: int, *, due: float = 1.5, hours: float = 1, **more: Any) -> Job:
    """A job of so many hours on one GPU, which is worth `utility` for each, due at an hour."""
    return job(id, hours=hours, priority=utility, deadline=due * 3600, **more)


def stream(seed: int) -> list[Job]:
    """40 elastic jobs of 1 to 4 GPUs, worth 1, 3 or 12, with deadlines."""
    luck, at, jobs = random.Random(seed), 0.0, list[Job]()
    for number in range(40):
        at += luck.expovariate(1 / 2_400)
        gpus, hours = luck.choice((1, 2, 4)), luck.randint(1, 6)
        jobs.append(
            job(
                f"j{number}",
                gpus=gpus,
                hours=hours,
                at=at,
                priority=luck.choice((1, 3, 12)),
                deadline=at + 3_600 * (1 + hours * luck.uniform(1, 3)),
                least=1,
                most=4,
                profile=Profile(curve={n: n**0.8 for n in range(1, 5)}),
            )
        )
    return jobs
