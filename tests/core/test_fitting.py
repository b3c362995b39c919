"""An elastic job that asks for more than the cluster has runs with as much as fits."""

from __future__ import annotations

import pytest

from dovetail.core.fitting import fitting
from dovetail.core.room import Room
from dovetail.model.cluster import parse_cluster
from dovetail.model.errors import NeverFits
from dovetail.model.job import Job, Profile, Traits, gang
from dovetail.model.units import SECOND
from dovetail.policies.classic import fifo
from dovetail.sim.run import run

CURVE = {1: 1.0, 4: 3.0, 8: 5.0, 16: 8.0}


def job(gpus: int, traits: Traits, seconds: int = 100) -> Job:
    return Job("j", 0, gang(gpus), seconds * SECOND, seconds * SECOND, traits=traits)


@pytest.mark.parametrize(("profile", "takes"), [(None, 200.0), (Profile(curve=CURVE), 160.0)])
def test_it_runs_with_what_the_cluster_has_and_takes_longer(profile: Profile | None, takes: float) -> None:
    wide = job(16, Traits(least=4, profile=profile))
    assert run([wide], parse_cluster("1x8"), fifo()).jct() == [takes]
    assert run([wide], parse_cluster("2x8"), fifo()).jct() == [100.0]


def test_a_rigid_job_and_one_whose_least_is_too_much_are_refused() -> None:
    for traits in (Traits(), Traits(least=12)):
        with pytest.raises(NeverFits):
            run([job(16, traits)], parse_cluster("1x8"), fifo())


def test_the_same_devices_take_the_same_time_whichever_reference_is_told() -> None:
    """On four GPUs the job runs at 3/8 of its speed on sixteen, and at 3/5 of that on eight."""
    room = Room(parse_cluster("1x8"))
    wide = job(16, Traits(least=4, profile=Profile(curve=CURVE)))
    smaller = fitting(room, wide)
    assert smaller is not None
    assert smaller.shape.tasks == 8
    assert smaller.work / (3 / 5) == pytest.approx(wide.work / (3 / 8))
