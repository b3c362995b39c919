"""Generated traces like published ones, of any length and load.

For each job a tenant and a size are drawn, then a duration that depends on the size, then a user. Arrivals
are a Poisson process whose rate varies by hour and weekday. The rate is set so that the offered work is
`load` times the capacity of the cluster: the span follows from the work. If that load is not reached while
jobs arrive, `loads` changes the trace. `calibration` has the source of each distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.model.errors import BadOption, UnknownName
from dovetail.model.job import Shape, gang
from dovetail.model.units import SECOND, WHOLE
from dovetail.traces.calibration import (
    ACME_SEREN,
    GRID,
    HELIOS_SATURN,
    HELIOS_VENUS,
    ITP,
    PAI,
    PHILLY,
    Calibration,
)
from dovetail.traces.loads import fitted
from dovetail.traces.trace import Trace, many

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Reals = NDArray[np.float64]
    Wholes = NDArray[np.int64]

GENERATORS: Mapping[str, Calibration] = {
    "philly": PHILLY,
    "itp": ITP,
    "helios-venus": HELIOS_VENUS,
    "helios-saturn": HELIOS_SATURN,
    "pai": PAI,
    "acme-seren": ACME_SEREN,
}


def generate(like: str, jobs: int, gpus: int, load: float, seed: int = 0) -> Trace:
    """Generate jobs like those of a published trace, with this offered load on a cluster of `gpus`.

    A work-conserving policy uses `load` of the GPU time while the jobs arrive, to 10 %; above 1 it uses all,
    and the rest is the backlog. A note says what was changed for this, or that there are too few jobs.

    The same arguments give the same jobs. Sizes that can never fit on the cluster are left out; the others
    keep their proportions. Durations are whole seconds, submissions whole milliseconds.
    """
    if like not in GENERATORS:
        raise UnknownName("generator", like, GENERATORS)
    if jobs < 1 or gpus < 1 or not 0 < load < float("inf") or seed < 0:
        wrong = f"jobs={jobs}, gpus={gpus}, load={load:g}, seed={seed}"
        raise BadOption(
            f"cannot generate {wrong}; jobs and gpus are at least 1, load above 0, seed at least 0"
        )
    import numpy as np  # noqa: PLC0415  (its import takes as long as all the others together)

    made = GENERATORS[like]
    rng = np.random.default_rng(seed)
    cells = [
        (tenant, milli, weight)
        for tenant, sizes in made.mix.items()
        for milli, weight in sizes.items()
        if milli <= gpus * WHOLE
    ]
    kinds = _drawn(np, rng, [weight for _, _, weight in cells], jobs)
    milli = np.array([size for _, size, _ in cells])[kinds]
    durations = np.maximum(np.rint(_durations(np, rng, made, milli)), 1).astype(np.int64)
    made_up = fitted(
        np,
        milli / WHOLE,
        durations,
        np.sort(rng.random(jobs)),
        gpus=gpus,
        load=load,
        seed=seed,
        arrivals=lambda levels, span: _arrivals(np, made, levels, span),
    )
    kinds, durations = kinds[made_up.order], made_up.durations
    arrivals = np.rint(made_up.arrivals * 1_000).astype(np.int64)

    if made.tenants:
        tenants = [f"{like}-t{i}" for i in range(made.tenants)]
        tenant = _drawn(np, rng, _zipf(made.tenants), jobs)
    else:
        tenants = list(made.mix)
        tenant = np.array([tenants.index(name) for name, _, _ in cells])[kinds]
    rank = _drawn(np, rng, _zipf(made.users), jobs)
    users = [f"{name}-u{i}" for name in tenants for i in range(made.users)]
    shapes = [_shape(size) for _, size, _ in cells]
    works = (durations * SECOND).tolist()
    return Trace(
        f"{like}-like",
        many(
            jobs,
            id=(f"j{number}" for number in range(jobs)),
            arrived_at=(arrivals * 1_000).tolist(),
            shape=map(shapes.__getitem__, kinds.tolist()),
            work=works,
            estimate=works,
            tenant=map(tenants.__getitem__, tenant.tolist()),
            user=map(users.__getitem__, (tenant * made.users + rank).tolist()),
        ),
        "generated",
        notes=(f"generated: like={like} jobs={jobs} gpus={gpus} load={load:g} seed={seed}", *made_up.notes),
    )


def _drawn(np: Any, rng: np.random.Generator, weights: list[float], count: int) -> Wholes:
    """Random indexes, drawn with probability proportional to weight."""
    bounds = np.cumsum(np.array(weights, dtype=float))
    found: Wholes = np.searchsorted(bounds, rng.random(count) * bounds[-1], side="right").clip(
        0, len(weights) - 1
    )
    return found


def _durations(np: Any, rng: np.random.Generator, made: Calibration, milli: Wholes) -> Reals:
    """Seconds, by the quantiles of the size class, or log-normal with a median that grows with the size."""
    if not made.quantiles:
        doublings = np.log2(np.maximum(milli / WHOLE, 1.0))
        centre = made.centre + made.growth * doublings
        drawn: Reals = np.exp(centre + made.spread * rng.standard_normal(len(milli)))
        return drawn.clip(1, made.longest)
    levels = rng.random(len(milli))
    durations: Reals = np.empty(len(milli))
    classes = sorted(made.quantiles)
    place = np.searchsorted(np.array(classes), milli / WHOLE, side="right") - 1
    for i, least in enumerate(classes):
        here = place == i
        durations[here] = np.exp(np.interp(levels[here], GRID, np.log(made.quantiles[least])))
    return durations


def _arrivals(np: Any, made: Calibration, levels: Reals, span: float) -> Reals:
    """Seconds from 0 to the span: a Poisson process of varying rate, given the number of jobs.

    Given their number, arrivals of a Poisson process are independent draws from its rate: here its quantiles
    at these rising levels.
    """
    week = np.array([day * hour for day in made.days for hour in made.hours], dtype=float)
    hours = int(span // 3600) + 1
    rate = np.resize(week, hours)
    edges = np.concatenate(([0.0], np.cumsum(rate)))
    times: Reals = np.interp(levels * edges[-1], edges, np.arange(hours + 1) * 3600.0)
    if len(times) > 1:  # the first arrives at 0 and the last at the end, so that the load is exact
        times = (times - times[0]) * (span / max(times[-1] - times[0], 1e-9))
    else:
        times[:] = 0.0
    return times


def _zipf(count: int) -> list[float]:
    """Zipf weights: the k-th is 1/k of the first."""
    return [1 / (rank + 1) for rank in range(count)]


def _shape(milli: int) -> Shape:
    return gang(milli // WHOLE) if milli % WHOLE == 0 else Shape(1, 1, milli)
