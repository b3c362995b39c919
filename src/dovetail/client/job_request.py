"""A job request as files and flags produce it, before the plane checks it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from dovetail.model.errors import InputError

_SYNONYMS = (  # keys with the same meaning: setting one replaces the others
    ("nodes", "num_nodes"),
    ("queue", "tenant", "account", "partition", "qos"),
    ("run", "command"),
)


class JobFileError(InputError):
    """A job file or a flag that cannot be read. The message names the file and the line."""

    def __init__(self, file: str, line: int | None, problem: str, column: int | None = None) -> None:
        self.file, self.line, self.problem, self.column = file, line, problem, column
        super().__init__(f"{file}: {problem}" if line is None else f"{file}, line {line}: {problem}")


class Ignored(NamedTuple):
    """A part of a job file that has no effect, and why."""

    what: str
    why: str
    line: int | None = None


class JobFile(dict[str, Any]):
    """A request as a dictionary, with the line of each part and the parts that were ignored."""

    def __init__(self, values: Mapping[str, Any], file: str = "", kind: str = "yaml") -> None:
        super().__init__(values)
        self.file = file
        self.kind = kind  # yaml | sbatch
        self.lines: dict[str, int] = {}  # by JSON pointer
        self.ignored: list[Ignored] = []

    def line_of(self, pointer: str) -> int | None:
        """The line of the part that a JSON pointer names, or of the nearest part around it."""
        while pointer and pointer not in self.lines:
            pointer = pointer.rpartition("/")[0]
        return self.lines.get(pointer)

    def where(self, pointer: str) -> str:
        """`train.yaml, line 7`: the place of a part, for messages."""
        line = self.line_of(pointer)
        return self.file if line is None else f"{self.file}, line {line}"


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """One request overridden by another. Tables are merged; None overrides nothing."""
    result = dict(base)
    for key, value in over.items():
        if value is None:
            continue
        for same in _SYNONYMS:
            if key in same:
                result = {k: v for k, v in result.items() if k not in same}
        old = result.get(key)
        if key == "resources" and isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = _merged_resources(old, value)
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = {**old, **{k: v for k, v in value.items() if v is not None}}
        else:
            result[key] = value
    return result


def zoned(text: str) -> str:
    """A time with the zone of this machine if it has none; 18:00 is the next one of the day.

    The plane refuses text that is not a time.
    """
    if match := re.fullmatch("([01]?[0-9]|2[0-3]):([0-5][0-9])", text):
        now = datetime.now()
        when = now.replace(hour=int(match[1]), minute=int(match[2]), second=0, microsecond=0)
        return (when if when > now else when + timedelta(days=1)).astimezone().isoformat()
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    try:
        return text if when.tzinfo else when.astimezone().isoformat()
    except (OverflowError, OSError, ValueError):  # outside the range of the clock
        return text


def accelerator_texts(kind: object) -> list[str]:
    """`A100:8` for each GPU type, from any of the forms that are accepted."""
    if isinstance(kind, Mapping):
        return [f"{name}:{count}" for name, count in kind.items()]
    return [str(item) for item in (kind if isinstance(kind, list) else [kind])]


def _merged_resources(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """A new number of GPUs keeps the GPU types; new types replace both."""
    new = {key: value for key, value in new.items() if value is not None}
    result = {**old, **new}
    if "accelerators" in new:
        result.pop("gpus", None)
    elif new.get("gpus") and old.get("accelerators") is not None:
        names = [text.partition(":")[0] for text in accelerator_texts(old["accelerators"])]
        kept = [f"{name}:{new['gpus']}" for name in names if not name.isdigit()]
        result["accelerators"] = (kept[0] if len(kept) == 1 else kept) if kept else new["gpus"]
        del result["gpus"]
    elif "gpus" in new:
        result.pop("accelerators", None)
    return result
