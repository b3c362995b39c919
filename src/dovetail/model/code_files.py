"""Functions in files: `my_policy.py:mine`.

A file is code, and whoever names one runs it: only the command line of this machine and admins may
(docs/concepts/security.md). It is run once, and again when it has changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from dovetail.model.errors import CannotLoad

_loaded: dict[Path, tuple[tuple[int, int], ModuleType]] = {}  # by file: its time and size, and the module


def names_file(name: str) -> bool:
    """Whether a name is that of a function in a file."""
    return ".py:" in name


def whole_path(name: str) -> str:
    """The same function, with the whole path of its file; other names stay as they are."""
    if not names_file(name):
        return name
    file, _, function = name.rpartition(":")
    return f"{Path(file).expanduser().absolute()}:{function}"


def function_in(kind: str, name: str) -> Callable[..., Any]:
    """The function that `name` says; `kind` is what it makes, for messages."""
    file, _, function = name.rpartition(":")
    path = Path(file).expanduser().absolute()
    module = _module(kind, path)
    found = getattr(module, function, None)
    if not callable(found):
        there = sorted(
            one
            for one, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__ and one[:1] != "_"
        )
        known = f"it has {', '.join(there[:10])}" if there else "it has no functions"
        raise CannotLoad(f"{kind} file {path} has no function {function!r}; {known}")
    return found  # type: ignore[no-any-return]


def _module(kind: str, path: Path) -> ModuleType:
    try:
        facts = path.stat()
        code = path.read_bytes()
    except OSError as error:
        raise CannotLoad(
            f"{kind} file {path} cannot be read: {error.strerror}; write it as FILE.py:FUNCTION"
        ) from None
    stamp = (facts.st_mtime_ns, facts.st_size)
    known = _loaded.get(path)
    if known is not None and known[0] == stamp:
        return known[1]
    # The name is the same in every process: memories of policies name the classes of a module.
    name = f"dovetail_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_loader(name, loader=None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        exec(compile(code, str(path), "exec"), vars(module))
    except BaseException as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        if not isinstance(error, Exception | SystemExit):
            raise
        raise CannotLoad(f"{kind} file {path} cannot be loaded: {said(error)}") from error
    _loaded[path] = (stamp, module)
    return module


def said(error: BaseException) -> str:
    """An exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
