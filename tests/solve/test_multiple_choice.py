"""One configuration a row: against a MIP and against trying everything; and its gap is always true."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from dovetail.solve import multiple_choice
from dovetail.solve.multiple_choice import Choice, _Swaps, _Tangents, best_choice
from dovetail.solve.time_shares import Matrix, Vector


def worth(choice: Choice, value: Matrix, none: Vector) -> float:
    rows = np.arange(len(value))
    return float(np.where(choice.pick >= 0, value[rows, choice.pick], none).sum())


def check(choice: Choice, value: Matrix, use: Matrix, capacity: Vector, none: Vector, best: float) -> None:
    """Feasible, allowed, worth what it says, and no further from the best than it says."""
    rows = np.flatnonzero(choice.pick >= 0)
    assert np.isfinite(value[rows, choice.pick[rows]]).all()
    assert (use[choice.pick[rows]].sum(axis=0) <= capacity + 1e-6 * (1 + capacity)).all()
    assert choice.value == pytest.approx(worth(choice, value, none), rel=1e-9, abs=1e-9)
    slack = 1e-7 * (1 + abs(best))
    assert choice.value <= best + slack
    assert best <= choice.bound + slack
    assert choice.bound - choice.value <= choice.gap * abs(choice.value) + 1e-12 * (1 + abs(best))


def by_milp(value: Matrix, use: Matrix, capacity: Vector, none: Vector) -> float:
    """The optimum, from scipy's MIP: dense and plain."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    n, m = value.shape
    gain = value - none[:, None]
    allowed = np.isfinite(gain).ravel()
    once = np.kron(np.eye(n), np.ones(m))
    used = np.tile(use.T, n)
    found = milp(
        -np.where(allowed, gain.ravel(), 0.0),
        constraints=LinearConstraint(np.vstack([once, used]), ub=np.concatenate([np.ones(n), capacity])),
        bounds=Bounds(0, allowed.astype(float)),
        integrality=np.ones(n * m),
        options={"mip_rel_gap": 0.0},
    )
    assert found.status == 0
    return float(none.sum() - found.fun)


def by_trying(value: Matrix, use: Matrix, capacity: Vector, none: Vector) -> float:
    """The optimum, from trying everything."""
    best = -np.inf
    for picks in itertools.product(range(-1, value.shape[1]), repeat=len(value)):
        pick = np.array(picks)
        if (use[pick[pick >= 0]].sum(axis=0) <= capacity + 1e-9).all():
            best = max(best, worth(Choice(pick, 0, 0, 0), value, none))
    return best


def problem(dice: Any, n: int, m: int, p: int) -> tuple[Matrix, Matrix, Vector, Vector]:
    """Integer or fractional uses, one pool or several, ties, forbidden choices, useless configurations."""
    if dice.random() < 0.5:  # as in Sia: so many devices of one type
        use = np.zeros((m, p))
        use[np.arange(m), dice.integers(0, p, m)] = dice.choice([1.0, 2.0, 4.0, 8.0], m)
    elif dice.random() < 0.5:
        use = dice.integers(0, 6, (m, p)).astype(float)
    else:
        use = dice.random((m, p))
    value = dice.random((n, m)) * (0.3 + use.sum(axis=1)) ** dice.uniform(0.3, 1.2)
    if dice.random() < 0.3:
        value = np.round(value, 1)
    if dice.random() < 0.3:
        value = value[dice.integers(0, n, n)]  # classes of equal rows
    if dice.random() < 0.3:
        value -= dice.random()
    if dice.random() < 0.4:
        value[dice.random((n, m)) < 0.2] = -np.inf
    capacity = use.mean(axis=0) * n * dice.uniform(0.05, 1.2)
    capacity = np.round(capacity) if dice.random() < 0.7 else capacity
    none = np.zeros(n) if dice.random() < 0.6 else dice.normal(size=n) * 0.3
    return value, use, capacity, none


