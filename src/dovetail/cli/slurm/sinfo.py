"""`sinfo`: the nodes in Slurm's words. There is one partition, which holds them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.cli.connection import connected
from dovetail.cli.outputs import print_json
from dovetail.cli.ps import folded_nodes
from dovetail.cli.slurm.formats import Field, Options, Raw, listed, print_formatted

USUAL = "%10P %5a %10l %6D %6t %N"
BY_NODE = "%20N %6D %10P %10t"
LONG = "%20N %6D %10P %10T %6c %8m %20G %E"
PARTITION = "all"


def sinfo(words: Sequence[str]) -> None:
    options = Options("sinfo", "dovetail nodes")
    options.add_argument("-N", "--Node", action="store_true")
    options.add_argument("-l", "--long", action="store_true")
    options.add_argument("-h", "--noheader", action="store_true")
    options.add_argument("-o", "--format")
    options.add_argument("-n", "--nodes")
    options.add_argument("-t", "--states")
    options.add_argument("--json", action="store_true")
    options.ignore("-p", "--partition", why="there is one partition", value=True)
    options.ignore("-a", "--all", why="there is one partition")
    asked = options.read(words)
    with connected(None) as client:
        nodes = [dict(node) for node in client.node_list()]
    names, states = set(listed(asked.nodes)), set(listed(asked.states))
    nodes = [node for node in nodes if not names or node["name"] in names]
    nodes = [node for node in nodes if not states or {_state(node), _word(node)} & states]
    if asked.json:
        print_json({"nodes": nodes})
        return
    form = asked.format or (LONG if asked.long else BY_NODE if asked.Node else USUAL)
    each = asked.Node or asked.long
    print_formatted(_grouped(nodes, each=each, form=form), form, FIELDS, head=not asked.noheader)


def _grouped(nodes: Sequence[Raw], *, each: bool, form: str) -> list[dict[str, Any]]:
    """Nodes that look alike in this format are one line, unless a line for each is asked for."""
    groups: dict[object, dict[str, Any]] = {}
    shown = [letter for letter in FIELDS if f"{letter}" in form and letter not in "ND"]
    for number, node in enumerate(nodes):
        key: object = number if each else tuple(FIELDS[letter][1](node) for letter in shown)
        groups.setdefault(key, {**node, "names": []})["names"].append(str(node["name"]))
    return list(groups.values())


def _state(node: Raw) -> str:
    """As Slurm abbreviates it: idle, mix, alloc, drain, drng, down."""
    busy = float(node.get("free") or 0) < float(node.get("gpus") or 0)
    if node.get("state") == "drained":
        return "drng" if node.get("jobs") or node.get("others") else "drain"
    if node.get("state") != "up":
        return "down"
    return "idle" if not busy else "mix" if node.get("free") else "alloc"


def _word(node: Raw) -> str:
    short = _state(node)
    return {"mix": "mixed", "alloc": "allocated", "drain": "drained", "drng": "draining"}.get(short, short)


FIELDS: dict[str, Field] = {
    "P": ("PARTITION", lambda node: f"{PARTITION}*"),
    "R": ("PARTITION", lambda node: PARTITION),
    "a": ("AVAIL", lambda node: "up"),
    "l": ("TIMELIMIT", lambda node: "infinite"),
    "D": ("NODES", lambda node: str(len(node["names"]))),
    "t": ("STATE", _state),
    "T": ("STATE", _word),
    "N": ("NODELIST", lambda node: folded_nodes(node["names"])),
    "n": ("HOSTNAMES", lambda node: str(node["name"])),
    "c": ("CPUS", lambda node: f"{float(node.get('cpus') or 0):.0f}"),
    "m": ("MEMORY", lambda node: str(int(node.get("memory") or 0) >> 20)),
    "G": ("GRES", lambda node: f"gpu:{str(node.get('type') or 'gpu').lower()}:{int(node.get('gpus') or 0)}"),
    "E": ("REASON", lambda node: str(node.get("reason") or "none")),
}
