"""Promises: the first job that must wait is promised a start, and no job behind it delays that start.

This is EASY backfill (Lifka 1995) for every shape (parts of a GPU, CPU and memory count as well) and for
quotas, with estimates that may be wrong. A promise names the time by which enough running jobs leave by their
estimates, and the nodes on which the job fits then. Those running jobs are its *leaving* jobs. A job behind
it in the queue may start

- if it ends by the promised time, by its estimate: it becomes one of the leaving jobs; or
- if the promised job still fits beside it and beside all running jobs that are not leaving.

Estimates are often too short. So that they cannot starve the promised job, the promised time and the leaving
jobs are fixed when the promise is made. An earlier time replaces it. A later one replaces it only if the
promise cannot be kept, because a node has gone or a job ahead in the queue has taken the place. From the
promised time on no job becomes a leaving one, so the promised job waits for a set of jobs that only shrinks.

**The bound.** Let E be the longest estimate of a running job and L the longest time for which a job runs.
A promise is made for at most E ahead, and its leaving jobs started before the promised time. So the first
job in the queue starts within E + L, however wrong the estimates are and whatever arrives behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dovetail.mechanisms.place.pods import suits
from dovetail.mechanisms.queue.reserved_backfill import needed
from dovetail.model.cluster import Cluster, GpuType, Node
from dovetail.model.grant import Spots, milli_of, slices_of
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Plan, View

Places = tuple[tuple[int, int], ...]  # (node, tasks)


class Promise(NamedTuple):
    """A start that the jobs behind must not delay."""

    job: str
    start: int
    places: Places  # () if the job waits for quota alone
    leaving: tuple[tuple[str, int], ...]  # running jobs that end by then, each with how often it was stopped


class NodeUse:
    """What is held of a node. A scratch value."""

    __slots__ = ("_devices", "_machine", "cpus", "memory")

    def __init__(self, machine: Node) -> None:
        self._machine = machine
        self._devices = [0] * machine.gpus  # milli-GPUs held of each
        self.cpus = 0
        self.memory = 0

    def add(self, spots: Iterable[tuple[int, int, int, int, int]], sign: int = 1) -> None:
        """Count spots of this node as held, or (sign -1) as free again."""
        for _, devices, share, cpus, memory in spots:
            milli = sign * milli_of(share)
            for device in range(devices.bit_length()):
                if devices >> device & 1:
                    self._devices[device] += milli
            self.cpus += sign * cpus
            self.memory += sign * memory

    def tasks(self, shape: Shape) -> int:
        """How many tasks of a shape fit beside what is held."""
        most = shape.tasks
        if shape.each:
            if shape.slice:  # whole devices are counted: which slots of the others are free is not known here
                free = sum(1 for held in self._devices if not held) * slices_of(shape.slice)
            else:
                free = sum(1 for held in self._devices if held + shape.milli <= WHOLE)
            most = min(most, free // shape.each)
        if shape.cpus:
            most = min(most, (self._machine.cpus - self.cpus) // shape.cpus)
        if shape.memory:
            most = min(most, (self._machine.memory - self.memory) // shape.memory)
        return max(most, 0)


class Guard:
    """Keeps one promise in a decision: says which jobs behind the promised one may start."""

    __slots__ = ("_leaving", "_most", "_now", "_plan", "_residents", "_shares", "_tasks", "job", "promise")

    def __init__(
        self, view: View, plan: Plan, job: JobView, promise: Promise, most: Mapping[str, int]
    ) -> None:
        """`most` is how many milli-GPUs the job's tenant and its ancestors may hold, if that is bounded."""
        self.job, self.promise = job, promise
        self._now, self._plan, self._most = view.now, plan, most
        self._tasks = dict(promise.places)
        self._shares: Callable[[str], Sequence[str]] = view.cluster.line
        self._leaving = {
            name: view.running[name]
            for name, stops in promise.leaving
            if name in view.running and view.running[name].stops == stops
        }
        self._residents = list(_on(view.running.values(), self._tasks))

    def kept(self) -> Promise:
        """The promise, with the jobs that still count as leaving."""
        leaving = tuple(
            (name, job.stops) for name, job in sorted(self._leaving.items()) if job.spots is not None
        )
        return self.promise._replace(leaving=leaving)

    def full_nodes(self, other: JobView, spots: Spots) -> int:
        """The nodes, as a bit set, on which `other` must not start on these spots; 0: it may start."""
        if self._in_time(other):
            return 0
        full = 0
        machines = self._plan.room.cluster.nodes
        for node in {spot[0] for spot in spots} & self._tasks.keys():
            use = self._use(node, machines[node])
            use.add(spot for spot in spots if spot[0] == node)
            if use.tasks(self.job.shape) < self._tasks[node]:
                full |= 1 << node
        return full

    def within_quota(self, other: JobView) -> bool:
        """Whether the promised job still has its quota if `other` starts.

        A job that waits for room keeps its quota, or it would have to wait for both in turn. A job that waits
        for quota may see it used by jobs that end in time.
        """
        if not self._most:
            return True
        waits_for_room = bool(self._tasks)
        if not waits_for_room and self._in_time(other):
            return True
        load = self.job.shape.load + other.shape.load
        return all(
            (self._plan.used.get(name, 0) if waits_for_room else self._staying(name)) + load <= most
            for name, most in self._most.items()
            if name in self._shares(other.tenant)
        )

    def feasible(self) -> bool:
        """Whether the promised job fits beside all jobs that do not leave, in its places and its quota."""
        machines, room = self._plan.room.cluster.nodes, self._plan.room
        return all(
            room.is_open(node) and self._use(node, machines[node]).tasks(self.job.shape) >= tasks
            for node, tasks in self.promise.places
        ) and all(self._staying(name) + self.job.shape.load <= self._most[name] for name in self._most)

    def started(self, other: JobView) -> None:
        """A job behind the promised one has started."""
        if self._in_time(other):
            self._leaving[other.id] = other
        if any(spot[0] in self._tasks for spot in other.spots or ()):
            self._residents.append(other)

    def _in_time(self, other: JobView) -> bool:
        return self._now + needed(other, self._now) <= self.promise.start

    def _use(self, node: int, machine: Node) -> NodeUse:
        use = NodeUse(machine)
        for job in self._residents:
            if job.id not in self._leaving:
                use.add(spot for spot in job.spots or () if spot[0] == node)
        return use

    def _staying(self, tenant: str) -> int:
        """Milli-GPUs of a tenant that do not leave."""
        leaving = sum(
            job.held
            for job in self._leaving.values()
            if job.spots is not None and tenant in self._shares(job.tenant)
        )
        return self._plan.used.get(tenant, 0) - leaving


