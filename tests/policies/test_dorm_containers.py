"""Containers: fair shares of them, and spots with fewer and with more."""

from __future__ import annotations

import numpy as np

from dovetail.core.room import Room
from dovetail.model.job import Shape
from dovetail.policies.dorm.containers import dominant_shares, fewer, held_on, joined, more
from dovetail.testing.build import cluster

PAIR = Shape(1, 2, cpus=1_000)  # a container of two devices and a core


def test_shares_grow_until_a_resource_is_used_up() -> None:
    """One application wants a tenth at most; the others share the rest of the first resource."""
    part = np.array([[0.1, 0.0], [0.1, 0.0], [0.1, 0.05]])
    assert np.allclose(dominant_shares(part, np.array([1.0, 99.0, 99.0])), [0.1, 0.45, 0.45])


def test_an_application_that_does_not_need_a_used_up_resource_grows_on() -> None:
    part = np.array([[0.5, 0.0], [0.5, 0.0], [0.0, 0.1]])
    assert np.allclose(dominant_shares(part, np.full(3, 99.0)), [0.5, 0.5, 1.0])
    assert dominant_shares(np.zeros((1, 2)), np.ones(1)).tolist() == [0.0]


def test_containers_go_where_there_are_fewest() -> None:
    spots = ((0, 0b1111, 1_000, 2_000, 0), (1, 0b0011, 1_000, 1_000, 0))
    assert held_on(spots, PAIR) == {0: 2, 1: 1}
    assert fewer(spots, PAIR, [0, 1], 1) == ((0, 0b1111, 1_000, 2_000, 0),)
    assert fewer(spots, PAIR, [0], 1) == ((0, 0b0011, 1_000, 1_000, 0), (1, 0b0011, 1_000, 1_000, 0))
    assert fewer(spots, PAIR, [0, 1], 3) == ()


def test_containers_come_where_there_are_some_already() -> None:
    room = Room(cluster(nodes=2, gpus=4))
    spots = ((1, 0b0011, 1_000, 1_000, 0),)
    room.take(spots)
    assert more(room, spots, PAIR, [0, 1], 1) == (((1, 0b1111, 1_000, 2_000, 0),), 1)
    grown, count = more(room, spots, PAIR, [0, 1], 9)  # as many as there is room for
    assert count == 3
    assert held_on(grown, PAIR) == {0: 2, 1: 2}


def test_spots_of_a_node_are_joined() -> None:
    both = joined(((0, 0b01, 1_000, 500, 7),), ((0, 0b10, 1_000, 500, 7), (1, 1, 1_000, 0, 0)))
    assert both == ((0, 0b11, 1_000, 1_000, 14), (1, 1, 1_000, 0, 0))
