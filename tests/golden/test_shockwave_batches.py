"""Shockwave's batches that grow: how long each job of a published run takes alone, against our regimes.

Its results give, for each of 120 jobs on 32 GPUs, the completion time over that on a 120th of the cluster, so
the time alone can be had back from them. Its program counts whole epochs, and leaves the very last one at the
first batch if that had been doubled at least twice: with that, all jobs are the same.
"""

from __future__ import annotations

import csv
import gzip
from math import ceil
from pathlib import Path

import pytest

from dovetail.traces.batch_schedules import DOUBLES, LARGEST, SAMPLES, regimes

DATA = Path(__file__).parent / "data"


def rows(name: str) -> list[dict[str, str]]:
    with gzip.open(DATA / name, "rt") as file:
        return list(csv.DictReader(file))


PACE = {(row["kind"], int(row["gpus"])): float(row["v100"]) for row in rows("shockwave_paces.csv.gz")}
JOBS = [row for row in rows("shockwave_120.csv.gz") if row["kind"].split(" (")[0] in SAMPLES]


def alone(kind: str, gpus: int, mode: str, steps: int) -> tuple[float, float]:
    """Seconds by our regimes for whole epochs, and what their last epoch takes longer."""
    model, batch = kind.split(" (", maxsplit=1)[0], int(kind.rsplit(maxsplit=1)[-1][:-1])
    an_epoch = ceil(SAMPLES[model] / batch)
    epochs = ceil(steps / an_epoch)
    first = SAMPLES[model] / batch / PACE[kind, gpus]
    found = regimes(kind, gpus, mode, epochs * an_epoch, lambda named: PACE.get((named, gpus)))
    assert not found or sum(part for part, _ in found) == epochs
    doubled = sum(epochs > start for start in DOUBLES[model].get((batch, gpus), ()))
    slip = first - first / found[-1][1] if found and mode == "gns" and doubled >= 2 else 0.0
    return (sum(part * first / speed for part, speed in found) if found else epochs * first), slip


def test_alone_each_job_takes_as_long_as_theirs() -> None:
    assert len(JOBS) > 80
    changing = 0
    for row in JOBS:
        mine, slip = alone(row["kind"], int(row["gpus"]), row["mode"], int(row["steps"]))
        assert mine + slip == pytest.approx(float(row["alone"]), rel=2e-4), row
        assert slip <= 0.03 * mine
        changing += row["mode"] != "static"
    assert changing > 70


def test_no_batch_grows_beyond_the_limit_of_its_model() -> None:
    for model, table in DOUBLES.items():
        for (batch, _), at in table.items():
            assert batch << len(at) <= LARGEST[model]
            assert list(at) == sorted(set(at))


def test_a_job_that_ends_before_its_batch_grows_has_no_regimes() -> None:
    assert regimes("LM (batch size 10)", 1, "gns", 11 * 5_968, lambda kind: 1.0) == ()
    assert regimes("LM (batch size 10)", 1, "static", 99 * 5_968, lambda kind: 1.0) == ()
    assert regimes("Transformer (batch size 16)", 1, "gns", 1e6, lambda kind: 1.0) == ()
    assert regimes("A3C", 1, "accordion", 1e6, lambda kind: 1.0) == ()


def test_accordion_keeps_the_first_batch_in_the_first_third_and_in_critical_epochs() -> None:
    found = regimes("ResNet-50 (batch size 64)", 1, "accordion", 70 * 1_563, lambda kind: 1.0)
    assert found == ((22.0, 1.0), (8.0, 2.0), (10.0, 1.0), (20.0, 2.0), (10.0, 1.0))


def test_the_last_epoch_may_be_a_part_of_one() -> None:
    found = regimes("LM (batch size 40)", 1, "gns", 20.5 * 1_492, lambda kind: 1.0)
    assert found == ((11.0, 1.0), (9.5, 2.0))
    with pytest.raises(ValueError, match="is unknown"):
        regimes("LM (batch size 40)", 1, "wild", 1.0, lambda kind: 1.0)
