"""A policy's memory as plain data, and back.

What a plan keeps in `plan.memory` must survive a restart of the plane. It may be made of numbers, strings,
lists, tuples, sets, dicts, enums, named tuples and dataclasses, nested at will; each comes back as it was.
A class is written down by its name and looked up among the modules that are loaded already, so reading data
runs no code but that of such a class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from dovetail.model.errors import InputError, PlanError

TYPE = "type"  # the one key of a JSON object in which the class is named
_ROWS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def to_plain(memory: Any) -> Any:
    """As JSON holds it."""
    if memory is None or isinstance(memory, bool | str):
        return memory
    if isinstance(memory, Enum):
        return {TYPE: _name(type(memory)), "value": to_plain(memory.value)}
    if isinstance(memory, int):
        return int(memory)
    if isinstance(memory, float):
        return float(memory)
    if type(memory) is list:
        return [to_plain(item) for item in memory]
    if type(memory) in (tuple, set, frozenset):
        items = sorted(memory) if type(memory) is not tuple else memory
        return {TYPE: type(memory).__name__, "items": [to_plain(item) for item in items]}
    if isinstance(memory, dict):
        return {TYPE: "dict", "items": [[to_plain(key), to_plain(value)] for key, value in memory.items()]}
    if is_dataclass(memory) and not isinstance(memory, type):
        values = {item.name: to_plain(getattr(memory, item.name)) for item in fields(memory) if item.init}
        return {TYPE: _name(type(memory)), "fields": values}
    if isinstance(memory, tuple) and hasattr(memory, "_fields"):
        return {TYPE: _name(type(memory)), "items": [to_plain(item) for item in memory]}
    raise PlanError(
        f"the policy keeps a {type(memory).__name__} in its memory, which cannot be stored; "
        "keep numbers, strings, lists, tuples, sets, dicts and dataclasses"
    )


def from_plain(data: Any) -> Any:
    """The memory that was written so."""
    if isinstance(data, list):
        return [from_plain(item) for item in data]
    if not isinstance(data, dict):
        return data
    name = data[TYPE]
    if name in _ROWS:
        return _ROWS[name](from_plain(item) for item in data["items"])
    if name == "dict":
        return {from_plain(key): from_plain(value) for key, value in data["items"]}
    kind = _class(name)
    if "fields" in data:
        return kind(**{key: from_plain(value) for key, value in data["fields"].items()})
    if "value" in data:
        return kind(from_plain(data["value"]))
    return kind(*(from_plain(item) for item in data["items"]))


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    named = isinstance(found, type) and (
        is_dataclass(found)
        or issubclass(found, Enum)
        or (issubclass(found, tuple) and hasattr(found, "_fields"))
    )
    if not named:
        raise InputError(f"the stored memory of a policy names {name}, which is not there any more")
    return found
