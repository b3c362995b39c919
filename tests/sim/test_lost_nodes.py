"""Nodes that are lost while a job runs on them."""

from __future__ import annotations

from dovetail.core.core import Core, Step
from dovetail.model.event import STOPPED
from dovetail.sim.world import Incident
from dovetail.testing.build import SECOND, Checkpoint, cluster, job, run


def test_a_job_whose_nodes_are_both_lost_before_a_round_keeps_nothing_from_after_the_first_loss() -> None:
    """It saves each minute. The policy hears of both losses at 600 s."""
    kept: list[int] = []

    def keep(core: Core, step: Step) -> None:
        kept.extend(fact for _, kind, _, _, fact in step.events if kind == STOPPED)

    gang = job("x", gpus=16, minutes=20, checkpoint=Checkpoint(every=60 * SECOND))
    lost = [Incident("n0", 150 * SECOND, 700 * SECOND), Incident("n1", 350 * SECOND, 700 * SECOND)]
    run([gang], cluster(nodes=2, gpus=8), "optimus", incidents=lost, on_step=keep)
    assert kept == [120 * SECOND]
