"""Goodput: what a job makes of n GPUs at batch b, as throughput times statistical efficiency.

Qiao et al., "Pollux", OSDI 2021, section 3. A step on K GPUs with the global batch M takes
(T_grad^g + T_sync^g)^(1/g) seconds: the gradient of the local batch M/K, and the exchange of gradients, which
overlap by g. A sample in a larger batch is worth less: (phi + M0) / (phi + M) of one in the batch M0 that the
job was submitted with, where phi is the noise scale of the gradient. It grows in the course of training, so
that larger batches become worth while. Goodput is M / T * efficiency: samples a second, in samples at M0.

The reference run has batch M0, at which the efficiency is 1 whatever phi is. So the work of a job is a fixed
number of such samples, and only its speed depends on phi.

In u = log M both log T and the log of the efficiency's inverse are convex: the goodput has one maximum, which
a bisection on its slope finds. Powers depend on the CPU in their last digit, so goodputs are rounded
(decision 15). All functions take and return plain numbers; what a model was asked before, it remembers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

BITS = 30  # significant bits of a goodput: about nine decimal digits
Stages = tuple[tuple[float, float], ...]  # (part of the work, value in it), in order


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a training step on GPUs of one type."""

    compute: float = 0.0  # of a pass, whatever its batch
    sample: float = 0.0  # of a pass, for each sample on a GPU
    node_sync: float = 0.0  # exchange between two GPUs of a node
    node_sync_more: float = 0.0  # further, for each GPU more
    network_sync: float = 0.0  # exchange between two GPUs of different nodes
    network_sync_more: float = 0.0
    overlap: float = 1.0  # 1: computation and exchange follow each other; 10: they overlap almost wholly

    def __post_init__(self) -> None:
        figures = (self.node_sync, self.node_sync_more, self.network_sync, self.network_sync_more)
        if min(self.compute, self.sample, *figures) < 0 or self.compute + self.sample <= 0:
            raise ValueError(f"a step takes time, and no part of it less than 0 s: {self}")
        if self.overlap < 1:
            raise ValueError(f"overlap is at least 1, not {self.overlap}")


@dataclass(frozen=True)
class Goodput:
    """The model of one job. A job whose batch may grow is adaptive: its own agent sets the batch."""

    steps: Mapping[str, StepTime] = field(hash=False)  # by GPU type
    batch: int  # global batch size of the reference run
    most_batch: int = 0  # the largest that the agent may set; 0: the batch stays as it is
    most_local: int = 0  # samples that a GPU holds in one pass; more take several passes; 0: no limit
    # Noise scale of the gradient: (part of its work, noise scale in it), in order; 0 if there are none.
    noise_scale: Stages = ()
    reference: str = ""  # the GPU type of the reference run; other types without a StepTime scale from it

    def __post_init__(self) -> None:
        if self.batch < 1 or self.most_local < 0 or (self.most_batch and self.most_batch < self.batch):
            raise ValueError(
                f"batch is at least 1 and at most most_batch, not {self.batch} and {self.most_batch}"
            )
        if self.reference not in self.steps:
            raise ValueError(
                f"no step time for the reference type {self.reference!r}, only for {set(self.steps)}"
            )
        known = tuple((float(part), float(noise)) for part, noise in self.noise_scale)
        if any(part <= 0 or noise < 0 for part, noise in known):
            raise ValueError(
                f"noise_scale has parts above 0 and scales of at least 0, not {self.noise_scale}"
            )
        object.__setattr__(self, "noise_scale", known)  # tuples, where a file gave lists

    @cached_property
    def _best(self) -> dict[tuple[str, int, bool, float], tuple[int, float]]:
        return {}


def stage_at(stages: Sequence[tuple[float, float]], done: int, work: int) -> tuple[float, int]:
    """The value after this much of the work is done, and the work at which its stage ends.

    >>> stage_at(((1, 10.0), (3, 40.0)), 30, 100)
    (40.0, 100)
    """
    whole, behind = sum(part for part, _ in stages), 0.0
    for part, value in stages:
        behind += part
        end = round(work * behind / whole)
        if done < end:
            return value, end
    return stages[-1][1], work


def noise_at(model: Goodput, done: int, work: int) -> tuple[float, int]:
    """The noise scale after this much of the work is done, and the work until which it stays."""
    return stage_at(model.noise_scale, done, work) if model.noise_scale else (0.0, work)


def first_noise(model: Goodput) -> float:
    """The noise scale with which training begins."""
    return model.noise_scale[0][1] if model.noise_scale else 0.0


def efficiency(batch: float, first_batch: float, noise: float) -> float:
    """What a sample is worth in this batch, against one in the first batch.

    >>> round(efficiency(512, 128, 1000), 3), round(efficiency(2048, 128, 1000), 3)
    (0.746, 0.37)
    """
    return (noise + first_batch) / (noise + batch)


