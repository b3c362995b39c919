"""Which job runs on which machine, and in which order: the least sum of completion times, by matching.

A job that is the k-th last on its machine keeps k jobs waiting for as long as it takes, itself included. So
on unrelated machines the sum of completion times is a sum over (machine, position from the end), and the best
schedule without preemption is a cheapest matching of jobs to such places (Bruno, Coffman, Sethi, "Scheduling
independent tasks to reduce mean finishing time", CACM 1974; Horn, "Minimizing average flow time with parallel
machines", Operations Research 1973). A machine that is still busy keeps all jobs in its queue waiting.

Of the machines of one kind, one that is free sooner has at least as many jobs in its queue as one that is
free later, but for one. So the j-th of them needs n/j + 1 places, and not n: n jobs on m machines make about
n log m columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dovetail.solve.assignment import assign

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
IntVector = npt.NDArray[np.int64]


def places(jobs: int, ready: Sequence[Sequence[float]]) -> tuple[IntVector, IntVector, IntVector, Vector]:
    """All places that an optimum may use: kind, machine of that kind, position from the end (1 is the last),
    and when the machine is ready. `ready` has the machines of each kind, soonest first.

    >>> kind, machine, position, _ = places(2, [[0.0, 0.0]])
    >>> [(int(m), int(k)) for m, k in zip(machine, position)]
    [(0, 1), (0, 2), (1, 1), (1, 2)]
    """
    found: list[tuple[int, int, int, float]] = []
    for kind, machines in enumerate(ready):
        for number, when in enumerate(machines):
            most = min(jobs, jobs // (number + 1) + 1)
            found += [(kind, number, position, when) for position in range(1, most + 1)]
    table = np.array(found, dtype=np.float64).reshape(-1, 4)
    whole = table[:, :3].astype(np.int64)
    return whole[:, 0], whole[:, 1], whole[:, 2], table[:, 3]


def machine_queues(
    times: Matrix, ready: Sequence[Sequence[float]], size: Vector | None = None
) -> list[list[list[int]]]:
    """For each kind and each machine of it, the rows of `times` (jobs x kinds) in its queue, in order.

    `inf` means that a job cannot run on a kind; each job can run on one kind at least. A job of `size` w
    takes w machines: it ends after its time, but keeps the jobs behind it waiting w times as long.
    """
    jobs = len(times)
    wide = np.ones(jobs) if size is None else size
    kind, machine, position, when = places(jobs, ready)
    cost = times[:, kind] * (1 + wide[:, None] * (position - 1)) + when
    column = assign(cost).column
    found: list[list[list[int]]] = [[[] for _ in machines] for machines in ready]
    for row in sorted(range(jobs), key=lambda row: (-position[column[row]], row)):
        at = column[row]
        found[kind[at]][machine[at]].append(row)
    return found
