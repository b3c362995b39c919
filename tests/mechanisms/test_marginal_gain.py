"""GPUs one by one, to the job that gains most and from the job that loses least."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from dovetail.mechanisms.allocate.marginal_gain import Surplus, dealt, efficiency
from dovetail.mechanisms.allocate.sizes import Left
from dovetail.mechanisms.order.keys import arrival
from dovetail.model.cluster import Tenant
from dovetail.model.job import Profile, Shape, Traits
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, View
from dovetail.testing.build import cluster, job, run
from dovetail.testing.search import searched


class Waiting:
    """As much of a job as sizes depend on."""

    def __init__(self, seq: int, tasks: int = 1, most: int = 8, each: int = 1, tenant: str = "") -> None:
        self.id, self.seq = f"j{seq}", seq
        self.tenant = tenant
        self.shape, self.traits = Shape(tasks, each), Traits(least=1, most=most)


def jobs_of(*made: Waiting) -> list[JobView]:
    return cast("list[JobView]", list(made))


def worth(gains: dict[str, list[int]]) -> Any:
    """The gain of a job's second task is the first of its list."""
    return lambda job, tasks: gains[job.id][tasks - 2]


def test_the_largest_gain_first_and_of_equal_gains_the_first_submitted() -> None:
    jobs = jobs_of(Waiting(0, most=3), Waiting(1, most=3))
    gain = worth({"j0": [2, 1], "j1": [3, 2]})
    found = [dealt(jobs, {"j0": 1, "j1": 1}, Left(free * WHOLE), gain) for free in range(5)]
    assert found == [{}, {"j1": 2}, {"j1": 2, "j0": 2}, {"j1": 3, "j0": 2}, {"j1": 3, "j0": 3}]


def test_a_task_that_does_not_fit_leaves_the_gpu_to_another_job() -> None:
    jobs = jobs_of(Waiting(0, each=4), Waiting(1))
    gain = worth({"j0": [9] * 7, "j1": [1] * 7})
    assert dealt(jobs, {"j0": 1, "j1": 1}, Left(6 * WHOLE), gain) == {"j0": 2, "j1": 3}


def test_a_tenant_is_dealt_no_more_than_its_limit() -> None:
    jobs = jobs_of(Waiting(0, tenant="lab"), Waiting(1))
    left = Left(4 * WHOLE, cluster(tenants=[Tenant("lab", limit=2)]))
    left.take(jobs[0], 1)
    assert not left.allows(jobs[0], 2)
    assert dealt(jobs, {"j0": 1, "j1": 1}, left, worth({"j0": [9] * 7, "j1": [1] * 7})) == {"j0": 2, "j1": 3}


def test_a_task_that_is_worth_nothing_is_not_given() -> None:
    assert dealt(jobs_of(Waiting(0)), {"j0": 1}, Left(WHOLE), worth({"j0": [0]})) == {}


def test_the_smallest_loss_first_and_no_job_below_its_floor() -> None:
    jobs, sizes = jobs_of(Waiting(0), Waiting(1)), {"j0": 3, "j1": 3}
    surplus = Surplus(worth({"j0": [5, 1], "j1": [4, 3]}), lambda job: 2)
    for each in jobs:
        surplus.add(each, sizes[each.id])
    assert surplus.milli == 2 * WHOLE
    left = Left(WHOLE)
    surplus.take(sizes, left, WHOLE)
    assert sizes == {"j0": 3, "j1": 3}
    surplus.take(sizes, left, 2 * WHOLE)
    assert sizes == {"j0": 2, "j1": 3}
    surplus.take(sizes, left, 9 * WHOLE)
    assert sizes == {"j0": 2, "j1": 2}
    assert (left.milli, surplus.milli) == (3 * WHOLE, 0)


falling = st.lists(st.integers(1, 50), min_size=7, max_size=7).map(lambda gains: sorted(gains, reverse=True))


@given(gains=st.lists(falling, min_size=1, max_size=4), free=st.integers(0, 20))
@searched(40)
def test_where_gains_fall_the_sum_is_the_largest(gains: list[list[int]], free: int) -> None:
    jobs = jobs_of(*(Waiting(n) for n in range(len(gains))))
    gain = worth({f"j{n}": each for n, each in enumerate(gains)})
    found = dealt(jobs, {each.id: 1 for each in jobs}, Left(free * WHOLE), gain)
    total = sum(sum(gains[int(id[1:])][: tasks - 1]) for id, tasks in found.items())
    assert total == sum(sorted((gain for each in gains for gain in each), reverse=True)[:free])


def test_efficiency_is_the_speed_that_a_task_adds_against_the_first_ones() -> None:
    """2 to 4 tasks of speed 1, 1.25 and 1.25: the third adds half of what each of the first two does."""
    seen: list[list[float]] = []

    class Asking:
        order, group, quantum = arrival, None, None

        def decide(self, view: View) -> Any:
            gain = efficiency(view)
            seen.extend([gain(each, 3), gain(each, 4)] for each in view.queue)
            plan = view.draft()
            for each in view.queue:
                plan.start(each)
            return plan

    profile = Profile(curve={2: 1.0, 3: 1.25, 4: 1.25})
    run([job("a", gpus=2, minutes=1, least=2, most=4, profile=profile)], cluster(gpus=4), Asking())
    assert seen == [[0.5, 0.0]]
