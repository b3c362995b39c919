"""The packages of the extra `solvers`, which an installation may be without.

Clarabel brings scipy, and scipy alone is as large as all that Dovetail needs besides. Two policies use them,
so they are not installed unless asked for.
"""

from __future__ import annotations

from importlib.util import find_spec

from dovetail.model.errors import BadOption


def require(package: str, need: str) -> None:
    """Refuse at once, not at the first decision, what needs a package that is not installed."""
    if find_spec(package) is None:
        raise BadOption(
            f"{need} needs the package {package}, which is not installed; "
            "install it: pip install 'dovetail[solvers]'"
        )
