"""A cluster in YAML: groups of like nodes, and optionally GPU types, links and tenants.

    nodes:
      - {count: 4, gpus: 8, type: A100, cpus: 96, memory: 768G, rack: r1}
    types: {A100: {memory: 40G, speed: 2.5}}
    links: {node: 16e9}
    tenants:
      - {name: research, weight: 2, quota: 16}

An unknown key is an error: a misspelt quota must not be ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dovetail.model.cluster import KNOWN_TYPES, Cluster, GpuType, Links, Node, Tenant
from dovetail.model.errors import ClusterError, TraceError
from dovetail.model.units import parse_memory
from dovetail.traces.files import opened


class _Block(dict[Any, Any]):
    """A mapping of the file, with its line number."""

    line: int = 0


def read_yaml(path: Path) -> Cluster:
    """Read a cluster from a YAML file."""
    try:
        with opened(path) as text:
            said = _parsed(path, text.read())
    except TraceError as error:
        raise ClusterError(str(error)) from None
    reader = _Reader(path)
    reader.check(said, ("nodes", "types", "links", "tenants"), "a cluster")
    types = {name: reader.gpu_type(str(name), block) for name, block in reader.block(said, "types").items()}
    nodes: list[Node] = []
    for block in reader.blocks(said, "nodes"):
        nodes += reader.nodes(block, types, len(nodes))
    if not nodes:
        raise ClusterError(f"{path}, line {said.line}: no nodes; add nodes: [{{count: 4, gpus: 8}}]")
    links = Links(
        **reader.values(reader.block(said, "links"), {f.name: _real for f in fields(Links)}, "links")
    )
    tenants: dict[str, Tenant] = {}
    for block in reader.blocks(said, "tenants"):
        tenant = reader.tenant(block)
        if tenant.name in tenants:
            raise reader.wrong(block, f"two tenants are named {tenant.name!r}; give each its own name")
        tenants[tenant.name] = tenant
    for tenant in tenants.values():
        if tenant.parent and tenant.parent not in tenants:
            raise ClusterError(
                f"{path}: tenant {tenant.name!r} has no parent {tenant.parent!r}; add it to tenants"
            )
    try:
        return Cluster(tuple(nodes), links, tenants)
    except ClusterError as error:
        raise ClusterError(f"{path}: {error}") from None


def _parsed(path: Path, text: str) -> _Block:
    import yaml  # noqa: PLC0415  (needed for cluster files only)

    class Loader(yaml.SafeLoader):
        pass

    def block(loader: yaml.SafeLoader, node: yaml.MappingNode) -> _Block:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = loader.construct_object(key)
            if name in seen:
                raise yaml.MarkedYAMLError(problem=f"{name!r} is given twice", problem_mark=key.start_mark)
            seen.add(name)
        made = _Block(loader.construct_mapping(node, deep=True))
        made.line = node.start_mark.line + 1
        return made

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, block)
    try:
        said = yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ClusterError(
            f"{path}{line}: is not valid YAML ({error.problem}); check indentation and brackets"
        ) from None
    except (yaml.YAMLError, TypeError) as error:
        raise ClusterError(
            f"{path}: is not valid YAML ({str(error).splitlines()[0]}); check that it is text"
        ) from None
    if not isinstance(said, _Block):
        raise ClusterError(f"{path}: is not a cluster file; a cluster file starts with nodes:")
    return said


class _Reader:
    """Turns blocks into values; errors name the file and line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wrong(self, block: Mapping[Any, Any], problem: str) -> ClusterError:
        line = f", line {block.line}" if isinstance(block, _Block) else ""
        return ClusterError(f"{self._path}{line}: {problem}")

    def check(self, block: Mapping[Any, Any], known: tuple[str, ...], what: str) -> None:
        for key in block:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
                raise self.wrong(block, f"{what} has no key {str(key)!r}; {hint}")

    def block(self, said: _Block, key: str) -> _Block:
        block = said.get(key)
        if block is None:
            return _Block()
        if not isinstance(block, _Block):
            raise self.wrong(said, f"{key} is {block!r}; give a mapping")
        return block

    def blocks(self, said: _Block, key: str) -> list[_Block]:
        listed = said.get(key)
        if listed is None:
            return []
        if not isinstance(listed, list) or not all(isinstance(block, _Block) for block in listed):
            raise self.wrong(said, f"{key} is not a list of mappings; write '- {{name: value}}' below it")
        return listed

    def values(self, block: _Block, known: Mapping[str, Callable[[Any], Any]], what: str) -> dict[str, Any]:
        self.check(block, tuple(known), what)
        made = {}
        for key, value in block.items():
            try:
                made[key] = known[key](value)
            except (ValueError, TypeError) as error:
                raise self.wrong(block, f"{key} is {value!r}; {error}") from None
        return made

    def gpu_type(self, name: str, block: Any) -> GpuType:
        if not isinstance(block, _Block):
            raise ClusterError(f"{self._path}: type {name} is {block!r}; give a mapping, as {{memory: 40G}}")
        known = KNOWN_TYPES.get(name, GpuType(name))
        return replace(known, **self.values(block, _TYPE, f"type {name}"))

    def nodes(self, block: _Block, types: Mapping[str, GpuType], before: int) -> list[Node]:
        made = self.values(block, _NODE, "a node")
        if "gpus" not in made:
            raise self.wrong(block, "a node needs gpus; add gpus: 8, or 0 for a CPU-only node")
        count = made.pop("count", 1)
        name = made.pop("name", None)
        kind = made.pop("type", "gpu")
        made["type"] = types.get(kind) or KNOWN_TYPES.get(kind) or GpuType(kind)
        if name is not None and count == 1:
            names = [name]
        else:
            names = [f"{name or 'n'}{(0 if name else before) + i}" for i in range(count)]
        try:
            return [Node(name, **made) for name in names]
        except ClusterError as error:
            raise self.wrong(block, str(error)) from None

    def tenant(self, block: _Block) -> Tenant:
        made = self.values(block, _TENANT, "a tenant")
        if not made.get("name"):
            raise self.wrong(block, "a tenant needs a name; add name: research")
        return Tenant(**made)


