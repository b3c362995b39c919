"""Requests: what is taken, what is refused and how it is said, and what the core is told."""

from __future__ import annotations

import contextlib
import json
import math
import re
import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.control.request import (
    JobRequest,
    RequestError,
    command_of,
    output_of,
    parse_request,
    to_job,
    to_jobs,
)
from dovetail.control.resources import never_fits
from dovetail.core.room import Room
from dovetail.model.cluster import Cluster, GpuType, Node, parse_cluster
from dovetail.model.errors import InputError, NeverFits
from dovetail.model.job import Job, Shape
from dovetail.model.units import DAY, GIB, HOUR, MINUTE, SECOND

CLUSTER = parse_cluster("2x8:A100,2x8:H100,4x4:V100")
NOW = 1_800_000_000 * SECOND


def asked(**values: Any) -> JobRequest:
    return parse_request({"run": "true", **values})


def job(**values: Any) -> Job:
    return to_job(asked(**values), "k3v9q2", NOW, "team", "ada", CLUSTER)


def shape(cluster: Cluster = CLUSTER, **values: Any) -> Shape:
    return to_job(asked(**values), "k3v9q2", NOW, "team", "ada", cluster).shape


def problems(data: object) -> dict[str, str]:
    with pytest.raises(RequestError) as caught:
        parse_request(data)
    assert "\n" not in str(caught.value)
    return {problem.pointer: problem.detail for problem in caught.value.problems}


# -- what is taken ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "written", "read"),
    [
        ("time", "90s", 90 * SECOND),
        ("time", "0.5s", SECOND // 2),
        ("time", "2h30m", 150 * MINUTE),
        ("time", "2h 30m", 150 * MINUTE),
        ("time", "1-12:00:00", 36 * HOUR),
        ("time", "10:00", 10 * MINUTE),
        ("time", 0, None),
        ("time", "0", None),
        ("time", "0:00", None),
        ("expected", "9999w9999d", 999_999_999 * SECOND),
        ("signal_before", "300s", 300 * SECOND),
        ("priority", "high", 100),
        ("priority", -5, -5),
        ("priority", 3.0, 3),
        ("gpu_share", "50%", 500),
        ("gpu_share", "12.5%", 125),
        ("gpu_share", 0.5, 500),
        ("gpu_share", 1, 1_000),
        ("gpu_share", 0.25, 250),
        ("gpu_share", 0.333, 333),
        ("gpu_share", 0.001, 1),
        ("nodes", 2.0, 2),
        ("array", "0-99%8", "0-99%8"),
        ("array", [3, 1, 2], "1-3"),
        ("array", 5, "5"),
        (
            "env",
            {"A": 1, "B": True, "C": 0.5, "LD_PRELOAD": "x"},
            {"A": "1", "B": "true", "C": "0.5", "LD_PRELOAD": "x"},
        ),
        ("begin", "+2h", "+2h"),
        ("deadline", "2026-12-01T09:00", "2026-12-01T09:00"),
        ("name", "größe 大", "größe 大"),
        ("command", None, None),
    ],
)
def test_a_value_is_read_and_can_be_stored(key: str, written: object, read: object) -> None:
    request = asked(**{key: written} if written is not None else {})
    assert getattr(request, key) == read
    assert parse_request(json.loads(json.dumps(request.document()))) == request


@pytest.mark.parametrize(
    ("written", "count", "types"),
    [
        ("A100:8", 8, ("A100",)),
        ("A100", 1, ("A100",)),
        ({"A100": 8, "H100": 8}, 8, ("A100", "H100")),
        (["H100:8", "A100:8"], 8, ("H100", "A100")),
        (["H100", "H100"], 1, ("H100",)),
        ("any:2", 2, ()),
        (["A100:2", "any:2"], 2, ()),
        ("8", 8, ()),
        (8, 8, ()),
        ("A100-80GB:4", 4, ("A100-80GB",)),
    ],
)
def test_accelerators_are_read_in_every_way_they_are_written(
    written: object, count: int, types: tuple[str, ...]
) -> None:
    request = asked(resources={"accelerators": written})
    assert request.resources.count == count
    assert request.resources.types == types
    assert parse_request(request.document()) == request


