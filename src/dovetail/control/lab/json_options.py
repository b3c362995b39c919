"""A policy with options as JSON has them, read as if they had been typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.bench.policy_choice import PolicyChoice, read_policy_choice
from dovetail.model.errors import BadOption


def policy_from_json(policy: str, options: Mapping[str, Any], *, files: bool = False) -> PolicyChoice:
    """The same checks and the same words as for `--set`; `files` only for the policy of the plane itself."""
    typed = {name.replace("-", "_"): _typed(name, v) for name, v in options.items()}
    return read_policy_choice(policy, typed, files=files)


def _typed(name: str, value: Any, depth: int = 0) -> str:
    """A JSON value as one would type it."""
    if isinstance(value, str):
        return value.strip()[:1_000]
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, int | float):
        return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)
    if depth == 0 and len(value) <= 100:
        if isinstance(value, list):
            return ",".join(_typed(name, item, 1) for item in value)
        if isinstance(value, dict):
            return ",".join(f"{key}:{_typed(name, item, 1)}" for key, item in value.items())
    raise BadOption(f"option {name!r}: lists and mappings hold at most a hundred plain values")
