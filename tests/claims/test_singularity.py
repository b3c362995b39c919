"""Singularity: tiers keep their GPU-time fractions, since every job can be halved, preempted and moved."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import Any

import pytest
from tests.claims.elastic_parts import sizes_at

from dovetail.mechanisms.quota.gpu_fraction import Period
from dovetail.model.grant import devices_of, nodes_of
from dovetail.model.job import Job
from dovetail.model.units import SECOND, WHOLE
from dovetail.sim.run import Run
from dovetail.testing.build import Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

POLICY = "dovetail.policies.singularity"
DECISION = f"{POLICY}:_Decision"
BASIC, STANDARD, PREMIUM = 0, 1, 2

MUTANTS = (
    mutant(
        "singularity",
        "preemption",
        "no job is preempted",
        killed_by="test_a_premium_job_starts_within_a_checkpoint_and_no_work_is_lost",
        replace={f"{DECISION}._by_preempting": lambda *_: False},
    ),
    mutant(
        "singularity",
        "transparent checkpoints",
        "the last job to start is preempted, also if it loses work",
        killed_by="test_a_job_that_would_lose_work_is_preempted_last",
        replace={f"{POLICY}:_victim": lambda job: (-job.started_at, -job.seq)},
    ),
    mutant(
        "singularity",
        "splicing",
        "a job on half of its GPUs is as fast as its curve says",
        killed_by="test_a_job_on_half_of_its_gpus_has_half_the_speed",
        replace={"dovetail.sim.true_speed:spliced": lambda shape, traits, tasks: 3.6 / 4.0},
    ),
    mutant(
        "singularity",
        "splicing",
        "taking turns costs nothing",
        killed_by="test_a_job_on_half_of_its_gpus_has_half_the_speed",
        replace={"dovetail.sim.true_speed:spliced": lambda shape, traits, tasks: tasks / shape.tasks},
    ),
    mutant(
        "singularity",
        "halving",
        "jobs are preempted at once",
        killed_by="test_tiers_give_up_gpus_in_order",
        replace={f"{DECISION}._by_shrinking": lambda *_: False},
    ),
    mutant(
        "singularity",
        "order of the tiers",
        "the highest tier gives first",
        killed_by="test_tiers_give_up_gpus_in_order",
        replace={f"{DECISION}._turn": lambda decision, job: (-decision.policy.tier(job), -job.seq)},
    ),
    mutant(
        "singularity",
        "order of the tiers",
        "basic jobs are preempted before standard jobs are halved",
        killed_by="test_tiers_give_up_gpus_in_order",
        replace={f"{DECISION}._spares": lambda decision, job: lambda other: other.priority == BASIC},
    ),
    mutant(
        "singularity",
        "order of the tiers",
        "the queue is in order of arrival",
        killed_by="test_a_higher_tier_is_served_first",
        replace={f"{POLICY}:Singularity.rank": lambda policy, job, now: (0, job.arrived_at)},
    ),
    mutant(
        "singularity",
        "GPU-time fractions",
        "a job that was halved claims nothing",
        killed_by="test_a_job_gets_its_gpus_back_before_it_is_below_its_fraction",
        replace={f"{DECISION}._claims": lambda decision, job: job.spots is None},
    ),
    mutant(
        "singularity",
        "GPU-time fractions",
        "what a job received does not count",
        killed_by="test_a_job_gets_its_gpus_back_before_it_is_below_its_fraction",
        replace={f"{POLICY}:lasts": lambda period, job, fraction, held, now: 0.0 if fraction else inf},
    ),
    mutant(
        "singularity",
        "GPU-time fractions",
        "what a job received before the period counts",
        killed_by="test_a_fraction_is_over_a_period",
        replace={f"{POLICY}:Period.at": lambda period, now, length, jobs: Period(now - now % length)},
    ),
    mutant(
        "singularity",
        "growth",
        "jobs do not grow beyond their request",
        killed_by="test_jobs_grow_beyond_their_request_on_idle_gpus",
        replace={f"{DECISION}._settled": lambda *_: False},
    ),
    mutant(
        "singularity",
        "growth",
        "a job keeps what it grew to",
        killed_by="test_jobs_grow_beyond_their_request_on_idle_gpus",
        replace={f"{POLICY}:_expanded": lambda job: False},
    ),
    mutant(
        "singularity",
        "growth",
        "a halved job stays halved",
        killed_by="test_a_job_on_half_of_its_gpus_has_half_the_speed",
        replace={f"{DECISION}._grow": lambda _: None},
    ),
    mutant(
        "singularity",
        "idle GPUs",
        "a job waits until all it asked for is free",
        killed_by="test_a_job_starts_on_the_half_that_is_free",
        replace={f"{DECISION}._start": lambda decision, job: decision._as_asked(job)},
    ),
    mutant(
        "singularity",
        "defragmentation",
        "no job moves",
        killed_by="test_a_job_moves_so_that_another_fits_on_one_node",
        replace={f"{POLICY}:start_by_moving": lambda *_: False},
    ),
    mutant(
        "singularity",
        "defragmentation",
        "jobs move that lose their work",
        killed_by="test_no_job_moves_that_would_lose_work",
        replace={f"{DECISION}._may_move": lambda *_: True},
    ),
)

SEEDS = range(300, 310)
STEEP = Profile(curve={1: 1.0, 2: 1.9, 4: 3.6, 8: 4.0})
TRANSPARENT = Checkpoint(save=20 * SECOND, restore=40 * SECOND)
PERIODIC = Checkpoint(on_stop=False, every=1200 * SECOND, restore=40 * SECOND)  # the user's own
NONE = Checkpoint(on_stop=False)
ONE_NODE = cluster(nodes=1, gpus=8)


def spliced(name: str, gpus: int, tier: int, *, minutes: float, at: float = 0.0, **more: Any) -> Job:
    """Half of its GPUs are enough; taking turns costs 2 %."""
    more = {"least": max(1, gpus // 2), "checkpoint": TRANSPARENT, "splice": 0.02, **more}
    return job(name, gpus=gpus, minutes=minutes, at=at, priority=tier, **more)


def premium(gpus: int, *, at: float, minutes: float = 10, name: str = "premium") -> Job:
    return job(name, gpus=gpus, minutes=minutes, at=at, priority=PREMIUM)


@claim("singularity", "a premium arrival starts within one checkpoint time, and no completed work is lost")
def test_a_premium_job_starts_within_a_checkpoint_and_no_work_is_lost() -> None:
    """Five jobs of an hour hold 10 GPUs; two of them save every 20 min by themselves. It arrives after 25."""

    def preempted(policy: str, user: Sequence[Checkpoint]) -> Run:
        jobs = [job(f"b{n}", gpus=2, hours=1, checkpoint=each) for n, each in enumerate(user)]
        return run([*jobs, premium(10, at=1500)], cluster(nodes=1, gpus=10), policy)

    def check(result: Run) -> None:
        assert result.start("premium") == 1500 + 20
        assert result.lost == 10 * WHOLE * (20 + 40) * SECOND  # to save and to restore
        assert max(result.jct("b*")) == 3600 + 20 + 600 + 40

    transparent, by_users = [TRANSPARENT] * 5, [PERIODIC] * 2 + [NONE] * 3
    ours = preempted("singularity", transparent)
    tells_apart(check, ours, preempted("singularity", by_users))  # it loses work
    tells_apart(check, ours, preempted("fifo", transparent))  # it waits


@claim("singularity", "a job whose checkpoints are transparent is preempted before one that would lose work")
def test_a_job_that_would_lose_work_is_preempted_last() -> None:
    jobs = [job("safe", gpus=4, hours=1, checkpoint=TRANSPARENT)]
    jobs += [job("user's", gpus=4, hours=1, at=60, checkpoint=NONE), premium(4, at=600)]

    def check(result: Run) -> None:
        assert result.start("premium") == 620
        assert result.finish("user's") == 3660

    tells_apart(check, run(jobs, ONE_NODE, "singularity"), run(jobs, ONE_NODE, "priority", preempt=True))


@claim("singularity", "on 4 of 8 GPUs a job has half its speed, less what splicing costs, with 8 workers")
def test_a_job_on_half_of_its_gpus_has_half_the_speed() -> None:
    """For 600 s it has 4 GPUs, after a pause of 10 s; its curve would have it at 0.9 of its speed."""
    pause = Checkpoint(save=20 * SECOND, restore=40 * SECOND, resize=10 * SECOND)

    def shrunk(**traits: Any) -> Run:
        wide = job("wide", gpus=8, hours=1, profile=STEEP, checkpoint=pause, **traits)
        return run([wide, premium(4, at=600)], ONE_NODE, "singularity")

    def check(result: Run) -> None:
        assert [sizes_at(result, at).get("wide") for at in (599, 601, 1199, 1201)] == [8, 4, 4, 8]
        assert result.preemptions == 0
        done = 600 + (600 - 10) * 0.98 / 2
        assert result.finish("wide") == pytest.approx(1200 + 10 + 3600 - done)

    tells_apart(check, shrunk(splice=0.02), shrunk(least=1))  # its workers become fewer
    tells_apart(check, shrunk(splice=0.02), shrunk())


@claim("singularity", "basic jobs are halved, then standard jobs, and then basic jobs are preempted")
def test_tiers_give_up_gpus_in_order() -> None:
    """The standard job has been there for two hours, and has received more than 0.7 of its time."""
    jobs = [spliced("rigid", 1, BASIC, minutes=600), spliced("basic", 4, BASIC, minutes=600, least=1)]
    jobs += [spliced("standard", 4, STANDARD, minutes=600)]
    jobs += [premium(2, at=7200 + 60 * n, minutes=60, name=f"p{n}") for n in range(2)]
    jobs += [premium(1, at=7320, minutes=60, name="p2"), premium(1, at=7380, minutes=60, name="p3")]

    def check(result: Run) -> None:
        own = {"rigid": 1, "basic": 4, "standard": 4}
        assert sizes_at(result, 7190) == own
        found = [
            {name: held for name, held in sizes_at(result, 7240 + 60 * n).items() if name in own}
            for n in range(4)
        ]
        assert found[0] == own | {"basic": 2}
        assert found[1] == own | {"basic": 2, "standard": 2}
        assert found[2] == own | {"basic": 1, "standard": 2}
        assert found[3] == {"rigid": 1, "standard": 2}
        assert max(result.wait("p*")) <= 20

    ours = run(jobs, cluster(nodes=1, gpus=9), "singularity")
    tells_apart(check, ours, run(jobs, cluster(nodes=1, gpus=9), "dragon"))


@claim("singularity", "of the jobs that wait, one of a higher tier starts first")
def test_a_higher_tier_is_served_first() -> None:
    jobs = [premium(8, at=0, name="first")]
    for tier in (BASIC, STANDARD, PREMIUM):
        at = 10.0 * (1 + tier)
        jobs.append(job(f"t{tier}", gpus=8, minutes=10, at=at, priority=tier, preemptible=False))

    def check(result: Run) -> None:
        assert [result.start(name) for name in ("t2", "t1", "t0")] == [600, 1200, 1800]

    tells_apart(check, run(jobs, ONE_NODE, "singularity"), run(jobs, ONE_NODE, "fifo"))


def part_received(result: Run, jobs: Sequence[Job], start: float, end: float) -> float:
    """The GPU time that jobs held between two times, of what they asked for while they were there."""
    asked = received = 0.0
    for each in jobs:
        gone = min(result.finish(each.id), end)
        asked += each.shape.gpus * max(0.0, gone - max(each.arrived_at / SECOND, start))
        held = [s for s in result.stretches if s.job == each.id]
        times = [(min(s.end / SECOND, end) - max(s.start / SECOND, start), s.spots) for s in held]
        received += sum(max(0.0, time) * devices_of(spots) for time, spots in times)
    return received / asked if asked else 1.0


def halved_for_a_day() -> list[Job]:
    """A premium job of 2 GPUs comes after two hours, and only the standard job can be halved for it."""
    standard = spliced("standard", 4, STANDARD, minutes=1440)
    basic = job("basic", gpus=4, hours=24, checkpoint=TRANSPARENT)
    return [standard, basic, premium(2, at=7200, minutes=1440)]


@claim("singularity", "a standard job is halved while it can be, and gets its GPUs back at 0.7 of its time")
def test_a_job_gets_its_gpus_back_before_it_is_below_its_fraction() -> None:
    """0.3 of 4 GPUs for 2 h is the 0.8 GPUs that it lacks for 3 h; 10 min before that, basic is preempted."""
    jobs = halved_for_a_day()

    def check(result: Run) -> None:
        assert sizes_at(result, 7300) == {"standard": 2, "basic": 4, "premium": 2}
        back = 7200 + 10_800 - 600
        assert sizes_at(result, back - 60)["standard"] == 2
        assert sizes_at(result, back + 60) == {"standard": 4, "premium": 2}
        for hour in range(1, 24):
            assert part_received(result, jobs[:1], 0, 3600.0 * hour) >= 0.7

    tells_apart(check, run(jobs, ONE_NODE, "singularity"), run(jobs, ONE_NODE, "dragon", pending_limit=0.0))


@claim("singularity", "what counts is the fraction of each period: what a job had in the last one is past")
def test_a_fraction_is_over_a_period() -> None:
    """With a period of two and a half hours the standard job gets its GPUs back then, not after five."""
    jobs = halved_for_a_day()

    def check(result: Run) -> None:
        assert sizes_at(result, 8990)["standard"] == 2
        assert sizes_at(result, 9060)["standard"] == 4

    short = run(jobs, ONE_NODE, "singularity", period=9000.0)
    tells_apart(check, short, run(jobs, ONE_NODE, "singularity"))


@claim("singularity", "a job grows beyond its request on idle GPUs, and gives them to the next arrival")
def test_jobs_grow_beyond_their_request_on_idle_gpus() -> None:
    """8 workers on 4 GPUs, that have one each after 10 min: of an hour, 3000 s are left then, at 2/0.98."""
    jobs = [spliced("grown", 4, BASIC, minutes=60, most=8, checkpoint=Checkpoint())]
    jobs += [job("new", gpus=4, hours=1, at=1200)]

    def check(result: Run) -> None:
        assert [sizes_at(result, at) for at in (590, 610)] == [{"grown": 4}, {"grown": 8}]
        assert sizes_at(result, 1201) == {"grown": 4, "new": 4}
        assert result.finish("grown") == pytest.approx(1200 + 3600 - (600 + 600 * 2 / 0.98))

    tells_apart(check, run(jobs, ONE_NODE, "singularity"), run(jobs, ONE_NODE, "fifo"))


@claim("singularity", "a job starts on half of its GPUs while the others are busy, and then gets them too")
def test_a_job_starts_on_the_half_that_is_free() -> None:
    jobs = [premium(4, at=0), spliced("late", 8, BASIC, minutes=60, at=60, checkpoint=Checkpoint())]

    def check(result: Run) -> None:
        assert [sizes_at(result, at).get("late") for at in (61, 601)] == [4, 8]
        assert result.finish("late") == pytest.approx(600 + 3600 - 540 * 0.98 / 2)

    tells_apart(check, run(jobs, ONE_NODE, "singularity"), run(jobs, ONE_NODE, "fifo"))


def fragmented(*, checkpoint: Checkpoint) -> list[Job]:
    """After 1000 s two nodes of 4 GPUs have a job on 2 each; a third wants 4, and would be slow on both."""
    jobs = [job(name, gpus=2, hours=1, checkpoint=checkpoint) for name in ("a", "x", "b", "y")]
    jobs[1::2] = [job(name, gpus=2, seconds=1000) for name in "xy"]
    return [*jobs, job("wide", gpus=4, hours=1, at=1200, profile=Profile(split=2.0))]


@claim("singularity", "running jobs are moved together, so that a job fits on one node")
def test_a_job_moves_so_that_another_fits_on_one_node() -> None:
    jobs = fragmented(checkpoint=TRANSPARENT)

    def check(result: Run) -> None:
        assert [len(nodes_of(s.spots)) for s in result.stretches if s.job == "wide"] == [1]
        assert result.finish("wide") == 1200 + 20 + 3600
        assert sorted(result.jct("[ab]")) == [3600, 3600 + 20 + 40]

    two = cluster(nodes=2, gpus=4)
    tells_apart(check, run(jobs, two, "singularity"), run(jobs, two, "dragon"))


@claim("singularity", "a job that would lose its work is not moved")
def test_no_job_moves_that_would_lose_work() -> None:
    two = cluster(nodes=2, gpus=4)

    def check(result: Run) -> None:
        assert result.preemptions == 0
        assert result.lost == 0

    ours = run(fragmented(checkpoint=NONE), two, "singularity")
    tells_apart(check, ours, run(fragmented(checkpoint=TRANSPARENT), two, "singularity"))


DAY = 86_400.0
FLEET = cluster(nodes=4, gpus=8)


def trace(seed: int, user_level: bool = False) -> list[Job]:
    """Two days at 1.2 times the 32 GPUs: a sixth is premium, a sixth standard, the rest is basic.

    Basic jobs can use twice what they ask for, and 36 of them wait when it begins: a load above 1 leaves a
    queue. With checkpoints at user level, 40 % of the jobs have them, and none is spliced.
    """
    luck, left, jobs = random.Random(seed), 1.2 * 32 * 2 * DAY, list[Job]()
    while left > 0:
        tier, at = luck.choices((BASIC, STANDARD, PREMIUM), (4, 1, 1))[0], luck.uniform(0, 2 * DAY)
        if len(jobs) < 36:
            tier, at = BASIC, 0.0
        gpus, minutes = luck.choice((1, 2, 4)), luck.uniform(60, 300)
        name, most, own = f"j{len(jobs)}", gpus if tier else 2 * gpus, luck.random() < 0.4
        if user_level:
            checkpoint = PERIODIC if own else NONE
            made = job(name, gpus=gpus, minutes=minutes, at=at, priority=tier, checkpoint=checkpoint)
        else:
            made = spliced(name, gpus, tier, minutes=minutes, at=at, least=1, most=most)
        jobs.append(made)
        left -= gpus * minutes * 60
    return sorted(jobs, key=lambda each: each.arrived_at)


@lru_cache
def runs(policy: str, user_level: bool = False) -> list[Run]:
    return [run(trace(seed, user_level), FLEET, policy) for seed in SEEDS]


def premium_and_use(result: Run, jobs: Sequence[Job]) -> list[tuple[float, float]]:
    """For each day the fraction of premium jobs, and the part of the GPUs that was in use."""
    first = [each for each in jobs if each.priority == PREMIUM]
    found = []
    for start, end in ((0.0, DAY), (DAY, 2 * DAY)):
        held = [(min(s.end / SECOND, end) - max(s.start / SECOND, start), s.spots) for s in result.stretches]
        used = sum(max(0.0, time) * devices_of(spots) for time, spots in held)
        found.append((part_received(result, first, start, end), used / (end - start) / 32))
    return found


@claim(
    "singularity", "at load 1.2 premium jobs get 0.95 of their GPU time each day, and 95 % of GPUs are in use"
)
@pytest.mark.parametrize("baseline", ["fifo", "dragon", "priority"])
def test_premium_jobs_keep_their_fraction_on_a_full_cluster(baseline: str) -> None:
    """Preemption by priority does so too, where checkpoints are at user level, and loses work."""

    def check(results: list[Run]) -> None:
        for seed, result in zip(SEEDS, results, strict=True):
            for fraction, use in premium_and_use(result, trace(seed)):
                assert fraction >= 0.95
                assert use >= 0.95
            assert result.lost <= 0.02 * result.busy

    tells_apart(check, runs("singularity"), runs(baseline, baseline == "priority"))


def test_periods_begin_at_multiples_of_their_length() -> None:
    assert Period().at(10, 100, ()) == Period()
    assert Period().at(250, 100, ()) == Period(200, {})
