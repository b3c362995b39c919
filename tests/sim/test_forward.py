"""A core that is simulated from the middle of a run ends as the run itself."""

from __future__ import annotations

import pytest

from dovetail.core.core import Core, Step
from dovetail.model.action import Start
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
