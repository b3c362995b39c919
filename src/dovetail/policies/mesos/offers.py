"""Offers: free resources that are offered to one framework at a time, which accepts what it can use.

An offer is the devices, milli-cores and bytes that are free on some nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.mechanisms.place.pods import by_type, suits
from dovetail.model.cluster import Cluster
from dovetail.model.grant import EMPTY, Spot, Spots, slices_of, slots_for
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import Room

Offer = Mapping[int, tuple[int, int, int]]


def free_on(room: Room, nodes: Iterable[int], *, gpus_only: bool) -> Offer:
    """The free resources of these nodes; `gpus_only` if no job can use CPU alone."""
    return {
        node: (room.free_on(node), room.free_cpus(node), room.free_memory(node))
        for node in nodes
        if room.is_open(node) and (room.free_on(node) or not gpus_only)
    }


def as_spots(offer: Offer) -> Spots:
    """Spots that hold the whole offer."""
    return tuple((node, devices, WHOLE, cpus, memory) for node, (devices, cpus, memory) in offer.items())


def as_offer(spots: Spots) -> Offer:
    """The offer that such spots hold."""
    return {node: (devices, cpus, memory) for node, devices, _, cpus, memory in spots}


def less(offer: Offer, spots: Spots) -> Offer:
    """What is left of an offer once these spots are taken."""
    left = dict(offer)
    for node, devices, _, cpus, memory in spots:
        was = left[node]
        left[node] = (was[0] & ~devices, was[1] - cpus, was[2] - memory)
    return left


def contains(larger: Offer, smaller: Offer) -> bool:
    """Whether the smaller offer has no more of anything than the larger."""
    for node, (devices, cpus, memory) in smaller.items():
        most = larger.get(node)
        if most is None or devices.bit_count() > most[0].bit_count() or cpus > most[1] or memory > most[2]:
            return False
    return True


def fewest_nodes(cluster: Cluster, shape: Shape) -> int:
    """How many nodes a job needs in an empty cluster, by GPUs, CPU and memory."""
    empty = {i: ((1 << node.gpus) - 1, node.cpus, node.memory) for i, node in enumerate(cluster.nodes)}
    spots = _filled(cluster, shape, empty)
    return _nodes_in(spots) if spots else len(cluster.nodes)


def _nodes_in(spots: Spots) -> int:
    return len({spot[0] for spot in spots})


def taken(cluster: Cluster, shape: Shape, offer: Offer, at_most: int) -> Spots | None:
    """Spots for a job on at most `at_most` nodes of an offer, best fit; None if the offer does not hold it.

    Devices are offered whole, so a job with parts or slices of devices gets devices of its own.
    """
    spots = _placed(cluster, shape, offer, at_most)
    if spots is None or not shape.roles:
        return spots
    left = less(offer, spots)
    helpers: list[Spot] = []
    for role in shape.roles:
        for _ in range(role.count):
            fits = [(-c, n) for n, (_, c, m) in left.items() if c >= role.cpus and m >= role.memory]
            if not fits:
                return None
            helper = (min(fits)[1], 0, 0, role.cpus, role.memory)
            left = less(left, (helper,))
            helpers.append(helper)
    return (*spots, *helpers)


def _placed(cluster: Cluster, shape: Shape, offer: Offer, at_most: int) -> Spots | None:
    counts = [(_count(cluster, shape, node, offer), offer[node][0].bit_count(), node) for node in offer]
    whole = [(free, node) for count, free, node in counts if count >= shape.tasks]
    if whole:
        node = min(whole)[1]
        return _spots(shape, node, shape.tasks, offer)
    spots = _filled(cluster, shape, offer)
    return spots if spots is not None and _nodes_in(spots) <= at_most else None


def _filled(cluster: Cluster, shape: Shape, offer: Offer) -> Spots | None:
    for one_type in by_type(cluster, shape):
        nodes = sorted((-_count(cluster, one_type, node, offer), node) for node in offer)
        left = shape.tasks
        spots: list[Spot] = []
        for negative, node in nodes:
            count = min(-negative, left)
            if count > 0:
                spots += _spots(shape, node, count, offer)
                left -= count
        if not left:
            return tuple(spots)
    return None


def _count(cluster: Cluster, shape: Shape, node: int, offer: Offer) -> int:
    devices, cpus, memory = offer[node]
    if not suits(cluster, shape, node):
        return 0
    pieces = devices.bit_count()
    if shape.slice:
        pieces *= slices_of(shape.slice) if cluster.nodes[node].type.sliceable else 0
    count = pieces // shape.each if shape.each else shape.tasks
    if shape.cpus:
        count = min(count, cpus // shape.cpus)
    if shape.memory:
        count = min(count, memory // shape.memory)
    return min(count, shape.tasks)


def _spots(shape: Shape, node: int, count: int, offer: Offer) -> Spots:
    devices, pieces = offer[node][0], count * shape.each
    cpus, memory = count * shape.cpus, count * shape.memory
    if shape.slice:
        first, *more = _slices(shape.slice, node, devices, pieces)
        return ((*first[:3], cpus, memory), *more)
    picked = 0
    for _ in range(pieces):
        picked |= devices & -devices
        devices &= devices - 1
    return ((node, picked, shape.milli if shape.each else 0, cpus, memory),)


def _slices(profile: str, node: int, devices: int, pieces: int) -> list[Spot]:
    """This many slices, each a spot, cut from one empty device after the other."""
    spots: list[Spot] = []
    device = free = 0
    while len(spots) < pieces:
        slots = slots_for(profile, free)
        if slots:
            free ^= slots
            spots.append((node, device, -slots, 0, 0))
        else:
            device, free = devices & -devices, EMPTY
            devices ^= device
    return spots
