"""Placing jobs so that none is spread over nodes that it shares: whole-node jobs first, then the largest.

Sia (Jayaram Subramanya et al., SOSP 2023, section 3.4). A job on several nodes has these for itself; a job
that is smaller than a node is inside one. A job stays where it is unless a larger one needs the place: then
it is moved, and if nothing else is free it is evicted until the next round. Powers of two on nodes with a
power of two of GPUs always fit, if the total does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Masks = dict[int, int]  # devices by node


class Wish(NamedTuple):
    """A number of GPUs on nodes of one pool."""

    name: str
    gpus: int
    each: int  # GPUs of a node
    nodes: Sequence[int]  # of the pool
    held: Mapping[int, int]  # devices that the job holds, by node
    stays: bool  # it holds what it wants


def arranged(free: Mapping[int, int], wishes: Iterable[Wish]) -> dict[str, Masks]:
    """Devices for each wish; a wish that is not named here is not granted.

    `free` are the devices of each node that can be given out, whichever of these jobs hold them now.
    """
    left, found = dict(free), dict[str, Masks]()
    order = sorted(wishes, key=lambda wish: (-wish.gpus, not wish.stays))
    pending = dict.fromkeys(left, 0)  # GPUs that jobs hold which would like to stay
    for wish in order:
        if wish.stays:
            for node, devices in wish.held.items():
                pending[node] += devices.bit_count()
    for wish in order:
        made: Masks | None = None
        if wish.stays:
            for node, devices in wish.held.items():
                pending[node] -= devices.bit_count()
            if all(left[node] & devices == devices for node, devices in wish.held.items()):
                made = dict(wish.held)
        if made is None:
            made = _searched(left, pending, wish)
        if made is not None:
            found[wish.name] = made
            for node, devices in made.items():
                left[node] &= ~devices
    return found


def _searched(left: Masks, pending: Masks, wish: Wish) -> Masks | None:
    """Whole nodes, and a place inside one for the rest: where it displaces least, and where it is already."""
    wanted, rest = divmod(wish.gpus, wish.each)
    whole: list[int] = []
    if wanted:
        empty = [node for node in wish.nodes if left[node].bit_count() == wish.each]
        if len(empty) < wanted:
            return None
        empty.sort(key=lambda node: (pending[node], node not in wish.held, node))
        whole = empty[:wanted]
    made = {node: left[node] for node in whole}
    if rest:
        partial = _partial(left, pending, wish, rest, whole)
        if partial is None:
            return None
        made[partial] = _kept_first(left[partial], wish.held.get(partial, 0), rest)
    return made


def _partial(left: Masks, pending: Masks, wish: Wish, rest: int, used: Sequence[int]) -> int | None:
    best: tuple[int, bool, int, int] | None = None
    for node in wish.nodes:
        room = left[node].bit_count()
        if room >= rest and node not in used:
            key = max(0, pending[node] - (room - rest)), node not in wish.held, room - pending[node], node
            if best is None or key < best:
                best = key
    return None if best is None else best[-1]


def _kept_first(free: int, held: int, count: int) -> int:
    """This many of the free devices: those that the job holds first, then the lowest."""
    taken = 0
    while taken.bit_count() < count:
        left = free & ~taken
        mine = left & held or left
        taken |= mine & -mine
    return taken
