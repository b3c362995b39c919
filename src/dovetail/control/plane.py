"""The live plane: the core, driven by a clock, users and an engine.

One thread owns everything that changes. Others put commands to it and wait: it takes all that are there, lets
the core decide once, commits once, and only then answers; what was answered survives a crash. Engines act
after the commit, and idempotently, so whatever a crash leaves undone is done again when the plane wakes up.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from dovetail.control import answers
from dovetail.control.arrays import expand_array
from dovetail.control.book import Asked, Book
from dovetail.control.clock import Clock, clock_from, wall_now
from dovetail.control.election import Election
from dovetail.control.forecast import Forecast, Forecasts, Window, end_of_waiting
from dovetail.control.launching import DeviceNames, launch_of, shares_of
from dovetail.control.ledger import Begin, Ledger
from dovetail.control.measured import Measured
from dovetail.control.quotas import Quotas
from dovetail.control.records import Record
from dovetail.control.request import JobRequest, parse_request, to_job
from dovetail.control.states import State
from dovetail.control.store import Deposed, Store, StoreError, packed
from dovetail.control.tokens import Caller
from dovetail.control.wake import Woken, changed, woken
from dovetail.core.core import Core
from dovetail.core.journal import Header
from dovetail.core.snapshot import snapshot
from dovetail.engines.launch import Engine
from dovetail.model.cluster import Cluster, Tenant, with_tenants
from dovetail.model.errors import DovetailError, InputError, NeverFits, UnknownName
from dovetail.model.job import Job
from dovetail.model.units import SECOND
from dovetail.policies.table import POLICIES

T = TypeVar("T")

ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # none that are mistaken for another, or spell a word with ease
SNAPSHOT_EVERY = 1_000  # steps, at most, that are played again when a plane wakes up
LONGEST_NAP = 1.0
DEAR = 0.02  # seconds: a copy of the core that took longer is used again
REST, LONGEST_REST = 50.0, 30.0  # for so many times as long, or so many seconds
MOST_AT_ONCE = 1_000  # commands in a tick
MOST_PERFORMING = 0.05  # seconds in a tick; an attempt takes some milliseconds to start
DEFAULT_POLICY = ("kueue", {"whole": True, "score": "pack"})  # priorities, quotas with borrowing, preemption

log = logging.getLogger("dovetail.plane")


class Unavailable(DovetailError):
    """The plane cannot answer now: it does not lead, or is closing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a plane is told when it starts."""

    folder: Path
    cluster: Cluster
    devices: DeviceNames = field(default_factory=dict)
    policy: str | None = None  # None: as before, or the default
    options: Mapping[str, Any] = field(default_factory=dict)
    scale: float = 1.0
    seed: int = 0
    url: str = ""
    virtual: bool = False  # pretended GPUs


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a submission became."""

    id: str
    ids: list[str]
    count: int
    array: bool
    notes: Sequence[str] = ()  # what may have been meant otherwise, a line each


class Standing(NamedTuple):
    """The core between two steps, and the rules it goes by."""

    taken: dict[str, Any]  # its snapshot
    header: Header
    names: dict[str, str]  # of the jobs, by id
    good_until: float  # for others too


class Change(NamedTuple):
    """A job is in another state."""

    id: str
    tenant: str
    state: str
    number: int


@dataclass(slots=True)
class Stats:
    """Figures about the plane itself, for whoever watches it."""

    ticks: int = 0
    decisions: int = 0
    commits: int = 0
    last_cycle: float = 0.0
    cycle_seconds: float = 0.0
    preemptions: dict[str, int] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)  # of those that started, seconds; the last thousands
    waits_count: int = 0
    waits_sum: float = 0.0
    eta_errors: deque[float] = field(default_factory=lambda: deque(maxlen=1_000))


@dataclass(slots=True)
class _Command(Generic[T]):
    run: Callable[[int], T]  # on the loop's thread, told the time
    changes: bool  # answered after the commit
    future: Future[T] = field(default_factory=Future)


