"""Arithmetic on profiles; and acceptance case L5 (the placement table)."""

from __future__ import annotations

import pytest

from dovetail.model.grant import Terms
from dovetail.model.job import Profile
from dovetail.model.profile_arithmetic import on_terms, one_way, ring, scaled

GB = 1e9
NVLINK, INFINIBAND, ETHERNET = 600 * GB, 25 * GB, 10 * GB
LINKS = (NVLINK, INFINIBAND, ETHERNET)


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
