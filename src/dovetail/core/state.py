"""The state of a cluster and its jobs, with the indexes that make a decision cheap.

Only two things change it: events (`core.events`) and drafts (`core.draft`, `core.commit`). The indexes repeat
what the records of the jobs say; `dovetail.testing.invariants` computes them again and compares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable

from dovetail.core.active import ENDED, GROWING, RUNNING, ActiveJob
from dovetail.core.attention import Attention
from dovetail.core.departures import Departures
from dovetail.core.queue import Queue
from dovetail.core.room import Room
from dovetail.core.stopping import Stopping
from dovetail.core.timers import Timers
from dovetail.model.action import Action, Resize, Start
from dovetail.model.cluster import Cluster
from dovetail.model.errors import NeverFits, PlanError
from dovetail.model.grant import Spots, load_of
from dovetail.model.job import Job, Shape
from dovetail.model.units import MINUTE
from dovetail.model.view import JobView, Key, Order, Reservation

_new_tuple = tuple.__new__  # a named tuple's own constructor takes twice as long, and each job has a start


class State:
    """The jobs, the devices they hold, and what is known of both."""

    __slots__ = (
        "_ancestors",
        "_limits",
        "_tree",
        "_until",
        "_yields",
        "alarm",
        "arrived",
        "attention",
        "calendar",
        "changed",
        "closed",
        "cluster",
        "departures",
        "holds",
        "jobs",
        "limited",
        "needs",
        "now",
        "order",
        "prices",
        "queue",
        "room",
        "running",
        "seq",
        "spares",
        "startable",
        "starts",
        "stopping",
        "timers",
        "used",
    )

    def __init__(
        self,
        cluster: Cluster,
        order: Order,
        group: Callable[[JobView], Hashable] | None,
        quantum: int | None,
    ) -> None:
        self.cluster = cluster
        self.order = order
        self.now = 0
        self.room = Room(cluster)
        self._limits = {t.name: t.limit * 1000 for t in cluster.tenants.values() if t.limit is not None}
        self.limited = bool(self._limits)
        # A tenant at its limit must not block the others: with limits, each tenant has its own heaps.
        self.queue = Queue(order.key, group or (_tenant if self.limited else None))
        self.jobs: dict[str, ActiveJob] = {}
        # RUNNING, GRANTED and GROWING jobs, in the order of their grants
        self.running: dict[str, ActiveJob] = {}
        self.departures = Departures(self.room, self._departure_key)
        self.used: dict[str, int] = defaultdict(int)  # milli-GPUs by tenant, ancestors included
        self.calendar: dict[str, Reservation] = {}
        self.holds: dict[str, tuple[Spots, int]] = {}  # by owner: spots kept free, and until when
        self.prices: dict[int, float] = {i: node.price for i, node in enumerate(cluster.nodes)}
        self.closed: dict[int, str] = {}  # nodes that accept no jobs, and why
        self.stopping = Stopping(self.room)
        self.timers = Timers(quantum or MINUTE)
        self.seq = 0  # of the next submission
        self.starts = 0  # how often a job began to hold devices
        self._until = order.until
        self._yields = None if order.drifts else order.yields
        self.spares = order.limit is not None  # the policy preempts: spare jobs that are not preemptible
        self.needs: dict[Shape, int] = {}  # by shape, once seen: the least Room.level at which it may fit
        self._ancestors: dict[str, tuple[str, ...]] = {}
        self._tree = bool(cluster.tenants)
        # What happened since the last decision; policies see it.
        self.arrived: list[ActiveJob] = []  # submitted, or back in the queue
        self.changed = False  # something other than arrivals happened
        self.startable: list[Shape] | None = None  # shapes of waiting jobs that may fit; None: not known
        self.alarm: int | None = None  # call `handle` then, if nothing happens before
        self.attention = Attention(self, quantum)

    # -- jobs come and go

    def admit(self, spec: Job, epoch: int) -> ActiveJob:
        """Make the record of a submitted job; a job that the empty cluster could not hold is refused."""
        need = self.needs.get(spec.shape)
        if need is None:
            need = self.need(spec)
        seq = self.seq
        self.jobs[spec.id] = job = ActiveJob(spec, seq, need, epoch)
        self.seq = seq + 1
        return job

    def need(self, spec: Job) -> int:
        """The least `Room.level` at which a job's shape may fit, worked out once for each shape."""
        shape = spec.shape
        if not self.room.ever(shape):
            kind = f" of {'|'.join(shape.types)}" if shape.types else ""
            raise NeverFits(
                f"job {spec.id} asks for {shape.gpus} GPUs{kind}, "
                f"which the empty cluster of {self.cluster.gpus} GPUs cannot hold; give it a larger cluster"
            )
        need = self.needs[shape] = self.room.need(shape)
        return need

    def enqueue(self, job: ActiveJob) -> None:
        """A job waits, and the policy has not seen it there yet."""
        self.queue.push(job, self.now)
        self.arrived.append(job)

    def refile(self, job: ActiveJob) -> None:
        """Something that a job's key depends on has changed: work out its place in the order again."""
        if job.filed is not None:
            self.queue.remove(job)
            self.enqueue(job)
        else:
            self.touch(job)

    def forget(self, job: ActiveJob) -> None:
        """A job has ended."""
        job.enter(ENDED)
        job.timer = None
        job.awaiting = None
        del self.jobs[job.id]
        if self.arrived:  # it may have arrived since the last decision: the policy need not hear of it
            self.arrived = [other for other in self.arrived if other is not job]
        if self.calendar:
            self.calendar.pop(job.id, None)

    # -- devices are taken and released

    def enter(self, job: ActiveJob) -> None:
        """Count what a job holds from now on."""
        self.running[job.id] = job
        self.starts = job.start_number = self.starts + 1
        held = job.held
        tenant = job.tenant
        if self._tree:
            for name in self.ancestors(tenant):
                self.used[name] += held
        else:
            self.used[tenant] += held
        if self._yields is not None:
            self.departures.moved.append(job)

    def enter_again(self, job: ActiveJob) -> None:
        """Count what a job holds, without a new place among the running jobs."""
        number = job.start_number
        self.enter(job)
        job.start_number = number

    def leave(self, job: ActiveJob) -> None:
        """Stop counting what a job holds."""
        del self.running[job.id]
        job.start_number = 0
        held = job.held
        tenant = job.tenant
        if self._tree:
            for name in self.ancestors(tenant):
                self.used[name] -= held
        else:
            self.used[tenant] -= held
        if self._yields is not None and job.exit is not None:  # else it is in `moved`, or was never indexed
            self.departures.moved.append(job)

    def vacate(self, job: ActiveJob) -> Spots:
        """Take all devices from a job, which waits again. Returns what it held."""
        spots = job.spots
        assert spots is not None
        self.leave(job)
        self.room.give(spots)
        job.end(self.now)
        return spots

    def touch(self, job: ActiveJob) -> None:
        """A running job's place among the departures may have changed."""
        if self._yields is not None:
            self.departures.moved.append(job)

    def begin_on(self, job: ActiveJob, spots: Spots, actions: list[Action]) -> None:
        """Start a job on spots that were just taken for it, and that no stopping job holds."""
        shape = job.shape
        job.begin(self.now, spots, job.terms, shape.load if shape.plain else load_of(spots))
        self.enter(job)
        self.issue_start(job, actions)
        if self._until is not None:
            self.arm(job)

    def issue_start(self, job: ActiveJob, actions: list[Action]) -> None:
        """Issue the start of a job that got its devices at this instant."""
        job.epoch = epoch = job.epoch + 1
        if job.suspended_on is not None and job.spots is not None:  # a draft may have extended its spots
            job.live_at = self.now + job.traits.checkpoint.restart(job.suspended_on, job.spots)
        if job.first_start is None:
            job.first_start = self.now
        if self.calendar:
            self.calendar.pop(job.id, None)
        actions.append(_new_tuple(Start, (job.id, epoch, job.spots, job.terms)))

    def release(self, job_id: str, actions: list[Action]) -> None:
        """A job has released the devices it was told to give up: the jobs that were granted them get them."""
        for job in self.stopping.release(job_id):
            if job.phase is GROWING:
                self.grow(job, actions)
            else:
                self.start_granted(job, actions)
            if self._until is not None:
                self.arm(job)

    def start_granted(self, job: ActiveJob, actions: list[Action]) -> None:
        """All devices of a granted job are free: start it."""
        job.awaiting = None
        if job.started_at != self.now:  # it was granted them earlier
            self.begin_anew(job)
        else:
            job.enter(RUNNING)
        self.issue_start(job, actions)

    def grow(self, job: ActiveJob, actions: list[Action]) -> None:
        """All devices of a growing job are free: resize it."""
        job.settle(self.now)
        job.enter(RUNNING)
        before = job.now_on
        job.awaiting = job.runs_on = None
        self.issue_resize(job, before, actions)
        self.touch(job)

    def issue_resize(self, job: ActiveJob, before: Spots, actions: list[Action]) -> None:
        """Issue the resize of a running job to the spots that it holds; it pauses for that."""
        assert job.spots is not None
        job.live_at = max(job.live_at, self.now) + job.spec.pause(before, job.spots)
        actions.append(Resize(job.id, job.epoch, job.spots, job.terms))

    def stop_growing(self, job: ActiveJob) -> None:
        """A growing job goes on with what it runs on, and gives back the rest of its grant."""
        assert job.spots is not None
        runs_on = job.now_on
        self.leave(job)
        self.room.give(job.spots)
        self.room.take(runs_on, back=True)
        job.settle(self.now)
        job.spots, job.held = runs_on, load_of(runs_on)
        job.awaiting = job.runs_on = None
        job.enter(RUNNING)
        self.enter(job)

    def begin_anew(self, job: ActiveJob) -> None:
        """Count a job as started now on the spots that it holds."""
        spots = job.spots
        assert spots is not None
        job.begin(self.now, spots, job.terms, job.held)
        self.touch(job)

    # -- limits

    def within_limits(self, job: ActiveJob, more: int) -> bool:
        """Whether a job's tenant and all its ancestors may hold that many milli-GPUs more."""
        used, limits = self.used, self._limits
        return all(used.get(t, 0) + more <= limits.get(t, 1 << 60) for t in self.ancestors(job.tenant))

    def ancestors(self, tenant: str) -> tuple[str, ...]:
        """A tenant and all above it."""
        found = self._ancestors.get(tenant)
        if found is None:
            found = self._ancestors[tenant] = self.cluster.line(tenant)
        return found

    # -- times that are known beforehand

    def arm(self, job: ActiveJob) -> None:
        """Set the time at which a job's place changes by itself."""
        assert self._until is not None
        now = self.now
        at = self._until(job, now)
        if at is None:
            job.timer = None
            return
        if at <= now:
            raise timer_past(job, at, now)
        self.timers.set(job, at)

    # -- the departure index

    def _departure_key(self, job: ActiveJob) -> Key | None:
        """The key of a running job in the departure index; None for a job that is never preempted."""
        if self.spares and not job.traits.preemptible:
            return None
        return self._yields(job, self.now)  # type: ignore[misc]  # the index has jobs only if there are keys


def timer_past(job: ActiveJob, at: int, now: int) -> PlanError:
    """An order may change only in the future: an alarm at `now` would ring for ever."""
    return PlanError(f"the order of job {job.id} would change at {at}, which is not after now, {now}")


def _tenant(job: JobView) -> str:
    return job.tenant