def useful_slope(batch: float, noise: float) -> float:
    """The slope of log(batch times efficiency), the useful samples of a batch, over log(batch)."""
    return noise / (noise + batch)


def step_time(model: Goodput, kind: str, gpus: int, across: bool, batch: float) -> float:
    """Seconds of a step on so many GPUs, across nodes or inside one.

    A local batch that a GPU cannot hold takes several passes, with one exchange after the last.
    """
    figures = model.steps.get(kind) or model.steps[model.reference]
    passes = _passes(model, gpus, batch)
    gradient = figures.compute + figures.sample * max(1.0, batch / (gpus * passes))
    last = gradient * _overlapped(_sync(figures, gpus, across) / gradient, figures.overlap)
    return (passes - 1) * gradient + last


def goodput(model: Goodput, kind: str, gpus: int, across: bool, batch: int, noise: float) -> float:
    """Samples a second, in samples at the batch of the reference run; 0 for a batch out of bounds."""
    if not model.batch <= batch <= (model.most_batch or model.batch):
        return 0.0
    time = step_time(model, kind, gpus, across, batch)
    return _rounded(batch / time * efficiency(batch, model.batch, noise))


def best_batch(model: Goodput, kind: str, gpus: int, across: bool, noise: float) -> tuple[int, float]:
    """The batch with the largest goodput on these GPUs, and that goodput.

    Gradients are accumulated over several passes only if the first batch needs it.
    """
    key = kind, gpus, across, noise
    known = model._best.get(key)
    if known is None:
        low = model.batch
        high = max(low, model.most_batch)
        if model.most_local:
            high = max(low, min(high, _passes(model, gpus, low) * gpus * model.most_local))
        while low < high:
            middle = (low + high) // 2
            if _gain(model, kind, gpus, across, middle, noise) > 0:
                low = middle + 1
            else:
                high = middle
        # The maximum lies between two whole batches; of equals the smaller is taken.
        sizes = range(max(model.batch, low - 1), low + 1)
        found = [(goodput(model, kind, gpus, across, size, noise), -size) for size in sizes]
        best, size = max(found)
        known = model._best[key] = -size, best
    return known


def relative_speed(
    model: Goodput,
    kind: str,
    held: tuple[int, bool],  # GPUs, and whether they are on several nodes
    asked: tuple[int, bool],
    noise: float | None,  # None: as when training begins
    batch: int | None,  # None: the agent sets it
) -> float:
    """Goodput on what a job holds over that of its reference run."""
    phi = first_noise(model) if noise is None else noise
    if batch is None:
        here = best_batch(model, kind, *held, phi)[1]
    else:
        here = goodput(model, kind, *held, batch, phi)
    return here / reference_goodput(model, *asked)


def reference_goodput(model: Goodput, gpus: int, across: bool) -> float:
    """Samples a second of the reference run."""
    return goodput(model, model.reference, gpus, across, model.batch, 0.0)


def _gain(model: Goodput, kind: str, gpus: int, across: bool, batch: int, noise: float) -> float:
    """The slope of log goodput over log batch, for a local batch in the same number of passes."""
    figures = model.steps.get(kind) or model.steps[model.reference]
    passes = _passes(model, gpus, batch)
    local = batch / (gpus * passes)
    if local < 1.0:  # some GPUs have nothing to do: a step takes no longer with more samples
        return useful_slope(batch, noise)
    gradient = figures.compute + figures.sample * local
    ratio, overlap = _sync(figures, gpus, across) / gradient, figures.overlap
    whole = passes - 1 + _overlapped(ratio, overlap)
    slope = passes - 1 + (_overlapped(ratio, overlap) / (1.0 + ratio**overlap) if ratio else 1.0)
    return useful_slope(batch, noise) - slope / whole * figures.sample * local / gradient


def _overlapped(ratio: float, overlap: float) -> float:
    """The time of a computation and an exchange, over that of the computation alone."""
    if not ratio or overlap == 1.0:
        return 1.0 + ratio
    return float((1.0 + ratio**overlap) ** (1.0 / overlap))


def _sync(figures: StepTime, gpus: int, across: bool) -> float:
    if gpus < 2:
        return 0.0
    if across:
        return figures.network_sync + figures.network_sync_more * (gpus - 2)
    return figures.node_sync + figures.node_sync_more * (gpus - 2)


def _passes(model: Goodput, gpus: int, batch: float) -> int:
    return max(1, math.ceil(batch / (gpus * model.most_local))) if model.most_local else 1


def _rounded(value: float) -> float:
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, BITS)), exponent - BITS)