@pytest.mark.parametrize("key", ["queue", "tenant", "account", "partition", "qos"])
def test_a_queue_has_many_names(key: str) -> None:
    assert asked(**{key: "research"}).tenant_asked == "research"


def test_who_pays_comes_before_where_it_runs() -> None:
    assert asked(partition="gpu", account="research", qos="long").tenant_asked == "research"
    assert asked().tenant_asked == ""


def test_a_member_of_an_array_keeps_what_it_was_told() -> None:
    request = asked(checkpoint={"every": "20m"}, retry={"on": ["exit:33"]}, resources={"memory": "1k"})
    assert parse_request(request.document()) == request


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "pointer", "detail"),
    [
        ({}, "", "nothing to run; give run"),
        ([], "", "a mapping of keys to values is needed"),
        (None, "", "leave the key out"),
        ("run", "", "a mapping of keys to values is needed"),
        ({"run": "x", "command": ["x"]}, "/command", "both run and command"),
        ({"run": "x", "acelerators": 1}, "/acelerators", "did you mean accelerators, under resources"),
        (
            {"run": "x", "resources": {"acelerators": 1}},
            "/resources/acelerators",
            "'acelerators'; did you mean accelerators?",
        ),
        ({"run": "x", "gpus": 1}, "/gpus", "it is called resources.gpus here"),
        ({"run": "x", "timeout": 1}, "/timeout", "it is called time here"),
        ({"run": "x", "kind": "serve"}, "/kind", "does not run kind serve yet"),
        ({"run": "x", "kind": "sweep"}, "/kind", "does not run kind sweep yet"),
        ({"run": "x", "kind": "dance"}, "/kind", "choose train | batch"),
        ({"run": "x", "nodes": "1..4"}, "/nodes", "is a range of nodes; an elastic job says how many GPUs"),
        ({"run": "x", "nodes": 0}, "/nodes", "from 1 to"),
        ({"run": "x", "resources": {"gpus": "8..2"}}, "/resources/gpus", "larger number first; write 2..8"),
        ({"run": "x", "resources": {"gpus": "0..4"}}, "/resources/gpus", "whole numbers from 1"),
        ({"run": "x", "resources": {"gpus": "0.5..2"}}, "/resources/gpus", "whole numbers from 1"),
        ({"run": "x", "resources": {"gpus": "2.."}}, "/resources/gpus", "is not a range of GPUs; write 2..8"),
        (
            {"run": "x", "resources": {"accelerators": "A100:4..2"}},
            "/resources/accelerators",
            "write 2..4",
        ),
        (
            {"run": "x", "resources": {"accelerators": {"A100": "1..4", "H100": "2..4"}}},
            "/resources/accelerators",
            "different counts (1..4, 2..4)",
        ),
        ({"run": "x", "nodes": 2, "resources": {"gpus": "2..4"}}, "/nodes", "of the whole job"),
        ({"run": "x", "gpu_share": 0.5, "resources": {"gpus": "2..4"}}, "/gpu_share", "holds whole GPUs"),
        ({"run": "x", "nodes": True}, "/nodes", "true is not a whole number"),
        ({"run": "x", "nodes": 1, "num_nodes": 2}, "/num_nodes", "both nodes and num_nodes"),
        ({"run": "x", "name": "a\nb"}, "/name", "control characters"),
        ({"run": "x", "name": "a\x1b[2J"}, "/name", "control characters"),
        ({"run": "x", "name": "a\u202eb"}, "/name", "control characters"),
        ({"run": "x", "name": "n" * 201}, "/name", "201 characters"),
        ({"run": "x", "name": ""}, "/name", "1 to 200"),
        ({"run": "x\0"}, "/run", "NUL"),
        ({"run": "x" * 500_001}, "/run", "500,001 characters"),
        ({"run": "x", "env": {"A B": "1"}}, "/env/A B", "cannot name a variable"),
        ({"run": "x", "env": {"DOVETAIL_TOKEN": "1"}}, "/env/DOVETAIL_TOKEN", "set by Dovetail"),
        ({"run": "x", "env": {"A": "\0"}}, "/env/A", "NUL"),
        ({"run": "x", "env": {"A": []}}, "/env/A", "a list of 0; write text"),
        ({"run": "x", "env": {f"A{i}": "1" for i in range(1_001)}}, "/env", "the most is 1,000"),
        ({"run": "x", "env": {"a/b~c": "1"}}, "/env/a~1b~0c", "cannot name a variable"),
        ({"command": []}, "/command", "1 to 10,000 items"),
        ({"command": [""]}, "/command/0", "must have 1 to"),
        ({"command": ["a", 1]}, "/command/1", "is not text"),
        ({"run": "x", "time": "soon"}, "/time", "write 90s, 45m"),
        ({"run": "x", "time": -1}, "/time", "write 90s, 45m"),
        ({"run": "x", "time": 2}, "/time", "2 has no unit; write 2s, 2m or 2h"),
        ({"run": "x", "time": "2"}, "/time", "2 has no unit; write 2s, 2m or 2h"),
        ({"run": "x", "time": 1.5}, "/time", "1.5 has no unit; write 1.5s"),
        ({"run": "x", "expected": 90}, "/expected", "90 has no unit; write 90s"),
        ({"run": "x", "signal_before": 90}, "/signal_before", "90 has no unit"),
        ({"run": "x", "checkpoint": {"every": 20}}, "/checkpoint/every", "20 has no unit"),
        ({"run": "x", "checkpoint": {"grace": 20}}, "/checkpoint/grace", "20 has no unit"),
        ({"run": "x", "begin": "+2"}, "/begin", "write 2026-12-01T09:00Z, or +2h"),
        ({"run": "x", "gpu_share": 50}, "/gpu_share", "50 of a GPU has no unit; write 50% or 0.5"),
        ({"run": "x", "gpu_share": "50"}, "/gpu_share", "50 of a GPU has no unit; write 50% or 0.5"),
        ({"run": "x", "gpu_share": 500}, "/gpu_share", "write 50% or 0.5"),
        ({"run": "x", "time": float("nan")}, "/time", "is not a usable number"),
        ({"run": "x", "time": float("inf")}, "/time", "is not a usable number"),
        ({"run": "x", "priority": 10**400}, "/priority", "a number of 1329 bits"),
        ({"run": "x", "priority": 1.5}, "/priority", "write low | normal | high | urgent"),
        ({"run": "x", "gpu_share": 0}, "/gpu_share", "write 50%"),
        ({"run": "x", "gpu_share": 1.5}, "/gpu_share", "write 50%"),
        ({"run": "x", "gpu_share": 0.5, "resources": {"gpus": 0}}, "/gpu_share", "a share of no GPU"),
        (
            {"run": "x", "resources": {"accelerators": {"A100": 8, "V100": 4}}},
            "/resources/accelerators",
            "different counts (4, 8)",
        ),
        (
            {"run": "x", "resources": {"accelerators": "A100:0"}},
            "/resources/accelerators",
            "is not a request for GPUs",
        ),
        (
            {"run": "x", "resources": {"accelerators": "A100:65"}},
            "/resources/accelerators",
            "is not a request for GPUs",
        ),
        ({"run": "x", "resources": {"accelerators": []}}, "/resources/accelerators", "name 1 to 32"),
        ({"run": "x", "resources": {"accelerators": 1, "gpus": 1}}, "/resources/gpus", "leave gpus out"),
        ({"run": "x", "resources": {"memory": 400}}, "/resources/memory", "400 has no unit; write 400G"),
        ({"run": "x", "resources": {"memory": 1 << 35}}, "/resources/memory", "has no unit"),
        (
            {"run": "x", "resources": {"memory": "32"}},
            "/resources/memory",
            "32 has no unit; write 32G or 32M",
        ),
        ({"run": "x", "resources": {"memory": "lots"}}, "/resources/memory", "write 32G"),
        ({"run": "x", "resources": {"cpus": "many"}}, "/resources/cpus", "write 32"),
        (
            {"run": "x", "resources": {"gpu_memory": "80GB..40GB"}},
            "/resources/gpu_memory",
            "the larger size first",
        ),
        (
            {"run": "x", "resources": {"topology": "near"}},
            "/resources/topology",
            "prefer rack | require rack",
        ),
        ({"run": "x", "resources": 8}, "/resources", "a mapping of keys"),
        ({"run": "x", "checkpoint": {"every": "now"}}, "/checkpoint/every", "is not a duration"),
        ({"run": "x", "checkpoint": {"signal": "KILL"}}, "/checkpoint/signal", "choose TERM"),
        ({"run": "x", "retry": {"on": ["exit:0"]}}, "/retry/on/0", "exit:33"),
        ({"run": "x", "retry": "often"}, "/retry", "write 3, or {max: 3"),
        ({"run": "x", "retry": [3]}, "/retry", "write 3, or {max: 3"),
        ({"run": "x", "retry": -1}, "/retry/max", "out of bounds"),
        ({"run": "x", "retry": {"on": ["oom"], "max": -1}}, "/retry/max", "out of bounds"),
        ({"run": "x", "array": "9-1"}, "/array", "the larger index first"),
        ({"run": "x", "array": [1, "2"]}, "/array", "whole numbers"),
        ({"run": "x", "array": True}, "/array", "true is not text"),
        ({"run": "x", "dependency": "afterok"}, "/dependency", "write afterok:ID"),
        ({"run": "x", "deadline": "2026-02-30"}, "/deadline", "is not a moment"),
        ({"run": "x", "begin": "tomorrow"}, "/begin", "or \\+2h from now"),
        ({"run": "x", "hold": "yes"}, "/hold", "neither true nor false"),
        ({"run": "x", "queue": "a/b"}, "/queue", "a queue is named with letters"),
        ({"run": "x", "output": "a\nb"}, "/output", "one line"),
        ({"run": "x", "setup": None}, "/setup", "leave the key out"),
        ({"run": "#!/usr/bin/awk -f\n"}, "/run", "put it in a file and run that"),
        ({"run": "#!/bin/sh\n" + "x" * 40_000}, "/run", "characters for sh"),
        ({"run": "\ud800"}, "/run", "surrogate"),
        ({"run": "x", "\ud800": 1}, "", "keys are short plain text"),
        ({"run": "x", "name": b"x"}, "/name", "a bytes is nothing that JSON can say"),
        ({"run": "x", 1: 2}, "", "keys are short plain text"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_a_remedy(data: object, pointer: str, detail: str) -> None:
    found = problems(data)
    assert pointer in found, found
    assert re.search(detail if "\\" in detail else re.escape(detail), found[pointer]), found


def test_all_mistakes_are_told_at_once() -> None:
    found = problems({"run": "x", "nodes": -1, "time": "x", "resources": {"memory": "x", "cpu": 1}, "zzz": 1})
    assert set(found) == {"/nodes", "/time", "/resources/memory", "/resources/cpu", "/zzz"}


def test_but_not_thousands_of_them() -> None:
    assert len(problems({f"k{i}": 1 for i in range(5_000)})) == 50
    assert len(problems({"run": "x", "env": {"x": [None] * 5_000}})) == 50


def test_deep_and_wide_nonsense_is_refused_before_it_is_looked_at() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert "deep" in next(iter(problems({"run": "x", "env": deep}).values()))
    assert "deep" in next(iter(problems(deep).values()))
    assert "more than" in next(iter(problems({"run": "x", "array": [0] * 300_000}).values()))
    assert "more than" in problems({"run": "x", "env": {f"A{i}": "x" * 32_000 for i in range(100)}})[""]


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(["1..4", "A100:8", "0-9", "+2h", "", "\0", "\ud800", 10**30, -0.0, math.inf]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
_KEYS = [
    *JobRequest.model_fields,
    "every",
    "on",
    "max",
    "accelerators",
    "gpus",
    "cpus",
    "memory",
    "gpu_memory",
    "huh",
]


@settings(deadline=None)
@given(
    _JSON
    | st.dictionaries(
        st.sampled_from(_KEYS), _JSON | st.dictionaries(st.sampled_from(_KEYS), _JSON, max_size=4), max_size=6
    )
)
def test_no_json_does_more_than_be_refused(data: Any) -> None:
    try:
        request = parse_request(data)
    except RequestError as error:
        json.dumps([problem._asdict() for problem in error.problems]).encode()
        str(error).encode()
        return
    command_of(request)
    assert parse_request(json.loads(json.dumps(request.document()))) == request
    with contextlib.suppress(InputError):
        to_job(request, "k3v9q2", NOW, "team", "ada", CLUSTER)


def test_the_schema_says_what_is_taken() -> None:
    schema = JobRequest.model_json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(JobRequest.model_fields)
    text = json.dumps(schema)
    assert '"null"' not in text
    assert "null" not in re.sub(r'"[^"]*"', "", text)  # no default that would be refused
    for key, field in schema["properties"].items():
        assert field["description"], key
        for example in field.get("examples", ()):
            asked(**{key: example})
        if "default" in field and key != "run":
            asked(**{key: field["default"]})
    for part, parent in (("Resources", "resources"), ("Checkpoints", "checkpoint"), ("Retry", "retry")):
        for key, field in schema["$defs"][part]["properties"].items():
            for value in [*field.get("examples", ()), *([field["default"]] if "default" in field else ())]:
                asked(**{parent: {key: value}})
    parse_request(schema["examples"][0])


# -- what the core is told -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"resources": {"gpus": 1}}, Shape(1, 1)),
        ({"resources": {"gpus": 4}}, Shape(1, 4)),
        ({"nodes": 2, "resources": {"accelerators": "A100:8"}}, Shape(2, 8, types=("A100",))),
        ({"num_nodes": 2, "resources": {"gpus": 4}}, Shape(2, 4)),
        ({"nodes": 3, "resources": {"gpus": 1}}, Shape(3, 1)),
        ({"resources": {"accelerators": ["H100:8", "A100:8"]}}, Shape(1, 8, types=("H100", "A100"))),
        ({"resources": {"accelerators": "a100:2"}}, Shape(1, 2, types=("A100",))),
        ({"resources": {"accelerators": ["H200:2", "A100:2"]}}, Shape(1, 2, types=("A100",))),
        ({"resources": {"gpus": 1, "gpu_memory": "10GB.."}}, Shape(1, 1)),
        ({"resources": {"gpus": 1, "gpu_memory": "40GB.."}}, Shape(1, 1, types=("A100", "H100"))),
        ({"resources": {"gpu_memory": "70GB"}}, Shape(1, 1, types=("H100",))),
        ({"resources": {"gpu_memory": "..20GB"}}, Shape(1, 1, types=("V100",))),
        (
            {"resources": {"accelerators": ["H100:1", "A100:1"], "gpu_memory": "..48GB"}},
            Shape(1, 1, types=("A100",)),
        ),
        ({"gpu_share": "50%"}, Shape(1, 1, 500)),
        ({"gpu_share": 0.25, "resources": {"gpus": 2}}, Shape(1, 2, 250)),
        ({}, Shape(1, 0, cpus=1_000)),
        ({"resources": {"cpus": 4, "memory": "2GB"}}, Shape(1, 0, cpus=4_000, memory=2 * GIB)),
        (
            {"nodes": 2, "resources": {"gpus": 1, "cpus": "0.5", "memory": "1G"}},
            Shape(2, 1, cpus=500, memory=GIB),
        ),
    ],
)
def test_the_shape_of_a_request(values: dict[str, Any], expected: Shape) -> None:
    assert shape(**values) is expected
    assert Room(CLUSTER).anywhere(expected) is not None


def test_the_gpus_of_one_node_are_on_one_node() -> None:
    room = Room(parse_cluster("2x4"))
    room.take(((0, 0b1, 1_000, 0, 0),))
    room.take(((1, 0b1, 1_000, 0, 0),))
    assert room.anywhere(shape(parse_cluster("2x4"), resources={"gpus": 4})) is None
    assert room.anywhere(shape(parse_cluster("2x4"), nodes=2, resources={"gpus": 3})) is not None


def test_one_whole_gpu_takes_the_fast_path() -> None:
    assert shape(resources={"accelerators": "A100:1"}).plain


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"resources": {"gpus": 16}},
            "16 GPUs on one node, but .* has 8; spread them, as in --nodes 2 --gpus 8",
        ),
        (
            {"nodes": 3, "resources": {"accelerators": "A100:8"}},
            "3 tasks of 8 A100 GPUs are 24, but the cluster has 16; .* at most 16, as in --nodes 2 --gpus 8",
        ),
        (
            {"nodes": 5, "resources": {"accelerators": {"A100": 8, "H100": 8}}},
            "are 40, but the cluster has 16 of one type",
        ),
        ({"nodes": 5, "resources": {"gpus": 3}}, "5 times 3 GPUs of one type, .* room for 4; ask for fewer"),
    ],
)
def test_what_never_fits_is_refused_with_the_reason(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(NeverFits, match=reason):
        job(**values)


@pytest.mark.parametrize("cluster", ["2x4:A100", "1x8:A100", "3x2:A100,1x8:H100", "1x3:A100,1x4:A100", "5x1"])
def test_what_is_advised_for_too_many_gpus_fits(cluster: str) -> None:
    found = parse_cluster(cluster)
    advised = 0
    for nodes in range(1, 6):
        for gpus in range(1, 17):
            reason = never_fits(Shape(nodes, gpus), found)
            if match := re.search(r"as in (?:--nodes ([0-9]+) )?--gpus ([0-9]+)", reason):
                advised += 1
                assert never_fits(Shape(int(match[1] or 1), int(match[2])), found) == "", reason
    assert advised > 30


def test_advice_for_gpus_that_no_node_has() -> None:
    two = parse_cluster("2x4:A100")
    assert never_fits(Shape(1, 16), two) == (
        "16 GPUs, but the cluster has 8; ask for at most 8, as in --nodes 2 --gpus 4"
    )
    assert never_fits(Shape(1, 6), two) == (
        "6 GPUs on one node, but the largest such node has 4; spread them, as in --nodes 2 --gpus 3: "
        "--gpus is per task"
    )
    assert never_fits(Shape(2, 8), two) == (
        "2 tasks of 8 GPUs are 16, but the cluster has 8; ask for at most 8, as in --nodes 2 --gpus 4"
    )


def test_memory_and_cpus_that_no_node_has() -> None:
    small = Cluster((Node("a", 4, cpus=8_000, memory=64 * GIB),))
    with pytest.raises(NeverFits, match="16 CPUs on one node, but the largest has 8"):
        shape(small, resources={"cpus": 16})
    with pytest.raises(NeverFits, match="100 GiB of memory on one node, but the largest has 64 GiB"):
        shape(small, resources={"gpus": 1, "memory": "100GB"})
    assert shape(small, nodes=2, resources={"gpus": 2, "cpus": 4}).tasks == 2


def test_what_never_fits_agrees_with_the_room() -> None:
    for gpus in range(0, 10):
        for nodes in range(1, 10):
            wanted = Shape(nodes, gpus, cpus=0 if gpus else 1_000)
            try:
                shape(nodes=nodes, resources={"gpus": gpus})
                fits = True
            except NeverFits:
                fits = False
            assert fits == Room(CLUSTER).ever(wanted), wanted


def test_types_that_nobody_has() -> None:
    with pytest.raises(
        RequestError, match=r"no node has H200; there is A100, H100, V100; did you mean H100\?"
    ):
        job(resources={"accelerators": "H200:1"})
    with pytest.raises(RequestError, match=r"no acceptable GPU has 100GB\.\.; there is V100 16 GiB"):
        job(resources={"gpu_memory": "100GB.."})


def test_a_card_sold_as_80gb_has_80gb() -> None:
    real = Cluster((Node("a", 1, GpuType("H100", 81_559 << 20)), Node("b", 1, GpuType("A100", 40_960 << 20))))
    assert shape(real, resources={"gpu_memory": "80GB.."}).types == ("H100",)
    with pytest.raises(RequestError):
        shape(real, resources={"gpu_memory": "80GiB.."})


def test_a_rack_cannot_be_required_of_several() -> None:
    racks = Cluster((Node("a", 8, rack="r1"), Node("b", 8, rack="r2")))
    near = {"gpus": 8, "topology": "require rack"}
    with pytest.raises(RequestError, match="write prefer rack"):
        shape(racks, nodes=2, resources=near)
    assert shape(racks, nodes=2, resources={**near, "topology": "prefer rack"}).tasks == 2
    assert shape(nodes=2, resources=near).tasks == 2


def test_what_else_the_core_is_told() -> None:
    found = job(
        time="4h",
        expected="3h",
        priority="high",
        deadline="2026-12-01T09:00+01:00",
        model="gpt",
        preemptible=False,
        checkpoint={"every": "20m"},
        retry={"on": ["exit:33"], "max": 5},
    )
    assert (found.id, found.arrived_at, found.tenant, found.user) == ("k3v9q2", NOW, "team", "ada")
    assert (found.work, found.estimate, found.priority, found.model) == (3 * HOUR, 3 * HOUR, 100, "team/gpt")
    assert found.deadline == 1_796_112_000 * SECOND
    assert not found.traits.preemptible
    assert found.traits.retries == 0  # the plane counts them
    assert found.traits.checkpoint.every == 20 * MINUTE
    assert found.traits.checkpoint.on_stop
    assert found.group == ""


def test_only_who_says_so_saves_when_stopped() -> None:
    assert not job().traits.checkpoint.on_stop
    assert job(checkpoint={}).traits.checkpoint.on_stop
    assert job(checkpoint={}).traits.checkpoint.every is None
    assert job().traits is job().traits  # shared


@pytest.mark.parametrize(
    ("values", "estimate"),
    [
        ({}, HOUR),
        ({"time": "2h"}, 2 * HOUR),
        ({"expected": "3h"}, 3 * HOUR),
        ({"time": "2h", "expected": "3h"}, 2 * HOUR),
        ({"time": 0, "expected": 0}, HOUR),
        ({"time": 0, "expected": "1d"}, DAY),
    ],
)
def test_how_long_it_is_said_to_take(values: dict[str, Any], estimate: int) -> None:
    assert job(**values).estimate == estimate


def test_moments() -> None:
    assert asked(begin="+2h").begins_at(NOW) == NOW + 2 * HOUR
    assert asked(begin="2027-01-15T08:00Z").begins_at(NOW) == NOW
    assert asked().begins_at(NOW) is None
    assert job(deadline="+90s").deadline == NOW + 90 * SECOND


def test_the_members_of_an_array() -> None:
    jobs = list(to_jobs(asked(array="3,5-6%2"), "k3v9q2", NOW, "team", "ada", CLUSTER))
    assert [one.id for one in jobs] == ["k3v9q2_3", "k3v9q2_5", "k3v9q2_6"]
    assert {one.group for one in jobs} == {"k3v9q2"}
    assert jobs[1] == to_job(asked(array="3,5-6%2"), "k3v9q2_5", NOW, "team", "ada", CLUSTER)
    (alone,) = to_jobs(asked(), "k3v9q2", NOW, "team", "ada", CLUSTER)
    assert alone.id == "k3v9q2"


# -- what is run -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "argv"),
    [
        ({"command": ["python", "-c", "1"]}, ("python", "-c", "1")),
        ({"run": "a\nb"}, ("/bin/bash", "-c", "a\nb")),
        ({"run": "#!/bin/sh -e\na"}, ("/bin/sh", "-e", "-c", "#!/bin/sh -e\na")),
        (
            {"run": "#!/usr/bin/env python3.11\na"},
            ("/usr/bin/env", "python3.11", "-c", "#!/usr/bin/env python3.11\na"),
        ),
        ({"run": "#! /usr/bin/perl\na"}, ("/usr/bin/perl", "-e", "#! /usr/bin/perl\na")),
    ],
)
def test_what_is_run(values: dict[str, Any], argv: tuple[str, ...]) -> None:
    assert command_of(parse_request({**values, "setup": "s"})) == (argv, "s")


