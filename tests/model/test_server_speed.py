"""The speed over parameter servers: its terms, its truth and the estimate, and the fit to measured points."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.journal import job_from_json, job_to_json
from dovetail.mechanisms.estimate.server_speeds import fitted_speed
from dovetail.model.estimate import declared_speed
from dovetail.model.job import Arch, Profile, Traits, gang
from dovetail.model.server_speed import ServerSpeed, servers, terms
from dovetail.sim.true_speed import ProfiledSpeed
from dovetail.testing.build import cluster, job

FIGURES = st.lists(st.floats(0, 10), min_size=4, max_size=4)


def test_an_asynchronous_job_has_the_speed_of_the_paper() -> None:
    model = ServerSpeed((1.0, 2.0, 3.0, 4.0), synchronous=False, per_worker=0.5)
    u, p = 4, 2
    assert model.at(u) == pytest.approx(u / (1 + 2 * u / p + 3 * u + 4 * p))


def test_a_synchronous_job_has_the_speed_of_the_paper() -> None:
    model = ServerSpeed((8.0, 1.0, 2.0, 3.0, 4.0), per_worker=0.5)
    u, p = 4, 2
    assert model.at(u) == pytest.approx(1 / (8 / u + 1 + 2 * u / p + 3 * u + 4 * p))


@given(FIGURES, st.floats(0.1, 4), st.booleans(), st.integers(1, 8), st.integers(1, 8))
def test_truth_and_declared_estimate_agree(
    figures: list[float], per_worker: float, synchronous: bool, tasks: int, asked: int
) -> None:
    model = ServerSpeed((0.1, *figures) if synchronous else (0.1, *figures[1:]), synchronous, per_worker)
    on, shape = cluster(gpus=8), gang(asked)
    traits = Traits(arch=Arch.PARAMETER_SERVER, least=1, most=8, profile=Profile(server_speed=model))
    spots = ((0, (1 << tasks) - 1, 1000, 0, 0),)
    truth = ProfiledSpeed(on).rate(shape, traits, spots)
    assert truth == declared_speed(on, shape, traits, tasks, "gpu").speed
    assert truth == pytest.approx(model.at(tasks) / model.at(asked))


@given(FIGURES, st.sampled_from((0.5, 1.0, 2.0)), st.booleans())
def test_enough_points_give_the_speed_of_any_number_of_workers(
    figures: list[float], per_worker: float, synchronous: bool
) -> None:
    model = ServerSpeed((0.5, *figures) if synchronous else (0.5, *figures[1:]), synchronous, per_worker)
    points = tuple((u, model.at(u)) for u in range(1, 9))
    for tasks in range(1, 17):
        speed = fitted_speed((points, 0, per_worker, synchronous), tasks)
        assert speed == pytest.approx(model.at(tasks), rel=1e-3)


def test_servers_and_terms_go_by_workers() -> None:
    assert [servers(u, 0.5) for u in (1, 2, 3)] == [1, 1, 2]
    assert terms(4, 2, synchronous=False) == (0.25, 0.5, 1.0, 0.5)


def test_a_job_reads_back_with_its_speed() -> None:
    before = job("x", seconds=8, profile=Profile(server_speed=ServerSpeed((1.0, 0.0, 0.0, 2.0, 0.0))))
    before = replace(before, traits=replace(before.traits, arch=Arch.PARAMETER_SERVER))
    assert job_from_json(job_to_json(before)) == before


@pytest.mark.parametrize(
    ("figures", "per_worker"), [((), 1.0), ((1, 2, 3), 1.0), ((0,) * 5, 1.0), ((1, 1, 1, 1, -1), 1.0)]
)
def test_figures_that_are_no_speed_are_refused(figures: tuple[float, ...], per_worker: float) -> None:
    with pytest.raises(ValueError, match="5 figures"):
        ServerSpeed(figures, per_worker=per_worker)
    with pytest.raises(ValueError, match="number of servers above 0"):
        ServerSpeed((1, 1, 1, 1, 1), per_worker=0)


def test_a_profile_has_one_speed_by_workers() -> None:
    with pytest.raises(ValueError, match="give one of them"):
        Profile(server_speed=ServerSpeed((1, 1, 1, 1, 1)), curve={1: 1.0})
