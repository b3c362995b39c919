"""The rules that hold after every step, whatever the policy.

There are two independent checks. `broken_rules` computes from the jobs alone what the core's indexes must
hold. `Audit` reads only events and actions, as an engine does, and keeps its own account: what is physically
held, how much work is done at which speed, and what a stop may cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from dovetail.core.active import ActiveJob
from dovetail.core.core import Core, Step
from dovetail.core.departures import Departures
from dovetail.core.room import Room, numbers
from dovetail.model.action import Action, Resize, Start, Stop
from dovetail.model.cluster import Cluster
from dovetail.model.event import (
    CANCELLED,
    FAILED,
    FINISHED,
    NODE_JOINED,
    NODE_LOST,
    RESIZED,
    STOPPED,
    SUBMITTED,
    Event,
)
from dovetail.model.goodput import noise_at
from dovetail.model.grant import EMPTY, FULL, Spots, Terms, devices_of, load_of
from dovetail.model.job import Job
from dovetail.model.profile_arithmetic import regime_at
from dovetail.model.units import WHOLE
from dovetail.model.view import Policy
from dovetail.sim.simulate import simulate
from dovetail.sim.true_speed import Neighbour, ProfiledSpeed
from dovetail.sim.world import Incident, World

WHOLE_GANGS = "whole gangs"  # a job that holds devices holds all it needs to run
FINISHES = "finishes"  # every job that fits the empty cluster ends, once arrivals end
ACCEPTS = "accepts"  # and none of them is refused

# Policies that break a rule by their published behaviour are listed here, with the reason. The policy of a
# plug-in may list rules itself, in an attribute `waives`.
WAIVED: dict[str, frozenset[str]] = {
    # Pods are placed one at a time: gangs are partial by design, and two of them may wait for each other.
    "k8s-default": frozenset({WHOLE_GANGS, FINISHES}),
    # A job that is worth less than the price of its schedule is refused.
    "oasis": frozenset({ACCEPTS}),
    "aonline": frozenset({ACCEPTS}),
}


def waived(policy: Policy, name: str = "") -> frozenset[str]:
    """The rules that this policy is known, and documented, not to keep."""
    return WAIVED.get(name, frozenset()) | frozenset(getattr(policy, "waives", ()))


# -- the core's indexes against its jobs


def broken_rules(core: Core, waives: Iterable[str] = ()) -> list[str]:
    """Every rule that the core's state breaks now; empty if all is well."""
    grants = [(job.id, job.spots) for job in core.running.values() if job.spots is not None]
    grants += [(owner, spots) for owner, (spots, _) in core.holds.items()]
    broken = overfilled(core.cluster, grants)
    broken += _room(core)
    broken += _queue(core)
    broken += _departures(core)
    broken += _used(core)
    if WHOLE_GANGS not in waives:
        broken += _gangs(core)
    if core.alarm is not None and core.alarm <= core.now:
        broken.append(f"the alarm is set to {core.alarm}, which is not after now, {core.now}")
    for job_id in core.calendar:
        job = core.jobs.get(job_id)
        if job is None or job.started:
            broken.append(f"the calendar keeps a reservation for {job_id}, which does not wait")
    return broken


