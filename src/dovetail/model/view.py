"""The contracts between a policy and the core: what a policy sees, what it may plan, how it ranks jobs.

A policy is `decide(view) -> plan`. The view reads the core's indexes directly and copies nothing. The plan is
a draft over the same indexes. It has no effect until the core commits it, and is rolled back if it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dovetail.model.cluster import Cluster
from dovetail.model.estimate import Estimate, Estimator
from dovetail.model.grant import FULL, Spots, Terms
from dovetail.model.job import Shape, Traits
from dovetail.model.loss import LossPoint

if TYPE_CHECKING:  # numpy is loaded when a policy first asks for arrays
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]

Key = Any  # ints or tuples of ints, comparable with the other keys of the same order


class JobView(Protocol):
    """What a policy sees of one job. Times are in microseconds."""

    @property
    def id(self) -> str: ...
    @property
    def seq(self) -> int: ...  # its submission number, which breaks every tie
    @property
    def shape(self) -> Shape: ...
    @property
    def gpus(self) -> int: ...  # asked for
    @property
    def arrived_at(self) -> int: ...
    @property
    def estimate(self) -> int: ...  # its declared duration, on what it asks for
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
    def epoch(self) -> int: ...  # number of starts
    @property
    def rate(self) -> float: ...  # measured, while it runs
    @property
    def noise_scale(self) -> float | None: ...  # of its gradient, as it last reported; None: not yet
    @property
    def loss(self) -> LossPoint | None: ...  # as it last reported, with its epochs; None: not yet
    @property
    def first_start(self) -> int | None: ...
    @property
    def started_at(self) -> int: ...  # its last start
    @property
    def live_at(self) -> int: ...  # work is done from here on: a restart takes its time
    @property
    def suspended_on(self) -> Spots | None: ...  # where it could resume in place (Checkpoint.suspend)
    @property
    def waiting_since(self) -> int: ...
    @property
    def stops(self) -> int: ...
    @property
    def stage(self) -> int: ...  # kept for the order (Order.stage)
    @property
    def stage_since(self) -> int: ...  # when its stage last changed
    @property
    def forgiven(self) -> int: ...  # the service it had when it was last promoted
    @property
    def promise(self) -> int | None: ...  # if accepted: when it will have finished
    def service_at(self, now: int) -> int: ...  # GPU-microseconds received
    def executed_at(self, now: int) -> int: ...  # time spent running
    def done_at(self, now: int) -> int: ...  # work done, in microseconds of its reference
    def remaining_at(self, now: int) -> int: ...  # work left if the estimate is right
    def ends_at(self, now: int) -> int: ...  # when its estimate says it ends, even if that is past


@dataclass(frozen=True, slots=True)
class Order:
    """How jobs are ranked, smaller keys first. A key may change only at the times that `until` returns."""

    key: Callable[[JobView, int], Key]  # of a waiting job: constant while it waits
    yields: Callable[[JobView, int], Key | None] | None = (
        None  # of a running job: smaller keys are preempted first; None: never
    )
    limit: Callable[[JobView, int], Key] | None = None  # a waiting job may preempt jobs that yield below this
    until: Callable[[JobView, int], int | None] | None = None  # when its place changes by itself
    stage: Callable[[JobView, int], int] | None = None  # the stage that it has then
    fifo: bool = False  # a job that arrives later goes to the end
    drifts: bool = False  # `yields` changes all the time: it is asked for when needed, not indexed


Entry = tuple[Key, int, JobView]  # in the queue: its key, its seq, and the job


class Vacancy(Protocol):
    """The nodes on which a shape would fit if some running jobs left, the first to leave first."""

    @property
    def key(self) -> Key | None: ...  # of the last job to leave; None: none needs to
    @property
    def nodes(self) -> Sequence[tuple[int, int]]: ...  # (node, devices wanted there)
    @property
    def jobs(self) -> Sequence[JobView]: ...  # the jobs that would have to leave


class Departures(Protocol):
    """Running jobs in the order in which they leave (or yield), by node. Kept for policies with `yields`."""

    def vacancy(
        self, shape: Shape, below: Key | None = None
    ) -> Vacancy | None: ...  # of jobs that yield below
    def free_by(
        self, node: int, key: Key | None
    ) -> int: ...  # devices free once all jobs up to this key have left


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
    def may_fit(self, shape: Shape) -> bool: ...  # False: `best` finds nothing
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
    def groups(
        self, shape: Shape
    ) -> Mapping[Hashable, Sequence[Entry]]: ...  # heaps; the first entry is of a waiting job
    def waiting(self, entry: Entry) -> bool: ...  # other entries may be of jobs that no longer wait
    def shapes(self) -> Sequence[Shape]: ...


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices reserved for a job in a future interval."""

    start: int
    end: int | None
    nodes: tuple[tuple[int, int], ...] = ()  # (node, devices)


