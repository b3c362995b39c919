"""The common workloads, and the judgement of policies by their claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.bench.compare import Comparison, Result
from dovetail.bench.metrics import Metrics
from dovetail.bench.policy_choice import PolicyChoice
from dovetail.bench.tournament import (
    CPU,
    FIGURES,
    SEEDS,
    UNFINISHED,
    Tournament,
    claims_of,
    played,
)
from dovetail.bench.tournament_page import answer, html, markdown, summary, workload_sheet
from dovetail.bench.workloads import JOBS, LOAD, WORKLOADS, named_workload, offered_load
from dovetail.core.room import Room
from dovetail.model.cluster import parse_cluster
from dovetail.model.errors import UnknownName
from dovetail.model.estimate import task_range
from dovetail.model.job import Job, Profile, Traits
from dovetail.policies.catalogue import read_systems
from dovetail.testing.build import job

ALL = sorted(WORKLOADS)


# --- workloads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_load_is_as_stated(name: str, seed: int) -> None:
    workload = WORKLOADS[name]
    jobs = workload.jobs(seed)
    assert len(jobs) == JOBS
    assert offered_load(jobs, workload.cluster) == pytest.approx(LOAD, rel=1e-4)
    span = jobs[-1].arrived_at
    assert 2 * max(job.work for job in jobs) < span, "no job decides the length of the trace"


def test_load_counts_the_speed_of_each_type() -> None:
    """Half of the GPUs at half the speed: 12 GPUs' worth of work in an hour is a load of 12/12, not 12/16."""
    traits = Traits(profile=Profile(speeds={"V100": 1.0, "K80": 0.5}))
    jobs = [replace(job("a", gpus=12, hours=1), traits=traits), replace(job("b", hours=0, at=3_600), work=0)]
    assert offered_load(jobs, parse_cluster("1x8:V100,1x8:K80")) == pytest.approx(1.0)
    assert offered_load(jobs, parse_cluster("2x8:V100")) == pytest.approx(0.75)


@pytest.mark.parametrize("name", ALL)
def test_a_seed_gives_the_same_jobs_and_another_seed_others(name: str) -> None:
    workload = WORKLOADS[name]
    jobs = workload.jobs(1, 60)
    assert jobs == workload.jobs(1, 60) != workload.jobs(2, 60)
    assert [job.arrived_at for job in jobs] == sorted(job.arrived_at for job in jobs)
    assert len({job.id for job in jobs}) == len(jobs)
    room = Room(workload.cluster)
    assert all(room.ever(job.shape) for job in jobs)


def drawn(name: str) -> list[Job]:
    return WORKLOADS[name].jobs(0)


