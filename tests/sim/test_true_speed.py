"""The true speed of a job as a function of what it holds."""

from __future__ import annotations

import pytest

from dovetail.model.cluster import Cluster, GpuType, Links, Node, parse_cluster
from dovetail.model.grant import Spots, Terms
from dovetail.model.job import Arch, Profile, Role, Shape, Traits, gang
from dovetail.model.topology import fewest_nodes
from dovetail.sim.true_speed import Neighbour, ProfiledSpeed, shared

GB = 1e9
NVLINK, ETHERNET = 600 * GB, 10 * GB
WHOLE_ON_0: Spots = ((0, 0b1, 1000, 0, 0),)


def test_L5_through_the_speed_of_a_job() -> None:
    """200 ms and 0.5 GB a step: two GPUs in an NVLink group against two nodes on Ethernet."""
    traits = Traits(profile=Profile(compute=0.2, gradient=0.5 * GB))
    links = Links(nvlink=NVLINK, cluster=ETHERNET)
    racks = Cluster((Node("a", 2, nvlink=2, rack="r0"), Node("b", 2, nvlink=2, rack="r1")), links)
    speed = ProfiledSpeed(racks)
    near = speed.rate(gang(2), traits, ((0, 0b11, 1000, 0, 0),))
    far = speed.rate(gang(2), traits, ((0, 0b1, 1000, 0, 0), (1, 0b1, 1000, 0, 0)))
    assert near == 1.0
    assert near / far - 1 == pytest.approx(0.245, abs=5e-4)  # a ring of two sends each byte once


def test_an_unsplit_gang_is_the_reference_even_when_it_needs_two_nodes() -> None:
    two = parse_cluster("2x4")
    speed = ProfiledSpeed(two)
    traits = Traits(profile=Profile(split=2.0))
    whole: Spots = ((0, 0b1111, 1000, 0, 0), (1, 0b1111, 1000, 0, 0))
    assert fewest_nodes(two, gang(8)) == 2
    assert speed.rate(gang(8), traits, whole) == 1.0
    half: Spots = ((0, 0b11, 1000, 0, 0), (1, 0b11, 1000, 0, 0))
    assert speed.rate(gang(4), traits, half) == 0.5


def test_what_a_split_costs_may_differ_by_type() -> None:
    there = parse_cluster("2x2:V100,2x2:K80,2x2:P100")
    speed, traits = ProfiledSpeed(there), Traits(profile=Profile(split={"V100": 4.0, "K80": 2.0}))

    def apart(*nodes: int) -> float:
        return speed.rate(gang(2), traits, tuple((node, 1, 1000, 0, 0) for node in nodes))

    assert [apart(0, 1), apart(2, 3), apart(4, 5)] == [0.25, 0.5, 1.0]  # P100: not known
    assert apart(1, 2) == 0.25  # on both, what suffers most
    assert speed.rate(gang(2), traits, ((0, 0b11, 1000, 0, 0),)) == 1.0
    with pytest.raises(ValueError, match="above 0"):
        Profile(split={"V100": 0.0})


def test_the_slowest_device_sets_the_pace() -> None:
    mixed = Cluster((Node("a", 1, GpuType("A")), Node("b", 1, GpuType("B", speed=0.5))))
    both: Spots = ((0, 1, 1000, 0, 0), (1, 1, 1000, 0, 0))
    assert ProfiledSpeed(mixed).rate(gang(2), Traits(), both) == 0.5
    assert ProfiledSpeed(mixed).rate(gang(2), Traits(profile=Profile(speeds={"A": 3, "B": 2})), both) == 2


def test_a_gang_that_is_not_whole_has_no_speed() -> None:
    speed = ProfiledSpeed(parse_cluster("1x4"))
    assert speed.rate(gang(2), Traits(), WHOLE_ON_0) == 0.0
    assert speed.rate(gang(2), Traits(profile=Profile()), WHOLE_ON_0) == 0.0
    assert speed.rate(gang(2), Traits(least=1, profile=Profile()), WHOLE_ON_0) == 0.5


