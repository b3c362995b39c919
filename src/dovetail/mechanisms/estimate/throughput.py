"""Samples a second by GPUs and batch, whatever a sample is worth, and the batch with the most.

For systems that count throughput and leave it to the user to say which batches train well (`most_batch`).
A job without a model of its goodput has one batch, and its speed stands for its throughput.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.model.estimate import types_of
from dovetail.model.goodput import Goodput, best_batch, goodput
from dovetail.model.grant import devices_of, nodes_of
from dovetail.model.topology import fewest_nodes
from dovetail.model.view import JobView, View

EQUAL_WORTH = 1e18  # a noise scale at which a sample is worth the same in any batch


def model_of(job: JobView) -> Goodput | None:
    """The model of the job's goodput, if it has one."""
    return job.traits.profile.goodput if job.traits.profile is not None else None


def most_samples(model: Goodput, kind: str, gpus: int, across: bool, *, fixed: bool) -> tuple[int, float]:
    """The batch with the most samples a second, and how many; `fixed`: that of the reference run."""
    if fixed:
        return model.batch, goodput(model, kind, gpus, across, model.batch, EQUAL_WORTH)
    return best_batch(model, kind, gpus, across, EQUAL_WORTH)


def samples_by_tasks(view: View, job: JobView, sizes: Sequence[int], *, fixed: bool) -> list[float] | None:
    """Samples a second with each of these numbers of tasks, on one GPU type; None without a model."""
    model = model_of(job)
    if model is None:
        return None
    kind, found = types_of(view.cluster, job)[0], []
    for tasks in sizes:
        shape = job.shape.of(tasks)
        across = fewest_nodes(view.cluster, shape) > 1
        found.append(most_samples(model, kind, shape.gpus, across, fixed=fixed)[1])
    return found


def batch_on_grant(view: View, job: JobView, *, fixed: bool) -> int | None:
    """The batch with the most samples a second on what a running job holds; None without a model."""
    model = model_of(job)
    if model is None or not job.spots:
        return None
    kind, gpus = types_of(view.cluster, job)[0], devices_of(job.spots)
    return most_samples(model, kind, gpus or 1, len(nodes_of(job.spots)) > 1, fixed=fixed)[0]
