"""Matrix completion: exact where measured, sensible where not, and better than guessing on real tables."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail.mechanisms.estimate.matrix_completion import completed, fingerprinted, nearest
from dovetail.traces.profiles import load_throughputs

Table = NDArray[np.float64]
NAN = np.nan
TYPES = ("V100", "P100", "K80")


def alone(split: bool) -> Table:
    """Steps a second by type; with `split`, also spread over nodes."""
    table = load_throughputs("gavel")
    ways = (True, False) if split else (True,)
    rows = [
        [table.single(*key, kind, consolidated=way) or NAN for way in ways for kind in TYPES]
        for key in table.keys()  # noqa: SIM118  (no mapping)
    ]
    return np.array([row for row in rows if not np.isnan(row).any()])


def beside(kind: str) -> Table:
    """A model's speed beside each other model, over its speed alone; NaN where they do not fit."""
    table = load_throughputs("gavel")
    models = table.models()
    found = np.full((len(models), len(models)), NAN)
    for i, model in enumerate(models):
        for j, other in enumerate(models):
            pair, single = table.pair(model, other, 1, kind), table.single(model, 1, kind)
            if pair and single and pair[0]:
                found[i, j] = pair[0] / single
    return found


def by_ratio(measured: Table) -> Table:
    """The naive guess: what was measured of a row, times the mean ratio of the two columns in other rows."""
    filled = measured.copy()
    for i, row in enumerate(measured):
        known = np.flatnonzero(~np.isnan(row))
        for j in np.flatnonzero(np.isnan(row)) if len(known) else ():
            ratios = measured[:, [j]] / measured[:, known]
            usable = [r[~np.isnan(r)] for r in ratios.T]
            means = [float(np.mean(r)) if len(r) else 1.0 for r in usable]
            filled[i, j] = np.exp(np.mean(np.log(row[known] * means)))
    return filled


def errors(truth: Table, hide: float) -> tuple[float, float]:
    """How far off the hidden cells are, ours and by ratio: 0.5 is by half as much again, or a third less."""
    off: dict[str, list[float]] = {"ours": [], "ratio": []}
    for seed in range(100, 110):
        measured = np.where(np.random.default_rng(seed).random(truth.shape) > hide, truth, NAN)
        known = np.array([not np.isnan(row).all() for row in measured])
        asked = np.isnan(measured) & ~np.isnan(truth) & known[:, np.newaxis]
        for name, guess in (("ours", completed(measured)), ("ratio", by_ratio(measured))):
            off[name] += list(np.abs(np.log(guess[asked] / truth[asked])))
    ours, ratio = (float(np.exp(np.mean(values)) - 1) for values in off.values())
    return ours, ratio


@pytest.mark.parametrize(
    ("name", "hide", "within", "better"),
    [
        ("types", 0.5, 0.50, 0.95),
        ("types", 0.7, 0.60, 0.95),
        ("types and placement", 0.5, 0.36, 0.82),
        ("types and placement", 0.7, 0.48, 0.92),
        ("beside on V100", 0.5, 0.21, 0.73),
        ("beside on V100", 0.7, 0.27, 0.85),
        ("beside on P100", 0.5, 0.065, 0.75),
        ("beside on P100", 0.7, 0.075, 0.80),
        ("beside on K80", 0.5, 0.050, 0.70),
        ("beside on K80", 0.7, 0.070, 0.80),
    ],
)
def test_on_gavels_measurements(name: str, hide: float, within: float, better: float) -> None:
    """Three types are too few for more than row times column, which is hardly better than ratios."""
    truth = beside(name.rsplit(maxsplit=1)[-1]) if name.startswith("beside") else alone(name != "types")
    ours, ratio = errors(truth, hide)
    assert ours < within
    assert ours < better * ratio


def test_a_product_is_found_from_a_few_cells() -> None:
    truth = np.outer([1.0, 2.0, 5.0, 9.0], [1.0, 0.5, 0.1])
    measured = truth.copy()
    measured[1, 2] = measured[2, 0] = measured[3, 1] = NAN
    assert completed(measured) == pytest.approx(truth, rel=0.12)  # a ridge leans to the mean


def test_what_was_measured_stays() -> None:
    rng = np.random.default_rng(1)
    measured = np.where(rng.random((12, 6)) < 0.5, rng.uniform(0.1, 9, (12, 6)), NAN)
    measured[3, 2] = 0.0  # it does not fit there
    filled = completed(measured)
    seen = ~np.isnan(measured)
    assert (filled[seen] == measured[seen]).all()
    assert (filled[~seen] > 0).all()
    assert (completed(measured) == filled).all()


def test_with_little_to_go_by() -> None:
    assert (completed(np.full((2, 2), NAN)) == 1).all()
    assert (completed(np.full((2, 2), NAN), around=0.5) == 0.5).all()
    unknown = completed(np.array([[4.0, 1.0], [8.0, 2.0], [NAN, NAN]]))[2]
    assert unknown[0] / unknown[1] == pytest.approx(4, rel=0.1)  # the typical ratio
    one = completed(np.array([[0.25, NAN]]), around=1.0)[0]
    assert 0.95 < one[1] < 1.0  # rather the column than the row


def test_units_do_not_matter() -> None:
    measured = alone(True)[:20]
    measured[np.random.default_rng(2).random(measured.shape) < 0.5] = NAN
    assert completed(1000 * measured) == pytest.approx(1000 * completed(measured))


def test_a_new_job_is_known_by_its_fingerprint() -> None:
    """Gavel's estimator: of a new job three neighbours are tried; the nearest known job tells the others."""
    truth = beside("P100")
    truth = truth[(~np.isnan(truth)).sum(axis=1) > 20]
    off: dict[str, list[float]] = {"ours": [], "typical": []}
    for number, row in enumerate(truth):
        known = np.delete(truth, number, axis=0)
        rng = np.random.default_rng(number)
        tried = rng.permutation(np.flatnonzero(~np.isnan(row)))[:3]
        measured = np.full(len(row), NAN)
        measured[tried] = row[tried]
        column = np.exp(np.nanmean(np.log(known), axis=0))
        typical = column * np.exp(np.mean(np.log(measured[tried] / column[tried])))
        for name, guess in (("ours", fingerprinted(known, measured)), ("typical", typical)):
            asked = ~np.isnan(row) & ~np.isnan(guess) & np.isnan(measured)
            off[name] += list(np.abs(np.log(guess[asked] / row[asked])))
    ours, typical = (np.exp(np.mean(values)) - 1 for values in off.values())
    assert ours < 0.08
    assert ours < 0.85 * typical


def test_the_nearest_row_is_the_one_with_the_same_ratios() -> None:
    known = np.array([[1.0, 0.5, 0.1], [1.0, 0.9, 0.8], [4.0, NAN, 0.4]])
    row, factor = nearest(known, np.array([10.0, 9.0, NAN]))
    assert row == 1
    assert factor == pytest.approx(10)
    assert fingerprinted(known, np.array([10.0, 9.0, NAN])) == pytest.approx([10, 9, 8])
    assert nearest(known, np.array([NAN, NAN, 3.0]))[0] == 0  # any would do: the first
    with pytest.raises(ValueError, match="nothing measured"):
        nearest(known, np.full(3, NAN))
