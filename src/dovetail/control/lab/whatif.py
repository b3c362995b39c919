"""The live queue continued, as it is and as it might be.

Both futures start from a snapshot of the plane's core and are run forward in a simulated world, in which
every estimate is true and no job arrives (`sim.forward`). The second goes on under another policy, or on
another cluster, as a plane does that is told to change (`core.snapshot.moved`). Figures are over the jobs
of the caller that are known in both futures: what is compared is the same work.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any

from dovetail.bench.metrics import utilization
from dovetail.bench.policy_choice import PolicyChoice, make_policy
from dovetail.control.clock import iso
from dovetail.control.lab.json_options import policy_from_json
from dovetail.control.lab.questions import MoreNodes, Replacement, WhatIf
from dovetail.core.active import Phase
from dovetail.core.core import Core
from dovetail.core.journal import Header, parse_header
from dovetail.core.record import JobRecord, stop_growing
from dovetail.core.snapshot import from_json, moved, restored
from dovetail.model.action import Resize, Start, Stop
from dovetail.model.cluster import KNOWN_TYPES, Cluster, GpuType, Node
from dovetail.model.errors import DovetailError, InputError, UnknownName
from dovetail.model.event import FAILED, FINISHED, STOPPED
from dovetail.model.grant import load_of
from dovetail.model.units import SECOND, WHOLE
from dovetail.model.view import Policy
from dovetail.model.waiting import waiting_time
from dovetail.sim.forward import forward
from dovetail.sim.true_speed import ProfiledSpeed

Json = dict[str, Any]

BUDGET = 11.0  # seconds of CPU for each of the two futures
MOST_JOBS = 500  # that are named
MOST_NODES = 20_000


@dataclass(slots=True)
class Future:
    """What becomes of the jobs."""

    began: int
    gpus: int
    starts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    stops: dict[str, int] = field(default_factory=dict)
    held: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)  # from, until, milli-GPUs
    waits: set[str] = field(default_factory=set)  # at first
    lacks: set[str] = field(default_factory=set)  # no such cluster could ever hold them
    complete: bool = False


def continued(question: Mapping[str, Any]) -> Json:
    """Both futures; `question` holds what was asked, the snapshot, its header, and the tenant to show."""
    asked = WhatIf.model_validate(question["asked"])
    taken: Json = question["snapshot"]
    old = parse_header(question["header"])
    new = changed_header(old, asked)
    now = future(restored(taken, old.cluster, _policy(old), old.seed), taken)
    then = now if new == old else future(_moved(taken, old, new, asked.replace), taken)
    tenant = question["tenant"]
    mine = [
        read["spec"]["id"]
        for read in taken["jobs"]
        if tenant is None or read["spec"].get("tenant", "") == tenant
    ]
    mine.sort(key=lambda job: (now.starts.get(job, 1 << 62), now.ends.get(job, 1 << 62), job))
    shown = [job for job in mine if job in now.waits or job in then.waits]
    shown += [job for job in mine if job not in now.waits and job not in then.waits]
    return {
        "at": iso(now.began),
        "policy": [old.policy, new.policy],
        "gpus": [now.gpus, then.gpus],
        "now": outcome(now, then, mine),
        "then": outcome(then, now, mine),
        "jobs": [
            {
                "id": job,
                "starts": [iso(now.starts.get(job)), iso(then.starts.get(job))],
                "ends": [iso(now.ends.get(job)), iso(then.ends.get(job))],
            }
            for job in shown[:MOST_JOBS]
        ],
        "more": max(0, len(shown) - MOST_JOBS),
    }


# --- what is changed --------------------------------------------------------------------------------


def changed_header(old: Header, asked: WhatIf) -> Header:
    """The rules and the cluster that are asked about."""
    policy, options = old.policy, dict(old.options)
    if asked.policy is not None and asked.policy != policy:
        policy, options = asked.policy, {}
    if asked.policy is not None or asked.options:
        own = policy == old.policy  # chosen by an admin: it may be a file, which another one may not
        options |= policy_from_json(policy, asked.options, files=own).options
    cluster = old.cluster
    if asked.replace is not None:
        cluster = _replaced(cluster, asked.replace)
    for more in asked.add:
        cluster = _enlarged(cluster, more)
    return Header(cluster, policy, options, old.seed)


def _type(cluster: Cluster, name: str, speed: float | None, usual: float) -> GpuType:
    """A type by name: as it is there, as it is known, or a new one."""
    known = next((kind for kind in cluster.types if kind.name == name), None)
    if known is not None:
        if speed is not None and speed * usual != known.speed:
            raise InputError(f"there are {name} GPUs already, of speed {known.speed:g}; leave speed out")
        return known
    return replace(KNOWN_TYPES.get(name, GpuType(name)), speed=usual * (1.0 if speed is None else speed))


def _replaced(cluster: Cluster, asked: Replacement) -> Cluster:
    old = next((kind for kind in cluster.types if kind.name == asked.old), None)
    if old is None:
        raise UnknownName("GPU type of this cluster", asked.old, {kind.name for kind in cluster.types})
    new = _type(cluster, asked.new, asked.speed, old.speed)
    nodes = tuple(replace(node, type=new) if node.type.name == old.name else node for node in cluster.nodes)
    return Cluster(nodes, cluster.links, cluster.tenants)


def _enlarged(cluster: Cluster, more: MoreNodes) -> Cluster:
    """New nodes are like those of their type, if there are any."""
    if len(cluster.nodes) + more.nodes > MOST_NODES:
        raise InputError(f"a cluster has at most {MOST_NODES:,} nodes here; add fewer")
    kind = _type(cluster, more.type, more.speed, 1.0)
    like = next((node for node in cluster.nodes if node.type == kind), Node("", more.gpus, kind))
    names = (name for number in count() if (name := f"new{number}") not in cluster.number)
    added = tuple(replace(like, name=name, gpus=more.gpus) for name in islice(names, more.nodes))
    return Cluster((*cluster.nodes, *added), cluster.links, cluster.tenants)


def _policy(header: Header) -> Policy:
    return make_policy(PolicyChoice(header.policy, header.options))


def _moved(taken: Json, old: Header, new: Header, replacement: Replacement | None) -> Core:
    """The same jobs under the other header."""
    record = from_json(taken)
    if replacement is not None:
        for job in record.jobs:
            _on_new_type(job, record.now, new.cluster, replacement)
    core, _ = moved(record, new.cluster, _policy(new), new.seed)
    return core


def _on_new_type(kept: JobRecord, now: int, cluster: Cluster, asked: Replacement) -> None:
    """A job that asked for the old type takes the new one; a job on it goes on at its speed there."""
    stop_growing(kept)
    shape = kept.spec.shape
    if asked.old in shape.types:
        types = tuple(dict.fromkeys(asked.new if kind == asked.old else kind for kind in shape.types))
        kept.spec = replace(kept.spec, shape=replace(shape, types=types))
    state = kept.state
    spots = state["spots"] or ()
    if state["phase"] is not Phase.RUNNING or all(cluster.nodes[s[0]].type.name != asked.new for s in spots):
        return
    elapsed = now - state["since"]
    state["done"] += int(max(0, now - state["live_at"]) * state["rate"])
    state["service"] += state["held"] * elapsed // WHOLE
    state["executed"] += elapsed
    state["since"], state["live_at"] = now, max(now, state["live_at"])
    speed = ProfiledSpeed(cluster)
    state["rate"] = speed.rate(
        kept.spec.shape, kept.spec.traits, spots, state["terms"], (), state.get("noise_scale")
    )


# --- what comes of it -------------------------------------------------------------------------------


def future(core: Core, taken: Json, budget: float = BUDGET) -> Future:
    """Run to the end, or as far as the budget goes."""
    found = Future(core.now, core.cluster.gpus)
    found.lacks = {read["spec"]["id"] for read in taken["jobs"]} - core.jobs.keys()
    runs: dict[str, tuple[int, int]] = {}  # since when, and how much
    for job in core.jobs.values():
        if job.started:
            found.starts[job.id] = job.started_at
            runs[job.id] = (core.now, load_of(job.now_on))
        else:
            found.waits.add(job.id)
    known = set(core.jobs)
    until = time.process_time() + budget
    try:
        for step in forward(core):
            for at, kind, subject, _, _ in step.events:
                if kind in (FINISHED, STOPPED, FAILED):
                    _let_go(found, runs, subject, at)
                if kind == FINISHED:
                    found.ends[subject] = at
            for action in step.actions:
                if isinstance(action, Start | Resize):
                    _let_go(found, runs, action.job, step.now)
                    runs[action.job] = (step.now, load_of(action.spots))
                    found.starts.setdefault(action.job, step.now)
                elif isinstance(action, Stop):
                    found.stops[action.job] = found.stops.get(action.job, 0) + 1
            if time.process_time() > until:
                break
        else:
            found.complete = found.ends.keys() >= known
    except DovetailError:  # a policy may fail on a state ahead of its memory
        pass
    for name in list(runs):
        _let_go(found, runs, name, core.now)
    return found


def _let_go(found: Future, runs: dict[str, tuple[int, int]], job: str, at: int) -> None:
    if (run := runs.pop(job, None)) is not None and at > run[0]:
        found.held.setdefault(job, []).append((run[0], at, run[1]))


def outcome(one: Future, other: Future, mine: Sequence[str]) -> Json:
    """Figures of one future, over the jobs of which both know."""
    began = one.began
    both = [job for job in mine if job in one.ends and job in other.ends]
    waited = [_waited(one, job) for job in both if _waited(one, job) or _waited(other, job)]
    first = [
        one.starts[job] - began
        for job in mine
        if (job in one.waits or job in other.waits) and job in one.starts and job in other.starts
    ]
    ended = [one.ends[job] - began for job in both]
    last = max(ended, default=0)
    used = sum(
        max(0, min(until, began + last) - since) * load
        for job in mine
        for since, until, load in one.held.get(job, ())
    )
    return {
        "waiting": sum(1 for job in mine if job in one.waits),
        "mean_wait": _mean(waited),
        "mean_first_start_after": _mean(first),
        "mean_finish": _mean(ended),
        "last_finish": last / SECOND if ended else None,
        "preemptions": sum(one.stops.get(job, 0) for job in mine),
        "utilization": utilization(used, last, one.gpus),
        "left_out": sum(1 for job in mine if job in one.lacks),
        "complete": one.complete,
    }


def _waited(one: Future, job: str) -> int:
    """From now to its end."""
    ran = sum(until - since for since, until, _ in one.held.get(job, ()))
    wait: int = waiting_time(one.began, one.ends[job], ran)
    return wait


def _mean(spans: Sequence[int]) -> float | None:
    """In seconds."""
    return sum(max(0, span) for span in spans) / len(spans) / SECOND if spans else None
