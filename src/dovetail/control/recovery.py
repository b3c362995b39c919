"""The core of a plane that starts, from its last snapshot and the journal after it.

A plane on another cluster or with another policy begins a new era of the journal with the same jobs. If a
snapshot is damaged, the one before it serves, and more of the journal is replayed. If the journal cannot be
replayed (the code of the policy has changed since), or no snapshot can be read, the jobs are taken from their
rows instead: only the memory of the policy is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from dovetail.control.ledger import CANCEL, HOLD
from dovetail.control.records import Record
from dovetail.control.snapshot_version_1 import upgraded
from dovetail.control.states import State
from dovetail.control.store import BadSnapshot, Store, StoreError, packed
from dovetail.core import record as core_record
from dovetail.core.active import Phase
from dovetail.core.core import Core
from dovetail.core.journal import (
    Header,
    cluster_to_json,
    header_line,
    parse_header,
    parse_step,
)
from dovetail.core.snapshot import moved_to, restored, snapshot, to_json
from dovetail.model.action import Stop
from dovetail.model.cluster import Cluster
from dovetail.model.errors import DovetailError, ReplayMismatch
from dovetail.model.grant import Spots
from dovetail.model.job import Job
from dovetail.model.view import Policy
from dovetail.policies.registry import made_policy


@dataclass(slots=True)
class Recovered:
    """A core ready to go on, and the rows that its era begins with."""

    core: Core
    header: Header
    era: int
    stops: list[Stop] = field(default_factory=list)  # of jobs that cannot go on where they run
    eras: list[dict[str, Any]] = field(default_factory=list)  # to be written with the next commit
    snapshots: list[dict[str, Any]] = field(default_factory=list)  # likewise
    said: list[str] = field(default_factory=list)  # lines for the log


def recovered(
    store: Store,
    era: Mapping[str, Any] | None,
    header: Header,
    policy: Policy,
    now: int,
    active: Sequence[Record],
    templates: Mapping[str, Job | None],
) -> Recovered:
    """The core of a plane that starts after `era`, under the policy and on the cluster of `header`.

    `active` and `templates` (by submission) are used if the journal cannot be replayed.
    """
    if era is None:
        core = Core(header.cluster, policy, header.seed)
        core.now = now
        return begun(Recovered(core, header, 0), "the plane was set up")
    old = parse_header(era["header"])
    kept = _first_version(store, era["id"])
    if kept is not None:
        why = f"the last snapshot is of version 1: the memory of policy {old.policy} is dropped"
        taken = upgraded(kept)
        core, stops = moved_to(taken, header.cluster, policy, header.seed, held_on(header.cluster, active))
        return begun(Recovered(core, header, era["id"] + 1, stops, said=[why]), why)
    said: list[str] = []  # snapshots that cannot be read
    try:
        taken = snapshot(core_after(store, era, said=said))
    except (StoreError, OSError):
        raise
    except Exception as error:  # replay runs the code of a policy, which may raise anything
        why = f"the journal cannot be replayed ({error}); the jobs are restored from their rows"
        number = max(store.last_step(), era["after"])
        at = max(now, era["time"], store.last_time() or 0)  # no step that was recorded is later
        taken = from_rows(active, templates, old.cluster, at, number)
        core, stops = moved_to(taken, header.cluster, policy, header.seed, held_on(header.cluster, active))
        stops += _not_running(core, active, stops)
        return begun(Recovered(core, header, era["id"] + 1, stops, said=[*said, why]), why)
    if same(old, header):
        core = restored(taken, header.cluster, policy, header.seed)
        return Recovered(core, header, era["id"], said=said)
    made = changed(taken, old, header, policy, era["id"], active)
    made.said += said
    return made


def _first_version(store: Store, era: int) -> dict[str, Any] | None:
    """The last snapshot of an era, if it is of version 1 and no step came after it."""
    for number in store.snapshots_of(era)[:1]:
        with suppress(BadSnapshot):
            kept = store.snapshot(era, number)
            if kept.get("version") == 1 and number == store.last_step():
                return kept
    return None


def _not_running(core: Core, records: Iterable[Record], stops: Iterable[Stop]) -> list[Stop]:
    """Stops of attempts that run on devices unknown to the core: their jobs start again after that."""
    told = {stop.job for stop in stops}
    return [
        Stop(record.id, record.epoch, "moved")
        for record in records
        if record.state is State.RUNNING
        and record.id in core.jobs
        and record.id not in core.running
        and record.id not in told
    ]


def changed(
    taken: Mapping[str, Any],
    old: Header,
    new: Header,
    policy: Policy,
    era: int,
    records: Iterable[Record],
    why: str = "",
) -> Recovered:
    """The same jobs under another header, in a new era. `records` are the jobs that are not over."""
    alike = old.policy == new.policy and dict(old.options) == dict(new.options)
    if alike and old.cluster.nodes == new.cluster.nodes:  # only tenants differ: the policy keeps its memory
        core = restored(taken, new.cluster, policy, new.seed)
        core.changed = True  # jobs that waited for a quota may start
        return begun(Recovered(core, new, era + 1), why or "tenants changed")
    core, stops = moved_to(taken, new.cluster, policy, new.seed, held_on(new.cluster, records))
    if not why:
        why = "the cluster changed" if alike else f"the policy changed from {old.policy} to {new.policy}"
    return begun(Recovered(core, new, era + 1, stops), why)


def same(one: Header, other: Header) -> bool:
    return (
        one.policy == other.policy
        and dict(one.options) == dict(other.options)
        and one.seed == other.seed
        and cluster_to_json(one.cluster) == cluster_to_json(other.cluster)
    )


def begun(made: Recovered, why: str) -> Recovered:
    """Add the rows with which an era begins: its header, and a snapshot."""
    core = made.core
    made.eras.append(
        {
            "id": made.era,
            "after": core.number,
            "time": core.now,
            "header": header_line(made.header),
            "why": why[:500],
        }
    )
    made.snapshots.append({"era": made.era, "number": core.number, "state": packed(snapshot(core))})
    return made


def core_after(
    store: Store, era: Mapping[str, Any], number: int | None = None, said: list[str] | None = None
) -> Core:
    """The core of an era after a step, or after its last step. Damaged snapshots are named in `said`."""
    header = parse_header(era["header"])
    core = _last_readable(store, era["id"], header, number, [] if said is None else said)
    for line in store.steps(era["id"], core.number):
        old = parse_step(line)
        if number is not None and old.number > number:
            break
        new = core.handle(old.now, old.events, failure=old.failure)
        if new.actions != old.actions or new.number != old.number:
            raise ReplayMismatch(
                f"step {old.number} gave {new.actions}, the journal has {old.actions}; "
                f"the policy {header.policy} has changed since"
            )
    return core


def _last_readable(store: Store, era: int, header: Header, number: int | None, said: list[str]) -> Core:
    """The core at the last snapshot that can be read."""
    for at in store.snapshots_of(era, number):
        try:
            policy = made_policy(header.policy, header.options)
            return restored(store.snapshot(era, at), header.cluster, policy, header.seed)
        except (StoreError, OSError):
            raise
        except Exception as error:  # damaged content fails anywhere
            problem = f"{type(error).__name__}: {error}"
            said.append(f"the snapshot of era {era} after step {at} cannot be read ({problem})")
    before = "" if number is None else f" before step {number}"
    raise DovetailError(f"era {era} has no snapshot{before} that can be read")


def from_rows(
    records: Iterable[Record],
    templates: Mapping[str, Job | None],
    cluster: Cluster,
    now: int,
    number: int,
) -> dict[str, Any]:
    """A snapshot made of rows: which jobs run where, and which wait. `number` is that of the last step.

    The core knows no held jobs. A job that stops waits, unless it was cancelled or is to be held; its devices
    are in use until it has stopped (`held_on`).
    """
    taken = core_record.Record(nodes=[node.name for node in cluster.nodes], now=now, number=number)
    for record in records:
        template = templates[record.request]
        if template is None or not _in_core(record):
            continue
        eligible_at = record.eligible_at or record.submitted_at
        job = replace(template, id=record.id, arrived_at=eligible_at, priority=record.priority)
        spots = _spots(record, cluster) if record.state is State.RUNNING else None
        started = record.started_at or now
        kept = core_record.job_record(
            job,
            len(taken.jobs),
            live_at=started,
            started_at=started,
            epoch=record.epoch,
            first_start=record.first_started_at,
        )
        if spots:
            taken.starts += 1
            taken.running.append(record.id)
            kept.state |= {
                "phase": Phase.RUNNING,
                "spots": spots,
                "held": record.load,
                "since": started,
                "start_number": taken.starts,
            }
        taken.jobs.append(kept)
    taken.seq = len(taken.jobs)
    return to_json(taken)


def _in_core(record: Record) -> bool:
    """Whether the core has a job: it waits for nothing but devices, or holds some and may go on."""
    if record.state is State.STOPPING:
        return record.wanted not in (CANCEL, HOLD)
    return record.state in (State.PENDING, State.RUNNING)


def held_on(cluster: Cluster, records: Iterable[Record]) -> dict[str, Spots]:
    """The devices of a cluster that attempts hold; they may have been started on another cluster."""
    found: dict[str, Spots] = {}
    for record in records:
        if record.state in (State.RUNNING, State.STOPPING):
            parts = []
            for part in record.placement or ():
                node = cluster.number.get(part["node"])
                if node is not None:
                    mask = sum(1 << device for device in part["devices"] if device < cluster.nodes[node].gpus)
                    parts.append((node, mask, part.get("share", 1000), 0, 0))
            found[record.id] = tuple(parts)
    return found


def _spots(record: Record, cluster: Cluster) -> Spots | None:
    found = []
    for part in record.placement or ():
        node = cluster.number.get(part["node"])
        if node is None:
            return None
        mask = sum(1 << device for device in part["devices"])
        found.append((node, mask, part.get("share", 1000), record.cpus or 0, record.memory or 0))
    return tuple(found)
