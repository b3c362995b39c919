"""Estimates of speed: what is declared, what is left out, and how they stand to the truth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.active import ActiveJob
from dovetail.core.core import Core
from dovetail.core.room import Room
from dovetail.mechanisms.estimate.speeds import by_type, estimated
from dovetail.model.cluster import Cluster, GpuType, Links, Node, parse_cluster
from dovetail.model.estimate import (
    ASSUMED,
    DECLARED,
    IMPOSSIBLE,
    KNOWN,
    Estimate,
    Estimator,
    alike,
    speed_of,
    task_range,
)
from dovetail.model.event import SUBMITTED
from dovetail.model.grant import FULL, Spots, nodes_of
from dovetail.model.job import Job, Profile, Shape, Traits, gang
from dovetail.model.view import JobView, View
from dovetail.policies.classic import fifo
from dovetail.sim.true_speed import ProfiledSpeed
from dovetail.testing.build import job, run
from dovetail.testing.strategies import Scene, scenes
from dovetail.testing.suite import searched

MIXED = parse_cluster("2x4:V100,2x4:K80")
CURVE = {1: 1.0, 2: 1.8, 4: 3.0}


def seen(made: Job, spots: Spots | None = None) -> JobView:
    """The job as a policy sees it, running on these spots if there are any."""
    active = ActiveJob(made, 0, 0)
    if spots:
        active.begin(0, spots, FULL, 0)
    return active


def speed(on: Cluster, made: Job, **asked: int | str | None) -> Estimate:
    return speed_of(DECLARED, on, seen(made), **asked)  # type: ignore[arg-type]


# -- declared


def test_a_job_as_it_asked_has_the_speed_of_its_reference() -> None:
    assert speed(parse_cluster("1x4"), job("a", gpus=2, profile=Profile())) == (1.0, KNOWN)


def test_without_a_profile_the_type_has_its_own_speed_and_that_is_not_certain() -> None:
    fast = Cluster((Node("a", 1, GpuType("A100", speed=3.0)), Node("b", 1, GpuType("T4", speed=0.5))))
    plain = job("a")
    assert [speed(fast, plain, type=name) for name in ("T4", "A100")] == [(0.5, ASSUMED), (3.0, ASSUMED)]
    partly = job("a", profile=Profile(speeds={"T4": 0.2}))
    assert [speed(fast, partly, type=name) for name in ("T4", "A100")] == [(0.2, KNOWN), (3.0, ASSUMED)]
    bound = job("a", types=["T4"])
    assert speed(fast, bound, type="A100") == IMPOSSIBLE  # it may not run there


def test_the_number_of_tasks_follows_the_curve_within_the_bounds_of_the_job() -> None:
    elastic = job("a", gpus=2, traits=Traits(least=1, most=4, profile=Profile(curve=CURVE)))
    found = [speed(parse_cluster("1x8"), elastic, tasks=n) for n in range(6)]
    assert [round(one.speed, 6) for one in found] == [0.0, 0.555556, 1.0, 1.333333, 1.666667, 0.0]
    assert [one.certainty for one in found] == [KNOWN, KNOWN, KNOWN, ASSUMED, KNOWN, KNOWN]
    rigid = job("a", gpus=2, profile=Profile(curve=CURVE))
    assert speed(parse_cluster("1x8"), rigid, tasks=4) == IMPOSSIBLE


def test_without_a_profile_scaling_is_linear() -> None:
    elastic = job("a", gpus=2, traits=Traits(least=1, most=8))
    assert speed(parse_cluster("1x8"), elastic, tasks=8) == (4.0, ASSUMED)


def test_more_nodes_than_needed_cost_what_the_profile_says() -> None:
    made = job("a", gpus=4, profile=Profile(speeds={"V100": 2.0}, split={"V100": 4.0}))
    assert speed(MIXED, made, type="V100", nodes=1).speed == 2.0
    assert speed(MIXED, made, type="V100", nodes=2).speed == 0.5
    assert speed(MIXED, made, type="K80", nodes=2).speed == MIXED.type_speeds["K80"]


def test_the_network_counts_for_gradients() -> None:
    nodes = tuple(Node(f"n{i}", 2, nvlink=2) for i in range(2))
    on = Cluster(nodes, Links(nvlink=600e9, rack=10e9))
    made = job("a", gpus=2, profile=Profile(compute=0.2, gradient=0.5e9))
    near, far = (speed(on, made, nodes=count).speed for count in (1, 2))
    assert near == 1.0
    assert near / far - 1 == pytest.approx(0.245, abs=5e-4)


def test_the_batch_counts() -> None:
    profile = Profile(batch=32, batch_cost=0.5, noise_scale=96.0)
    assert speed(parse_cluster("1x1"), job("a", profile=profile), batch=64).speed == pytest.approx(
        2 / 1.5 * 128 / 160
    )


def test_a_job_has_the_bounds_it_names_around_what_it_asked_for() -> None:
    assert task_range(gang(4), Traits()) == (4, 4)
    assert task_range(gang(4), Traits(least=2)) == (2, 4)
    assert task_range(gang(4), Traits(most=8)) == (4, 8)
    assert task_range(gang(4), Traits(least=6, most=2)) == (4, 4)  # what it asked for is always within


# -- what is left out


def test_without_a_type_a_waiting_job_has_its_fastest_and_a_running_one_its_slowest() -> None:
    made = job("a", gpus=2, profile=Profile(speeds={"V100": 2.0, "K80": 0.5}))
    assert speed_of(DECLARED, MIXED, seen(made)).speed == 2.0
    on_k80 = seen(made, ((2, 0b11, 1000, 0, 0),))
    assert speed_of(DECLARED, MIXED, on_k80).speed == 0.5
    on_both = seen(made, ((0, 0b1, 1000, 0, 0), (2, 0b1, 1000, 0, 0)))
    assert speed_of(DECLARED, MIXED, on_both).speed == 0.5
    only_k80 = job("a", gpus=2, types=["K80"], profile=made.traits.profile)
    assert speed(MIXED, only_k80).speed == 0.5


@given(scene=scenes(most=3), data=st.data())
@searched(100)
def test_a_right_profile_declares_the_true_speed_of_a_job_alone(scene: Scene, data: st.DataObject) -> None:
    """The estimate and the truth are different code: for a lone job, placed as asked about, they agree."""
    made = data.draw(st.sampled_from(scene.jobs))
    tasks = data.draw(st.integers(*task_range(made.shape, made.traits)))
    if made.shape.slice or made.shape.milli < 1_000 or not made.shape.each:
        return
    spots = Room(scene.cluster).anywhere(made.shape.of(tasks))
    if spots is None:
        return
    truth = ProfiledSpeed(scene.cluster).rate(made.shape, made.traits, spots)
    found = speed_of(DECLARED, scene.cluster, seen(made, spots), tasks=tasks, nodes=len(nodes_of(spots)))
    assert found.speed == pytest.approx(truth)


# -- an estimator of one's own


class Doubled:
    """Twice what is declared: a stand-in for something learned, which tells jobs apart by their id."""

    individual = True

    def estimate(
        self, cluster: Cluster, job: JobView, tasks: int, type: str, nodes: int | None, batch: int | None
    ) -> Estimate:
        known = DECLARED.estimate(cluster, job, tasks, type, nodes, batch)
        return Estimate(known.speed * (2 if job.id == "a" else 1), 0.5)

    def observed(self, view: View) -> Estimator:
        return self


def test_the_core_takes_an_estimator_and_its_forks_have_it() -> None:
    two = (job("a", gpus=2, profile=Profile()), job("b", gpus=2, profile=Profile()))
    core = Core(parse_cluster("1x4"), fifo(), estimator=Doubled())
    core.handle(0, [(0, SUBMITTED, made.id, 0, made) for made in two])
    for one in (core, core.fork()):
        assert [one.speed(one.jobs[name]).speed for name in "ab"] == [2.0, 1.0]
        assert one.table().speeds[:, 2].tolist() == [2.0, 1.0]
        assert by_type(one, one.jobs["a"], ["gpu"]) == (2.0,)
    assert Core(core.cluster, fifo()).estimator is DECLARED


def test_a_policy_may_ask_another_estimator_than_the_view_does() -> None:
    core = Core(parse_cluster("1x4"), fifo())
    made = job("a", gpus=2, profile=Profile())
    core.handle(0, [(0, SUBMITTED, "a", 0, made)])
    view = estimated(core, Doubled())
    assert view.speed(core.jobs["a"], tasks=2) == (2.0, 0.5)
    assert view.table().speeds.tolist() == [[0.0, 0.0, 2.0]]
    assert core.table().speeds.tolist() == [[0.0, 0.0, 1.0]]  # the view's own is as it was
    assert (view.now, view.running) == (core.now, core.running)


class Wrong(Doubled):
    """Takes the slow type for the fast one."""

    def estimate(
        self, cluster: Cluster, job: JobView, tasks: int, type: str, nodes: int | None, batch: int | None
    ) -> Estimate:
        return Estimate(4.0 if type == "K80" else 1.0, KNOWN)


def test_a_policy_believes_its_estimates_and_jobs_run_at_the_true_speed() -> None:
    made = job("a", seconds=100, profile=Profile(speeds={"V100": 1.0, "K80": 0.25}))
    on = parse_cluster("1x1:V100,1x1:K80")
    assert run([made], on, "allox").jct() == [100.0]
    assert run([made], on, "allox", estimator=Wrong()).jct() == [400.0]


def test_jobs_are_alike_to_an_estimator_that_looks_at_shape_and_traits() -> None:
    one, other = seen(job("a", gpus=2)), seen(job("b", gpus=2, traits=one_traits()))
    assert alike(DECLARED, one) == alike(DECLARED, seen(job("c", gpus=2, traits=one.traits)))
    assert alike(DECLARED, one) != alike(DECLARED, other)
    assert alike(Doubled(), one) != alike(Doubled(), seen(job("c", gpus=2, traits=one.traits)))


def one_traits() -> Traits:
    return Traits(profile=Profile(curve=CURVE))


def test_a_task_of_several_gpus_counts_as_one() -> None:
    wide = job("a", shape=Shape(tasks=2, each=2), traits=Traits(least=1, most=4))
    assert speed(parse_cluster("2x8"), wide, tasks=4).speed == 2.0
