"""What a policy believes of a job's speed on each type: as declared, or as seen."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import pytest

from dovetail.mechanisms.throughput import FADES, Seen, declared
from dovetail.model.cluster import Cluster, GpuType, Node, parse_cluster
from dovetail.model.job import Job, Profile
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.policies.table import POLICIES
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
    """Another policy, with what was seen in its memory; all that it believed on the way is kept."""

    inner: Policy
    believed: list[dict[str, tuple[float, ...]]] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)

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
        known = view.memory if isinstance(view.memory, Seen) else Seen()
        self.seen = seen = known.with_(view)
        jobs = [*view.running.values(), *view.queue]
        self.believed.append({job.id: seen.speeds(job, TYPES) for job in jobs})
        plan = self.inner.decide(view)
        plan.memory = seen
        return plan


def watched(jobs: Sequence[Job], cluster: Cluster = MIXED, *, ticking: bool = True) -> Watching:
    """A policy is asked when something happens: somebody comes every half minute for a moment."""
    policy = Watching(POLICIES.make("fifo", discipline="skip"))
    ticks = [job(f"tick{at}", at=at, seconds=0.1) for at in range(30, 3_000, 30)] if ticking else []
    run([*jobs, *ticks], cluster, policy)
    return policy


def of(model: str, name: str, kind: str = "", at: float = 0.0, gpus: int = 1) -> Job:
    types = [kind] if kind else []
    profile = Profile(speeds=SPEEDS[model])
    return job(name, gpus=gpus, seconds=100, at=at, model=model, types=types, profile=profile)


def view_of(job: Job, cluster: Cluster = MIXED) -> JobView:
    """The job as a policy sees it when it comes."""
    found: list[JobView] = []

    @dataclass
    class Looking(Watching):
        def decide(self, view: View) -> Plan:
            found.extend(view.queue)
            return self.inner.decide(view)

    run([job], cluster, Looking(POLICIES.make("fifo")))
    return found[0]


def test_declared_is_what_the_profile_says() -> None:
    assert declared(MIXED, view_of(of("resnet", "a")), TYPES) == (1.0, 0.5, 0.1)


def test_declared_by_nobody_is_what_the_cluster_says_of_its_types() -> None:
    fast = Cluster((Node("a", 1, GpuType("A100", speed=3.0)), Node("b", 1, GpuType("T4", speed=0.5))))
    plain = view_of(job("a", seconds=1), fast)
    assert declared(fast, plain, ("T4", "A100")) == (0.5, 3.0)
    partly = view_of(job("a", seconds=1, profile=Profile(speeds={"T4": 0.2})), fast)
    assert declared(fast, partly, ("T4", "A100")) == (0.2, 3.0)
    bound = view_of(job("a", seconds=1, types=["T4"]), fast)
    assert declared(fast, bound, ("T4", "A100")) == (0.5, 0.0)  # it may not run there


def test_what_was_measured_is_believed() -> None:
    seen = watched(
        [of("resnet", "a", "P100"), of("resnet", "b", "K80", 1), of("resnet", "c", "V100", 2)]
    ).seen
    assert seen.speeds(view_of(of("resnet", "new")), TYPES) == (1.0, 0.5, 0.1)


def test_what_was_not_is_filled_in_from_others() -> None:
    """Nobody told the speeds: the policy sees the rates of those who run, and no profile."""
    jobs = [
        of("resnet", "a", "P100"), of("resnet", "b", "K80", 1), of("resnet", "c", "V100", 2),
        of("lm", "d", "P100", 1_100), of("lm", "e", "K80", 1_101), of("lm", "f", "V100", 1_102),
        of("a3c", "g", "K80", 2_200),
    ]  # fmt: skip
    seen = watched(jobs).seen
    v100, p100, k80 = seen.speeds(view_of(of("a3c", "new")), TYPES)
    assert k80 == 0.5  # measured
    assert v100 > p100 > k80  # as for the others
    assert seen.measured(view_of(of("a3c", "new"))) == {"K80": 0.5}
    typical = seen.speeds(view_of(job("x", seconds=1, model="never seen")), TYPES)
    assert typical[0] == pytest.approx(1.0, rel=0.1)
    assert 0.1 < typical[2] < 0.25


def test_one_seen_slow_is_believed_faster_elsewhere() -> None:
    """So it will be tried there."""
    seen = watched([of("resnet", "a", "K80")]).seen
    v100, p100, k80 = seen.speeds(view_of(of("resnet", "new")), TYPES)
    assert k80 == 0.1
    assert v100 == p100 > 0.95


def test_where_nothing_is_known_types_have_their_own_speed() -> None:
    fast = Cluster((Node("a", 1, GpuType("A100", speed=3.0)), Node("b", 1, GpuType("T4", speed=0.5))))
    seen = watched([job("a", seconds=10, model="m"), job("b", seconds=10, at=5)], fast).seen
    assert Seen().speeds(view_of(of("lm", "a")), TYPES) == (1.0, 1.0, 1.0)
    assert seen.speeds(view_of(job("x", seconds=1), fast), ("T4", "A100", "H100")) == pytest.approx(
        (0.5, 3, 1)
    )
    assert seen.speeds(view_of(job("x", seconds=1, types=["T4"]), fast), ("T4", "A100")) == pytest.approx(
        (0.5, 0)
    )


def test_a_rate_that_nobody_reported_teaches_nothing() -> None:
    """A rate of 1 is what a job has till it reports; only a model that reports others is believed."""
    silent = watched([job("a", seconds=100, model="m")]).seen
    assert silent.means == {}
    jobs = [
        of("lm", "a", "V100"),
        of("lm", "b", "K80"),
        job("c", seconds=100, model="m"),
        job("d", at=50, seconds=1),
    ]
    told = watched(jobs).seen
    assert {cell: mean for cell, (mean, _) in told.means.items()} == {
        ("lm", 1, "V100"): 1.0,
        ("lm", 1, "K80"): 0.25,
    }


def test_who_has_just_begun_or_has_no_name_teaches_nothing() -> None:
    early = watched([of("lm", "a", "K80"), job("b", at=0.5, seconds=0.1)], ticking=False)
    assert early.seen.means == {}
    nameless = job("a", seconds=100, types=["K80"], profile=Profile(speeds=SPEEDS["lm"]))
    assert watched([nameless]).seen.means == {}


def test_part_of_a_device_teaches_nothing() -> None:
    from dovetail.model.job import Shape

    half = job(
        "a", shape=Shape(milli=500), seconds=100, model="lm", profile=Profile(speeds=SPEEDS["lm"], split=2)
    )
    assert watched([half]).seen.means == {}


def test_gangs_are_known_by_their_size() -> None:
    two = parse_cluster("2x1:V100,2x1:K80")
    seen = watched([of("lm", "a", "K80", gpus=2)], two).seen
    assert set(seen.means) == {("lm", 2, "K80")}
    assert seen.speeds(view_of(of("lm", "x", gpus=2), two), ("K80",)) == (0.25,)
    assert seen.speeds(view_of(of("lm", "x"), two), ("K80",)) != (0.25,)


def test_it_is_a_value() -> None:
    jobs = [of("lm", "a", "K80"), *(job(f"b{i}", at=2 + i, seconds=0.1) for i in range(FADES + 50))]
    policy = watched(jobs, ticking=False)
    seen = policy.seen
    assert seen.means["lm", 1, "K80"] == (0.25, FADES)
    new = view_of(of("lm", "new"))
    believed = seen.speeds(new, TYPES)
    again = pickle.loads(pickle.dumps(seen))
    assert again == seen
    assert again.speeds(new, TYPES) == believed
    assert len(pickle.dumps(seen)) < 500  # what was worked out from it is not kept
    assert watched(jobs, ticking=False).believed == policy.believed
