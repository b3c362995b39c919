"""Promises of the policy of a new plane, step by step."""

from __future__ import annotations

from dovetail.core.core import Core
from dovetail.core.record import rebuilt, recorded
from dovetail.core.snapshot import from_json, to_json
from dovetail.model.action import Stop
from dovetail.model.cluster import parse_cluster
from dovetail.model.event import DRAINED, FINISHED, PROGRESSED, STOPPED, SUBMITTED
from dovetail.model.job import Job, Shape
from dovetail.model.units import HOUR, MINUTE
from dovetail.policies.registry import POLICIES


def submit(core: Core, at: int, name: str, shape: Shape, hours: float = 1.0, priority: int = 0) -> None:
    estimate = int(hours * HOUR)
    job = Job(name, at, shape, estimate, estimate, priority=priority)
    core.handle(at, [(at, SUBMITTED, name, 0, job)])


def finish(core: Core, at: int, name: str) -> None:
    core.handle(at, [(at, FINISHED, name, core.running[name].epoch, None)])


def made(cluster: str = "1x2") -> Core:
    core = Core(parse_cluster(cluster), POLICIES.make("dovetail"))
    submit(core, 1, "r0", Shape(1, 1))
    submit(core, 2, "r1", Shape(1, 1))
    submit(core, 3, "wide", Shape(1, 2))
    return core


def test_a_promise_does_not_move_because_running_jobs_say_that_they_are_slow() -> None:
    core = made()
    at = 50 * MINUTE
    slow = [(at, PROGRESSED, name, 1, (core.running[name].done_at(at), 0.1)) for name in ("r0", "r1")]
    core.handle(at, slow)
    finish(core, 55 * MINUTE, "r0")
    submit(core, 56 * MINUTE, "short", Shape(1, 1), hours=0.5)  # over before r1 by what r1 says now
    assert "short" not in core.running
    finish(core, 3 * HOUR, "r1")
    assert list(core.running) == ["wide"]


def test_an_estimate_that_was_too_short_does_not_let_others_in() -> None:
    core = made()
    finish(core, 2 * HOUR, "r0")  # an hour later than promised, and r1 runs on
    submit(core, 2 * HOUR + 1, "tiny", Shape(1, 1), hours=0.001)
    assert list(core.running) == ["r1"]
    finish(core, 5 * HOUR, "r1")
    assert list(core.running) == ["wide"]


def test_a_promise_is_kept_over_a_restart() -> None:
    core = made()
    again = rebuilt(Core(core.cluster, core.policy), from_json(to_json(recorded(core))))
    assert again.memory == core.memory
    assert core.memory is not None
    finish(again, 2 * HOUR, "r0")
    submit(again, 2 * HOUR + 1, "tiny", Shape(1, 1), hours=0.001)
    assert list(again.running) == ["r1"]


def test_an_earlier_end_makes_an_earlier_promise() -> None:
    core = Core(parse_cluster("2x2"), POLICIES.make("dovetail"))
    for number, hours in enumerate((4, 4, 4, 2)):
        submit(core, number, f"r{number}", Shape(1, 1), hours=hours)
    submit(core, 9, "wide", Shape(1, 2))  # n0, after four hours
    finish(core, HOUR, "r2")  # n1 will be free after two hours
    submit(core, HOUR + 1, "late", Shape(1, 1), hours=2)
    submit(core, HOUR + 2, "in-time", Shape(1, 1), hours=0.9)
    assert list(core.running) == ["r0", "r1", "r3", "in-time"]
    finish(core, 2 * HOUR - 1, "in-time")
    finish(core, 2 * HOUR, "r3")
    assert list(core.running) == ["r0", "r1", "wide"]


def test_a_drained_node_voids_the_promise_and_another_is_made() -> None:
    core = Core(parse_cluster("2x2"), POLICIES.make("dovetail"))
    for number, hours in enumerate((1, 1, 5, 5)):
        submit(core, number, f"r{number}", Shape(1, 1), hours=hours)
    submit(core, 9, "wide", Shape(1, 2))
    core.handle(10, [(10, DRAINED, "n0", 0, "a fan")])
    finish(core, HOUR, "r2")
    submit(core, HOUR + 1, "short", Shape(1, 1), hours=2)  # over long before r3, which wide now waits for
    assert "short" in core.running
    submit(core, 4 * HOUR, "long", Shape(1, 1), hours=2)
    assert "long" not in core.running


def test_a_job_that_has_waited_for_long_is_not_evicted_as_it_starts() -> None:
    core = Core(parse_cluster("1x1"), POLICIES.make("dovetail"))
    submit(core, 1, "runs", Shape(1, 1), priority=100)
    submit(core, 2, "old", Shape(1, 1))
    submit(core, 30 * HOUR, "high", Shape(1, 1), priority=100)  # as much as 20 h of waiting
    finish(core, 30 * HOUR + 1, "runs")
    assert list(core.running) == ["old"]
    submit(core, 39 * HOUR, "other", Shape(1, 1), priority=-100)
    assert list(core.running) == ["old"]
    submit(core, 41 * HOUR, "another", Shape(1, 1), priority=-100)  # high has caught up with old
    assert list(core.running) == ["high"]


def test_an_urgent_job_evicts_a_job_that_has_not_waited() -> None:
    core = Core(parse_cluster("1x1"), POLICIES.make("dovetail"))
    submit(core, 1, "runs", Shape(1, 1))
    submit(core, 100 * HOUR, "high", Shape(1, 1), priority=1)
    assert list(core.running) == ["high"]


def test_an_evicted_job_starts_elsewhere_only_after_it_has_stopped() -> None:
    """A start in the same decision is a move or a resize, which the engine may refuse."""
    core = Core(parse_cluster("2x2"), POLICIES.make("dovetail"))
    for at, (name, priority) in enumerate([("stays", 100), ("ends", 100), ("low", 0)], start=1):
        submit(core, at, name, Shape(1, 1), priority=priority)
    finish(core, 5, "ends")  # a GPU is free on each node
    urgent = Job("urgent", 6, Shape(1, 2), HOUR, HOUR, priority=100)
    step = core.handle(6, [(6, SUBMITTED, "urgent", 0, urgent)])
    assert step.actions == [Stop("low", 1, "preempted")]
    core.handle(7, [(7, STOPPED, "low", 1, 0)])
    assert set(core.running) == {"stays", "urgent", "low"}
