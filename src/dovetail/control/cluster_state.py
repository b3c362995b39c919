"""The cluster at one moment: its nodes, the jobs on them, and how many jobs wait and run."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.control.ledger import Ledger
from dovetail.core.core import Core
from dovetail.model.grant import milli_of
from dovetail.model.units import WHOLE


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node and what it holds."""

    name: str
    type: str
    gpus: int
    free: int  # wholly
    state: str  # up | drained | lost | off
    why: str
    cpus: int
    memory: int
    devices: list[tuple[int, list[tuple[str, int]]]]  # index, and (job, milli-GPUs) on it


@dataclass(frozen=True, slots=True)
class Overview:
    """The cluster at a glance."""

    now: int
    moment: tuple[int, int]  # the era and the step it shows
    policy: str
    nodes: list[NodeState]
    tenants: dict[str, str]  # of the jobs on the nodes
    waiting: int  # eligible jobs that do not run
    running: int
    asked: float  # GPUs that the waiting jobs ask for
    policy_failure: str = ""  # why another policy decides than `policy`, in one sentence


def node_states(core: Core) -> list[NodeState]:
    """All nodes, with the jobs on each device."""
    held: dict[int, dict[int, list[tuple[str, int]]]] = {}
    for job in core.running.values():
        for place, mask, share, _, _ in job.spots or ():
            there = held.setdefault(place, {})
            for device in range(mask.bit_length()):
                if mask >> device & 1:
                    there.setdefault(device, []).append((job.id, milli_of(share)))
    closed = core.closed
    found = []
    for number, node in enumerate(core.cluster.nodes):
        reason = closed.get(number, "")
        state = "up" if number not in closed else ("off" if reason == "switched off" else "drained")
        there = held.get(number, {})
        found.append(
            NodeState(
                node.name,
                node.type.name,
                node.gpus,
                core.room.free_on(number).bit_count(),
                state,
                reason,
                node.cpus,
                node.memory,
                [(device, there.get(device, [])) for device in range(node.gpus)],
            )
        )
    return found


def cluster_overview(ledger: Ledger, policy: str, policy_failure: str, now: int) -> Overview:
    """All nodes and their jobs, and how many jobs there are."""
    core = ledger.core
    waiting = asked = 0
    for job in core.jobs.values():
        if job.spots is None:
            waiting += 1
            asked += job.shape.load
    return Overview(
        now,
        (ledger.era, core.number),
        policy,
        node_states(core),
        {job.id: job.tenant for job in core.running.values()},
        waiting,
        len(core.running),
        asked / WHOLE,
        policy_failure,
    )
