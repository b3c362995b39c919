"""Snapshots: a core's record as JSON, so that a plane need not replay its whole journal when it starts.

A core that is restored from a snapshot takes the same steps as the original. Under another policy or on
another cluster, a snapshot keeps every job and the service it has received. What only the old policy
understood (memory, stages, calendar) is dropped. A job waits again if its devices no longer exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from dovetail.core.active import RUNNING, WAITING, Phase
from dovetail.core.core import Core
from dovetail.core.journal import action_from_json, action_to_json, job_from_json, job_to_json
from dovetail.core.memory import from_plain, to_plain
from dovetail.core.record import (
    JobRecord,
    Promises,
    Record,
    hold,
    job_of,
    rebuilt,
    recorded,
    stop_growing,
)
from dovetail.model.action import Stop
from dovetail.model.cluster import Cluster
from dovetail.model.errors import JournalError, PlanError
from dovetail.model.estimate import task_range
from dovetail.model.grant import FULL, Spots, Terms
from dovetail.model.loss import LossPoint
from dovetail.model.view import Policy, Reservation

VERSION = 2


def snapshot(core: Core) -> dict[str, Any]:
    """All that is needed to go on from here, as JSON holds it. Taken between two calls of `handle`."""
    return to_json(recorded(core))


def restored(taken: Mapping[str, Any], cluster: Cluster, policy: Policy, seed: int = 0) -> Core:
    """A core that goes on where the snapshot was taken, under the same policy on the same cluster."""
    return rebuilt(Core(cluster, policy, seed), from_json(taken))


# -- JSON


def to_json(record: Record) -> dict[str, Any]:
    """A record as JSON holds it."""
    plain = {name: getattr(record, name) for name in Record.__slots__}
    return plain | {
        "version": VERSION,
        "memory": to_plain(record.memory),
        "jobs": [_job_to_json(job) for job in record.jobs],
        "calendar": {job: [r.start, r.end, r.nodes] for job, r in record.calendar.items()},
        "prices": list(record.prices.items()),
        "closed": list(record.closed.items()),
        "unreported": [action_to_json(action) for action in record.unreported],
        "promises": asdict(record.promises),
    }


def from_json(taken: Mapping[str, Any]) -> Record:
    """The record that was written so."""
    if taken.get("version") != VERSION:
        raise JournalError(f"a snapshot of version {taken.get('version')}; this release reads {VERSION}")
    named = {name: taken[name] for name in Record.__slots__}
    return Record(
        **named
        | {
            "memory": from_plain(taken["memory"]),
            "jobs": [_job_from_json(read) for read in taken["jobs"]],
            "stopping": {job: _spots(spots) for job, spots in taken["stopping"].items()},
            "calendar": {
                job: Reservation(start, end, tuple((node, devices) for node, devices in nodes))
                for job, (start, end, nodes) in taken["calendar"].items()
            },
            "holds": {owner: (_spots(spots), until) for owner, (spots, until) in taken["holds"].items()},
            "prices": dict(taken["prices"]),
            "closed": dict(taken["closed"]),
            "unreported": [action_from_json(action) for action in taken["unreported"]],
            "promises": Promises(**taken["promises"]),
        }
    )


def _job_to_json(job: JobRecord) -> dict[str, Any]:
    terms = job.state["terms"]
    return {
        "spec": job_to_json(job.spec),
        "seq": job.seq,
        "state": job.state | {"terms": None if terms == FULL else asdict(terms)},
        "awaiting": None if job.awaiting is None else sorted(job.awaiting),
        "timer": job.timer,
    }


def _job_from_json(read: Mapping[str, Any]) -> JobRecord:
    state = dict(read["state"])
    state["phase"] = Phase(state["phase"])
    state["terms"] = FULL if state["terms"] is None else Terms(**state["terms"])
    for name in ("spots", "runs_on", "suspended_on"):  # snapshots of earlier releases have no others
        state[name] = None if state.get(name) is None else _spots(state[name])
    state.setdefault("noise_scale", None)  # likewise
    state["loss"] = None if state.get("loss") is None else LossPoint(*state["loss"])
    awaiting = None if read["awaiting"] is None else frozenset(read["awaiting"])
    return JobRecord(job_from_json(read["spec"]), read["seq"], state, awaiting, read["timer"])


def _spots(read: Any) -> Spots:
    return tuple(cast("tuple[int, int, int, int, int]", tuple(spot)) for spot in read)


# -- another policy, another cluster


def moved_to(
    taken: Mapping[str, Any],
    cluster: Cluster,
    policy: Policy,
    seed: int = 0,
    held: Mapping[str, Spots] | None = None,
) -> tuple[Core, list[Stop]]:
    """`moved`, from a snapshot."""
    return moved(from_json(taken), cluster, policy, seed, held)


def moved(
    record: Record,
    cluster: Cluster,
    policy: Policy,
    seed: int = 0,
    held: Mapping[str, Spots] | None = None,
) -> tuple[Core, list[Stop]]:
    """The same jobs under another policy or on another cluster, and the jobs that have to stop for it.

    Nodes are known by their names. A job on a node that is gone waits again, and so does a gang that is not
    whole, which only its own policy knows how to complete. A job that the new cluster could never hold is
    left out; the caller learns that by comparing. `held` tells what attempts still hold on the new cluster: a
    job that does not go on there keeps it until it has stopped.
    """
    number = {old: cluster.number.get(name) for old, name in enumerate(record.nodes)}

    def on_new(spots: Spots) -> Spots | None:
        """The same devices of the same nodes, if they are still there."""
        if any(number.get(spot[0]) is None for spot in spots):
            return None
        found = tuple((cast("int", number[spot[0]]), *spot[1:]) for spot in spots)
        fits = all(spot[1] < 1 << cluster.nodes[spot[0]].gpus for spot in found)
        return found if fits else None

    core = Core(cluster, policy, seed)
    core.now, core.number, core.seq = record.now, record.number, record.seq
    core.unreported = list(record.unreported)
    core.closed = {new: why for old, why in record.closed.items() if (new := number.get(old)) is not None}
    stopping = core.stopping.held
    stopping.update({job: s for job, spots in record.stopping.items() if (s := on_new(spots)) is not None})
    for kept in record.jobs:
        if core.room.ever(kept.spec.shape):
            kept.timer = None
            stop_growing(kept)
            kept.state |= {"stage": 0, "forgiven": 0, "stage_since": kept.spec.arrived_at}
            kept.state["suspended_on"] = (
                None if (on := kept.state.get("suspended_on")) is None else on_new(on)
            )
            core.jobs[kept.spec.id] = job_of(core, kept)
    stops: list[Stop] = []
    for job_id in record.running:
        job = core.jobs.get(job_id)
        if job is None or job.spots is None:
            continue
        spots = on_new(job.spots)
        whole = job.held >= task_range(job.shape, job.traits)[0] * job.shape.load // job.shape.tasks
        if job.phase is RUNNING and spots is not None and whole and _fits(core, spots):
            job.spots = spots
            hold(core, job)
            if core.order.until is not None:
                core.arm(job)
            continue
        if job.phase is RUNNING:  # it starts again once it has stopped
            stopping[job.id] = spots or ()
            job.stops += 1
            stops.append(Stop(job.id, job.epoch, "moved"))
        job.end(core.now)
        job.awaiting = None
    for job in core.jobs.values():
        if job.phase is WAITING:
            core.enqueue(job)
    stopping.update({job: spots for job, spots in (held or {}).items() if job not in core.running})
    for node in core.closed:
        core.room.close(node)
    core.starts = record.starts
    core.changed = True
    core.attention.set_alarm()
    return core, stops


def _fits(core: Core, spots: Spots) -> bool:
    try:
        core.room.take(spots)
    except PlanError:
        return False
    core.room.give(spots)
    return True
