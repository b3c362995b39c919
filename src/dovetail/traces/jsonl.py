"""Jobs with all their fields, one JSON object per line; only non-default values are written.

    {"id": "a", "submit": 0, "gpus": 4, "duration": 3600, "traits": {"checkpoint": {"every": 600}}}

Names are those of `model.job`, except at the top level, where they are those of Dovetail's CSV: `submit` and
`duration` for `arrived_at` and `work`, and `gpus` instead of `shape` for whole GPUs and nothing else. Times
are seconds, CPUs are cores, memory is bytes.
"""

from __future__ import annotations

import dataclasses
import difflib
import gc
import json
import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from dovetail.model.errors import TraceError
from dovetail.model.job import PLAIN, Checkpoint, Job, Profile, Role, Shape, Traits, gang
from dovetail.model.units import SECOND, micros, seconds
from dovetail.traces.files import opened, replaced, stem
from dovetail.traces.trace import Trace, assembled

_TIMES = {
    Checkpoint: ("every", "save", "restore", "resize", "shrink", "suspend"),
    Job: ("arrived_at", "work", "estimate", "deadline", "fails_after"),
}
_CORES = {Shape: ("cpus",), Role: ("cpus",), Profile: ("cpus",)}
_ALIASES = {"arrived_at": "submit", "work": "duration"}
_FIELDS = {_ALIASES.get(field.name, field.name): field.name for field in dataclasses.fields(Job)}
_NEEDED = ("id", "submit", "duration")


class _WrongError(ValueError):
    """The error in a line; the reader adds file and line."""


def read_jsonl(path: Path) -> Trace:
    """Read jobs from JSON lines."""
    file = str(path)
    jobs: list[Job] = []
    kept: dict[str, Any] = {}  # shapes and traits by their JSON text: a million jobs share a few dozen
    collecting = gc.isenabled()
    gc.disable()
    try:
        with opened(path) as text:
            for number, line in enumerate(text, 1):
                if not line.strip():
                    continue
                try:
                    jobs.append(_job(json.loads(line), kept))
                except json.JSONDecodeError as error:
                    raise TraceError(
                        file, number, f"is not valid JSON ({error.msg})", "write one object per line"
                    ) from None
                except _WrongError as error:
                    raise TraceError(file, number, str(error)) from None
                except (ValueError, OverflowError) as error:
                    raise TraceError(file, number, str(error), "correct the value") from None
    finally:
        if collecting:
            gc.enable()
    return assembled(file, stem(path), "jsonl", jobs)


def write_jsonl(jobs: Iterable[Job], path: str | os.PathLike[str]) -> None:
    """Write jobs as JSON lines; reading them gives equal jobs."""
    kept: dict[int, tuple[object, str]] = {}  # with the value: an id() is valid only while it lives

    def text_of(value: Shape | Traits) -> str:
        if id(value) not in kept:
            kept[id(value)] = (value, json.dumps(_plain(value), separators=(",", ":")))
        return kept[id(value)][1]

    with replaced(Path(path)) as out:
        for job in jobs:
            line = json.dumps(_head(job), ensure_ascii=False)[:-1]
            shape = job.shape
            if shape == gang(shape.gpus):
                line += f', "gpus": {shape.gpus}'
            else:
                line += f', "shape": {text_of(shape)}'
            if job.traits != PLAIN:
                line += f', "traits": {text_of(job.traits)}'
            out.write(line + "}\n")


# --- values to JSON --------------------------------------------------------------------------------


def _head(job: Job) -> dict[str, Any]:
    """The fields of a job without shape and traits."""
    said: dict[str, Any] = {"id": job.id, "submit": _number(job.arrived_at), "duration": _number(job.work)}
    if job.estimate != job.work:
        said["estimate"] = _number(job.estimate)
    for name in ("tenant", "user", "priority", "deadline", "model", "group", "fails_after"):
        value = getattr(job, name)
        if value != _default(Job, name):
            said[name] = _number(value) if name in _TIMES[Job] else value
    return said


def _plain(value: Any) -> Any:
    """A dataclass as a dictionary of its non-default values."""
    cls: type = type(value)
    said: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        item = getattr(value, field.name)
        if item == _default(cls, field.name):
            continue
        if item is None:
            said[field.name] = None
        elif field.name in _TIMES.get(cls, ()):
            said[field.name] = _number(item)
        elif field.name in _CORES.get(cls, ()):
            said[field.name] = item / 1_000
        elif dataclasses.is_dataclass(item):
            said[field.name] = _plain(item)
        elif isinstance(item, tuple):
            said[field.name] = [_plain(x) if dataclasses.is_dataclass(x) else x for x in item]
        elif isinstance(item, Mapping):
            said[field.name] = {str(key): _inner(inner) for key, inner in item.items()}
        else:
            said[field.name] = item
    return said


def _inner(item: Any) -> Any:
    """A value of a mapping."""
    if dataclasses.is_dataclass(item):
        return _plain(item)
    return dict(item) if isinstance(item, Mapping) else item


def _number(time: int) -> float:
    """Seconds, as an integer if whole."""
    return time // SECOND if time % SECOND == 0 else seconds(time)


