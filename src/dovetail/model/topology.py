"""Facts that follow from the cluster alone: the nodes that a gang needs, the links that a placement uses."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.model.cluster import Cluster, Links
from dovetail.model.grant import Spots, nodes_of
from dovetail.model.job import Shape


def fewest_nodes(cluster: Cluster, shape: Shape) -> int:
    """The number of nodes that the gang needs in the empty cluster."""
    known = cluster.fewest_nodes.get(shape)
    if known is None:
        sizes = sorted(
            (node.gpus for node in cluster.nodes if not shape.types or node.type.name in shape.types),
            reverse=True,
        )
        left, known = shape.tasks, 0
        for size in sizes if shape.each else ():
            if left <= 0:
                break
            left -= size // shape.each
            known += 1
        known = cluster.fewest_nodes[shape] = max(known, 1)
    return known


def fastest_link(cluster: Cluster, shape: Shape) -> float:
    """The slowest link inside the best placement in the empty cluster."""
    links: Links = cluster.links
    if fewest_nodes(cluster, shape) > 1:
        return links.rack
    allowed = [n for n in cluster.nodes if not shape.types or n.type.name in shape.types]
    if any(node.nvlink >= shape.gpus for node in allowed):
        return links.nvlink
    if any(node.gpus // node.sockets >= shape.gpus for node in allowed):
        return links.socket
    return links.node


def slowest_link(cluster: Cluster, spots: Spots) -> float:
    """The slowest link of a ring over these spots."""
    links = cluster.links
    nodes = [cluster.nodes[n] for n in sorted(nodes_of(spots))]
    if len({node.rack for node in nodes}) > 1:
        return links.cluster
    if len(nodes) > 1:
        return links.rack
    node, devices = nodes[0], list(_bits(sum(spot[1] for spot in spots)))
    if len({node.nvlink_of(d) for d in devices}) == 1:
        return links.nvlink
    if len({node.socket_of(d) for d in devices}) == 1:
        return links.socket
    return links.node


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
