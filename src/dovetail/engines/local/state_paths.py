"""Which paths lie in the state folder of the plane, where users may name none but those of their own attempt.

Every supervisor imports this module, so it uses only the cheapest parts of the standard library.
"""

from __future__ import annotations

import os

from dovetail.engines.local.attempt_files import RUN


class StatePaths:
    """The state folder around an attempt, with all links resolved."""

    def __init__(self, folder: str) -> None:
        self.run = os.path.realpath(os.path.join(folder, RUN))
        self.state = os.path.realpath(os.path.join(folder, "..", "..", ".."))

    def private(self, path: str) -> bool:
        """Whether a path leads into the state folder, and not into the `run` folder of the attempt."""
        found = os.path.realpath(path)
        return is_inside(found, self.state) and not is_inside(found, self.run)


def is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
