"""Backfill around reservations looks at no more of the queue than could start."""

from __future__ import annotations

from random import Random

import pytest
from tests.golden.journals import WORLDS, World, digest

from dovetail.mechanisms.queue import reserved_backfill
from dovetail.mechanisms.queue.future_capacity import FutureCapacity
from dovetail.model.cluster import Cluster
from dovetail.model.job import Job
from dovetail.testing.build import cluster, job, run

POLICIES = ("slurm", "openpbs")


def backlog(seed: int, count: int = 400) -> list[Job]:
    """Far more jobs than fit, of all sizes and lengths, of three tenants."""
    rng = Random(seed)
    return [
        job(
            f"j{i}",
            gpus=rng.choice([1, 1, 1, 2, 4, 8, 16]),
            minutes=rng.choice([2, 9, 60, 600]),
            at=float(rng.randrange(3_600)),
            tenant=f"t{rng.randrange(3)}",
        )
        for i in range(count)
    ]


def busy() -> World:
    return World(cluster(nodes=8, gpus=8), sorted(backlog(1, 150), key=lambda one: one.arrived_at), ())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("world", [*WORLDS, "busy"])
def test_what_is_not_reserved_changes_no_start(
    policy: str, world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = busy() if world == "busy" else WORLDS[world]()
    short = digest(policy, made)
    monkeypatch.setattr(reserved_backfill._Startable, "none_from", lambda self, number: False)
    assert digest(policy, made) == short


def reservations(jobs: list[Job], on: Cluster, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many reservations were worked out under `slurm`, and how many decisions were made."""
    taken = 0
    take = FutureCapacity.take

    def counted(self: FutureCapacity, *args: object) -> None:
        nonlocal taken
        taken += 1
        take(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(FutureCapacity, "take", counted)
    result = run(jobs, on, "slurm")
    return taken, result.decisions


def test_a_long_queue_costs_no_reservation_for_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster that stays full, a pass stops where no job behind it could start."""
    taken, decisions = reservations(backlog(2), cluster(nodes=4, gpus=8), monkeypatch)
    assert decisions > 200
    assert taken < 12 * decisions
