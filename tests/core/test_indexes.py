"""The queue, the departures and the timers against lists that are sorted each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.active import ActiveJob
from dovetail.core.departures import Departures
from dovetail.core.queue import Queue
from dovetail.core.room import Room
from dovetail.core.timers import Timers
from dovetail.model.cluster import Cluster, GpuType, Node
from dovetail.model.grant import FULL, Spots, load_of
from dovetail.model.job import Job, gang
from dovetail.testing.suite import searched


def made(seq: int, gpus: int = 1, arrived: int = 0, tenant: str = "") -> ActiveJob:
    return ActiveJob(Job(f"j{seq}", arrived, gang(gpus), 1, 1, tenant=tenant), seq, gpus)


@given(moves=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 3), st.integers(0, 4)), max_size=40))
@searched(150)
def test_the_queue_is_a_sorted_list(moves: list[tuple[int, int, int]]) -> None:
    """Push, and push again to take out: the head and the walk are those of a sorted list at every moment."""
    queue = Queue(lambda job, now: job.arrived_at, lambda job: job.arrived_at % 2)
    known: dict[int, ActiveJob] = {}
    inside: dict[int, ActiveJob] = {}
    for seq, gpus, arrived in moves:
        if seq in inside:
            queue.remove(inside.pop(seq))
        else:
            inside[seq] = known.setdefault(seq, made(seq, gpus, arrived))
            queue.push(inside[seq], 0)
        ranked = sorted(inside.values(), key=lambda job: (job.arrived_at, job.seq))
        assert len(queue) == len(ranked)
        assert queue.need <= min((job.need for job in ranked), default=queue.need)
        assert queue.head() is (ranked[0] if ranked else None)
        unskipped = [job for job in ranked if job.shape != gang(1)]
        assert queue.head({gang(1)}) is (unskipped[0] if unskipped else None)
        heads = {(job.gpus, job.arrived_at % 2): job for job in reversed(ranked)}  # no job starts: only heads
        assert list(queue.walk()) == sorted(heads.values(), key=lambda job: (job.arrived_at, job.seq))
        assert {shape.gpus for shape in queue.shapes()} == {job.gpus for job in ranked}
        assert set(queue) == set(ranked)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=5),
    taken=st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=30),
)
@searched(150)
def test_below_its_need_nothing_fits(sizes: list[tuple[int, bool]], taken: list[tuple[int, bool]]) -> None:
    """Whatever is taken and given back: a shape that needs more than the room's level is not to be placed."""
    room = Room(
        Cluster(tuple(Node(f"n{i}", n, GpuType("A" if a else "B")) for i, (n, a) in enumerate(sizes)))
    )
    held: list[Spots] = []
    for gpus, back in taken:
        if back and held:
            room.give(held.pop(gpus % len(held)))
        elif (spots := room.grab(gang(gpus))) is not None:
            held.append(spots)
        for tasks in range(1, 17):
            fits = room.may_fit(gang(tasks))
            assert not fits or room.need(gang(tasks)) <= room.level
            if room.uniform:
                assert fits == (room.need(gang(tasks)) <= room.level)


def test_a_walk_goes_on_behind_a_job_that_was_started() -> None:
    queue = Queue(lambda job, now: job.arrived_at, lambda job: job.tenant)
    jobs = [made(i, 1, i, "a" if i < 3 else "b") for i in range(5)]
    for job in jobs:
        queue.push(job, 0)
    seen = []
    for job in queue.walk():
        seen.append(job.seq)
        if job.seq != 1:  # it is not started, which ends the walk over its group
            queue.remove(job)
    assert seen == [0, 1, 3, 4]


