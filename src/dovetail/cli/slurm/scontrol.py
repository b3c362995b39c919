"""`scontrol`: hostnames of a node list, one job or node in full, hold, release, requeue, update."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dovetail.cli.hold import hold, release, requeue, set_priority
from dovetail.cli.node_ranges import node_names
from dovetail.cli.nodes import drain, nodes, resume
from dovetail.cli.outputs import plainly, say
from dovetail.cli.ps import describe
from dovetail.model.errors import InputError

KNOWN = (
    "show hostnames, show job ID, show node NAME, hold, release, requeue, update JobId= Priority=, "
    "update NodeName= State="
)


def scontrol(words: Sequence[str]) -> None:
    match [word.lower() for word in words[:2]]:
        case ["show", "hostname" | "hostnames"]:
            for name in hostnames(words[2] if len(words) > 2 else None):
                say(name)
        case ["show", "job" | "jobs"] if len(words) == 3:
            describe(words[2])
        case ["show", "node" | "nodes"]:
            nodes(list(words[2:]), output="wide")
        case ["hold" | "release" | "requeue" as verb, _]:
            {"hold": hold, "release": release, "requeue": requeue}[verb](list(words[1:]))
        case ["update", _]:
            _update(words[1:])
        case _:
            raise InputError(f"scontrol: {plainly(' '.join(words))!r} is not known here; there are {KNOWN}")


def hostnames(nodelist: str | None) -> list[str]:
    """The nodes of a list such as `n[0-3]`, one by one.

    For the list of the job itself these are addresses: the names of nodes need not be known to the network.
    """
    own = os.environ.get("SLURM_JOB_NODELIST")
    if nodelist is None and own is None:
        raise InputError("scontrol: no node list was given, and this is no job; write show hostnames n[0-3]")
    if own is not None and nodelist in (None, own) and os.environ.get("DOVETAIL_NODE_IPS"):
        return os.environ["DOVETAIL_NODE_IPS"].split()
    return node_names([nodelist or own or ""])


def _update(words: Sequence[str]) -> None:
    given = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"scontrol: update takes KEY=VALUE, and {plainly(word)!r} is none")
        given[key.lower()] = value
    job, node = given.pop("jobid", None) or given.pop("job", None), given.pop("nodename", None)
    if job is not None and set(given) == {"priority"}:
        set_priority(job, given["priority"])
    elif node is not None and given.get("state", "").lower() == "drain" and set(given) <= {"state", "reason"}:
        drain([node], given.get("reason", ""))
    elif node is not None and given.get("state", "").lower() == "resume" and set(given) == {"state"}:
        resume([node])
    else:
        keys = ", ".join(sorted(given)) or "nothing"
        raise InputError(f"scontrol: update of {plainly(keys)} is not possible here; there are {KNOWN}")
