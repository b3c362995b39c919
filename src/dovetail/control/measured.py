"""What jobs report of themselves: their last words for people, their speeds for the throughput matrix.

A policy hears of speeds as the core does of any progress: as a rate against the job's reference run. Nobody
says what that is for a job that only reports steps a second, so it is the type on which its model was
measured first; on others it is as much faster or slower as it reports.
"""

from __future__ import annotations

import time
from typing import Any

from dovetail.control.ledger import Ledger
from dovetail.control.records import Record
from dovetail.control.states import State
from dovetail.control.store import Store
from dovetail.engines.launch import Engine

EVERY = 2.0  # real seconds between looks
NEWS = 0.05  # a rate that differs by less from the last is none: every one is a step of the journal


class Measured:
    """Reads the reports of running jobs now and then."""

    def __init__(self, store: Store) -> None:
        self._offsets: dict[tuple[str, int], int] = {}
        self._rates: dict[tuple[str, str, int], tuple[float, int]] = {
            (row["model"], row["type"], row["gpus"]): (row["rate"], row["count"]) for row in store.speeds()
        }
        self._first: dict[tuple[str, int], str] = {}  # the reference type of a model on so many GPUs
        for (model, kind, gpus), _ in sorted(self._rates.items(), key=lambda item: -item[1][1]):
            self._first.setdefault((model, gpus), kind)
        self._next = 0.0

    def read(self, engine: Engine, ledger: Ledger, now: int) -> None:
        """Take in what was reported since the last look."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        running = [r for r in ledger.book if r.state is State.RUNNING]
        current = {(r.id, r.epoch) for r in running}
        for gone in self._offsets.keys() - current:
            del self._offsets[gone]
        for record in running:
            self._look(record, engine, ledger, now)

    def last(self, job: str, epoch: int, engine: Engine, ledger: Ledger, now: int) -> None:
        """Its attempt has ended: take in what it said since."""
        record = ledger.book.records.get(job)
        if record is not None and record.epoch == epoch:
            self._look(record, engine, ledger, now)

    def _look(self, record: Record, engine: Engine, ledger: Ledger, now: int) -> None:
        attempt = (record.id, record.epoch)
        lines, self._offsets[attempt] = engine.reports(*attempt, self._offsets.get(attempt, 0))
        if lines:
            self._take(record, lines, ledger, now)

    def _take(self, record: Record, lines: list[dict[str, Any]], ledger: Ledger, now: int) -> None:
        last = {**(record.progress or {}), **lines[-1]}
        record.progress = {str(name)[:64]: value for name, value in list(last.items())[:20] if _small(value)}
        ledger.batch.changed[record.id] = record
        rate = record.progress.get("steps_per_second")
        if not record.model or not isinstance(rate, int | float) or rate <= 0:
            return
        job = ledger.core.jobs.get(record.id)
        if job is None or not job.spots:
            return
        kinds = {ledger.core.cluster.nodes[spot[0]].type.name for spot in job.spots if spot[1]}
        if len(kinds) != 1:
            return
        key = (record.model, kinds.pop(), record.gpus)
        mean, count = self._rates.get(key, (0.0, 0))
        count += 1
        mean += (rate - mean) / min(count, 100)  # old measurements fade
        self._rates[key] = (mean, count)
        ledger.batch.speeds.append(
            {"model": key[0], "type": key[1], "gpus": key[2], "rate": mean, "count": count, "time": now}
        )
        first = self._first.setdefault((key[0], key[2]), key[1])
        against = mean / self._rates[key[0], first, key[2]][0]  # means: noise is no news
        if job.rate > 0 and abs(against / job.rate - 1.0) > NEWS:
            ledger.progressed(record, against, now)


def _small(value: object) -> bool:
    return isinstance(value, int | float | bool) or (isinstance(value, str) and len(value) <= 200)
