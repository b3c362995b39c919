"""A journal is the whole story: equal runs give equal bytes, and it can be played again."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.core.explain import explain
from dovetail.core.journal import Header, JournalWriter, job_from_json, job_to_json, read_journal
from dovetail.core.replay import core_at, reasons, replayed
from dovetail.model.cluster import Tenant
from dovetail.model.errors import InputError, JournalError, ReplayMismatch
from dovetail.model.job import Checkpoint, Job, Profile, Role, Shape, Traits
from dovetail.model.view import Policy
from dovetail.policies.registry import POLICIES
from dovetail.testing.build import cluster, job, run

SMALL = cluster(nodes=2, gpus=4, tenants=[Tenant("a", quota=4), Tenant("b", parent="a")])


def make(header: Header) -> Policy:
    return POLICIES.make(header.policy, **header.options)


def jobs(count: int = 40) -> list[Job]:
    dice = random.Random(7)
    return [
        job(
            f"j{i}",
            gpus=dice.choice([1, 1, 2, 4, 8]),
            seconds=dice.randrange(10, 500),
            at=dice.randrange(0, 900),
            tenant=dice.choice("ab"),
            checkpoint=Checkpoint(save=2_000_000, restore=3_000_000),
        )
        for i in range(count)
    ]


def write(path: Path, policy: str) -> None:
    with JournalWriter(path, Header(SMALL, policy, {})) as journal:
        run(jobs(), SMALL, policy, on_step=lambda _, step: journal.write(step))


@pytest.mark.parametrize("policy", ["fifo", "srtf", "backfill", "tiresias-l"])
def test_equal_runs_give_equal_bytes_and_replay(tmp_path: Path, policy: str) -> None:
    write(tmp_path / "a.jsonl", policy)
    write(tmp_path / "b.jsonl", policy)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    _, steps = read_journal(tmp_path / "a.jsonl")
    assert [step for _, step in replayed(tmp_path / "a.jsonl", make)] == list(steps)


def test_a_changed_policy_is_caught(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "srtf")
    with pytest.raises(ReplayMismatch, match="step"):
        list(replayed(tmp_path / "a.jsonl", lambda header: POLICIES.make("fifo")))


def test_why_a_job_waited(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "fifo")
    told = list(reasons(tmp_path / "a.jsonl", make, "j3"))
    assert told
    assert {reason.word for _, reason in told} <= {"Resources", "Priority", "Running"}
    with pytest.raises(JournalError, match="ever submitted"):
        list(reasons(tmp_path / "a.jsonl", make, "nobody"))
    with pytest.raises(JournalError, match="no step 99999"):
        core_at(tmp_path / "a.jsonl", make, 99_999)


def test_explaining_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "srtf")
    for core, _ in replayed(tmp_path / "a.jsonl", make):
        for name in list(core.jobs):
            before = (core.room.picture(), core.queue.picture(), core.departures.picture(), dict(core.used))
            assert explain(core, name).job == name
            assert (
                core.room.picture(),
                core.queue.picture(),
                core.departures.picture(),
                dict(core.used),
            ) == before


def test_a_reason_names_what_is_missing(tmp_path: Path) -> None:
    both = [
        job("long", gpus=3, hours=1),
        job("wide", gpus=8, seconds=10, at=1),
        job("late", gpus=1, seconds=5, at=2),
    ]
    with JournalWriter(tmp_path / "a.jsonl", Header(SMALL, "fifo", {})) as journal:
        run(both, SMALL, "fifo", on_step=lambda _, step: journal.write(step))
    core, _ = core_at(tmp_path / "a.jsonl", make, 3)
    wide, late = explain(core, "wide"), explain(core, "late")
    assert wide.word == "Resources"
    assert wide.sentence == "It asks for 8 GPUs; 5 are free. long holds the rest and should end in 1 h."
    assert (late.word, late.ahead) == ("Priority", 1)
    assert "wide" in late.sentence
    with pytest.raises(InputError, match="nobody"):
        explain(core, "nobody")


def test_a_reason_says_it_if_what_is_free_is_not_together(tmp_path: Path) -> None:
    jobs = [
        job("a", gpus=3, hours=1),
        job("b", gpus=3, hours=2),
        job("pair", gpus=2, seconds=10, at=1),
    ]
    with JournalWriter(tmp_path / "a.jsonl", Header(SMALL, "fifo", {})) as journal:
        run(jobs, SMALL, "fifo", on_step=lambda _, step: journal.write(step))
    core, _ = core_at(tmp_path / "a.jsonl", make, 2)
    assert explain(core, "pair").sentence == (
        "It asks for 2 GPUs; 2 are free, but no more than 1 on one node (n0). "
        "2 jobs hold the rest; the first to end should be a, in 1 h."
    )


def test_an_unfinished_journal_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), JournalWriter(tmp_path / "a.jsonl", Header(SMALL, "fifo", {})):
        raise RuntimeError("power cut")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "nonsense\n", '{"dovetail": 99}\n'])
def test_what_is_no_journal_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(JournalError, match="line 1"):
        read_journal(tmp_path / "a.jsonl")


def test_a_job_survives_whole() -> None:
    everything = Job(
        id="x",
        arrived_at=5,
        shape=Shape(4, 2, 500, types=("A100", "V100"), cpus=100, memory=7, roles=(Role("ps", 2, 10, 20),)),
        work=100,
        estimate=90,
        tenant="t",
        user="u",
        priority=-3,
        deadline=77,
        model="m",
        group="g",
        traits=Traits(
            least=1,
            most=9,
            checkpoint=Checkpoint(every=3, on_stop=False, save=1, restore=2, resize=4),
            profile=Profile(
                speeds={"A100": 2.0},
                curve={1: 1.0, 2: 1.9},
                split=1.5,
                beside={"A100": {"m": 1.2, "other": 0.0}},
            ),
            epochs=10,
            retries=2,
        ),
        fails_after=50,
    )
    assert job_from_json(job_to_json(everything)) == everything
    by_type = replace(everything, traits=Traits(profile=Profile(split={"A100": 1.5, "V100": 3.0})))
    assert job_from_json(json.loads(json.dumps(job_to_json(by_type)))) == by_type
