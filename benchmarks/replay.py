"""One policy over a generated trace, in a process of its own: CPU seconds, memory, the yardstick.

python -m benchmarks.replay sjf 1000000 812
"""

from __future__ import annotations

import json
import resource
import sys

from benchmarks.heap import heap_seconds
from dovetail.model.cluster import parse_cluster
from dovetail.policies.registry import POLICIES
from dovetail.sim.run import run
from dovetail.traces import generate


def measured(policy: str, jobs: int, nodes: int) -> dict[str, float]:
    """The replay between two runs of the yardstick."""
    trace = generate("philly", jobs=jobs, gpus=8 * nodes, load=0.95, seed=1)
    cluster = parse_cluster(f"{nodes}x8")
    before = heap_seconds()
    result = run(trace.jobs, cluster, POLICIES.make(policy), name=policy)
    after = heap_seconds()
    yardstick = (before + after) / 2
    return {
        "cpu_seconds": result.cpu_seconds,
        "yardstick": yardstick,
        "ratio": result.cpu_seconds / yardstick,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "finished": result.finished,
        "preemptions": result.preemptions,
        "decisions": result.decisions,
        "mean_jct": sum(result.jct()) / max(result.finished, 1),
    }


if __name__ == "__main__":
    name, jobs, nodes = sys.argv[1:]
    print(json.dumps(measured(name, int(jobs), int(nodes))))
