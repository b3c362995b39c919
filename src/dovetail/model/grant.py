"""What a job holds: spots on nodes, and the terms on which it holds them.

A spot is a plain tuple `(node, devices, share, cpus, memory)`, because a run makes millions of them.
`devices` is a bit mask. A positive `share` is milli-GPUs of each device. A negative share is a slice of one
device: minus the mask of its memory slots. A spot without devices is a helper: CPU and memory alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from dovetail.model.cluster import SLICES
from dovetail.model.units import WHOLE

Spot = tuple[int, int, int, int, int]
Spots = tuple[Spot, ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """How a job runs on what it holds."""

    batch: int | None = None  # global batch size
    clock: float = 1.0  # fraction of the device's full clock rate
    shift: int = 0  # offset of its communication phase in the common period
    guard: float | None = None  # a low-priority job's share of a guarded device; None: unguarded


FULL = Terms()


def devices_of(spots: Spots) -> int:
    """The number of devices, whole or shared."""
    if len(spots) == 1:
        return spots[0][1].bit_count()
    count = 0
    for _, devices, _, _, _ in spots:  # a loop: half the time of a sum over a generator
        count += devices.bit_count()
    return count


def load_of(spots: Spots) -> int:
    """Milli-GPUs held."""
    if len(spots) == 1:
        _, devices, share, _, _ = spots[0]
        if share > 0:
            return devices.bit_count() * share
    load = 0
    for _, devices, share, _, _ in spots:
        load += devices.bit_count() * (share if share >= 0 else milli_of(share))
    return load


def milli_of(share: int) -> int:
    """Milli-GPUs of a share; a slice counts by its memory slots."""
    return share if share >= 0 else WHOLE * (-share).bit_count() // 8


def nodes_of(spots: Spots) -> set[int]:
    """The nodes on which devices are held."""
    return {node for node, devices, _, _, _ in spots if devices}


def same_place(before: Spots, after: Spots) -> bool:
    """Whether both hold as many devices on the same nodes: what is in the nodes' host memory can be used."""
    return before == after or _counts(before) == _counts(after)


def _counts(spots: Spots) -> dict[int, int]:
    found: dict[int, int] = {}
    for node, devices, _, _, _ in spots:
        if devices:
            found[node] = found.get(node, 0) + devices.bit_count()
    return found


@lru_cache(maxsize=1 << 16)
def lowest(mask: int, count: int) -> int:
    """The `count` lowest devices of a mask."""
    picked = 0
    for _ in range(count):
        low = mask & -mask
        picked |= low
        mask ^= low
    return picked


EMPTY = 0xFF  # all memory slots of a device that can be sliced


def slices_of(profile: str) -> int:
    """How many slices of one profile fit an empty device.

    >>> slices_of("1g"), slices_of("3g")
    (7, 2)
    """
    return len(SLICES[profile][1])


def slots_for(profile: str, free: int) -> int:
    """The memory slots that a slice takes of a device's free ones: the rightmost that fit; 0 if none do.

    >>> slots_for("3g", 0b1111_1110)
    240
    """
    size, starts = SLICES[profile]
    for start in reversed(starts):
        slots = (((1 << size) - 1) << start) & 0xFF
        if slots & free == slots:
            return slots
    return 0


def within(inner: Spots, outer: Spots) -> bool:
    """Whether `outer` holds all of `inner`; a share of a device is within a larger share of it."""
    held: dict[int, list[tuple[int, int]]] = {}
    for node, devices, share, _, _ in outer:
        held.setdefault(node, []).append((devices, share))
    for node, devices, share, _, _ in inner:
        for there, most in held.get(node, ()):
            if there & devices == devices and (share == most or 0 < share < most):
                break
        else:
            return False
    return True


def resizes(old: Spots, new: Spots) -> bool:
    """Whether the job grows or shrinks in place. A change that both frees and takes devices is a move."""
    return within(old, new) or within(new, old)
