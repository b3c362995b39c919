"""`dovetail up --demo`: an example workload, round after round until the plane stops.

Two tenants share eight GPUs, four each, and borrow GPUs that the other does not use. The jobs are processes
that sleep instead of training, save when they are stopped, and continue from there. The admin who starts the
plane submits them, so they run under the account of the plane, also if that is root.

    pretrain   research, a gang over two nodes; borrows two GPUs of product
    sweep      product, an array of six, two at a time
    finetune   product uses its quota: pretrain is preempted, saves and waits
    explore    research, low priority, on idle GPUs
    hotfix     research, high priority: explore is preempted
    score      product, one GPU
    evaluate   research, once pretrain is done

When finetune ends, pretrain starts again; explore is preempted once more and ends last. That is a round of
about 45 seconds. The tenants change places in the next one. A round that finds many jobs of earlier ones
waits: the queue stays as long as it is, however slow the machine or small the cluster.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from dovetail.control import commands, submission
from dovetail.control.inbox import Unavailable
from dovetail.control.plane import Plane
from dovetail.control.plane_state import PlaneState
from dovetail.control.request import parse_request
from dovetail.control.serve import Up
from dovetail.control.tokens import Caller
from dovetail.engines import emulated_job
from dovetail.model.cluster import Cluster
from dovetail.model.errors import DovetailError, InputError

GPUS, ON_ONE_NODE = 8, 3
GRACE = 30.0  # real seconds
ROUND = 45.0  # seconds from the first job of a round to that of the next
MOST_LEFT = 6  # jobs of earlier rounds with which the next one begins
LOOK_EVERY = 0.5  # seconds between two looks whether there are fewer
TENANTS: tuple[Mapping[str, Any], ...] = (
    {"name": "lab", "parent": "", "quota": None},
    {"name": "research", "parent": "lab", "quota": 4},
    {"name": "product", "parent": "lab", "quota": 4},
)

log = logging.getLogger("dovetail.plane")


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A job of the demo; times are seconds of the wall clock since the beginning of its round."""

    at: float
    name: str
    tenant: str
    user: str
    lasts: float
    gpus: int = 1
    nodes: int = 1
    priority: str = "normal"
    array: str | None = None
    after: str | None = None  # the name of a job that must have completed


JOBS = (
    DemoJob(0.0, "pretrain", "research", "ada", 20.0, gpus=3, nodes=2),
    DemoJob(0.5, "evaluate", "research", "ada", 5.0, after="pretrain"),
    DemoJob(1.0, "sweep", "product", "bob", 5.0, array="0-5%2"),
    DemoJob(6.0, "finetune", "product", "bob", 12.0, gpus=2),
    DemoJob(8.0, "explore", "research", "eve", 14.0, gpus=3, priority="low"),
    DemoJob(11.0, "hotfix", "research", "ada", 6.0, gpus=3, priority="high"),
    DemoJob(20.0, "score", "product", "bob", 8.0),
)


OTHER = {"research": "product", "product": "research"}


def rounds() -> Iterator[tuple[DemoJob, ...]]:
    """The jobs of each round, for ever; in every second one the tenants change places."""
    for number in count():
        yield tuple(replace(job, tenant=OTHER[job.tenant]) if number % 2 else job for job in JOBS)


def start_demo(
    up: Up, *, pace: float = 1.0, ended_early: Callable[[str], None] | None = None
) -> threading.Thread:
    """Make the tenants, and submit the jobs on a thread of its own; `pace` times as fast.

    `ended_early` gets the reason if a job of the demo is refused.
    """
    plane = up.plane
    if not plane.leads:
        raise InputError("another plane leads; start the demo with that one")
    check_room(plane.cluster)
    for tenant in TENANTS:
        commands.set_tenant(plane, {"weight": 1.0, "borrow": None, "limit": None, "account": "", **tenant})
    thread = threading.Thread(target=_play, args=(plane, pace, ended_early), name="demo", daemon=True)
    thread.start()
    return thread


def check_room(cluster: Cluster) -> None:
    """Refuse a cluster on which part of the demo would wait for ever."""
    by_type: dict[str, int] = {}
    for node in cluster.nodes:
        by_type[node.type.name] = by_type.get(node.type.name, 0) + node.gpus // ON_ONE_NODE
    if cluster.gpus < GPUS or max(by_type.values(), default=0) < 2:
        raise InputError(
            f"the demo needs {GPUS} GPUs and twice {ON_ONE_NODE} of one type, each on one node; "
            f"this cluster has {cluster.gpus}. Use virtual GPUs: dovetail up --demo --virtual 2x4"
        )


def _play(plane: Plane, pace: float, ended_early: Callable[[str], None] | None) -> None:
    """Submit each job at its time, round after round, until the plane stops."""
    try:
        for jobs in rounds():
            while _left(plane) > MOST_LEFT:
                time.sleep(LOOK_EVERY / pace)
            began = time.monotonic()
            known: dict[str, str] = {}
            for job in jobs:
                time.sleep(max(0.0, began + job.at / pace - time.monotonic()))
                body = body_of(replace(job, lasts=job.lasts / pace), plane.clock.scale, known)
                caller = Caller("demo", job.tenant, job.user, "admin")
                known[job.name] = submission.submit(plane, caller, parse_request(body), body).id
            time.sleep(max(0.0, began + ROUND / pace - time.monotonic()))
    except Unavailable:
        pass
    except DovetailError as error:
        log.warning("the demo ends early: %s", error)
        if ended_early is not None:
            ended_early(str(error))


def _left(plane: Plane) -> int:
    """Jobs of the demo's tenants that have not ended."""

    def question(state: PlaneState, now: int) -> int:
        return sum(record.tenant in OTHER for record in state.ledger.index)

    return plane.ask(question)


def body_of(job: DemoJob, scale: float, known: Mapping[str, str]) -> dict[str, Any]:
    """The request of a job, which takes the same time on the wall clock at any time scale."""
    lasts = job.lasts * scale
    body: dict[str, Any] = {
        "name": job.name,
        "nodes": job.nodes,
        "resources": {"gpus": job.gpus},
        "expected": f"{lasts:.6f}s",
        "priority": job.priority,
        "checkpoint": {"grace": f"{GRACE * scale:.6f}s"},
        "command": [
            *(sys.executable, "-I", "-S", str(Path(emulated_job.__file__).resolve())),
            *("--work", repr(lasts), "--scale", repr(scale)),
        ],
    }
    if job.array is not None:
        body["array"] = job.array
    if job.after is not None:
        body["dependency"] = f"afterok:{known[job.after]}"
    return body