def test_500_random_problems_against_the_mip() -> None:
    exactly = 0
    for i in range(500):
        dice = np.random.default_rng([7, i])
        n, m, p = int(dice.integers(1, 13)), int(dice.integers(1, 6)), int(dice.integers(1, 4))
        value, use, capacity, none = problem(dice, n, m, p)
        best = by_milp(value, use, capacity, none)
        found = best_choice(value, use, capacity, none=none)
        check(found, value, use, capacity, none, best)
        assert best - found.value <= 0.12 * abs(best - none.sum()) + 1e-7  # of a dozen rows, one may be lost
        exactly += best - found.value <= 1e-6 * (1 + abs(best))
    assert exactly >= 480, exactly


@pytest.mark.parametrize(("beam", "core"), [(3, 160), (400, 2)])
def test_a_narrow_search_finds_less_but_does_not_say_otherwise(
    monkeypatch: pytest.MonkeyPatch, beam: int, core: int
) -> None:
    monkeypatch.setattr(multiple_choice, "BEAM", beam)
    monkeypatch.setattr(multiple_choice, "CORE", core)
    for i in range(150):
        dice = np.random.default_rng([9, i])
        value, use, capacity, none = problem(dice, int(dice.integers(5, 16)), 4, 2)
        best = by_milp(value, use, capacity, none)
        check(best_choice(value, use, capacity, none=none), value, use, capacity, none, best)


def test_small_ones_against_trying_everything_and_the_exact_mode() -> None:
    for i in range(60):
        dice = np.random.default_rng([8, i])
        value, use, capacity, none = problem(dice, int(dice.integers(1, 6)), int(dice.integers(1, 4)), 2)
        best = by_trying(value, use, capacity, none)
        check(best_choice(value, use, capacity, none=none), value, use, capacity, none, best)
        exact = best_choice(value, use, capacity, none=none, exact=True)
        check(exact, value, use, capacity, none, best)
        assert exact.value == pytest.approx(best, rel=1e-6, abs=1e-6)
        assert exact.gap <= 1e-6


def sia_like(n: int, sizes: list[float], seed: int) -> tuple[Matrix, Matrix, Vector]:
    """Speed-ups over three GPU types, concave in the number of GPUs; capacity for half of what is asked."""
    dice = np.random.default_rng(seed)
    use = np.kron(np.eye(3), np.array(sizes)[:, None])
    bend = dice.uniform(0.5, 0.98, (n, 1, 1))
    speed = np.sort(dice.uniform(1, 4, (n, 3)), axis=1)[:, :, None] * np.array(sizes) ** bend
    return np.sqrt(speed.reshape(n, -1)), use, n * np.array([0.8, 0.6, 0.4])


def test_500_rows_of_18_equal_the_mip() -> None:
    for seed in range(3):
        value, use, capacity = sia_like(500, [1, 2, 4, 8, 16, 24], seed)
        found = best_choice(value, use, capacity)
        best = best_choice(value, use, capacity, exact=True)
        check(found, value, use, capacity, np.zeros(500), best.value)
        assert found.value == pytest.approx(best.value, rel=1e-6)
        assert found.gap <= 1e-4


def test_5000_rows_of_39_have_a_gap_of_at_most_1e_4() -> None:
    value, use, capacity = sia_like(5_000, [1, 2, 4, *range(8, 81, 8)], 1)
    found = best_choice(value, use, capacity)
    used = use[found.pick[found.pick >= 0]].sum(axis=0)
    assert (used <= capacity).all()
    assert (used > 0.999 * capacity).all()  # it binds
    assert found.gap <= 1e-4


def test_classes_of_equal_rows_are_told_apart_though_prices_cannot() -> None:
    for seed in range(4):
        value, use, capacity = sia_like(10, [1, 2, 4, 8, 16, 24], seed)
        assert best_choice(np.repeat(value, 100, axis=0), use, 100 * capacity).gap <= 1e-4
        value, use, capacity = sia_like(500, [4, 8, 16, 24, 32, 64], seed)
        assert best_choice(np.round(4 * value) / 4, use, capacity).gap <= 1e-4  # many ties


def test_sias_example_gives_the_fast_one_to_the_job_that_gains() -> None:
    """T4:1 and A100:1; A runs at (1, 4), B at (1, 1.5); p = -0.5 is minimised: 1.5 against 1.816."""
    goodput = np.array([[1.0, 4.0], [1.0, 1.5]])
    found = best_choice(-(goodput**-0.5), np.eye(2), [1.0, 1.0], none=-1.1)
    assert found.pick.tolist() == [1, 0]
    assert found.value == pytest.approx(-1.5)
    assert found.gap == pytest.approx(0.0, abs=1e-9)


