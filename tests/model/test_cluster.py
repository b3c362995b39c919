"""Clusters as described, and descriptions that describe none."""

from __future__ import annotations

import pytest

from dovetail.model.cluster import Cluster, GpuType, Node, Tenant, parse_cluster, with_tenants
from dovetail.model.errors import ClusterError


def test_nodes_are_numbered_through() -> None:
    made = parse_cluster("2x8:A100, 1x4:V100")
    assert [(n.name, n.gpus, n.type.name) for n in made.nodes] == [
        ("n0", 8, "A100"),
        ("n1", 8, "A100"),
        ("n2", 4, "V100"),
    ]
    assert made.gpus == 20
    assert [kind.name for kind in made.types] == ["A100", "V100"]
    assert made.number["n2"] == 2


def test_known_types_bring_their_memory_and_others_are_taken_as_they_come() -> None:
    a100, mine = parse_cluster("1x1:A100,1x1:MyChip").types
    assert a100.sliceable
    assert mine == GpuType("MyChip")


@pytest.mark.parametrize("text", ["", "8", "8x", "x8", "0x8", "8x8:", "-1x8", "8x8,,8x8", "8 x 8", "8x8;8x8"])
def test_what_is_no_cluster_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ClusterError, match="describes no cluster; write 8x8"):
        parse_cluster(text)


def test_a_node_has_at_most_64_gpus() -> None:
    assert parse_cluster("1x64").gpus == 64
    with pytest.raises(ClusterError, match="0 to 64"):
        parse_cluster("1x65")


def test_a_cluster_has_nodes_with_names_of_their_own() -> None:
    with pytest.raises(ClusterError, match="at least one node"):
        Cluster(())
    with pytest.raises(ClusterError, match="two nodes are named 'a'"):
        Cluster((Node("a", 1), Node("b", 1), Node("a", 1)))


def test_tenants_stand_in_a_tree() -> None:
    teams = [Tenant("lab"), Tenant("team", "lab"), Tenant("person", "team")]
    made = with_tenants(parse_cluster("1x1"), teams)
    assert made.line("person") == ("person", "team", "lab")
    assert made.line("stranger") == ("stranger",)


@pytest.mark.parametrize("parents", [{"a": "a"}, {"a": "b", "b": "a"}, {"c": "a", "a": "b", "b": "a"}])
def test_nobody_is_its_own_ancestor(parents: dict[str, str]) -> None:
    with pytest.raises(ClusterError, match="its own ancestor"):
        with_tenants(parse_cluster("1x1"), [Tenant(name, parent) for name, parent in parents.items()])


def test_devices_have_sockets_and_nvlink_groups() -> None:
    node = Node("n", 8, sockets=2, nvlink=4)
    assert [node.socket_of(d) for d in range(8)] == [0] * 4 + [1] * 4
    assert [node.nvlink_of(d) for d in range(8)] == [0] * 4 + [1] * 4
    lone = Node("n", 2)
    assert lone.nvlink_of(0) != lone.nvlink_of(1)
