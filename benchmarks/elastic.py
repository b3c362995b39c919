"""Elastic policies: CPU time of one decision over many jobs, all of them active."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.figure import Figure
from dovetail.core.core import Core
from dovetail.model.cluster import parse_cluster
from dovetail.model.event import FINISHED, SUBMITTED
from dovetail.model.goodput import Goodput, StepTime
from dovetail.model.job import Job, Profile, Traits, gang
from dovetail.model.units import MINUTE, SECOND
from dovetail.policies.registry import POLICIES
from dovetail.solve.multiple_choice import Choice, best_choice
from dovetail.solve.reserved_shares import Request, profile, progressive_filling

JOBS, CLUSTER = 1_000, "128x8"
AFS_LIMIT_MS = 50.0
ADAPTIVE_JOBS, ADAPTIVE_CLUSTER = 160, "8x8"
POLLUX_LIMIT_MS = 100.0
ADMISSION_LIMIT_MS = 20.0
ELASTICFLOW_LIMIT_MS = 100.0
SIA_JOBS, SIA_CLUSTER = 640, "80x4:T4,48x8:V100,40x8:A100"
SIA_LIMIT_MS = 50.0
SIA_GAP = 0.1  # percent of the objective


def elastic() -> Iterator[Figure]:
    """AFS, Pollux, ElasticFlow and Sia."""
    yield from afs()
    yield from pollux()
    yield from elasticflow()
    yield from sia()


def pollux() -> Iterator[Figure]:
    """Pollux: the round after one of the jobs has ended, the mean of several; measured 20 ms."""
    luck, jobs = random.Random(1), list[Job]()
    for number in range(ADAPTIVE_JOBS):
        step = StepTime(
            luck.uniform(0.02, 0.1),
            luck.uniform(0.0005, 0.002),
            luck.uniform(0.01, 0.05),
            0.001,
            luck.uniform(0.03, 0.2),
            0.003,
            luck.uniform(1, 5),
        )
        noise = ((1, luck.uniform(50, 500)), (1, luck.uniform(500, 5_000)))
        traits = Traits(
            least=1, most=64, profile=Profile(goodput=Goodput({"": step}, 128, 8_192, 256, noise))
        )
        seconds = round(60 + luck.expovariate(1 / 7_200)) * SECOND
        jobs.append(Job(f"j{number}", 0, gang(16), seconds, seconds, traits=traits))
    core = Core(parse_cluster(ADAPTIVE_CLUSTER), POLICIES.make("pollux"))
    core.handle(0, [(0, SUBMITTED, job.id, 0, job) for job in jobs])
    began = time.process_time()
    for minute in range(1, 11):
        now, name = minute * MINUTE, next(iter(core.running))
        core.handle(now, [(now, FINISHED, name, core.jobs[name].epoch, None)])
    took = 1_000 * (time.process_time() - began) / 10
    note = f"{len(core.running):,} jobs on {core.cluster.gpus - core.room.free_gpus:,} GPUs"
    name = f"pollux, a round of {ADAPTIVE_JOBS:,} jobs on {ADAPTIVE_CLUSTER}"
    yield Figure(name, took, POLLUX_LIMIT_MS, "CPU ms", note)


def sia() -> Iterator[Figure]:
    """Sia: the round after one of the jobs has ended, the median of several once no speed is new.

    And how far its choices are from the best, at most, by the bound that comes with each.
    """
    luck, jobs = random.Random(1), list[Job]()
    for number in range(SIA_JOBS):
        power, gain = luck.uniform(0.5, 0.95), luck.uniform(0.3, 1.2)
        traits = Traits(
            least=1,
            most=16,
            profile=Profile(
                speeds={"T4": 1.0, "V100": 2.0**gain, "A100": 4.0**gain},
                curve={n: n**power for n in range(1, 17)},
            ),
        )
        seconds = round(36_000 + luck.expovariate(1 / 7_200)) * SECOND
        jobs.append(Job(f"j{number}", 0, gang(1), seconds, seconds, traits=traits))
    gaps: list[float] = []

    def watched(*args: Any, **named: Any) -> Choice:
        found = best_choice(*args, **named)
        gaps.append(100 * found.gap)
        return found

    with patch("dovetail.policies.sia.best_choice", watched):
        core = Core(parse_cluster(SIA_CLUSTER), POLICIES.make("sia"))
        core.handle(0, [(0, SUBMITTED, job.id, 0, job) for job in jobs])
        took = []
        for minute in range(1, 31):
            now, name = minute * MINUTE, next(iter(core.running))
            began = time.process_time()
            core.handle(now, [(now, FINISHED, name, core.jobs[name].epoch, None)])
            took.append(1_000 * (time.process_time() - began))
    note = f"{len(core.running):,} jobs on {core.cluster.gpus - core.room.free_gpus:,} GPUs"
    name = f"sia, a round of {SIA_JOBS:,} jobs on {SIA_CLUSTER}"
    yield Figure(name, median(took[10:]), SIA_LIMIT_MS, "CPU ms", note)
    yield Figure(f"{name}: from the best, at most", max(gaps), SIA_GAP, "%", f"{len(gaps)} rounds")


def afs() -> Iterator[Figure]:
    """AFS: the decision after one of a thousand jobs has ended, the best of several."""
    luck, jobs = random.Random(1), list[Job]()
    for number in range(JOBS):
        power = luck.uniform(0.4, 0.95)
        curve = {n: n**power for n in range(1, 17)}
        seconds = round(60 + luck.expovariate(1 / 1_800)) * SECOND
        traits = Traits(least=1, most=16, profile=Profile(curve=curve))
        jobs.append(Job(f"j{number}", 0, gang(luck.choice((1, 2, 4, 8))), seconds, seconds, traits=traits))
    core = Core(parse_cluster(CLUSTER), POLICIES.make("afs"))
    core.handle(0, [(0, SUBMITTED, job.id, 0, job) for job in jobs])
    took = []
    for number, name in enumerate(list(core.running)[:20], start=1):
        began = time.process_time()
        core.handle(number * SECOND, [(number * SECOND, FINISHED, name, core.jobs[name].epoch, None)])
        took.append(1_000 * (time.process_time() - began))
    note = f"{len(core.running):,} jobs on {core.cluster.gpus - core.room.free_gpus:,} GPUs"
    yield Figure(f"afs, a decision over {JOBS:,} jobs on {CLUSTER}", min(took), AFS_LIMIT_MS, "CPU ms", note)


def elasticflow() -> Iterator[Figure]:
    """ElasticFlow: a job with a deadline beside a thousand accepted ones, more than there is room for now.

    First the filling of all shares alone, which is the most that an admission may need; then the decision as
    a whole, with the sizes of all jobs.
    """
    luck = random.Random(1)
    kinds = []
    for _ in range(20):
        power = luck.uniform(0.4, 0.95)
        kinds.append(Traits(least=1, most=16, profile=Profile(curve={n: n**power for n in range(1, 17)})))

    def job(number: int) -> Job:
        seconds = round(600 + luck.expovariate(1 / 7_200)) * SECOND
        due = round(seconds * luck.uniform(0.5, 3.0))
        return Job(f"j{number}", 0, gang(1), seconds, seconds, deadline=due, traits=luck.choice(kinds))

    core = Core(parse_cluster(CLUSTER), POLICIES.make("elasticflow"))
    jobs = [job(number) for number in range(JOBS)]
    core.handle(0, [(0, SUBMITTED, each.id, 0, each) for each in jobs])
    requests = [_request(each) for each in jobs]
    filled = []
    for _ in range(10):
        began = time.process_time()
        shares = progressive_filling(profile(0, core.cluster.gpus, ()), requests)
        filled.append(1_000 * (time.process_time() - began))
    later = sum(share is not None and (len(share) > 1 or share[0].start > 0) for share in shares)
    note = f"{later:,} shares change over time, {shares.count(None):,} jobs have none"
    yield Figure(f"elasticflow, filling {JOBS:,} shares", min(filled), ADMISSION_LIMIT_MS, "CPU ms", note)
    took = []
    for number in range(JOBS, JOBS + 20):
        new = job(number)
        began = time.process_time()
        core.handle(0, [(0, SUBMITTED, new.id, 0, new)])
        took.append(1_000 * (time.process_time() - began))
    name = f"elasticflow, a decision with an admission, {JOBS:,} jobs on {CLUSTER}"
    note = f"{len(core.jobs):,} accepted, {len(core.running):,} running"
    yield Figure(name, min(took), ELASTICFLOW_LIMIT_MS, "CPU ms", note)


def _request(job: Job) -> Request:
    assert job.traits.profile is not None
    assert job.deadline is not None
    levels = (1, 2, 4, 8, 16)
    return Request(job.work, job.deadline, levels, [job.traits.profile.curve[n] for n in levels])
