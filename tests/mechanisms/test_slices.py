"""Slices of a GPU: a gang of several may be cut from one device, and counts as what it holds."""

from __future__ import annotations

import pytest

from dovetail.core.room import Room
from dovetail.model.cluster import SLICES
from dovetail.model.grant import load_of, slices_of
from dovetail.policies.registry import POLICIES
from dovetail.testing.build import Shape, cluster, job, run

ONE_GPU = cluster(nodes=1, gpus=1, type="A100")


@pytest.mark.parametrize("profile", SLICES)
def test_what_is_asked_for_is_what_is_held(profile: str) -> None:
    shape = Shape(slices_of(profile), slice=profile)
    spots = Room(ONE_GPU).best(shape)
    assert spots is not None
    assert shape.load == load_of(spots) <= 1000
    assert Room(ONE_GPU).best(shape.of(shape.tasks + 1)) is None


def test_a_slice_that_no_gpu_has_is_refused() -> None:
    with pytest.raises(ValueError, match="1g, 2g"):
        Shape(slice="9g")


@pytest.mark.parametrize("policy", POLICIES.names())
def test_a_gang_of_slices_finds_its_place_on_one_gpu(policy: str) -> None:
    whole, cut = job("whole", seconds=10), job("cut", seconds=10, shape=Shape(7, slice="1g"), at=1)
    assert run([whole, cut], ONE_GPU, policy).finished == 2
