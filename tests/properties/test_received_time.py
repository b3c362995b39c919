"""Under gavel every job receives the time that its shares give it, though a job arrives in every round.

What shares promise is not always possible: a gang runs whole rounds or not at all, and gangs may not fit
together. So the bound is 10 % of what was promised or, where that is little, a number of rounds (of all the
GPUs of a gang). A job may have more than promised, on devices that no other job could use.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dovetail.core.core import Core, Step
from dovetail.mechanisms.rounds.time_share_rounds import RoundState
from dovetail.model.cluster import Cluster, Node
from dovetail.model.job import Job, Profile
from dovetail.policies.gavel.policy import GavelState
from dovetail.testing.build import cluster, job, run

ROUNDS, LENGTH = 100, 360.0
POWERS, ANY = (1, 1, 1, 2, 4, 8, 16), tuple(range(1, 17))


def arrivals(seed: int, sizes: Sequence[int], at_first: int, speeds: tuple[str, ...] = ()) -> list[Job]:
    """Some jobs at first and one in each round, at any time of it; half of them stay to the end."""
    dice = random.Random(seed)
    jobs = []
    for i in range(at_first + ROUNDS):
        at = 0.0 if i < at_first else LENGTH * (i - at_first + dice.random())
        hours = 1000 if dice.random() < 0.5 else dice.choice([0.2, 0.5, 1, 2])
        profile = Profile(speeds={kind: dice.uniform(0.2, 1) for kind in speeds}) if speeds else None
        jobs.append(job(f"j{i}", gpus=dice.choice(sizes), hours=hours, at=at, profile=profile))
    return jobs


def promised_and_received(jobs: Sequence[Job], on: Cluster, policy: str) -> dict[str, tuple[float, float]]:
    """By job, in rounds: the integral of its shares, and the time that it ran."""
    promised, received = defaultdict[str, float](float), defaultdict[str, float](float)
    last = RoundState()

    def watch(core: Core, step: Step) -> None:
        nonlocal last
        assert isinstance(core.memory, GavelState)
        rounds = core.memory.rounds
        if rounds.number == last.number:
            return
        passed = (rounds.began_at - last.began_at) / 1e6 / LENGTH
        for runner, row in last.shares.items():
            promised[str(runner)] += sum(row) * passed
        for runner in last.runs:
            received[str(runner)] += passed
        last = rounds

    run(jobs, on, policy, until=ROUNDS * LENGTH, on_step=watch)
    return {name: (promised[name], received[name]) for name in promised}


def check(times: dict[str, tuple[float, float]], short: float, long: float) -> None:
    assert len(times) >= ROUNDS
    for name, (due, had) in times.items():
        assert had >= due - max(0.1 * due, short), name
        assert had <= due + max(0.1 * due, long), name


@pytest.mark.parametrize("at_first", [5, 30])
@pytest.mark.parametrize("sizes", [POWERS, ANY], ids=["powers of two", "any size"])
@pytest.mark.parametrize("seed", range(5))
def test_received_time_follows_the_shares(seed: int, sizes: Sequence[int], at_first: int) -> None:
    times = promised_and_received(arrivals(seed, sizes, at_first), cluster(nodes=4, gpus=8), "gavel")
    check(times, short=1.0, long=3.0)


@pytest.mark.parametrize("sizes", [POWERS, ANY], ids=["powers of two", "any size"])
@pytest.mark.parametrize("seed", range(3))
def test_received_time_follows_the_shares_of_pop(seed: int, sizes: Sequence[int]) -> None:
    """With many jobs: its shares of few are uneven, and wide gangs do not fit together with single jobs."""
    times = promised_and_received(arrivals(seed, sizes, 30), cluster(nodes=4, gpus=8), "pop")
    check(times, short=1.0, long=3.0)


@pytest.mark.parametrize("seed", range(5))
def test_received_time_follows_the_shares_of_two_types(seed: int) -> None:
    """A job cannot be on two types at once, so fewer gangs fit together."""
    two = Cluster((*cluster(nodes=2, type="A").nodes, *renamed(cluster(nodes=2, type="V"))))
    times = promised_and_received(arrivals(seed, POWERS, 30, ("A", "V")), two, "gavel")
    check(times, short=1.0, long=4.0)


def renamed(on: Cluster) -> tuple[Node, ...]:
    return tuple(replace(node, name=f"other-{node.name}") for node in on.nodes)
