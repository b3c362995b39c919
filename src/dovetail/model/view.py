"""The contracts between a policy and the core: what it sees, what it may want, how it ranks.

A policy is `decide(view) -> plan`. The view is a window on the core's indexes, never a copy; the plan is a
draft over the same indexes, void until the core commits it and gone without a trace if it is abandoned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dovetail.model.cluster import Cluster
from dovetail.model.grant import FULL, Spots, Terms
from dovetail.model.job import Shape, Traits

Key = Any  # ints, or tuples of them: whatever sorts against the keys of the same order


class JobView(Protocol):
    """What a policy may know of one job. Times in microseconds."""

    @property
    def id(self) -> str: ...
    @property
    def seq(self) -> int: ...  # its place among all submissions: the last word in every tie
    @property
    def shape(self) -> Shape: ...
    @property
    def gpus(self) -> int: ...  # asked for
    @property
    def arrived_at(self) -> int: ...
    @property
    def estimate(self) -> int: ...  # the duration it was said to have, as asked for
    @property
    def tenant(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def deadline(self) -> int | None: ...
    @property
    def traits(self) -> Traits: ...
    @property
    def spots(self) -> Spots | None: ...  # None while it waits
    @property
    def held(self) -> int: ...  # milli-GPUs it holds now
    @property
    def terms(self) -> Terms: ...
    @property
    def epoch(self) -> int: ...  # how often it was started
    @property
    def rate(self) -> float: ...  # measured, while it runs
    @property
    def first_start(self) -> int | None: ...
    @property
    def started_at(self) -> int: ...  # this time
    @property
    def waiting_since(self) -> int: ...
    @property
    def stops(self) -> int: ...
    @property
    def stage(self) -> int: ...  # kept for the order (Order.stage), with
    @property
    def turned_at(self) -> int: ...  # when it last changed by itself, and
    @property
    def forgiven(self) -> int: ...  # the service it had when it was last promoted
    @property
    def promise(self) -> int | None: ...  # accepted, to be done by then
    def service_at(self, now: int) -> int: ...  # GPU-microseconds received
    def executed_at(self, now: int) -> int: ...  # time spent running
    def done_at(self, now: int) -> int: ...  # work done, in microseconds of its reference
    def remaining_at(self, now: int) -> int: ...  # work left if the estimate is right
    def ends_at(self, now: int) -> int: ...  # when its estimate says it ends, even if that is past


@dataclass(frozen=True, slots=True)
class Order:
    """Who goes first. Smaller keys first; none may change but at moments that `until` foretells."""

    key: Callable[[JobView, int], Key]  # of a waiting job: constant while it waits
    yields: Callable[[JobView, int], Key | None] | None = None  # running: who leaves first; None: never
    limit: Callable[[JobView, int], Key] | None = None  # a waiting job displaces who yields below this
    until: Callable[[JobView, int], int | None] | None = None  # when its place changes by itself
    stage: Callable[[JobView, int], int] | None = None  # and to which stage then
    turns_waiting: bool = False  # `until` speaks of waiting jobs too
    fifo: bool = False  # whoever arrives later goes behind
    drifts: bool = False  # `yields` changes all the time: it is asked for when needed, and not indexed


Entry = tuple[Key, int, JobView]  # in the queue: its key, its seq, and the job


class Relief(Protocol):
    """The nodes on which a shape would fit if some running jobs left, the first to leave first."""

    @property
    def key(self) -> Key | None: ...  # of the last to leave; None: nobody need
    @property
    def nodes(self) -> Sequence[tuple[int, int]]: ...  # (node, devices wanted there)
    @property
    def jobs(self) -> Sequence[JobView]: ...  # who would have to leave


class Exits(Protocol):
    """Running jobs by the order in which they leave (or yield), per node. Kept for policies with `yields`."""

    def relief(self, shape: Shape, below: Key | None = None) -> Relief | None: ...  # only who yields below
    def free_by(
        self, node: int, key: Key | None
    ) -> int: ...  # devices free once all up to this key have left


class Room(Protocol):
    """Free capacity. Nodes are numbers; devices are bits."""

    @property
    def cluster(self) -> Cluster: ...
    @property
    def free_gpus(self) -> int: ...  # wholly free devices on open nodes
    def free_on(self, node: int) -> int: ...  # the same, as a mask
    def free_cpus(self, node: int) -> int: ...
    def free_memory(self, node: int) -> int: ...
    def is_open(self, node: int) -> bool: ...
    def best(self, shape: Shape, avoid: int = 0) -> Spots | None: ...  # packed on the fewest nodes, best fit
    def may_fit(self, shape: Shape) -> bool: ...  # False: `best` surely finds nothing
    def anywhere(self, shape: Shape, avoid: int = 0) -> Spots | None: ...  # packed, split if it must be
    def nodes_with(self, free: int, types: tuple[str, ...] = ()) -> Iterator[int]: ...  # fullest first
    def on(self, shape: Shape, nodes: Iterable[int]) -> Spots | None: ...  # filling these nodes in this order
    def ever(self, shape: Shape) -> bool: ...  # would fit the empty cluster


class Queue(Protocol):
    """Waiting jobs, by shape and the policy's group."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[JobView]: ...  # in no particular order
    def head(self, skip: Collection[Shape] = ()) -> JobView | None: ...
    def walk(
        self,
        rank: Callable[[JobView], Key] | None = None,
        shapes: Collection[Shape] | None = None,
    ) -> Iterator[JobView]: ...
    def groups(self, shape: Shape) -> Mapping[Hashable, Sequence[Entry]]: ...  # heaps; the first waits
    def waiting(self, entry: Entry) -> bool: ...  # the others may be of jobs that do so no longer
    def shapes(self) -> Sequence[Shape]: ...


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices promised to a job for a stretch of time to come."""

    start: int
    end: int | None
    nodes: tuple[tuple[int, int], ...] = ()  # (node, devices)


class Plan(Protocol):
    """What a policy wants changed: a draft, as if it were done."""

    review_at: int | None  # ask again then, if nothing happens first
    memory: object  # what the next decision gets back

    @property
    def room(self) -> Room: ...
    @property
    def used(self) -> Mapping[str, int]: ...  # milli-GPUs by tenant, ancestors included
    def start(self, job: JobView, spots: Spots | None = None, terms: Terms = FULL) -> bool: ...
    def stop(self, job: JobView) -> None: ...
    def shift(self, job: JobView, spots: Spots, terms: Terms = FULL) -> bool: ...  # move, resize, share
    def deny(self, job: JobView, reason: str, detail: str = "") -> bool: ...  # why it waits; False
    def rest(
        self, on: JobView | None = None
    ) -> None: ...  # do not ask before a waiting job (this one) may fit
    def welcome(
        self, *, past: bool
    ) -> None: ...  # nor for a newcomer that fits: it may start, packed; past others who wait, or not
    def refuse(self, job: JobView, why: str) -> None: ...
    def accept(self, job: JobView, by: int) -> None: ...
    def demote(self, job: JobView, priority: int, why: str) -> None: ...
    def reserve(self, job: JobView, reservation: Reservation) -> None: ...
    def forget(self, job_id: str) -> None: ...  # its reservation
    def hold(self, owner: str, spots: Spots, until: int) -> None: ...
    def release(self, owner: str) -> None: ...
    def power(self, node: int, on: bool) -> None: ...
    def rent(self, node: int, keep: bool, owner: str = "") -> None: ...


class View(Protocol):
    """The cluster at one instant: all a policy sees, none of it changeable."""

    @property
    def now(self) -> int: ...
    @property
    def number(self) -> int: ...  # of this decision
    @property
    def seed(self) -> int: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def queue(self) -> Queue: ...
    @property
    def running(self) -> Mapping[str, JobView]: ...
    @property
    def room(self) -> Room: ...
    @property
    def exits(self) -> Exits: ...
    @property
    def used(self) -> Mapping[str, int]: ...
    @property
    def arrived(self) -> Sequence[JobView]: ...  # new since the last decision; who was welcomed runs already
    @property
    def moved(self) -> bool: ...  # something else than arrivals happened since
    @property
    def hopeful(self) -> Sequence[Shape] | None: ...  # waiting shapes that may fit now; None: not worked out
    @property
    def calendar(self) -> Mapping[str, Reservation]: ...
    @property
    def holds(self) -> Mapping[str, tuple[Spots, int]]: ...
    @property
    def prices(self) -> Mapping[int, float]: ...
    @property
    def memory(self) -> object: ...  # what the last plan asked to keep
    def draft(self) -> Plan: ...


class Policy(Protocol):
    """A scheduler: how jobs are ranked and filed, and what is done at one instant."""

    @property
    def order(self) -> Order: ...
    @property
    def group(self) -> Callable[[JobView], Hashable] | None: ...  # files each shape's jobs apart
    @property
    def quantum(self) -> int | None: ...  # decide at multiples of it only
    def decide(self, view: View) -> Plan: ...
