"""When a forecast is made anew, and how much of the time looking ahead may take."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial

import pytest

from dovetail.control import forecast
from dovetail.control.forecast import Forecasts
from dovetail.control.trial import Trial, submitted
from dovetail.core.active import ActiveJob
from dovetail.core.core import Core
from dovetail.model.event import SUBMITTED
from dovetail.model.units import MINUTE
from dovetail.policies.registry import POLICIES
from dovetail.testing.build import cluster, job


def busy() -> Core:
    """One that runs, two that wait behind it."""
    core = Core(cluster(nodes=1, gpus=4), POLICIES.make("fifo"))
    for name in ("a", "b", "c"):
        submit(core, name)
    return core


def submit(core: Core, name: str) -> None:
    core.handle(core.now, [(core.now, SUBMITTED, name, 0, job(name, gpus=4, minutes=10))])


def ask(forecasts: Forecasts, core: Core, name: str) -> tuple[bool, int | None]:
    """Whether a new forecast was made for it, and when it starts."""
    fork = forecasts.core_for(core, name)
    found = forecasts.starts_at(fork, name)
    return fork is not None, found and found.likely


def test_one_forecast_serves_all_who_ask() -> None:
    core, forecasts = busy(), Forecasts(budget=10.0)
    assert ask(forecasts, core, "b") == (True, 10 * MINUTE)
    assert ask(forecasts, core, "c") == (False, 20 * MINUTE)


def test_one_that_came_later_gets_a_new_forecast_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    core, forecasts = busy(), Forecasts(budget=10.0)
    ask(forecasts, core, "b")
    submit(core, "d")
    assert ask(forecasts, core, "b")[0] is False  # good enough for those it knows
    monkeypatch.setattr(forecast, "SHORTEST_REST", 0.0)
    assert ask(forecasts, core, "d") == (True, 30 * MINUTE)


def test_a_dear_forecast_is_kept_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    core, forecasts = busy(), Forecasts(budget=10.0)
    ask(forecasts, core, "b")
    submit(core, "d")
    monkeypatch.setattr(forecast, "GOOD_FOR", 0.0)
    monkeypatch.setattr(forecast, "REST", 1e6)
    assert ask(forecasts, core, "b")[0] is False
    monkeypatch.setattr(forecast, "LONGEST", 0.0)
    assert ask(forecasts, core, "b")[0] is True


def test_looking_ahead_takes_a_part_of_the_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "AT_ONCE", 0.0)
    monkeypatch.setattr(forecast, "PART", 0.0)
    core, forecasts = busy(), Forecasts(budget=10.0)
    assert ask(forecasts, core, "c") == (True, None)  # nothing was earned: it is told how far it looked
    monkeypatch.setattr(forecast, "AT_ONCE", 100.0)
    assert ask(forecasts, core, "c") == (False, 20 * MINUTE)


@pytest.fixture
def _no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def jobs_in_memory() -> int:
    return sum(isinstance(one, ActiveJob) for one in gc.get_objects())


@pytest.mark.usefixtures("_no_collections")
def test_copies_of_the_core_are_freed_at_once() -> None:
    """Not by full garbage collections, which stop every thread of a plane with many jobs."""
    core, forecasts = busy(), Forecasts(budget=10.0)
    own = jobs_in_memory()
    for number in range(3):
        assert forecasts.starts_at(forecasts.standing(core), "c") is not None
        new = job(f"new{number}", gpus=4, minutes=10)
        assert forecasts.of_new(forecasts.standing(core), new, core.now).starts_at is not None
        changes = [submitted(new)]
        tried = partial(Trial.outcome, job=new.id, changes=changes)
        found = forecasts.tried(tried, forecasts.standing(core), core.now)
        assert not found.starts
        submit(core, f"more{number}")  # so that the next copies are others
    kept = jobs_in_memory() - own - 3
    assert kept <= 2 * len(core.jobs)  # the last run ahead, and the last core that was looked at
