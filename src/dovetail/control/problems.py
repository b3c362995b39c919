"""What is wrong with a request: every mistake with the place it stands at, in one line for a person.

A request is not trusted. `unfit_values` checks the bare JSON first: depth, size, numbers beyond 64 bits, text
that is not valid Unicode. Only what passes is read by the fields. A place is a JSON pointer (RFC 6901), as
RFC 9457 suggests for lists of errors.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import ErrorDetails, PydanticCustomError

from dovetail.model.errors import InputError

MOST_DEPTH = 8
MOST_VALUES = 200_000
MOST_TEXT = 2_000_000  # characters in all
MOST_PROBLEMS = 50
LARGEST_NUMBER = 1 << 63

Path = tuple[str | int, ...]

# What people write for what is called otherwise here.
_OTHER_NAMES = {
    "envs": "env", "environment": "env", "cmd": "command", "script": "run", "entrypoint": "run",
    "timeout": "time", "time_limit": "time", "walltime": "time", "depends_on": "dependency",
    "cwd": "workdir", "chdir": "workdir", "stdout": "output", "stderr": "error", "retries": "retry",
    "num_gpus": "gpus", "gpu": "gpus", "mem": "memory", "cpu": "cpus", "gpu_type": "accelerators",
    "vram": "gpu_memory", "nice": "priority", "job_name": "name", "share": "gpu_share",
}  # fmt: skip


class Problem(NamedTuple):
    """One mistake."""

    pointer: str  # "" is the whole request
    detail: str


class RequestError(InputError):
    """A request that cannot be taken, with all that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "; ".join(f"{p.pointer[1:]}: {p.detail}" if p.pointer else p.detail for p in problems)
        )

    @classmethod
    def at(cls, pointer: str, detail: str) -> RequestError:
        return cls([Problem(pointer, detail)])


def refusal(detail: str, *at: str | int) -> PydanticCustomError:
    """What a field raises; `at` leads from the field to what is wrong inside it."""
    return refusals([(at, detail)])


def refusals(wrong: Sequence[tuple[Path, str]]) -> PydanticCustomError:
    """Several at once."""
    text = "; ".join(detail for _, detail in wrong)
    return PydanticCustomError("wrong", "{text}", {"text": text, "wrong": list(wrong)})


def shown(value: object) -> str:
    """A value for a message: short, on one line, whatever it is."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int) and abs(value) >= LARGEST_NUMBER:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str):
        text = value if len(value) <= 60 else value[:57] + "..."
        return ascii(text) if not text.isprintable() else repr(text)
    return str(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def pointer(path: Iterable[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def unknown_key(key: str, known: Iterable[str], elsewhere: Mapping[str, Iterable[str]] | None = None) -> str:
    """What to say of a key that stands in no table."""
    names, below = list(known), elsewhere or {}
    if len(key) <= 64:
        word = _OTHER_NAMES.get(key.lower(), key.lower())
        for where, keys in (("", names), *below.items()):
            if word in keys:
                place = f"{where}.{word}" if where else word
                return f"unknown key {shown(key)}; it is called {place} here"
        candidates = {
            **{name: where for where, keys in below.items() for name in keys},
            **dict.fromkeys(names, ""),
        }
        for near in difflib.get_close_matches(word, candidates, n=1):
            place = f", under {candidates[near]}" if candidates[near] else ""
            return f"unknown key {shown(key)}; did you mean {near}{place}?"
    return f"unknown key {shown(key)}; known are {', '.join(names)}"


def unfit_values(data: object) -> list[tuple[Path, str]]:
    """What no field should have to look at; a few of them if there are many."""
    wrong: list[tuple[Path, str]] = []
    values = text = 0
    todo: list[tuple[Path, object]] = [((), data)]
    while todo and len(wrong) < MOST_PROBLEMS:
        path, value = todo.pop()
        values += 1
        if isinstance(value, str):
            text += len(value)
            if problem := _unfit_text(value):
                wrong.append((path, problem))
        elif isinstance(value, bool):
            pass
        elif isinstance(value, int | float):
            if not -LARGEST_NUMBER < value < LARGEST_NUMBER:  # which no NaN is
                wrong.append((path, f"{shown(value)} is not a usable number; leave it out"))
        elif isinstance(value, dict | list):
            if len(path) >= MOST_DEPTH:
                wrong.append((path, f"nested more than {MOST_DEPTH} deep; no job is described that way"))
                continue
            if values + len(todo) + len(value) > MOST_VALUES:
                wrong.append((path, f"more than {MOST_VALUES:,} values; describe the job with fewer"))
                break
            if isinstance(value, list):
                todo += [((*path, i), item) for i, item in enumerate(value)]
                continue
            for key, item in value.items():
                if not isinstance(key, str) or len(key) > 1_000 or _unfit_text(key):
                    wrong.append((path, f"a key is {shown(key)}; keys are short plain text"))
                    break
                todo.append(((*path, key), item))
        elif value is None:
            wrong.append((path, "null means nothing here; leave the key out"))
        else:
            wrong.append((path, f"{shown(value)} is nothing that JSON can say; write it as text"))
    if text > MOST_TEXT:
        wrong.append(((), f"more than {MOST_TEXT:,} characters; put large things in files"))
    return wrong


def _unfit_text(value: str) -> str:
    if "\0" in value:
        return "the text holds a NUL character; take it out"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "the text holds half of a surrogate pair, which is not a character; take it out"
    return ""


def problems_of(
    errors: Sequence[ErrorDetails], known: Mapping[str, Sequence[str]], prefix: int = 0
) -> tuple[Problem, ...]:
    """What pydantic found, in our words; `known` are the keys by the pointer of the mapping they stand in.

    `prefix` parts of each place are left off: a web framework puts "body" before all of them.
    """
    found: list[Problem] = []
    for error in errors:
        path = tuple(error["loc"][prefix:])
        if path and path[-1] == "[key]":  # the key itself is wrong, which is where it stands
            path = path[:-1]
        context: dict[str, Any] = error.get("ctx") or {}
        if error["type"] == "wrong":
            found += [Problem(pointer((*path, *at)), detail) for at, detail in context["wrong"]]
        elif error["type"] == "extra_forbidden":
            where, key = pointer(path[:-1]), str(path[-1])
            elsewhere = {p[1:]: keys for p, keys in known.items() if p} if not where else {}
            found.append(Problem(pointer(path), unknown_key(key, known.get(where, ()), elsewhere)))
        elif error["type"] in ("model_type", "model_attributes_type", "dict_type"):
            what = "a mapping of keys to values"
            found.append(Problem(pointer(path), f"{shown(error['input'])} found where {what} is needed"))
        elif error["type"] == "missing":
            found.append(Problem(pointer(path), "it is missing; give it"))
        else:
            found.append(Problem(pointer(path), error["msg"]))
        if len(found) >= MOST_PROBLEMS:
            break
    return tuple(found[:MOST_PROBLEMS])
