"""Nodes that a gang needs, and links that a placement uses."""

from __future__ import annotations

from dovetail.model.cluster import Cluster, Links, Node, parse_cluster
from dovetail.model.job import Shape, gang
from dovetail.model.topology import fastest_link, fewest_nodes, slowest_link


def test_links_are_the_nearest_thing_shared() -> None:
    links = Links(nvlink=5, socket=4, node=3, rack=2, cluster=1)
    node = Node("n0", 8, sockets=2, nvlink=2, rack="r0")
    there = Cluster((node, Node("n1", 8, rack="r0"), Node("n2", 8, rack="r1")), links)

    def link(*spots: tuple[int, int]) -> float:
        return slowest_link(there, tuple((n, devices, 1000, 0, 0) for n, devices in spots))

    assert link((0, 0b11)) == 5
    assert link((0, 0b101)) == 4
    assert link((0, 0b10001)) == 3
    assert link((0, 1), (1, 1)) == 2
    assert link((0, 1), (2, 1)) == 1
    assert [fastest_link(there, gang(n)) for n in (2, 4, 8, 16)] == [5, 4, 4, 2]  # n1 has one socket


def test_tasks_of_several_gpus_are_whole_on_a_node_in_the_reference_too() -> None:
    """Four tasks of three GPUs on nodes of four need four nodes, not three."""
    assert fewest_nodes(parse_cluster("4x4"), Shape(tasks=4, each=3)) == 4
