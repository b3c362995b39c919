"""What a job holds, counted."""

from __future__ import annotations

import pytest

from dovetail.model.cluster import SLICES
from dovetail.model.grant import Spots, devices_of, load_of, milli_of, nodes_of, slots_for
from dovetail.model.job import Role, Shape, gang

WIDE: Spots = ((0, 0b1011, 1000, 0, 0), (2, 0b1, 500, 0, 0), (3, 0, 0, 4_000, 0), (4, 0b10, -0b1111, 0, 0))


def test_a_grant_is_counted() -> None:
    assert devices_of(WIDE) == 5
    assert load_of(WIDE) == 3_000 + 500 + 500
    assert nodes_of(WIDE) == {0, 2, 4}  # a helper alone makes no node of the gang


def test_a_slice_counts_by_its_slots() -> None:
    assert [milli_of(-0b1), milli_of(-0b1111), milli_of(-0xFF), milli_of(250)] == [125, 500, 1_000, 250]


@pytest.mark.parametrize(("profile", "fit"), [("1g", 7), ("2g", 3), ("3g", 2), ("4g", 1), ("7g", 1)])
def test_as_many_slices_fit_a_device_as_the_driver_allows(profile: str, fit: int) -> None:
    free, count = 0xFF, 0
    while slots := slots_for(profile, free):
        free &= ~slots
        count += 1
    assert count == fit


def test_slices_of_different_size_share_a_device() -> None:
    """3g + 2g + 2g is a layout that NVIDIA lists."""
    free = 0xFF
    for profile in ("3g", "2g", "2g"):
        slots = slots_for(profile, free)
        assert slots
        free &= ~slots
    assert slots_for("3g", free) == 0


def test_a_slice_starts_only_where_it_may() -> None:
    for profile, (size, starts) in SLICES.items():
        places = {((1 << size) - 1) << start & 0xFF for start in starts}
        assert all(slots_for(profile, place) == place for place in places)
        assert all(slots_for(profile, place ^ (place & -place)) == 0 for place in places)


def test_shapes() -> None:
    assert gang(4).plain
    assert gang(4).gpus == 4
    assert gang(0, cpus=2_000).gpus == 0
    assert gang(3, cpus=10_000).cpus == 3_334  # a task's part, rounded up
    assert Shape(2, 2, 500).load == 2_000
    assert gang(2).of(4) == gang(4)
    for odd in (
        Shape(milli=500),
        Shape(each=2),
        Shape(slice="1g"),
        Shape(partition="p"),
        Shape(roles=(Role("ps", 1),)),
    ):
        assert not odd.plain


@pytest.mark.parametrize("wrong", [{"tasks": 0}, {"each": -1}, {"milli": 0}, {"milli": 1_001}])
def test_a_shape_that_nobody_has(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no job has the shape"):
        Shape(**wrong)  # type: ignore[arg-type]
