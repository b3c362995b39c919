"""Makes generated jobs load their cluster as asked, while they arrive.

A job that outlasts the arrivals does most of its work after them, and a trace of heavy tails has a few such
jobs with most of the work. So the load is measured: `in_use` is the utilisation of a work-conserving policy
from the first arrival to the last. Where it is too low, `fitted` changes as little as it can, in this order:
jobs of similar work arrive evenly over the span, up to 10 % more work arrives, and the longest jobs are
shortened to a part of the span, large at first. See docs/decisions/0043-loads.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.model.job import Job
from dovetail.model.units import SECOND, WHOLE, spoken

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Reals = NDArray[np.float64]
    Wholes = NDArray[np.int64]

ENOUGH = 0.94  # of the load asked for, measured here: the aim, with room for what ticks miss
FULL = 0.92  # of the GPUs: the aim for loads above 1
SHORT = 0.9  # less than this part of the load is said
TICKS = 512  # of the span, in the measure
STRATA = 16  # parts of the span that get the same work
# What a job may last, over the span: the first that is enough is taken.
PARTS = (1.0, 0.8, 0.65, 0.5, 0.4, 0.32, 0.25, 0.2, 0.16, 0.125, 0.1, 0.08, 0.06, 0.05, 0.04)
EXTRA = (1.0, 1.05, 1.1)  # work that arrives, over load x capacity x span
WIDE = 8  # a job of more than 1/8 of the cluster may last less, in proportion: it blocks the others
MOST_CUT = 0.75  # of the jobs; if more had to be cut, there are too few jobs for the cluster
PLENTY = 6  # GPUs that all jobs ask for, over load x GPUs of the cluster: always enough jobs


@dataclass(frozen=True, slots=True)
class Fitted:
    """Jobs by arrival: `order` is their places in what was drawn."""

    order: Wholes
    durations: Wholes  # whole seconds
    arrivals: Reals  # seconds
    notes: tuple[str, ...]


def fitted(
    np: Any,
    widths: Reals,
    durations: Wholes,
    levels: Reals,
    *,
    gpus: int,
    load: float,
    seed: int,
    arrivals: Callable[[Reals, float], Reals],
) -> Fitted:
    """The jobs as drawn if they load the cluster as asked; if not, with the smallest change that does.

    `widths` are the GPUs of the jobs, `levels` the quantiles of their arrivals, rising. `arrivals` makes
    times of levels and a span.
    """
    asked = min(load, 1.0)  # above 1 the cluster is full, and the rest of the work is the backlog
    aim = ENOUGH if load <= 1 else FULL
    span = float((widths * durations).sum()) / (gpus * load)
    best = Fitted(np.arange(len(widths)), durations, arrivals(levels, span), ())
    reached = in_use(np, best.arrivals, widths, durations, gpus) / asked
    if reached >= aim:
        return best
    order, levels = _evenly(np, widths * durations, seed)
    widths, drawn = widths[order], durations[order]
    share = np.minimum(1.0, gpus / (WIDE * widths))
    for part in PARTS:
        for extra in EXTRA if load <= 1 else EXTRA[:1]:
            longest = _longest(np, widths, drawn, share, part / (gpus * load * extra))
            cut = np.minimum(drawn, np.maximum(np.rint(longest * share), 1).astype(np.int64))
            if longest < 1 or (cut < drawn).mean() > MOST_CUT:
                continue
            span = float((widths * cut).sum()) / (gpus * load * extra)
            times = arrivals(levels, span)
            if _at_most(np, times, widths, cut, gpus) <= reached * asked:
                continue
            found = in_use(np, times, widths, cut, gpus) / asked
            if found > reached:
                reached = found
                best = Fitted(order, cut, times, _changes(drawn, cut, extra))
            if reached >= aim:
                return best
    return best if reached >= SHORT else _with_shortfall(best, widths, gpus, load, reached * asked)


def in_use_while_arriving(jobs: Sequence[Job], gpus: int) -> float:
    """The load that jobs reach on a cluster of so many GPUs: `in_use`, of jobs by their arrival."""
    import numpy as np  # noqa: PLC0415  (its import takes as long as all the others together)

    seconds = np.array([job.arrived_at for job in jobs]) / SECOND
    widths = np.array([job.shape.load for job in jobs]) / WHOLE
    durations = np.rint(np.array([job.work for job in jobs]) / SECOND).astype(np.int64)
    return in_use(np, seconds, widths, durations, gpus) if len(jobs) else 0.0


def in_use(np: Any, arrivals: Reals, widths: Reals, durations: Wholes, gpus: int) -> float:
    """The part of the GPU time from the first arrival to the last that a work-conserving policy uses.

    First come first served with preemption: at each tick GPUs go to the jobs by arrival, and a gang that does
    not fit is passed over. Jobs that last less than two ticks take turns on what is left, the widest first.
    The GPUs are one pool: the load is asked for a number of GPUs, not for nodes.
    """
    span = float(arrivals[-1] - arrivals[0])
    if span <= 0:
        return 0.0
    tick = span / TICKS
    at = np.minimum((arrivals - arrivals[0]) / tick, TICKS - 1).astype(np.int64)
    long = durations >= 2 * tick
    short = [
        (float(width), np.bincount(at[these], (widths * durations)[these] / tick, TICKS).tolist())
        for width in np.unique(widths)[::-1]
        if (these := ~long & (widths == width)).any()
    ]
    waiting = [0.0] * len(short)
    wide, need = widths[long], np.rint(durations[long] / tick).astype(np.int64)
    upto = np.searchsorted(at[long], np.arange(TICKS), side="right").tolist()
    active = np.empty(0, dtype=np.int64)
    held, begin = 0.0, 0
    for now in range(TICKS):
        if upto[now] > begin:
            active = np.concatenate((active, np.arange(begin, upto[now])))
            begin = upto[now]
        running = active[_first_that_fit(np, wide[active], gpus)]
        need[running] -= 1
        active = active[need[active] > 0]
        free = gpus - float(wide[running].sum())
        for place, (width, work) in enumerate(short):
            waiting[place] += work[now]
            filled = min(waiting[place], (free + 1e-6) // width * width)
            waiting[place] -= filled
            free -= filled
        held += gpus - free
    return held / (gpus * TICKS)


def _at_most(np: Any, arrivals: Reals, widths: Reals, durations: Wholes, gpus: int) -> float:
    """What would be in use if every job started when it arrives: a bound, and quick."""
    left = arrivals[-1] - arrivals
    return float((widths * np.minimum(durations, left)).sum()) / (gpus * max(float(left[0]), 1e-9))


def _first_that_fit(np: Any, widths: Reals, gpus: float) -> Any:
    """Which jobs get GPUs, in this order, if those that do not fit are passed over."""
    chosen = np.zeros(len(widths), dtype=bool)
    places, free = np.arange(len(widths)), gpus + 1e-6
    while len(places):
        total = np.cumsum(widths[places])
        stop = int(np.searchsorted(total, free, side="right"))
        chosen[places[:stop]] = True
        if stop == len(places):
            break
        free -= float(total[stop - 1]) if stop else 0.0
        rest = places[stop + 1 :]  # whatever is as wide as the one that did not fit does not fit either
        places = rest[widths[rest] <= free]
    return chosen


def _evenly(np: Any, work: Reals, seed: int) -> tuple[Wholes, Reals]:
    """An order of arrival and its levels: of each 16 jobs of similar work, one in each sixteenth of the span.

    Each job still arrives at any time of the span with the same probability as the others.
    """
    rng = np.random.default_rng((seed, 1))  # not the stream of the jobs: tenants and users stay
    rows = -(-len(work) // STRATA)
    stratum = np.argsort(rng.random((rows, STRATA)), axis=1).ravel()[: len(work)]
    levels = np.empty(len(work))
    levels[np.argsort(-work, kind="stable")] = (stratum + rng.random(len(work))) / STRATA
    order: Wholes = np.argsort(levels, kind="stable")
    return order, levels[order]


def _longest(np: Any, widths: Reals, durations: Wholes, share: Reals, part: float) -> float:
    """The largest limit that is at most `part` of the work that is left under it; seconds.

    The span follows from the work and the limit from the span, so that both are found together.
    """

    def fits(limit: float) -> bool:
        return limit <= part * float((widths * np.minimum(durations, limit * share)).sum())

    low, high = 0.0, float((durations / share).max())
    if fits(high):
        return high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _changes(drawn: Wholes, cut: Wholes, extra: float) -> tuple[str, ...]:
    changes = ["long jobs arrive evenly over the span"]
    if extra > 1:
        changes.append(f"{extra - 1:.0%} more work arrives".replace("%", " %"))
    shorter = int((cut < drawn).sum())
    if shorter:
        limit = spoken(int(cut[cut < drawn].max()) * SECOND)
        them = "1 job is" if shorter == 1 else f"{shorter:,} jobs are"
        changes.append(f"{them} shortened, to {limit} at most")
    listed = f"{', '.join(changes[:-1])} and {changes[-1]}" if len(changes) > 1 else changes[0]
    return (f"to reach the load while jobs arrive, {listed}",)


def _with_shortfall(best: Fitted, widths: Reals, gpus: int, load: float, reached: float) -> Fitted:
    enough = int(PLENTY * load * gpus * len(widths) / float(widths.sum())) + 1
    few = f"about {enough:,} jobs are needed" if enough > len(widths) else "try another seed or more jobs"
    told = f"the load while jobs arrive is {max(reached, 1e-4):.2g}, not {load:g}: {few} for {gpus:,} GPUs"
    return Fitted(best.order, best.durations, best.arrivals, (*best.notes, told))
