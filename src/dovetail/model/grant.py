"""What a job holds: spots on nodes, and the terms on which it holds them.

A spot is a plain tuple, for a million of them are made: `(node, devices, share, cpus, memory)`.
`devices` is a bit mask. A positive `share` is milli-GPUs of each device; a negative one is minus the mask of
memory slots of the one device it is a slice of. Without devices it is a helper: CPU and memory alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.model.cluster import SLICES
from dovetail.model.units import WHOLE

Spot = tuple[int, int, int, int, int]
Spots = tuple[Spot, ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """How a job is to run on what it holds."""

    batch: int | None = None  # global batch size
    clock: float = 1.0  # of the device's full clock
    shift: int = 0  # start of its communication phase against the common period
    guard: float | None = None  # a low-priority job's share of a guarded device; None: unguarded


FULL = Terms()


def devices_of(spots: Spots) -> int:
    """How many devices are touched."""
    return sum(devices.bit_count() for _, devices, _, _, _ in spots)


def load_of(spots: Spots) -> int:
    """Milli-GPUs held."""
    if len(spots) == 1:
        _, devices, share, _, _ = spots[0]
        if share > 0:
            return devices.bit_count() * share
    return sum(devices.bit_count() * milli_of(share) for _, devices, share, _, _ in spots)


def milli_of(share: int) -> int:
    """Milli-GPUs of a share; a slice counts by its memory slots."""
    return share if share >= 0 else WHOLE * (-share).bit_count() // 8


def nodes_of(spots: Spots) -> set[int]:
    """The nodes on which devices are held."""
    return {node for node, devices, _, _, _ in spots if devices}


EMPTY = 0xFF  # all memory slots of a device that can be sliced


def slices_of(profile: str) -> int:
    """How many slices of one sort an empty device has room for.

    >>> slices_of("1g"), slices_of("3g")
    (7, 2)
    """
    return len(SLICES[profile][1])


def slots_for(profile: str, free: int) -> int:
    """The slots a slice would take of a device's free ones, rightmost place that fits; 0 if none.

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
    """Whether all of these spots are among those; a part of a device is within more of it."""
    held: dict[int, list[tuple[int, int]]] = {}
    for node, devices, share, _, _ in outer:
        held.setdefault(node, []).append((devices, share))
    return all(
        any(
            there & devices == devices and (share == most or 0 < share < most)
            for there, most in held.get(node, ())
        )
        for node, devices, share, _, _ in inner
    )


def resizes(old: Spots, new: Spots) -> bool:
    """Growing or shrinking in place; anything else gives up and takes devices at once, and is a move."""
    return within(old, new) or within(new, old)