def test_neighbours() -> None:
    half: Spots = ((0, 1, 500, 0, 0),)
    greedy, light = Profile(use=1.0), Profile(use=0.25, hurt=0.1)
    assert shared(light, half, Terms(), ()) == 1.0
    assert shared(greedy, half, Terms(), ()) == 0.5
    assert shared(light, half, Terms(), [Neighbour(0.25, 0.1)]) == pytest.approx(0.9)
    assert shared(light, half, Terms(), [Neighbour(1.0, 0.0)]) == pytest.approx(1 / 1.25)
    assert shared(light, half, Terms(), [Neighbour(1.0, 0.5, Terms(guard=0.1))]) == 1.0
    assert shared(light, half, Terms(guard=0.1), [Neighbour(1.0, 0.5)]) == 0.1
    # A job that asked for the whole device and lends a part is not limited to the rest.
    assert shared(greedy, half, Terms(), (), lent=True) == 1.0
    assert shared(greedy, half, Terms(), [Neighbour(1.0, 0.0)], lent=True) == 0.5


def test_beside_a_model_it_was_measured_with() -> None:
    two = Cluster((Node("a", 2, GpuType("A100")), Node("v", 2, GpuType("V100"))))
    profile = Profile(speeds={"A100": 2.0, "V100": 1.0}, hurt=0.5, beside={"A100": {"lm": 1.6, "gan": 0.0}})
    half: Spots = ((0, 0b01, 500, 0, 0),)
    traits, terms = Traits(profile=profile), Terms()

    def rate(spots: Spots, *met: Neighbour) -> float:
        return ProfiledSpeed(two).rate(Shape(), traits, spots, terms, met)

    def beside(model: str, spots: Spots, **more: Terms) -> Neighbour:
        return Neighbour(1.0, 0.5, model=model, spots=spots, **more)

    assert rate(half) == 2.0
    assert rate(half, beside("lm", half)) == 1.6
    assert rate(half, beside("gan", half)) == 0.0
    # Not measured: two that use all of a device have half of it each, and hurt each other.
    formula = 2.0 / 2 * 0.5
    assert rate(half, beside("other", half)) == formula
    assert rate(half, beside("lm", ((0, 0b11, 500, 0, 0),))) == formula  # on another device as well
    assert rate(half, beside("lm", half), beside("lm", half)) == 2.0 / 3 * 0.25  # three of them
    on_v: Spots = ((1, 0b01, 500, 0, 0),)
    assert rate(on_v, beside("lm", on_v)) == formula / 2
    assert rate(half, beside("lm", half, terms=Terms(guard=0.1))) == 2.0  # it gives way
    # A job that asked for half a device is limited to it, and pairs of such jobs were not measured.
    capped = ProfiledSpeed(two).rate(Shape(milli=500), traits, half, terms, [beside("lm", half)])
    assert capped == formula


def test_servers_and_cpus() -> None:
    speed = ProfiledSpeed(parse_cluster("1x4"))
    shape = Shape(tasks=1, cpus=2_000, roles=(Role("ps", 2, 1_000),))
    traits = Traits(arch=Arch.PARAMETER_SERVER, profile=Profile(servers=2, cpus=4_000))
    worker, server = (0, 1, 1000, 2_000, 0), (0, 0, 0, 1_000, 0)
    assert speed.rate(shape, traits, (worker, server, server)) == 0.5
    assert speed.rate(shape, traits, (worker, server)) == 0.25
    assert speed.rate(shape, traits, (worker, server, server, server)) == 0.5


def test_a_parameter_server_job_with_its_gradients_counts_its_workers() -> None:
    """Helpers are no members of the ring."""
    speed = ProfiledSpeed(parse_cluster("2x2"))
    traits = Traits(arch=Arch.PARAMETER_SERVER, profile=Profile(compute=1.0, gradient=GB, servers=1))
    shape = Shape(tasks=2, roles=(Role("ps", 1, 1_000),))
    assert speed.rate(shape, traits, ((0, 0b11, 1000, 0, 0), (1, 0, 0, 1_000, 0))) == 1.0
