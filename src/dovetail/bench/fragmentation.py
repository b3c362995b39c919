"""Free GPUs that no waiting job can use, sampled while a run goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.core.core import Core, Step
from dovetail.model.job import Job, Shape

SAMPLES = 400  # per run


@dataclass(slots=True)
class Sampler:
    """Samples the free GPUs during a run.

    A packed placement of a waiting job takes whole nodes and one remainder. A node is useful to the job if
    its free GPUs can hold one of these parts. No node is useful if all useful nodes together have too few
    GPUs.
    """

    every: int
    due: int = 0
    seen: list[tuple[int, int, float]] = field(default_factory=list)  # (time, free GPUs, useless GPUs)
    crowded: int = 0  # number of samples with waiting jobs

    def watch(self, core: Core, step: Step) -> None:
        if step.now < self.due:
            return
        self.due = step.now + self.every
        if not len(core.queue):
            self.seen.append((step.now, 0, 0.0))
            return
        self.crowded += 1
        free = core.room.free_gpus
        self.seen.append((step.now, free, useless(core, free) if free else 0.0))

    @property
    def fragmentation(self) -> float | None:
        """The useless share of the free GPUs while jobs waited; None if no GPU was free."""
        free = sum(free for _, free, _ in self.seen)
        return sum(useless for _, _, useless in self.seen) / free if free else None

    def stranded(self, gpus: int) -> float | None:
        """The share of all GPUs that was free but useless while jobs waited; None if no job waited."""
        return sum(useless for _, _, useless in self.seen) / (self.crowded * gpus) if self.crowded else None


def useless(core: Core, free: int) -> float:
    """The number of free GPUs that a waiting job cannot use, averaged over the waiting jobs."""
    blocks: Counter[tuple[str, int, int]] = (
        Counter()
    )  # (type, GPUs of the node, free GPUs) -> number of nodes
    for number, node in enumerate(core.cluster.nodes):
        if there := core.room.free_on(number).bit_count():
            blocks[node.type.name, node.gpus, there] += 1
    total = jobs = 0.0
    for shape, count in Counter(job.shape for job in core.queue).items():
        total += count * (free - min(useful(shape, blocks), free))
        jobs += count
    return total / jobs


def useful(shape: Shape, blocks: Counter[tuple[str, int, int]]) -> int:
    """Free GPUs on nodes that can hold a part of the gang; 0 if they are too few for the whole gang."""
    found = 0
    for (kind, size, there), nodes in blocks.items():
        if shape.types and kind not in shape.types:
            continue
        part = shape.gpus if shape.gpus <= size else (shape.gpus % size or size)
        if there >= max(part, shape.each):
            found += there * nodes
    return found if found >= shape.gpus else 0


def sampler(jobs: Sequence[Job]) -> Sampler:
    """A sampler that takes some hundred samples while jobs arrive."""
    span = jobs[-1].arrived_at - jobs[0].arrived_at if jobs else 0
    return Sampler(max(span // SAMPLES, 1))
