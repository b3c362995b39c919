"""Free capacity: the index finds what an exhaustive search finds."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.room import Room
from dovetail.model.cluster import Cluster, GpuType, Node, parse_cluster
from dovetail.model.errors import PlanError
from dovetail.model.grant import Spots, devices_of, nodes_of
from dovetail.model.job import Role, Shape, gang
from dovetail.model.units import GIB
from dovetail.testing.suite import searched


def whole(node: int, devices: int) -> Spots:
    return ((node, devices, 1000, 0, 0),)


def fewest(sizes: list[int], tasks: int) -> int:
    """The least number of nodes that hold this number of tasks, by trying all subsets."""
    for count in range(1, len(sizes) + 1):
        if any(sum(chosen) >= tasks for chosen in combinations(sizes, count)):
            return count
    return 0


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    taken=st.lists(st.integers(0, 63), min_size=4, max_size=4),
    tasks=st.integers(1, 12),
)
@searched(200)
def test_best_is_the_tightest_single_node_or_the_fewest(
    sizes: list[int], taken: list[int], tasks: int
) -> None:
    room = Room(Cluster(tuple(Node(f"n{i}", size) for i, size in enumerate(sizes))))
    for i, size in enumerate(sizes):
        if mask := taken[i] & ((1 << size) - 1):
            room.take(whole(i, mask))
    free = [room.free_on(i).bit_count() for i in range(len(sizes))]
    best, anywhere = room.best(gang(tasks)), room.anywhere(gang(tasks))
    fitting = [n for n in free if n >= tasks]
    if fitting:
        assert best is not None
        assert [free[n] for n in nodes_of(best)] == [min(fitting)]
    elif best is not None:  # never on more nodes than the empty cluster would need
        assert len(nodes_of(best)) == fewest(sizes, tasks)
    assert (anywhere is None) == (sum(free) < tasks)
    for found in (best, anywhere):
        if found is not None:
            assert devices_of(found) == tasks
            before = room.picture()
            room.take(found)
            room.give(found)
            assert room.picture() == before


@given(data=st.data())
@searched(100)
def test_what_is_given_back_leaves_no_trace(data: st.DataObject) -> None:
    nodes = (
        Node("a", 4, GpuType("A100", sliceable=True), cpus=8_000, memory=8 * GIB),
        Node("b", 2, cpus=4_000),
    )
    room = Room(Cluster(nodes))
    empty = room.picture()
    shapes = st.builds(
        Shape,
        tasks=st.integers(1, 3),
        each=st.integers(0, 2),
        milli=st.sampled_from((1000, 500, 300)),
        cpus=st.sampled_from((0, 1_000)),
        memory=st.sampled_from((0, GIB)),
        roles=st.sampled_from(((), (Role("ps", 2, 1_000),))),
    ) | st.builds(Shape, tasks=st.integers(1, 3), slice=st.sampled_from(("1g", "2g", "3g", "7g")))
    held = []
    for shape in data.draw(st.lists(shapes, max_size=8)):
        spots = room.anywhere(shape)
        if spots is not None:
            room.take(spots)
            held.append(spots)
    for spots in data.draw(st.permutations(held)):
        room.give(spots)
    assert room.picture() == empty


def test_a_closed_node_is_not_offered_and_keeps_its_state() -> None:
    room = Room(parse_cluster("2x2"))
    room.take(whole(0, 0b01))
    room.close(0)
    assert room.free_gpus == 2
    assert room.best(gang(1)) == whole(1, 0b01)
    with pytest.raises(PlanError, match="closed"):
        room.take(whole(0, 0b10))
    room.give(whole(0, 0b01))
    room.open(0)
    assert room.picture() == Room(parse_cluster("2x2")).picture()


def test_types_of_one_name_are_one_type_to_the_user() -> None:
    """Two models of a V100 differ in memory; a job that asks for a V100 accepts either."""
    nodes = (Node("a", 1, GpuType("V100", 16 * GIB)), Node("b", 1, GpuType("V100", 32 * GIB)))
    room = Room(Cluster(nodes))
    room.take(whole(0, 0b1))
    assert room.best(gang(1, ("V100",))) == whole(1, 0b1)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(tasks=2, milli=500),
        Shape(tasks=3, slice="3g"),
        Shape(tasks=2, slice="7g"),
        Shape(tasks=2, each=1, cpus=3_000),
        Shape(tasks=2, memory=3 * GIB),
    ],
)
def test_what_fits_the_empty_cluster_is_placed_on_it(shape: Shape) -> None:
    """`ever` and `best` must agree, or a job is let in and then waits for ever."""
    kind = GpuType("A100", sliceable=True)
    room = Room(Cluster(tuple(Node(f"n{i}", 1, kind, cpus=4_000, memory=4 * GIB) for i in range(2))))
    assert room.ever(shape)
    assert room.best(shape) is not None


def test_helpers_are_on_the_nodes_of_the_tasks_if_they_fit() -> None:
    room = Room(Cluster((Node("a", 1, cpus=2_000), Node("b", 0, cpus=8_000))))
    near = room.best(Shape(roles=(Role("ps", 1, 2_000),)))
    far = room.best(Shape(roles=(Role("ps", 1, 4_000),)))
    assert near == ((0, 1, 1000, 0, 0), (0, 0, 0, 2_000, 0))
    assert far == ((0, 1, 1000, 0, 0), (1, 0, 0, 4_000, 0))
