"""Stride scheduling: GPU-time in proportion to tickets, for gangs too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.policies.gandiva_fair.stride import Passes, charged, joined, next_quantum

QUANTUM = 60


def played(
    tickets: dict[str, float], sizes: dict[str, list[int]], room: int, quanta: int
) -> tuple[dict[str, int], Passes]:
    """Milli-GPU-quanta that each owner received."""
    lines = {owner: [(f"{owner}{i}", load) for i, load in enumerate(loads)] for owner, loads in sizes.items()}
    load = {id: size for line in lines.values() for id, size in line}
    ids = {owner: [id for id, _ in line] for owner, line in lines.items()}
    passes, had = joined(Passes(), tickets, ids), dict.fromkeys(sizes, 0)
    for quantum in range(1, quanta + 1):
        line = {o: sorted(mine, key=lambda job: passes.jobs[job[0]]) for o, mine in lines.items()}
        running = {id: (id[0], load[id]) for id in next_quantum(passes, line, room, QUANTUM)}
        for owner, size in running.values():
            had[owner] += size
        passes = charged(replace(passes, running=running), quantum * QUANTUM)
    return had, passes


def test_time_is_in_proportion_to_tickets() -> None:
    had, _ = played({"a": 2000.0, "b": 1000.0}, {"a": [1000] * 5, "b": [1000] * 5}, 3000, 30)
    assert had == {"a": 60_000, "b": 30_000}


def test_a_gang_has_its_share_beside_small_jobs() -> None:
    """Four GPUs or none: it runs every other quantum, and small jobs the others."""
    had, _ = played({"a": 2000.0, "b": 2000.0}, {"a": [4000], "b": [1000] * 6}, 4000, 40)
    assert had == {"a": 80_000, "b": 80_000}


def test_small_jobs_fill_the_gap_beside_a_gang() -> None:
    had, _ = played({"a": 2000.0, "b": 2000.0}, {"a": [3000], "b": [1000]}, 4000, 10)
    assert had == {"a": 30_000, "b": 10_000}


def test_the_jobs_of_an_owner_share_equally() -> None:
    _, passes = played({"a": 2000.0}, {"a": [1000, 1000, 2000]}, 2000, 30)
    assert passes.jobs == pytest.approx(dict.fromkeys(("a0", "a1", "a2"), 20_000 * QUANTUM))


def test_a_new_owner_has_nothing_to_catch_up_with() -> None:
    passes = joined(Passes(), {"a": 1000.0}, {"a": ["a0"]})
    passes = charged(replace(passes, running={"a0": ("a", 1000)}), 600)
    passes = joined(passes, {"a": 1000.0, "b": 1000.0}, {"a": ["a0", "a1"], "b": ["b0"]})
    assert passes.owners == {"a": 600.0, "b": 600.0}
    assert passes.jobs == {"a0": 600_000.0, "a1": 600_000.0, "b0": 0.0}


def test_an_owner_without_tickets_comes_last_and_is_not_charged() -> None:
    passes = joined(Passes(), {"a": 1000.0, "b": 0.0}, {"a": ["a0"], "b": ["b0"]})
    lines = {"b": [("b0", 1000)], "a": [("a0", 1000)]}
    assert next_quantum(passes, lines, 2000, QUANTUM) == ["a0", "b0"]
    assert "b" not in charged(replace(passes, running={"b0": ("b", 1000)}), 60).owners
