"""Random small worlds for property tests: clusters, jobs that fit them, traces, incidents.

They are small on purpose: one to four nodes and a few jobs are enough for every way in which a scheduler goes
wrong, and a counterexample of that size can be read. Every job fits the empty cluster, and every tenant may
hold the largest job. So a job that never ends is the scheduler's fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hypothesis import strategies as st

from dovetail.core.journal import cluster_to_json, job_to_json
from dovetail.core.room import Room
from dovetail.model.cluster import KNOWN_TYPES, Cluster, Node, Tenant
from dovetail.model.goodput import Goodput, StepTime
from dovetail.model.job import Checkpoint, Job, Profile, Shape, Traits, gang
from dovetail.model.loss import LossCurve
from dovetail.model.units import GIB, SECOND
from dovetail.sim.world import Incident

TENANTS = ("red", "blue")

# Strategies that do not depend on the world are made once: making one takes longer than drawing from it.
_YES = st.booleans()
_SIZE, _MANY = st.integers(1, 8), st.integers(1, 16)
_UP_TO_3, _UP_TO_4, _UP_TO_7 = st.integers(0, 3), st.integers(0, 4), st.integers(0, 7)
_WEIGHT = st.sampled_from((1.0, 2.0))
_SPEEDS: st.SearchStrategy[dict[str, float]] = st.sampled_from(
    ({}, {"A100": 2.0}, {"V100": 0.5, "A100": 1.25})
)
_SPLIT, _USE, _HURT = (
    st.sampled_from((1.0, 1.5)),
    st.sampled_from((0.4, 0.5, 1.0)),
    st.sampled_from((0.0, 0.1)),
)
_LOSS = st.sampled_from((None, None, None, LossCurve(slope=0.5)))
_ODD = st.sampled_from(("", "", "part", "wide", "cpu", "slice"))
_MILLI = st.sampled_from((250, 500, 600))
_SLICE = st.sampled_from(("1g", "3g"))
_WORK = st.one_of(st.integers(1, 600).map(lambda s: s * SECOND), st.integers(1, 4_000 * SECOND))
_ARRIVAL = st.sampled_from((0, 0, 1, 10, 60, 61, 120, 300, 1_000))
_TENANT, _USER = st.sampled_from(TENANTS), st.sampled_from(("ann", "bob"))
_TWO, _PRIORITY = st.integers(1, 2), st.integers(0, 2)


@dataclass(frozen=True)
class Scene:
    """A cluster, a trace in order of arrival, and the incidents of its nodes."""

    cluster: Cluster
    jobs: tuple[Job, ...]
    incidents: tuple[Incident, ...] = ()

    def __repr__(self) -> str:
        """The fields that are not defaults, one line for each value: a counterexample should fit a screen."""
        cluster = cluster_to_json(self.cluster)
        usual = cluster_to_json(Cluster((Node("", 0),)))["nodes"][0]
        nodes = [{name: v for name, v in node.items() if v != usual[name]} for node in cluster["nodes"]]
        rows = [*nodes, *cluster["tenants"], *map(job_to_json, self.jobs), *self.incidents]
        return "Scene:\n  " + "\n  ".join(map(str, rows))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # or hypothesis would print every field of every value


@st.composite
def clusters(draw: st.DrawFn, *, typed: bool = True, tenants: bool = True, bounded: bool = False) -> Cluster:
    """One to four nodes of one to eight GPUs; sometimes of two types, sometimes shared by two tenants."""
    names = ("V100", "A100") if typed and draw(_YES) else ("gpu",)
    equal = draw(_YES)
    size = draw(_SIZE)
    nodes = []
    for i in range(draw(st.integers(1, 4))):
        gpus = size if equal else draw(_SIZE)
        node = Node(f"n{i}", gpus, KNOWN_TYPES[draw(st.sampled_from(names))])
        if bounded and draw(_YES):
            node = replace(node, cpus=1_000 * draw(_MANY), memory=GIB * draw(_MANY))
        nodes.append(node)
    total = sum(node.gpus for node in nodes)
    shared = tenants and draw(_YES)
    return Cluster(tuple(nodes), tenants=draw(_tenants(total)) if shared else {})


@st.composite
def _tenants(draw: st.DrawFn, total: int) -> dict[str, Tenant]:
    """Two teams below one department, with quotas, and at times a hard limit that holds the largest job."""
    made = {"department": Tenant("department", quota=total)}
    left = total
    for name in TENANTS:
        quota = draw(st.integers(0, left))
        left -= quota
        limit = total if draw(_YES) else None
        made[name] = Tenant(name, "department", draw(_WEIGHT), quota, limit=limit)
    return made


@cache
def checkpoints() -> st.SearchStrategy[Checkpoint]:
    """Mostly stops that cost nothing; else stops that cost time, work or both."""
    seconds = st.sampled_from((0, 1, 7)).map(lambda s: s * SECOND)
    every = st.sampled_from((None, 5 * SECOND, 60 * SECOND))
    costly = st.builds(
        Checkpoint, every, st.booleans(), seconds, seconds, seconds, st.one_of(st.none(), seconds)
    )
    return st.one_of(st.just(Checkpoint()), costly)


@cache
@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Speeds that depend on type, placement, number of tasks and neighbours."""
    return Profile(
        speeds=draw(_SPEEDS),
        split=draw(_SPLIT),
        use=draw(_USE),
        hurt=draw(_HURT),
        loss=draw(_LOSS),
    )


