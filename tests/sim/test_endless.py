"""A policy that never comes to an end at one instant is stopped with a reason, not run for ever."""

from __future__ import annotations

import pytest

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.placement import scattered
from dovetail.mechanisms.resize.resizing import elastic, held_tasks
from dovetail.model.errors import PolicyError
from dovetail.model.view import View
from dovetail.policies.composed import Composed
from dovetail.testing.build import Profile, cluster, job, run

CURVE = Profile(curve={1: 1.0, 2: 1.5, 3: 1.8, 4: 2.0})


def back_and_forth(view: View) -> dict[str, int]:
    """The job that has more gets less, and the other way round."""
    jobs = sorted((held_tasks(running), id) for id, running in view.running.items())
    return {id: tasks for (_, id), tasks in zip(jobs, (2, 1, 1), strict=False)}


def test_a_policy_that_swaps_sizes_back_and_forth_is_stopped_with_a_reason() -> None:
    policy = Composed(order=arrival, allocate=back_and_forth, place=scattered, resize=elastic)
    jobs = [
        job(id, gpus=1, minutes=5, at=at, least=1, most=4, profile=CURVE)
        for id, at in (("a", 0), ("b", 0), ("c", 10))
    ]
    with pytest.raises(PolicyError, match=r"decided 1,\d\d\d times at this instant.*Resize"):
        run(jobs, cluster(nodes=1, gpus=4), policy)


def test_many_jobs_at_one_instant_are_no_endless_policy() -> None:
    """Jobs of no length run one after another, all at one instant."""
    crowd = [job(f"j{n}", gpus=1, minutes=0, at=0) for n in range(1_500)]
    for policy in ("fifo", "srtf", "afs"):
        assert run(crowd, cluster(nodes=1, gpus=1), policy).finished == len(crowd)
