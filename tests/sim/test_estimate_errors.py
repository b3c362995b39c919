"""Runs in which policies are told wrong durations and speeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.core.core import Core
from dovetail.core.journal import Header, JournalWriter
from dovetail.core.replay import replayed
from dovetail.model.errors import ReplayMismatch
from dovetail.model.estimate import ASSUMED, DECLARED, Estimate
from dovetail.model.estimate_errors import EstimateErrors
from dovetail.model.event import FINISHED, SUBMITTED
from dovetail.model.job import Job
from dovetail.model.units import SECOND
from dovetail.policies.registry import POLICIES
from dovetail.sim import run as sim_run
from dovetail.testing.build import Profile, cluster, job, run

CURVE = Profile(curve={1: 1.0, 2: 1.6, 4: 2.4})
SMALL = cluster(nodes=1, gpus=4)


def elastic(id: str, **more: float) -> Job:
    return job(id, gpus=1, seconds=100, least=1, most=4, profile=CURVE, at=more.pop("at", 0.0))


def told(errors: EstimateErrors, id: str = "a", tasks: int = 2) -> Estimate:
    core = Core(SMALL, POLICIES.make("fifo"), 0, errors.estimator(DECLARED))
    core.handle(0, [(0, SUBMITTED, id, 0, elastic(id))])
    return core.speed(core.jobs[id], tasks=tasks)


def test_noise_stays_within_its_bounds_and_uses_them() -> None:
    errors = EstimateErrors(noise=0.2, seed=7)
    factors = [errors.factor("duration", f"j{n}") for n in range(2_000)]
    assert 0.8 <= min(factors) < 0.81
    assert 1.19 < max(factors) <= 1.2
    assert sum(factors) / len(factors) == pytest.approx(1.0, abs=0.01)


def test_durations_are_told_with_noise_and_bias_and_jobs_take_as_long_as_before() -> None:
    jobs = [elastic(f"j{n}") for n in range(4)]
    wrong = list(EstimateErrors(noise=0.1, bias=3.0).told(jobs))
    assert all(2.7 * a.work <= b.estimate <= 3.3 * a.work for a, b in zip(jobs, wrong, strict=True))
    assert len({b.estimate for b in wrong}) == 4
    assert [b.work for b in wrong] == [a.work for a in jobs]
    alone = run(jobs[:1], SMALL, "fifo", errors=EstimateErrors(noise=0.5, bias=2.0, cold=True))
    assert alone.finish("j0") == 100


def test_speeds_are_wrong_for_policies_by_a_factor_of_their_own() -> None:
    errors = EstimateErrors(noise=0.2, seed=3)
    found = {(id, tasks): told(errors, id, tasks).speed for id in "ab" for tasks in (1, 2, 4)}
    right = {(id, tasks): told(EstimateErrors(), id, tasks).speed for id, tasks in found}
    ratios = {key: found[key] / right[key] for key in found}
    assert all(0.8 <= ratio <= 1.2 for ratio in ratios.values())
    assert len(set(ratios.values())) == len(ratios)
    assert found == {key: told(errors, *key).speed for key in found}
    assert found != {key: told(EstimateErrors(noise=0.2, seed=4), *key).speed for key in found}


def test_without_errors_of_speeds_the_estimator_is_the_same() -> None:
    assert EstimateErrors(bias=2.0).estimator(DECLARED) is DECLARED


def test_a_cold_start_is_linear_until_the_job_has_run() -> None:
    core = Core(SMALL, POLICIES.make("fifo"), 0, EstimateErrors(cold=True).estimator(DECLARED))
    core.handle(
        0, [(0, SUBMITTED, each.id, 0, each) for each in (job("other", gpus=4, seconds=10), elastic("a"))]
    )
    waiting = core.jobs["a"]
    assert core.speed(waiting, tasks=4) == Estimate(4.0, ASSUMED)
    assert core.table().speeds[1, 4] == 4.0
    core.handle(10 * SECOND, [(10 * SECOND, FINISHED, "other", 1, None)])
    assert core.running["a"] is waiting
    assert core.speed(waiting, tasks=4).speed == 2.4
    assert core.table().speeds[0, 4] == 2.4


def test_errors_change_decisions_and_a_journal_replays_them(tmp_path: Path) -> None:
    jobs = [elastic(f"j{n}", at=10.0 * n) for n in range(6)]
    errors = EstimateErrors(noise=0.4, seed=2)

    def journal(name: str, of: EstimateErrors | None) -> Path:
        path = tmp_path / name
        with JournalWriter(path, Header(SMALL, "afs", {}, 0, of)) as writer:
            sim_run.run(jobs, SMALL, POLICIES.make("afs"), errors=of, on_step=lambda _, s: writer.write(s))
        return path

    wrong, again, right = journal("a.jsonl", errors), journal("b.jsonl", errors), journal("c.jsonl", None)
    assert wrong.read_bytes() == again.read_bytes()
    assert wrong.read_bytes() != right.read_bytes()
    assert len(list(replayed(wrong, lambda header: POLICIES.make(header.policy)))) > 6
    unsaid = tmp_path / "unsaid.jsonl"
    first, *rest = wrong.read_text().splitlines(keepends=True)
    unsaid.write_text(first.replace(',"estimates":{"noise":0.4,"seed":2}', "") + "".join(rest))
    with pytest.raises(ReplayMismatch):
        list(replayed(unsaid, lambda header: POLICIES.make(header.policy)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("noise=1", "below 1, not 1"),
        ("noise=-0.1", "at least 0"),
        ("bias=0", "above 0, not 0"),
        ("bias=inf", "above 0, not inf"),
        ("noise=nan", "not nan"),
        ("noise=much", "noise is a number, not 'much'"),
        ("noise", "'noise' is not noise=X"),
        ("cold=1", "'cold=1' is not"),
        ("noise=0.1,noise=0.2", "noise is given twice"),
        ("", "'' is not"),
    ],
)
def test_wrong_descriptions_are_refused_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EstimateErrors.parsed(text, 0)


def test_the_option_is_told_kept_in_the_journal_and_refused_in_one_line(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    generated = ["--like", "philly", "--jobs", "40", "--cluster", "2x8"]

    def dovetail(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dovetail.cli", *words]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    done = dovetail(
        *["simulate", *generated, "--policy", "srtf", "--estimates", "noise=0.2,cold"],
        *["--journal", str(journal)],
    )
    assert done.returncode == 0, done.stderr
    assert "estimates: wrong by up to 20 % either way, speeds not known before a job has run" in done.stderr
    assert '"estimates":{"noise":0.2,"cold":true,"seed":0}' in journal.read_text().partition("\n")[0]
    assert dovetail("replay", str(journal), "--at", "20").returncode == 0

    both = ["--policies", "sjf,srtf", "--seeds", "2", "--workers", "1", "--estimates"]
    assert dovetail("compare", *generated, *both, "bias=2").returncode == 0
    refused = dovetail("compare", *generated, *both, "noise=2")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "--estimates noise=2: noise is a part of the true value" in refused.stderr
