"""A generated trace loads its cluster as asked, measured by a simulation.

The measure: the part of the GPU time in use from the first arrival to the last, under a work-conserving
policy. With gangs that is `priority` with equal priorities: jobs by arrival, preempting, and what does not
fit is passed over. Policies that do not preempt leave GPUs idle behind a wide gang, which is their own doing.
So do nodes with room in the wrong places: a load is asked for a number of GPUs, so each node has one GPU.
"""

from __future__ import annotations

import re
from hashlib import sha256

import numpy as np
import pytest

from dovetail.model.cluster import parse_cluster
from dovetail.model.units import WHOLE
from dovetail.policies.registry import POLICIES
from dovetail.sim.run import run
from dovetail.testing.build import job
from dovetail.traces import GENERATORS, Trace, describe, generate
from dovetail.traces.loads import PLENTY, in_use

SHORTFALL = re.compile(r"the load while jobs arrive is ([\d.]+), not ")


def in_use_of(trace: Trace, cluster: str) -> float:
    until = trace.jobs[-1].arrived_at
    return run(trace.jobs, parse_cluster(cluster), POLICIES.make("priority"), until=until).utilization


def pool(trace: Trace, gpus: int) -> str:
    """Nodes of one GPU, or of many if no gang is wide: that is quicker, and no gang waits for a node."""
    node = 1 if max(each.shape.gpus for each in trace.jobs) > 8 else min(gpus, 64)
    return f"{gpus // node}x{node}"


def shortfall(trace: Trace) -> float | None:
    """The load that the trace says it has, if it says that it is not the one asked for."""
    found = SHORTFALL.search(" ".join(trace.notes))
    return float(found[1]) if found else None


def check(like: str, jobs: int, gpus: int, load: float, seed: int) -> None:
    """Within 10 % of the load asked for, or, with too few jobs for the cluster, of the load that is told."""
    trace = generate(like, jobs, gpus, load, seed)
    told = shortfall(trace)
    asked = sum(each.shape.load for each in trace.jobs) / WHOLE
    if told is not None:
        assert asked < PLENTY * load * gpus, "there are enough jobs"
    assert in_use_of(trace, pool(trace, gpus)) == pytest.approx(told or load, rel=0.1), trace.notes


@pytest.mark.parametrize("like", GENERATORS)
@pytest.mark.parametrize(
    ("jobs", "gpus", "load", "seed"),
    [
        (500, 16, 0.3, 1),
        (500, 16, 0.95, 2),
        (500, 64, 0.6, 1),
        (500, 1_024, 0.9, 1),
        (1_000, 64, 0.9, 1),
        (2_000, 256, 0.3, 3),
    ],
)
def test_the_load_is_in_use_while_jobs_arrive(
    like: str, jobs: int, gpus: int, load: float, seed: int
) -> None:
    check(like, jobs, gpus, load, seed)


@pytest.mark.long
@pytest.mark.parametrize("like", GENERATORS)
@pytest.mark.parametrize("jobs", [500, 2_000, 8_000, 20_000])
@pytest.mark.parametrize("gpus", [16, 64, 256, 1_024])
@pytest.mark.parametrize("load", [0.3, 0.6, 0.95])
def test_the_load_is_in_use_at_every_size(like: str, jobs: int, gpus: int, load: float) -> None:
    for seed in (1, 2) if jobs < 5_000 else (1,):
        check(like, jobs, gpus, load, seed)


def test_one_long_job_does_not_hold_the_load() -> None:
    """As drawn, the jobs use 0.78 of these GPUs and 0.15 of the larger cluster."""
    for gpus, load in ((64, 0.9), (1_024, 0.3)):
        trace = generate("philly", 2_000, gpus, load, seed=0)
        assert "jobs are shortened, to " in trace.notes[1]
        assert in_use_of(trace, f"{gpus // 8}x8") == pytest.approx(load, rel=0.1)


def test_a_load_above_one_fills_the_cluster_and_the_rest_is_the_backlog() -> None:
    trace = generate("philly", 2_000, 64, 1.4, seed=1)
    assert describe(trace, gpus=64).load == pytest.approx(1.4, rel=1e-3), "no work beyond what was asked for"
    assert in_use_of(trace, pool(trace, 64)) == pytest.approx(1.0, rel=0.1)


def test_too_few_jobs_are_told_with_the_number_that_is_needed() -> None:
    trace = generate("philly", 3, 10_000, 0.9, seed=1)
    told = trace.notes[-1]
    assert SHORTFALL.match(told)
    needed = re.search(r"about ([\d,]+) jobs are needed for 10,000 GPUs", told)
    assert needed
    assert shortfall(generate("philly", int(needed[1].replace(",", "")), 10_000, 0.9, seed=1)) is None


def test_a_trace_that_loads_its_cluster_is_left_as_it_was_drawn() -> None:
    """The digest is from before loads were measured."""
    trace = generate("itp", 8_000, 128, 0.95, seed=1)
    assert trace.notes == ("generated: like=itp jobs=8000 gpus=128 load=0.95 seed=1",)
    jobs = [(j.arrived_at, j.work, j.shape.load, j.tenant, j.user) for j in trace.jobs]
    assert sha256(repr(jobs).encode()).hexdigest()[:16] == "d6582349ffb69f58"


def test_the_measure_counts_a_gang_that_waits_as_idle() -> None:
    """One GPU is held for the whole span, so that the gang of two waits and one GPU is idle."""
    arrivals, widths = np.array([0.0, 1.0, 100.0]), np.array([1.0, 2.0, 1.0])
    found = in_use(np, arrivals, widths, np.array([200, 50, 1]), 2)
    jobs = [job("a", seconds=200), job("b", gpus=2, seconds=50, at=1), job("c", seconds=1, at=100)]
    assert found == pytest.approx(in_use_of(Trace("three", jobs), "1x2"), abs=0.02)
    assert found == pytest.approx(0.5, abs=0.02)