def overfilled(cluster: Cluster, grants: Iterable[tuple[str, Spots]]) -> list[str]:
    """Devices, CPU or memory that are allocated beyond capacity."""
    broken: list[str] = []
    milli: dict[tuple[int, int], int] = {}
    slots: dict[tuple[int, int], int] = {}
    cpus: dict[int, int] = {}
    memory: dict[int, int] = {}
    for owner, spots in grants:
        for node, devices, share, cores, size in spots:
            cpus[node] = cpus.get(node, 0) + cores
            memory[node] = memory.get(node, 0) + size
            if devices >> cluster.nodes[node].gpus:
                broken.append(f"{owner} holds devices {devices:b} of {cluster.nodes[node].name}")
            for device in numbers(devices):
                at = (node, device)
                if share >= 0:
                    milli[at] = milli.get(at, 0) + share
                elif slots.get(at, 0) & -share:
                    broken.append(f"{owner} holds slots {-share:b} of {at}, which are taken")
                else:
                    slots[at] = slots.get(at, 0) | -share
    broken += [f"device {at} is given {load} milli" for at, load in milli.items() if load > WHOLE]
    broken += [f"device {at} is sliced and shared at once" for at in milli.keys() & slots.keys()]
    broken += [f"device {at} has no slots {held:b}" for at, held in slots.items() if held & ~EMPTY]
    for node, machine in enumerate(cluster.nodes):
        if cpus.get(node, 0) > machine.cpus or memory.get(node, 0) > machine.memory:
            broken.append(f"node {machine.name} is given more CPU or memory than it has")
    return broken


def _room(core: Core) -> list[str]:
    fresh = Room(core.cluster)
    for job in core.running.values():
        fresh.take(job.spots or ())
    for spots, _ in core.holds.values():
        fresh.take(spots)
    for node in core.closed:
        fresh.close(node)
    return [] if fresh.picture() == core.room.picture() else ["the room is not what the running jobs leave"]


def _queue(core: Core) -> list[str]:
    key = core.policy.order.key
    waiting = {job.id: (key(job, core.now), job.seq) for job in core.jobs.values() if job.spots is None}
    broken = []
    if core.queue.picture() != waiting or len(core.queue) != len(waiting):
        broken.append(f"the queue holds {core.queue.picture()}, and {waiting} wait")
    if set(core.running) != set(core.jobs) - set(waiting):
        broken.append("`running` differs from the jobs that hold spots")
    return broken


def _departures(core: Core) -> list[str]:
    """Compare with a new index; without the keys of jobs past their estimate, which change with time."""
    order = core.policy.order
    if order.yields is None or order.drifts:
        return []
    fresh = Departures(core.room)
    loose = set()
    for job in core.running.values():
        leaves = job.traits.preemptible or order.limit is None  # without preemption, every job still ends
        fresh.add(job, order.yields(job, core.now) if leaves else None)
        if job.awaiting is not None or job.ends_at(core.now) <= core.now:
            loose.add(job.seq)
    broken = []
    for node, (ours, theirs) in enumerate(zip(fresh.picture(), core.departures.picture(), strict=True)):
        if ours.keys() != theirs.keys():
            broken.append(f"departures of node {node} hold {sorted(theirs)}, and {sorted(ours)} run")
            continue
        for seq, (at, count) in ours.items():
            if theirs[seq][1] != count or (seq not in loose and theirs[seq][0] != at):
                broken.append(
                    f"departures of node {node} say {theirs[seq]} of job {seq}; it is {(at, count)}"
                )
    return broken


def _used(core: Core) -> list[str]:
    used: dict[str, int] = {}
    for job in core.running.values():
        if job.held != load_of(job.spots or ()):
            return [f"{job.id} is said to hold {job.held}"]
        for name in core.cluster.line(job.tenant):
            used[name] = used.get(name, 0) + job.held
    kept = {name: load for name, load in core.used.items() if load}
    broken = [] if kept == {n: u for n, u in used.items() if u} else [f"used is {kept}, and should be {used}"]
    for tenant in core.cluster.tenants.values():
        if tenant.limit is not None and used.get(tenant.name, 0) > tenant.limit * WHOLE:
            broken.append(
                f"tenant {tenant.name} holds {used[tenant.name]} milli, over its limit {tenant.limit}"
            )
    return broken


def _gangs(core: Core) -> list[str]:
    broken = []
    for job in core.running.values():
        shape, traits = job.shape, job.traits
        held = devices_of(job.spots or ())
        least = (shape.tasks if traits.least is None else traits.least) * shape.each
        most = max(shape.tasks, traits.most or 0) * shape.each
        if not least <= held <= most:
            broken.append(f"{job.id} holds {held} devices, and needs {least} to {most}")
        for node, devices, *_ in job.spots or ():
            if devices and shape.types and core.cluster.nodes[node].type.name not in shape.types:
                broken.append(f"{job.id} holds a device of a type that it does not accept")
    return broken


