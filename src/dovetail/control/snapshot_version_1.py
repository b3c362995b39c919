"""Snapshots of version 1, which kept the memory of a policy as a pickle. The pickle is never read.

Jobs keep their devices and what they have received, nodes that were drained stay drained. What only the
policy understood is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.core.active import Phase
from dovetail.core.journal import job_from_json
from dovetail.core.record import Record, job_record
from dovetail.core.snapshot import to_json
from dovetail.model.grant import FULL, Spots, Terms

VERSION = 1
# The numbers of each job, in their order, by the names that they have today.
SUMS = (
    "held",
    "since",
    "live_at",
    "service",
    "executed",
    "done",
    "rate",
    "started_at",
    "waiting_since",
    "start_number",
    "epoch",
    "fails",
    "first_start",
    "forgiven",
    "priority",
    "promise",
    "stage",
    "stops",
    "stage_since",
)


def upgraded(taken: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot of version 1 as one of today, without the memory of the policy."""
    record = Record(
        nodes=taken["nodes"],
        now=taken["now"],
        number=taken["number"],
        decisions=taken["decisions"],
        seq=taken["seq"],
        starts=taken["turns"],
        running=taken["running"],
        stopping={job: _spots(spots) for job, spots in taken["releasing"].items()},
        closed=dict(taken["closed"]),
    )
    for job in taken["jobs"]:
        spots = None if job["spots"] is None else _spots(job["spots"])
        state = dict(zip(SUMS, job["sums"], strict=True)) | {
            "spots": spots,
            "terms": FULL if job["terms"] is None else Terms(**job["terms"]),
            "phase": _phase(job),
        }
        kept = job_record(job_from_json(job["spec"]), job["seq"], **state)
        kept.awaiting = None if job["awaiting"] is None else frozenset(job["awaiting"])
        record.jobs.append(kept)
    return to_json(record)


def _phase(job: Mapping[str, Any]) -> Phase:
    if job["spots"] is None:
        return Phase.WAITING
    return Phase.RUNNING if job["awaiting"] is None else Phase.GRANTED


def _spots(read: Any) -> Spots:
    return tuple(tuple(spot) for spot in read)
