"""Where jobs live: each small job on one server, and even ticket loads of the servers.

A job takes its turns on its home server, where its state is. A gang that no server holds lives on several.
The ticket load of a server is the sum of its jobs' tickets over its GPUs: where it is even, every owner gets
its share of the cluster though each server divides only its own GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.model.cluster import Cluster, Node
from dovetail.model.grant import slices_of
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView

Home = tuple[int, ...]  # the nodes of a job: one, or several for a gang that is larger than a server


def tasks_on(node: Node, shape: Shape) -> int:
    """How many tasks of a job the node holds when it is empty."""
    if (shape.types and node.type.name not in shape.types) or (
        shape.partition and shape.partition not in node.partitions
    ):
        return 0
    devices = node.gpus
    if shape.slice:
        devices = node.gpus * slices_of(shape.slice) if node.type.sliceable else 0
    most = devices // shape.each
    if shape.cpus:
        most = min(most, node.cpus // shape.cpus)
    if shape.memory:
        most = min(most, node.memory // shape.memory)
    return most


@dataclass(slots=True)
class Servers:
    """The open nodes of a cluster, the jobs at home on each, and their tickets: scratch of one decision."""

    cluster: Cluster
    open: Sequence[int]
    homes: dict[str, Home]
    jobs: Mapping[str, JobView]
    fixed: Mapping[int, int] = field(default_factory=dict)  # milli-GPUs held by jobs that cannot be stopped
    tickets: dict[str, float] = field(default_factory=dict)  # by job, in milli-GPUs
    loads: dict[int, float] = field(default_factory=dict)  # tickets by node

    def weigh(self, tickets: dict[str, float]) -> None:
        """Take these as the jobs' tickets."""
        self.tickets = tickets
        self.loads = dict.fromkeys(self.open, 0.0)
        for id, home in self.homes.items():
            for node in home:
                if node in self.loads:
                    self.loads[node] += tickets.get(id, 0.0) / len(home)

    def type_of(self, id: str) -> str:
        """The GPU type of a job's home."""
        return self.cluster.nodes[self.homes[id][0]].type.name

    def load(self, node: int) -> float:
        """Tickets a GPU."""
        return self.loads[node] / self._size(node)

    def _size(self, node: int) -> int:
        return self.cluster.nodes[node].gpus * WHOLE

    def settle(self, job: JobView, home: Home, tickets: float) -> None:
        """Let a job live here from now on."""
        for node in self.homes.get(job.id, ()):
            if node in self.loads:
                self.loads[node] -= self.tickets.get(job.id, 0.0) / len(self.homes[job.id])
        self.homes[job.id], self.tickets[job.id] = home, tickets
        for node in home:
            self.loads[node] += tickets / len(home)

    def home_for(self, shape: Shape, kind: str, free: Callable[[int], int]) -> Home | None:
        """A home on a type: the server with the least free room for the job, else the least ticket load.

        A gang that no server holds gets as many of the servers with the least load as it needs. None: never.
        """
        nodes = [
            (n, held)
            for n in self.open
            if self.cluster.nodes[n].type.name == kind and (held := tasks_on(self.cluster.nodes[n], shape))
        ]
        whole = [n for n, held in nodes if held >= shape.tasks and not shape.roles]
        if whole:
            able = [n for n in whole if self.fixed.get(n, 0) + shape.load <= self._size(n)]
            whole = able or whole
            idle = [n for n in whole if free(n) >= shape.load]
            if idle:
                return (min(idle, key=lambda n: (free(n), n)),)
            return (min(whole, key=lambda n: (self.load(n), n)),)
        chosen, left = [], shape.tasks
        for n, held in sorted(nodes, key=lambda pair: (-pair[1], self.load(pair[0]), pair[0])):
            chosen.append(n)
            left -= held
            if left <= 0:
                return tuple(chosen)
        return None


def balancing_moves(
    servers: Servers,
    kind: str,
    crowded: Iterable[int],
    movable: Callable[[JobView], bool],
    worth: Callable[[JobView, float], bool],
) -> list[tuple[JobView, int]]:
    """Moves that even the ticket loads of a type's servers out: from the most loaded to the least loaded.

    Only servers with waiting jobs are `crowded`. Of the jobs there that one moves which leaves the smallest
    difference, a waiting job before a running one, if that is `worth` its cost.
    """
    mine = [n for n in servers.open if servers.cluster.nodes[n].type.name == kind]
    full = [n for n in mine if n in set(crowded)]
    moves: list[tuple[JobView, int]] = []
    moved: set[str] = set()
    for _ in servers.homes if full and len(mine) > 1 else ():
        high = max(full, key=lambda n: (servers.load(n), -n))
        low = min(mine, key=lambda n: (servers.load(n), n))
        gap = servers.load(high) - servers.load(low)
        gpus = [servers.cluster.nodes[n].gpus * WHOLE for n in (high, low)]
        best: tuple[float, bool, int, JobView] | None = None
        for id, home in servers.homes.items():
            if home != (high,) or id in moved:
                continue
            job, amount = servers.jobs[id], servers.tickets.get(id, 0.0)
            after = abs(gap - amount / gpus[0] - amount / gpus[1])
            if after >= 0.9 * gap or not movable(job) or not worth(job, amount):
                continue
            if tasks_on(servers.cluster.nodes[low], job.shape) < job.shape.tasks:
                continue
            found = (after, job.spots is not None, job.seq, job)
            best = found if best is None or found[:3] < best[:3] else best
        if best is None:
            break
        job = best[3]
        servers.settle(job, (low,), servers.tickets.get(job.id, 0.0))
        moved.add(job.id)
        moves.append((job, low))
    return moves
