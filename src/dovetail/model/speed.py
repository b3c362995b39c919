"""A job's speed is one function of what it holds.

This is the one seam through which type, count, placement, batch, neighbours, CPU and network enter.
The simulator has the true one; a policy has an estimate, which may be this same function over declared
profiles, or something measured or learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dovetail.model.cluster import Cluster, Links
from dovetail.model.grant import FULL, Spots, Terms, devices_of, milli_of, nodes_of
from dovetail.model.job import Arch, Profile, Shape, Traits
from dovetail.model.units import WHOLE


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Somebody on one of the job's devices."""

    use: float  # of the device's time, alone
    hurt: float
    terms: Terms = FULL
    model: str = ""  # if it asked for the whole of its devices
    spots: Spots = ()  # all that it holds


class Speed(Protocol):
    """Work per unit of time, 1.0 being the job's reference run."""

    def rate(
        self, shape: Shape, traits: Traits, spots: Spots, terms: Terms, met: Sequence[Neighbour]
    ) -> float: ...


@dataclass(frozen=True)
class ProfiledSpeed:
    """Speed worked out from the job's profile; a job without one runs at its devices' speed."""

    cluster: Cluster

    def rate(
        self, shape: Shape, traits: Traits, spots: Spots, terms: Terms = FULL, met: Sequence[Neighbour] = ()
    ) -> float:
        profile = traits.profile
        held = devices_of(spots)
        if held < _least(shape, traits):
            return 0.0  # a gang that is not whole yet waits for the rest of itself
        if profile is None:
            slowest = min((self.cluster.nodes[spot[0]].type.speed for spot in spots if spot[1]), default=1.0)
            return slowest * held / shape.gpus if shape.gpus else slowest
        slowest = min(
            (self._type_speed(profile, node) for node, devices, *_ in spots if devices),
            default=1.0,
        )
        tasks = held // shape.each if shape.each else shape.tasks
        rate = (
            slowest * scaled(profile, tasks) / scaled(profile, shape.tasks)
            if tasks != shape.tasks
            else slowest
        )
        if len(nodes_of(spots)) > fewest_nodes(self.cluster, shape.of(tasks)):
            rate /= self._split(profile, spots)
        if profile.gradient and held > 1:
            rate *= self._network(profile, shape, spots, held)
        if traits.arch is Arch.PARAMETER_SERVER and profile.servers:
            servers = sum(1 for _, devices, *_ in spots if not devices)
            rate *= min(1.0, servers / profile.servers)
        if profile.cpus:
            cpus = sum(cpus for _, devices, _, cpus, _ in spots if devices)
            rate *= min(1.0, cpus / (profile.cpus * tasks)) if cpus else 1.0
        if terms is not FULL:
            rate *= on_terms(profile, terms)
        lent = _lent(shape, spots)
        if lent and met and (known := self._beside(profile, spots, terms, met)) is not None:
            return rate * known
        return rate * shared(profile, spots, terms, met, lent=lent)

    def _type_speed(self, profile: Profile, node: int) -> float:
        kind = self.cluster.nodes[node].type
        return profile.speeds.get(kind.name, kind.speed)

    def _split(self, profile: Profile, spots: Spots) -> float:
        """Of the types it holds, that which suffers most."""
        return max(
            (profile.split_on(self.cluster.nodes[node].type.name) for node, devices, *_ in spots if devices),
            default=1.0,
        )

    def _beside(self, profile: Profile, spots: Spots, terms: Terms, met: Sequence[Neighbour]) -> float | None:
        """What was measured of the two on the same devices, over the speed alone; None if it was not.

        Both asked for the whole of them, and each is as fast as the other lets it be.
        """
        (other, *more) = met
        if more or terms.guard is not None or other.terms.guard is not None:
            return None
        if _devices_of(spots) != _devices_of(other.spots):
            return None
        found: list[float] = []
        for node, devices, *_ in spots:
            measured = profile.beside.get(self.cluster.nodes[node].type.name, {}).get(other.model)
            if devices and measured is None:
                return None
            if devices and measured is not None:
                alone = self._type_speed(profile, node)
                found.append(measured / alone if alone else 0.0)
        return min(found, default=None)

    def _network(self, profile: Profile, shape: Shape, spots: Spots, held: int) -> float:
        """The reference step over this step: the reference is the same gang as close as it can be."""
        best = fastest_link(self.cluster, shape)
        here = slowest_link(self.cluster, spots)
        base = profile.compute + ring(profile.gradient, shape.gpus or 1, best)
        return base / (profile.compute + ring(profile.gradient, held, here))