def test_a_script_longer_than_one_word_of_a_command_may_be() -> None:
    text = "".join(f"x{i}='größe {i}'\n" for i in range(20_000)) + 'echo "$x19999 $#"; exit 3\n'
    argv, _ = command_of(parse_request({"run": text}))
    assert max(len(word.encode()) for word in argv) < 1 << 17
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("größe 19999 0\n", "", 3)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ""),
        ("%j.out", "k3v9q2_7.out"),
        ("logs/%x-%A_%a.out", "logs/fit-k3v9q2_7.out"),
        ("%4a", "0007"),
        ("%N-%t-%%-%q", "%N-%t-%%-%q"),
        ("%%j", "%%j"),
    ],
)
def test_output_names(pattern: str, expected: str) -> None:
    assert output_of(pattern, "k3v9q2_7", "k3v9q2", 7, "fit") == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("../../etc/passwd", ".._.._etc_passwd"), ("..", "_"), ("%N", "_N"), ("", "_")]
)
def test_a_name_is_no_path(name: str, expected: str) -> None:
    assert output_of("%x", "k3v9q2", None, None, name) == expected


def test_a_job_alone_is_its_own_array() -> None:
    assert output_of("%A_%a", "k3v9q2", None, None, "fit") == "k3v9q2_"


def test_a_number_of_retries_is_enough() -> None:
    assert asked(retry=2).retry == asked(retry={"max": 2}).retry
    assert asked(retry=0).retry is not None
    assert parse_request({"run": "x", **asked(retry=2).document()}).retry == asked(retry=2).retry