def _text(value: Any) -> str:
    if isinstance(value, bool | list | dict) or value is None:
        raise ValueError("give a text")
    return str(value)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("give a whole number of at least 0")
    return value


def _some(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError("give a whole number of at least 1")
    return value


def _real(value: Any) -> float:
    """A number; YAML reads 600e9 (without a decimal point) as text, but it is meant as a number."""
    try:
        number = float(value) if not isinstance(value, bool) else -1.0
    except (ValueError, TypeError):
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError("give a number of at least 0")
    return number


def _cores(value: Any) -> int:
    return round(_real(value) * 1_000)


def _memory(value: Any) -> int:
    if isinstance(value, str | int) and not isinstance(value, bool) and not str(value).startswith("-"):
        return parse_memory(value)
    raise ValueError("write 512G")


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("give true or false")
    return value


def _names(value: Any) -> frozenset[str]:
    if isinstance(value, str):
        return frozenset((value,))
    if not isinstance(value, list):
        raise ValueError("give a list of names")
    return frozenset(_text(item) for item in value)


_TYPE: Mapping[str, Callable[[Any], Any]] = {"memory": _memory, "speed": _real, "sliceable": _flag}
_NODE: Mapping[str, Callable[[Any], Any]] = {
    "count": _some,
    "name": _text,
    "gpus": _count,
    "type": _text,
    "cpus": _cores,
    "memory": _memory,
    "sockets": _some,
    "nvlink": _count,
    "rack": _text,
    "price": _real,
    "spot": _flag,
    "idle_watts": _real,
    "gpu_watts": _real,
    "partitions": _names,
}
_TENANT: Mapping[str, Callable[[Any], Any]] = {
    "name": _text,
    "parent": _text,
    "weight": _real,
    "quota": _count,
    "borrow": _count,
    "limit": _count,
}
