"""`View.table`: all active jobs as arrays."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given

from dovetail.core.core import Core, Step
from dovetail.model.estimate import task_range
from dovetail.model.event import FINISHED, SUBMITTED
from dovetail.model.grant import devices_of
from dovetail.model.job import Profile, Traits
from dovetail.model.units import SECOND
from dovetail.policies.classic import fifo
from dovetail.policies.registry import POLICIES
from dovetail.sim.run import run
from dovetail.testing.build import cluster, job
from dovetail.testing.strategies import Scene, scenes
from dovetail.testing.suite import searched

ELASTIC = Traits(least=1, most=4, profile=Profile(curve={1: 1.0, 2: 1.8, 4: 3.0}))


def core_with(*gpus: int, nodes: int = 1) -> Core:
    core = Core(cluster(nodes=nodes, gpus=4), fifo())
    jobs = [
        job(f"j{i}", gpus=count, seconds=100, tenant="red", traits=ELASTIC) for i, count in enumerate(gpus)
    ]
    core.handle(0, [(0, SUBMITTED, made.id, 0, made) for made in jobs])
    return core


@given(scene=scenes(lossy=True, most=12))
@searched(30)
def test_every_column_says_what_the_views_say(scene: Scene) -> None:
    def compare(core: Core, step: Step) -> None:
        table, now = core.table(), core.now
        assert table is core.table()
        assert [mine.id for mine in table.jobs] == [
            mine.id for mine in sorted(core.jobs.values(), key=by_seq)
        ]
        for i, mine in enumerate(table.jobs):
            least, most = task_range(mine.shape, mine.traits)
            assert (table.seq[i], table.gpus[i], table.tasks[i]) == (mine.seq, mine.gpus, mine.shape.tasks)
            assert (table.least[i], table.most[i], table.each[i]) == (least, most, mine.shape.each)
            assert (table.held[i], table.running[i]) == (mine.held, mine.spots is not None)
            assert table.running_tasks[i] * mine.shape.each == devices_of(mine.spots or ())
            assert (table.arrived_at[i], table.priority[i]) == (mine.arrived_at, mine.priority)
            assert table.tenants[table.tenant[i]] == mine.tenant
            assert table.service[i] == mine.service_at(now)
            assert table.remaining[i] == mine.remaining_at(now)
            for tasks in range(table.speeds.shape[1]):
                expected = core.speed(mine, tasks=tasks).speed if least <= tasks <= most else 0.0
                assert table.speeds[i, tasks] == expected

    run(scene.jobs, scene.cluster, POLICIES.make("srtf"), incidents=scene.incidents, on_step=compare)


def by_seq(mine: object) -> int:
    return mine.seq  # type: ignore[attr-defined, no-any-return]


def test_it_shows_the_moment_at_which_it_was_made() -> None:
    core = core_with(2, 4)
    table = core.table()
    draft = core.draft()
    draft.stop(core.jobs["j0"])
    assert table.running.tolist() == [True, False]
    assert core.table() is table  # of the same step
    core.abandon()
    core.handle(SECOND, [(SECOND, FINISHED, "j0", 1, None)])
    assert core.table().running.tolist() == [True]
    assert [mine.id for mine in core.table().jobs] == ["j1"]


def test_its_arrays_are_read_only() -> None:
    table = core_with(2).table()
    for column in (table.gpus, table.held, table.speeds):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 7


def test_speeds_by_number_of_tasks() -> None:
    table = core_with(2, 1).table()
    assert table.speeds.shape == (2, 5)
    assert table.speeds[0].tolist() == pytest.approx([0.0, 1 / 1.8, 1.0, 2.4 / 1.8, 3 / 1.8])
    assert table.speeds[1].tolist() == pytest.approx([0.0, 1.0, 1.8, 2.4, 3.0])


def test_an_empty_cluster_has_an_empty_table() -> None:
    table = core_with().table()
    assert (len(table), table.speeds.shape, table.tenants) == (0, (0, 1), ())


def test_numpy_is_loaded_when_a_table_is_first_asked_for() -> None:
    code = "import sys, dovetail.sim.run, dovetail.policies.classic; print('numpy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_a_thousand_jobs_take_milliseconds() -> None:
    """Through the views, an elastic allocation over as many took seconds."""
    core = core_with(*[1] * 1_000, nodes=100)
    core.table()
    began = time.process_time()
    core.number += 1
    table = core.table()
    shares = np.minimum(table.most, 1 + (table.speeds[:, 2] > 1.5))
    spent = time.process_time() - began
    assert shares.sum() == 2_000
    assert spent < 0.1  # about 0.005 on a quiet machine
