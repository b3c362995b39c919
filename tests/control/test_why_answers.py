"""What `why` says of a waiting job: the resource that is short, whose it is, the rule, one wait."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.control.stepped_plane import Stepped, empty_store, stepped

from dovetail.control import commands, questions
from dovetail.control.api.jobs import holder_rows
from dovetail.control.chosen_policy import DEFAULT_POLICY, NamedPolicy
from dovetail.control.run_times import Source
from dovetail.control.tokens import Caller
from dovetail.control.why import MOST_NAMED, Why
from dovetail.model.cluster import KNOWN_TYPES, Cluster, Node
from dovetail.model.units import GIB, HOUR, MINUTE

ANN, BOB = Caller("t1", "red", "ann", "user"), Caller("t2", "blue", "bob", "user")
ADMIN = Caller("t3", "", "eve", "admin")
Make = Callable[..., Stepped]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Planes of so many nodes with so many A100, 8 CPUs and 16 GiB each."""
    made: list[AbstractContextManager[Stepped]] = []

    def one(nodes: int = 2, gpus: int = 4, policy: NamedPolicy = DEFAULT_POLICY) -> Stepped:
        kind = KNOWN_TYPES["A100"]
        each = (Node(f"n{n}", gpus, kind, cpus=8_000, memory=16 * GIB) for n in range(nodes))
        planes = stepped(tmp_path / f"p{len(made)}", Cluster(tuple(each)), policy, empty_store(tmp_path))
        made.append(planes)
        return planes.__enter__()

    yield one
    for planes in made:
        planes.__exit__(None, None, None)


def request(gpus: float = 1, **more: Any) -> dict[str, Any]:
    resources = {key: more.pop(key) for key in ("cpus", "memory") if key in more}
    return {"run": "x", "resources": {"gpus": gpus, **resources}, **more}


def why(plane: Stepped, job: str, caller: Caller = ANN) -> Why:
    return questions.why(plane.plane, job, caller)


# --- the resource, and whose it is -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "asked", "resource", "sentence"),
    [
        (
            {"cpus": 6},
            {"cpus": 4},
            "cpus",
            "It asks for 4 CPUs on one node; n0 has the most free, 2 CPUs. 2 jobs hold the rest.",
        ),
        (
            {"memory": "12G"},
            {"memory": "8G"},
            "memory",
            "It asks for 8 GiB of memory on one node; n0 has the most free, 4 GiB of memory. "
            "2 jobs hold the rest.",
        ),
    ],
)
def test_the_resource_that_is_short_is_named(
    make: Make, held: dict[str, Any], asked: dict[str, Any], resource: str, sentence: str
) -> None:
    """GPUs are free on both nodes; jobs that hold GPUs alone are not in the way."""
    plane = make()
    beside = plane.submit(ANN, request())
    holding = [plane.submit(user, request(**held)) for user in (ANN, BOB)]
    found = why(plane, plane.submit(ANN, request(**asked)))
    assert ([one.resource for one in found.short], found.sentence) == ([resource], sentence)
    assert [(one.job, one.tenant) for one in found.holders] == list(
        zip(holding, ("red", "blue"), strict=True)
    )
    assert beside not in {one.job for one in found.holders}


def test_holders_that_are_not_listed_are_counted(make: Make) -> None:
    plane = make()
    for _ in range(MOST_NAMED + 5):
        plane.submit(ANN, request(gpu_share=0.25))
    for _ in range(7):
        plane.submit(BOB, request(gpu_share=0.25))
    rows = holder_rows(ANN, why(plane, plane.submit(ANN, request())).holders)
    assert len([row for row in rows if row["job"] is not None]) == MOST_NAMED
    assert [(row["jobs"], row["hidden"], row["gpus"]) for row in rows[MOST_NAMED:]] == [
        (5, False, 1.25),
        (7, True, 1.75),
    ]