def picture(core: Core) -> tuple[Any, ...]:
    """All that the core's future depends on, for comparing."""
    return (
        core.now,
        core.number,
        core.room.picture(),
        core.queue.picture(),
        core.departures.picture(),
        {name: load for name, load in core.used.items() if load},
        list(core.running),
        {job.id: _facts(job) for job in core.jobs.values()},
        dict(core.calendar),
        dict(core.holds),
        [job.id for job in core.arrived],
        core.changed,
        core.alarm,
        deepcopy(core.memory),
    )


def _facts(job: ActiveJob) -> tuple[Any, ...]:
    """The state of a job; for a waiting job without the fields that its next start sets."""
    always = (job.epoch, job.stage, job.stops, job.priority, job.promise, job.timer and job.timer[0])
    if job.spots is None:
        return (*always, job.done, job.service, job.executed, job.waiting_since)
    return (*always, *job.save())


# -- an account from events and actions only


@dataclass(slots=True)
class Book:
    """One job as the audit knows it."""

    job: Job
    done: float = 0.0
    saved: float = 0.0  # work that no stop can lose
    live_at: int = 0
    rate: float = 0.0
    epoch: int = 0
    spots: Spots = ()  # the spots it computes on; () while it does not compute
    held: Spots = ()  # the spots it occupies: more than `spots` while it shrinks or saves
    terms: Terms = FULL
    frozen: bool = False  # its node is lost
    kept: tuple[float, ...] = ()  # the work it may report as kept when it has stopped
    shrinks: bool = False
    suspended_on: tuple[int, ...] = ()  # the node of each device, if its state is in host memory there