class JobTable(Protocol):
    """All active jobs as arrays, in order of submission: row i of every array is `jobs[i]`.

    The table shows the state when it was made: later edits of a draft do not change it. Times and work are in
    microseconds, as in `JobView`.
    """

    @property
    def jobs(self) -> Sequence[JobView]: ...
    @property
    def tenants(self) -> Sequence[str]: ...  # names, for `tenant`
    @property
    def seq(self) -> Ints: ...
    @property
    def gpus(self) -> Ints: ...  # asked for
    @property
    def tasks(self) -> Ints: ...  # asked for
    @property
    def least(self) -> Ints: ...  # the fewest tasks with which the job runs; equal to `most` if it is rigid
    @property
    def most(self) -> Ints: ...
    @property
    def each(self) -> Ints: ...  # GPUs per task; 0 for a job without GPUs
    @property
    def running_tasks(self) -> Ints: ...  # 0 while it waits
    @property
    def held(self) -> Ints: ...  # milli-GPUs
    @property
    def running(self) -> Mask: ...
    @property
    def arrived_at(self) -> Ints: ...
    @property
    def priority(self) -> Ints: ...
    @property
    def tenant(self) -> Ints: ...  # index into `tenants`
    @property
    def service(self) -> Ints: ...  # GPU-microseconds received
    @property
    def remaining(self) -> Ints: ...  # work left if the estimate of its duration is right
    @property
    def speeds(self) -> Floats: ...  # speeds[i, n]: `View.speed` of job i with n tasks; 0 where it cannot run

    def __len__(self) -> int: ...
    def estimated_by(self, estimator: Estimator) -> JobTable: ...  # the same moment, with its speeds


class Plan(Protocol):
    """What a policy wants changed: a draft that shows its edits as done. A new draft voids the last one."""

    review_at: int | None  # ask the policy again at this time, if nothing happens first
    memory: object  # passed to the next decision as `View.memory`

    @property
    def room(self) -> Room: ...
    @property
    def used(self) -> Mapping[str, int]: ...  # milli-GPUs by tenant, ancestors included
    def start(self, job: JobView, spots: Spots | None = None, terms: Terms = FULL) -> bool: ...
    def stop(
        self, job: JobView, by: JobView | None = None
    ) -> None: ...  # `by`: the waiting job that it makes way for, if it is one; its user is told
    def shift(self, job: JobView, spots: Spots, terms: Terms = FULL) -> bool: ...  # move, resize, share
    def resize(self, job: JobView, tasks: int) -> bool: ...  # in place, near what it holds; False: no room
    def deny(
        self, job: JobView, reason: str, detail: str = "", behind: JobView | None = None
    ) -> bool: ...  # why it waits, and which job it must not delay; returns False
    def rest(
        self, on: JobView | None = None
    ) -> None: ...  # ask again only when a waiting job (or this one) may fit
    def start_arrivals(
        self, *, past_waiting: bool
    ) -> None: ...  # start an arrival that fits without asking; `past_waiting`: also if other jobs wait
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
    """The cluster at one instant: all that a policy sees. A policy cannot change it."""

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
    def departures(self) -> Departures: ...
    @property
    def used(self) -> Mapping[str, int]: ...
    @property
    def arrived(self) -> Sequence[JobView]: ...  # new since the last decision; some may run already
    @property
    def changed(self) -> bool: ...  # something other than arrivals happened since
    @property
    def startable(self) -> Sequence[Shape] | None: ...  # shapes of waiting jobs that may fit; None: not known
    @property
    def calendar(self) -> Mapping[str, Reservation]: ...
    @property
    def holds(self) -> Mapping[str, tuple[Spots, int]]: ...
    @property
    def prices(self) -> Mapping[int, float]: ...
    @property
    def memory(self) -> object: ...  # what the last plan asked to keep
    @property
    def estimator(self) -> Estimator: ...  # that `speed` asks
    def draft(self) -> Plan: ...
    def speed(
        self,
        job: JobView,
        *,
        tasks: int | None = None,  # None: as many as it asked for
        type: str | None = None,  # None: what it runs on; while it waits the fastest that it accepts
        nodes: int | None = None,  # None: as few as the gang needs
        batch: int | None = None,  # None: that of its reference run; an adaptive job sets its own
    ) -> Estimate: ...  # an estimate: declared, measured or learned (model.estimate)
    def table(self) -> JobTable: ...  # all active jobs as arrays, made once per decision


class Policy(Protocol):
    """A scheduling policy: how jobs are ranked and grouped, and what is decided at one instant."""

    @property
    def order(self) -> Order: ...
    @property
    def group(self) -> Callable[[JobView], Hashable] | None: ...  # splits the jobs of a shape
    @property
    def quantum(self) -> int | None: ...  # round length: decide at multiples of it only
    def decide(self, view: View) -> Plan: ...
