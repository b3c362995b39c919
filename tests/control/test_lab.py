"""The Lab: known answers, what each user sees, and questions that must not harm the plane."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.control.test_api import FAST, PATIENCE, Live, eventually, living

from dovetail.control.lab.policies import described
from dovetail.control.lab.pool import Broken, Busy, Pool, Worker, environment
from dovetail.control.lab.questions import Compare, Simulate
from dovetail.control.lab.simulate import compared, distribution, series, simulated
from dovetail.control.lab.traces import TRACES
from dovetail.model.cluster import parse_cluster
from dovetail.model.errors import BadOption, InputError, NeverFits, UnknownName
from dovetail.policies.registry import POLICIES
from dovetail.solve.device_splits import Splits
from dovetail.testing.invariants import ACCEPTS, waived
from dovetail.traces import SHIPPED, load_trace

Json = dict[str, Any]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with living(tmp_path_factory.mktemp("plane"), FAST, "2x4:A100,1x2:V100") as made:
        yield made


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    try:
        yield made
    finally:
        made.close()


def asked(live: Live, tool: str, question: object, who: str = "eve") -> Json:
    answer = live.ask("POST", f"lab/{tool}", who, question)
    assert answer.status == 200, answer
    found: Json = answer.json
    return found


def refused(live: Live, tool: str, question: object, status: int = 422) -> str:
    answer = live.ask("POST", f"lab/{tool}", "ann", question)
    assert answer.status == status, answer
    said = str(answer.json["detail"])
    assert "\n" not in said
    return said


# --- L0 and L1: queues ------------------------------------------------------------------------------

FOUR: list[Json] = [
    {"id": "0", "submit": 0, "duration": 30, "priority": 3},
    {"id": "1", "submit": 0, "duration": 10, "priority": 1},
    {"id": "2", "submit": 1, "duration": 25, "priority": 2},
    {"id": "3", "submit": 4, "duration": 40, "priority": 4},
]
FIVE = [
    {"id": name, "submit": 0, "gpus": gpus, "duration": 3600 * hours}
    for name, gpus, hours in (
        ("Alice", 4, 6),
        ("Bob", 2, 1),
        ("Carol", 1, 0.5),
        ("Dave", 2, 3),
        ("Eve", 1, 0.25),
    )
]


@pytest.mark.parametrize(
    ("policy", "options", "jct", "mean", "makespan"),
    [
        ("fifo", {}, [30, 10, 34, 66], 35, 70),
        ("sjf", {}, [30, 10, 34, 66], 35, 70),
        ("srtf", {}, [39, 10, 25, 62], 34, 66),
        ("priority", {}, [30, 53, 51, 40], 43.5, 53),
        ("priority", {"higher_is": "smaller"}, [39, 10, 25, 62], 34, 66),
        ("priority", {"preempt": False}, [30, 10, 54, 46], 35, 55),
        ("priority", {"higher-is": "smaller", "preempt": "false"}, [30, 10, 34, 66], 35, 70),
    ],
)
def test_four_jobs_on_two_gpus(
    live: Live, policy: str, options: Json, jct: list[float], mean: float, makespan: float
) -> None:
    for cluster in ("1x2", "2x1"):
        question = {"cluster": cluster, "jobs": FOUR, "policy": policy, "options": options}
        found = asked(live, "simulate", question)
        assert [job["jct"] for job in found["jobs"]] == jct
        ran = [job["duration"] for job in FOUR]
        assert [job["wait"] for job in found["jobs"]] == [a - b for a, b in zip(jct, ran, strict=True)]
        assert [job["id"] for job in found["jobs"]] == ["0", "1", "2", "3"]
        assert (found["metrics"]["jct_mean"], found["metrics"]["makespan"]) == (mean, makespan)
        assert found["metrics"]["utilization"] == pytest.approx(105 / (2 * makespan))


def test_the_gantt_of_first_come_first_served(live: Live) -> None:
    found = asked(live, "simulate", {"cluster": "2x1", "jobs": FOUR, "policy": "fifo"})
    held = {one["job"]: (one["start"], one["end"]) for one in found["stretches"]}
    assert held == {"0": (0, 30), "1": (0, 10), "2": (10, 35), "3": (30, 70)}
    assert [job["wait"] for job in found["jobs"]] == [0, 0, 9, 26]
    for one in found["stretches"]:  # one job on a device at a time
        assert one["milli"] == 1000
        assert len(one["devices"]) == 1
        others = [other for other in found["stretches"] if other["devices"] == one["devices"]]
        assert not any(o["start"] < one["end"] and one["start"] < o["end"] for o in others if o is not one)
    assert found["series"] == [
        [0, 2, 0],
        [1, 2, 1],
        [4, 2, 2],
        [10, 2, 1],
        [30, 2, 0],
        [35, 1, 0],
        [70, 0, 0],
    ]


@pytest.mark.parametrize(
    ("policy", "options", "starts", "mean"),
    [
        ("fifo", {}, [0, 0, 0, 0.5, 1.0], 2.45),
        ("fifo", {"discipline": "skip"}, [0, 0, 0, 0.5, 0], 2.25),
        ("backfill", {}, [0, 0, 0, 0.5, 0], 2.25),
        ("sjf", {}, [0.5, 0, 0, 0, 0], None),
    ],
)
def test_five_researchers_on_eight_gpus(
    live: Live, policy: str, options: Json, starts: list[float], mean: float | None
) -> None:
    question = {"cluster": "1x8", "jobs": FIVE, "policy": policy, "options": options}
    found = asked(live, "simulate", question)
    assert [job["start"] / 3600 for job in found["jobs"]] == starts
    if mean is not None:
        assert found["metrics"]["jct_mean"] == pytest.approx(3600 * mean)
    else:
        assert found["jobs"][0]["finish"] == 6.5 * 3600


def test_preemptions_speeds_and_restarts(live: Live) -> None:
    question: Json = {"cluster": "1x2", "jobs": FOUR, "policy": "srtf"}
    assert asked(live, "simulate", question)["jobs"][0]["preemptions"] == 1
    dearer = asked(live, "simulate", {**question, "restart_cost": 5})
    assert dearer["jobs"][0]["jct"] == 39 + 5
    fast = [{"id": "a", "duration": 100, "speeds": {"V100": 4, "K80": 1}}]
    for cluster, took in (("1x1:V100", 25), ("1x1:K80", 100)):
        found = asked(live, "simulate", {"cluster": cluster, "jobs": fast, "policy": "fifo"})
        assert found["jobs"][0]["jct"] == took
    wrong = [{"id": "a", "duration": 100, "estimate": 1}, {"id": "b", "duration": 10}]
    found = asked(live, "simulate", {"cluster": "1x1", "jobs": wrong, "policy": "sjf"})
    assert [job["start"] for job in found["jobs"]] == [0, 100]


def test_every_policy_can_be_tried(live: Live) -> None:
    jobs = [{**job, "tenant": "ab"[i % 2]} for i, job in enumerate(FOUR)]
    for item in live.get("policies", "eve")["items"]:
        question = {"cluster": "2x1", "jobs": jobs, "policy": item["name"]}
        finished = asked(live, "simulate", question)["metrics"]["finished"]
        refuses = ACCEPTS in waived(POLICIES.make(item["name"]), item["name"])
        assert finished == 4 or (refuses and finished > 0), item["name"]


def test_policies_and_traces_are_listed(live: Live) -> None:
    items = {item["name"]: item for item in live.get("policies", "eve")["items"]}
    assert sorted(items) == POLICIES.names()
    assert items["tiresias-l"]["year"] == 2019
    options = {option["name"]: option for option in items["priority"]["options"]}
    assert options["higher_is"] == {
        "name": "higher_is",
        "type": "larger | smaller",
        "default": "larger",
        "choices": ["larger", "smaller"],
        "help": "",
    }
    assert options["aging"]["help"] == "an hour of waiting is worth `aging` steps of priority."
    assert options["preempt"]["choices"] == [True, False]
    assert json.loads(json.dumps(described())) == live.get("policies", "eve")
    traces = {item["name"]: item for item in live.get("traces", "eve")["items"]}
    assert traces["philly"]["cluster"] == "52x8"
    assert len(json.dumps(traces)) < 10_000


def test_what_is_said_of_the_traces_is_true() -> None:
    assert TRACES.keys() == SHIPPED.keys()
    for name, about in TRACES.items():
        assert parse_cluster(about.cluster).gpus == about.gpus
        assert len(load_trace(name).jobs) == about.jobs
    found = compared(Compare(trace="itp:10", cluster=TRACES["itp:cluster10"].cluster, policy="fifo"))
    assert found["metrics"]["wait_mean"] > 60  # there is a queue


# --- comparing --------------------------------------------------------------------------------------


def test_policies_on_a_trace_as_the_command_compares_them(live: Live) -> None:
    question: Json = {"trace": "philly", "head": 300, "cluster": "10x8"}
    rows = {p: asked(live, "compare", {**question, "policy": p}) for p in ("fifo", "srtf")}
    words = "simulate philly --cluster 10x8 --head 300 --policy srtf --drop-unfit --json"
    program = [sys.executable, "-m", "dovetail.cli", *words.split()]
    said = subprocess.run(program, check=True, capture_output=True, timeout=PATIENCE).stdout
    metrics = rows["srtf"]["metrics"]
    assert metrics["jct_mean"] == pytest.approx(json.loads(said)["jct"]["mean"])
    assert metrics["makespan"] == pytest.approx(json.loads(said)["makespan"])
    assert metrics["jct_mean"] < rows["fifo"]["metrics"]["jct_mean"]
    cdf = rows["fifo"]["cdf"]
    assert len(cdf) <= 100
    assert cdf == sorted(cdf)
    assert cdf[-1][1] == 1.0
    assert len(json.dumps(rows["fifo"])) < 200_000
    own = asked(live, "compare", {"jobs": FOUR, "cluster": "1x2", "policy": "srtf"})
    assert own["metrics"]["jct_mean"] == 34
    assert own["cdf"] == [[10, 0.25], [25, 0.5], [39, 0.75], [62, 1.0]]
    small = asked(live, "compare", {"trace": "itp:1", "cluster": "1x8", "policy": "fifo", "head": 200})
    assert "could never hold" in small["notes"][-1]


def test_long_series_and_distributions_are_thinned_out() -> None:
    values = [float(i) for i in range(10_000)]
    steps = distribution(values)
    assert len(steps) == 100
    assert steps[-1] == [9999.0, 1.0]
    assert distribution([]) == []
    points = [(i, i, i) for i in range(10_000)]
    thin = series(points)
    assert len(thin) <= 400
    assert thin[-1] == [9_999e-6, 9.999, 9999]
    assert series([]) == []


# --- L2 to L4: assignments --------------------------------------------------------------------------


def split(types: Json, jobs: Json, gpus: int = 1, **more: object) -> Json:
    return {
        "types": [{"name": name, "count": count} for name, count in types.items()],
        "jobs": [{"name": name, "gpus": gpus, "speeds": speeds} for name, speeds in jobs.items()],
        **more,
    }


L2 = {"Transformer": [10, 80], "ResNet": [50, 70]}
L3 = {"A": [10, 30, 80], "B": [50, 65, 70], "C": [20, 55, 60]}
L4 = {"A": [80, 10], "B": [70, 50]}
TWO_AND_TWO = {"V100": 2, "K80": 2}


def test_a_transformer_gains_more_from_a_fast_gpu(live: Live) -> None:
    types = {"K80": 1, "V100": 1}
    found = asked(live, "throughput", split(types, L2, assignment=[0, 1]))
    assert found["optimum"] == {"assignment": [1, 0], "total": 130}
    assert found["yours"]["total"] == 80
    assert found["total"] == 130
    both = asked(live, "throughput", split(types, L2, assignment=[1, 1]))["yours"]
    assert both["problem"] == "V100: 2 asked, 1 there"
    none = asked(live, "throughput", split(types, L2, assignment=[None, 1]))["yours"]
    assert (none["total"], none["problem"]) == (70, None)


def test_three_jobs_on_four_gpus(live: Live) -> None:
    types = {"K80": 2, "P100": 1, "V100": 1}
    found = asked(live, "throughput", split(types, L3, assignment=[0, 1, 2]))
    assert found["yours"]["total"] == 135
    assert found["optimum"] == {"assignment": [2, 0, 1], "total": 185}
    assert found["shares"] == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert found["equal_share"] == [32.5, 58.75, 38.75]
    fair = asked(live, "throughput", split(types, L3, objective="max-min"))
    assert fair["least"] == pytest.approx(90 / 79, abs=1e-6)
    assert fair["normalised"] == pytest.approx([90 / 79] * 3, abs=1e-6)


def test_fairness_costs_a_fifth_with_fixed_sizes_and_next_to_nothing_with_flexible_ones(live: Live) -> None:
    question = split(TWO_AND_TWO, L4, gpus=2)
    most = asked(live, "throughput", question)
    assert (most["total"], most["normalised"]) == (260, pytest.approx([160 / 90, 100 / 120], abs=1e-6))
    fair = asked(live, "throughput", {**question, "objective": "max-min"})
    assert (fair["total"], fair["normalised"]) == (pytest.approx(210), pytest.approx([1, 1]))
    loose = asked(live, "throughput", {**question, "objective": "max-min", "sizes": "flexible"})
    assert loose["normalised"] == pytest.approx([64 / 53] * 2, abs=1e-6)
    assert loose["devices"] == [pytest.approx([72 / 53, 0], abs=1e-5), pytest.approx([34 / 53, 2], abs=1e-5)]
    assert loose["total"] == pytest.approx(253.585, abs=1e-3)
    line = asked(live, "frontier", {**question, "weights": [1, 0, 0.5, 0.6]})
    assert [point["weight"] for point in line["points"]] == [0, 0.5, 0.6, 1]
    assert [point["total"] for point in line["points"]] == [260, 260, 210, 210]
    assert line["points"][0]["shares"] == [[2, 0], [0, 2]]
    assert line["points"][-1]["shares"] == [[1, 1], [1, 1]]
    assert line["points"][-1]["least"] == 1
    assert round(1 - line["fairest"]["total"] / line["most"]["total"], 3) == 0.192
    loose = asked(live, "frontier", {**question, "sizes": "flexible"})
    assert loose["most"]["total"] == pytest.approx(260, abs=1e-4)
    assert loose["fairest"] == {
        "total": pytest.approx(253.585, abs=1e-3),
        "least": pytest.approx(64 / 53, abs=1e-5),
    }


def test_a_floor_of_the_worst_off_is_kept_and_costs_as_little_as_possible(live: Live) -> None:
    question = split({"V100": 2, "K80": 2}, {"A": [80, 10], "B": [70, 50]}, gpus=2)
    asks = {**question, "sizes": "flexible", "weights": [], "floors": [1, 0, 0.25, 0.5, 0.75]}
    line = asked(live, "frontier", asks)
    assert line["points"] == []
    totals = [point["total"] for point in line["floors"]]
    assert totals == sorted(totals, reverse=True)
    assert len(set(totals)) == 5, "each floor has an outcome of its own"
    assert (totals[0], totals[-1]) == (
        pytest.approx(line["most"]["total"], abs=1e-4),
        pytest.approx(line["fairest"]["total"], abs=1e-4),
    )
    for point in line["floors"]:
        assert min(point["normalised"]) >= point["floor"] - 1e-6
    whole = asked(live, "frontier", {**asks, "sizes": "fixed"})["floors"]
    assert [point["total"] for point in whole] == [260, 210, 210, 210, 210]
    assert whole[1]["least"] == 1, "above the floor, as whole GPUs have no other split"


def test_a_split_is_as_good_as_any() -> None:
    """Against all splits of small cases, by counting."""
    rng = np.random.default_rng(5)
    for _ in range(8):
        speed, size, capacity = (
            rng.uniform(1, 9, (3, 2)).round(1),
            rng.integers(1, 3, 3),
            rng.integers(0, 4, 2),
        )
        scale = size * (speed @ (capacity / max(capacity.sum(), 1))) + 1e-9
        ways = [[(a, g - a) for a in range(g + 1)] + [(0, 0)] for g in size]
        every = [np.array([x, y, z]) for x in ways[0] for y in ways[1] for z in ways[2]]
        fits = [held for held in every if (held.sum(axis=0) <= capacity).all()]
        reach = [(speed * held).sum(axis=1) for held in fits]
        splits = Splits(speed, capacity, scale, size)
        total, least = max(r.sum() for r in reach), max((r / scale).min() for r in reach)
        assert splits.largest().total == pytest.approx(total)
        assert splits.fairest().least == pytest.approx(least)
        if not least:
            continue
        for weight in (0.2, 0.5, 0.8):
            best = max((1 - weight) * r.sum() / total + weight * (r / scale).min() / least for r in reach)
            floor = weight * least
            enough = max(r.sum() for r in reach if (r / scale).min() >= floor - 1e-9)
            assert splits.above(floor).total == pytest.approx(enough)
            assert splits.above(floor).least >= floor - 1e-6
            found = splits.between(weight)
            assert (1 - weight) * found.total / total + weight * found.least / least == pytest.approx(best)


def test_jobs_that_can_run_nowhere_and_types_that_are_not_there(live: Live) -> None:
    question = split({"K80": 1, "V100": 0}, {"A": [0, 0], "B": [0, 5], "C": [2, 9]})
    for objective in ("max-sum", "max-min"):
        found = asked(live, "throughput", {**question, "objective": objective})
        assert found["throughput"] == [0, 0, 2]
        assert found["optimum"]["assignment"] == [None, None, 0]
    assert asked(live, "frontier", question)["points"][0]["total"] == 2
    wide = split({"K80": 1}, {"A": [3]}, gpus=2)  # more GPUs than there are
    assert asked(live, "throughput", wide)["total"] == 0
    assert asked(live, "frontier", wide)["points"][0]["total"] == 0
    assert "no type has a GPU" in refused(live, "throughput", split({"K80": 0}, {"A": [1]}))


# --- L5: links --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "transfer", "step"),
    [
        ({}, [1.67, 40, 100], [101.67, 140, 200]),
        ({"size_gb": 4}, [6.67, 160, 400], [106.67, 260, 500]),
        ({"compute_ms": 200, "size_gb": 0.5}, [0.83, 20, 50], [200.83, 220, 250]),
    ],
)
def test_the_placement_table(live: Live, question: Json, transfer: list[float], step: list[float]) -> None:
    links = asked(live, "placement", {"pattern": "one_way", **question})["links"]
    assert [link["name"] for link in links] == ["NVLink", "InfiniBand", "Ethernet"]
    assert [round(link["transfer_ms"], 2) for link in links] == transfer
    assert [round(link["step_ms"], 2) for link in links] == step
    if "compute_ms" in question:
        assert links[2]["slowdown"] == pytest.approx(1.245, abs=1e-3)  # about a quarter slower


def test_a_ring_of_four_sends_half_as_much_again(live: Live) -> None:
    links = asked(live, "placement", {"gpus": 4})["links"]
    assert [round(link["transfer_ms"], 1) for link in links] == [2.5, 60, 150]
    assert asked(live, "placement", {"gpus": 1})["links"][0]["transfer_ms"] == 0
    own = asked(live, "placement", {"links": {"PCIe": 32}})["links"]
    assert [link["name"] for link in own] == ["PCIe"]


# --- what if ----------------------------------------------------------------------------------------


@pytest.fixture
def queue(live: Live) -> Iterator[dict[str, str]]:
    """A long job on every node, and behind them a long and a short one of red's, and one of blue's."""
    ids = {}
    for who, name, gpus, hours in (
        ("ann", "first", 4, 4),
        ("ann", "second", 4, 4),
        ("bob", "other", 2, 4),
        ("ann", "long", 4, 8),
        ("ann", "short", 4, 1),
        ("bob", "last", 2, 2),
    ):
        ids[name] = live.submit(who, name=name, resources={"gpus": gpus}, time=f"{hours}h")
    for name in ("first", "second", "other"):
        live.until(ids[name], "running")
    yield ids
    for name in reversed(ids):
        live.ask("POST", f"jobs/{ids[name]}/cancel", "admin")
    eventually(lambda: not live.get("jobs?active=true")["items"])


def test_another_policy_for_the_queue_there_is(live: Live, queue: dict[str, str]) -> None:
    before = live.get("policy")
    assert live.ask("PUT", "policy", "admin", {"name": "fifo"}).status == 200
    found = asked(live, "what-if", {"policy": "sjf"}, "ann")
    assert live.get("policy")["name"] == "fifo"
    live.ask("PUT", "policy", "admin", {"name": before["name"], "options": before["options"]})
    assert found["policy"] == ["fifo", "sjf"]
    assert found["now"]["complete"]
    assert found["then"]["complete"]
    assert found["now"]["waiting"] == found["then"]["waiting"] == 2
    jobs = {job["name"]: job for job in found["jobs"]}
    assert set(jobs) == {"first", "second", "long", "short"}
    assert {jobs[name]["id"] for name in jobs} == {queue[name] for name in jobs}
    assert jobs["long"]["starts"][0] <= jobs["short"]["starts"][0]
    assert jobs["short"]["starts"][1] <= jobs["long"]["starts"][1]
    assert found["now"]["mean_wait"] == pytest.approx(4 * 3600, abs=120)
    assert found["now"]["last_finish"] == pytest.approx(12 * 3600, abs=120)


def test_a_job_that_another_policy_would_preempt_waits_in_that_future(
    live: Live, queue: dict[str, str]
) -> None:
    before = live.get("policy")
    assert live.ask("PUT", "policy", "admin", {"name": "fifo"}).status == 200
    found = asked(live, "what-if", {"policy": "srtf"}, "ann")
    live.ask("PUT", "policy", "admin", {"name": before["name"], "options": before["options"]})
    # The short job takes the GPUs of `first` or `second` for an hour; the long one waits four hours anyway.
    assert found["then"]["preemptions"] == 1
    assert found["then"]["mean_wait"] == pytest.approx((1 + 4 + 0) * 3600 / 3, abs=120)
    assert found["now"]["mean_wait"] == pytest.approx((0 + 4 + 4) * 3600 / 3, abs=120)
    assert found["then"]["mean_first_start_after"] == pytest.approx((4 + 0) * 3600 / 2, abs=120)


def test_more_nodes_and_faster_ones(live: Live, queue: dict[str, str]) -> None:
    more = asked(live, "what-if", {"add": [{"nodes": 2, "gpus": 4, "type": "A100"}]}, "ann")
    assert more["gpus"] == [10, 18]
    assert more["then"]["mean_wait"] < 120
    assert more["now"]["mean_wait"] > 3600
    faster = asked(live, "what-if", {"replace": {"from": "A100", "to": "H100", "speed": 2}}, "ann")
    assert faster["gpus"] == [10, 10]
    assert faster["then"]["left_out"] == 0
    assert faster["then"]["last_finish"] == pytest.approx(faster["now"]["last_finish"] / 2, abs=120)
    same = asked(live, "what-if", {"replace": {"from": "V100", "to": "A100"}}, "bob")
    assert same["then"]["mean_finish"] == pytest.approx(same["now"]["mean_finish"], abs=120)
    assert "did you mean V100" in refused(live, "what-if", {"replace": {"from": "V10", "to": "H100"}})
    again = {"nodes": 1, "gpus": 1, "type": "A100", "speed": 3}
    assert "leave speed out" in refused(live, "what-if", {"add": [again]})
    assert "no policy is named" in refused(live, "what-if", {"policy": "nosuch"})
    assert "has no option" in refused(live, "what-if", {"options": {"nosuch": 1}})


def test_nobody_learns_of_others_by_asking_what_if(live: Live, queue: dict[str, str]) -> None:
    for who, own in (("ann", {"first", "second", "long", "short"}), ("bob", {"other", "last"})):
        answer = live.ask("POST", "lab/what-if", who, {"policy": "srtf"})
        assert answer.status == 200
        assert {job["name"] for job in answer.json["jobs"]} == own
        for name, id in queue.items():
            assert (id in answer.text) == (name in own)
        assert answer.json["now"]["waiting"] == len(own & {"long", "short", "last"})
    assert asked(live, "what-if", {}, "ops")["jobs"] == []
    everything = asked(live, "what-if", {}, "admin")
    assert {job["id"] for job in everything["jobs"]} == set(queue.values())
    assert everything["now"] == everything["then"]


def test_a_forecast_of_the_same_future_is_that_of_the_plane(live: Live, queue: dict[str, str]) -> None:
    why = live.get(f"jobs/{queue['short']}/why", "ann")
    found = asked(live, "what-if", {}, "ann")
    starts = next(job["starts"] for job in found["jobs"] if job["id"] == queue["short"])
    assert starts[0][:18] == why["starts_at"]["likely"][:18]


# --- wrong questions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy": "fif"}, "no policy is named 'fif'; did you mean fifo?"),
        ({"options": {"disciplin": "skip"}}, "policy fifo has no option 'disciplin'; did you mean"),
        ({"options": {"discipline": "lax"}}, "policy fifo: discipline='lax' is wrong: choose strict | skip"),
        ({"options": {"discipline": [[[1]]]}}, "at most a hundred plain values"),
        ({"cluster": "/etc/passwd"}, "'/etc/passwd' describes no cluster"),
        ({"cluster": "cluster.yaml"}, "describes no cluster"),
        ({"cluster": "99999x9"}, "the Lab takes at most 256 here"),
        ({"cluster": "openb"}, "the Lab takes at most 256 here"),
        ({"cluster": "4x0"}, "has no GPU"),
        ({"cluster": "0x4"}, "has no GPU"),
        ({"jobs": [*FOUR, *FOUR]}, "2 jobs have the id '0'"),
        ({"jobs": []}, "at least 1 item"),
        ({"jobs": [{"id": "a", "duration": -1}]}, "greater than or equal to 0.001"),
        ({"jobs": [{"id": "a", "duration": 1, "gpus": 3}]}, "asks for 3 GPUs, which 1x2 could never hold"),
        ({"polcy": "fifo"}, "did you mean policy?"),
    ],
)  # fmt: skip
def test_a_wrong_question_is_told_so_in_a_line(live: Live, change: Json, words: str) -> None:
    assert words in refused(live, "simulate", {"cluster": "1x2", "jobs": FOUR, "policy": "fifo", **change})


def test_wrong_questions_to_the_other_tools(live: Live) -> None:
    assert "either trace or jobs" in refused(live, "compare", {"cluster": "1x2", "policy": "fifo"})
    assert "no trace is named" in refused(
        live, "compare", {"trace": "nosuch", "cluster": "1x2", "policy": "fifo"}
    )
    assert "no trace is named" in refused(
        live, "compare", {"trace": "/etc/passwd", "cluster": "1x2", "policy": "fifo"}
    )
    assert "2 speeds for 1 types" in refused(live, "throughput", split({"K80": 1}, {"A": [1, 2]}))
    assert "1 places for 2 jobs" in refused(live, "throughput", split(TWO_AND_TWO, L4, assignment=[0]))
    assert "type 5 does not exist" in refused(live, "throughput", split(TWO_AND_TWO, L4, assignment=[0, 5]))
    with pytest.raises(UnknownName):
        compared(Compare(trace="x", cluster="1x1", policy="fifo"))
    with pytest.raises(NeverFits):
        compared(Compare(trace="itp:10", head=1, cluster="1x1", policy="fifo", jobs=None))
    wrong = {"cluster": "1x1", "jobs": FOUR, "policy": "tiresias-l", "options": {"thresholds": ["x"]}}
    with pytest.raises(BadOption):
        simulated(Simulate.model_validate(wrong))


# --- the workers ------------------------------------------------------------------------------------

QUESTION = {"cluster": "1x2", "jobs": FOUR, "policy": "fifo"}
ENDLESS: Json = {
    "cluster": "1x1",
    "jobs": [{"id": str(i), "duration": 1e7} for i in range(200)],
    "policy": "gavel",
    "options": {"round": 1},
}


def workers() -> set[int]:
    """Processes of the Lab that this one started."""
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if b"dovetail.control.lab.worker" in words and parent == os.getpid():
            found.add(int(folder.name))
    return found


def test_a_worker_is_used_again_and_a_small_question_is_quick(pool: Pool) -> None:
    pool.ask("a", "simulate", QUESTION, 5)
    mine = workers()
    took = []
    for _ in range(5):
        began = time.perf_counter()
        found = json.loads(pool.ask("a", "simulate", QUESTION, 5))
        took.append(time.perf_counter() - began)
        assert found["metrics"]["jct_mean"] == 35
    assert workers() == mine
    assert min(took) < 2.0  # tens of milliseconds, on a machine with nothing else to do


def test_too_much_cpu_is_a_clear_line_and_the_next_is_answered(pool: Pool) -> None:
    with pytest.raises(InputError, match="took more than 1 CPU seconds; ask for fewer jobs"):
        pool.ask("a", "simulate", ENDLESS, 1)
    assert json.loads(pool.ask("a", "simulate", QUESTION, 5))["metrics"]["jct_mean"] == 35


def test_too_much_time_is_a_clear_line() -> None:
    pool = Pool(wall=3.0)
    try:
        with pytest.raises(InputError, match="took more than 3 seconds"):
            pool.ask("a", "simulate", ENDLESS, 30)
    finally:
        pool.close()


def test_a_worker_that_dies_is_told_and_replaced(pool: Pool) -> None:
    pool.ask("a", "simulate", QUESTION, 5)
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            pool.ask("a", "simulate", ENDLESS, 30)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    worker = eventually(lambda: pool._working and next(iter(pool._working)))
    time.sleep(1.5)
    os.kill(worker.pid, signal.SIGSEGV)
    thread.join(PATIENCE)
    assert isinstance(failed[0], Broken)
    assert "SIGSEGV" in str(failed[0])
    assert json.loads(pool.ask("a", "simulate", QUESTION, 5))["metrics"]["jct_mean"] == 35


def test_an_idle_worker_that_is_gone_is_no_problem(pool: Pool) -> None:
    pool.ask("a", "simulate", QUESTION, 5)
    for worker in pool._idle:
        os.kill(worker.pid, signal.SIGKILL)
    assert json.loads(pool.ask("a", "simulate", QUESTION, 5))["metrics"]["jct_mean"] == 35


def test_a_bug_is_no_secret_and_no_hang(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Broken, match="the plane's log says more"):
        pool.ask("a", "nosuch", {}, 5)
    assert "KeyError" in caplog.text


def test_one_at_a_time_for_each_token_and_two_in_all() -> None:
    pool = Pool(patience=0.2)
    threads = []
    try:

        def ask(owner: str) -> None:
            with pytest.raises((InputError, Broken)):
                pool.ask(owner, "simulate", ENDLESS, 30)

        for owner in ("a", "b"):
            threads.append(threading.Thread(target=ask, args=(owner,)))
            threads[-1].start()
        eventually(lambda: len(pool._working) == 2)
        with pytest.raises(Busy, match="your last question"):
            pool.ask("a", "simulate", QUESTION, 5)
        with pytest.raises(Busy, match="questions of others"):
            pool.ask("c", "simulate", QUESTION, 5)
        pool._patience = (
            PATIENCE  # one of theirs may wait; a second is sent away, so that others can wait too
        )
        threads.append(threading.Thread(target=ask, args=("a",)))
        threads[-1].start()
        eventually(lambda: "a" in pool._waiting)
        with pytest.raises(Busy, match="waits for the Lab already"):
            pool.ask("a", "simulate", QUESTION, 5)
    finally:
        pool.close()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not pool._working
    with pytest.raises(Broken, match="going down"):
        pool.ask("a", "simulate", QUESTION, 5)
    pool.close()


def test_a_worker_of_a_large_plane_is_used_again_too() -> None:
    large = bytearray(b"x") * 600_000_000
    worker = Worker()
    try:
        assert worker.ask([b'{"kind":"policies","cpu":30,"question":{}}\n'])[0] == "ok"
    finally:
        worker.end()
        del large


def test_a_worker_gets_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_TOKEN", "dt_secret")
    monkeypatch.setenv("DOVETAIL_DATABASE", "postgresql://me:secret@there")
    assert "secret" not in json.dumps(environment())
    with open("/dev/null") as ours:
        os.set_inheritable(ours.fileno(), True)
        worker = Worker()
        try:
            assert worker.ask([b'{"kind":"policies","cpu":30,"question":{}}\n'])[0] == "ok"
            status = Path(f"/proc/{worker.pid}/environ").read_bytes()
            assert b"secret" not in status
            files = {file.name for file in Path(f"/proc/{worker.pid}/fd").iterdir()}
            assert len(files) <= 5
            stat = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
            assert int(stat[16]) >= min(os.nice(0) + 10, 19)  # nicer than the plane
            limits = Path(f"/proc/{worker.pid}/limits").read_text()
            assert str(2 << 30) in next(line for line in limits.splitlines() if "address space" in line)
        finally:
            worker.end()


@pytest.mark.parametrize("busy", [False, True])
def test_workers_end_with_the_plane_however_it_ends(tmp_path: Path, busy: bool) -> None:
    """A process that asks, and is killed."""
    ask = "pool.ask('a', 'simulate', question, 30)" if busy else "time.sleep(600)"
    program = f"""