@cache
@st.composite
def goodputs(draw: st.DrawFn) -> Goodput:
    """Models of goodput: for one GPU type or several, of jobs that set their batch or keep it."""
    seconds = st.sampled_from((0.0, 0.005, 0.02))
    more = st.sampled_from((0.0, 0.002))
    step = st.builds(
        StepTime,
        st.sampled_from((0.02, 0.05)),
        st.sampled_from((0.0, 0.001)),
        seconds,
        more,
        seconds,
        more,
        st.sampled_from((1.0, 1.5, 10.0)),
    )
    named = draw(st.sets(st.sampled_from(("V100", "A100", "gpu"))))
    stages = st.tuples(st.sampled_from((1, 2, 5)), st.sampled_from((0.0, 20.0, 500.0)))
    return Goodput(
        {kind: draw(step) for kind in ("", *sorted(named))},
        32,
        draw(st.sampled_from((0, 64, 128))),
        draw(st.sampled_from((0, 16))),
        tuple(draw(st.lists(stages, max_size=3))),
    )


@st.composite
def shapes(draw: st.DrawFn, cluster: Cluster, *, plain: bool = False) -> Shape:
    """A gang that the empty cluster holds."""
    largest = max(sum(n.gpus for n in cluster.nodes if n.type == kind) for kind in cluster.types)
    wanted = draw(st.one_of(st.sampled_from((1, 1, 2, 4, 8)), st.integers(1, largest)))
    types = draw(st.sampled_from([(), *((kind.name,) for kind in cluster.types)]))
    shape = gang(min(wanted, largest), types)
    odd = [] if plain else draw(_ODD)
    if odd == "part":
        shape = replace(shape, tasks=1, milli=draw(_MILLI))
    elif odd == "wide":
        shape = replace(shape, tasks=max(1, shape.tasks // 2), each=2)
    elif odd == "cpu":
        shape = replace(shape, cpus=1_000 * draw(_UP_TO_4), memory=GIB * draw(_UP_TO_4))
    elif odd == "slice":
        shape = replace(shape, tasks=draw(_TWO), slice=draw(_SLICE), types=())
    room = Room(cluster)
    while room.best(shape) is None:  # the smallest that is left always fits: one GPU of any type
        shape = gang(shape.tasks // 2) if shape.tasks > 1 else gang(1)
    return shape


@st.composite
def jobs(draw: st.DrawFn, cluster: Cluster, number: int, *, plain: bool = False, exact: bool = False) -> Job:
    """One job; `exact`: its estimate is right, and stopping it costs nothing."""
    shape = draw(shapes(cluster, plain=plain))
    work = draw(_WORK)
    traits = Traits()
    if not exact:
        shares = bool(shape.slice) or shape.milli < 1_000
        profile = draw(profiles()) if shares or draw(_UP_TO_3) == 0 else None
        elastic = shape.plain and draw(_UP_TO_3) == 0
        traits = Traits(
            least=draw(st.integers(1, shape.tasks)) if elastic else None,
            most=shape.tasks + draw(_UP_TO_4) if elastic else None,
            checkpoint=draw(checkpoints()),
            profile=profile or (Profile() if elastic else None),
            epochs=3 if profile is not None and profile.loss is not None else 0,
            preemptible=draw(_UP_TO_7) > 0,
            splice=0.25 if elastic and number % 2 else None,
        )
    return Job(
        id=f"j{number}",
        arrived_at=draw(_ARRIVAL) * SECOND,
        shape=shape,
        work=work,
        estimate=work if exact else draw(st.sampled_from((work, work, 2 * work, work // 2 + 1))),
        tenant=draw(_TENANT) if cluster.tenants else "",
        user=draw(_USER),
        priority=draw(_PRIORITY),
        traits=traits,
    )


@st.composite
def traces(
    draw: st.DrawFn, cluster: Cluster, *, most: int = 25, plain: bool = False, exact: bool = False
) -> tuple[Job, ...]:
    """Up to `most` jobs in order of arrival, many of them at equal times."""
    made = [draw(jobs(cluster, i, plain=plain, exact=exact)) for i in range(draw(st.integers(1, most)))]
    return tuple(sorted(made, key=lambda job: job.arrived_at))


@st.composite
def incidents(draw: st.DrawFn, cluster: Cluster, *, most: int = 3) -> tuple[Incident, ...]:
    """Nodes that fail or are reclaimed; each comes back before it is lost again."""
    made, free_at = [], dict.fromkeys((node.name for node in cluster.nodes), 0)
    for _ in range(draw(st.integers(0, most))):
        node = draw(st.sampled_from(sorted(free_at)))
        at = free_at[node] + draw(st.integers(1, 1_000)) * SECOND
        free_at[node] = back = at + draw(st.integers(1, 500)) * SECOND
        made.append(Incident(node, at, back, draw(st.sampled_from(("failed", "reclaimed")))))
    return tuple(made)


@st.composite
def scenes(
    draw: st.DrawFn, *, most: int = 25, plain: bool = False, exact: bool = False, lossy: bool = False
) -> Scene:
    """A whole small world; with `lossy`, nodes may be lost."""
    cluster = draw(clusters(bounded=not plain))
    trace = draw(traces(cluster, most=most, plain=plain, exact=exact))
    return Scene(cluster, trace, draw(incidents(cluster)) if lossy else ())


def renamed(cluster: Cluster, names: Sequence[str]) -> Cluster:
    """The same machines under other names."""
    nodes = tuple(replace(node, name=name) for node, name in zip(cluster.nodes, names, strict=True))
    return Cluster(nodes, cluster.links, cluster.tenants)
