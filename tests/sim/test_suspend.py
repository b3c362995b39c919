"""Suspending and resuming in place costs less than moving (docs/decisions/0041)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dovetail.core.core import Core, Step
from dovetail.core.snapshot import restored, snapshot
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.preempt.stopping import must_keep_running
from dovetail.model.grant import Spots, same_place
from dovetail.model.view import Order, Plan, View
from dovetail.sim.run import Run
from dovetail.testing.build import Checkpoint, Incident, cluster, job, run

SECOND = 1_000_000
COSTS = Checkpoint(save=10 * SECOND, restore=20 * SECOND, suspend=1 * SECOND)


@dataclass
class Timetable:
    """A policy that holds the job on these spots from these seconds on."""

    times: dict[int, Spots | None]
    order: Order = arrival
    group: None = None
    quantum: None = None

    def decide(self, view: View) -> Plan:
        plan, now = view.draft(), view.now // SECOND
        due = [at for at in self.times if at <= now]
        spots = self.times[max(due)] if due else None
        for one in [*view.running.values(), *view.queue]:
            if one.spots != spots:
                if one.spots is not None:
                    plan.stop(one)
                if spots is not None:
                    plan.start(one, spots)
        plan.review_at = min((at * SECOND for at in self.times if at > now), default=None)
        return plan


def played(
    times: dict[int, Spots | None], costs: Checkpoint, *, gpus: int = 2, lost: Incident | None = None
) -> Run:
    """A job of 100 s that moves by a timetable."""
    return run(
        [job("a", seconds=100, checkpoint=costs)],
        cluster(nodes=2, gpus=gpus),
        Timetable(times),
        incidents=[lost] if lost else [],
        on_step=agrees,
    )


def agrees(core: Core, step: Step) -> None:
    """A core that is restored from a snapshot knows where jobs are suspended."""
    twin = restored(snapshot(core), core.cluster, core.policy)
    assert [j.suspended_on for j in twin.jobs.values()] == [j.suspended_on for j in core.jobs.values()]


HERE: Spots = ((0, 0b01, 1000, 0, 0),)
BESIDE: Spots = ((0, 0b10, 1000, 0, 0),)  # the other device of the node
THERE: Spots = ((1, 0b01, 1000, 0, 0),)


@pytest.mark.parametrize(
    ("times", "costs", "end"),
    [
        ({0: HERE, 10: None, 50: HERE}, COSTS, 50 + 1 + 90),
        ({0: HERE, 10: None, 50: BESIDE}, COSTS, 50 + 1 + 90),  # another device of the node
        ({0: HERE, 10: None, 50: THERE}, COSTS, 50 + 10 + 20 + 90),
        ({0: HERE, 10: BESIDE}, COSTS, 10 + 1 + 90),  # at once
        ({0: HERE, 10: THERE}, COSTS, 10 + 10 + 20 + 90),
        ({0: HERE, 10: THERE, 60: HERE}, COSTS, 60 + 10 + 20 + 70),  # what node 0 kept is old
        ({0: HERE, 10: None, 50: HERE}, Checkpoint(save=10 * SECOND, restore=20 * SECOND), 50 + 20 + 90),
        ({0: HERE, 10: THERE}, Checkpoint(save=10 * SECOND, restore=20 * SECOND), 10 + 10 + 20 + 90),
        # A job that saves nothing when it is stopped is not suspended.
        (
            {0: HERE, 10: None, 50: HERE},
            Checkpoint(on_stop=False, restore=20 * SECOND, suspend=1 * SECOND),
            50 + 20 + 100,
        ),
    ],
)
def test_a_start_pays_for_where_it_is(times: dict[int, Spots | None], costs: Checkpoint, end: int) -> None:
    result = played(times, costs)
    assert result.finish("a") == end
    assert result.lost == result.busy - 100 * SECOND * 1000


def test_a_lost_node_takes_suspended_state_with_it() -> None:
    lost = Incident("n0", 20 * SECOND, 30 * SECOND)
    assert played({0: HERE, 10: None, 50: HERE}, COSTS, lost=lost).finish("a") == 50 + 20 + 90


def test_a_policy_sees_where_a_job_is_suspended_and_from_when_it_works() -> None:
    seen: list[tuple[int, Spots | None, int]] = []

    def look(core: Core, step: Step) -> None:
        for one in core.jobs.values():
            seen.append((step.now // SECOND, one.suspended_on, one.live_at // SECOND))
            if one.spots is not None:
                assert must_keep_running(one, 51 * SECOND) == (one.live_at >= 51 * SECOND)

    run(
        [job("a", seconds=100, checkpoint=COSTS)],
        cluster(nodes=2, gpus=2),
        Timetable({0: HERE, 10: None, 50: HERE}),
        on_step=look,
    )
    assert (0, None, 0) in seen
    assert (10, HERE, 0) in seen
    assert (50, HERE, 51) in seen


def test_same_place_counts_devices_by_node() -> None:
    assert same_place(
        ((0, 0b11, 1000, 0, 0), (1, 1, 1000, 0, 0)), ((1, 2, 1000, 0, 0), (0, 0b110, 1000, 0, 0))
    )
    assert not same_place(
        ((0, 0b11, 1000, 0, 0), (1, 1, 1000, 0, 0)), ((0, 1, 1000, 0, 0), (1, 3, 1000, 0, 0))
    )
