"""The true speed of a job in the simulator: one function of what the job holds.

GPU type, number of tasks, placement, batch size, neighbours, CPU and network all enter here. Policies and
mechanisms cannot import this module (contract `policies-see-views` in pyproject.toml). A policy asks
`view.speed`, which is an estimate and may be wrong (model.estimate).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dovetail.model.cluster import Cluster
from dovetail.model.goodput import Goodput, relative_speed
from dovetail.model.grant import FULL, Spots, Terms, devices_of, milli_of, nodes_of
from dovetail.model.job import Arch, Profile, Shape, Traits, least_devices
from dovetail.model.profile_arithmetic import on_terms, ring, scaled
from dovetail.model.splicing import spliced
from dovetail.model.topology import fastest_link, fewest_nodes, slowest_link
from dovetail.model.units import WHOLE


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another job on one of the job's devices."""

    use: float  # fraction of the device's time that the neighbour uses when it is alone
    hurt: float  # further fraction of speed that the job loses to the neighbour
    terms: Terms = FULL
    model: str = ""  # its model, if it asked for whole devices
    spots: Spots = ()  # all spots of the neighbour


class Speed(Protocol):
    """Work per unit of time, 1.0 being the job's reference run."""

    def rate(
        self,
        shape: Shape,
        traits: Traits,
        spots: Spots,
        terms: Terms,
        met: Sequence[Neighbour],
        noise: float | None = None,  # of its gradient (model.goodput); None: as its training begins
    ) -> float: ...


@dataclass(frozen=True)
class ProfiledSpeed:
    """Speed computed from the job's profile; a job without one runs at its devices' speed."""

    cluster: Cluster

    def rate(
        self,
        shape: Shape,
        traits: Traits,
        spots: Spots,
        terms: Terms = FULL,
        met: Sequence[Neighbour] = (),
        noise: float | None = None,
    ) -> float:
        profile = traits.profile
        held = devices_of(spots)
        if held < least_devices(shape, traits):
            return 0.0  # a gang runs only when it is whole
        tasks = held // shape.each if shape.each else shape.tasks
        workers, part = tasks, 1.0
        if traits.splice is not None and tasks != shape.tasks:
            workers, part = shape.tasks, spliced(shape, traits, tasks)
        if profile is None:
            slowest = min((self.cluster.nodes[spot[0]].type.speed for spot in spots if spot[1]), default=1.0)
            if workers != tasks:
                return part * slowest
            return slowest * held / shape.gpus if shape.gpus else slowest
        if profile.goodput is not None:
            gpus = workers * shape.each
            rate = part * self._goodput(profile, profile.goodput, shape, spots, gpus, terms.batch, noise)
        else:
            rate = part * self._scaled(profile, shape, spots, workers)
        if profile.goodput is None and len(nodes_of(spots)) > fewest_nodes(self.cluster, shape.of(tasks)):
            rate /= self._split(profile, spots)
        if profile.gradient and held > 1:
            rate *= self._network(profile, shape, spots, workers * shape.each)
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

    def _scaled(self, profile: Profile, shape: Shape, spots: Spots, tasks: int) -> float:
        """The speed of its slowest type of device, with this number of tasks."""
        if profile.curves and tasks != shape.tasks:
            kinds = {self.cluster.nodes[spot[0]].type.name: spot[0] for spot in spots if spot[1]}
            return min(
                self._type_speed(profile, node)
                * scaled(profile, tasks, kind)
                / scaled(profile, shape.tasks, kind)
                for kind, node in kinds.items()
            )
        slowest = min([self._type_speed(profile, spot[0]) for spot in spots if spot[1]], default=1.0)
        if tasks != shape.tasks:
            return slowest * scaled(profile, tasks) / scaled(profile, shape.tasks)
        return slowest

    def _goodput(
        self,
        profile: Profile,
        model: Goodput,
        shape: Shape,
        spots: Spots,
        gpus: int,
        batch: int | None,
        noise: float | None,
    ) -> float:
        nodes = nodes_of(spots)
        asked = shape.gpus or 1, fewest_nodes(self.cluster, shape) > 1
        found = []
        for kind, node in {self.cluster.nodes[node].type.name: node for node in sorted(nodes)}.items():
            own = 1.0 if kind in model.steps else self._type_speed(profile, node)
            held = gpus, len(nodes) > 1
            found.append(own * relative_speed(model, kind, held, asked, noise, batch))
        return min(found, default=1.0)

    def _type_speed(self, profile: Profile, node: int) -> float:
        kind = self.cluster.nodes[node].type
        return profile.speeds.get(kind.name, kind.speed)

    def _split(self, profile: Profile, spots: Spots) -> float:
        """How many times slower it is when split: on the type that suffers most."""
        return max(
            (profile.split_on(self.cluster.nodes[node].type.name) for node, devices, *_ in spots if devices),
            default=1.0,
        )

    def _beside(self, profile: Profile, spots: Spots, terms: Terms, met: Sequence[Neighbour]) -> float | None:
        """The measured speed beside the other job on the same devices, over the speed alone.

        None if that pair was not measured. Both jobs asked for whole devices.
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

    def _network(self, profile: Profile, shape: Shape, spots: Spots, gpus: int) -> float:
        """The time of a step of the reference, placed as close as possible, over that of a step here."""
        best = fastest_link(self.cluster, shape)
        here = slowest_link(self.cluster, spots)
        base = profile.compute + ring(profile.gradient, shape.gpus or 1, best)
        return base / (profile.compute + ring(profile.gradient, gpus, here))


def shared(
    profile: Profile, spots: Spots, terms: Terms, met: Sequence[Neighbour], *, lent: bool = False
) -> float:
    """The fraction of its speed that a job has beside its neighbours.

    Jobs share the time of a device, and each neighbour costs a little more. A guarded job gets at most its
    guard, and does not slow an unguarded neighbour. A share is a limit, unless the job asked for more and the
    rest is `lent`: then it has the whole device while it is alone.
    """
    share = min([milli_of(share) for _, devices, share, _, _ in spots if devices], default=WHOLE) / WHOLE
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


def _lent(shape: Shape, spots: Spots) -> bool:
    """Whether the job holds less of its devices than it asked for."""
    if not shape.slice:
        for _, devices, share, _, _ in spots:
            if devices and share < shape.milli:
                return True
    return False


def _devices_of(spots: Spots) -> dict[int, int]:
    held: dict[int, int] = {}
    for node, devices, *_ in spots:
        if devices:
            held[node] = held.get(node, 0) | devices
    return held