import json, threading, time
from dovetail.control.lab.pool import Pool
question = json.loads({json.dumps(ENDLESS)!r})
pool = Pool()
pool.ask('a', 'policies', {{}}, 30)
print(pool._idle[0].pid, flush=True)
{ask}
"""
    plane = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert plane.stdout is not None
    with plane.stdout:
        worker = int(plane.stdout.readline())
        if busy:
            time.sleep(0.5)
        plane.kill()
        plane.wait()
    eventually(lambda: not Path(f"/proc/{worker}").exists() or _is_zombie(worker))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_lab_takes_more_of_the_rate(tmp_path: Path) -> None:
    from dovetail.control.api.settings import Settings

    before, settings = workers(), Settings(rate=0.01, burst=40)
    with living(tmp_path / "plane", settings) as live:
        answers = [live.ask("POST", "lab/simulate", "eve", QUESTION) for _ in range(8)]
    assert answers[0].status == 200
    assert answers[-1].status == 429
    assert "Retry-After" in answers[-1].headers
    assert sum(answer.status == 200 for answer in answers) <= 6
    assert workers() <= before  # none outlives its plane


def test_a_plane_answers_while_the_lab_works(live: Live) -> None:
    answers: list[int] = []
    question = {"trace": "itp:4", "head": 20_000, "cluster": "66x8", "policy": "sjf"}
    thread = threading.Thread(
        target=lambda: answers.append(live.ask("POST", "lab/compare", "abe", question).status)
    )
    thread.start()
    eventually(workers)
    while thread.is_alive():
        assert live.ask("GET", "jobs", "ann").status == 200
        time.sleep(0.1)
    thread.join(PATIENCE)
    assert answers == [200]
