"""Every working policy on the same 2,000 jobs, on equal nodes and on two GPU types, beside one limit.

The load is 0.9 of the cluster. A policy that decides in rounds decides several ten thousand times in these
runs, so the limit is about half a millisecond for each.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.figure import Figure
from dovetail.model.cluster import parse_cluster
from dovetail.policies.catalogue import read_systems
from dovetail.policies.registry import POLICIES
from dovetail.sim.run import run
from dovetail.traces.synthetic import generate

JOBS, LIMIT_SECONDS = 2_000, 20.0
CLUSTERS = ("16x8", "4x8:A100,8x4:V100")


def policies() -> Iterator[Figure]:
    """CPU seconds of a whole run, for each working policy with its default options."""
    names = [name for name, system in read_systems().items() if system.works]
    for spec in CLUSTERS:
        on = parse_cluster(spec)
        jobs = generate("philly", jobs=JOBS, gpus=on.gpus, load=0.9, seed=1).jobs
        for name in names:
            found = run(jobs, on, POLICIES.make(name))
            jct = sum(found.jct()) / len(jobs)
            note = f"mean JCT {jct:,.0f} s, {found.preemptions:,} preemptions"
            yield Figure(f"{name}, {JOBS:,} jobs on {spec}", found.cpu_seconds, LIMIT_SECONDS, "CPU s", note)
