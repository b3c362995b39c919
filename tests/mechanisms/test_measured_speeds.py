"""Speeds measured while jobs run, and how they are filled in where nothing was measured."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import pytest

from dovetail.mechanisms.estimate.measured_speeds import MEAN_OVER, MeasuredSpeeds
from dovetail.model.cluster import Cluster, GpuType, Node, parse_cluster
from dovetail.model.estimate import ASSUMED, speed_of
from dovetail.model.job import Job, Profile, Traits
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.policies.registry import POLICIES
from dovetail.testing.build import job, run

MIXED = parse_cluster("1x1:V100,1x1:P100,1x1:K80")
TYPES = ("V100", "P100", "K80")
SPEEDS = {
    "resnet": {"V100": 1.0, "P100": 0.5, "K80": 0.1},
    "a3c": {"V100": 1.0, "P100": 0.8, "K80": 0.5},
    "lm": {"V100": 1.0, "P100": 0.9, "K80": 0.25},
}


@dataclass
class Watching:
    """Another policy, with measured speeds in its memory; its estimates are kept for the tests."""

    inner: Policy
    estimates: list[dict[str, tuple[float, ...]]] = field(default_factory=list)
    measured: MeasuredSpeeds = field(default_factory=MeasuredSpeeds)

    @property
    def order(self) -> Order:
        return self.inner.order

    @property
    def group(self) -> Callable[[JobView], Hashable] | None:
        return self.inner.group

    @property
    def quantum(self) -> int | None:
        return self.inner.quantum

    def decide(self, view: View) -> Plan:
        known = view.memory if isinstance(view.memory, MeasuredSpeeds) else MeasuredSpeeds()
        self.measured = measured = known.observed(view)
        jobs = [*view.running.values(), *view.queue]
        self.estimates.append({job.id: speeds(measured, job, TYPES) for job in jobs})
        plan = self.inner.decide(view)
        plan.memory = measured
        return plan


def watched(jobs: Sequence[Job], cluster: Cluster = MIXED, *, ticking: bool = True) -> Watching:
    """A policy is asked when something happens: a very short job arrives every half minute."""
    policy = Watching(POLICIES.make("fifo", discipline="skip"))
    ticks = [job(f"tick{at}", at=at, seconds=0.1) for at in range(30, 3_000, 30)] if ticking else []
    run([*jobs, *ticks], cluster, policy)
    return policy


def of(model: str, name: str, kind: str = "", at: float = 0.0, gpus: int = 1) -> Job:
    types = [kind] if kind else []
    profile = Profile(speeds=SPEEDS[model])
    return job(name, gpus=gpus, seconds=100, at=at, model=model, types=types, profile=profile)


def view_of(job: Job, cluster: Cluster = MIXED) -> JobView:
    """The job as a policy sees it at its arrival."""
    found: list[JobView] = []

    @dataclass
    class Looking(Watching):
        def decide(self, view: View) -> Plan:
            found.extend(view.queue)
            return self.inner.decide(view)

    run([job], cluster, Looking(POLICIES.make("fifo")))
    return found[0]


def speeds(
    known: MeasuredSpeeds, job: JobView, types: Sequence[str], on: Cluster = MIXED
) -> tuple[float, ...]:
    return tuple(speed_of(known, on, job, type=name).speed for name in types)


def test_a_measured_speed_is_the_estimate() -> None:
    measured = watched(
        [of("resnet", "a", "P100"), of("resnet", "b", "K80", 1), of("resnet", "c", "V100", 2)]
    ).measured
    assert speeds(measured, view_of(of("resnet", "new")), TYPES) == (1.0, 0.5, 0.1)


def test_types_not_measured_are_filled_in_from_other_models() -> None:
    """The policy sees the rates of running jobs, and no profile."""
    jobs = [
        of("resnet", "a", "P100"), of("resnet", "b", "K80", 1), of("resnet", "c", "V100", 2),
        of("lm", "d", "P100", 1_100), of("lm", "e", "K80", 1_101), of("lm", "f", "V100", 1_102),
        of("a3c", "g", "K80", 2_200),
    ]  # fmt: skip
    measured = watched(jobs).measured
    v100, p100, k80 = speeds(measured, view_of(of("a3c", "new")), TYPES)
    assert k80 == 0.5  # measured
    assert v100 > p100 > k80  # as for the others
    assert measured.measured(view_of(of("a3c", "new"))) == {"K80": 0.5}
    typical = speeds(measured, view_of(job("x", seconds=1, model="never measured")), TYPES)
    assert typical[0] == pytest.approx(1.0, rel=0.1)
    assert 0.1 < typical[2] < 0.25


def test_a_model_that_is_slow_on_one_type_is_expected_to_be_faster_elsewhere() -> None:
    """So it is tried there."""
    measured = watched([of("resnet", "a", "K80")]).measured
    v100, p100, k80 = speeds(measured, view_of(of("resnet", "new")), TYPES)
    assert k80 == 0.1
    assert v100 == p100 > 0.95


def test_without_measurements_the_speeds_of_the_types_count() -> None:
    fast = Cluster((Node("a", 1, GpuType("A100", speed=3.0)), Node("b", 1, GpuType("T4", speed=0.5))))
    measured = watched([job("a", seconds=10, model="m"), job("b", seconds=10, at=5)], fast).measured
    assert speeds(MeasuredSpeeds(), view_of(of("lm", "a")), TYPES) == (1.0, 1.0, 1.0)
    assert speeds(measured, view_of(job("x", seconds=1), fast), ("T4", "A100", "H100")) == pytest.approx(
        (0.5, 3, 1)
    )
    assert speeds(
        measured, view_of(job("x", seconds=1, types=["T4"]), fast), ("T4", "A100")
    ) == pytest.approx((0.5, 0))


def test_a_rate_that_was_not_reported_is_not_a_measurement() -> None:
    """A job has a rate of 1 until it reports; it counts only for models that report other rates."""
    silent = watched([job("a", seconds=100, model="m")]).measured
    assert silent.means == {}
    jobs = [
        of("lm", "a", "V100"),
        of("lm", "b", "K80"),
        job("c", seconds=100, model="m"),
        job("d", at=50, seconds=1),
    ]
    told = watched(jobs).measured
    assert {cell: mean for cell, (mean, _) in told.means.items()} == {
        ("lm", 1, "V100"): 1.0,
        ("lm", 1, "K80"): 0.25,
    }


def test_a_job_that_just_started_or_names_no_model_is_not_measured() -> None:
    early = watched([of("lm", "a", "K80"), job("b", at=0.5, seconds=0.1)], ticking=False)
    assert early.measured.means == {}
    nameless = job("a", seconds=100, types=["K80"], profile=Profile(speeds=SPEEDS["lm"]))
    assert watched([nameless]).measured.means == {}


def test_a_job_on_a_part_of_a_device_is_not_measured() -> None:
    from dovetail.model.job import Shape

    half = job(
        "a", shape=Shape(milli=500), seconds=100, model="lm", profile=Profile(speeds=SPEEDS["lm"], split=2)
    )
    assert watched([half]).measured.means == {}


def test_certainty_grows_with_each_measurement() -> None:
    known = watched([of("lm", "a", "K80")]).measured
    _, count = known.means["lm", 1, "K80"]
    mine = view_of(of("lm", "new"))
    assert speed_of(known, MIXED, mine, type="K80") == (0.25, count / (count + 1))
    assert speed_of(known, MIXED, mine, type="V100").certainty == ASSUMED
    assert speed_of(known, MIXED, view_of(of("a3c", "other")), type="K80").certainty == ASSUMED


def test_other_sizes_are_scaled_as_the_profile_declares() -> None:
    known = MeasuredSpeeds({("lm", 2, "K80"): (0.3, 4)})
    profile = Profile(curve={1: 1.0, 2: 1.8, 4: 3.0}, split=2.0)
    made = job("x", seconds=1, gpus=2, model="lm", traits=Traits(least=1, most=4, profile=profile))
    four = parse_cluster("2x4:K80")
    mine = view_of(made, four)
    assert speed_of(known, four, mine) == (0.3, 0.8)
    assert speed_of(known, four, mine, tasks=4).speed == pytest.approx(0.3 * 3.0 / 1.8)
    assert speed_of(known, four, mine, tasks=4).certainty == ASSUMED
    assert speed_of(known, four, mine, nodes=2).speed == pytest.approx(0.15)
    assert speed_of(known, four, mine, tasks=5).speed == 0.0


def test_a_model_is_measured_for_each_number_of_gpus() -> None:
    two = parse_cluster("2x1:V100,2x1:K80")
    measured = watched([of("lm", "a", "K80", gpus=2)], two).measured
    assert set(measured.means) == {("lm", 2, "K80")}
    assert speeds(measured, view_of(of("lm", "x", gpus=2), two), ("K80",)) == (0.25,)
    assert speeds(measured, view_of(of("lm", "x"), two), ("K80",)) != (0.25,)


def test_measured_speeds_are_a_value() -> None:
    jobs = [of("lm", "a", "K80"), *(job(f"b{i}", at=2 + i, seconds=0.1) for i in range(MEAN_OVER + 50))]
    policy = watched(jobs, ticking=False)
    measured = policy.measured
    assert measured.means["lm", 1, "K80"] == (0.25, MEAN_OVER)
    new = view_of(of("lm", "new"))
    estimates = speeds(measured, new, TYPES)
    again = pickle.loads(pickle.dumps(measured))
    assert again == measured
    assert speeds(again, new, TYPES) == estimates
    assert len(pickle.dumps(measured)) < 500  # what is derived from it is not stored
    assert watched(jobs, ticking=False).estimates == policy.estimates
