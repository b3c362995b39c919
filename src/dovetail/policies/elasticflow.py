"""ElasticFlow: a job gets the fewest GPUs that meet its deadline, or is refused (Gu et al., ASPLOS 2023).

The user gives a deadline and not a number of GPUs. Shares of accepted jobs are reserved over time, by
deadline (`solve.reserved_shares`); a job is accepted if all accepted jobs keep a share. GPUs that no share
needs now go to the jobs that save most GPU time with them.

Reconstructed: how the marginal return is counted (`marginal_return`), and what becomes of a broken promise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import ceil
from typing import Literal, NamedTuple

from dovetail.mechanisms.allocate.sizes import capacity
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.preempt.stopping import may_be_stopped
from dovetail.mechanisms.resize.resizing import held_tasks
from dovetail.mechanisms.rounds.active_jobs import gpu_jobs, start_cpu_jobs
from dovetail.model.estimate import alike, task_range
from dovetail.model.grant import Spots, devices_of, nodes_of
from dovetail.model.job import Shape
from dovetail.model.topology import fewest_nodes
from dovetail.model.units import MINUTE, WHOLE
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.solve.reserved_shares import (
    FAR,
    PADDING,
    Profile,
    Request,
    Segment,
    Share,
    marginal_return,
    minimum_share,
    profile,
    progress,
    progressive_filling,
    smallest,
    soonest,
    without,
)

OVERDUE = MINUTE  # a job that runs longer than declared is planned by the minute


def elasticflow(*, margin: float = 0.0, refused: Literal["drop", "demote"] = "drop") -> Policy:
    """Accept a deadline only if all accepted ones can be met; give each job the fewest GPUs that meet it.

    Run times are taken to be longer by the fraction `margin`, against pauses and estimates that are too
    short. A job whose deadline cannot be met is dropped, as in the paper, or with `refused=demote` (ours)
    runs without a promise. Jobs without a deadline use GPUs that are to spare.
    """
    if margin < 0:
        raise ValueError(f"run times are taken to be longer by a fraction, not by {margin}")
    return ElasticFlow(margin=margin, drop=refused == "drop")


@dataclass(frozen=True, slots=True)
class Promises:
    """What is kept between decisions."""

    shares: Mapping[str, Share] = field(default_factory=dict)  # of each accepted job
    unpromised: frozenset[str] = frozenset()  # jobs with a deadline that run without a promise


class Curve(NamedTuple):
    """The numbers of tasks to choose from, the GPUs of each, and how fast the job is on the slowest type."""

    tasks: Sequence[int]
    gpus: Sequence[int]
    speeds: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticFlow:
    """Minimum satisfactory shares by deadline; spare GPUs by marginal return."""

    margin: float
    drop: bool
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        start_cpu_jobs(view, plan)
        jobs = gpu_jobs(view)
        memory = view.memory if isinstance(view.memory, Promises) else Promises()
        book = Book(view, jobs, self.margin)
        accepted = [job for job in jobs if job.id in memory.shares]
        shares = book.renewed(accepted, memory.shares)
        unpromised, dropped = set(memory.unpromised), set[str]()
        for job in jobs:
            if job.deadline is None or job.id in shares or job.id in unpromised:
                continue
            found = book.admitted([*accepted, job], shares) if book.may_promise(job) else None
            if found is not None:
                plan.accept(job, job.deadline)
                accepted.append(job)
                shares = found
            elif self.drop and job.spots is None and book.may_promise(job):
                plan.refuse(job, "its deadline cannot be met with those that are promised")
                dropped.add(job.id)
            else:
                plan.demote(job, job.priority - 1, "its deadline cannot be promised")
                unpromised.add(job.id)
        active = [job for job in jobs if job.id not in dropped]
        place(view, plan, active, book.sizes(active, shares))
        plan.memory = Promises(shares, frozenset(unpromised & {job.id for job in active}))
        changes = (at for share in shares.values() for row in share for at in row[:2] if at > view.now)
        plan.review_at = min(changes, default=None)
        return plan


class Book:
    """Capacity over time: what running jobs keep, and what is promised."""

    def __init__(self, view: View, jobs: Iterable[JobView], margin: float) -> None:
        self._view, self._margin, self._known = view, margin, dict[Hashable, Curve]()
        self._kinds = tuple(view.cluster.type_speeds)
        self._curves: dict[str, Curve] = {}
        self._capacity = capacity(view) // WHOLE
        self._requests: dict[tuple[str, float], Request] = {}
        self.kept = [  # by jobs that must not be stopped
            self._whole(job, view.now) for job in jobs if job.spots is not None and not may_be_stopped(job)
        ]
        self.free = profile(view.now, self._capacity, self.kept)

    def may_promise(self, job: JobView) -> bool:
        """Whether a share of GPUs is all that a job needs, and the job can be resized and stopped for it."""
        shape = job.shape
        anywhere = not shape.types or set(shape.types) >= set(self._kinds)
        return may_be_stopped(job) and shape.exclusive and anywhere and not (shape.partition or shape.roles)

    def curve(self, job: JobView) -> Curve:
        """The levels of a job: powers of two, as far as more GPUs make it faster."""
        if job.id not in self._curves:
            key = alike(self._view.estimator, job)
            if key not in self._known:
                self._known[key] = self._curve(job)
            self._curves[job.id] = self._known[key]
        return self._curves[job.id]

    def _curve(self, job: JobView) -> Curve:
        view, shape = self._view, job.shape
        kinds = [kind for kind in self._kinds if not shape.types or kind in shape.types]
        fits = view.room.ever
        sizes = [tasks for tasks in levels(job) if fits(shape.of(tasks))]
        if not sizes:  # no power of two fits the cluster
            least, _ = task_range(shape, job.traits)
            sizes = [tasks for tasks in (shape.tasks, least) if fits(shape.of(tasks))][:1]
        rows: list[tuple[int, float]] = []
        for tasks in sizes:
            speed = min((view.speed(job, tasks=tasks, type=kind).speed for kind in kinds), default=0.0)
            if speed > (rows[-1][1] if rows else 0.0):
                rows.append((tasks, speed))
        rows = rows or [(shape.tasks, 1.0)]
        gpus = [self._counted(shape, tasks) for tasks, _ in rows]
        return Curve([tasks for tasks, _ in rows], gpus, [speed for _, speed in rows])

    def _counted(self, shape: Shape, tasks: int) -> int:
        """GPUs that this number of tasks may take; tasks that share GPUs may all be on the same ones."""
        gpus = tasks * shape.each
        return gpus if shape.exclusive else max(1, min(gpus, self._capacity))

    def request(self, job: JobView, margin: float = 0.0) -> Request:
        """What a job needs before its deadline."""
        known = self._requests.get((job.id, margin))
        if known is not None:
            return known
        left = job.remaining_at(self._view.now) or OVERDUE
        if job.epoch and job.spots is None:
            left += job.traits.checkpoint.restore
        curve = self.curve(job)
        deadline = FAR if job.deadline is None else job.deadline
        made = Request(ceil(left + margin * job.estimate), deadline, curve.gpus, curve.speeds)
        self._requests[job.id, margin] = made
        return made

    def admitted(self, jobs: Sequence[JobView], shares: Mapping[str, Share]) -> dict[str, Share] | None:
        """Shares for all of these jobs, of which the last is new; None: there are none.

        If the smallest conceivable share of the new job is free, the other shares stay. Else all are filled
        anew by deadline. If that fails, the new job may have any share beside those that are there.
        """
        left, new = self._left(shares), self.request(jobs[-1], self._margin)
        share = smallest(self._view.now, new)
        if share is None:
            return None
        if all(_fits(left, segment) for segment in share):
            return {**shares, jobs[-1].id: share}
        found = progressive_filling(self.free, [self.request(job, self._margin) for job in jobs])
        whole = {job.id: share for job, share in zip(jobs, found, strict=True) if share is not None}
        if len(whole) == len(jobs):
            return whole
        beside = minimum_share(left, new)
        return None if beside is None else {**shares, jobs[-1].id: beside}

    def renewed(self, jobs: Sequence[JobView], old: Mapping[str, Share]) -> dict[str, Share]:
        """The shares as of now. A job that is behind gets another one beside those of the other jobs.

        If a node is gone, all are filled anew by deadline. A job for which no share is enough gets the one
        that ends it soonest, after all others.
        """
        now = self._view.now
        requests = {job.id: self.request(job) for job in jobs}
        shares = {job.id: tuple(row for row in old[job.id] if row.end > now) for job in jobs}
        if self._left(shares).free.min() < 0:
            found = progressive_filling(self.free, list(requests.values()))
            shares = {job.id: share for job, share in zip(jobs, found, strict=True) if share is not None}
        else:
            shares = {id: share for id, share in shares.items() if not _behind(share, requests[id], now)}
        lacking = [job for job in jobs if job.id not in shares]
        left = self._left(shares) if lacking else self.free
        for job in sorted(lacking, key=lambda job: (_due(job), job.seq)):
            share = minimum_share(left, requests[job.id]) or soonest(left, requests[job.id])
            left = without(left, share)
            shares[job.id] = share
        return shares

    def sizes(self, jobs: Sequence[JobView], shares: Mapping[str, Share]) -> dict[str, int]:
        """Tasks of each job now: its share; then what is to spare, jobs without any GPU first."""
        now, left = self._view.now, self._left(shares)
        spare = int(self.free.free[0])
        ranks: dict[str, int] = {}  # of the level that a job has now
        for job in sorted(jobs, key=lambda job: (_due(job), job.seq)):
            gpus = next((row.gpus for row in shares.get(job.id, ()) if row.start <= now < row.end), 0)
            if gpus and max(gpus, self.curve(job).gpus[0]) <= spare:
                ranks[job.id] = _rank(self.curve(job), gpus)
                spare -= self.curve(job).gpus[ranks[job.id]]
        fixed: dict[str, int] = {}  # jobs that keep what they hold
        for job in without_gpus_first(jobs, shares):
            if job.id in ranks:
                continue
            if not may_be_stopped(job):
                if job.spots is not None:
                    fixed[job.id] = held_tasks(job)
                    continue
                whole = self._whole(job, now)
                if whole.gpus <= spare and _fits(left, whole):
                    left = without(left, (whole,))
                    spare -= whole.gpus
                    fixed[job.id] = job.shape.tasks
            elif (gpus := self.curve(job).gpus[0]) <= spare:
                ranks[job.id] = 0
                spare -= gpus
        self._deal([job for job in jobs if job.id in ranks], shares, ranks, spare)
        sizes = {job.id: self.curve(job).tasks[ranks[job.id]] for job in jobs if job.id in ranks}
        return {**sizes, **fixed}

    def _deal(
        self, jobs: Sequence[JobView], shares: Mapping[str, Share], ranks: dict[str, int], spare: int
    ) -> None:
        """The next level goes to the job with the largest marginal return, as long as GPUs are to spare."""
        heap: list[tuple[float, int, str]] = []
        least: dict[str, int] = {}

        def step(job_id: str, seq: int) -> tuple[float, int, str] | None:
            _, gpus, speeds = self._curves[job_id]
            rank = ranks[job_id]
            if rank + 1 == len(gpus):
                return None
            return -marginal_return(speeds, gpus, least[job_id], rank), seq, job_id

        for job in jobs:
            share = shares.get(job.id)
            least[job.id] = _rank(self.curve(job), max(row.gpus for row in share)) if share else 0
            first = step(job.id, job.seq)
            if first is not None:
                heap.append(first)
        heapify(heap)
        while heap and spare > 0:
            _, seq, job_id = heappop(heap)
            gpus = self._curves[job_id].gpus
            more = gpus[ranks[job_id] + 1] - gpus[ranks[job_id]]
            if more <= spare:
                spare -= more
                ranks[job_id] += 1
                following = step(job_id, seq)
                if following is not None:
                    heappush(heap, following)

    def _left(self, shares: Mapping[str, Share]) -> Profile:
        rows = [row for share in shares.values() for row in share]
        return profile(self._view.now, self._capacity, [*self.kept, *rows])

    def _whole(self, job: JobView, now: int) -> Segment:
        """A job that is not stopped once it runs, from now to its end."""
        gpus = self._counted(job.shape, job.shape.tasks) if job.spots is None else devices_of(job.spots)
        speed = self.curve(job).speeds[0] if job.spots is None else job.rate or 1.0
        left = (job.remaining_at(now) or OVERDUE) + job.traits.checkpoint.restore * bool(job.epoch)
        return Segment(now, now + ceil(left / speed) + PADDING, gpus)


def levels(job: JobView) -> Iterator[int]:
    """The numbers of tasks to choose from: powers of two; one that has none of them runs as it asked to."""
    least, most = task_range(job.shape, job.traits)
    if not (job.traits.elastic and job.shape.exclusive):
        least = most = job.shape.tasks
    tasks = 1 << (least - 1).bit_length()
    if tasks > most:
        yield job.shape.tasks
    while tasks <= most:
        yield tasks
        tasks *= 2


def without_gpus_first(jobs: Sequence[JobView], shares: Mapping[str, Share]) -> list[JobView]:
    """Jobs in the order in which they get a first GPU: accepted jobs by deadline, then by arrival."""
    return sorted(jobs, key=lambda job: (_due(job) if job.id in shares else FAR, job.seq))


def place(view: View, plan: Plan, jobs: Sequence[JobView], sizes: Mapping[str, int]) -> None:
    """Give jobs their sizes, the largest first; jobs that suffer from being split are packed, by migration.

    Blocks of powers of two always fit packed, the largest first, on nodes with a power of two of GPUs.
    """
    for job in jobs:
        tasks = sizes.get(job.id, 0)
        if job.spots is not None and tasks < held_tasks(job):
            if not tasks:
                plan.stop(job)
            else:
                plan.resize(job, tasks)
    wanted = [job for job in jobs if sizes.get(job.id, 0) > held_tasks(job)]
    wanted.sort(key=lambda job: (-sizes[job.id] * job.shape.each, job.seq))
    for job in wanted:
        if job.spots is not None:
            plan.resize(job, sizes[job.id])
        else:
            _start(plan, job, sizes[job.id])
    if any(is_split(view, job) for job in jobs):
        repack(view, plan, [job for job in jobs if job.id in sizes], sizes)
    for job in jobs:
        if job.spots is None:
            plan.deny(job, "Resources", "the shares of accepted jobs leave too few GPUs")


def repack(view: View, plan: Plan, jobs: Sequence[JobView], sizes: Mapping[str, int]) -> None:
    """Place all jobs that may be stopped anew, the largest first, each where it is if that is packed."""
    before: dict[str, Spots] = {}
    for job in jobs:
        if job.spots is not None and may_be_stopped(job):
            if not is_spread(view, job):
                before[job.id] = job.spots
            plan.stop(job)
    for job in sorted(jobs, key=lambda job: (-sizes[job.id] * job.shape.each, job.seq)):
        if job.spots is None:
            _start(plan, job, sizes[job.id], before.get(job.id))


def is_spread(view: View, job: JobView) -> bool:
    """Whether a job runs on more nodes than it needs."""
    if job.spots is None or len(job.spots) == 1:
        return False
    return len(nodes_of(job.spots)) > fewest_nodes(view.cluster, job.shape.of(held_tasks(job)))


def is_split(view: View, job: JobView) -> bool:
    """Whether a job runs slower than it could, on more nodes than it needs."""
    if job.spots is None or not is_spread(view, job):
        return False
    tasks, nodes = held_tasks(job), len(nodes_of(job.spots))
    return view.speed(job, tasks=tasks, nodes=nodes).speed < view.speed(job, tasks=tasks).speed


def _start(plan: Plan, job: JobView, tasks: int, was: Spots | None = None) -> bool:
    room, shape = plan.room, job.shape.of(tasks)
    if was is not None and all(room.is_open(s[0]) and room.free_on(s[0]) & s[1] == s[1] for s in was):
        return plan.start(job, was)
    spots = room.best(shape) or room.anywhere(shape)
    return spots is not None and plan.start(job, spots)


def _rank(curve: Curve, gpus: int) -> int:
    """The level of a share; the next smaller one if estimates have changed, and this one is none any more."""
    return max(bisect_right(curve.gpus, gpus) - 1, 0)


def _behind(share: Share, request: Request, now: int) -> bool:
    """Whether a share is less than a job needs, by more than what rounding explains."""
    return progress(share, request, now) + PADDING < request.work


def _fits(left: Profile, whole: Segment) -> bool:
    return bool(left.free[: int(left.times.searchsorted(whole.end))].min() >= whole.gpus)


def _due(job: JobView) -> int:
    return FAR if job.deadline is None else job.deadline