@dataclass(slots=True)
class Audit:
    """An account made from steps alone; reports where the world or the core differ from it."""

    cluster: Cluster
    slack: float = 100.0  # microseconds: work is rounded down at each change of speed
    books: dict[str, Book] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)

    def see(self, step: Step) -> list[str]:
        """The rules that one step breaks."""
        self.broken = []
        for event in step.events:
            self._event(event, step.now)
        self._advance(step.now)
        for action in step.actions:
            self._action(step.now, action)
        self._rerate()
        self.broken += overfilled(self.cluster, ((b.job.id, b.held) for b in self.books.values()))
        return self.broken

    def compare(self, world: World, core: Core) -> list[str]:
        """Where the progress of jobs in the world or in the core differs from the account."""
        broken = []
        for name, book in self.books.items():
            job = core.jobs.get(name)
            if job is None or book.kept:
                continue  # the job is over, or is about to report the work that it kept
            true = world.done(name, core.now)
            if abs(true - book.done) > self.slack:
                broken.append(f"{name} has done {true}; the integral of its speed is {book.done:.0f}")
            if book.held != (job.now_on if job.started else ()):
                continue  # the job is starting or stopping: the core will hear how much work was kept
            if abs(job.done_at(core.now) - book.done) > self.slack:
                broken.append(f"the core says {name} did {job.done_at(core.now)}; it did {book.done:.0f}")
        return broken

    def _event(self, event: Event, now: int) -> None:
        time, kind, subject, epoch, fact = event
        self._advance(time)
        if kind == SUBMITTED:
            self.books[subject] = Book(fact)
            return
        if kind in (NODE_LOST, NODE_JOINED):
            if kind == NODE_LOST:
                lost = self.cluster.number[subject]
                for book in self.books.values():
                    if lost in book.suspended_on:
                        book.suspended_on = ()
                    book.frozen = book.frozen or any(spot[0] == lost for spot in book.spots)
                self._rerate()  # a job on a lost node slows no neighbour
            return
        if subject not in self.books:
            return
        book = self.books[subject]
        if kind == CANCELLED:
            self.ended[subject] = "cancelled"
            if not book.held:
                del self.books[subject]
        elif kind == FINISHED:
            if abs(book.done - book.job.work) > self.slack:
                self.broken.append(f"{subject} ended with {book.done:.0f} of {book.job.work} done")
            if epoch != book.epoch or book.frozen:
                self.broken.append(f"{subject} ended in epoch {epoch}; it was in {book.epoch}")
            self.ended[subject] = "finished"
            del self.books[subject]
        elif kind == FAILED:
            self._vacate(book)
            book.suspended_on = ()
            book.done = book.saved = float(fact[1])
            self.ended[subject] = "failed"
        elif kind == STOPPED and book.kept:
            if min(abs(fact - kept) for kept in book.kept) > self.slack:
                self.broken.append(f"{subject} kept {fact}; by its costs it should keep {book.kept}")
            book.done = float(fact)
            self._vacate(book)
            if subject in self.ended:
                del self.books[subject]
        elif kind == RESIZED and book.shrinks:
            book.held, book.shrinks = book.spots, False
        self._rerate()

    def _vacate(self, book: Book) -> None:
        book.spots, book.held, book.kept, book.frozen, book.shrinks = (), (), (), False, False

    def _action(self, now: int, action: Action) -> None:
        if isinstance(action, Start):
            book = self.books[action.job]
            if book.held:
                self.broken.append(f"{action.job} was started while it still held devices")
            if action.epoch != book.epoch + 1:
                self.broken.append(f"start {action.epoch} of {action.job} came after start {book.epoch}")
            book.epoch, book.terms = action.epoch, action.terms
            book.spots = book.held = action.spots
            book.live_at = now + (_restart(book) if action.epoch > 1 else 0)
        elif isinstance(action, Resize):
            book = self.books[action.job]
            grown = load_of(action.spots) >= load_of(book.spots)
            book.held = action.spots if grown else book.spots
            book.shrinks = not grown
            pause = _pause(book.job, book.spots, action.spots)
            book.spots, book.terms = action.spots, action.terms
            book.live_at = max(book.live_at, now) + pause
        elif isinstance(action, Stop) and action.job in self.books:  # else it ended before the stop
            book = self.books[action.job]
            self._stop(book, died=book.frozen or action.why == "node lost")
        self._rerate()

    def _stop(self, book: Book, *, died: bool) -> None:
        checkpoint = book.job.traits.checkpoint
        book.suspended_on = ()
        if checkpoint.on_stop and not died:
            book.saved = book.done
            book.kept = (book.done,)
            if checkpoint.suspend is not None:
                book.suspended_on = _node_of_each_device(book.spots)
        else:
            every = checkpoint.every
            ends = (book.done - self.slack, book.done + self.slack)  # on either side of a save
            book.kept = tuple(max(book.saved, end - end % every) if every else book.saved for end in ends)
            book.saved = min(book.kept)
        book.spots = ()

    def _advance(self, time: int) -> None:
        for book in self.books.values():
            if book.spots and not book.frozen and time > book.live_at:
                book.done += (time - book.live_at) * book.rate
                book.live_at = time

    def _rerate(self) -> None:
        speed = ProfiledSpeed(self.cluster)
        there: dict[tuple[int, int], list[Book]] = {}
        alive = [book for book in self.books.values() if book.spots and not book.frozen]
        for book in alive:
            for node, devices, *_ in book.spots:
                for device in numbers(devices):
                    there.setdefault((node, device), []).append(book)
        for book in alive:
            met: dict[str, Book] = {}
            for node, devices, *_ in book.spots:
                for device in numbers(devices):
                    met.update({other.job.id: other for other in there[node, device] if other is not book})
            neighbours = [_neighbour(met[name]) for name in sorted(met)]
            made, done = book.job, int(book.done) + 2  # the world counts whole microseconds
            profile = made.traits.profile
            model = profile.goodput if profile is not None else None
            noise = None if model is None else noise_at(model, done, made.work)[0]
            book.rate = speed.rate(made.shape, made.traits, book.spots, book.terms, neighbours, noise)
            book.rate *= regime_at(profile, done, made.work)[0]


