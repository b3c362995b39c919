"""Fixed runs of the policies that use a solver or sums of floats, with their options: digests of journals.

Run as a program it prints a digest for each run, or with `write` keeps them. Do so only for a change that is
meant to change decisions, and name the change in the commit.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from tests.golden.gavel_runs import trace
from tests.golden.journals import WORLDS, Draws, World, digest

from dovetail.model.cluster import Cluster, GpuType, Node
from dovetail.model.goodput import Goodput, StepTime
from dovetail.model.job import Arch, Checkpoint, Job, Profile, Traits, gang
from dovetail.model.loss import LossCurve
from dovetail.model.server_speed import ServerSpeed
from dovetail.model.units import SECOND
from dovetail.traces.gavel import read_gavel

DIGESTS = Path(__file__).with_name("data") / "solver_journals.csv"


class SolverRun(NamedTuple):
    policy: str
    options: dict[str, Any]
    world: str

    @property
    def name(self) -> str:
        options = " ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.policy} {options} on {self.world}".replace("  ", " ")


def pairs() -> World:
    """The first jobs of Gavel's trace for space sharing, with measured speeds of pairs, on three types."""
    jobs = list(islice(read_gavel(trace("pub_single_s7_n100"), throughputs="gavel").jobs, 20))
    kinds = [kind for kind in ("V100", "P100", "K80") for _ in range(3)]
    return World(Cluster(tuple(Node(f"n{i}", 1, GpuType(kind)) for i, kind in enumerate(kinds))), jobs, ())


def first_jobs(name: str, count: int = 45) -> Callable[[], World]:
    """A fixed world with its first jobs only: a run takes a second or less."""

    def made() -> World:
        world = WORLDS[name]()
        return world._replace(jobs=world.jobs[:count])

    return made


def adaptive() -> World:
    """Jobs that set their batch by goodput, on two types: powers of floats reach every rate."""
    draws, jobs = Draws(7), list[Job]()
    for i in range(24):
        figures = [draws.of((10, 17, 23)) / 1_000 for _ in range(3)]
        slow = StepTime(2 * figures[0], 0.003, figures[1], 0.001, 3 * figures[2], 0.002, 1.7)
        fast = StepTime(figures[0], 0.001, figures[1], 0.001, 3 * figures[2], 0.002, 2.3)
        noise = tuple((1, scale * draws.of((50, 90, 170))) for scale in (1, 10, 60))
        model = Goodput({"": fast, "slow": slow}, 32, 4_096, 128, noise)
        work = draws.of((600, 1_800, 5_400)) * SECOND
        traits = Traits(
            least=1, most=12, checkpoint=Checkpoint(restore=SECOND), profile=Profile(goodput=model)
        )
        jobs.append(Job(f"j{i}", i * draws.of((20, 90)) * SECOND, gang(4), work, work, traits=traits))
    jobs.sort(key=lambda job: job.arrived_at)
    nodes = [Node(f"n{i}", 4, GpuType("fast" if i < 2 else "slow")) for i in range(4)]
    return World(Cluster(tuple(nodes)), jobs, ())


def learning() -> World:
    """Elastic jobs that report their losses, half of them over parameter servers: both are fitted."""
    draws, jobs = Draws(8), list[Job]()
    for i in range(16):
        figures = tuple(draws.of((0, 1, 2, 5)) / 10 for _ in range(4))
        over = Profile(server_speed=ServerSpeed((draws.of((8, 20)), *figures)), loss=LossCurve(0.3, 0.7, 0.1))
        ring = Profile(curve={1: 1.0, 4: 3.1, 12: 6.7}, loss=LossCurve(draws.of((2, 9)) / 10, 0.4, 0.3))
        work, servers = draws.of((9_000, 30_000)) * SECOND, i % 2 == 0
        traits = Traits(
            arch=Arch.PARAMETER_SERVER if servers else Arch.ALLREDUCE,
            least=1,
            most=12,
            checkpoint=Checkpoint(restore=SECOND),
            profile=over if servers else ring,
            epochs=draws.of((17, 31)),
        )
        jobs.append(Job(f"j{i}", i * 700 * SECOND, gang(4), work, work, traits=traits))
    return World(Cluster(tuple(Node(f"n{i}", 4, GpuType("gpu")) for i in range(4))), jobs, ())


ALL_WORLDS = {
    "learning": learning,
    "adaptive": adaptive,
    "typed": first_jobs("typed"),
    "stormy": first_jobs("stormy"),
    "pairs": pairs,
}

OBJECTIVES = ("max-min", "max-sum", "makespan", "finish-time")
RUNS = (
    *(SolverRun("gavel", {"objective": name}, "typed") for name in (*OBJECTIVES, "cost", "allox")),
    *(SolverRun("gavel", {"objective": name, "solver": "vertex"}, "typed") for name in OBJECTIVES),
    *(SolverRun("gavel", {"objective": name, "packed": True}, "pairs") for name in (*OBJECTIVES, "fifo")),
    *(
        SolverRun("gavel", {"objective": name, "packed": True, "solver": "vertex"}, "pairs")
        for name in ("max-min", "max-sum", "makespan")
    ),
    SolverRun("gavel", {"water_filling": True}, "typed"),
    SolverRun("gavel", {"hierarchy": "fair"}, "typed"),
    SolverRun("gavel", {"hierarchy": "fifo"}, "stormy"),
    SolverRun("gavel", {"speeds": "measured"}, "typed"),
    SolverRun("pop", {"subproblems": 3}, "typed"),
    SolverRun("pop", {"subproblems": 3, "objective": "max-sum"}, "typed"),
    *(
        SolverRun(policy, {}, "typed")
        for policy in ("allox", "astraea", "dorm", "gandiva-fair", "shockwave", "themis")
    ),
    SolverRun("pollux", {}, "adaptive"),
    SolverRun("pollux", {"power": -2.0}, "typed"),
    SolverRun("vaibhav", {}, "adaptive"),
    SolverRun("optimus", {}, "learning"),
    SolverRun("sia", {}, "adaptive"),
    SolverRun("sia", {}, "typed"),
)


def rows() -> Iterator[tuple[str, str, int]]:
    for run in RUNS:
        yield (run.name, *digest(run.policy, ALL_WORLDS[run.world](), **run.options))


def kept() -> list[tuple[str, str, int]]:
    with DIGESTS.open(newline="") as file:
        return [(row["run"], row["sha256"], int(row["steps"])) for row in csv.DictReader(file)]


if __name__ == "__main__":
    with DIGESTS.open("w", newline="") if sys.argv[1:] == ["write"] else sys.stdout as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("run", "sha256", "steps"))
        writer.writerows(rows())
