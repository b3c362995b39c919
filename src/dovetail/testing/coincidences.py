"""Small traces in which many things happen at the same instant.

Times and durations are small whole numbers, so arrivals coincide with finishes, finishes with finishes, and
both with the ends of rounds. That is where schedulers overlook jobs. The random numbers are our own, so that
a seed means the same trace on every machine and in every version of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from dovetail.model.cluster import Cluster, GpuType, Node
from dovetail.model.job import Checkpoint, Job, Traits, gang
from dovetail.model.units import SECOND

T = TypeVar("T")

SIZES = ((2, 8), (1, 4), (3, 4), (2, 2), (1, 8))  # nodes x GPUs


@dataclass(slots=True)
class Draws:
    """Pseudo-random numbers: a linear congruential generator of 64 bits."""

    state: int

    def below(self, bound: int) -> int:
        """A number from 0 to one less than this."""
        self.state = (self.state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % (1 << 64)
        return (self.state >> 33) % bound

    def of(self, values: Sequence[T]) -> T:
        """One of these."""
        return values[self.below(len(values))]


@dataclass(frozen=True, slots=True)
class Coincidence:
    """A cluster and a trace in order of arrival."""

    cluster: Cluster
    jobs: tuple[Job, ...]

    def __repr__(self) -> str:
        rows = [(j.arrived_at // SECOND, j.shape.gpus, j.work // SECOND, j.priority) for j in self.jobs]
        size = f"{len(self.cluster.nodes)}x{self.cluster.nodes[0].gpus}"
        return f"{size}, (arrival, GPUs, seconds, priority): {rows}"


def coincidence(seed: int, most: int = 40) -> Coincidence:
    """The trace of a seed, with up to `most` jobs."""
    draws = Draws(seed * 2_862_933_555_777_941_757 + 3_037_000_493)
    draws.below(2)
    nodes, gpus = draws.of(SIZES)
    mixed = draws.below(4) == 0 and nodes > 1
    types = [GpuType("a"), GpuType("b")] if mixed else [GpuType("a")]
    cluster = Cluster(tuple(Node(f"n{i}", gpus, types[i % len(types)]) for i in range(nodes)))
    largest = gpus if mixed else nodes * gpus
    widths = [n for n in (1, 1, 2, 2, 4, 8, 16) if n <= largest] + [largest]
    costly = draws.below(3) == 0
    now, jobs = 0, list[Job]()
    for number in range(3 + draws.below(most - 2)):
        now += draws.of((0, 0, 1, 1, 2, 3))
        seconds = draws.of((1, 1, 2, 3, 5, 8))
        traits = Traits(
            preemptible=draws.below(6) > 0,
            checkpoint=Checkpoint(restore=draws.of((0, 0, 1)) * SECOND) if costly else Checkpoint(),
        )
        jobs.append(
            Job(
                f"j{number}",
                now * SECOND,
                gang(draws.of(widths), (draws.of(types).name,) if mixed and draws.below(3) == 0 else ()),
                seconds * SECOND,
                max(1, seconds + draws.of((0, 0, 0, 1, -1))) * SECOND,
                tenant=draws.of(("red", "blue")),
                user=draws.of(("ann", "bob")),
                priority=draws.below(3),
                traits=traits,
            )
        )
    return Coincidence(cluster, tuple(jobs))
