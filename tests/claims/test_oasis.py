"""OASiS: exponential prices of slots, the best schedule of each job, and admission by its utility."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import exp
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from tests.claims.priced_parts import flat, stream, worth

from dovetail.core.core import Core, Step
from dovetail.model.action import Answer
from dovetail.model.grant import devices_of, nodes_of
from dovetail.model.job import Job
from dovetail.model.units import HOUR
from dovetail.model.view import JobView
from dovetail.policies.registry import POLICIES
from dovetail.sim.run import Run
from dovetail.solve import priced_schedules
from dovetail.solve.priced_schedules import Floats, Ints, Options, Places, Schedule
from dovetail.testing.build import Incident, Profile, cluster, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant
from dovetail.testing.strategies import Scene, scenes
from dovetail.testing.suite import keeps_every_rule, searched

PRICED = "dovetail.policies.priced_admission"
BEST = priced_schedules.best_schedule
LINEAR = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}


def straight(taken: Ints, capacity: Sequence[int], low: float, high: float) -> Floats:
    return np.asarray(low + (high - low) * taken / np.maximum(np.array(capacity), 1), float)


def soonest(options: Options, work: int, utility: Floats) -> Schedule | None:
    """The schedule that ends first, at its price."""
    free = np.where(np.isfinite(options.cost), 0.0, np.inf)
    found = BEST(Options(options.units, free), work, -np.arange(len(utility), dtype=float))
    if found is None:
        return None
    cost = sum(float(options.cost[cell]) for cell in found.choices)
    return Schedule(float(utility[found.choices[-1][0]]) - cost, found.choices)


def from_the_first_node(price: Floats, room: Ints, tasks: int, each: int, *, one_node: bool) -> Places:
    taken = priced_schedules._greedy(room, tasks)
    cost = np.where(taken.sum(axis=1) == tasks, (taken * price).sum(axis=1) * each, np.inf)
    return Places(cost, (taken > 0).sum(axis=1))


def on_the_first_nodes(price: Floats, room: Ints, tasks: int, before: Ints, *, one_node: bool) -> Ints:
    return np.asarray(priced_schedules._greedy(room[None, :], tasks)[0])


def as_asked(job: JobView) -> Iterable[int]:
    return (job.shape.tasks,)


MUTANTS = (
    mutant(
        "oasis",
        "prices",
        "prices do not rise",
        killed_by="test_prices_double_with_each_gpu",
        replace={f"{PRICED}:prices": flat},
    ),
    mutant(
        "oasis",
        "prices",
        "prices rise in a straight line",
        killed_by="test_prices_double_with_each_gpu",
        replace={f"{PRICED}:prices": straight},
    ),
    mutant(
        "oasis",
        "admission",
        "every job with a schedule is admitted",
        killed_by="test_room_is_kept_for_jobs_that_are_worth_more",
        replace={f"{PRICED}:worth_its_price": lambda found: True},
    ),
    mutant(
        "oasis",
        "cheapest slots",
        "the schedule that ends first is taken",
        killed_by="test_a_job_that_can_wait_takes_a_cheaper_slot",
        replace={f"{PRICED}:best_schedule": soonest},
    ),
    mutant(
        "oasis",
        "cheapest servers",
        "nodes are filled one after another",
        killed_by="test_jobs_take_the_cheapest_node",
        replace={f"{PRICED}:cheapest": from_the_first_node, f"{PRICED}:chosen": on_the_first_nodes},
    ),
    mutant(
        "oasis",
        "elastic across slots",
        "a job has what it asked for in every slot",
        killed_by="test_the_number_of_gpus_changes_between_slots",
        replace={f"{PRICED}:levels": as_asked},
    ),
    mutant(
        "oasis",
        "utility by completion time",
        "a late job is worth as much as one in time",
        killed_by="test_a_job_that_would_be_late_is_refused",
        options={"critical": 0.0},
    ),
    mutant(
        "oasis",
        "utility by completion time",
        "all jobs are worth the same",
        killed_by="test_room_is_kept_for_jobs_that_are_worth_more",
        replace={f"{PRICED}:worth_of": lambda job: 3.0},
    ),
)


class Seen(NamedTuple):
    """A run, and what users were told."""

    run: Run
    told: dict[str, str]

    def of(self, answer: str) -> set[str]:
        return {id for id, said in self.told.items() if said == answer}

    @property
    def finished(self) -> set[str]:
        return {j.id for j in self.run.jobs.job if self.run.finish(j.id) < float("inf")}

    def gpus(self, hour: float) -> dict[str, int]:
        at = round(hour * HOUR)
        return {s.job: devices_of(s.spots) for s in self.run.stretches if s.start <= at < s.end}

    def nodes(self, hour: float) -> dict[str, set[int]]:
        at = round(hour * HOUR)
        return {s.job: nodes_of(s.spots) for s in self.run.stretches if s.start <= at < s.end}


def seen(
    jobs: Sequence[Job], policy: str = "oasis", *, nodes: int = 1, gpus: int = 4, **options: Any
) -> Seen:
    told: dict[str, str] = {}

    def watch(core: Core, step: Step) -> None:
        told.update({a.job: a.answer for a in step.actions if isinstance(a, Answer)})

    return Seen(run(jobs, cluster(nodes=nodes, gpus=gpus), policy, on_step=watch, **options), told)


SHARP: dict[str, Any] = {"slot": 3600.0, "low": 1.0, "high": 16.0, "critical": 50.0}


@claim("oasis", "L = 1, U = 16, 4 GPUs: the prices are 1, 2, 4, 8 and 16, and only what is worth more starts")
def test_prices_double_with_each_gpu() -> None:
    """Of each pair, the job that is worth just the price is refused, and the next one admitted."""
    jobs = [worth("no1", 1)]
    for utility in (2, 4, 8):
        jobs += [worth(f"yes{utility}", utility // 2 + 1), worth(f"no{utility}", utility)]
    jobs += [worth("yes16", 9), worth("no16", 16)]

    def check(result: Seen) -> None:
        assert result.finished == {"yes2", "yes4", "yes8", "yes16"}

    tells_apart(check, seen(jobs, **SHARP), seen(jobs, "fifo"))


def utility(result: Seen, critical: float) -> float:
    """What all jobs are worth, at the times when they ended."""
    total = 0.0
    for each in result.run.jobs.job:
        ended = result.run.finish(each.id)
        if ended < float("inf") and each.deadline is not None:
            late = critical * (ended - each.deadline / 1_000_000) / 3_600
            total += max(each.priority, 1) * each.work / HOUR * each.shape.gpus / (1 + exp(min(late, 700.0)))
    return total


@claim("oasis", "4 jobs worth 3, then 2 worth 12, on 4 GPUs: two of the first and both others, 30 in all")
def test_room_is_kept_for_jobs_that_are_worth_more() -> None:
    jobs = [worth(f"low{i}", 3) for i in range(4)] + [worth(f"high{i}", 12) for i in range(2)]

    def check(result: Seen) -> None:
        assert utility(result, 50.0) > 29.9
        assert {"high0", "high1"} <= result.finished

    ours, fifo = seen(jobs, **SHARP), seen(jobs, "fifo")
    assert ours.of("refused") == {"low2", "low3"}
    assert utility(fifo, 50.0) < 12.1
    tells_apart(check, ours, fifo)


@claim("oasis", "a job that can wait takes a cheaper slot, and leaves the dear one to an urgent job")
def test_a_job_that_can_wait_takes_a_cheaper_slot() -> None:
    """2 GPUs, prices 1, 4 and 16. `first` makes slot 0 cost 4; `patient` is worth 5 and can wait."""
    jobs = [worth("first", 12), worth("patient", 5, due=2.5), worth("urgent", 12)]

    def check(result: Seen) -> None:
        assert [result.run.finish(id) for id in ("first", "patient", "urgent")] == [3600, 7200, 3600]

    tells_apart(check, seen(jobs, gpus=2, **SHARP), seen(jobs, "fifo", gpus=2))


@claim("oasis", "jobs take the cheapest node: two nodes get two jobs each, where one node would get two")
def test_jobs_take_the_cheapest_node() -> None:
    jobs = [worth(f"j{i}", 3) for i in range(5)]

    def check(result: Seen) -> None:
        assert result.nodes(0.5) == {"j0": {0}, "j1": {1}, "j2": {0}, "j3": {1}}

    tells_apart(check, seen(jobs, nodes=2, **SHARP), seen(jobs, "fifo", nodes=2))


@claim("oasis", "elastic across slots: 1 GPU beside another job, then 2, and 3 GPU-hours are done in 2 hours")
def test_the_number_of_gpus_changes_between_slots() -> None:
    wide = worth("wide", 12, hours=3, due=2.5, least=1, most=2, profile=Profile(curve=LINEAR))
    jobs = [worth("first", 12), wide]

    def check(result: Seen) -> None:
        assert result.run.finish("wide") == 7200
        assert [result.gpus(0.5), result.gpus(1.5)] == [{"first": 1, "wide": 1}, {"wide": 2}]

    tells_apart(check, seen(jobs, gpus=2, **SHARP), seen(jobs, "fifo", gpus=2))


@claim("oasis", "a job that would be late is refused on arrival if lateness is critical, and keeps no GPU")
def test_a_job_that_would_be_late_is_refused() -> None:
    """One GPU: `late` could only run in the second hour; `next` is due then."""
    jobs = [worth("first", 12), worth("late", 12), worth("next", 12, due=2.5)]

    def check(result: Seen) -> None:
        assert result.finished == {"first", "next"}
        assert result.run.finish("next") == 7200

    tells_apart(check, seen(jobs, gpus=1, **SHARP), seen(jobs, "fifo", gpus=1))


@claim("oasis", "an admitted job is not stopped for one that is worth more")
def test_an_admitted_job_keeps_its_schedule() -> None:
    jobs = [worth("low", 2, hours=2, due=2.5), worth("high", 15, at=600, due=1.5)]

    def check(result: Seen) -> None:
        assert result.run.finish("low") == 7200
        assert result.run.preemptions == 0

    tells_apart(check, seen(jobs, gpus=1, **SHARP), seen(jobs, "srtf", gpus=1))


SEEDS = range(100, 110)


@lru_cache
def totals(policy: str) -> list[float]:
    options: dict[str, Any] = {"slot": 3600.0} if policy == "oasis" else {}
    return [utility(seen(stream(seed), policy, nodes=2, **options), 1.0) for seed in SEEDS]


@claim("oasis", "10 overloaded streams: more total utility than under fifo and drf")
def test_total_utility_is_above_that_of_fifo_and_drf() -> None:
    others = {name: totals(name) for name in ("fifo", "drf")}

    def check(found: list[float]) -> None:
        for theirs in others.values():
            assert sum(found) > sum(theirs)
            assert sum(a > b for a, b in zip(found, theirs, strict=True)) >= 9

    for theirs in others.values():
        tells_apart(check, totals("oasis"), theirs)


@given(scene=scenes(lossy=True, most=15))
@searched(10)
def test_every_job_ends_if_none_is_refused(scene: Scene) -> None:
    keeps_every_rule(lambda: POLICIES.make("oasis", refused="demote"), scene, "oasis")


def test_a_job_that_is_not_done_when_its_schedule_ends_gets_another() -> None:
    jobs = [worth("long", 12, hours=3, estimate=3_600, due=9)]
    assert seen(jobs, gpus=1, **SHARP).run.finish("long") == 3 * 3_600


def test_a_job_whose_node_is_lost_goes_on_elsewhere() -> None:
    lost = [Incident("n0", 3_600 * 1_800_000, 3_600 * 9_000_000)]
    result = seen([worth("a", 12, hours=2, due=9)], nodes=2, gpus=1, incidents=lost, **SHARP)
    assert result.finished == {"a"}
    assert result.run.finish("a") == 6_480 + 7_200  # it saved nothing before


@pytest.mark.parametrize("bad", [{"slot": 0}, {"low": 2.0, "high": 1.0}, {"low": -1.0}])
def test_options_are_checked(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above"):
        POLICIES.make("oasis", **bad)