def test_each_workload_has_what_it_is_named_for() -> None:
    dated = [job for job in drawn("deadline") if job.deadline is not None]
    assert 0.5 < len(dated) / JOBS < 0.8
    assert all(job.deadline is not None and job.deadline > job.arrived_at + job.work for job in dated)
    for each in drawn("elastic"):
        assert task_range(each.shape, each.traits) == (max(each.shape.gpus // 2, 1), 2 * each.shape.gpus)
    assert {job.shape.gpus for job in drawn("uniform")} == {1, 2, 4, 8, 16}
    kinds = {frozenset(job.traits.profile.speeds) for job in drawn("mixed-types") if job.traits.profile}
    assert kinds == {frozenset({"V100", "P100", "K80"})}
    gains = {job.traits.profile.speeds["K80"] for job in drawn("mixed-types") if job.traits.profile}
    assert max(gains) > 3 * min(gains), "jobs gain differently by a fast GPU"


def test_bursty_arrivals_come_together() -> None:
    def crowding(name: str) -> float:
        """The most arrivals within a hundredth of the trace, over the mean."""
        times = [job.arrived_at for job in drawn(name)]
        width = times[-1] // 100
        most = max(sum(1 for other in times if at <= other < at + width) for at in times)
        return most / (len(times) / 100)

    assert crowding("bursty") > 10
    assert crowding("uniform") < 5


def test_demand_and_quotas_of_tenants_differ() -> None:
    workload = WORKLOADS["multi-tenant"]
    jobs, cluster = drawn("multi-tenant"), workload.cluster
    work = dict.fromkeys(cluster.tenants, 0.0)
    for each in jobs:
        work[each.tenant] += each.work * each.shape.gpus
    quotas = {name: tenant.quota for name, tenant in cluster.tenants.items() if tenant.quota is not None}
    assert sum(quotas.values()) == cluster.gpus
    north = work["north"] / sum(work.values())
    assert north > 1.5 * quotas["north"] / cluster.gpus


def test_an_unknown_workload_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean bursty"):
        named_workload("burst")


# --- judgement -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Tournament:
    """Three policies on two workloads."""
    chosen = [WORKLOADS["uniform"], WORKLOADS["multi-tenant"]]
    return played(chosen, [PolicyChoice("fifo"), PolicyChoice("srtf")], jobs=40, seeds=2, workers=1)


def changed(found: Tournament, workload: str, label: str, **figures: float) -> Tournament:
    """The same tournament with other figures of one policy on one workload."""

    def other(metrics: Metrics) -> Metrics:
        if "jct" in figures:
            metrics = replace(metrics, jct=replace(metrics.jct, mean=figures["jct"] * metrics.jct.mean))
        if "makespan" in figures:
            metrics = replace(metrics, makespan=figures["makespan"] * metrics.makespan)
        if "jain" in figures:
            metrics = replace(metrics, fairness=replace(metrics.fairness, jain=figures["jain"]))
        if "finished" in figures:
            metrics = replace(metrics, finished=int(figures["finished"]))
        return metrics

    def with_other(result: Result) -> Result:
        return replace(result, metrics=other(result.metrics))

    old: Comparison = found.played[workload]
    results = {**old.results, label: tuple(map(with_other, old.results[label]))}
    return replace(found, played={**found.played, workload: replace(old, results=results)})


def as_policy(found: Tournament, name: str, copied: str = "fifo") -> Tournament:
    """The same tournament in which another policy has exactly the figures of one that played."""
    grids = {
        workload: replace(
            grid, labels=(*grid.labels, name), results={**grid.results, name: grid.results[copied]}
        )
        for workload, grid in found.played.items()
    }
    return replace(found, choices=(*found.choices, PolicyChoice(name)), played=grids)


def falls(found: Tournament, label: str) -> list[tuple[str, str]]:
    return [(fall.workload, fall.claim.objective) for fall in found.shortfalls(label)]


def test_a_policy_is_judged_by_its_objectives(small: Tournament) -> None:
    same = as_policy(small, "sjf")
    assert falls(same, "sjf") == [], "as good as fifo is not worse"
    assert falls(changed(same, "uniform", "sjf", jct=1.019), "sjf") == [], "2 % are allowed"
    assert falls(changed(same, "uniform", "sjf", jct=1.021), "sjf") == [("uniform", "completion time")]
    assert falls(changed(same, "uniform", "sjf", makespan=2.0), "sjf") == [], "it does not claim makespans"
    assert falls(changed(same, "uniform", "sjf", jct=0.5), "sjf") == []
    reference = as_policy(small, "priority")
    assert falls(changed(reference, "uniform", "priority", jct=9.0, makespan=9.0), "priority") == []


def test_a_mark_says_on_how_many_seeds(small: Tournament) -> None:
    """Twice as slow on one of two seeds, and faster on the other: worse in the mean, on one seed."""
    same = as_policy(small, "sjf")
    grid = same.played["uniform"]
    results = []
    for result, factor in zip(grid.results["sjf"], (2.0, 0.9), strict=True):
        jct = replace(result.metrics.jct, mean=factor * result.metrics.jct.mean)
        results.append(replace(result, metrics=replace(result.metrics, jct=jct)))
    other = replace(grid, results={**grid.results, "sjf": tuple(results)})
    (fall,) = replace(same, played={**same.played, "uniform": other}).shortfalls("sjf")
    assert (fall.workload, fall.worse, fall.seeds) == ("uniform", 1, 2)
    (fall,) = changed(same, "uniform", "sjf", jct=1.5).shortfalls("sjf")
    assert (fall.worse, fall.seeds) == (2, 2)


def test_shares_are_judged_where_tenants_have_quotas(small: Tournament) -> None:
    fair = as_policy(small, "yarn-cs")
    assert falls(changed(fair, "multi-tenant", "yarn-cs", jain=0.1), "yarn-cs") == [
        ("multi-tenant", "fairness")
    ]
    assert falls(changed(fair, "uniform", "yarn-cs", jain=0.1), "yarn-cs") == []
    assert falls(changed(fair, "multi-tenant", "yarn-cs", jain=1.0), "yarn-cs") == [], "1 is best"
    assert falls(changed(fair, "uniform", "yarn-cs", makespan=1.1), "yarn-cs") == [("uniform", "utilisation")]


def test_unfinished_jobs_fall_short_of_any_claim(small: Tournament) -> None:
    """The mean over the easy jobs may look better."""
    left = changed(as_policy(small, "sjf"), "uniform", "sjf", jct=0.1, finished=30)
    assert falls(left, "sjf") == [("uniform", "completion time")]
    assert left.shortfalls("sjf")[0].unfinished == 10
    assert UNFINISHED in left.columns("uniform")
    assert UNFINISHED not in small.columns("uniform")


def test_finish_times_or_shares_by_the_mechanisms_of_the_catalogue() -> None:
    systems = read_systems()

    def judged(name: str) -> dict[str, str]:
        return {claim.objective: claim.column.key for claim in claims_of(systems[name])}

    assert judged("themis") == {"fairness": "rho_max"}
    assert judged("astraea") == {"fairness": "jain"}
    assert judged("gandiva-fair") == {"fairness": "jain", "completion time": "jct_mean"}
    assert judged("chronus") == {"deadlines": "missed", "completion time": "jct_mean"}
    assert judged("fifo") == {}
    dated = [claim for claim in claims_of(systems["chronus"]) if claim.objective == "deadlines"]
    assert [name for name in ALL if dated[0].where(WORKLOADS[name])] == ["deadline"]


def test_the_baseline_always_plays_and_figures_repeat(small: Tournament) -> None:
    alone = played([WORKLOADS["uniform"]], [PolicyChoice("srtf")], jobs=40, seeds=2, workers=2)
    assert alone.labels == ("fifo", "srtf")
    for label in alone.labels:
        for column in FIGURES:
            if column is not CPU:
                assert alone.figure("uniform", label, column) == small.figure("uniform", label, column)
    ratio = alone.against_baseline("uniform", "srtf")
    assert ratio is not None
    assert ratio < 1
    assert alone.against_baseline("uniform", "fifo") == 1


def test_marks_are_on_every_page(small: Tournament) -> None:
    bad = changed(as_policy(small, "sjf"), "uniform", "sjf", jct=3.0)
    assert "1 policy is worse than fifo where it claims to be better" in answer(bad)
    assert "no policy is worse than fifo" in answer(small)
    rows = {row[0]: row for row in summary(bad).rows}
    assert rows["sjf"][1] == "3.00!"
    assert rows["sjf"][2] == "1.00"
    sheet = {row[0]: row for row in workload_sheet(bad, "uniform").rows}
    assert sheet["sjf"][1].endswith("!")
    assert not sheet["fifo"][1].endswith("!")
    assert "| [sjf](sjf.md) | completion time | uniform: mean completion " in markdown(bad)
    page = html(bad)
    assert "<td>3.00!</td>" in page
    assert "</html>" in page


def test_names_are_escaped_and_files_have_no_page(small: Tournament) -> None:
    odd = as_policy(small, "<b>.py:f")
    assert "<b>.py" not in html(odd)
    assert "&lt;b&gt;.py:f" in html(odd)
    assert "| `<b>.py:f` |" in markdown(odd), "a policy in a file has no page to link to"