def _restart(book: Book) -> int:
    """What the start of a suspended, saved or failed job costs where it is."""
    checkpoint = book.job.traits.checkpoint
    if not book.suspended_on or checkpoint.suspend is None:
        return checkpoint.restore
    in_place = book.suspended_on == _node_of_each_device(book.spots)
    return checkpoint.suspend if in_place else checkpoint.save + checkpoint.restore


def _pause(job: Job, before: Spots, after: Spots) -> int:
    """What a resize costs: said again in other words than the model's, to check it."""
    had, has = _devices(before), _devices(after)
    checkpoint, least = job.traits.checkpoint, job.traits.least
    whole = len(had) >= job.shape.each * (job.shape.tasks if least is None else least)
    if had == has or not whole:
        return 0
    restart = checkpoint.save + checkpoint.restore
    grows = restart if checkpoint.resize is None else checkpoint.resize
    return checkpoint.shrink if len(has) < len(had) and checkpoint.shrink is not None else grows


def _devices(spots: Spots) -> set[tuple[int, int]]:
    return {(node, device) for node, devices, *_ in spots for device in numbers(devices)}


def _node_of_each_device(spots: Spots) -> tuple[int, ...]:
    return tuple(sorted(node for node, devices, *_ in spots for _ in numbers(devices)))


def _neighbour(book: Book) -> Neighbour:
    profile = book.job.traits.profile
    use, hurt = (profile.use, profile.hurt) if profile else (1.0, 0.0)
    return Neighbour(use, hurt, book.terms, book.job.model if book.job.shape.exclusive else "", book.spots)


# -- a watched run


@dataclass(slots=True)
class Watched:
    """A run that was checked at every step."""

    core: Core
    world: World
    audit: Audit
    steps: list[Step]

    def times(self) -> dict[str, tuple[int, int]]:
        """First start and finish of each job."""
        start: dict[str, int] = {}
        finish: dict[str, int] = {}
        for step in self.steps:
            finish.update({e[2]: e[0] for e in step.events if e[1] == FINISHED})
            for action in step.actions:
                if isinstance(action, Start):
                    start.setdefault(action.job, step.now)
        return {job: (at, finish.get(job, -1)) for job, at in start.items()}


class Broken(AssertionError):
    """A rule was broken; the message says which rule, and at which step."""


def watched(
    policy: Policy,
    cluster: Cluster,
    jobs: Iterable[Job],
    *,
    incidents: Iterable[Incident] = (),
    events: Iterable[Event] = (),
    seed: int = 0,
    waives: Iterable[str] = (),
    check: bool = True,
    on_step: Callable[[Core, Step], None] | None = None,
    most_steps: int = 20_000,
) -> Watched:
    """Simulate, checking every rule after every step; `events` are further events (drained, cancelled)."""
    core, world = Core(cluster, policy, seed), World(cluster, incidents=incidents)
    for event in sorted(events, key=lambda e: e[:4]):
        world.heap.append(event)
    world.heap.sort()
    result = Watched(core, world, Audit(cluster), [])
    for step in _bounded(simulate(core, world, jobs), most_steps):
        result.steps.append(step)
        if check:
            broken = result.audit.see(step) + broken_rules(core, waives)
            broken += result.audit.compare(world, core)
            if broken:
                raise Broken(f"step {step.number} at {step.now} us: " + "; ".join(broken))
        if on_step is not None:
            on_step(core, step)
    return result


def _bounded(steps: Iterator[Step], most: int) -> Iterator[Step]:
    for number, step in enumerate(steps):
        if number >= most:
            raise Broken(f"no end after {most} steps, at {step.now} us: the same alarm again and again?")
        yield step
