"""The loss of a job: its curve, its reports in the simulator, and what is kept of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.control.report_values import loss_of
from dovetail.core.core import Core, Step
from dovetail.core.journal import job_from_json, job_to_json
from dovetail.core.snapshot import restored, snapshot
from dovetail.model.event import PROGRESSED
from dovetail.model.goodput import Goodput, StepTime
from dovetail.model.job import Job
from dovetail.model.loss import LossCurve, LossPoint, epoch_end, epochs_in, epochs_to_converge
from dovetail.policies.classic import fifo
from dovetail.testing.build import SECOND, Profile, cluster, job, run

CURVE = LossCurve(slope=0.5, start=0.4, floor=0.1)


def learning(profile: Profile | None = None, epochs: int = 4, seconds: float = 400) -> Job:
    made = job("x", gpus=4, seconds=seconds, profile=profile or Profile(loss=CURVE))
    return replace(made, traits=replace(made.traits, epochs=epochs))


def reports(made: Job) -> list[tuple[float | None, ...]]:
    """The time and the figures of each report."""
    told: list[tuple[float | None, ...]] = []

    def keep(core: Core, step: Step) -> None:
        for event in step.events:
            if event[1] == PROGRESSED:
                told.append((event[0] / SECOND, *event[4]))
                if len(event[4]) > 3:
                    assert core.jobs["x"].loss == LossPoint(event[4][3], event[4][4], event[4][0])

    run([made], cluster(gpus=4), "fifo", on_step=keep)
    return told


def test_a_job_reports_its_loss_at_the_end_of_each_epoch() -> None:
    assert reports(learning()) == [
        (100.0 * k, 100 * k * SECOND, 1.0, None, CURVE.at(k), k) for k in (1, 2, 3)
    ]


def test_a_job_without_epochs_reports_no_loss() -> None:
    assert reports(learning(epochs=0)) == []


def test_regimes_change_the_rate_between_the_reports() -> None:
    """Twice as fast in the second half: the second epoch ends where that begins."""
    told = reports(learning(Profile(loss=CURVE, regimes=((1, 1.0), (1, 2.0)))))
    assert [row[0] for row in told] == [100.0, 200.0, 250.0]
    assert [row[2] for row in told] == [1.0, 2.0, 2.0]
    assert [row[5] for row in told] == [1, 2, 3]


def test_the_noise_scale_stands_before_the_loss() -> None:
    model = Goodput({"": StepTime(compute=0.1)}, 100, noise_scale=((1, 10.0), (1, 500.0)))
    told = reports(learning(Profile(loss=CURVE, goodput=model)))
    assert [row[3] for row in told] == [10.0, 10.0, 500.0, 500.0]
    assert [row[4:] for row in told] == [(), *((CURVE.at(k), k) for k in (1, 2, 3))]


def test_a_job_reads_back_with_its_loss() -> None:
    before = learning()
    assert job_from_json(job_to_json(before)) == before


def test_a_snapshot_keeps_what_a_job_reported() -> None:
    on = cluster(gpus=4)
    taken: list[LossPoint | None] = []

    def keep(core: Core, step: Step) -> None:
        now = snapshot(core)
        taken.extend(one.loss for one in restored(now, on, fifo()).jobs.values())
        for kept in now["jobs"]:
            del kept["state"]["loss"]  # as earlier releases wrote it
        restored(now, on, fifo())

    run([learning()], on, "fifo", on_step=keep)
    assert LossPoint(CURVE.at(3), 3, 300 * SECOND) in taken


@given(st.integers(1, 10**9), st.integers(1, 50), st.data())
def test_an_epoch_ends_after_the_work_that_is_done(work: int, epochs: int, data: st.DataObject) -> None:
    done = data.draw(st.integers(0, work - 1))
    end = epoch_end(done, work, epochs)
    assert done < end <= work
    assert epochs_in(end, work, epochs) > epochs_in(done, work, epochs)
    assert epochs_in(work, work, epochs) == epochs


@given(st.floats(0.001, 10), st.floats(0.1, 10), st.floats(0, 5), st.floats(0.001, 0.2))
def test_training_converges_where_the_loss_hardly_falls(
    slope: float, start: float, floor: float, threshold: float
) -> None:
    curve = LossCurve(slope, start, floor)
    end = epochs_to_converge(curve, threshold)

    def falls_by(epoch: int) -> float:
        return 1 - curve.at(epoch) / curve.at(epoch - 1)

    assert falls_by(end) <= threshold * (1 + 1e-6)
    assert end == 1 or falls_by(end - 1) >= threshold * (1 - 1e-6)


@pytest.mark.parametrize("figures", [(-1.0,), (1.0, 0.0), (1.0, 1.0, -0.1), (math.nan,), (1.0, math.inf)])
def test_a_curve_that_is_none_is_refused(figures: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="a loss has a start above 0"):
        LossCurve(*figures)


WRONG = (None, True, "0.5", math.nan, math.inf, -1.0, 1e300)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_loss_of_a_live_job_is_dropped(wrong: object) -> None:
    assert loss_of({"loss": 0.5, "epoch": 3}) == (0.5, 3)
    assert loss_of({"loss": wrong, "epoch": 3}) is None
    assert loss_of({"loss": 0.5, "epoch": wrong}) is None
