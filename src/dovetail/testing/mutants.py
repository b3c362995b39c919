"""Mutants: a system with one part of its paper switched off, which a claim of that system must notice.

A claim file lists them beside its claims as `MUTANTS`. A mutant is killed when the claim that it names fails
at one of its assertions. An error is not a kill: a system that crashes says nothing about the part. Nor is a
simulation that does not end, because the mutant lets a job wait for ever.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from importlib import import_module
from itertools import product
from types import ModuleType
from typing import Any, Literal, cast
from unittest.mock import patch

import pytest

from dovetail.policies.registry import POLICIES
from dovetail.sim import run as sim_run
from dovetail.sim.simulate import simulate

Verdict = Literal["killed", "survived"]
PARAM = type(pytest.param())
MOST_STEPS = 30_000  # of a simulation under a mutant; those of claims have fewer


class Endless(Exception):
    """A simulation under a mutant does not end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A system with one part replaced."""

    system: str
    part: str  # what the paper is about, such as "the index"
    change: str  # what is done instead, as a short sentence
    killed_by: str  # the claim test that fails on it
    replaced: Mapping[str, Any]  # "module:attribute" and its replacement

    @property
    def name(self) -> str:
        return f"{self.system}: {self.part}: {self.change}"


def mutant(
    system: str,
    part: str,
    change: str,
    *,
    killed_by: str,
    options: Mapping[str, Any] | None = None,
    factory: Callable[..., Any] | None = None,
    replace: Mapping[str, Any] | None = None,
) -> Mutant:
    """A mutant by one of three means.

    `options` of the system are set whatever a claim asks for, or `factory` makes another policy from the same
    options, or `replace` puts other objects behind names, as "module:attribute" or "module:Class.method".
    """
    if sum(given is not None for given in (options, factory, replace)) != 1:
        raise ValueError(f"{system}: a mutant is made by options, by a factory or by replacement: give one")
    if replace is None:
        path = POLICIES.paths[system]
        replace = {path: _factory(POLICIES.factory(system), factory, options or {})}
    return Mutant(system=system, part=part, change=change, killed_by=killed_by, replaced=replace)


def _factory(
    original: Callable[..., Any], other: Callable[..., Any] | None, forced: Mapping[str, Any]
) -> Callable[..., Any]:
    def made(**options: Any) -> Any:
        return (other or original)(**{**options, **forced})

    return update_wrapper(made, original)  # the registry reads the options off the signature


@contextmanager
def applied(broken: Mutant, claims: ModuleType) -> Iterator[None]:
    """The mutant replaces its system. Runs that the claim file has cached are forgotten before and after."""
    _forget(claims)
    try:
        with ExitStack() as stack:
            stack.enter_context(patch.object(sim_run, "simulate", _bounded(simulate)))
            for path, replacement in broken.replaced.items():
                module, _, attribute = path.partition(":")
                holder: Any = import_module(module)
                *outer, last = attribute.split(".")
                for name in outer:
                    holder = getattr(holder, name)
                stack.enter_context(patch.object(holder, last, replacement))
            yield
    finally:
        _forget(claims)


def _bounded(endless: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def bounded(*args: Any, **named: Any) -> Iterator[Any]:
        for number, step in enumerate(endless(*args, **named)):
            if number == MOST_STEPS:
                raise Endless
            yield step

    return bounded


def _forget(module: ModuleType) -> None:
    for value in vars(module).values():
        if callable(clear := getattr(value, "cache_clear", None)):
            clear()


def verdict(test: Callable[..., None], broken: Mutant, claims: ModuleType) -> Verdict:
    """Whether a claim test fails on the mutant at an assertion of its own; an error is raised as it is."""
    with applied(broken, claims):
        for arguments in calls(test):
            try:
                test(**arguments)
            except AssertionError as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                if frame.filename != claims.__file__:
                    raise
                return "killed"
            except (Endless, pytest.fail.Exception):  # no end; or it holds for the mutant and the baseline
                continue
    return "survived"


def calls(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """The arguments of every call that pytest would make of a parametrised test."""
    sets = []
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            names, values = mark.args[:2]
            split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
            sets.append([dict(zip(split, _row(value, len(split)), strict=True)) for value in values])
    for parts in product(*sets):
        yield {name: value for part in parts for name, value in part.items()}


def _row(value: Any, width: int) -> Sequence[Any]:
    if isinstance(value, PARAM):
        return cast("Sequence[Any]", value.values)
    return (value,) if width == 1 else value
