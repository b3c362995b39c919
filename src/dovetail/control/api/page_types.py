"""The documents of the API as TypeScript, from their one definition: the fields that the page may use.

The page is JavaScript with types in comments, and a type checker reads these declarations. The use of a field
that the API does not return is therefore an error before the page is ever opened.
"""

from __future__ import annotations

import types
from collections import abc
from collections.abc import Iterator
from dataclasses import is_dataclass
from datetime import datetime
from typing import Any, Literal, Union, get_args, get_origin

from dovetail.client import documents

ROOTS = (
    documents.Job,
    documents.Array,
    documents.JobAttempt,
    documents.Why,
    documents.Plan,
    documents.Node,
)
_PLAIN = {str: "string", int: "number", float: "number", bool: "boolean", datetime: "string", Any: "unknown"}


def declarations() -> str:
    """One interface for each document, those that it holds first."""
    kinds = dict.fromkeys(kind for root in ROOTS for kind in _with_inner(root))
    head = "// Generated from dovetail.client.documents by docs/generate.py.\n"
    return head + "".join(map(_interface, kinds))


def _interface(kind: Any) -> str:
    lines = [f"\n/** {kind.__doc__} */\nexport interface {kind.__name__} {{\n"]
    for name, hint, meaning, missing in documents.fields_of(kind):
        if meaning:
            lines.append(f"  /** {meaning} */\n")
        lines.append(f"  {name}{'?' * missing}: {_type(hint)};\n")
    return "".join([*lines, "}\n"])


def _with_inner(kind: Any) -> Iterator[Any]:
    for _, hint, _, _ in documents.fields_of(kind):
        for inner in (hint, *get_args(hint)):
            if isinstance(inner, type) and is_dataclass(inner):
                yield from _with_inner(inner)
    yield kind


def _type(hint: Any) -> str:
    """A type in TypeScript's words.

    >>> _type(abc.Mapping[str, int] | None)
    'Record<string, number> | null'
    """
    inner = get_args(hint)
    match get_origin(hint):
        case abc.Sequence:
            return f"{_type(inner[0])}[]"
        case abc.Mapping:
            return f"Record<string, {_type(inner[1])}>"
        case types.UnionType:
            return " | ".join(map(_type, inner))
        case origin if origin is Union:
            return " | ".join(map(_type, inner))
        case origin if origin is Literal:
            return " | ".join(f'"{word}"' for word in inner)
    if hint is types.NoneType:
        return "null"
    return _PLAIN.get(hint) or hint.__name__
