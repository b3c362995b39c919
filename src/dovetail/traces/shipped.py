"""The traces shipped with Dovetail; data/NOTICE has their sources, licences and changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_DATA = Path(__file__).parent / "data"

SHIPPED: Mapping[str, Path] = MappingProxyType(
    {
        "philly": _DATA / "philly.csv.xz",
        **{
            f"itp:cluster{number:02}": _DATA / "itp" / f"cluster{number:02}.csv.xz" for number in range(1, 11)
        },
        "openb": _DATA / "openb_pods.csv.xz",
    }
)
SHIPPED_CLUSTERS: Mapping[str, Path] = MappingProxyType({"openb": _DATA / "openb_nodes.csv.xz"})
BEGAN: Mapping[str, str] = MappingProxyType(
    {"philly": "2017-09-04 10:30:41"} | {name: "2021-03-04" for name in SHIPPED if name.startswith("itp:")}
)


def shipped_name(name: str) -> str | None:
    """The full name: `itp:3` is `itp:cluster03`; None if no such trace is shipped."""
    family, _, rest = name.partition(":")
    if family == "itp" and rest.isdecimal():
        name = f"itp:cluster{int(rest):02}"
    return name if name in SHIPPED else None