@given(
    waiting=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), min_size=1, max_size=8),
    turns=st.lists(
        st.tuples(
            st.sampled_from(["starts", "starts last", "waits"]),
            st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), max_size=2),
        ),
        max_size=12,
    ),
)
@searched(300)
def test_a_job_that_joins_during_a_walk_comes_at_its_place(
    waiting: list[tuple[int, int]], turns: list[tuple[str, list[tuple[int, int]]]]
) -> None:
    """Each job of the walk is the first waiting job of the shapes and groups that are still open."""
    queue = Queue(lambda job, now: job.arrived_at, lambda job: job.arrived_at % 2)
    inside: list[ActiveJob] = []

    def join(gpus: int, arrived: int) -> None:
        inside.append(made(len(inside), gpus, arrived))
        queue.push(inside[-1], 0)

    for gpus, arrived in waiting:
        join(gpus, arrived)
    shut: set[tuple[int, int]] = set()
    left = iter(turns)
    for job in queue.walk():
        still = [
            job for job in inside if job.filed is not None and (job.gpus, job.arrived_at % 2) not in shut
        ]
        assert job is min(still, key=lambda job: (job.arrived_at, job.seq))
        fate, joiners = next(left, ("waits", []))
        if fate == "starts":
            queue.remove(job)
        for gpus, arrived in joiners:
            join(gpus, arrived)
        if fate == "starts last":
            queue.remove(job)
        elif fate == "waits":
            shut.add((job.gpus, job.arrived_at % 2))
    assert all((job.gpus, job.arrived_at % 2) in shut for job in inside if job.filed is not None)


def test_a_walk_can_be_ranked_by_what_changes_under_way() -> None:
    """Fair sharing: the tenant with fewer GPUs goes first, and the walk itself gives out GPUs."""
    queue = Queue(lambda job, now: job.arrived_at, lambda job: job.tenant)
    for i in range(6):
        queue.push(made(i, 1, i, "a" if i < 4 else "b"), 0)
    used = {"a": 0, "b": 0}
    order = []
    for job in queue.walk(rank=lambda job: used[job.tenant]):
        order.append(job.tenant)
        used[job.tenant] += 1
        queue.remove(job)
    assert order == ["a", "b", "a", "b", "a", "a"]


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    running=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5), st.booleans()), max_size=8),
    want=st.integers(1, 4),
)
@searched(200)
def test_vacancy_is_found_where_the_last_to_leave_leaves_first(
    sizes: list[int], running: list[tuple[int, int, bool]], want: int
) -> None:
    room = Room(Cluster(tuple(Node(f"n{i}", size) for i, size in enumerate(sizes))))
    departures = Departures(room)
    departures.vacancy(gang(want))  # asked before anything runs: the ladder must be kept up to date
    stands: list[tuple[int, int, int]] = []
    for seq, (gpus, key, leaves) in enumerate(running):
        spots = room.best(gang(gpus))
        if spots is None or len(spots) > 1:
            continue
        room.take(spots)
        job = made(seq, gpus)
        job.begin(0, spots, FULL, load_of(spots))
        departures.add(job, key if leaves else None)
        if leaves:
            stands.append((spots[0][0], key, gpus))
    if max(sizes) < want:
        return  # over several nodes: the walk over ladders, checked through the policies
    keys = []
    for node in range(len(sizes)):
        free = room.free_on(node).bit_count()
        leaving: int | None = None
        for key, gpus in sorted((key, gpus) for at, key, gpus in stands if at == node):
            if free >= want:
                break
            free, leaving = free + gpus, key
        if free >= want:
            keys.append(leaving)
    vacancy = departures.vacancy(gang(want))
    assert (vacancy is None) == (not keys)
    if vacancy is not None:
        assert vacancy.key == (None if None in keys else min(k for k in keys if k is not None))
        ((node, count),) = vacancy.nodes
        gained = sum(job.gpus for job in vacancy.jobs)
        assert count == want
        assert room.free_on(node).bit_count() + gained >= want
        assert departures.free_by(node, vacancy.key) >= want


@given(moves=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 40), st.booleans()), max_size=40))
@searched(150)
def test_timers_are_a_sorted_list(moves: list[tuple[int, int, bool]]) -> None:
    """Set, set again and unset in any order, while time goes on: always the next one that is true."""
    timers, now = Timers(7), 0
    jobs = [made(seq) for seq in range(7)]
    true: dict[int, int] = {}
    for seq, ahead, goes_on in moves:
        if goes_on:
            now += ahead
            while (at := timers.first()) is not None and at <= now:
                due, number, job = timers.pop()
                assert (due, number) == min((at, seq) for seq, at in true.items())
                assert job is jobs[number]
                del true[number]
                job.timer = None
        elif seq in true:
            jobs[seq].timer = None
            del true[seq]
        else:
            timers.set(jobs[seq], now + ahead)
            true[seq] = now + ahead
        assert timers.first() == min(true.values(), default=None)
