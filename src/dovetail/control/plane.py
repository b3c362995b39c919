"""The loop of a plane: one thread that owns the state and works in ticks.

Other threads put commands into its inbox and wait. In a tick the loop takes the changes in the inbox, lets
the core decide once, writes to the store once, and only then answers: an answered command survives a crash.
Questions are answered after that, as many as there is time for, so that no change waits long for them.
Engines act after the write, and orders are idempotent: orders that a crash interrupts are repeated when the
plane starts again. A plane that has lost the lead drops its orders: the next leader has them from the store.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from dovetail.control import clock as clocks
from dovetail.control import disk_reserve, startup
from dovetail.control.clock import Clock, clock_from
from dovetail.control.deciding import CoreFailed, decide
from dovetail.control.election import Election
from dovetail.control.high_water import HighWater, Mark
from dovetail.control.inbox import Command, Inbox, Unavailable
from dovetail.control.launching import perform
from dovetail.control.plane_settings import HIGH_WATER, Settings
from dovetail.control.plane_state import PlaneState
from dovetail.control.stand_in import PolicyFailure
from dovetail.control.statistics import Statistics
from dovetail.control.store import Batch, Deposed, RefusedWrite, Store, StoreError
from dovetail.engines.contract import Engine, Fenced
from dovetail.model.cluster import Cluster
from dovetail.model.errors import DovetailError, PlanError

T = TypeVar("T")
Answered = list[tuple[Command[Any], Any]]  # commands and their results, which callers get after the commit

LONGEST_NAP = 1.0  # seconds
LONGEST_ANSWER = 120.0  # seconds that a caller waits
LONGEST_TICK = 120.0  # seconds; a loop that takes longer is in trouble
MOST_REFUSED, REFUSED_WITHIN = 3, 60.0  # writes that the database refuses within these seconds end the plane

log = logging.getLogger("dovetail.plane")


class Change(NamedTuple):
    """A job has changed its state."""

    id: str
    tenant: str
    state: str
    number: int


class Plane:
    """A cluster, its jobs, and the thread that runs it."""

    def __init__(self, settings: Settings, store: Store, engine: Engine, election: Election) -> None:
        self.settings = settings
        self.store = store
        self.engine = engine
        self.clock: Clock = clock_from(None, settings.scale, 0)
        self.statistics = Statistics()
        self.failed: BaseException | None = None  # what ended the loop, unless it was closed
        self.leads = False
        self.trouble = ""  # why nothing can be recorded now, in one line
        self.beat = time.monotonic()  # when the last tick began
        self._state: PlaneState | None = None  # None until this plane leads for the first time
        self._high_water = HighWater(settings.folder / HIGH_WATER)
        self._policy_failure: PolicyFailure | None = None
        self._election = election
        self._inbox = Inbox()
        self._closing = threading.Event()
        self._ready = threading.Event()
        self._refused: deque[float] = deque(maxlen=MOST_REFUSED)  # when writes were refused
        self._on_failure: list[Callable[[], None]] = []
        self._listeners: list[Callable[[list[Change]], None]] = []
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)

    # -- for other threads

    def start(self) -> None:
        """Start the loop; returns when this plane leads, with that on record, or when another plane does."""
        self._thread.start()
        self._ready.wait()
        if isinstance(self.failed, DovetailError | OSError):
            raise self.failed
        if self.failed is not None:
            raise DovetailError(f"the scheduler failed ({self.failed!r})") from self.failed

    def close(self) -> None:
        """Write a last snapshot and end the loop; jobs go on running."""
        self._closing.set()
        self.engine.ring()
        if self._thread.is_alive():
            self._thread.join(timeout=60)

    def on_failure(self, call: Callable[[], None]) -> None:
        """Call this when the loop has failed, on its thread; at once if it has failed already."""
        self._on_failure.append(call)
        if self.failed is not None:
            call()

    @property
    def in_trouble(self) -> str:
        """Why the plane does not do its work, in one line; "" if it does, or stands by."""
        if self.failed is not None:
            return f"the scheduler failed ({self.failed!r}) and the plane ends"
        late = time.monotonic() - self.beat
        if not self.trouble and self.leads and late > LONGEST_TICK:
            return f"the scheduler has ended no step for {late:.0f} s"
        return self.trouble

    def leader(self) -> str:
        """The address of the plane that leads."""
        return self.store.leader()

    def ask(self, question: Callable[[PlaneState, int], T], *, slow: bool = False) -> T:
        """The answer to a question, which must not change the state.

        `slow`: the question takes more than a few milliseconds if many jobs wait; others go before it.
        """
        return self._answer(Command(question, changes=False, slow=slow))

    def change(self, command: Callable[[PlaneState, int], T]) -> T:
        """The result of a command that changes the state, once it is on record."""
        return self._answer(Command(command, changes=True))

    def subscribe(self, call: Callable[[list[Change]], None]) -> Callable[[], None]:
        """Call this after each commit that changed jobs, on the loop's thread. Returns how to unsubscribe."""
        self._listeners.append(call)
        return lambda: self._listeners.remove(call)

    @property
    def moment(self) -> tuple[int, int]:
        """The era and the last step: as long as they are the same, nothing has changed."""
        state = self._state
        if state is None or not self.leads:
            return (-1, -1)
        return (state.ledger.era, state.ledger.core.number)

    @property
    def policy(self) -> tuple[str, Mapping[str, Any]]:
        """The policy that was chosen, with its options, once this plane has led."""
        name, options = self._led().deciding.chosen
        return name, dict(options)

    @property
    def policy_failure(self) -> PolicyFailure | None:
        """Why a stand-in decides; None if the chosen policy decides. As of the last commit."""
        return self._policy_failure

    @property
    def cluster(self) -> Cluster:
        return self.settings.cluster if self._state is None else self._state.header.cluster

    def _led(self) -> PlaneState:
        if self._state is None:
            raise Unavailable("this plane does not lead")
        return self._state

    def _answer(self, command: Command[T]) -> T:
        if not self.leads:
            raise Unavailable("this plane does not lead")
        if self.trouble and command.changes:
            raise StoreError(self.trouble)
        self._inbox.add(command)
        self.engine.ring()
        if not self.leads:  # the loop stopped meanwhile, and may not read the inbox again
            self._inbox.refuse_all("this plane does not lead")
        return command.future.result(timeout=LONGEST_ANSWER)

    # -- leading

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    if not self.leads:
                        self._seek()
                        continue
                    self._tick()
                    self._ready.set()  # what was chosen at this start is on record
                except (Deposed, Fenced) as error:
                    self._step_down(str(error))
                except CoreFailed as error:
                    self._load_with_stand_in(error)
                except (StoreError, OSError) as error:
                    self._start_over(error)
            if self.leads:
                self._leave_snapshot()
        except BaseException as error:
            log.exception("the loop has failed")
            self.leads = False
            self.failed = error
            for call in tuple(self._on_failure):
                call()
        finally:
            self.leads = False
            self._inbox.refuse_all("the plane has stopped")
            self._election.leave()
            self._ready.set()

    def _seek(self) -> None:
        """Lead if no other plane does; wait a little otherwise."""
        if self._election.won(self.settings.url, self.engine.newest_term()):
            self.engine.lead(self.store.term)  # before the state is read: no older order changes it any more
            self._load()
            self.beat, self.trouble = time.monotonic(), ""
            self.leads = True
            log.info("this plane leads, with policy %s", self._led().header.policy)
        else:
            self.trouble = ""
            self._ready.set()
            self._inbox.refuse_all("this plane does not lead")
            self._closing.wait(0.3)

    def _load(self) -> None:
        """Take the state from the store, and bring the engine in line with it."""
        settings = self.settings
        policy = settings.policy if self._state is None else None  # a command may have changed it since
        self._state, self.clock = startup.loaded(
            self.store, settings, policy, self.clock, self.engine.capabilities
        )
        self._policy_failure = self._state.deciding.failure
        self._high_water.note(Mark(self.store.folder, self.store.last_step()), durable=True)
        startup.reconcile(self._state, self.engine, self.clock)

    def _load_with_stand_in(self, error: CoreFailed) -> None:
        """The core failed inside a step, not in a decision: load what is on record, under the stand-in."""
        deciding = self._led().deciding
        if deciding.failure is not None:
            raise error
        log.error("the core failed, perhaps by its policy: %s", error, exc_info=error.__cause__)
        deciding.failed(str(error), self.settings.stand_in, clocks.steady_now())
        row = deciding.row()
        try:
            self.store.keep(row["key"], row["value"])
            self._load()
        except (Deposed, Fenced) as lost:
            self._step_down(str(lost))
        except (StoreError, OSError) as problem:
            self._start_over(problem)

    def _step_down(self, why: str) -> None:
        log.warning("%s", why)
        self.leads = False
        self._inbox.refuse_all(why)
        self._election.leave()
        self._closing.wait(1.0)

    def _start_over(self, error: StoreError | OSError) -> None:
        """The store or the engine failed: drop what was decided since the last commit, and load again.

        Commands are refused meanwhile: the jobs in memory are not those on record.
        """
        if not self._ready.is_set():
            raise error  # `start` tells its caller
        if isinstance(error, RefusedWrite) and self._is_refused_too_often():
            raise error  # it would be written and refused for ever
        if not self.leads:
            self.trouble = str(error)
            log.error("%s", error)
            self._closing.wait(1.0)
            return
        while not self._closing.is_set():
            try:
                self._election.check()  # a plane that was deposed has no trouble: another one has the answers
                self.trouble = str(error)
                log.error("%s", error)
                self._inbox.refuse_all(str(error), StoreError)
                if not disk_reserve.release(self.settings.folder):
                    self._closing.wait(1.0)
                self._election.check()
                # A full disk can be read: only a write shows that the plane can go on. It is tried before the
                # state is read, which takes long if there are many jobs.
                self.store.commit(Batch(values=[{"key": "written", "value": str(clocks.steady_now())}]))
                self._load()
            except (Deposed, Fenced) as lost:
                self._step_down(str(lost))
                return
            except (StoreError, OSError) as again:
                error = again
            else:
                self.trouble = ""
                self.beat = time.monotonic()
                return
        self.leads = False  # the state in memory is not worth a snapshot

    def _is_refused_too_often(self) -> bool:
        now = time.monotonic()
        self._refused.append(now)
        return len(self._refused) == MOST_REFUSED and now - self._refused[0] < REFUSED_WITHIN

    # -- one tick

    def _tick(self) -> None:
        self.beat = time.monotonic()
        state, engine = self._led(), self.engine
        ledger = state.ledger
        if not (self._inbox or ledger.pending or ledger.batch):
            state.forecasts.loop_works(False)
            engine.wait(self._nap(state))
            state.forecasts.loop_works(True)
        self._election.check()
        began = time.perf_counter()
        reports = engine.poll()
        now = self._time(state)
        answered: Answered = []
        try:
            for command in self._inbox.changes():
                self._hear(command, state, now, answered)
            for report in reports:
                state.reports.last(report.job, report.epoch, engine, ledger, now)
                at, lasted = report.exit.ended_at, report.exit.lasted
                ledger.ended(report, now, self.clock.of_wall(at), self.clock.least_span(lasted))
            for confirmation in engine.confirmations():
                ledger.confirmed(confirmation, now)
            ledger.due(now)
            state.reports.read(engine, ledger, now)
            step = decide(state, now, self.settings.stand_in, self.statistics)
            self._commit(state, answered)
        except BaseException:
            for command, _ in answered:
                self._inbox.add(command)  # to be refused, or run again
            raise
        perform(
            ledger,
            engine,
            self.clock,
            devices=self.settings.devices,
            checkpoints=self.settings.folder / "checkpoints",
            accounts=state.accounts,
            check=self._election.check,
        )
        if step is not None:
            self.statistics.count(ledger, state.forecasts, step.decided, time.perf_counter() - began)
        for question in self._inbox.questions():
            self._hear(question, state, now, answered)

    def _time(self, state: PlaneState) -> int:
        """Now, or the start of the round that is due: a policy with rounds decides exactly then."""
        core, now = state.ledger.core, self.clock.now()
        quantum = core.policy.quantum
        if quantum is not None and core.alarm is not None and core.alarm <= now:
            return max(core.now, now - now % quantum, core.alarm)  # while jobs stop, alarms are not at rounds
        return max(core.now, now)

    def _nap(self, state: PlaneState) -> float:
        """Seconds until the next alarm of the core or the next begin time of a job."""
        times = [t for t in (state.ledger.core.alarm, state.ledger.index.next_begin()) if t is not None]
        if not times:
            return LONGEST_NAP
        return min(LONGEST_NAP, max(0.0, self.clock.seconds_until(min(times))))

    def _hear(self, command: Command[Any], state: PlaneState, now: int, answered: Answered) -> None:
        try:
            answer = command.run(state, now)
        except StoreError:  # the command may be half done: nothing of this tick may be recorded
            self._inbox.put_back(command)
            raise
        except DovetailError as error:
            command.future.set_exception(error)
        except Exception as error:
            log.exception("a command failed")
            command.future.set_exception(error)
        else:
            if command.changes:
                answered.append((command, answer))
            else:
                command.future.set_result(answer)

    def _commit(self, state: PlaneState, answered: Answered) -> None:
        ledger = state.ledger
        batch = ledger.batch
        if batch or ledger.forget:  # an attempt is forgotten only by a plane that leads
            self.store.commit(batch)
            self.statistics.commits += 1
            self.trouble = ""
        if batch.steps:
            mark = Mark(self.store.folder, batch.steps[-1]["number"])
            self._high_water.note(mark, durable=bool(batch.snapshots))
        # During a tick, a policy that is tried again counts as working: other threads must not see that.
        self._policy_failure = state.deciding.failure
        ledger.committed()
        state.keys.clear()
        for command, answer in answered:
            command.future.set_result(answer)
        if batch.changed and self._listeners:
            number = ledger.core.number
            changes = [Change(r.id, r.tenant, r.state.value, number) for r in batch.changed.values()]
            for listener in tuple(self._listeners):
                listener(changes)

    def _leave_snapshot(self) -> None:
        state = self._led()
        try:
            if state.ledger.core.number > state.snapshot_at:
                state.add_snapshot()
        except PlanError as error:  # the policy keeps a memory that cannot be stored
            log.warning("no last snapshot: %s", error)
        try:
            self._commit(state, [])
        except StoreError as error:
            log.error("no last snapshot: %s", error)
