"""Reports of running jobs: their progress for users, their speeds for the throughput matrix.

The core takes a speed as a rate against the job's reference run. A job that only reports steps per second has
no reference run, so the GPU type on which its model was measured first, with as many GPUs as the job asks
for, counts as rate 1.

A report with a loss and an epoch goes to the core once in an epoch, for policies that predict when jobs end.

Reports are input from jobs, which may be hostile: `report_values` says which values are kept. Speeds are kept
by tenant, so that a tenant cannot falsify those of another.
"""

from __future__ import annotations

import time

from dovetail.control.ledger import Ledger
from dovetail.control.records import Record
from dovetail.control.report_values import checked_report, is_checkpoint, loss_of, merged_progress, rate_of
from dovetail.control.states import State
from dovetail.control.store import Store
from dovetail.engines.contract import Engine
from dovetail.model.grant import devices_of

EVERY = 2.0  # seconds of the wall clock between two reads
LEAST_CHANGE = 0.05  # a smaller change of the rate is ignored: each one is a step of the journal
FACTORS = (1e-4, 1e4)  # by which a model may be slower or faster on another type; no two GPUs differ more

Cell = tuple[str, str, str, int]  # tenant, model, type and number of GPUs


class JobReports:
    """Reads the reports of running jobs every few seconds."""

    def __init__(self, store: Store) -> None:
        self._offsets: dict[tuple[str, int], int] = {}
        self._rates: dict[Cell, tuple[float, int]] = {
            (row["tenant"], row["model"], row["type"], row["gpus"]): (row["rate"], row["count"])
            for row in store.speeds()
        }
        self._first: dict[tuple[str, str, int], str] = {}  # the reference type by tenant, model and GPUs
        for (tenant, model, kind, gpus), _ in sorted(self._rates.items(), key=lambda item: -item[1][1]):
            self._first.setdefault((tenant, model, gpus), kind)
        self._next = 0.0

    def read(self, engine: Engine, ledger: Ledger, now: int) -> None:
        """Read new reports of all running jobs, if it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        running = [r for r in ledger.index if r.state is State.RUNNING]
        current = {(r.id, r.epoch) for r in running}
        for gone in self._offsets.keys() - current:
            del self._offsets[gone]
        for record in running:
            self._read(record, engine, ledger, now)

    def last(self, job: str, epoch: int, engine: Engine, ledger: Ledger, now: int) -> None:
        """Read the last reports of an attempt that has ended."""
        record = ledger.index.records.get(job)
        if record is not None and record.epoch == epoch:
            self._read(record, engine, ledger, now)

    def _read(self, record: Record, engine: Engine, ledger: Ledger, now: int) -> None:
        attempt = (record.id, record.epoch)
        lines, self._offsets[attempt] = engine.reports(*attempt, self._offsets.get(attempt, 0))
        if lines:
            self._take(record, lines, ledger, now)

    def _take(self, record: Record, lines: list[dict[str, object]], ledger: Ledger, now: int) -> None:
        record.progress = dict(merged_progress(record.progress or {}, lines))
        ledger.batch.changed[record.id] = record
        last = next((line for line in reversed(lines) if not is_checkpoint(line)), None)
        if last is None or (job := ledger.core.jobs.get(record.id)) is None or not job.spots:
            return
        said = checked_report(last)
        point, rate = loss_of(said), rate_of(said)
        if point is not None and job.started and (job.loss is None or point[1] > job.loss.epoch):
            ledger.progressed(record, job.rate, now, *point)
        if not record.model or rate is None:
            return
        kinds = {ledger.core.cluster.nodes[spot[0]].type.name for spot in job.spots if spot[1]}
        if len(kinds) != 1:
            return
        held = devices_of(job.spots)  # those of an elastic job change
        tenant, model, kind, gpus = key = (record.tenant, record.model, kinds.pop(), held)
        mean, count = self._rates.get(key, (0.0, 0))
        count += 1
        mean += (rate - mean) / min(count, 100)  # old measurements fade
        self._rates[key] = (mean, count)
        ledger.batch.speeds.append(
            {
                "tenant": tenant,
                "model": model,
                "type": kind,
                "gpus": gpus,
                "rate": mean,
                "count": count,
                "time": now,
            }
        )
        self._first.setdefault((tenant, model, gpus), kind)
        first = self._first.get((tenant, model, record.gpus))
        if first is None:  # an elastic job that has not had what it asks for
            return
        against = mean / self._rates[tenant, model, first, record.gpus][0]  # means: noise does not count
        against = min(max(against, FACTORS[0]), FACTORS[1])
        if job.rate > 0 and abs(against / job.rate - 1.0) > LEAST_CHANGE:
            ledger.progressed(record, against, now)
