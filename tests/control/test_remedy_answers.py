"""Remedies cost CPU: a token that asks without a pause waits for itself, and other tokens do not notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.control.stepped_plane import Stepped, empty_store, stepped

from dovetail.control import commands, questions, remedy_answers
from dovetail.control.chosen_policy import DEFAULT_POLICY
from dovetail.control.tokens import Caller
from dovetail.control.trial import Outcome, Trial
from dovetail.model.cluster import KNOWN_TYPES, Cluster, Node

ANN, BOB = Caller("t1", "red", "ann", "user"), Caller("t2", "blue", "bob", "user")
ONE_NODE = Cluster((Node("n0", 4, KNOWN_TYPES["A100"]),))


def told(plane: Stepped, job: str, caller: Caller) -> tuple[list[str], float]:
    """The remedies but for waiting, and the seconds until they can be tried."""
    found = questions.why(plane.plane, job, caller)
    return [one.kind for one in found.remedies if one.kind != "wait"], found.remedies_in


def test_a_token_that_asks_too_often_waits_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remedy_answers, "AT_ONCE", 1e-6)  # so that one answer is more than a token may spend
    monkeypatch.setattr(remedy_answers, "PART", 1e-6)
    with stepped(tmp_path / "plane", ONE_NODE, DEFAULT_POLICY, empty_store(tmp_path)) as plane:
        plane.submit(ANN, {"run": "x", "resources": {"gpus": 3}, "preemptible": False})
        first, second = (plane.submit(ANN, {"run": "x", "resources": {"gpus": 2}}) for _ in range(2))
        other = plane.submit(BOB, {"run": "x", "resources": {"gpus": 2}})

        remedies, wait = told(plane, first, ANN)
        assert "resubmit" in remedies
        assert wait == 0
        nothing, wait = told(plane, second, ANN)
        assert nothing == []
        assert wait > 0
        assert told(plane, other, BOB) == (["resubmit"], 0)


def test_the_same_question_is_answered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials: list[str] = []
    outcome = Trial.outcome

    def counted(trial: Trial, job: str, *more: Any) -> Outcome:
        trials.append(job)
        return outcome(trial, job, *more)

    monkeypatch.setattr(Trial, "outcome", counted)
    with stepped(tmp_path / "plane", ONE_NODE, DEFAULT_POLICY, empty_store(tmp_path)) as plane:
        running = plane.submit(ANN, {"run": "x", "resources": {"gpus": 3}, "preemptible": False})
        job = plane.submit(ANN, {"run": "x", "resources": {"gpus": 2}})
        before = told(plane, job, ANN)
        assert "cancel" in before[0]
        cost = len(trials)
        assert told(plane, job, ANN) == before
        assert len(trials) == cost > 0

        plane.submit(ANN, {"run": "x", "resources": {"gpus": 1}})  # which takes what was free
        assert told(plane, job, ANN) != before
        assert len(trials) > cost
        commands.cancel(plane.plane, [running])
        assert plane.runs(job)
