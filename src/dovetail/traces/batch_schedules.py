"""Batch sizes that grow during training: the schedules of Shockwave's traces, as regimes of speed.

Each job of such a trace has a mode. `static` keeps the batch size. `gns` (gradient noise scale) doubles it at
certain epochs, which depend on the model, the first batch size and the GPUs. `accordion` uses the largest
batch size of the model, except in the first part of the training and in *critical* epochs, where gradients
change fast (Agarwal et al., "Accordion", MLSys 2021). The trace gives only the mode. The epochs were measured
by the authors and are part of their program (Zheng et al., "Shockwave", NSDI 2023); the tables here are the
same.

An epoch is one pass over the data, so with n samples per step and s steps per second its duration is
proportional to 1 / (n s). Speeds are those on the reference GPU type; on other types a larger batch may gain
more or less, or not fit. Deviation: the published program leaves the last epoch of some jobs at the first
batch size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from math import ceil

SAMPLES = {"ResNet-18": 50_000, "ResNet-50": 100_000, "LM": 59_675, "Recommendation": 117_907}
LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "LM": 80, "Recommendation": 8_192}

# By model and (first batch, GPUs): the epochs from which on the batch is twice, four times, ... the first.
DOUBLES: Mapping[str, Mapping[tuple[int, int], tuple[int, ...]]] = {
    "ResNet-18": {
        (16, 1): (31, 41, 51, 71),
        (32, 1): (21, 31, 51),
        (64, 1): (11, 31),
        (128, 1): (11,),
        (16, 2): (21, 31, 91, 111),
        (32, 2): (11, 21, 41),
        (64, 2): (21, 41),
        (128, 2): (41,),
        (16, 4): (11, 21, 81, 91),
        (32, 4): (21, 31, 61),
        (64, 4): (11, 61),
        (128, 4): (11,),
    },
    "ResNet-50": {
        (64, 1): (101,),
        (32, 2): (101, 111),
        (64, 2): (81,),
        (32, 4): (131, 221),
        (64, 4): (191,),
    },
    "LM": {
        (5, 1): (31, 41, 61, 71),
        (10, 1): (11, 21, 41),
        (20, 1): (11, 41),
        (40, 1): (11,),
        (5, 2): (31, 51, 61, 71),
        (10, 2): (11, 31, 41),
        (20, 2): (31, 41),
        (40, 2): (11,),
        (5, 4): (11, 31, 71, 91),
        (10, 4): (11, 31, 61),
        (20, 4): (11, 61),
        (40, 4): (61,),
    },
    "Recommendation": {
        (512, 1): (21, 41, 71, 91),
        (1_024, 1): (21, 51, 91),
        (2_048, 1): (21, 41),
        (4_096, 1): (41,),
    },
}

EARLY = 0.3  # share of the epochs in which an accordion job keeps its first batch size
_WARM_UP = {512: 30, 1_024: 30, 2_048: 40}  # epochs of Recommendation by its batch; 10 for the others

Regimes = tuple[tuple[float, float], ...]


def regimes(kind: str, gpus: int, mode: str, steps: float, pace: Callable[[str], float | None]) -> Regimes:
    """The regimes of a job: (work, speed relative to the first batch size); empty if the batch never changes.

    `kind` is a model with its batch size, `LM (batch size 10)`; `pace` gives the steps per second of a kind.

    >>> regimes("LM (batch size 40)", 1, "gns", 20 * 1492, lambda kind: 9.0)
    ((11.0, 1.0), (9.0, 2.0))
    """
    named = re.fullmatch(r"(.+) \(batch size (\d+)\)", kind)
    if mode not in ("static", "gns", "accordion"):
        raise ValueError(f"mode {mode!r} is unknown; the modes are static, gns and accordion")
    if named is None or named[1] not in SAMPLES or mode == "static":
        return ()
    model, batch = named[1], int(named[2])
    epochs = steps / ceil(SAMPLES[model] / batch)

    def speed(now: int) -> float:
        here, first = pace(f"{model} (batch size {now})"), pace(kind)
        return now * here / (batch * first) if here and first else 1.0

    found: list[tuple[float, float]] = []
    for now, run in groupby(_batches(model, batch, gpus, mode, ceil(epochs))):
        found.append((float(len(list(run))), speed(now)))
    if len(found) < 2:
        return ()
    part, fast = found[-1]
    found[-1] = part - (ceil(epochs) - epochs), fast  # the last epoch may be partial
    return tuple(found)


def _batches(model: str, batch: int, gpus: int, mode: str, epochs: int) -> Iterable[int]:
    """The batch size of each epoch."""
    largest = LARGEST[model]
    if mode == "gns":
        at = DOUBLES[model].get((batch, gpus), ())
        return [min(largest, batch << sum(epoch >= start for start in at)) for epoch in range(epochs)]
    kept = [epoch <= epochs * EARLY or _critical(model, batch, epoch) for epoch in range(epochs)]
    return [batch if keep else largest for keep in kept]


def _critical(model: str, batch: int, epoch: int) -> bool:
    if model == "ResNet-18":
        return epoch < 10 or 150 <= epoch < 160 or 250 <= epoch < 260
    if model == "ResNet-50":
        return epoch % 30 < 10
    if model == "LM":
        return epoch < 10
    return epoch < _WARM_UP.get(batch, 10) or 60 <= epoch < 70 or 80 <= epoch < 90
