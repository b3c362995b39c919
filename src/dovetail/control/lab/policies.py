"""The policies that can be run, with what can be set about them."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

from dovetail.policies.catalogue import options_of, read_systems
from dovetail.policies.registry import POLICIES

Json = dict[str, Any]


def described() -> Json:
    """All of them, in the order of the catalogue."""
    return {"items": [_described(s.name, s.title, s.year) for s in read_systems().values() if s.registered]}


def _described(name: str, title: str, year: str) -> Json:
    doc = inspect.getdoc(POLICIES.factory(name)) or ""
    parameters = POLICIES.options(name)
    return {
        "name": name,
        "title": title,
        "year": int(year) if year else None,
        "summary": " ".join(doc.partition("\n\n")[0].split()) or title,
        "options": [
            {
                "name": option["name"],
                "type": option["type"],
                "default": json.loads(json.dumps(option["default"], default=str)),
                "choices": _choices(parameters[option["name"]].annotation),
                "help": _help(doc, option["name"]),
            }
            for option in options_of(name)
        ],
    }


def _choices(annotation: Any) -> list[Any] | None:
    """What a value must be one of, if it must."""
    if annotation is bool:
        return [True, False]
    inner: tuple[Any, ...] = getattr(annotation, "__args__", ())
    if str(getattr(annotation, "__origin__", None)) == "typing.Literal":
        return list(inner)
    if type(None) in inner:
        found = [_choices(one) for one in inner if one is not type(None)]
        return [*found[0], None] if len(found) == 1 and found[0] is not None else None
    return None


def _help(doc: str, option: str) -> str:
    """The sentences that speak of an option."""
    said = [
        sentence.strip()
        for paragraph in doc.split("\n\n")
        for sentence in re.split(r"(?<=[.;]) +(?=\S)", " ".join(paragraph.split()))
        if re.search(rf"`{re.escape(option)}(?:=[^`]*)?`", sentence)
    ]
    return re.sub(r";$", ".", " ".join(said))
