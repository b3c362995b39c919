"""A core that is simulated from the middle of a run ends as the run itself."""

from __future__ import annotations

import pytest

from dovetail.core.core import Core, Step
from dovetail.model.action import Start
from dovetail.model.job import Checkpoint, Traits
from dovetail.policies.registry import POLICIES
from dovetail.sim.forward import forward
from dovetail.sim.run import run
from dovetail.testing.build import cluster, job
from dovetail.testing.invariants import FINISHES, waived

JOBS = [job(f"j{i}", gpus=1 + i % 4, minutes=7 + 13 * i % 50, at=30 * i, priority=i % 3) for i in range(25)]


@pytest.mark.parametrize("name", POLICIES.names())
def test_what_is_there_already_goes_on(name: str) -> None:
    """From a moment at which some jobs run, some wait and some were stopped, to the end of all jobs."""
    forks: list[Core] = []

    def keep(core: Core, step: Step) -> None:
        if step.number in (20, 30, 40):
            forks.append(core.fork())

    run(JOBS, cluster(nodes=2, gpus=4), POLICIES.make(name), on_step=keep)
    assert forks
    for core in forks:
        there = set(core.jobs)
        for _ in forward(core):
            pass
        if FINISHES not in waived(POLICIES.make(name), name):
            assert not there & set(core.jobs)


def test_it_takes_estimates_for_true() -> None:
    """The waiting job starts when the running job should end by its estimate, whatever its true work."""
    forks: list[Core] = []
    jobs = [job("runs", gpus=4, hours=9, estimate=3_600), job("waits", gpus=4, hours=1, at=60)]

    def keep(core: Core, step: Step) -> None:
        if step.now == 60_000_000:
            forks.append(core.fork())

    run(jobs, cluster(nodes=1, gpus=4), POLICIES.make("fifo"), on_step=keep)
    starts = {a.job: step.now for step in forward(forks[0]) for a in step.actions if isinstance(a, Start)}
    assert starts == {"waits": 3_600_000_000}


def test_a_job_that_saves_nothing_begins_anew_after_a_preemption() -> None:
    """Work that was done before the fork is lost too: `low` needs its full hour again."""
    forks: list[Core] = []
    low = job("low", gpus=4, hours=1, traits=Traits(checkpoint=Checkpoint(on_stop=False)))
    high = job("high", gpus=4, hours=1, priority=9, at=1_200)
    jobs = [low, job("other", gpus=4, hours=1, at=60), job("tick", gpus=1, hours=1, at=600)]

    def keep(core: Core, step: Step) -> None:
        if step.now == 600_000_000:
            forks.append(core.fork())

    run(jobs, cluster(nodes=1, gpus=4), POLICIES.make("priority"), on_step=keep)
    starts = [
        (action.job, step.now // 1_000_000)
        for step in forward(forks[0], [high])
        for action in step.actions
        if isinstance(action, Start)
    ]
    assert starts[:3] == [("high", 1_200), ("low", 4_800), ("other", 8_400)]
