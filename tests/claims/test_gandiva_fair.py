"""Gandiva_fair: GPU-time by tickets on each server, balanced servers, and trade between GPU types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from dovetail.mechanisms.fair.water_filling import water_filled
from dovetail.model.cluster import Cluster, Tenant, parse_cluster, with_tenants
from dovetail.model.estimate import Estimate
from dovetail.model.grant import load_of, nodes_of
from dovetail.model.job import Job
from dovetail.model.view import JobView, View
from dovetail.policies.gandiva_fair.servers import Home
from dovetail.policies.gandiva_fair.state import TicketState
from dovetail.policies.gandiva_fair.stride import Passes, charged, next_quantum
from dovetail.policies.gandiva_fair.trade import Holding, Trade, after_trades, trades
from dovetail.policies.gandiva_fair.turn import Turn
from dovetail.sim.run import Run
from dovetail.testing.build import Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

HOUR, QUANTUM, BALANCE = 3600.0, 60.0, 300.0
SECOND = 1_000_000
WHOLE = 1_000


# -- mutants


def by_jobs(passes: Passes, now: int) -> Passes:
    """A gang is charged for one GPU."""
    one = {id: (owner, min(load, WHOLE)) for id, (owner, load) in passes.running.items()}
    return replace(charged(replace(passes, running=one), now), running=passes.running)


def never_charged(passes: Passes, now: int) -> Passes:
    return replace(passes, at=now)


def small_first(
    passes: Passes, lines: Mapping[str, Sequence[tuple[str, int]]], room: int, length: int
) -> list[str]:
    """A gang gets what smaller jobs leave."""
    small = {owner: [pair for pair in line if pair[1] <= WHOLE] for owner, line in lines.items()}
    order = next_quantum(passes, small, room, length)
    left = room - sum(load for line in lines.values() for id, load in line if id in order)
    large = {owner: [pair for pair in line if pair[1] > WHOLE] for owner, line in lines.items()}
    return order + next_quantum(passes, large, left, length)


due = Turn._due
kept = Turn._kept


def always_due(self: Turn, large: Sequence[JobView], room: dict[int, int]) -> list[tuple[JobView, Home]]:
    self.state = replace(self.state, central={})
    return due(self, large, room)


def homeless(self: Turn, left: Sequence[JobView]) -> TicketState:
    return replace(kept(self, left), homes={})


def equal_weights(
    amount: float, wants: Mapping[str, float], weights: Mapping[str, float]
) -> dict[str, float]:
    return water_filled(amount, wants, {})


TURN = "dovetail.policies.gandiva_fair.turn"
TRADE = "dovetail.policies.gandiva_fair.trade"
MUTANTS = (
    mutant(
        "gandiva-fair",
        "tickets",
        "all owners have as many",
        killed_by="test_time_follows_tickets",
        replace={f"{TURN}:water_filled": equal_weights},
    ),
    mutant(
        "gandiva-fair",
        "stride across owners",
        "the pass of an owner does not grow: the first by name goes first",
        killed_by="test_time_follows_tickets",
        replace={f"{TURN}:charged": never_charged},
    ),
    mutant(
        "gandiva-fair",
        "fairness inside an owner",
        "the first job to arrive goes first",
        killed_by="test_jobs_of_an_owner_get_equal_time",
        replace={f"{TURN}:Turn._place": lambda self, job, passes: job.seq},
    ),
    mutant(
        "gandiva-fair",
        "gang-awareness",
        "a gang is charged for one GPU",
        killed_by="test_time_follows_tickets",
        replace={f"{TURN}:charged": by_jobs},
    ),
    mutant(
        "gandiva-fair",
        "gang-awareness",
        "a gang gets what smaller jobs leave",
        killed_by="test_time_follows_tickets",
        replace={f"{TURN}:next_quantum": small_first},
    ),
    mutant(
        "gandiva-fair",
        "large gangs centrally",
        "a gang larger than a server gets idle GPUs only",
        killed_by="test_a_gang_larger_than_a_server_gets_its_share",
        replace={f"{TURN}:Turn._due": lambda self, large, room: []},
    ),
    mutant(
        "gandiva-fair",
        "large gangs centrally",
        "a gang larger than a server is always due",
        killed_by="test_a_gang_larger_than_a_server_gets_its_share",
        replace={f"{TURN}:Turn._due": always_due},
    ),
    mutant(
        "gandiva-fair",
        "a server for each job",
        "a job resumes wherever there is room",
        killed_by="test_turns_are_taken_in_place",
        replace={f"{TURN}:Turn._kept": homeless},
    ),
    mutant(
        "gandiva-fair",
        "balancing",
        "no job moves to another server",
        killed_by="test_ticket_loads_are_evened_out",
        replace={f"{TURN}:balancing_moves": lambda *_: []},
    ),
    mutant(
        "gandiva-fair",
        "balancing",
        "a move counts as free",
        killed_by="test_a_move_that_costs_more_than_it_brings_is_not_made",
        replace={f"{TURN}:Turn._cost": lambda self, job: 0},
    ),
    mutant(
        "gandiva-fair",
        "trade",
        "no trade",
        killed_by="test_trade_helps_every_tenant",
        options={"trade": False},
    ),
    mutant(
        "gandiva-fair",
        "second-highest price",
        "the price is the seller's own speed-up",
        killed_by="test_trade_helps_every_tenant",
        replace={f"{TRADE}:price": lambda buyer, seller, others: seller},
    ),
    mutant(
        "gandiva-fair",
        "second-highest price",
        "the price is the buyer's own speed-up",
        killed_by="test_trade_helps_every_tenant",
        replace={f"{TRADE}:price": lambda buyer, seller, others: buyer},
    ),
    mutant(
        "gandiva-fair",
        "profiling",
        "speeds are as declared",
        killed_by="test_trade_helps_every_tenant",
        options={"speeds": "declared"},
    ),
    mutant(
        "gandiva-fair",
        "profiling",
        "no job moves to be profiled on another type",
        killed_by="test_trade_helps_every_tenant",
        replace={f"{TURN}:Turn._balance_types": lambda self, worth: None},
    ),
)


# -- what a run did


def seen(jobs: Sequence[Job], on: Cluster, policy: str, until: float, **options: Any) -> Run:
    """What a policy does up to a time; a job arrives then, so that all is counted up to it."""
    return run([*jobs, job("the end", seconds=1, at=until)], on, policy, until=until, **options)


def gpu_time(result: Run, prefix: str, until: float = float("inf"), since: float = 0.0) -> float:
    """GPU-seconds that jobs of a name had between two times."""
    end = min(result.until, until * 1e6)
    had = sum(
        max(min(s.end, end) - max(s.start, since * 1e6), 0) * load_of(s.spots)
        for s in result.stretches
        if s.job.startswith(prefix)
    )
    return had / 1e9


def moves(result: Run) -> int:
    """How often a job started on other nodes than it was on."""
    found, last = 0, dict[str, set[int]]()
    for s in sorted(result.stretches, key=lambda s: s.start):
        here = nodes_of(s.spots)
        found += last.get(s.job, here) != here
        last[s.job] = here
    return found


# -- stride


@pytest.mark.parametrize(
    ("mine", "theirs"), [((8, 1), (8, 1)), ((3, 4), (5, 1)), ((6, 1), (2, 4)), ((4, 3), (6, 1))]
)
@claim(
    "gandiva-fair",
    "tickets 2 to 1 give GPU-time 2 to 1 at every minute, up to a quantum of one job, gangs or not",
)
def test_time_follows_tickets(mine: tuple[int, int], theirs: tuple[int, int]) -> None:
    on = cluster(nodes=1, gpus=4, tenants=[Tenant("A", weight=2.0), Tenant("B")])
    jobs = [job(f"A{i}", gpus=mine[1], hours=100, tenant="A") for i in range(mine[0])]
    jobs += [job(f"B{i}", gpus=theirs[1], hours=100, tenant="B") for i in range(theirs[0])]
    widest = max(mine[1], theirs[1])

    def check(result: Run) -> None:
        for minute in range(1, 91):
            a, b = (gpu_time(result, name, 60.0 * minute) for name in "AB")
            assert abs(a - 2 / 3 * (a + b)) <= QUANTUM * widest
            assert a + b == 4 * 60 * minute

    ours = seen(jobs, on, "gandiva-fair", 1.5 * HOUR)
    tells_apart(check, ours, seen(jobs, on, "tiresias-l", 1.5 * HOUR))
    tells_apart(check, ours, seen(jobs, on, "drf", 1.5 * HOUR))


@claim(
    "gandiva-fair",
    "the jobs of an owner have equal GPU-time at every minute, up to a quantum of the widest, gangs or not",
)
def test_jobs_of_an_owner_get_equal_time() -> None:
    sizes = (1, 1, 1, 2, 2, 4)
    jobs = [job(f"{i}", gpus=gpus, hours=100) for i, gpus in enumerate(sizes)]
    on = cluster(nodes=1, gpus=4)

    def check(result: Run) -> None:
        for minute in range(1, 91):
            had = [gpu_time(result, f"{i}", 60.0 * minute) for i in range(len(sizes))]
            assert max(had) - min(had) <= QUANTUM * max(sizes)

    ours = seen(jobs, on, "gandiva-fair", 1.5 * HOUR)
    tells_apart(check, ours, seen(jobs, on, "tiresias-l", 1.5 * HOUR))
    tells_apart(check, ours, seen(jobs, on, "fifo", 1.5 * HOUR))


@claim(
    "gandiva-fair",
    "a gang larger than a server has the share of its tickets at every minute, up to a quantum of its own",
)
def test_a_gang_larger_than_a_server_gets_its_share() -> None:
    on = cluster(nodes=2, gpus=4, tenants=[Tenant("A"), Tenant("B")])
    jobs = [job("A", gpus=8, hours=100, tenant="A")]
    jobs += [job(f"B{i}", hours=100, tenant="B") for i in range(8)]

    def check(result: Run) -> None:
        for minute in range(1, 91):
            a, b = (gpu_time(result, name, 60.0 * minute) for name in "AB")
            assert abs(a - b) / 2 <= QUANTUM * 8
            assert a + b == 8 * 60 * minute

    ours = seen(jobs, on, "gandiva-fair", 1.5 * HOUR)
    tells_apart(check, ours, seen(jobs, on, "tiresias-l", 1.5 * HOUR))
    tells_apart(check, ours, seen(jobs, on, "drf", 1.5 * HOUR))


# -- servers


@claim(
    "gandiva-fair",
    "turns are taken in place: suspending takes 1 s, moving 60 s, and at most 1/60 of the GPU-time is lost",
)
def test_turns_are_taken_in_place() -> None:
    """48 GPUs are asked for on 36; a turn is a quantum of 60 s, of which 1 s goes to suspending."""
    costs = Checkpoint(save=30 * SECOND, restore=30 * SECOND, suspend=1 * SECOND)
    on = cluster(nodes=9, gpus=4, tenants=[Tenant("A"), Tenant("B")])
    jobs = [
        job(f"{tenant}{i}", gpus=1 + i % 2, hours=2, tenant=tenant, checkpoint=costs)
        for i in range(16)
        for tenant in "AB"
    ]

    def check(result: Run) -> None:
        assert sum(result.jobs.stops) > 100
        assert result.lost / result.busy <= 1 / QUANTUM

    ours = run(jobs, on, "gandiva-fair")
    tells_apart(check, ours, run(jobs, on, "astraea", lease=QUANTUM))
    tells_apart(check, ours, run(jobs, on, "themis", lease=QUANTUM))


TWO_SERVERS = cluster(nodes=2, gpus=4, tenants=[Tenant("A"), Tenant("B")])


def one_sided(costs: Checkpoint = Checkpoint()) -> list[Job]:  # noqa: B008
    """A's gang on one of two servers ends after an hour: B's jobs there have the server for themselves."""
    jobs = [job(f"A{i}", gpus=4, hours=(1, 100)[i], tenant="A", checkpoint=costs) for i in range(2)]
    return jobs + [job(f"B{i}", hours=100, tenant="B", checkpoint=costs) for i in range(8)]


@claim(
    "gandiva-fair",
    "jobs move between servers until ticket loads are even: an owner whose jobs end on one keeps its share",
)
def test_ticket_loads_are_evened_out() -> None:
    """Without moves B has one server, and 2/6 of the other: A has 2.67 GPUs of the 4 it is entitled to."""
    from_, to = 3 * HOUR, 5 * HOUR

    def check(result: Run) -> None:
        a, b = (gpu_time(result, name, to, from_) for name in "AB")
        assert abs(a - b) / 2 <= QUANTUM * 4
        assert a + b == 8 * (to - from_)

    ours = seen(one_sided(), TWO_SERVERS, "gandiva-fair", to)
    tells_apart(check, ours, seen(one_sided(), TWO_SERVERS, "gandiva-fair", to, balance_every=1e6))


@claim("gandiva-fair", "a move that costs more GPU-time than it gains until the next balancing is not made")
def test_a_move_that_costs_more_than_it_brings_is_not_made() -> None:
    """A job of half a ticket gains 150 s in 300 s at most: it moves for 20 s, and does not for 200 s."""

    def moved(cost: int, policy: str) -> int:
        costs = Checkpoint(restore=cost * SECOND, suspend=1 * SECOND)
        return moves(seen(one_sided(costs), TWO_SERVERS, policy, 3 * HOUR))

    def check(policy: str) -> None:
        assert moved(20, policy) > 0
        assert moved(200, policy) == 0

    tells_apart(check, "gandiva-fair", "astraea")


# -- trade


@claim(
    "gandiva-fair",
    "a trade at the second-highest speed-up, 2, between 1.25 and 5: 9 and 24 become 10.5 and 30",
)
def test_both_gain_by_a_trade() -> None:
    held = {"A": Holding(4, 4), "B": Holding(4, 4), "C": Holding(0, 1)}

    def worth(made: Sequence[Trade]) -> tuple[float, float]:
        after = after_trades(held, made)
        return after["A"].worth(1.25), after["B"].worth(5.0)

    def check(made: Sequence[Trade]) -> None:
        assert worth(made[:1]) == (10.5, 30)
        assert all(mine >= before for mine, before in zip(worth(made), (9, 24), strict=True))

    tells_apart(check, trades(held, {"A": 1.25, "B": 5.0, "C": 2.0}), [])
    assert worth([]) == (9, 24)


class NothingDeclared:
    """An estimator that takes all GPU types for equally fast."""

    individual = False

    def estimate(
        self, cluster: Cluster, job: JobView, tasks: int, type: str, nodes: int | None, batch: int | None
    ) -> Estimate:
        return Estimate(1.0, 0.0)

    def observed(self, view: View) -> NothingDeclared:
        return self


@cache
def work_a_second(
    on: str, speeds: tuple[tuple[str, float, float], ...], count: int, policy: str, **options: Any
) -> dict[str, float]:
    """What each tenant's jobs get done in a second from the second hour on, in the unit of their speeds.

    Nothing is declared, and each job is of a model of its own: speeds are known once each job was measured.
    """
    by_tenant = {name: {"V100": fast, "K80": slow} for name, fast, slow in speeds}
    shared = with_tenants(parse_cluster(on), [Tenant(name) for name in by_tenant])
    jobs = [
        job(f"{tenant}{i}", hours=1000, tenant=tenant, model=f"{tenant}{i}", profile=Profile(speeds=speed))
        for i in range(count)
        for tenant, speed in by_tenant.items()
    ]
    since, until = HOUR, 3 * HOUR
    result = seen(jobs, shared, policy, until, estimator=NothingDeclared(), **options)
    done = dict.fromkeys(by_tenant, 0.0)
    for s in result.stretches:
        tenant, kind = s.job[0], shared.nodes[s.spots[0][0]].type.name
        if tenant in done:
            done[tenant] += max(s.end / 1e6 - max(s.start / 1e6, since), 0.0) * by_tenant[tenant][kind]
    return {tenant: work / (until - since) for tenant, work in done.items()}


@claim(
    "gandiva-fair",
    "speeds are measured and prices found: by trade every tenant gains a tenth on its share or more",
)
def test_trade_helps_every_tenant() -> None:
    """Three users, 4 V100 and 4 K80 each; the one with speed-up 2 makes the price for the other two."""
    world = ("3x4:V100,3x4:K80", (("A", 1.25, 1.0), ("B", 5.0, 1.0), ("C", 2.0, 1.0)), 20)
    share = {"A": 9.0, "B": 24.0, "C": 12.0}

    def check(done: dict[str, float]) -> None:
        assert all(done[name] >= 1.1 * share[name] for name in share)

    ours = work_a_second(*world, "gandiva-fair")
    without = work_a_second(*world, "gandiva-fair", trade=False)
    tells_apart(check, ours, without)
    tells_apart(check, ours, work_a_second(*world, "tiresias-l"))
    assert ours == pytest.approx({"A": 10.5, "B": 30.0, "C": 13.5}, rel=0.02)
    assert without == pytest.approx(share, rel=0.01)


@claim("gandiva-fair", "trade improves on the fair split of 2 V100 and 2 K80 where sizes are flexible")
def test_trade_improves_on_the_fair_split() -> None:
    world = ("1x2:V100,1x2:K80", (("A", 80.0, 10.0), ("B", 70.0, 50.0)), 4)

    def check(done: dict[str, float]) -> None:
        assert done["A"] >= 0.98 * 90
        assert done["B"] >= 0.98 * 120
        assert sum(done.values()) > 1.2 * 210

    ours = work_a_second(*world, "gandiva-fair")
    tells_apart(check, ours, work_a_second(*world, "gandiva-fair", trade=False))
    # B's own speed-up, 1.4, is the price: A turns its K80 into 1/1.4 of a V100, and B loses nothing.
    assert ours == pytest.approx({"A": 80 * (1 + 1 / 1.4), "B": 70 * (1 - 1 / 1.4) + 2 * 50}, rel=0.02)