def promise_of_room(view: View, plan: Plan, job: JobView) -> Promise | None:
    """When running jobs will have left room for a job; None if the nodes that are open cannot hold it."""
    shape, room, cluster = job.shape, plan.room, plan.room.cluster
    uses = {
        node: NodeUse(machine)
        for node, machine in enumerate(cluster.nodes)
        if room.is_open(node) and suits(cluster, shape, node)
    }
    for spots in (*(other.spots or () for other in view.running.values()), *_held(view)):
        for spot in spots:
            if spot[0] in uses:
                uses[spot[0]].add((spot,))
    tasks = {node: use.tasks(shape) for node, use in uses.items()}
    by_type: dict[GpuType, int] = {}
    for node, count in tasks.items():
        kind = cluster.nodes[node].type
        by_type[kind] = by_type.get(kind, 0) + count
    start, leaving = view.now, list[JobView]()
    ends = _by_end(view)
    while (found := _first_type(cluster, shape, by_type)) is None:
        other = next(ends, None)
        if other is None:
            return None
        start = max(start, other[0])
        leaving.append(other[1])
        for spot in other[1].spots or ():
            if spot[0] in uses:
                node, kind = spot[0], cluster.nodes[spot[0]].type
                uses[node].add((spot,), -1)
                count = uses[node].tasks(shape)
                by_type[kind] += count - tasks[node]
                tasks[node] = count
    places = _places(cluster, shape, tasks, found)
    chosen = dict(places)
    return Promise(job.id, start, places, tuple((o.id, o.stops) for o in _on(leaving, chosen)))


def promise_of_quota(
    view: View, plan: Plan, job: JobView, over: Callable[[Mapping[str, int]], bool]
) -> Promise | None:
    """When running jobs will have left quota for a job; None if they never do.

    `over` says whether the job is beyond a quota or a limit if tenants hold this much.
    """
    used, start = dict(plan.used), view.now
    leaving = []
    mine = set(view.cluster.line(job.tenant))
    ends = _by_end(view)
    while over(used):
        other = next(ends, None)
        if other is None:
            return None
        line = view.cluster.line(other[1].tenant)
        if mine.isdisjoint(line):
            continue
        start = max(start, other[0])
        leaving.append((other[1].id, other[1].stops))
        for name in line:
            used[name] = used.get(name, 0) - other[1].held
    return Promise(job.id, start, (), tuple(leaving))


def _by_end(view: View) -> Iterator[tuple[int, JobView]]:
    """Running jobs, the first to end first. No job counts for longer than its whole estimate from now."""
    now = view.now
    ends = sorted(
        (max(now, min(other.ends_at(now), now + other.estimate)), other.seq, other)
        for other in view.running.values()
    )
    return ((end, other) for end, _, other in ends)


def _held(view: View) -> Iterator[Spots]:
    return (spots for spots, _ in view.holds.values())


def _on(jobs: Iterable[JobView], nodes: Mapping[int, int]) -> Iterator[JobView]:
    return (job for job in jobs if any(spot[0] in nodes for spot in job.spots or ()))


def _first_type(cluster: Cluster, shape: Shape, tasks: Mapping[GpuType, int]) -> GpuType | None:
    """The first GPU type, in the order of the request, on which all tasks fit: a gang is of one type."""
    kinds: Iterable[GpuType] = cluster.types
    if shape.types and shape.each:
        kinds = (kind for name in shape.types for kind in cluster.types if kind.name == name)
    return next((kind for kind in kinds if tasks.get(kind, 0) >= shape.tasks), None)


def _places(cluster: Cluster, shape: Shape, tasks: Mapping[int, int], kind: GpuType) -> Places:
    """The fewest nodes of a type that hold the tasks."""
    left, found = shape.tasks, []
    for node in sorted(tasks, key=lambda node: (-tasks[node], node)):
        if left and tasks[node] and cluster.nodes[node].type == kind:
            found.append((node, min(left, tasks[node])))
            left -= found[-1][1]
    return tuple(found)