def regime_at(profile: Profile | None, done: int, work: int) -> tuple[float, int]:
    """How many times as fast a job goes once so much of its work is done, and up to which work.

    A batch that grows on its own makes a job faster as it goes along, whatever it holds.

    >>> regime_at(Profile(regimes=((1, 1.0), (1, 4.0))), 60, 100)
    (4.0, 100)
    """
    if profile is None or not profile.regimes:
        return 1.0, work
    whole, behind = sum(part for part, _ in profile.regimes), 0.0
    for part, speed in profile.regimes:
        behind += part
        end = round(work * behind / whole)
        if done < end:
            return speed, end
    return profile.regimes[-1][1], work


def one_way(size: float, bandwidth: float) -> float:
    """Seconds to send so many bytes once."""
    return size / bandwidth


def ring(size: float, gpus: int, bandwidth: float) -> float:
    """Seconds of a ring all-reduce: each of n devices sends 2(n-1)/n of the bytes."""
    return 2 * (gpus - 1) / gpus * size / bandwidth


def scaled(profile: Profile, tasks: int) -> float:
    """Throughput of so many tasks; straight lines between the known points, and linear with none."""
    curve = profile.curve
    if not curve:
        return float(tasks)
    if tasks in curve:
        return curve[tasks]
    known = sorted(curve)
    below = max((n for n in known if n < tasks), default=0)
    above = min((n for n in known if n > tasks), default=0)
    if not above:
        return curve[below]  # nothing is known of more: no faster
    low = curve.get(below, 0.0)
    return low + (curve[above] - low) * (tasks - below) / (above - below)


def on_terms(profile: Profile, terms: Terms) -> float:
    """What another batch size and a lower clock do to the speed."""
    gain = terms.clock
    if terms.batch and profile.batch and terms.batch != profile.batch:
        ratio = terms.batch / profile.batch
        step = 1.0 - profile.batch_cost + profile.batch_cost * ratio
        noise = profile.noise_scale
        efficiency = (noise + profile.batch) / (noise + terms.batch) if noise else 1.0
        gain *= ratio / step * efficiency
    return gain


def shared(
    profile: Profile, spots: Spots, terms: Terms, met: Sequence[Neighbour], *, lent: bool = False
) -> float:
    """What neighbours leave: devices share their time, and each neighbour hurts a little more.

    A guarded job gives way: it gets at most its guard; an unguarded one does not feel a guarded neighbour.
    A share is a limit, unless the job asked for more and the rest is `lent`: alone, it has all of the device.
    """
    share = min((milli_of(share) for _, devices, share, _, _ in spots if devices), default=WHOLE) / WHOLE
    limit = min(1.0, share / profile.use) if profile.use and not lent else 1.0
    if not met:
        return min(limit, terms.guard) if terms.guard is not None else limit
    if terms.guard is not None:
        return min(limit, terms.guard)
    felt = [n for n in met if n.terms.guard is None]
    total = profile.use + sum(n.use for n in felt)
    crowding = min(1.0, 1.0 / total) if total else 1.0
    for neighbour in felt:
        crowding *= 1.0 - neighbour.hurt
    return min(limit, crowding)


def fewest_nodes(cluster: Cluster, shape: Shape) -> int:
    """How many nodes the gang needs when the cluster is empty."""
    sizes = sorted(
        (node.gpus for node in cluster.nodes if not shape.types or node.type.name in shape.types),
        reverse=True,
    )
    left, count = shape.tasks, 0
    for size in sizes if shape.each else ():
        if left <= 0:
            break
        left -= size // shape.each
        count += 1
    return max(count, 1)


def fastest_link(cluster: Cluster, shape: Shape) -> float:
    """The slowest link inside the best placement there could be."""
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
    """The link that a ring over these spots waits for."""
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


def _lent(shape: Shape, spots: Spots) -> bool:
    """Whether it has less of its devices than it asked for."""
    return not shape.slice and any(devices and share < shape.milli for _, devices, share, _, _ in spots)


def _devices_of(spots: Spots) -> dict[int, int]:
    held: dict[int, int] = {}
    for node, devices, *_ in spots:
        if devices:
            held[node] = held.get(node, 0) | devices
    return held


def _least(shape: Shape, traits: Traits) -> int:
    return (traits.least if traits.least is not None else shape.tasks) * shape.each


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
