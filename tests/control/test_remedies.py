"""Every remedy that `why` prints lets the job start: each is applied to the plane, over 200 random states.

A state is made by random users on a random cluster. For some of its waiting jobs `why` is asked; then each
remedy is applied, as a user or an admin would, to a copy of the plane that was started from its store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.control.stepped_plane import Stepped, empty_store, stepped

from dovetail.control import commands, questions
from dovetail.control import remedies as remedies_module
from dovetail.control.chosen_policy import DEFAULT_POLICY, NamedPolicy
from dovetail.control.limits import OverLimit
from dovetail.control.problems import RequestError
from dovetail.control.remedies import Remedy
from dovetail.control.states import State
from dovetail.control.tokens import Caller
from dovetail.control.trial import Outcome, Trial
from dovetail.core.core import Core
from dovetail.model.cluster import KNOWN_TYPES, Cluster, Node
from dovetail.model.errors import NeverFits
from dovetail.model.units import GIB, MINUTE, SECOND

STATES = 200
ADMIN = Caller("t4", "", "eve", "admin")
USERS = [
    Caller("t1", "red", "ann", "user"),
    Caller("t2", "red", "abe", "user"),
    Caller("t3", "blue", "bob", "user"),
    ADMIN,
]
POLICIES = [
    *[DEFAULT_POLICY] * 6,
    NamedPolicy("kueue", {"whole": True, "score": "pack"}),
    NamedPolicy("backfill", {}),
    NamedPolicy("fifo", {}),
    NamedPolicy("fifo", {"discipline": "skip"}),
    NamedPolicy("priority", {}),
    NamedPolicy("srtf", {}),
]


# --- states -----------------------------------------------------------------------------------------


def some_cluster(dice: Random) -> Cluster:
    kinds = ["A100", "V100"] if dice.random() < 0.3 else ["A100"]
    return Cluster(
        tuple(
            Node(
                f"n{number}",
                dice.choice([2, 4, 4, 8]),
                KNOWN_TYPES[dice.choice(kinds)],
                cpus=dice.choice([4, 8, 16]) * 1_000,
                memory=dice.choice([8, 16]) * GIB,
            )
            for number in range(dice.randint(1, 3))
        )
    )


def some_request(dice: Random) -> dict[str, Any]:
    resources: dict[str, Any] = {"gpus": dice.choice([0, 1, 1, 1, 2, 2, 4, 8])}
    if dice.random() < 0.15:
        resources = {"accelerators": f"{dice.choice(['A100', 'V100'])}:{dice.choice([1, 2, 4])}"}
    if dice.random() < 0.4:
        resources["cpus"] = dice.choice([1, 2, 4, 8])
    if dice.random() < 0.35:
        resources["memory"] = dice.choice(["512M", "4G", "8G", "12G"])
    body: dict[str, Any] = {"run": "x", "resources": resources}
    if dice.random() < 0.25:
        body["nodes"] = dice.randint(2, 3)
    if dice.random() < 0.1 and resources.get("gpus"):
        body["gpu_share"] = "50%"
    if dice.random() < 0.5:
        body[dice.choice(["expected", "time"])] = dice.choice(["20m", "1h", "3h", "9h"])
    if dice.random() < 0.3:
        body["name"] = dice.choice(["fit", "eval"])
    if dice.random() < 0.25:
        body["priority"] = dice.choice([-100, 50, 100, 200])
    body["preemptible"] = dice.random() < 0.7
    gate = dice.random()
    if gate < 0.08:
        body["hold"] = True
    elif gate < 0.12:
        body["array"] = "0-3%2"
    elif gate < 0.14:
        body["begin"] = "+30m"
    return body


def give_quotas(plane: Stepped, dice: Random) -> None:
    """Each of two tenants gets a part of the cluster, under one parent or not."""
    gpus = plane.cluster.gpus
    mine = dice.randint(0, gpus)
    row: dict[str, Any] = {}
    if dice.random() < 0.5:
        commands.set_tenant(plane.plane, {"name": "lab"})
        row = {"parent": "lab", "borrow": dice.choice([0, 1, None])}
    commands.set_tenant(plane.plane, {"name": "red", "quota": mine, **row})
    commands.set_tenant(plane.plane, {"name": "blue", "quota": dice.randint(0, gpus - mine), **row})


def let_a_wide_job_wait(plane: Stepped, dice: Random) -> None:
    """A gang of all nodes of a type is first in line, and small jobs are behind it: some would delay it."""
    nodes = plane.cluster.nodes
    alike = [node.gpus for node in nodes if node.type == nodes[0].type]
    wide = {"accelerators": f"{nodes[0].type.name}:{min(alike)}"}
    with suppress(NeverFits, OverLimit):
        plane.submit(
            dice.choice(USERS[:3]), {"run": "x", "resources": wide, "nodes": len(alike), "priority": 90}
        )
        for _ in range(3):
            small = {"run": "x", "resources": {"gpus": 1}, "expected": dice.choice(["3h", "9h"])}
            plane.submit(dice.choice(USERS[:3]), small)


def act(plane: Stepped, dice: Random) -> None:
    """Something that happens on a cluster: mostly submissions."""
    plane.now += int(dice.expovariate(1 / (5 * MINUTE)))
    kind = dice.random()
    running = [name for name in plane.records if plane.runs(name)]
    waiting = [name for name, record in plane.records.items() if record.state is State.PENDING]
    nodes = [node.name for node in plane.cluster.nodes]
    try:
        if kind < 0.7:
            plane.submit(dice.choice(USERS[:3]), some_request(dice))
        elif kind < 0.82 and running:
            plane.end(dice.choice(running))
        elif kind < 0.86 and len(nodes) > 1:
            commands.drain(plane.plane, dice.choice(nodes), "a fan")
        elif kind < 0.89:
            gpus = plane.cluster.gpus
            row: dict[str, Any] = {"name": dice.choice(["red", "blue"])}
            row[dice.choice(["quota", "quota", "limit"])] = dice.randint(1, gpus)
            commands.set_tenant(plane.plane, row)
        elif kind < 0.92 and waiting:
            commands.hold(plane.plane, [dice.choice(waiting)])
        elif kind < 0.95 and waiting:
            commands.set_priority(plane.plane, ADMIN, [dice.choice(waiting)], dice.choice([-50, 10, 100]))
        elif kind < 0.97 and running:
            commands.requeue(plane.plane, [dice.choice(running)])
        elif kind > 0.98:
            commands.set_limits(plane.plane, ("user", dice.choice(USERS[:3]).user), {"gpus": 2})
    except (NeverFits, OverLimit, RequestError):
        pass  # what could never start is refused


# --- remedies ---------------------------------------------------------------------------------------


def owner_of(plane: Stepped, job: str) -> Caller:
    record = plane.records[job]
    return next(user for user in USERS if (user.user, user.tenant) == (record.user, record.tenant))


def resubmit(plane: Stepped, job: str, remedy: Remedy, caller: Caller) -> str:
    asked = plane.plane._led().ledger.index.asked[plane.records[job].request]
    assert remedy.ask is not None
    commands.cancel(plane.plane, [job])
    return plane.submit(caller, {**asked.body, **remedy.ask})


def release(plane: Stepped, job: str, remedy: Remedy, caller: Caller) -> str:
    assert commands.release(plane.plane, [job]) == [job]
    return job


def cancel(plane: Stepped, job: str, remedy: Remedy, caller: Caller) -> str:
    assert commands.cancel(plane.plane, list(remedy.jobs)) == list(remedy.jobs)
    return job


def priority(plane: Stepped, job: str, remedy: Remedy, caller: Caller) -> str:
    assert remedy.priority is not None
    commands.set_priority(plane.plane, caller, [job], remedy.priority)
    return job


def resume(plane: Stepped, job: str, remedy: Remedy, caller: Caller) -> str:
    for node in remedy.nodes:
        commands.resume(plane.plane, node)
    return job


def tenant(plane: Stepped, job: str, remedy: Remedy, caller: Caller) -> str:
    settings = {"quota": remedy.quota, "limit": remedy.limit}
    given = {key: value for key, value in settings.items() if value is not None}
    commands.set_tenant(plane.plane, {"name": remedy.tenant, **given})
    return job


def wait(plane: Stepped, job: str, remedy: Remedy, caller: Caller) -> str:
    """All jobs end as estimated; one that has outlived its estimate takes as long again."""
    assert remedy.at is not None
    ends: dict[tuple[str, int], int] = {}
    while not plane.runs(job):
        for name, active in plane.core.running.items():
            if (name, active.epoch) not in ends:
                left, done = active.remaining_at(plane.now), active.done_at(plane.now)
                ends[name, active.epoch] = plane.now + (left or max(done, SECOND))
        living = {
            key: at
            for key, at in ends.items()
            if plane.runs(key[0]) and plane.records[key[0]].epoch == key[1]
        }
        if not living:
            return job
        at = min(living.values())
        if at > remedy.at:
            return job
        plane.end(*(name for (name, _), end in living.items() if end == at), at=at)
    return job


APPLY: dict[str, Callable[[Stepped, str, Remedy, Caller], str]] = {
    "resubmit": resubmit,
    "release": release,
    "cancel": cancel,
    "priority": priority,
    "resume": resume,
    "tenant": tenant,
    "wait": wait,
}


def sort_of(remedy: Remedy) -> str:
    """The kind, and what is asked for if it is submitted again."""
    if remedy.ask is None:
        return remedy.kind
    key = next(iter(remedy.ask))
    return f"{remedy.kind} {remedy.text.partition('--')[2].split()[0] if key == 'resources' else key}"


SORTS = {
    *(kind for kind in APPLY if kind != "resubmit"),
    *(f"resubmit {what}" for what in ("gpus", "cpus", "memory", "nodes", "time")),
}


def tried_in(folder: Path, template: Path, seed: int, told: Counter[str]) -> list[str]:
    """The remedies of one state that do not work; those that were printed are counted."""
    dice, wrong = Random(seed), []
    with stepped(folder / f"s{seed}", some_cluster(dice), dice.choice(POLICIES), template) as plane:
        if dice.random() < 0.4:
            give_quotas(plane, dice)
        for _ in range(dice.randint(6, 22)):
            act(plane, dice)
        if dice.random() < 0.4:
            let_a_wide_job_wait(plane, dice)
        stuck = [n for n, r in plane.records.items() if r.state in (State.PENDING, State.HELD)]
        for job in dice.sample(stuck, min(2, len(stuck))):
            caller = ADMIN if dice.random() < 0.2 else owner_of(plane, job)
            answer = questions.why(plane.plane, job, caller)
            for number, remedy in enumerate(answer.remedies):
                told[sort_of(remedy)] += 1
                with plane.copied(folder / f"c{seed}-{number}") as copy:
                    started = APPLY[remedy.kind](copy, job, remedy, caller)
                    if not copy.runs(started):
                        wrong.append(
                            f"seed {seed}, {plane.plane.policy[0]}, job {job}: {answer.sentence} {remedy}"
                        )
    return wrong


def wrong_in(folder: Path, seeds: range) -> tuple[list[str], Counter[str]]:
    """The remedies that do not work in these states, and how many of each sort were printed."""
    template = empty_store(folder)
    told: Counter[str] = Counter()
    return [line for seed in seeds for line in tried_in(folder, template, seed, told)], told


@pytest.mark.slow(60)
def test_every_remedy_lets_the_job_start(tmp_path: Path) -> None:
    wrong, told = wrong_in(tmp_path, range(STATES))
    assert wrong == []
    assert {sort.split()[0] for sort in told} == APPLY.keys(), told


@pytest.mark.long
def test_remedies_of_every_sort_let_the_job_start(tmp_path: Path) -> None:
    wrong, told = wrong_in(tmp_path, range(STATES, 6 * STATES))
    assert wrong == []
    assert told.keys() == SORTS, told
    assert min(told.values()) >= 3, told


def test_a_remedy_that_is_not_tried_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The states are hard enough: with each remedy taken to work, most of those printed do not."""
    monkeypatch.setattr(Trial, "outcome", lambda *_: Outcome(True))
    wrong, told = wrong_in(tmp_path, range(10))
    assert len(wrong) > told.total() / 4, told


def test_jobs_that_would_be_preempted_are_named_only_to_those_who_see_them() -> None:
    tenants = {"aaaaaa": "red", "bbbbbb": "red", "cccccc": "blue", "dddddd": "red", "eeeeee": "red"}
    core = cast(Core, SimpleNamespace(jobs={job: SimpleNamespace(tenant=t) for job, t in tenants.items()}))

    def told(*jobs: str) -> str:
        return remedies_module._costs(core, jobs, lambda tenant: tenant == "red")

    assert told() == ""
    assert told("aaaaaa") == " (preempts aaaaaa)"
    assert told("aaaaaa", "bbbbbb") == " (preempts aaaaaa and bbbbbb)"
    assert told("cccccc") == " (preempts 1 job)"
    assert told("aaaaaa", "cccccc") == " (preempts 2 jobs)"
    assert told("aaaaaa", "bbbbbb", "dddddd", "eeeeee") == " (preempts 4 jobs)"
