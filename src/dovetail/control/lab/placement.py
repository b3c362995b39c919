"""What a link costs a step of training: compute, then send the gradients."""

from __future__ import annotations

from typing import Any

from dovetail.control.lab.questions import LINKS, Placement
from dovetail.model.profile_arithmetic import one_way, ring

GB = 1e9


def placed(asked: Placement) -> dict[str, Any]:
    """The step over each link, and how much longer it is than over the fastest of them.

    >>> [round(link["step_ms"], 1) for link in placed(Placement(pattern="one_way"))["links"]]
    [101.7, 140.0, 200.0]
    """
    rows = []
    for name, bandwidth in (asked.links or LINKS).items():
        size, speed = asked.size_gb * GB, bandwidth * GB
        took = one_way(size, speed) if asked.pattern == "one_way" else ring(size, asked.gpus, speed)
        rows.append((name, bandwidth, 1_000 * took, asked.compute_ms + 1_000 * took))
    least = min(step for *_, step in rows)
    return {
        "links": [
            {
                "name": name,
                "bandwidth": bandwidth,
                "transfer_ms": transfer,
                "step_ms": step,
                "slowdown": step / least if least else 1.0,
            }
            for name, bandwidth, transfer, step in rows
        ]
    }