@pytest.mark.parametrize("policy", [DEFAULT_POLICY, NamedPolicy("kueue", {"whole": True, "score": "pack"})])
def test_a_gang_beyond_what_is_left_of_a_quota_is_told_the_figures(make: Make, policy: NamedPolicy) -> None:
    plane = make(8, 8, policy)
    commands.set_tenant(plane.plane, {"name": "everybody"})
    for name in ("red", "blue"):
        commands.set_tenant(plane.plane, {"name": name, "parent": "everybody", "quota": 32})
    plane.submit(ANN, request(8))
    found = why(plane, plane.submit(ANN, request(8, nodes=8)))
    assert found.sentence == (
        "The tenants under everybody may hold 64 GPUs together; their jobs hold 8, and this one asks for 64."
    )
    assert found.reason == "AssocGrpGRES"


# --- the rule ------------------------------------------------------------------------------------------


def test_the_rule_that_holds_a_job_back_is_named(make: Make) -> None:
    """Half of the cluster is free, and kept for a gang: the long job behind it may not start."""
    plane = make()
    plane.submit(BOB, request(4, expected="1h"))
    gang = plane.submit(BOB, request(4, nodes=2, expected="1h"))
    small = plane.submit(ANN, request(expected="9h"))
    told = "starting it now would delay {}, which goes before it and waits"
    hidden, open_ = why(plane, small), why(plane, small, ADMIN)
    assert (hidden.rule, hidden.behind) == (told.format("a job of another tenant"), None)
    assert (open_.rule, open_.behind) == (told.format(gang), gang)
    assert open_.sentence == f"There is room for it, but {told.format(gang)}."
    shorter = next(one for one in hidden.remedies if one.kind == "resubmit")
    assert shorter.ask == {"time": "30m"}, "it ends before the gang can start"


# --- one wait, and what it rests on ----------------------------------------------------------------------


def test_an_answer_has_one_wait(make: Make) -> None:
    plane = make()
    for _ in range(2):
        plane.submit(ANN, request(4, expected="2h"))
    first = plane.submit(ANN, request(4, nodes=2, expected="1h"))
    found = why(plane, plane.submit(ANN, request(4)))
    assert found.starts_at is not None
    assert found.starts_at.likely == plane.now + 3 * HOUR
    for answer in (found, why(plane, first)):
        told = " ".join((answer.sentence, answer.rule, *(one.text for one in answer.remedies)))
        assert not re.search(r"\bin [\d.]+ (s|min|h|d)\b|should end", told), told


def test_an_assumed_hour_is_mentioned(make: Make) -> None:
    plane = make()
    plane.submit(ANN, request(4, nodes=2))
    found = why(plane, plane.submit(ANN, request(4)))
    assert found.assumed == ("no estimate given: assumed 1 h; assumed 1 h for the job that holds it")
    assert (found.estimate, found.estimate_source) == (HOUR, Source.ASSUMED)
    given = why(plane, plane.submit(ANN, request(4, expected="10m")))
    assert (given.estimate, given.estimate_source) == (10 * MINUTE, Source.GIVEN)
    assert not given.assumed.startswith("no estimate")


def test_the_estimate_is_learned_from_runs_of_the_same_name_user_and_size(make: Make, tmp_path: Path) -> None:
    plane = make()
    for minutes in (20, 30, 100):
        run = plane.submit(ANN, request(4, name="fit"))
        plane.end(run, at=plane.now + minutes * MINUTE)
    failed = plane.submit(ANN, request(4, name="fit"))
    commands.cancel(plane.plane, [failed])
    plane.submit(BOB, request(4, nodes=2, expected="9h"))
    same = plane.submit(ANN, request(4, name="fit"))
    others = [
        plane.submit(ANN, request(4, name="eval")),
        plane.submit(ANN, request(2, name="fit")),
        plane.submit(BOB, request(4, name="fit")),
        plane.submit(ANN, request(4, name="fit", time="5h")),
    ]
    with plane.copied(tmp_path / "again") as again:
        for each in (plane, again):
            found = why(each, same)
            assert found.assumed.startswith("no estimate given: assumed 30 min, as it ran before")
            assert (found.estimate, found.estimate_source) == (30 * MINUTE, Source.HISTORY)
    told = [why(plane, job, ADMIN) for job in others]
    assert [one.estimate_source for one in told] == [*[Source.ASSUMED] * 3, Source.LIMIT]
