"""What every benchmark gives back."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """A measured number and what it may be at most."""

    name: str
    value: float
    limit: float
    unit: str
    note: str = ""
