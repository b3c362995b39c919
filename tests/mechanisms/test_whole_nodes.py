"""Placing powers of two and whole nodes: whatever fits by number fits, and jobs stay where they can."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.mechanisms.place.whole_nodes import Wish, arranged
from dovetail.testing.suite import searched

NODES, EACH = range(4), 8
ALL = dict.fromkeys(NODES, (1 << EACH) - 1)


def wish(name: str, gpus: int, held: dict[int, int] | None = None, stays: bool = False) -> Wish:
    return Wish(name, gpus, EACH, NODES, held or {}, stays)


@given(sizes=st.lists(st.sampled_from((1, 2, 4, 8, 16)), max_size=30), leaves=st.sets(st.integers(0, 29)))
@searched(100)
def test_what_fits_by_number_is_placed_and_shares_no_device(sizes: list[int], leaves: set[int]) -> None:
    fit, total = [], 0
    for size in sizes:
        if total + size <= 32:
            fit.append(size)
            total += size
    first = arranged(ALL, [wish(str(n), size) for n, size in enumerate(fit)])
    assert len(first) == len(fit)
    left = [n for n in range(len(fit)) if n not in leaves]
    room = 32 - sum(fit[n] for n in left)
    new = [size for size in (16, 8, 4, 2, 1) if size <= room][:1]
    wishes = [wish(str(n), fit[n], first[str(n)], stays=True) for n in left]
    found = arranged(ALL, [*wishes, *(wish("new", size) for size in new)])
    assert len(found) == len(left) + len(new)
    for node in NODES:
        masks = [made.get(node, 0) for made in found.values()]
        assert sum(mask.bit_count() for mask in masks) <= EACH
        union = 0
        for mask in masks:
            assert not union & mask
            union |= mask
    for name, made in found.items():
        size = new[0] if name == "new" else fit[int(name)]
        assert sum(mask.bit_count() for mask in made.values()) == size
        assert len(made) == max(1, size // EACH)


def test_the_job_that_is_moved_is_the_one_that_displaces_least() -> None:
    held = {"a": {0: 0b1}, "b": {1: 0b11}, "c": {2: 0xFF}, "d": {3: 0xFF}}
    sizes = {name: sum(mask.bit_count() for mask in masks.values()) for name, masks in held.items()}
    stay = [wish(name, sizes[name], held[name], stays=True) for name in held]
    found = arranged(ALL, [*stay, wish("new", 8)])
    assert found["new"] == {0: 0xFF}
    assert found["a"] == {1: 0b100}
    assert {name: found[name] for name in "bcd"} == {name: held[name] for name in "bcd"}


def test_a_job_for_which_nothing_is_left_is_evicted() -> None:
    blocked = dict.fromkeys(NODES, 0x7F)  # a device of each node is not free
    assert arranged(blocked, [wish("wide", 8), wish("small", 4)]).keys() == {"small"}
