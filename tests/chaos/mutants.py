"""For each rule a product that breaks it: a rule that reports nothing then would be worth nothing.

Each mutant changes one thing in the product's code, and is played in a short world. Without the mutant the
same world keeps all rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from unittest.mock import patch

from dovetail.control import launching, ledger, lists, retention
from dovetail.control.election import FileElection
from dovetail.control.ledger import Ledger
from dovetail.control.plane import Plane
from dovetail.control.states import State
from dovetail.control.steady_time import SteadyTime
from dovetail.core.journal import step_line
from dovetail.engines.local import supervisor
from dovetail.engines.local.attempt_files import ENDED, EXIT
from dovetail.engines.local.engine import LocalEngine
from dovetail.engines.local.json_files import write_json
from dovetail.engines.local.supervisor import KILLED_CODE, TERMINATED_CODE, Supervisor

Patched = tuple[Any, str, Any]  # where, which name, and what stands there instead


@dataclass(frozen=True, slots=True)
class Mutant:
    """A product with one defect, and a world that meets it."""

    defect: str
    patched: Callable[[], Patched]
    seed: int = 2
    hours: float = 1.0
    faults: tuple[str, ...] = ("rubbish",)


@contextmanager
def mutated(mutant: str) -> Iterator[None]:
    """The product has this defect."""
    place, name, new = (MUTANTS | MORE_MUTANTS)[mutant].patched()
    with patch.object(place, name, new):
        yield


def _forgets_submissions() -> Patched:
    submit, calls = Ledger.submit, count()

    def forgetful(self: Ledger, records: Any, asked: Any, now: int) -> None:
        if next(calls) % 3:
            submit(self, records, asked, now)

    return Ledger, "submit", forgetful


def _reopens_cancelled_jobs() -> Patched:
    commit = Ledger.committed

    def reopening(self: Ledger) -> None:
        changed = self.batch.changed.values()
        cancelled = [record for record in changed if record.state is State.CANCELLED]
        commit(self)
        for record in cancelled:
            record.state = State.FAILED
            self._touch(record)

    return Ledger, "committed", reopening


def _starts_attempts_again() -> Patched:
    return Supervisor, "recover", lambda self, *_: self.run()


def _does_not_wait_for_the_end() -> Patched:
    stop = LocalEngine.stop

    def hasty(self: LocalEngine, job: str, epoch: int, why: str, grace: int) -> None:
        stop(self, job, epoch, why, grace)
        self._end((job, epoch), "stopped", "it will stop soon", TERMINATED_CODE)
        self.ring()

    return LocalEngine, "stop", hasty


def _gives_the_first_devices() -> Patched:
    shares_of = launching.shares_of

    def first(spots: Any, shape: Any, cluster: Any, names: Any, **more: Any) -> Any:
        shares = shares_of(spots, shape, cluster, names, **more)
        return tuple(replace(s, devices=names[s.node][: len(s.devices)]) for s in shares)

    return launching, "shares_of", first


def _does_not_hold() -> Patched:
    return Ledger, "hold", lambda self, record, now, by: True


def _loses_every_end() -> Patched:
    return Supervisor, "_verdict", lambda self: (KILLED_CODE, "lost", "it is said to be lost")


def _does_not_sync_ends() -> Patched:
    def lax(folder: str, name: str, value: Any, **more: Any) -> None:
        if name in (EXIT, ENDED):
            more["durable"] = False
        write_json(folder, name, value, **more)

    return supervisor, "write_json", lax


def _lists_all_tenants() -> Patched:
    return lists, "visible", lambda caller: []


def _does_not_tell_the_core() -> Patched:
    def quiet(self: Ledger, record: Any, priority: int, now: int) -> bool:
        record.priority = priority
        self._touch(record)
        return True

    return Ledger, "prioritise", quiet


def _leaves_events_out() -> Patched:
    return ledger, "step_line", lambda step: step_line(step._replace(events=step.events[1:]))


def _never_leads() -> Patched:
    return FileElection, "won", lambda self, *_: False


def _never_rests() -> Patched:
    return Plane, "_nap", lambda self, state: 0.0


def _stands_still() -> Patched:
    return SteadyTime, "now", lambda self: self._now


def _charges_nothing() -> Patched:
    close = Ledger._close
    return Ledger, "_close", lambda self, record, exit, at: close(self, record, exit, record.started_at or at)


def _keeps_nothing() -> Patched:
    return retention, "oldest_kept", lambda store, now, *_: now


MUTANTS = {  # by the rule that must report it
    "accepted": Mutant("a ledger forgets every third submission", _forgets_submissions),
    "final": Mutant("jobs that were cancelled have failed a moment later", _reopens_cancelled_jobs),
    "decided": Mutant(
        "a supervisor starts an attempt again that was started before",
        _starts_attempts_again,
        faults=("kill-supervisor",),
    ),
    "one attempt": Mutant(
        "an attempt that is told to stop counts as ended", _does_not_wait_for_the_end, seed=3
    ),
    "one holder": Mutant("each attempt gets the first devices of its node", _gives_the_first_devices),
    "eligible": Mutant("jobs are said to be held, and are not", _does_not_hold),
    "done": Mutant("a job that ended with 0 is reported as lost", _loses_every_end),
    "tenant": Mutant("a list shows the jobs of all tenants", _lists_all_tenants),
    "same story": Mutant("a new priority is not told to the core", _does_not_tell_the_core),
    "journal": Mutant("the first event of each step is left out of the journal", _leaves_events_out),
    "leads": Mutant("no plane wins the election, and none says why", _never_leads),
    "idle": Mutant("a plane does not wait for what is next", _never_rests),
    "time": Mutant("the clock of the plane stands still", _stands_still, seed=3),
    "charged": Mutant("an attempt is charged nothing", _charges_nothing),
    "kept": Mutant("output is removed as soon as a job has ended", _keeps_nothing, faults=("kill-plane",)),
}
MORE_MUTANTS = {
    "unsynced": Mutant(
        "the end of a job is written and reported, and a power cut takes it",
        _does_not_sync_ends,
        seed=7,
        faults=("power-loss",),
    ),
}