def test_rows_do_not_move_to_and_fro_between_two_pools_that_are_overfilled() -> None:
    """A move that relieves one and burdens the other as much helps nothing, whatever rounding says."""
    use, capacity = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), np.array([32.0, 32.0])
    pick = np.repeat([0, 1], [35, 33])
    swaps = _Swaps(use, capacity, np.array([0.1, 0.1]), np.tile([0.0, 0.0, 0.5], (68, 1)), pick)
    swaps.fit()
    assert np.bincount(swaps.pick).tolist() == [32, 32, 4]


def test_plenty_is_given_to_all() -> None:
    value = np.array([[1.0, 3.0], [2.0, 1.0]])
    found = best_choice(value, [[1.0], [5.0]], [100.0])
    assert found.pick.tolist() == [1, 0]
    assert found[1:] == (5.0, 5.0, 0.0)


def test_nothing_is_chosen_where_nothing_is_to_be_had() -> None:
    assert best_choice(np.full((3, 2), -np.inf), np.ones((2, 1)), [5.0]).pick.tolist() == [-1, -1, -1]
    assert best_choice(-np.ones((3, 2)), np.ones((2, 1)), [5.0]).pick.tolist() == [-1, -1, -1]
    assert best_choice(np.ones((3, 2)), np.ones((2, 1)), [0.0]).pick.tolist() == [-1, -1, -1]
    assert best_choice(np.ones((0, 2)), np.ones((2, 1)), [1.0]).value == 0.0
    assert best_choice(np.ones((2, 1)), [[9.0]], [5.0], exact=True).pick.tolist() == [-1, -1]
    assert best_choice(-np.ones((2, 1)), [[1.0]], [5.0], exact=True).pick.tolist() == [-1, -1]


def test_what_uses_nothing_costs_nothing() -> None:
    found = best_choice(np.ones((4, 1)), [[0.0]], [0.0])
    assert found.pick.tolist() == [0, 0, 0, 0]
    assert found.gap == 0.0


def test_the_same_again_is_the_same_bit_for_bit() -> None:
    value, use, capacity = sia_like(300, [1, 2, 4, 8], 5)
    first, again = best_choice(value, use, capacity), best_choice(value, use, capacity)
    assert first.pick.tolist() == again.pick.tolist()
    assert first[1:] == again[1:]


@pytest.mark.parametrize(
    ("value", "use", "capacity", "none"),
    [
        ([[np.nan]], [[1.0]], [1.0], 0.0),
        ([[np.inf]], [[1.0]], [1.0], 0.0),
        ([[1.0]], [[-1.0]], [1.0], 0.0),
        ([[1.0]], [[1.0]], [-1.0], 0.0),
        ([[1.0]], [[1.0]], [np.nan], 0.0),
        ([[1.0]], [[1.0]], [1.0], -np.inf),
        ([[1.0]], [[1.0], [1.0]], [1.0], 0.0),
        ([1.0], [[1.0]], [1.0], 0.0),
    ],
)
def test_wrong_questions_are_refused(value: Any, use: Any, capacity: Any, none: Any) -> None:
    with pytest.raises(ValueError):
        best_choice(value, use, capacity, none=none)


def test_no_solver_is_loaded_before_it_is_asked() -> None:
    names = ("multiple_choice", "space_sharing", "assignment", "partitioned")
    modules = ", ".join(f"dovetail.solve.{name}" for name in names)
    loaded = f"import sys, {modules}; print({{'highspy', 'scipy'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_what_rounding_leaves_of_a_capacity_is_no_slope() -> None:
    """A pool that is used up but for 1e-12: HiGHS takes no such coefficient without a warning."""
    model = _Tangents(np.array([1.0, 1.0]))
    model.add(np.array([0.5, 0.5]), 2.0, np.array([1e-12, -1.0]))
    prices, height = model.lowest(np.zeros(2), np.ones(2))
    assert prices[1] == 1.0
    assert height == pytest.approx(1.5)
