"""The shipped traces, and for each a cluster on which its jobs queue without queueing for ever."""

from __future__ import annotations

from typing import Any, NamedTuple

from dovetail.traces.shipped import SHIPPED


class About(NamedTuple):
    jobs: int
    cluster: str
    gpus: int
    words: str


_ITP = "Microsoft's ITP, two months of 2021, one of ten clusters"

# Counted once: reading them all takes seconds, and they never change.
TRACES: dict[str, About] = {
    "philly": About(82_247, "52x8", 416, "Microsoft's Philly, three and a half months of 2017, 15 teams"),
    "openb": About(8_151, "6x8", 48, "Alibaba's shared GPUs, 2023: many jobs ask for a part of one"),
    **{
        f"itp:cluster{number:02}": About(jobs, f"{nodes}x8", 8 * nodes, _ITP)
        for number, jobs, nodes in (
            (1, 1_595, 8),
            (2, 5_778, 16),
            (3, 3_011, 24),
            (4, 15_802, 66),
            (5, 3_629, 4),
            (6, 2_396, 16),
            (7, 12_699, 35),
            (8, 13_047, 12),
            (9, 11_134, 5),
            (10, 260, 4),
        )
    },
}  # fmt: skip


def listed() -> list[dict[str, Any]]:
    """As they are answered; only those that are there."""
    return [
        {"name": name, "jobs": one.jobs, "gpus": one.gpus, "cluster": one.cluster, "about": one.words}
        for name, one in TRACES.items()
        if name in SHIPPED
    ]
