"""The catalogue of published systems, with their state: registered or not, and shown by claim tests.

A system works when it can be run, claim tests show that it does what it was published for, and these tests
fail when a part of the paper is switched off.
"""

from __future__ import annotations

import csv
import inspect
import io
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from dovetail.model.registry import Registry
from dovetail.model.view import Policy
from dovetail.policies.registry import POLICIES


@dataclass(frozen=True, slots=True)
class System:
    """A system of the catalogue, and its state in this project."""

    name: str
    year: str
    kind: str
    objectives: tuple[str, ...]
    title: str
    reconstructed: bool
    registered: bool
    claims: tuple[tuple[str, str], ...]  # (sentence, test)
    # (part of the paper, what is done instead, test that fails then)
    mutants: tuple[tuple[str, str, str], ...]
    broken: str = ""  # why a plug-in cannot be loaded, in one line
    mechanisms: tuple[str, ...] = ()  # the parts of its rule, such as order.key and fair.share

    @property
    def works(self) -> bool:
        """It can be run, claim tests show what it was published for, and mutants show that they can fail."""
        return self.registered and bool(self.claims) and bool(self.mutants)

    @property
    def state(self) -> str:
        if self.broken:
            return "broken"
        if not self.registered:
            return "not yet"
        return "yes" if self.works else "no mutants yet" if self.claims else "no claim test yet"


def read_systems() -> dict[str, System]:
    """The systems of the catalogue by name, then those added by plug-ins. A broken plug-in is one of them."""
    folder = files("dovetail.policies")
    claims: dict[str, list[tuple[str, str]]] = {}
    for row in _rows(folder / "claims.csv"):
        claims.setdefault(row["system"], []).append((row["sentence"], row["test"]))
    mutants: dict[str, list[tuple[str, str, str]]] = {}
    for row in _rows(folder / "mutants.csv"):
        mutants.setdefault(row["system"], []).append((row["part"], row["change"], row["test"]))
    names = POLICIES.names()
    broken = {name: why for name in names if name not in POLICIES.paths and (why := POLICIES.problem(name))}
    found = {
        row["name"]: System(
            row["name"],
            row["year"],
            row["kind"],
            tuple(row["objectives"].split()),
            row["title"],
            row["reconstructed"] == "yes",
            row["name"] in names and row["name"] not in broken,
            tuple(claims.get(row["name"], ())),
            tuple(mutants.get(row["name"], ())),
            broken.get(row["name"], ""),
            tuple(row["mechanisms"].split(";")),
        )
        for row in _rows(folder / "catalogue.csv")
    }
    for name in names:
        if name in found:
            continue
        why = broken.get(name, "")
        doc = "cannot be loaded" if why else (inspect.getdoc(POLICIES.factory(name)) or "").partition("\n")[0]
        found[name] = System(
            name, "", "added", (), doc, False, not why, tuple(claims.get(name, ())), (), broken=why
        )
    return found


def _rows(file: Traversable) -> list[dict[str, str]]:
    if not file.is_file():
        return []
    return list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))


def options_of(name: str, among: Registry[Policy] = POLICIES) -> list[dict[str, Any]]:
    """The options of a policy, from the signature of its factory."""
    return [
        {"name": option, "type": _type_name(parameter), "default": _default(parameter)}
        for option, parameter in among.options(name).items()
    ]


def _type_name(parameter: inspect.Parameter) -> str:
    """A type, described by the values that a user may type."""
    return _spelt(parameter.annotation)


def _spelt(annotation: Any) -> str:
    choices: tuple[Any, ...] = getattr(annotation, "__args__", ())
    origin = getattr(annotation, "__origin__", None)
    if str(origin) == "typing.Literal":
        return " | ".join(map(str, choices))
    if type(None) in choices:
        return " | ".join(_spelt(choice) for choice in choices if choice is not type(None)) + " | none"
    if annotation is bool:
        return "true | false"
    if annotation in (int, float, str):
        return {int: "whole number", float: "number", str: "text"}[annotation]
    if origin is not None and hasattr(origin, "keys") and len(choices) == 2:
        return f"{_spelt(choices[0])}:{_spelt(choices[1])},..."
    if origin is not None and choices:
        return f"{_spelt(choices[0])},..."
    return getattr(annotation, "__name__", str(annotation))


def _default(parameter: inspect.Parameter) -> Any:
    """The default as plain data, for JSON."""
    value = parameter.default
    if value is parameter.empty:
        return None
    return list(value) if isinstance(value, tuple | list) else value
