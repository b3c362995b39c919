"""Fixed runs and the digests of their journals: a refactoring shows with them that it changed no decision.

Run as a program it writes the digests again: do so only for a change that is meant to change decisions, and
name the change in the commit.
"""

from __future__ import annotations

import csv
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.core.core import Core, Step
from dovetail.core.journal import Header, header_line, step_line
from dovetail.model.cluster import Cluster, GpuType, Node, Tenant
from dovetail.model.job import Checkpoint, Job, Profile, Shape, Traits, gang
from dovetail.model.units import HOUR, MINUTE, SECOND
from dovetail.policies.registry import POLICIES
from dovetail.sim.run import run
from dovetail.sim.world import Incident

DIGESTS = Path(__file__).with_name("data") / "journals.csv"


class World(NamedTuple):
    """What a run is given besides its policy."""

    cluster: Cluster
    jobs: Sequence[Job]
    incidents: Sequence[Incident]


class Draws:
    """A small generator of our own: the same numbers on every machine and in every version of Python."""

    def __init__(self, seed: int) -> None:
        self._state = seed * 2_862_933_555_777_941_757 + 3_037_000_493

    def below(self, bound: int) -> int:
        self._state = (self._state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % (1 << 64)
        return (self._state >> 33) % bound

    def of(self, values: Sequence[int]) -> int:
        return values[self.below(len(values))]


def plain() -> World:
    """One type, gangs of powers of two, whole seconds: many things happen at the same instant."""
    draws, jobs, now = Draws(1), list[Job](), 0
    for i in range(160):
        now += draws.of((0, 0, 20, 60, 90)) * SECOND
        work = draws.of((60, 300, 900, 3_600)) * SECOND
        guess = work * draws.of((1, 1, 2)) // draws.of((1, 1, 2))
        jobs.append(
            Job(
                f"j{i}",
                now,
                gang(draws.of((1, 1, 2, 4, 8, 16))),
                work,
                guess,
                tenant=f"t{draws.below(3)}",
                user=f"u{draws.below(5)}",
                priority=draws.below(3),
            )
        )
    nodes = tuple(Node(f"n{i}", 8, GpuType("gpu")) for i in range(4))
    return World(Cluster(nodes), jobs, ())


def typed() -> World:
    """Two types, fractions, models with profiles, checkpoints that cost something, odd microseconds."""
    draws, jobs, now = Draws(2), list[Job](), 0
    profiles = [
        Profile(speeds={"slow": 1.0, "fast": 3.0}, skewed=True),
        Profile(speeds={"slow": 1.0, "fast": 1.5}, split=1.3),
    ]
    for i in range(120):
        now += draws.below(120 * SECOND)
        work = SECOND + draws.below(2 * HOUR)
        milli = draws.of((1000, 1000, 1000, 500))
        shape = Shape(1, 1, milli) if milli < 1000 else gang(draws.of((1, 2, 4, 8)))
        traits = Traits(
            profile=profiles[draws.below(2)],
            checkpoint=Checkpoint(restore=20 * SECOND),
            preemptible=draws.below(5) > 0,
        )
        jobs.append(
            Job(
                f"j{i}", now, shape, work, work, tenant=f"t{draws.below(2)}", model=f"m{i % 2}", traits=traits
            )
        )
    nodes = tuple(Node(f"n{i}", 4, GpuType("fast" if i < 2 else "slow")) for i in range(6))
    return World(Cluster(nodes), jobs, ())


def stormy() -> World:
    """Tenants with quotas and limits, jobs that fail and are tried again, nodes that come and go."""
    draws, jobs, now = Draws(3), list[Job](), 0
    for i in range(120):
        now += draws.of((0, 30, 60, 120)) * SECOND
        work = draws.of((120, 600, 1_800, 5_400)) * SECOND
        jobs.append(
            Job(
                f"j{i}",
                now,
                gang(draws.of((1, 2, 2, 4, 8))),
                work,
                work,
                tenant=("a", "b", "c")[draws.below(3)],
                priority=draws.below(2),
                fails_after=work // 2 if draws.below(10) == 0 else None,
                traits=Traits(retries=1, checkpoint=Checkpoint(restore=10 * SECOND)),
            )
        )
    tenants = [Tenant("a", quota=16), Tenant("b", quota=8, limit=12), Tenant("c", quota=8)]
    nodes = tuple(Node(f"n{i}", 8, GpuType("gpu")) for i in range(4))
    incidents = [Incident("n1", 20 * MINUTE, 50 * MINUTE), Incident("n3", 40 * MINUTE, 2 * HOUR)]
    return World(Cluster(nodes, tenants={t.name: t for t in tenants}), jobs, incidents)


WORLDS = {"plain": plain, "typed": typed, "stormy": stormy}


def digest(
    policy: str, world: World, seed: int = 7, *, unnamed: Mapping[str, Any] | None = None, **options: Any
) -> tuple[str, int]:
    """The SHA-256 of a run's journal, and how many steps it has.

    `unnamed` are options that the journal's first line leaves out: they did not exist when it was written.
    """
    found, steps = hashlib.sha256(), 0
    found.update(header_line(Header(world.cluster, policy, options, seed)).encode() + b"\n")

    def keep(_: Core, step: Step) -> None:
        nonlocal steps
        steps += 1
        found.update(step_line(step).encode() + b"\n")

    run(
        world.jobs,
        world.cluster,
        POLICIES.make(policy, **options, **(unnamed or {})),
        seed=seed,
        incidents=world.incidents,
        until=30 * 24 * HOUR,
        on_step=keep,
    )
    return found.hexdigest(), steps


def rows(policies: Sequence[str]) -> Iterator[tuple[str, str, str, int]]:
    for world, make in WORLDS.items():
        for policy in policies:
            yield (policy, world, *digest(policy, make()))


def kept() -> list[tuple[str, str, str, int]]:
    with DIGESTS.open(newline="") as file:
        return [
            (row["policy"], row["world"], row["sha256"], int(row["steps"])) for row in csv.DictReader(file)
        ]


if __name__ == "__main__":
    with DIGESTS.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("policy", "world", "sha256", "steps"))
        writer.writerows(rows(sys.argv[1:] or POLICIES.names()))
