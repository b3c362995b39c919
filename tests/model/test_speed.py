"""The speed of a job as a function of what it holds; and acceptance case L5 (the placement table)."""

from __future__ import annotations

import pytest

from dovetail.model.cluster import Cluster, GpuType, Links, Node, parse_cluster
from dovetail.model.grant import Spots, Terms
from dovetail.model.job import Arch, Profile, Role, Shape, Traits, gang
from dovetail.model.speed import (
    Neighbour,
    ProfiledSpeed,
    fastest_link,
    fewest_nodes,
    on_terms,
    one_way,
    ring,
    scaled,
    shared,
    slowest_link,
)

GB = 1e9
NVLINK, INFINIBAND, ETHERNET = 600 * GB, 25 * GB, 10 * GB
LINKS = (NVLINK, INFINIBAND, ETHERNET)
WHOLE_ON_0: Spots = ((0, 0b1, 1000, 0, 0),)


# -- L5


def test_L5_one_way_times() -> None:
    assert [one_way(GB, link) * 1e3 for link in LINKS] == pytest.approx([1.67, 40, 100], rel=2e-3)
    assert [one_way(4 * GB, link) * 1e3 for link in LINKS] == pytest.approx([6.67, 160, 400], rel=1e-3)
    assert one_way(GB, INFINIBAND) / one_way(GB, NVLINK) == pytest.approx(24)
    assert one_way(GB, ETHERNET) / one_way(GB, NVLINK) == pytest.approx(60)


def test_L5_steps() -> None:
    assert [200 + one_way(0.5 * GB, link) * 1e3 for link in LINKS] == pytest.approx(
        [200.83, 220, 250], abs=0.01
    )
    assert [100 + one_way(GB, link) * 1e3 for link in LINKS] == pytest.approx([101.7, 140, 200], abs=0.05)
    nvlink, _, ethernet = (0.2 + one_way(0.5 * GB, link) for link in LINKS)
    assert ethernet / nvlink - 1 == pytest.approx(0.245, abs=5e-4)  # L7: about a quarter
    assert pytest.approx(0.089, abs=5e-4) == (500 + 50) / (500 + 5) - 1


def test_L5_a_ring_moves_one_and_a_half_times_as_much_over_four_gpus() -> None:
    assert [ring(GB, 4, link) * 1e3 for link in LINKS] == pytest.approx([2.5, 60, 150])
    assert ring(GB, 1, ETHERNET) == 0


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


# -- parts of the function


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

    assert [apart(0, 1), apart(2, 3), apart(4, 5)] == [0.25, 0.5, 1.0]  # P100: nobody knows
    assert apart(1, 2) == 0.25  # on both, what suffers most
    assert speed.rate(gang(2), traits, ((0, 0b11, 1000, 0, 0),)) == 1.0
    with pytest.raises(ValueError, match="above 0"):
        Profile(split={"V100": 0.0})


def test_tasks_of_several_gpus_are_whole_on_a_node_in_the_reference_too() -> None:
    """Four tasks of three GPUs on nodes of four need four nodes, not three."""
    assert fewest_nodes(parse_cluster("4x4"), Shape(tasks=4, each=3)) == 4


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


def test_scaling_follows_the_curve_with_straight_lines_between() -> None:
    assert scaled(Profile(), 3) == 3.0
    curve = Profile(curve={1: 1.0, 2: 1.8, 4: 3.0})
    assert [scaled(curve, n) for n in (1, 2, 3, 4, 8)] == pytest.approx([1.0, 1.8, 2.4, 3.0, 3.0])
    assert scaled(Profile(curve={4: 2.0}), 1) == 0.5


def test_terms() -> None:
    profile = Profile(batch=32, batch_cost=0.5, noise_scale=96.0)
    assert on_terms(profile, Terms(clock=0.7)) == 0.7
    assert on_terms(profile, Terms(batch=32)) == 1.0
    # Twice the samples in 1.5 times the time, each worth (96 + 32) / (96 + 64) as much.
    assert on_terms(profile, Terms(batch=64)) == pytest.approx(2 / 1.5 * 128 / 160)


def test_neighbours() -> None:
    half: Spots = ((0, 1, 500, 0, 0),)
    greedy, light = Profile(use=1.0), Profile(use=0.25, hurt=0.1)
    assert shared(light, half, Terms(), ()) == 1.0
    assert shared(greedy, half, Terms(), ()) == 0.5
    assert shared(light, half, Terms(), [Neighbour(0.25, 0.1)]) == pytest.approx(0.9)
    assert shared(light, half, Terms(), [Neighbour(1.0, 0.0)]) == pytest.approx(1 / 1.25)
    assert shared(light, half, Terms(), [Neighbour(1.0, 0.5, Terms(guard=0.1))]) == 1.0
    assert shared(light, half, Terms(guard=0.1), [Neighbour(1.0, 0.5)]) == 0.1
    # Who asked for all of the device, and lends a part, is not held to the rest.
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
    # Who asked for half a device is held to it, and is not one of those who were measured.
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
