"""The core's whole state as plain values, so that a plane need not replay its life to wake up.

A snapshot taken and loaded again has the same future: that is what the property tests ask of it. Loaded under
another policy or on another cluster it keeps every job and what it has received; what only the old policy
understood (memory, stages, calendar) is left behind, and a job whose devices are gone waits again.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from dovetail.core.active import ActiveJob
from dovetail.core.core import Core
from dovetail.core.journal import job_from_json, job_to_json
from dovetail.model.action import Stop
from dovetail.model.cluster import Cluster
from dovetail.model.errors import PlanError
from dovetail.model.grant import FULL, Spots, Terms
from dovetail.model.view import Policy, Reservation

VERSION = 1

# What `ActiveJob` adds up or is told, beside its grant; the rest is worked out again.
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
    "turn",
    "epoch",
    "fails",
    "first_start",
    "forgiven",
    "priority",
    "promise",
    "stage",
    "stops",
    "turned_at",
)


def snapshot(core: Core) -> dict[str, Any]:
    """All that is needed to go on from here, as JSON holds it. Taken between two calls of `handle`."""
    rests = core._rests
    return {
        "version": VERSION,
        "now": core.now,
        "number": core.number,
        "seq": core._seq,
        "turns": core._turns,
        "moved": core.moved,
        "review_at": core._review_at,
        "round_due": core._round_due,
        "clocked": core._clocked,
        "alarm": core.alarm,
        "rests": rests if isinstance(rests, bool) else rests.id,
        "decisions": core.decisions,
        "welcomes": core._welcomes,
        "memory": None if core.memory is None else base64.b64encode(pickle.dumps(core.memory)).decode(),
        "nodes": [node.name for node in core.cluster.nodes],
        "calendar": {job: [r.start, r.end, r.nodes] for job, r in core.calendar.items()},
        "holds": {owner: [spots, until] for owner, (spots, until) in core.holds.items()},
        "prices": list(core.prices.items()),
        "releasing": core._handover.held.copy(),
        "closed": list(core._closed.items()),
        "heirs": {other: [job.id for job in heirs] for other, heirs in core._handover.heirs.items()},
        "arrived": [job.id for job in core.arrived],
        "running": list(core.running),
        "jobs": [_job_to_json(job) for job in core.jobs.values()],
    }


def _job_to_json(job: ActiveJob) -> dict[str, Any]:
    return {
        "spec": job_to_json(job.spec),
        "seq": job.seq,
        "spots": job.spots,
        "terms": None if job.terms == FULL else asdict(job.terms),
        "awaiting": None if job.awaiting is None else sorted(job.awaiting),
        "timer": None if job.timer is None else job.timer[0],
        "sums": [getattr(job, name) for name in SUMS],
    }


def restored(taken: Mapping[str, Any], cluster: Cluster, policy: Policy, seed: int = 0) -> Core:
    """A core that goes on where the snapshot was taken, under the same policy on the same cluster."""
    core = Core(cluster, policy, seed)
    core.now, core.number, core._seq, core.moved = (taken[k] for k in ("now", "number", "seq", "moved"))
    core._review_at, core._round_due = taken["review_at"], taken["round_due"]
    core.memory = None if taken["memory"] is None else pickle.loads(base64.b64decode(taken["memory"]))
    core.calendar = {
        job: Reservation(start, end, tuple((node, devices) for node, devices in nodes))
        for job, (start, end, nodes) in taken["calendar"].items()
    }
    core.holds = {owner: (_spots(spots), until) for owner, (spots, until) in taken["holds"].items()}
    core.prices = dict(taken["prices"])
    core._closed = dict(taken["closed"])
    core._handover.held = {job: _spots(spots) for job, spots in taken["releasing"].items()}
    for spots, _ in core.holds.values():
        core.room.take(spots)
    jobs = {read["spec"]["id"]: _job_from_json(core, read) for read in taken["jobs"]}
    core.jobs = jobs
    for job_id in taken["running"]:
        _hold(core, jobs[job_id])
    timers = {read["spec"]["id"]: read["timer"] for read in taken["jobs"]}
    for job in jobs.values():
        if job.spots is None:
            core.queue.push(job, core.now)
        if (at := timers[job.id]) is not None:
            core._timers.set(job, at)
    for other, heirs in taken["heirs"].items():
        core._handover.heirs[other] = [jobs[job] for job in heirs if job in jobs]
    rests = taken["rests"]
    core._rests = rests if isinstance(rests, bool) else jobs.get(rests, False)
    core._clocked, core.alarm = taken["clocked"], taken["alarm"]
    core.decisions, core._welcomes = taken["decisions"], taken["welcomes"]
    core.arrived = [jobs[job] for job in taken["arrived"] if job in jobs]
    for node in core._closed:
        core.room.close(node)
    core._turns = taken["turns"]
    return core


def moved_to(
    taken: Mapping[str, Any],
    cluster: Cluster,
    policy: Policy,
    seed: int = 0,
    held: Mapping[str, Spots] | None = None,
) -> tuple[Core, list[Stop]]:
    """The same jobs under another policy or on another cluster, and who has to stop for it.

    Nodes are known by their names. Jobs on nodes that are gone wait again, as do gangs that are not whole,
    which only their own policy knows how to complete. A job that the new cluster could never hold is left
    out; whoever asked for the change learns that by comparing. `held` tells what of the new cluster attempts
    still have in their hands: who does not go on there keeps it until it has stopped.
    """
    stops: list[Stop] = []
    core = Core(cluster, policy, seed)
    core.now, core.number, core._seq = taken["now"], taken["number"], taken["seq"]
    names: list[str] = taken["nodes"]
    place = {old: cluster.number.get(name) for old, name in enumerate(names)}

    def there(spots: Spots) -> Spots | None:
        """The same devices of the same nodes, if they are still there."""
        if any(place.get(spot[0]) is None for spot in spots):
            return None
        found = tuple((cast("int", place[spot[0]]), *spot[1:]) for spot in spots)
        fits = all(spot[1] < 1 << cluster.nodes[spot[0]].gpus for spot in found)
        return found if fits else None

    for old, why in taken["closed"]:
        if (node := place.get(old)) is not None:
            core._closed[node] = why
    core._handover.held = {
        job: spots for job, read in taken["releasing"].items() if (spots := there(_spots(read))) is not None
    }
    jobs = {read["spec"]["id"]: _job_from_json(core, read) for read in taken["jobs"]}
    core.jobs = {job.id: job for job in jobs.values() if core.room.ever(job.shape)}
    for job_id in taken["running"]:
        job = core.jobs.get(job_id)
        if job is None or job.spots is None:
            continue
        job.stage, job.forgiven, job.turned_at = 0, 0, job.spec.arrived_at
        spots = there(job.spots)
        whole = job.held >= job.shape.load
        if job.awaiting is None and spots is not None and whole and _fits(core, spots):
            job.spots = spots
            _hold(core, job)
            if core._order.until is not None:
                core._arm(job)
            continue
        if job.awaiting is None:  # it starts anew once it has left
            core._handover.held[job.id] = spots or ()
            job.stops += 1
            stops.append(Stop(job.id, job.epoch, "moved"))
        job.end(core.now)
        job.awaiting = None
    for job in core.jobs.values():
        if job.spots is None:
            job.stage, job.forgiven, job.turned_at = 0, 0, job.spec.arrived_at
            core.queue.push(job, core.now)
            core.arrived.append(job)
            if core._order.turns_waiting:
                core._arm(job)
    core._handover.held |= {job: spots for job, spots in (held or {}).items() if job not in core.running}
    for node in core._closed:
        core.room.close(node)
    core._turns = taken["turns"]
    core.moved = True
    core.alarm = core._next_alarm()
    return core, stops


def _fits(core: Core, spots: Spots) -> bool:
    try:
        core.room.take(spots)
    except PlanError:
        return False
    core.room.give(spots)
    return True


def _hold(core: Core, job: ActiveJob) -> None:
    """Put it where it was, in the order in which it came there."""
    turn = job.turn
    core.room.take(cast("Spots", job.spots))
    core.enter(job)
    job.turn = turn


def _job_from_json(core: Core, read: Mapping[str, Any]) -> ActiveJob:
    spec = job_from_json(read["spec"])
    job = ActiveJob(spec, read["seq"], core.room.need(spec.shape))
    job.spots = None if read["spots"] is None else _spots(read["spots"])
    job.terms = FULL if read["terms"] is None else Terms(**read["terms"])
    job.awaiting = None if read["awaiting"] is None else set(read["awaiting"])
    for name, value in zip(SUMS, read["sums"], strict=True):
        setattr(job, name, value)
    return job


def _spots(read: Any) -> Spots:
    return tuple(cast("tuple[int, int, int, int, int]", tuple(spot)) for spot in read)
