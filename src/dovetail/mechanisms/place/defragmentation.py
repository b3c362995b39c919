"""Defragmentation: running jobs move to other nodes, so that a waiting job fits on one node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dovetail.mechanisms.resize.resizing import held_tasks
from dovetail.model.grant import Spots, devices_of
from dovetail.model.view import JobView, Plan

NODES_TRIED = 4  # those from which the fewest GPUs have to move


def start_by_moving(
    plan: Plan, job: JobView, running: Iterable[JobView], may_move: Callable[[JobView], bool]
) -> bool:
    """Move jobs away from one node until the job starts there; False: it does not, nothing changes.

    For a job that one node holds, while enough GPUs are free on several. A job that moves keeps its number of
    tasks, on as few nodes as it can.
    """
    room, wanted = plan.room, job.gpus
    if not job.shape.exclusive or not wanted or room.free_gpus < wanted:
        return False
    cluster, there = room.cluster, dict[int, list[JobView]]()
    for other in running:
        nodes = {spot[0] for spot in other.spots or ()}
        if len(nodes) == 1 and other.shape.exclusive and other.gpus and may_move(other):
            there.setdefault(nodes.pop(), []).append(other)
    found: list[tuple[int, int, Sequence[JobView]]] = []
    for node, jobs in there.items():
        kind = cluster.nodes[node].type.name
        if not room.is_open(node) or (job.shape.types and kind not in job.shape.types):
            continue
        moving = _fewest(jobs, wanted - room.free_on(node).bit_count())
        if moving:
            found.append((sum(_held(other) for other in moving), node, moving))
    for _, node, moving in sorted(found, key=lambda each: each[:2])[:NODES_TRIED]:
        if _moved(plan, job, node, moving):
            return True
    return False


def _held(job: JobView) -> int:
    return devices_of(job.spots or ())


def _fewest(jobs: Sequence[JobView], lacks: int) -> Sequence[JobView]:
    """The jobs that leave so many GPUs: the smallest one that does alone, or else the largest ones."""
    sizes = sorted(jobs, key=lambda other: (_held(other), other.seq))
    alone = next((other for other in sizes if _held(other) >= lacks), None)
    if alone is not None:
        return (alone,)
    moving: list[JobView] = []
    for other in reversed(sizes):
        moving.append(other)
        lacks -= _held(other)
        if lacks <= 0:
            return moving
    return ()


def _moved(plan: Plan, job: JobView, node: int, moving: Sequence[JobView]) -> bool:
    """Move these jobs away from the node, and start the job there; False: nothing changes."""
    before: list[tuple[JobView, Spots]] = []
    for other in moving:
        held = other.spots or ()
        spots = plan.room.best(other.shape.of(held_tasks(other)), avoid=1 << node)
        if spots is None or not plan.shift(other, spots, other.terms):
            break
        before.append((other, held))
    else:
        spots = plan.room.on(job.shape, [node])
        if spots is not None and plan.start(job, spots):
            return True
    for other, held in reversed(before):
        plan.shift(other, held, other.terms)
    return False
