"""Containers by a mixed-integer program, against all possible assignments."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from random import Random
from unittest.mock import patch

import numpy as np

from dovetail.solve.containers import CHANGE, MISS, RUN, Partition, _Program, divided


def asked(seed: int) -> Partition:
    luck = Random(seed)
    apps, groups = 2, luck.randint(1, 2)
    room = np.array([[luck.randint(2, 3), luck.randint(4, 9)] for _ in range(groups)], dtype=np.float64)
    demand = np.array([[1, luck.randint(1, 4)] for _ in range(apps)], dtype=np.float64)
    fits = np.array([[int(min(room[g] // demand[i])) for g in range(groups)] for i in range(apps)])
    made = Partition(
        demand=demand,
        total=room.sum(axis=0),
        room=room,
        fits=fits,
        kind=np.array([luck.randint(0, 1) for _ in range(groups)]),
        least=np.array([1, luck.randint(1, 2)]),
        most=np.array([luck.randint(1, 4), luck.randint(2, 5)]),
        now=np.zeros((apps, groups), dtype=np.int64),
        fair=np.array([0.4, 0.5]),
        loss=luck.choice((0.1, 0.4, 9.0)),
        resizes=luck.randint(0, 2),
    )
    return replace(made, now=divided(made)) if luck.random() < 0.6 else made  # some run already


def value(problem: Partition, x: np.ndarray) -> float | None:
    """The value of an assignment; None if it is not allowed."""
    count, before = x.sum(axis=1), problem.now.sum(axis=1)
    if (x.T @ problem.demand > problem.room).any() or (x > problem.fits).any():
        return None
    bad = ((count < problem.least) | (count > problem.most)) & (count > 0)
    if bad.any() or ((before > 0) & (count == 0)).any():
        return None
    if any(len(set(problem.kind[row > 0].tolist())) > 1 for row in x):
        return None
    changes = sum(bool((a != b).any()) for a, b in zip(x, problem.now, strict=True) if b.any())
    if changes > problem.resizes:
        return None
    part = problem.demand / problem.total
    lost = np.abs(count * part.max(axis=1) - problem.fair).sum()
    runs = sum(RUN * (2 - i / len(x)) for i, n in enumerate(count) if n)
    missed = max(0.0, float(lost) - problem.loss)
    return float(runs - MISS * missed + (count[:, None] * part).sum() - CHANGE * changes)


def is_best(problem: Partition) -> None:
    ours = value(problem, divided(problem))
    ways = product(*(range(top + 1) for top in problem.fits.ravel()))
    values = [value(problem, np.array(way).reshape(problem.now.shape)) for way in ways]
    assert ours is not None
    assert ours >= max(v for v in values if v is not None) - 1e-4


def test_no_division_is_better() -> None:
    ran = 0
    for seed in range(60):
        problem = asked(seed)
        ran += bool(problem.now.any())
        is_best(problem)
    assert ran > 20


def test_fixed_numbers_of_containers_are_divided_as_well_without_the_solver() -> None:
    solved = []

    def count(self: _Program) -> np.ndarray:
        solved.append(self)
        return by_solver(self)

    by_solver = _Program.solved
    with patch.object(_Program, "solved", count):
        for seed in range(60):
            rigid = asked(seed)
            rigid = replace(rigid, most=rigid.least, now=np.zeros_like(rigid.now))
            is_best(rigid)
            one = divided(
                replace(rigid, fits=rigid.fits * np.array([[1], [0]]))
            )  # the first runs, the second comes
            is_best(replace(rigid, now=one))
            is_best(replace(rigid, now=divided(rigid)))
    assert 0 < len(solved) < 150  # of 300: few servers, so that some wait and the solver must choose


def test_no_applications_and_no_servers() -> None:
    problem = asked(0)
    empty = {f.name: getattr(problem, f.name) for f in fields(problem)}
    empty |= {name: empty[name][:0] for name in ("demand", "fits", "least", "most", "now", "fair")}
    assert divided(Partition(**empty)).shape[0] == 0
