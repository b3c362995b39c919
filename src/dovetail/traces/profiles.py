"""Measured throughputs: steps per second of a model by GPU type and number, alone and sharing GPUs.

The format is Gavel's:

    {"v100": {"('ResNet-50 (batch size 32)', 1)": {"null": 7.8, "('A3C', 1)": [5.1, 6.0]}}}

By GPU type, model and number of GPUs: `null` is the job alone; the name of another job has the speeds of the
two on the same devices, its own first. 0 means that a job, or a pair, does not fit. A type
`v100_unconsolidated` is the same devices on more nodes than needed. The name `gavel` means the measurements
that are shipped with Dovetail.
"""

from __future__ import annotations

import ast
import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from dovetail.model.errors import TraceError
from dovetail.traces.files import opened

SHIPPED_THROUGHPUTS: Mapping[str, Path] = {
    "gavel": Path(__file__).parent / "data" / "gavel_throughputs.json.xz"
}
_SPLIT = "_UNCONSOLIDATED"

Key = tuple[str, int]  # a model, and its number of GPUs


@dataclass(frozen=True, slots=True)
class Throughputs:
    """Steps per second; the names of GPU types are in capitals."""

    file: str
    types: tuple[str, ...]  # in the order of the file, without the unconsolidated types
    _alone: Mapping[str, Mapping[Key, float]] = field(repr=False)
    _beside: Mapping[str, Mapping[tuple[Key, Key], tuple[float, float]]] = field(repr=False)

    def single(self, model: str, gpus: int, type: str, *, consolidated: bool = True) -> float | None:
        """The speed of a job alone; 0 if it does not fit, None if it was not measured."""
        return self._alone.get(_row(type, consolidated), {}).get((model, gpus))

    def pair(
        self, model: str, other: str, gpus: int, type: str, *, consolidated: bool = True
    ) -> tuple[float, float] | None:
        """The speeds of two jobs on the same devices; zeros if they do not fit together."""
        pairs = self._beside.get(_row(type, consolidated), {})
        if (found := pairs.get(((model, gpus), (other, gpus)))) is not None:
            return found
        turned = pairs.get(((other, gpus), (model, gpus)))
        return None if turned is None else (turned[1], turned[0])

    def keys(self) -> tuple[Key, ...]:
        """Every model and number of GPUs with a measurement, in the order of the file."""
        return tuple(dict.fromkeys(key for rows in self._alone.values() for key in rows))

    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(model for model, _ in self.keys()))


def load_throughputs(name_or_path: str | Path) -> Throughputs:
    """Load throughputs by name or from a file; an invalid file is a one-line error."""
    if (known := SHIPPED_THROUGHPUTS.get(str(name_or_path))) is not None:
        return _shipped(str(name_or_path), known)
    path = Path(name_or_path)
    if not path.exists() and not path.suffix and path.parent == Path():
        near = difflib.get_close_matches(str(path), SHIPPED_THROUGHPUTS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"give a path, or {' or '.join(SHIPPED_THROUGHPUTS)}"
        raise TraceError(str(path), None, "no such file of throughputs", hint)
    return _read(path)


@cache
def _shipped(name: str, path: Path) -> Throughputs:
    return replace(_read(path), file=f"the throughputs {name}")


def _read(path: Path) -> Throughputs:
    file = str(path)
    with opened(path) as text:
        try:
            table = json.load(text)
        except json.JSONDecodeError as error:
            raise TraceError(
                file, error.lineno, f"is not valid JSON ({error.msg})", "give throughputs in Gavel's format"
            ) from None
    if not isinstance(table, dict) or not table:
        raise TraceError(file, None, "is not a table of GPU types", "give throughputs in Gavel's format")
    alone: dict[str, dict[Key, float]] = {}
    beside: dict[str, dict[tuple[Key, Key], tuple[float, float]]] = {}
    for kind, rows in table.items():
        if not isinstance(rows, dict):
            raise TraceError(
                file, None, f"{kind}: {_short(rows)} is not a table of job types", "use Gavel's format"
            )
        singles, pairs = alone.setdefault(kind.upper(), {}), beside.setdefault(kind.upper(), {})
        for name, cells in rows.items():
            key = _key(file, kind, name)
            if not isinstance(cells, dict):
                raise TraceError(file, None, f"{kind}, {name}: {_short(cells)} is not a table of speeds")
            for other, cell in cells.items():
                if other == "null":
                    singles[key] = _speed(file, kind, name, cell)
                elif isinstance(cell, list) and len(cell) == 2:
                    first, second = (_speed(file, kind, name, one) for one in cell)
                    pairs[key, _key(file, kind, other)] = first, second
                else:
                    raise TraceError(
                        file, None, f"{kind}, {name} beside {other}: {_short(cell)}", "give two numbers"
                    )
    types = tuple(kind for kind in alone if not kind.endswith(_SPLIT))
    return Throughputs(file, types, alone, beside)


def _row(type: str, consolidated: bool) -> str:
    return type.upper() if consolidated else type.upper() + _SPLIT


def _key(file: str, kind: str, text: str) -> Key:
    key = _parsed(text)
    if key is None:
        raise TraceError(file, None, f"{kind}: {text!r} is not a job type", "write ('model', GPUs)")
    return key


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Key | None:
    try:
        model, gpus = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return (model, gpus) if isinstance(model, str) and type(gpus) is int and gpus > 0 else None


def _speed(file: str, kind: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise TraceError(file, None, f"{kind}, {name}: {_short(value)}", "speeds are numbers of at least 0")
    return float(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
