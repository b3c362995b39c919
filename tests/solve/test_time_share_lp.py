"""Every objective against its oracle on many random problems, and the worked examples of the lesson."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from tests.solve import oracles
from tests.solve.oracles import check_feasible, instances

from dovetail.solve.errors import Infeasible
from dovetail.solve.time_share_lp import Warm, finish, level, ratio, total
from dovetail.solve.time_shares import Shares, whole

GAVEL = Shares(
    speed=np.array([[10.0, 30.0, 80.0], [50.0, 65.0, 70.0], [20.0, 55.0, 60.0]]),
    size=np.ones(3),
    capacity=np.array([2.0, 1.0, 1.0]),  # K80, P100, V100
)
EQUAL = np.array([32.5, 58.75, 38.75])  # throughputs of the share N_k / sum N
PAIR = Shares(
    speed=np.array([[160.0, 20.0], [140.0, 100.0]]), size=np.full(2, 2.0), capacity=np.array([2.0, 2.0])
)


# --- acceptance cases L2, L3, L4 -------------------------------------------------------------------


def test_L2_the_transformer_gets_the_fast_one() -> None:
    shares = Shares(np.array([[10.0, 80.0], [50.0, 70.0]]), np.ones(2), np.ones(2))  # K80, V100
    found = total(shares, 1.0)
    assert found.value == pytest.approx(130.0, rel=1e-12)
    assert found.x == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0]]), abs=1e-12)
    assert shares.reach(np.array([[0.4, 0.6], [0.0, 0.0]]))[0] == pytest.approx(52.0)


def test_L3_the_largest_total_is_185_and_whole() -> None:
    found = total(GAVEL, 1.0)
    assert found.value == pytest.approx(185.0, rel=1e-12)
    assert found.x == pytest.approx(np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), abs=1e-9)
    assert oracles.best_assignment(GAVEL) == 185.0
    assert np.trace(GAVEL.speed) == 135.0  # round-robin


@pytest.mark.parametrize("options", [{}, {"centre": True}, {"spare": True}])
def test_L3_max_min_is_90_over_79(options: dict[str, bool]) -> None:
    found = level(GAVEL, EQUAL, **options)
    assert found.value == pytest.approx(90 / 79, rel=1e-9 if not options.get("spare") else 2e-9)
    assert found.gap <= 2e-9


def test_L4_the_largest_total_is_260() -> None:
    found = total(PAIR, 1.0)
    assert found.value == pytest.approx(260.0, rel=1e-12)
    assert PAIR.reach(found.x) / [90.0, 120.0] == pytest.approx([16 / 9, 5 / 6])


def test_L4_one_of_each_is_the_fair_split_of_two_gpus() -> None:
    found = level(PAIR, [90.0, 120.0])
    assert found.value == pytest.approx(1.0, rel=1e-12)
    assert PAIR.reach(found.x).sum() == pytest.approx(210.0)
    assert found.x == pytest.approx(np.full((2, 2), 0.5))


def test_L4_fairness_costs_little_when_a_job_may_use_four() -> None:
    four = Shares(np.array([[320.0, 40.0], [280.0, 200.0]]), np.full(2, 4.0), np.array([2.0, 2.0]))
    found = level(four, [90.0, 120.0])
    assert found.value == pytest.approx(64 / 53, rel=1e-12)
    assert four.reach(found.x).sum() == pytest.approx(64 / 53 * 210, rel=1e-9)
    assert level(whole(four), [90.0, 120.0]).value == 0.0  # gangs of four never start on pools of two


# --- against the oracles ---------------------------------------------------------------------------

each_of_many = pytest.mark.parametrize("many", [100, pytest.param(500, marks=pytest.mark.long)])


@each_of_many
def test_level_is_the_optimum(many: int) -> None:
    refused = 0
    for shares, dice in instances(many, seed=1):
        n = len(shares.speed)
        scale = dice.lognormal(0.0, 2.0, n) * (dice.random(n) < 0.8)
        scale[0] = max(scale[0], 0.1)
        floor = np.where(dice.random(n) < 0.3, dice.uniform(0.0, 0.5, n) * shares.speed.max(axis=1), 0.0)
        expected = oracles.best_level(shares, scale, floor)
        if expected is None:
            refused += 1
            with pytest.raises(Infeasible):
                level(shares, scale, floor)
            continue
        found = level(shares, scale, floor)
        assert found.value == pytest.approx(expected, rel=1e-6, abs=1e-9)
        check_feasible(shares, found.x)
        assert (shares.reach(found.x) >= (found.value * scale + floor) * (1 - 1e-9) - 1e-9).all()
        assert expected <= found.value * (1 + found.gap) + 1e-8
    assert many / 25 < refused < many / 2


@each_of_many
def test_a_level_for_work_left_is_the_least_makespan(many: int) -> None:
    for i, (shares, dice) in enumerate(instances(many, seed=2)):
        work = dice.lognormal(5.0, 1.5, len(shares.speed))
        found = level(shares, work)
        check_feasible(shares, found.x)
        makespan = 1.0 / found.value
        assert oracles.slack_of(shares, work / (makespan * (1 + 1e-6))) >= 0.0
        assert oracles.slack_of(shares, work / (makespan * (1 - 1e-6))) < 0.0
        if i % 25 == 0:
            expected = oracles.least(
                lambda span, s=shares, w=work: oracles.slack_of(s, w / span) >= 0.0, 0.0, 4 * makespan
            )
            assert makespan == pytest.approx(expected, rel=1e-6)


@each_of_many
def test_total_is_the_optimum(many: int) -> None:
    for shares, dice in instances(many, seed=3, runnable=False):
        n = len(shares.speed)
        gain = dice.normal(1.0, 1.0, n) if dice.random() < 0.5 else n - np.arange(n, dtype=float)
        floor = np.where(dice.random(n) < 0.2, dice.uniform(0.0, 0.2, n) * shares.speed.max(axis=1), 0.0)
        expected = oracles.best_total(shares, gain, floor)
        if expected is None:
            with pytest.raises(Infeasible):
                total(shares, gain, floor)
            continue
        found = total(shares, gain, floor, centre=bool(dice.random() < 0.3))
        assert found.value == pytest.approx(expected, rel=1e-6, abs=1e-7)
        check_feasible(shares, found.x)
        assert (shares.reach(found.x) >= floor * (1 - 1e-9)).all()


@each_of_many
def test_ratio_is_the_optimum(many: int) -> None:
    for shares, dice in instances(many, seed=4):
        n, m = shares.speed.shape
        gain, price = dice.uniform(0.1, 2.0, n), dice.uniform(0.5, 4.0, m)
        held = dice.random(n) < 0.5 * (dice.random() < 0.7)
        floor = np.where(held, dice.uniform(0.0, 0.2, n) * shares.speed.max(axis=1), 0.0)
        expected = oracles.best_ratio(shares, gain, price, floor)
        if expected is None:
            with pytest.raises(Infeasible):
                ratio(shares, gain, price, floor)
            continue
        found = ratio(shares, gain, price, floor)
        assert found.value == pytest.approx(expected, rel=1e-6)
        check_feasible(shares, found.x)
        assert (shares.reach(found.x) >= floor * (1 - 1e-8)).all()


@each_of_many
def test_finish_is_the_optimum(many: int) -> None:
    for i, (shares, dice) in enumerate(instances(many, seed=5)):
        n = len(shares.speed)
        age, work = dice.exponential(20.0, n), dice.lognormal(5.0, 1.0, n) * (dice.random(n) < 0.9)
        work[0] = max(work[0], 1.0)
        isolated = dice.uniform(0.5, 2.0, n) * (age + work)
        found = finish(shares, age, work, isolated)
        check_feasible(shares, found.x)
        busy = work > 0.0
        rho = (age + work / np.where(busy, shares.reach(found.x), 1.0)) / isolated
        assert found.value == pytest.approx(rho[busy].max(), rel=1e-9)
        assert found.gap <= 1e-9

        def met(
            at: float, s: Shares = shares, a: object = age, w: object = work, o: object = isolated
        ) -> bool:
            need = oracles.needs_of(at, a, w, o)  # type: ignore[arg-type]
            return need is not None and oracles.slack_of(s, need) >= 0.0

        assert met(found.value * (1 + 1e-6))
        assert not met(found.value * (1 - 1e-6))
        if i % 25 == 0:
            assert found.value == pytest.approx(oracles.least(met, 0.0, 4 * found.value), rel=1e-6)


def test_whole_jobs_are_never_worth_more_than_shares() -> None:
    for shares, _ in instances(60, seed=6, most=4):
        assert total(shares, 1.0).value >= oracles.best_assignment(shares) * (1 - 1e-9)


# --- which optimum ---------------------------------------------------------------------------------


def test_spare_keeps_the_level_and_wastes_nothing() -> None:
    for shares, dice in instances(150, seed=7):
        scale = dice.lognormal(0.0, 1.0, len(shares.speed))
        plain, spare = level(shares, scale), level(shares, scale, spare=True)
        check_feasible(shares, spare.x)
        assert spare.value == pytest.approx(plain.value, rel=2e-9)
        gain = 1.0 / scale
        best = oracles.best_total(shares, gain, spare.value * scale * (1 - 1e-9))
        assert best is not None
        assert (shares.count * gain) @ shares.reach(spare.x) == pytest.approx(best, rel=1e-6)


def test_the_centre_gives_something_to_rows_a_vertex_forgets() -> None:
    # One slow row sets the level; nine alike share a pool with room to spare, and a vertex favours some.
    speed = np.ones((10, 2)) * [10.0, 10.0]
    speed[0] = [1.0, 0.0]
    shares = Shares(speed, np.ones(10), np.array([1.0, 5.0]))
    vertex, centre = level(shares, 1.0), level(shares, 1.0, centre=True)
    assert centre.value == pytest.approx(vertex.value, rel=1e-7)
    check_feasible(shares, centre.x)
    inside = shares.reach(centre.x)[1:]
    assert inside.min() > 2.0  # the level is 1
    assert inside.max() - inside.min() < 1e-4  # alike, so treated alike
    assert shares.reach(vertex.x)[1:].min() < inside.min()


def test_centre_is_as_good_as_the_vertex() -> None:
    for shares, dice in instances(150, seed=8):
        scale = dice.lognormal(0.0, 1.0, len(shares.speed))
        centre = level(shares, scale, centre=True)
        check_feasible(shares, centre.x)
        assert centre.value == pytest.approx(level(shares, scale).value, rel=2e-7)


# --- warm, deterministic, refused ------------------------------------------------------------------


def test_warm_and_cold_find_the_same_level() -> None:
    dice = np.random.default_rng(9)
    speed, size = dice.lognormal(1.0, 1.0, (40, 4)), dice.choice([1.0, 2.0, 4.0], 40)
    count, capacity = dice.integers(0, 30, 40).astype(float), np.array([90.0, 60.0, 40.0, 20.0])
    scale, warm = dice.uniform(1.0, 2.0, 40), Warm()
    for _ in range(40):
        count[dice.integers(0, 40, 5)] = dice.integers(0, 30, 5)  # classes may empty and fill again
        capacity = np.maximum(capacity + dice.integers(-3, 4, 4), 0.0)
        scale = scale * dice.uniform(0.95, 1.05, 40)
        shares = Shares(speed, size, capacity, count)
        found = warm.level(shares, scale)
        check_feasible(shares, found.x)
        assert found.value == pytest.approx(level(shares, scale).value, rel=1e-9)
        assert found.gap < 1e-9


def test_a_cold_answer_has_no_history() -> None:
    dice = np.random.default_rng(10)
    shares = Shares(dice.lognormal(1.0, 1.0, (30, 3)), np.ones(30), np.array([5.0, 3.0, 2.0]))
    other = Shares(dice.lognormal(1.0, 1.0, (30, 3)), np.ones(30), np.array([2.0, 3.0, 5.0]))
    first = level(shares, 1.0), level(shares, 1.0, centre=True), finish(shares, 1.0, 9.0, 5.0)
    level(other, 1.0)
    again = level(shares, 1.0), level(shares, 1.0, centre=True), finish(shares, 1.0, 9.0, 5.0)
    for a, b in zip(first, again, strict=True):
        assert a.x.tobytes() == b.x.tobytes()
        assert a.value == b.value


def test_widely_different_magnitudes_keep_their_digits() -> None:
    dice = np.random.default_rng(11)
    speed = dice.lognormal(0.0, 1.0, (30, 3)) * 10.0 ** dice.integers(-3, 4, 30)[:, None]
    shares = Shares(speed, np.ones(30), np.array([3.0, 2.0, 1.0]))
    work = dice.lognormal(0.0, 1.0, 30) * 10.0 ** dice.integers(0, 9, 30)
    found = level(shares, work)
    assert found.gap < 1e-8


def test_rows_without_members_do_not_limit_the_level() -> None:
    shares = Shares(np.array([[1.0], [100.0]]), np.ones(2), np.ones(1), np.array([0.0, 1.0]))
    found = level(shares, 1.0)
    assert found.value == pytest.approx(100.0)
    assert found.x[0, 0] == 0.0


def test_a_row_that_can_run_nowhere_sets_the_level_to_0() -> None:
    shares = Shares(np.array([[0.0], [100.0]]), np.ones(2), np.ones(1))
    found = level(shares, 1.0)
    assert (found.value, found.gap) == (0.0, 0.0)
    assert not found.x.any()
    with pytest.raises(Infeasible, match="nowhere"):
        finish(shares, 0.0, 1.0, 1.0)
    with pytest.raises(Infeasible):
        level(shares, 1.0, [1.0, 0.0])


def test_nothing_worth_running_is_worth_0() -> None:
    assert ratio(GAVEL, 0.0, 1.0).value == 0.0
    assert total(GAVEL, -1.0).value == 0.0


def test_a_solver_is_loaded_when_something_is_solved() -> None:
    code = "import sys, dovetail.solve.time_share_lp, dovetail.solve.prices, dovetail.solve.water_filling\n"
    code += "assert not {'highspy', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="scale is 0"):
        level(GAVEL, 0.0)
    with pytest.raises(ValueError, match="floor must be at least 0"):
        level(GAVEL, 1.0, -1.0)
    with pytest.raises(ValueError, match="gain must be a vector of length 3"):
        total(GAVEL, [1.0, 2.0])
    with pytest.raises(ValueError, match="price must be more than 0"):
        ratio(GAVEL, 1.0, 0.0)
    with pytest.raises(ValueError, match="isolated must be more than 0"):
        finish(GAVEL, 0.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="finite"):
        level(GAVEL, [1.0, np.nan, 1.0])
    with pytest.raises(Infeasible, match="floors"):
        level(GAVEL, 1.0, [80.0, 70.0, 60.0])
