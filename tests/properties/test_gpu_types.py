"""A gang runs on GPUs of one type, on random small clusters of two types and whatever happens to their nodes.

The slowest GPU sets the pace of a gang, so a gang on two types wastes the faster one. `k8s-default` knows
pods and no gangs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.core import Core, Step
from dovetail.model.cluster import KNOWN_TYPES, Cluster
from dovetail.model.grant import nodes_of
from dovetail.policies.registry import POLICIES
from dovetail.testing.invariants import watched
from dovetail.testing.strategies import Scene, clusters, incidents, traces
from dovetail.testing.suite import searched

TYPES = st.sampled_from((KNOWN_TYPES["V100"], KNOWN_TYPES["A100"]))


@st.composite
def mixed_scenes(draw: st.DrawFn) -> Scene:
    """Two to four nodes, the first of one type and the second of the other; jobs that fit one type."""
    drawn = draw(clusters(typed=False, bounded=True).filter(lambda cluster: len(cluster.nodes) > 1))
    kinds = [KNOWN_TYPES["V100"], KNOWN_TYPES["A100"], draw(TYPES), draw(TYPES)]
    nodes = tuple(replace(node, type=kind) for node, kind in zip(drawn.nodes, kinds, strict=False))
    cluster = Cluster(nodes, tenants=drawn.tenants)
    return Scene(cluster, draw(traces(cluster, most=12)), draw(incidents(cluster)))


def gangs_on_two_types(scene: Scene, policy: str, **options: Any) -> set[str]:
    found: set[str] = set()

    def look(core: Core, step: Step) -> None:
        for job in core.running.values():
            if len({core.cluster.nodes[node].type for node in nodes_of(job.spots or ())}) > 1:
                found.add(job.id)

    made = POLICIES.make(policy, **options)
    watched(made, scene.cluster, scene.jobs, incidents=scene.incidents, check=False, on_step=look)
    return found


@pytest.mark.parametrize("policy", [name for name in POLICIES.names() if name != "k8s-default"])
@given(scene=mixed_scenes())
@searched(15)
def test_a_gang_runs_on_one_gpu_type(policy: str, scene: Scene) -> None:
    assert gangs_on_two_types(scene, policy) == set()
