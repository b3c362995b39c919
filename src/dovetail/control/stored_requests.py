"""Requests that were stored before amounts needed a unit: bare numbers were seconds, bytes, thousandths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.model.units import WHOLE

_SECONDS = ("time", "expected", "signal_before")


def with_units(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same request, each amount with its unit.

    >>> with_units({"time": 7200, "gpu_share": 500, "checkpoint": {"grace": 60.5}, "begin": "+90"})
    {'time': '7200s', 'gpu_share': 0.5, 'checkpoint': {'grace': '60.5s'}, 'begin': '+90s'}
    """
    found = dict(body)
    for key in _SECONDS:
        found = _changed(found, key, "s")
    if isinstance(checkpoint := found.get("checkpoint"), Mapping):
        found["checkpoint"] = _changed(_changed(checkpoint, "every", "s"), "grace", "s")
    if isinstance(resources := found.get("resources"), Mapping):
        found["resources"] = _changed(resources, "memory", "B")
    for key in ("begin", "deadline"):
        if isinstance(moment := found.get(key), str) and moment[:1] == "+" and moment[-1:].isdigit():
            found[key] = moment if ":" in moment else f"{moment}s"
    share = found.get("gpu_share")
    if isinstance(share, int) and not isinstance(share, bool) and share > 1:
        found["gpu_share"] = share / WHOLE
    return found


def _changed(table: Mapping[str, Any], key: str, unit: str) -> dict[str, Any]:
    value = table.get(key)
    if isinstance(value, str) and value.replace(".", "", 1).isdigit():
        return {**table, key: f"{value}{unit}"}
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
        return {**table, key: f"{text}{unit}"}
    return dict(table)