@lru_cache(maxsize=256)
def _default(cls: type, name: str) -> Any:
    field = cls.__dataclass_fields__[name]  # type: ignore[attr-defined]
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


# --- JSON to values --------------------------------------------------------------------------------


def _job(said: Any, kept: dict[str, Any]) -> Job:
    if not isinstance(said, dict):
        raise _WrongError("is not a JSON object; write one object per line")
    for name in said:
        if name not in _FIELDS and name != "gpus":
            raise _WrongError(_unknown(name, (*_FIELDS, "gpus")))
    for name in _NEEDED:
        if name not in said:
            raise _WrongError(f"no {name!r}; a job needs {', '.join(_NEEDED)} and gpus or shape")
    values = {_FIELDS[name]: value for name, value in said.items() if name in _FIELDS}
    if ("gpus" in said) == ("shape" in said):
        raise _WrongError("needs either gpus or shape")
    if "gpus" in said:
        values["shape"] = gang(_count("gpus", said["gpus"]))
    else:
        values["shape"] = _shared(Shape, "shape", said["shape"], kept)
    if "traits" in said:
        values["traits"] = _shared(Traits, "traits", said["traits"], kept)
    for name, field in _FIELDS.items():
        if field in values and field not in ("shape", "traits"):
            values[field] = _checked(Job, field, name, values[field])
    values.setdefault("estimate", values["work"])
    if not values["id"]:
        raise _WrongError("id is empty; give each job its own id")
    return Job(**values)


def _shared(cls: type, where: str, said: Any, kept: dict[str, Any]) -> Any:
    text = where + json.dumps(said, sort_keys=True)
    if text not in kept:
        kept[text] = _built(cls, where, said)
    return kept[text]


def _built(cls: type, where: str, said: Any) -> Any:
    if not isinstance(said, dict):
        raise _WrongError(f"{where} is {said!r}; give an object")
    known = _hints(cls)
    for name in said:
        if name not in known:
            raise _WrongError(f"{where}: {_unknown(name, known)}")
    needed = [name for name in known if name not in said and _default(cls, name) is dataclasses.MISSING]
    if needed:
        raise _WrongError(f"{where}: no {' and no '.join(needed)}")
    return cls(**{name: _checked(cls, name, f"{where}.{name}", value) for name, value in said.items()})


def _checked(cls: type, field: str, where: str, value: Any) -> Any:
    """The value converted to the type of the field, with times and cores in the units of the core."""
    hint = _hints(cls)[field]
    options = get_args(hint)
    if type(None) in options:
        if value is None:
            return None
        hint = next(option for option in options if option is not type(None))
        options = get_args(hint)
    if field in _TIMES.get(cls, ()):
        time = micros(_real(where, value))
        if time < 0:
            raise _WrongError(f"{where} is {value!r}; times and durations are at least 0")
        return time
    if field in _CORES.get(cls, ()):
        return round(_real(where, value) * 1_000)
    if isinstance(hint, UnionType):  # float | Mapping[str, float]
        hint = next(option for option in options if bool(get_args(option)) == isinstance(value, dict))
        options = get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _built(hint, where, value)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        if value not in list(hint):
            raise _WrongError(f"{where} is {value!r}; choose {' | '.join(hint)}")
        return hint(value)
    if options and isinstance(value, list):  # tuple[X, ...]
        inner = options[0]
        if dataclasses.is_dataclass(inner):
            return tuple(_built(inner, where, item) for item in value)  # type: ignore[arg-type]
        if get_args(inner):  # tuple[tuple[float, float], ...]
            if not all(isinstance(item, list) and len(item) == len(get_args(inner)) for item in value):
                raise _WrongError(f"{where} is {value!r}; give lists of {len(get_args(inner))} numbers")
            return tuple(tuple(_real(where, number) for number in item) for item in value)
        return tuple(_simple(where, str, item) for item in value)
    if options and isinstance(value, dict):  # Mapping[K, float], or of such
        return _table(where, hint, value)
    if options:
        raise _WrongError(f"{where} is {value!r}; see the guide on traces for its format")
    return _simple(where, hint, value)


def _table(where: str, hint: Any, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _WrongError(f"{where} is {value!r}; give an object")
    key, inner = get_args(hint)
    if dataclasses.is_dataclass(inner):
        return {key(name): _built(inner, f"{where}.{name}", item) for name, item in value.items()}  # type: ignore[arg-type]
    if get_args(inner):
        return {key(name): _table(f"{where}.{name}", inner, item) for name, item in value.items()}
    return {key(name): _real(where, number) for name, number in value.items()}


def _simple(where: str, hint: Any, value: Any) -> Any:
    if hint is float:
        return float(_real(where, value))
    if type(value) is not hint:
        words: dict[Any, str] = {int: "a whole number", str: "a text", bool: "true or false"}
        raise _WrongError(f"{where} is {value!r}; give {words[hint]}")
    return value


def _real(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _WrongError(f"{where} is {value!r}; give a number")
    return value


def _count(where: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise _WrongError(f"{where} is {value!r}; give a whole number of at least 0")
    return value


def _unknown(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"unknown field {name!r}; " + (
        f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
    )


@lru_cache(maxsize=16)
def _hints(cls: type) -> dict[str, Any]:
    """The types of the fields, without what follows from them (model.job)."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}
