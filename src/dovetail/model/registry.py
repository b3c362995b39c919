"""A table of names and factories. Factories are imported on first use, so unused solvers are not loaded."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions
from typing import Any, Generic, TypeVar, cast

from dovetail.model.code_files import function_in, names_file, said
from dovetail.model.errors import BadOption, CannotLoad, UnknownName

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """A table of `name: "module:factory"` that plug-ins may add to.

    With `files` a name may also be a function in a file (`model.code_files`): never for names that users of a
    plane send, because to look one up runs the file.
    """

    kind: str
    paths: Mapping[str, str]
    plugins: str  # the entry-point group that may add names
    files: bool = False
    remedy: str = ""  # what to do about a name that is not there

    def names(self) -> list[str]:
        return sorted(self._all())

    def factory(self, name: str) -> Callable[..., T]:
        """The factory of that name. Installed plug-ins are looked up only for names that are not built in."""
        path = self.paths.get(name)
        if path is not None:
            module, _, attribute = path.partition(":")
            return cast("Callable[..., T]", getattr(importlib.import_module(module), attribute))
        if names_file(name):
            if not self.files:
                raise CannotLoad(
                    f"{name!r} is a file: only administrators and the command line may name a {self.kind} so"
                )
            return function_in(self.kind, name)
        paths = self._all()
        if name not in paths:
            raise UnknownName(self.kind, name, paths, self.remedy)
        return cast("Callable[..., T]", _plugged_in(self.kind, name, paths[name]))

    def options(self, name: str) -> Mapping[str, inspect.Parameter]:
        factory = self.factory(name)
        try:
            return inspect.signature(factory, eval_str=True).parameters
        except Exception as error:
            if name in self.paths:
                raise
            raise CannotLoad(f"{self.kind} {name} cannot be loaded: {said(error)}") from error

    def problem(self, name: str) -> str:
        """Why a name of the table cannot be used, in one line; "" if it can."""
        try:
            self.options(name)
        except CannotLoad as error:
            return str(error)
        return ""

    def make(self, name: str, **options: object) -> T:
        """Make the object of that name. An unknown option is an error."""
        known = self.options(name)
        for option in options:
            if option not in known:
                near = difflib.get_close_matches(option, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known) or 'none'}"
                raise BadOption(f"{self.kind} {name} has no option {option!r}; {hint}")
        return self.factory(name)(**options)

    def _all(self) -> dict[str, str]:
        return {**_added(self.plugins), **self.paths}


def _added(group: str) -> dict[str, str]:
    """What installed packages add to a group. A package with damaged metadata adds nothing."""
    found: dict[str, str] = {}
    for package in distributions():
        with suppress(Exception):
            for point in package.entry_points.select(group=group):
                found.setdefault(point.name, point.value)
    return found


def _plugged_in(kind: str, name: str, value: str) -> Any:
    """What an entry point of a plug-in names; the code of a plug-in may raise anything."""
    importlib.invalidate_caches()  # it may have been installed a moment ago
    try:
        return EntryPoint(name, value, "").load()
    except (Exception, SystemExit) as error:
        raise CannotLoad(
            f"{kind} {name} is a plug-in ({value}) that cannot be loaded: {said(error)}; "
            "install it again, or uninstall it"
        ) from error


def read_option(kind: str, name: str, parameter: inspect.Parameter, text: str) -> Any:
    """The text that a user typed for an option, read as the type that its factory declares."""
    try:
        return _read(parameter.annotation, text)
    except ValueError as error:
        raise BadOption(f"{kind} {name}: {parameter.name}={text!r} is wrong: {error}") from None


def _read(annotation: Any, text: str) -> Any:
    choices = getattr(annotation, "__args__", ())
    origin = getattr(annotation, "__origin__", None)
    if origin is not None and str(origin) == "typing.Literal":
        for choice in choices:
            if str(choice) == text:
                return choice
        raise ValueError(f"choose {' | '.join(map(str, choices))}")
    if type(None) in choices:  # X | None
        if text.lower() in ("none", ""):
            return None
        return _read(next(c for c in choices if c is not type(None)), text)
    if annotation is bool:
        if text.lower() not in ("true", "false", "yes", "no", "on", "off", "1", "0"):
            raise ValueError("choose true | false")
        return text.lower() in ("true", "yes", "on", "1")
    if annotation is int:
        return int(text)
    if annotation is float:
        return float(text)
    if annotation is str:
        return text
    if origin is not None and choices and issubclass(origin, Mapping):
        pairs = [item.partition(":") for item in text.split(",") if item]
        return {_read(choices[0], key): _read(choices[1], value) for key, _, value in pairs}
    if origin is not None and choices:  # Sequence[X], tuple[X, ...]
        return tuple(_read(choices[0], item) for item in text.split(",") if item)
    raise ValueError(f"cannot be set from text ({annotation})")
