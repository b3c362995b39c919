"""How a plane wakes up: the core as it was, from the last snapshot and the journal behind it.

A plane that finds another cluster or is asked for another policy begins a new era of the journal with the
same jobs. If the journal cannot be played again (the code of the policy has changed since), the jobs are
taken from their rows instead: nothing is lost but what the policy had learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.control.records import Record
from dovetail.control.states import State
from dovetail.control.store import Store, packed
from dovetail.core.core import Core
from dovetail.core.journal import (
    Header,
    cluster_from_json,
    cluster_to_json,
    header_line,
    job_to_json,
    parse_header,
    parse_step,
)
from dovetail.core.snapshot import SUMS, moved_to, restored, snapshot
from dovetail.model.action import Stop
from dovetail.model.cluster import Cluster
from dovetail.model.errors import DovetailError, ReplayMismatch
from dovetail.model.grant import Spots
from dovetail.model.job import Job
from dovetail.policies.table import POLICIES


@dataclass(slots=True)
class Woken:
    """A core ready to go on."""

    core: Core
    header: Header
    era: int
    stops: list[Stop] = field(default_factory=list)  # who cannot go on where it runs
    eras: list[dict[str, Any]] = field(default_factory=list)  # to be written,
    snapshots: list[dict[str, Any]] = field(default_factory=list)  # with the next commit
    said: list[str] = field(default_factory=list)  # what a person should know


def woken(store: Store, header: Header, now: int, jobs_of_rows: Mapping[str, Job]) -> Woken:
    """The core of a plane that starts, under the policy and on the cluster of `header`.

    `jobs_of_rows` holds what the core would be told of each job that is active, for the case that the journal
    cannot be played again.
    """
    policy = POLICIES.make(header.policy, **dict(header.options))
    era = store.era()
    if era is None:
        core = Core(header.cluster, policy, header.seed)
        core.now = now
        return begun(Woken(core, header, 0), "the plane was set up")
    old = parse_header(era["header"])
    said: list[str] = []
    try:
        taken = _played(store, era["id"], old)
    except (DovetailError, KeyError, TypeError, ValueError, AttributeError, ImportError) as error:
        said.append(f"the journal could not be played again ({error}); the jobs are taken from their rows")
        taken = from_rows(store.active(), jobs_of_rows, old.cluster, max(now, era["time"]), store)
        core, stops = moved_to(
            taken, header.cluster, policy, header.seed, held_on(header.cluster, store.active())
        )
        return begun(Woken(core, header, era["id"] + 1, stops, said=said), said[0])
    if same(old, header):
        return Woken(restored(taken, header.cluster, policy, header.seed), header, era["id"], said=said)
    return changed(taken, old, header, era["id"], store.active())


def changed(taken: Mapping[str, Any], old: Header, new: Header, era: int, records: Iterable[Record]) -> Woken:
    """The same jobs under another header: a new era. `records` are those that are not over."""
    policy = POLICIES.make(new.policy, **dict(new.options))
    alike = old.policy == new.policy and dict(old.options) == dict(new.options)
    if alike and old.cluster.nodes == new.cluster.nodes:  # only tenants differ: the policy may go on
        return begun(Woken(restored(taken, new.cluster, policy, new.seed), new, era + 1), "tenants changed")
    core, stops = moved_to(taken, new.cluster, policy, new.seed, held_on(new.cluster, records))
    why = "the cluster changed" if alike else f"the policy changed from {old.policy} to {new.policy}"
    return begun(Woken(core, new, era + 1, stops), why)


def same(one: Header, other: Header) -> bool:
    return (
        one.policy == other.policy
        and dict(one.options) == dict(other.options)
        and one.seed == other.seed
        and cluster_to_json(one.cluster) == cluster_to_json(other.cluster)
    )


def begun(made: Woken, why: str) -> Woken:
    """Note the beginning of an era, with what there was."""
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


def core_after(store: Store, era: Mapping[str, Any], number: int | None = None) -> Core:
    """The core of an era as it was after a step, or after its last."""
    header = parse_header(era["header"])
    policy = POLICIES.make(header.policy, **dict(header.options))
    taken = store.snapshot(era["id"], number)
    if taken is None:
        raise DovetailError(f"era {era['id']} of the journal has no snapshot before step {number}")
    core = restored(taken, header.cluster, policy, header.seed)
    for line in store.steps(era["id"], core.number):
        old = parse_step(line)
        if number is not None and old.number > number:
            break
        new = core.handle(old.now, old.events)
        if new.actions != old.actions or new.number != old.number:
            raise ReplayMismatch(
                f"step {old.number} gave {new.actions}, the journal has {old.actions}; "
                f"the policy {header.policy} has changed since"
            )
    return core


def _played(store: Store, era: int, header: Header) -> dict[str, Any]:
    return snapshot(core_after(store, {"id": era, "header": header_line(header)}))


def from_rows(
    records: list[Record], jobs: Mapping[str, Job], cluster: Cluster, now: int, store: Store
) -> dict[str, Any]:
    """A snapshot made of what the rows say: who runs where, who waits."""
    core = Core(cluster_from_json(cluster_to_json(cluster)), POLICIES.make("fifo"))
    core.now = now
    taken = snapshot(core)
    last = store.era()
    taken["number"] = max(store.last_step(), last["after"] if last else 0)
    for seq, record in enumerate(r for r in records if r.id in jobs):
        running = record.state in (State.RUNNING, State.STOPPING) and record.placement is not None
        spots = _spots(record, cluster) if running else None
        started = record.started_at or now
        sums = {
            "held": record.load if spots else 0,
            "since": started if spots else now,
            "live_at": started,
            "started_at": started,
            "waiting_since": record.eligible_at or record.submitted_at,
            "epoch": record.epoch,
            "first_start": record.first_started_at,
            "priority": record.priority,
            "turned_at": jobs[record.id].arrived_at,
        }
        taken["jobs"].append(as_taken(jobs[record.id], seq, spots, sums))
        if spots:
            taken["running"].append(record.id)
            taken["turns"] += 1
    taken["seq"] = len(taken["jobs"])
    return taken


def as_taken(job: Job, seq: int, spots: Spots | None, sums: Mapping[str, Any]) -> dict[str, Any]:
    """One job as a snapshot holds it."""
    usual: dict[str, Any] = dict.fromkeys(SUMS, 0) | {"rate": 1.0, "first_start": None, "promise": None}
    known = usual | dict(sums)
    return {
        "spec": job_to_json(job),
        "seq": seq,
        "spots": spots,
        "terms": None,
        "awaiting": None,
        "timer": None,
        "sums": [known[name] for name in SUMS],
    }


def held_on(cluster: Cluster, records: Iterable[Record]) -> dict[str, Spots]:
    """What attempts hold of a cluster, which may not be the one on which they were started."""
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
        found.append((node, mask, part.get("share", 1000), 0, 0))
    return tuple(found)
