"""Chronus: deadlines are promised against a table of leases, and best-effort jobs use the rest."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

import numpy as np

from dovetail.core.core import Core, Step
from dovetail.mechanisms.preempt.displacement import preemptive
from dovetail.model.action import Answer
from dovetail.model.grant import nodes_of
from dovetail.model.job import Job
from dovetail.model.view import JobView, Order, Policy
from dovetail.policies.composed import Composed
from dovetail.policies.registry import POLICIES
from dovetail.sim.run import Run
from dovetail.solve.lease_tables import Demand, IntVector, Table, backwards, exact
from dovetail.testing.build import SECOND, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

CHRONUS = "dovetail.policies.chronus"


def always(demands: Sequence[Demand], room: IntVector) -> Table:
    """Every deadline is accepted: what cannot be in the table before it comes after it."""
    table, left = (
        Table(),
        np.concatenate([room, np.full(sum(d.need for d in demands), room[-1:].max(initial=0))]),
    )
    for need, width, _ in demands:
        free = np.flatnonzero(left >= width)[:need]
        left[free] -= width
        table.append(tuple(free.tolist()))
    return table


def forwards(demands: Sequence[Demand], room: IntVector) -> Table | None:
    """The same order of jobs, each from its first lease on."""
    left = room.copy()
    table: Table = [()] * len(demands)
    order = sorted(range(len(demands)), key=lambda i: (demands[i].last - demands[i].need, *demands[i][:2]))
    for i in order:
        free = np.flatnonzero(left[: max(demands[i].last, 0)] >= demands[i].width)[: demands[i].need]
        if len(free) < demands[i].need:
            return None
        left[free] -= demands[i].width
        table[i] = tuple(free.tolist())
    return table


def by_volume(demands: Sequence[Demand], room: IntVector) -> Table | None:
    """Enough GPU time before each deadline, whatever the gangs."""
    for last in {demand.last for demand in demands}:
        asked = sum(d.need * d.width for d in demands if d.last <= last)
        if asked > room[: max(last, 0)].sum():
            return None
    return always(demands, room)


MUTANTS = (
    mutant(
        "chronus",
        "admission",
        "every deadline is accepted",
        killed_by="test_a_promise_is_kept_and_a_deadline_that_would_break_it_is_not_accepted",
        replace={f"{CHRONUS}:fast_check": always},
    ),
    mutant(
        "chronus",
        "admission",
        "a deadline is accepted if there is enough GPU time before it, whatever the gangs",
        killed_by="test_gangs_are_counted_lease_by_lease",
        replace={f"{CHRONUS}:fast_check": by_volume},
    ),
    mutant(
        "chronus",
        "admission",
        "the program is solved by the fast check",
        killed_by="test_the_exact_check_accepts_more",
        replace={f"{CHRONUS}:exact": backwards},
    ),
    mutant(
        "chronus",
        "leases as late as possible",
        "accepted jobs have the first leases that are free",
        killed_by="test_a_best_effort_job_goes_before_a_deadline_that_can_wait",
        replace={f"{CHRONUS}:fast_check": forwards},
    ),
    mutant(
        "chronus",
        "moved earlier",
        "accepted jobs wait for their leases although GPUs are idle",
        killed_by="test_accepted_jobs_use_leases_that_are_idle",
        replace={f"{CHRONUS}:moved_earlier": lambda jobs: ()},
    ),
    mutant(
        "chronus",
        "best effort by least remaining service",
        "best-effort jobs run in the order of arrival",
        killed_by="test_best_effort_jobs_run_by_least_remaining_service",
        replace={f"{CHRONUS}:ranked": lambda jobs, now: list(jobs)},
    ),
    mutant(
        "chronus",
        "consolidation",
        "no job is moved for another",
        killed_by="test_a_job_that_suffers_from_being_split_is_consolidated",
        replace={f"{CHRONUS}:consolidated": lambda view, plan, job, among: False},
    ),
    mutant(
        "chronus",
        "noise margin",
        "run times are taken as they are declared",
        killed_by="test_a_margin_keeps_promises_although_estimates_are_short",
        options={"margin": 0.0},
    ),
)


def _due(job: JobView, now: int) -> tuple[float, int]:
    return (inf if job.deadline is None else job.deadline, job.arrived_at)


def _yields(job: JobView, now: int) -> tuple[float, int, int]:
    due, arrived_at = _due(job, now)
    return (-due, -arrived_at, -job.seq)


def edf() -> Policy:
    """Earliest deadline first, preempting; jobs without a deadline last, by arrival."""
    order = Order(_due, _yields, _yields)
    return Composed(order=order, serve=preemptive(order, strict=False))


class Seen(NamedTuple):
    """A run, and what users were told."""

    run: Run
    accepted: frozenset[str]

    @property
    def missed(self) -> set[str]:
        jobs = self.run.jobs
        due = {
            id: due
            for id, due, j in zip(jobs.id, jobs.deadline, jobs.job, strict=True)
            if j.deadline is not None
        }
        return {id for id, at in due.items() if self.run.finish(id) * SECOND > at}

    @property
    def broken(self) -> set[str]:
        return set(self.accepted & self.missed)


def seen(jobs: Sequence[Job], gpus: int, policy: str | Policy, *, nodes: int = 1, **options: Any) -> Seen:
    accepted = set[str]()

    def told(core: Core, step: Step) -> None:
        accepted.update(a.job for a in step.actions if isinstance(a, Answer) and a.answer == "accepted")

    result = run(jobs, cluster(nodes=nodes, gpus=gpus), policy, on_step=told, **options)
    return Seen(result, frozenset(accepted))


def instance(luck: random.Random) -> tuple[list[Demand], IntVector]:
    """Up to five gangs, and up to seven leases of one to four GPUs."""
    horizon = luck.randint(1, 7)
    room = np.array([luck.randint(1, 4) for _ in range(horizon)], np.int64)
    demands = [
        Demand(luck.randint(0, 2), luck.randint(1, 4), luck.randint(1, horizon))
        for _ in range(luck.randint(2, 5))
    ]
    return demands, room


@claim("chronus", "the fast check never accepts what the MILP refuses, on 300 random tables")
def test_the_fast_check_never_accepts_what_the_milp_refuses() -> None:
    cases = [instance(random.Random(seed)) for seed in range(300)]
    feasible = [exact(*case) is not None for case in cases]
    assert 60 < sum(feasible) < 240

    def check(accepts: Callable[[Sequence[Demand], IntVector], Table | None]) -> None:
        found = [accepts(*case) is not None for case in cases]
        assert not [i for i, (ours, may) in enumerate(zip(found, feasible, strict=True)) if ours and not may]
        assert sum(found) > 0.9 * sum(feasible)

    tells_apart(check, backwards, by_volume)


@claim("chronus", "a deadline that would break a promise is not accepted; the promise is kept")
def test_a_promise_is_kept_and_a_deadline_that_would_break_it_is_not_accepted() -> None:
    """One GPU. The second job is due first, but both cannot be met; a third can, beside the first."""
    jobs = [
        job("first", seconds=600, deadline=900),
        job("second", seconds=360, at=60, deadline=600),
        job("third", seconds=240, at=120, deadline=900),
    ]

    def check(result: Seen) -> None:
        assert result.accepted == {"first", "third"}
        assert result.missed == {"second"}

    tells_apart(check, seen(jobs, 1, "chronus", lease=60.0), seen(jobs, 1, edf()))


@claim(
    "chronus", "gangs are counted lease by lease: three of two GPUs do not fit on three GPUs in two leases"
)
def test_gangs_are_counted_lease_by_lease() -> None:
    """12 GPU-minutes are asked for and 18 are there, but only one of three gangs runs at a time."""
    jobs = [job(f"gang{i}", gpus=2, seconds=120, deadline=300) for i in range(3)]

    def check(result: Seen) -> None:
        assert len(result.accepted) == 2
        assert result.broken == set()
        assert len(result.missed) == 1

    tells_apart(check, seen(jobs, 3, "chronus", lease=60.0), seen(jobs, 3, edf()))


@claim("chronus", "the exact check (MILP) accepts a set of deadlines that the fast check refuses")
def test_the_exact_check_accepts_more() -> None:
    """Two narrow jobs share the first minute, so that the wide one has the second."""
    jobs = [
        job("narrow", seconds=60, deadline=60),
        job("later", seconds=60, deadline=120),
        job("wide", gpus=3, seconds=60, deadline=120),
    ]

    def check(result: Seen) -> None:
        assert result.accepted == {"narrow", "later", "wide"}
        assert result.missed == set()

    fast = seen(jobs, 3, "chronus", lease=60.0)
    tells_apart(check, seen(jobs, 3, "chronus", lease=60.0, check="exact"), fast)


@claim("chronus", "a best-effort job goes before a deadline that can wait, and the deadline is met")
def test_a_best_effort_job_goes_before_a_deadline_that_can_wait() -> None:
    jobs = [job("dated", seconds=600, deadline=1_200), job("free", seconds=300)]

    def check(result: Seen) -> None:
        assert result.run.finish("free") == 300
        assert result.run.finish("dated") <= 1_200

    tells_apart(check, seen(jobs, 1, "chronus", lease=60.0), seen(jobs, 1, edf()))


@claim("chronus", "accepted jobs are moved to earlier leases that are idle")
def test_accepted_jobs_use_leases_that_are_idle() -> None:
    jobs = [job("dated", seconds=600, deadline=6_000), job("free", seconds=120)]

    def check(result: Seen) -> None:
        assert result.run.finish("free") == 120
        assert result.run.finish("dated") == 720

    tells_apart(check, seen(jobs, 1, "chronus", lease=60.0), seen(jobs, 1, edf()))


@claim("chronus", "best-effort jobs run by least remaining service, preempted at the end of a lease")
def test_best_effort_jobs_run_by_least_remaining_service() -> None:
    jobs = [
        job("long", seconds=3_600),
        job("wide", seconds=120, gpus=2, at=30),
        job("short", seconds=60, at=30),
    ]

    def check(result: Seen) -> None:
        assert [result.run.finish(name) for name in ("short", "wide")] == [90, 240]

    tells_apart(check, seen(jobs, 2, "chronus", lease=60.0), seen(jobs, 2, edf()))


@claim(
    "chronus", "a job that suffers from being split is packed at the end of a lease: another is moved for it"
)
def test_a_job_that_suffers_from_being_split_is_consolidated() -> None:
    """After 10 s two GPUs are free on each of two nodes of four; split, the gang of four is twice as slow."""
    lengths = [1_200, 1_200, 10, 10, 1_200, 1_200, 10, 10]
    jobs = [job(f"j{i}", seconds=seconds, deadline=1_500) for i, seconds in enumerate(lengths)]
    jobs.append(job("gang", gpus=4, seconds=600, at=15, deadline=720, profile=Profile(split=2.0)))

    def check(result: Seen) -> None:
        gang = [stretch for stretch in result.run.stretches if stretch.job == "gang"]
        assert {len(nodes_of(stretch.spots)) for stretch in gang if stretch.start >= 60 * SECOND} == {1}
        assert result.missed == set()

    tells_apart(
        check,
        seen(jobs, 4, "chronus", nodes=2, lease=60.0),
        seen(jobs, 4, "fifo", nodes=2, placement="scattered"),
    )


@claim("chronus", "with a margin promises are kept although jobs run 20 % longer than declared")
def test_a_margin_keeps_promises_although_estimates_are_short() -> None:
    jobs = [job(f"j{i}", seconds=720, estimate=600, deadline=d) for i, d in enumerate((800, 1_500, 2_000))]

    def check(result: Seen) -> None:
        assert len(result.accepted) == 2
        assert result.broken == set()

    exactly = seen(jobs, 1, "chronus", lease=60.0, margin=0.0)
    tells_apart(check, seen(jobs, 1, "chronus", lease=60.0, margin=0.25), exactly)


@claim("chronus", "jobs that are picked again keep their GPUs: leases are renewed in place")
def test_leases_are_renewed_in_place() -> None:
    """Two jobs fill the cluster for ten leases while a longer one waits."""
    jobs = [job(f"j{i}", gpus=2, seconds=600, deadline=600) for i in range(2)]
    jobs.append(job("long", gpus=4, seconds=6_000))

    def check(result: Seen) -> None:
        assert len([s for s in result.run.stretches if s.job != "long"]) == 2
        assert result.run.preemptions == 0

    rounds = POLICIES.make("gavel")
    tells_apart(check, seen(jobs, 4, "chronus", lease=60.0), seen(jobs, 4, rounds))


def trace(seed: int, count: int = 80, gap: float = 95.0) -> list[Job]:
    """80 jobs on 16 GPUs; two of three are due 1.1 to 2 times their duration, and 2 min, after arrival."""
    luck, at, jobs = random.Random(seed), 0.0, list[Job]()
    for number in range(count):
        at += luck.expovariate(1 / gap)
        gpus, seconds = luck.choice((1, 2, 4)), round(120 + luck.expovariate(1 / 1_000))
        due = None if number % 3 == 0 else at + 120 + seconds * luck.uniform(1.1, 2.0)
        name = f"{'free' if due is None else 'dated'}{number}"
        jobs.append(job(name, gpus=gpus, seconds=seconds, at=round(at), deadline=due))
    return jobs


SEEDS = range(100, 120)
CLEAR = 15  # of 20 seeds: a sign test at 5 %


@lru_cache
def runs(policy: str) -> list[Seen]:
    made = edf() if policy == "edf" else POLICIES.make(policy, lease=60.0)
    return [seen(trace(seed), 4, made, nodes=4) for seed in SEEDS]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def below(ours: Sequence[float], theirs: Sequence[float]) -> int:
    return sum(a < b for a, b in zip(ours, theirs, strict=True))


@claim("chronus", "overloaded: no deadline that it promised is missed, and EDF misses some of these")
def test_no_promise_is_broken_though_the_cluster_is_overloaded() -> None:
    promised = [set(result.accepted) for result in runs("chronus")]

    def check(found: list[Seen]) -> None:
        assert all(promised)
        assert not any(names & set(result.missed) for names, result in zip(promised, found, strict=True))

    tells_apart(check, runs("chronus"), runs("edf"))


@claim("chronus", "best-effort jobs end sooner than under EDF with best effort last")
def test_best_effort_jobs_end_sooner_than_under_edf() -> None:
    theirs = [mean(result.run.jct("free*")) for result in runs("edf")]

    def check(found: list[Seen]) -> None:
        ours = [mean(result.run.jct("free*")) for result in found]
        assert mean(ours) < mean(theirs)
        assert below(ours, theirs) >= CLEAR

    tells_apart(check, runs("chronus"), runs("edf"))