def test_a_range_of_gpus_is_an_elastic_job_that_asks_for_the_most() -> None:
    job = to_job(asked(resources={"gpus": "2..8"}), "k3v9q2", NOW, "team", "ada", parse_cluster("2x4"))
    assert (job.shape.tasks, job.shape.each, job.traits.least, job.traits.most) == (8, 1, 2, 8)
    assert job.shape.plain
    assert not to_job(asked(), "k3v9q2", NOW, "team", "ada", CLUSTER).traits.elastic
    with_more = shape(parse_cluster("2x4"), resources={"accelerators": "any:1..4", "cpus": 6, "memory": "4G"})
    assert (with_more.tasks, with_more.cpus, with_more.memory) == (4, 1_500, 1 << 30), "a part for each GPU"


def test_an_elastic_job_asks_for_as_much_of_its_range_as_the_cluster_has() -> None:
    request = asked(resources={"gpus": "2..8"}, expected="1h")
    job = to_job(request, "k3v9q2", NOW, "team", "ada", parse_cluster("1x4"))
    assert (job.shape.tasks, job.traits.least, job.traits.most) == (4, 2, 8)
    assert job.estimate == 2 * HOUR, "an hour with eight GPUs"
    with pytest.raises(NeverFits, match=r"at least 2 GPUs, but the empty cluster has room for 1; .*1\.\.1"):
        to_job(request, "k3v9q2", NOW, "team", "ada", parse_cluster("1x1"))


@pytest.mark.parametrize("resources", [{"gpus": "2..8"}, {"accelerators": ["A100:2..8", "H100:2..8"]}])
def test_a_range_is_written_as_it_was_read(resources: dict[str, Any]) -> None:
    request = asked(resources=resources)
    assert request.document()["resources"] == resources
    assert parse_request(request.document()) == request
