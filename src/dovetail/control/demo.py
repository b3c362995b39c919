"""`dovetail up --demo`: a minute in the life of a small cluster, for newcomers to watch.

Two teams share eight GPUs, four each, and lend each other what they do not need. Only the training itself is
pretended: the jobs are processes that sleep, save when they are told to stop, and go on from there.

    pretrain   research, a gang over two nodes; borrows two GPUs of product's
    sweep      product, an array of six, two at a time
    finetune   product wants its own back: pretrain saves, leaves, and waits
    explore    research, low priority, on what is free meanwhile
    hotfix     research, high priority: explore has to leave
    score      product, one GPU
    evaluate   research, once pretrain is done

When finetune is over pretrain comes back, explore leaves once more and is the last to finish.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.control.plane import Plane, Unavailable
from dovetail.control.request import parse_request
from dovetail.control.serve import Up
from dovetail.control.tokens import Caller
from dovetail.engines import emulated
from dovetail.model.cluster import Cluster
from dovetail.model.errors import DovetailError, InputError

GPUS, ON_ONE_NODE = 8, 3
GRACE = 30.0  # real seconds
TENANTS: tuple[Mapping[str, Any], ...] = (
    {"name": "lab", "parent": "", "quota": None},
    {"name": "research", "parent": "lab", "quota": 4},
    {"name": "product", "parent": "lab", "quota": 4},
)

log = logging.getLogger("dovetail.plane")


@dataclass(frozen=True, slots=True)
class Act:
    """Who submits what, and when; all in real seconds from the beginning."""

    at: float
    name: str
    tenant: str
    user: str
    lasts: float
    gpus: int = 1
    nodes: int = 1
    priority: str = "normal"
    array: str | None = None
    after: str | None = None  # the name of one that must have completed


ACTS = (
    Act(0.0, "pretrain", "research", "ada", 20.0, gpus=3, nodes=2),
    Act(0.5, "evaluate", "research", "ada", 5.0, after="pretrain"),
    Act(1.0, "sweep", "product", "bob", 5.0, array="0-5%2"),
    Act(6.0, "finetune", "product", "bob", 12.0, gpus=2),
    Act(8.0, "explore", "research", "eve", 14.0, gpus=3, priority="low"),
    Act(11.0, "hotfix", "research", "ada", 6.0, gpus=3, priority="high"),
    Act(20.0, "score", "product", "bob", 8.0),
)


def start_demo(up: Up) -> None:
    """Set the scene and let it play, beside everything else that the plane does."""
    plane = up.plane
    if not plane.leads:
        raise InputError("another plane leads; start the demo with that one")
    check_room(plane.cluster)
    for tenant in TENANTS:
        plane.set_tenant({"weight": 1.0, "borrow": None, "limit": None, "account": "", **tenant})
    threading.Thread(target=_play, args=(plane,), name="demo", daemon=True).start()


def check_room(cluster: Cluster) -> None:
    """Refuse a cluster on which part of the demo would wait for ever."""
    by_type: dict[str, int] = {}
    for node in cluster.nodes:
        by_type[node.type.name] = by_type.get(node.type.name, 0) + node.gpus // ON_ONE_NODE
    if cluster.gpus < GPUS or max(by_type.values(), default=0) < 2:
        raise InputError(
            f"the demo needs {GPUS} GPUs and twice {ON_ONE_NODE} of one type, each on one node; "
            f"here are {cluster.gpus}. Pretend to have them: dovetail up --demo --virtual 2x4"
        )


def _play(plane: Plane) -> None:
    """Submit each when its time has come; a plane that stops meanwhile ends the play."""
    began = time.monotonic()
    known: dict[str, str] = {}
    try:
        for act in ACTS:
            time.sleep(max(0.0, began + act.at - time.monotonic()))
            body = body_of(act, plane.clock.scale, known)
            caller = Caller("demo", act.tenant, act.user, "user")
            known[act.name] = plane.submit(caller, parse_request(body), body).id
    except Unavailable:
        pass
    except DovetailError as error:
        log.warning("the demo ends early: %s", error)


def body_of(act: Act, scale: float, known: Mapping[str, str]) -> dict[str, Any]:
    """As its user would write it; whatever the plane's pace, it takes the same real time."""
    lasts = act.lasts * scale
    body: dict[str, Any] = {
        "name": act.name,
        "nodes": act.nodes,
        "resources": {"gpus": act.gpus},
        "expected": lasts,
        "priority": act.priority,
        "checkpoint": {"grace": GRACE * scale},
        "command": [
            *(sys.executable, "-I", "-S", str(Path(emulated.__file__).resolve())),
            *("--work", repr(lasts), "--scale", repr(scale)),
        ],
    }
    if act.array is not None:
        body["array"] = act.array
    if act.after is not None:
        body["dependency"] = f"afterok:{known[act.after]}"
    return body