class Plane:
    """A cluster, its jobs, and the thread that runs it."""

    def __init__(self, settings: Settings, store: Store, engine: Engine, election: Election) -> None:
        self.settings = settings
        self.store = store
        self.engine = engine
        self.clock: Clock = clock_from(None, settings.scale, 0)
        self.statistics = Stats()
        self._election = election
        self._inbox: deque[_Command[Any]] = deque()
        self._closing = threading.Event()
        self._ready = threading.Event()
        self._listeners: list[Callable[[list[Change]], None]] = []
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._failed: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None  # called on the loop's thread, which has ended
        self._leads = False
        self._ledger: Ledger
        self._cluster = settings.cluster
        self._keys: dict[tuple[str, str], tuple[bytes, Submitted]] = {}  # of this tick
        self._header: Header
        self._quotas: Quotas
        self._forecasts = Forecasts()
        self._measured: Measured
        self._accounts: dict[str, str] = {}
        self._reasons: tuple[int, Mapping[str, str]] = (-1, {})
        self._seq = 0
        self._snapshot_at = 0
        self._standing: Standing | None = None
        self._trouble = ""

    # -- its life

    def start(self) -> None:
        """Wake up; returns when the plane leads, or waits for another to go."""
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Leave a snapshot behind and let go; jobs go on running."""
        self._closing.set()
        self.engine.ring()
        if self._thread.is_alive():
            self._thread.join(timeout=60)

    @property
    def failed(self) -> BaseException | None:
        """What ended the loop, if it did not end by itself."""
        return self._failed

    @property
    def leads(self) -> bool:
        return self._leads

    @property
    def trouble(self) -> str:
        """What keeps the plane from recording anything, in a line; "" if nothing does."""
        return self._trouble

    def leader(self) -> str:
        """Where the plane is that leads."""
        return self.store.leader()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    if not self._leads:
                        self._seek()
                        continue
                    self._turn()
                except Deposed as error:
                    self._step_down(str(error))
                except (StoreError, OSError) as error:
                    self._stumble(error)
            if self._leads:
                self._leave_snapshot()
        except BaseException as error:
            log.exception("the loop has failed")
            self._failed = error
            self.on_failure()
        finally:
            self._leads = False
            self._refuse_all("the plane has stopped")
            self._election.leave()
            self._ready.set()

    def _seek(self) -> None:
        """Try to lead; wait a little otherwise."""
        if self._election.won():
            self.store.lead(self.settings.url)
            self._wake()
            self._leads = True
            log.info("this plane leads, with policy %s", self._header.policy)
            self._ready.set()
        else:
            self._ready.set()
            self._refuse_all("this plane does not lead")
            self._closing.wait(0.3)

    def _step_down(self, why: str) -> None:
        log.warning("%s", why)
        self._leads = False
        self._refuse_all(why)
        self._election.leave()
        self._closing.wait(1.0)

    def _stumble(self, error: StoreError | OSError) -> None:
        """Nothing could be recorded, or done: what was decided since is void and decided anew from what is.

        Nothing else is heard meanwhile: the jobs in memory are not those on record.
        """
        if not self._ready.is_set():
            raise error  # whoever starts it is there to be told
        if not self._leads:
            log.error("%s", error)
            self._closing.wait(1.0)
            return
        while not self._closing.is_set():
            self._trouble = str(error)
            log.error("%s", error)
            self._refuse_all(str(error), StoreError)
            self._closing.wait(1.0)
            if not self._election.won():
                self._step_down("the database let go of the lead")
                return
            try:
                self._wake()
            except (StoreError, OSError) as again:
                error = again
            else:
                self._trouble = ""
                return
        self._leads = False  # and what is in memory is not worth a snapshot

    def _refuse_all(self, why: str, kind: type[DovetailError] = Unavailable) -> None:
        while self._inbox:
            command = self._inbox.popleft()
            if not command.future.done():
                command.future.set_exception(kind(why))

    # -- waking up

    def _wake(self) -> None:
        """The state as it was last recorded, and the engine told what it may have missed."""
        store, settings = self.store, self.settings
        active = store.active()
        asked = self._asked(active)
        era = store.era()
        header = self._wanted_header(era)
        book = Book(store.states_of)
        self._cluster = header.cluster
        jobs = {r.id: job for r in active if (job := self._fitting(r, asked[r.request])) is not None}
        made = woken(store, header, self.clock.now() if era is None else 0, jobs)
        kept = store.value("clock")
        self.clock = clock_from(kept, settings.scale, made.core.now)
        if self.clock.to_json() != kept:
            store.keep("clock", self.clock.to_json())
        for said in made.said:
            log.warning("%s", said)
        for record in active:
            book.add(record, asked[record.request])
        self._header = header
        self._quotas = Quotas(header.cluster, made.core.policy)
        self._ledger = Ledger(made.core, book, made.era, self._job_of)
        self._seq = store.next_seq()
        self._measured = Measured(store)
        self._forecasts.clear()
        self._keys.clear()
        self._move_in(made, self.clock.now())
        self._ledger.look_again(self.clock.now())
        self._reconcile()

    def _asked(self, records: Sequence[Record]) -> dict[str, Asked]:
        found = self.store.requests(sorted({r.request for r in records}))
        return {name: Asked(parse_request(body), body, workdir) for name, (body, workdir) in found.items()}

    def _wanted_header(self, era: Mapping[str, Any] | None) -> Header:
        settings = self.settings
        rows = self.store.tenants()
        self._accounts = {row["name"]: row["account"] for row in rows if row["account"]}
        cluster = with_tenants(settings.cluster, [_tenant(row) for row in rows])
        if settings.policy is not None:
            return Header(cluster, settings.policy, dict(settings.options), settings.seed)
        if era is not None:
            old = json.loads(era["header"])
            return Header(cluster, old["policy"], old["options"], old["seed"])
        name, options = DEFAULT_POLICY
        return Header(cluster, name, options, settings.seed)

    def _fitting(self, record: Record, asked: Asked) -> Job | None:
        """What the core would be told of a job; None if the cluster has no such thing any more."""
        try:
            return self._job_of(record, asked, record.eligible_at or record.submitted_at)
        except InputError:
            return None

    def _job_of(self, record: Record, asked: Asked, now: int) -> Job:
        # Deadlines and the like count from when it was submitted, its place in the queue from now.
        made = to_job(
            asked.request, record.id, record.submitted_at, record.tenant, record.user, self._cluster
        )
        return replace(made, arrived_at=now, priority=record.priority)

    def _move_in(self, made: Woken, now: int) -> None:
        """A new era may have left some jobs without a place."""
        ledger = self._ledger
        ledger.batch.eras += made.eras
        ledger.batch.snapshots += made.snapshots
        self._snapshot_at = made.core.number
        for stop in made.stops:
            ledger.stop(stop, now)
        for record in list(ledger.book):
            known = record.id in made.core.jobs
            if known or record.state is State.HELD:
                if record.held_by == "cluster" and self._fits(record):
                    ledger.unblock(record, now)
            elif record.state is not State.STOPPING:
                ledger.outgrown(record, now)

    def _fits(self, record: Record) -> bool:
        job = self._fitting(record, self._ledger.book.asked[record.request])
        return job is not None and self._ledger.core.room.ever(job.shape)

    def _reconcile(self) -> None:
        """Start and stop again what should be so: engines take no notice of what they have done already."""
        ledger, now = self._ledger, self.clock.now()
        core, engine = ledger.core, self.engine
        known = engine.known()
        expected = set()
        for record in ledger.book:
            attempt = (record.id, record.epoch)
            if record.state is State.RUNNING:
                expected.add(attempt)
                active = core.jobs.get(record.id)
                if attempt not in known and active is not None and active.spots is not None:
                    ledger.orders.append(Begin(record, active.spots))
            elif record.state is State.STOPPING:
                expected.add(attempt)
                if attempt in known:
                    engine.stop(record.id, record.epoch, record.reason, self._grace(record))
                else:
                    ledger.vanished(record, now)
        for job in core.stopping():
            holder = ledger.book.records.get(job)
            if holder is None or holder.state not in (State.RUNNING, State.STOPPING):
                ledger.gone(job, now)
            elif holder.state is State.RUNNING and job in core.running:
                ledger.resettled(job, now)
        for job, epoch in known - expected:
            engine.stop(job, epoch, "unknown to the plane", 10 * SECOND)

    # -- one tick

    def _turn(self) -> None:
        ledger = self._ledger
        if not (self._inbox or ledger.pending):
            self.engine.wait(self._nap())
        began = time.perf_counter()
        reports = self.engine.poll()
        now = self._time()
        waiting: list[tuple[_Command[Any], Any]] = []
        try:
            for _ in range(min(len(self._inbox), MOST_AT_ONCE)):
                self._hear(self._inbox.popleft(), now, waiting)
            for report in reports:
                self._measured.last(report.job, report.epoch, self.engine, ledger, now)
                ledger.ended(report, now, self.clock.at(report.exit.ended_at))
            ledger.due(now)
            self._measured.read(self.engine, ledger, now)
            step = ledger.decide(now)
            core = ledger.core
            if core.number - self._snapshot_at >= SNAPSHOT_EVERY:
                self._snapshot_at = core.number
                ledger.batch.snapshots.append(
                    {"era": ledger.era, "number": core.number, "state": packed(snapshot(core))}
                )
            self._commit(waiting)
        except BaseException:
            for command, _ in waiting:
                self._inbox.append(command)  # to be refused, or heard again
            raise
        self._perform()
        if step is not None:
            self._count(step.decided, time.perf_counter() - began)

    def _time(self) -> int:
        """Now, or the round that is due: policies that decide in rounds do so at its very moment."""
        core, now = self._ledger.core, self.clock.now()
        quantum = core.policy.quantum
        if quantum is not None and core.alarm is not None and core.alarm <= now:
            return max(core.now, now - now % quantum)
        return max(core.now, now)

    def _nap(self) -> float:
        """Until something is due, in real seconds."""
        times = [t for t in (self._ledger.core.alarm, self._ledger.book.next_begin()) if t is not None]
        if not times:
            return LONGEST_NAP
        return min(LONGEST_NAP, max(0.0, self.clock.seconds_until(min(times))))

    def _hear(self, command: _Command[Any], now: int, waiting: list[tuple[_Command[Any], Any]]) -> None:
        try:
            answer = command.run(now)
        except StoreError:  # halfway through, perhaps: then nothing of this turn may be recorded
            self._inbox.appendleft(command)
            raise
        except DovetailError as error:
            command.future.set_exception(error)
        except Exception as error:
            log.exception("a command failed")
            command.future.set_exception(error)
        else:
            if command.changes:
                waiting.append((command, answer))
            else:
                command.future.set_result(answer)

    def _commit(self, waiting: list[tuple[_Command[Any], Any]]) -> None:
        ledger = self._ledger
        batch = ledger.batch
        if batch or ledger.forget:  # only who leads may forget an attempt: to others it may be news
            self.store.commit(batch)
            self.statistics.commits += 1
            self._trouble = ""
        ledger.committed()
        self._keys.clear()
        for command, answer in waiting:
            command.future.set_result(answer)
        if batch.changed and self._listeners:
            number = ledger.core.number
            changes = [Change(r.id, r.tenant, r.state.value, number) for r in batch.changed.values()]
            for listener in tuple(self._listeners):
                listener(changes)

    def _perform(self) -> None:
        """What was decided is recorded: now it may be done."""
        ledger, engine = self._ledger, self.engine
        orders, ledger.orders = ledger.orders, []
        until = time.monotonic() + MOST_PERFORMING
        for number, order in enumerate(orders):
            if number and time.monotonic() > until:  # let others be heard in between
                ledger.orders = orders[number:] + ledger.orders
                break
            if isinstance(order, Begin):
                record = order.record
                asked = ledger.book.asked.get(record.request)
                if asked is not None:
                    engine.start(
                        launch_of(
                            record,
                            asked,
                            shares_of(order.spots, ledger.core.cluster, self.settings.devices),
                            self.clock,
                            checkpoints=self.settings.folder / "checkpoints",
                            account=self._accounts.get(record.tenant, ""),
                        )
                    )
            else:
                stopping = ledger.book.records.get(order.job)
                grace = self._grace(stopping) if stopping is not None else 10 * SECOND
                engine.stop(order.job, order.epoch, order.why, grace)
        forget, ledger.forget = ledger.forget, []
        for job, epoch in forget:
            engine.forget(job, epoch)

    def _grace(self, record: Record) -> int:
        return self.clock.wall_span(self._ledger.book.asked[record.request].request.grace)

    def _count(self, decided: bool, cycle: float) -> None:
        stats, ledger = self.statistics, self._ledger
        stats.ticks += 1
        stats.decisions += decided
        stats.last_cycle = cycle
        stats.cycle_seconds += cycle
        for record in ledger.started:
            if record.restarts == 0 and record.started_at is not None:
                wait = (record.started_at - record.submitted_at) / SECOND
                stats.waits_count += 1
                stats.waits_sum += wait
                stats.waits.append(wait)
                error = self._forecasts.error(record.id, record.started_at)
                if error is not None:
                    stats.eta_errors.append(error)
        del stats.waits[:-5_000]
        for why in ledger.preempted:
            stats.preemptions[why] = stats.preemptions.get(why, 0) + 1
        ledger.started.clear()
        ledger.preempted.clear()

    def _leave_snapshot(self) -> None:
        core, ledger = self._ledger.core, self._ledger
        if core.number > self._snapshot_at:
            ledger.batch.snapshots.append(
                {"era": ledger.era, "number": core.number, "state": packed(snapshot(core))}
            )
        try:
            self._commit([])
        except StoreError as error:
            log.error("no last snapshot: %s", error)

    # -- putting something to the loop

    def _put(self, run: Callable[[int], T], *, changes: bool) -> T:
        if not self._leads:
            raise Unavailable("this plane does not lead")
        if self._trouble and changes:
            raise StoreError(self._trouble)
        command = _Command(run, changes)
        self._inbox.append(command)
        self.engine.ring()
        if not self._leads:  # it stopped meanwhile, and may not look again
            self._refuse_all("this plane does not lead")
        return command.future.result(timeout=120)

    def submit(
        self, caller: Caller, request: JobRequest, body: Mapping[str, Any], key: str | None = None
    ) -> Submitted:
        """Take a job, or an array of them; returns when it is on record."""
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).digest()

        def run(now: int) -> Submitted:
            if key is not None and (known := self._known_key(caller, key, digest)):
                return known
            submitted = self._take(caller, request, body, now)
            if key is not None:
                self._keys[caller.token, key] = (digest, submitted)
                self._ledger.batch.keys.append(
                    {
                        "owner": caller.token,
                        "key": key,
                        "digest": digest,
                        "answer": json.dumps(astuple(submitted)),
                        "time": wall_now(),
                    }
                )
            return submitted

        return self._put(run, changes=True)

    def _known_key(self, caller: Caller, key: str, digest: bytes) -> Submitted | None:
        found = self._keys.get((caller.token, key))
        if found is None:
            row = self.store.remembered(caller.token, key)
            found = (row[0], Submitted(*row[1])) if row else None
        if found is None:
            return None
        if found[0] != digest:
            raise InputError(f"the idempotency key {key!r} was used for another submission; take a new one")
        return found[1]

    def _take(self, caller: Caller, request: JobRequest, body: Mapping[str, Any], now: int) -> Submitted:
        ledger = self._ledger
        tenant = self._tenant_for(caller, request)
        notes = self._doubts(caller, tenant)
        word = self._fresh_id()
        indices: tuple[int, ...] = ()
        at_most: int | None = None
        if request.array is not None:
            indices, at_most = expand_array(request.array)
        first = f"{word}_{indices[0]}" if indices else word
        job = to_job(request, first, now, tenant, caller.user, self._cluster)
        if not ledger.core.room.ever(job.shape):
            raise NeverFits(answers.never(job.shape, self._cluster))
        if over := self._quotas.too_much(job):
            raise NeverFits(over.refusal)
        self._check_dependencies(caller, request)
        begin = request.begins_at(now)
        common: dict[str, Any] = {
            "request": word,
            "name": request.name,
            "kind": request.kind,
            "tenant": tenant,
            "user": caller.user,
            "model": request.model,
            "gpus": job.shape.gpus,
            "load": job.shape.load,
            "nodes": request.node_count,
            "cpus": job.shape.cpus or None,
            "memory": job.shape.memory or None,
            "types": ",".join(job.shape.types),
            "dependency": request.dependency,
            "at_most": at_most,
            "begin_at": begin if begin is not None and begin > now else None,
            "time_limit": request.time,
            "submitted_at": now,
            "priority": request.priority,
            "held_by": "user" if request.hold else "",
        }
        records = []
        for index in indices or (None,):
            name = word if index is None else f"{word}_{index}"
            array = None if index is None else word
            records.append(Record(id=name, seq=self._seq, array=array, task=index, **common))
            self._seq += 1
        workdir = request.workdir
        asked = Asked(request, body, workdir)
        ledger.batch.requests.append({"id": word, "body": json.dumps(body), "workdir": workdir})
        ledger.submit(records, asked, now)
        return Submitted(word, [r.id for r in records[:100]], len(records), bool(indices), notes)

    def _doubts(self, caller: Caller, tenant: str) -> list[str]:
        """What an admin may have mistyped: nobody else can name another tenant."""
        if tenant == caller.tenant or tenant in self._cluster.tenants:
            return []
        if self.store.knows_tenant(tenant) or any(r.tenant == tenant for r in self._ledger.batch.added):
            return []
        names = sorted(self.store.known_tenants() | self._cluster.tenants.keys())
        named = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        return [f"tenant {tenant} has no quota and no jobs yet; known tenants: {named or 'none'}"]

    def _tenant_for(self, caller: Caller, request: JobRequest) -> str:
        wanted = request.tenant_asked
        if not wanted or wanted == caller.tenant:
            return caller.tenant
        if caller.role == "admin":
            return wanted
        raise InputError(
            f"you may not submit for {wanted!r}; leave queue out, or ask for a token of that tenant"
        )

    def _fresh_id(self) -> str:
        while True:
            word = "".join(secrets.choice(ALPHABET) for _ in range(6))
            taken = word in self._ledger.book.asked or self.store.requests([word])
            if not word.isdigit() and not taken:
                return word

    def _check_dependencies(self, caller: Caller, request: JobRequest) -> None:
        if not request.dependency:
            return
        wanted = {need.job for need in answers.needs(request.dependency)}
        known = self.store.tenants_of(wanted)
        known |= {r.id: r.tenant for r in self._ledger.book if r.id in wanted}
        known |= {r.array: r.tenant for r in self._ledger.book if r.array in wanted and r.array is not None}
        for name in sorted(wanted):
            if name not in known or (caller.role != "admin" and known[name] != caller.tenant):
                raise InputError(
                    f"the dependency names {name!r}, and there is no such job; see dovetail ps --all"
                )

    def act(self, verb: str, ids: Sequence[str]) -> list[str]:
        """Cancel, hold, release or requeue jobs; those it made a difference to."""

        def run(now: int) -> list[str]:
            ledger = self._ledger
            deeds: dict[str, Callable[[Record], bool]] = {
                "cancel": lambda r: ledger.cancel(r, now),
                "hold": lambda r: ledger.hold(r, now, "user"),
                "release": lambda r: ledger.release(r, now),
                "requeue": lambda r: ledger.requeue(r, now),
            }
            deed = deeds[verb]
            return [r.id for r in self._named(ids) if deed(r)]

        return self._put(run, changes=True)

    def prioritise(self, ids: Sequence[str], priority: int) -> list[str]:
        def run(now: int) -> list[str]:
            return [r.id for r in self._named(ids) if self._ledger.prioritise(r, priority, now)]

        return self._put(run, changes=True)

    def _named(self, ids: Sequence[str]) -> list[Record]:
        records = self._ledger.book.records
        return [records[name] for name in dict.fromkeys(ids) if name in records]

    def drain(self, node: str, why: str) -> None:
        """Let it take no new work."""
        self._put(lambda now: self._ledger.drain(self._node(node), why or "drained", now), changes=True)

    def resume(self, node: str) -> None:
        self._put(lambda now: self._ledger.rejoin(self._node(node), now), changes=True)

    def _node(self, name: str) -> str:
        if name not in self._cluster.number:
            raise UnknownName("node", name, self._cluster.number)
        return name

    def set_tenant(self, row: Mapping[str, Any]) -> None:
        """Make a tenant, or change what it may have."""

        def run(now: int) -> None:
            tenants = {**self._cluster.tenants, row["name"]: _tenant(row)}
            self._change(with_tenants(self.settings.cluster, tenants.values()), now)
            self._ledger.batch.tenants.append(dict(row))
            if row["account"]:
                self._accounts[row["name"]] = row["account"]
            else:
                self._accounts.pop(row["name"], None)

        self._put(run, changes=True)

    def drop_tenant(self, name: str) -> None:
        def run(now: int) -> None:
            if name not in self._cluster.tenants:
                raise UnknownName("tenant", name, self._cluster.tenants)
            tenants = [t for t in self._cluster.tenants.values() if t.name != name]
            self._change(with_tenants(self.settings.cluster, tenants), now)
            self._ledger.batch.dropped_tenants.append(name)
            self._accounts.pop(name, None)

        self._put(run, changes=True)

    def switch_policy(self, name: str, options: Mapping[str, Any]) -> None:
        """Go on under another policy; no job is lost, none is stopped by the switch itself.

        `default` is what a new plane begins with.
        """
        if name == "default" and not options:
            name, options = DEFAULT_POLICY
        POLICIES.make(name, **options)

        def run(now: int) -> None:
            self._change(self._cluster, now, policy=name, options=dict(options))

        self._put(run, changes=True)

    def _change(
        self,
        cluster: Cluster,
        now: int,
        policy: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """A new era: the same jobs, other rules."""
        ledger, old = self._ledger, self._header
        if ledger.events:  # what was said so far belongs to the old one
            ledger.decide(now)
        new = Header(
            cluster,
            policy or old.policy,
            old.options if options is None else options,
            old.seed,
        )
        made = changed(snapshot(ledger.core), old, new, ledger.era, ledger.book)
        self._header, self._cluster = new, cluster
        ledger.core, ledger.era = made.core, made.era
        self._quotas = Quotas(cluster, made.core.policy)
        self._move_in(made, now)
        self._forecasts.clear()

    # -- questions

    def why(self, job: str, visible: Callable[[str], bool] = lambda tenant: True) -> answers.Why:
        """What keeps a job waiting, who holds what it needs, what would help, and when it may start."""

        def run(now: int) -> tuple[answers.Why, Core | None, int | None, int | None]:
            ledger = self._ledger
            record = ledger.book.records.get(job)
            if record is None:
                raise InputError(f"job {job} is over: nothing keeps it waiting; see dovetail describe {job}")
            answer = answers.why(ledger, record, now, visible, self._quotas.too_much)
            answer.ends_at = answers.ends_at(ledger, record, now)
            active = ledger.core.jobs.get(job)
            known = active is not None and answers.says_how_long(ledger, record)
            took = active.remaining_at(now) if known and active is not None else None
            fork = None if answer.never else self._forecasts.core_for(ledger.core, job)
            return answer, fork, took, record.time_limit

        answer, fork, took, limit = self._put(run, changes=False)
        if answer.state == State.PENDING and not answer.never:
            answer.starts_at = self._forecasts.starts_at(fork, job)
            if answer.starts_at is not None and took is not None:
                answer.ends_at = end_of_waiting(answer.starts_at, took, limit)
        return answer

    def ends_at(self, job: str) -> Window | None:
        """When a job that runs is expected to end."""

        def run(now: int) -> Window | None:
            record = self._ledger.book.records.get(job)
            return None if record is None else answers.ends_at(self._ledger, record, now)

        return self._put(run, changes=False)

    def reasons(self) -> Mapping[str, str]:
        """Why the waiting jobs wait, in a word each; those that the policy did not come to are left out."""

        def run(now: int) -> Mapping[str, str]:
            core = self._ledger.core
            if self._reasons[0] != core.number:
                self._reasons = (core.number, {note.job: note.word for note in self._ledger.notes()})
            return self._reasons[1]

        return self._put(run, changes=False)

    def forecast(self, caller: Caller, request: JobRequest) -> Forecast:
        """Where and when a job would start if it were submitted now."""

        def run(now: int) -> tuple[Core, Job, answers.OutOfUse | None]:
            tenant = self._tenant_for(caller, request)
            job = to_job(request, "this-job", now, tenant, caller.user, self._cluster)
            if not self._ledger.core.room.ever(job.shape):
                raise NeverFits(answers.never(job.shape, self._cluster))
            if over := self._quotas.too_much(job):
                raise NeverFits(over.refusal)
            core = self._ledger.core
            return core.fork(), job, answers.out_of_use(core, job.shape)

        fork, job, closed = self._put(run, changes=False)
        notes = [closed.sentence, closed.remedy("")] if closed is not None else []
        if closed is not None and closed.needed:
            return Forecast(fits=False, starts_at=None, notes=notes)
        found = self._forecasts.of_new(fork, job, self.clock.now())
        found.notes = [note for note in notes if note]
        return found

    def nodes(self) -> list[answers.NodeState]:
        return self._put(lambda now: answers.nodes(self._ledger.core), changes=False)

    def overview(self) -> answers.Overview:
        """Nodes, jobs on them, and how many wait, of one moment."""
        return self._put(lambda now: answers.overview(self._ledger, self._header.policy, now), changes=False)

    @property
    def moment(self) -> tuple[int, int]:
        """The era and the last step: as long as it is the same, nothing has changed."""
        return (self._ledger.era, self._ledger.core.number) if self._leads else (-1, -1)

    def as_it_stands(self) -> Standing:
        """All that the core knows, for whoever wants to run it forward somewhere else.

        What was dear to take is given to the next who asks as well, for a while.
        """

        def run(now: int) -> Standing:
            ledger, kept = self._ledger, self._standing
            if kept is not None and kept.header is self._header and time.monotonic() < kept.good_until:
                return kept
            began, core = time.perf_counter(), ledger.core
            taken = snapshot(core)
            due = now if core.alarm is None else min(now, core.alarm)
            taken["now"] = max(core.now, due)  # it may be long since anything happened
            names = {record.id: record.name for record in ledger.book if record.id in core.jobs}
            took = time.perf_counter() - began
            rest = min(REST * took, LONGEST_REST) if took > DEAR else 0.0
            self._standing = Standing(taken, self._header, names, time.monotonic() + rest)
            return self._standing

        return self._put(run, changes=False)

    def shares(self) -> list[answers.ShareState]:
        return self._put(lambda now: answers.shares(self._ledger, self._accounts), changes=False)

    def subscribe(self, call: Callable[[list[Change]], None]) -> Callable[[], None]:
        """Be told of changes after each commit, on the loop's thread; the result ends it."""
        self._listeners.append(call)
        return lambda: self._listeners.remove(call)

    @property
    def policy(self) -> tuple[str, dict[str, Any]]:
        return self._header.policy, dict(self._header.options)

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    def stats(self) -> Stats:
        return self.statistics


def _tenant(row: Mapping[str, Any]) -> Tenant:
    return Tenant(row["name"], row["parent"], row["weight"], row["quota"], row["borrow"], row["limit"])
