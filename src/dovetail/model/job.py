"""What is asked for: a job, its shape, and what is known of it.

A trace has a million jobs and a few dozen shapes and traits, so those two are values of their own, shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any

from dovetail.model.cluster import SLICES
from dovetail.model.units import WHOLE


class Kind(StrEnum):
    """What a job is a part of."""

    TRAIN = "train"
    SERVICE = "service"  # a replica: runs until it is told to stop
    TRIAL = "trial"  # one configuration of a study


class Arch(StrEnum):
    """How the tasks of a job exchange gradients."""

    ALLREDUCE = "allreduce"
    PARAMETER_SERVER = "ps"


@dataclass(frozen=True, slots=True)
class Role:
    """Helpers without GPUs beside the tasks, such as parameter servers; each stands on one node."""

    name: str
    count: int
    cpus: int = 0
    memory: int = 0


@dataclass(frozen=True, eq=False)
class Shape:
    """A gang: so many equal tasks, each whole on one node. Jobs of one shape fit alike.

    Equal shapes are one object, so that comparing and hashing them, which every queue does, costs nothing.
    """

    tasks: int = 1
    each: int = 1  # devices a task
    milli: int = WHOLE  # of each device
    slice: str = ""  # or a slice of that name (model.cluster.SLICES)
    types: tuple[str, ...] = ()  # GPU types it accepts; () is any
    cpus: int = 0  # milli-cores a task
    memory: int = 0  # bytes a task
    roles: tuple[Role, ...] = ()
    partition: str = ""  # only nodes of this partition

    def __post_init__(self) -> None:
        if self.tasks < 1 or self.each < 0 or not 0 < self.milli <= WHOLE:
            raise ValueError(f"no job has the shape {self}")
        if self.slice and self.slice not in SLICES:
            raise ValueError(f"no GPU has a slice {self.slice!r}; there are {', '.join(SLICES)}")

    def __new__(cls, *values: Any, **named: Any) -> Shape:
        key = (values, tuple(sorted(named.items())))
        made = _SHAPES.get(key)
        if made is None:
            whole = (*values, *(named.get(name, default) for name, default in _SHAPE_FIELDS[len(values) :]))
            made = _SHAPES.get((whole, ())) or object.__new__(cls)
            _SHAPES[key] = _SHAPES[whole, ()] = made
        return made

    def __reduce__(self) -> tuple[type[Shape], tuple[Any, ...]]:
        return Shape, tuple(getattr(self, name) for name, _ in _SHAPE_FIELDS)

    @cached_property
    def gpus(self) -> int:
        """Devices touched, whole or in part."""
        return self.tasks * self.each

    @cached_property
    def load(self) -> int:
        """Milli-GPUs asked for in all, counted as what is held: a slice by its memory slots."""
        part = WHOLE * SLICES[self.slice][0] // 8 if self.slice else self.milli
        return self.tasks * self.each * part

    @cached_property
    def plain(self) -> bool:
        """Whole GPUs one by one and nothing else: the common case, which the indexes are made for."""
        return (
            self.each == 1
            and self.milli == WHOLE
            and not (self.slice or self.cpus or self.memory or self.roles or self.partition)
        )

    @cached_property
    def exclusive(self) -> bool:
        """Shares no device with anybody."""
        return self.milli == WHOLE and not self.slice

    def of(self, tasks: int) -> Shape:
        """The same tasks, more or fewer."""
        return replace(self, tasks=tasks) if tasks != self.tasks else self


_SHAPES: dict[tuple[Any, ...], Shape] = {}
_SHAPE_FIELDS: list[tuple[str, Any]] = [(f.name, f.default) for f in fields(Shape)]


@lru_cache(maxsize=4096)
def gang(gpus: int, types: tuple[str, ...] = (), cpus: int = 0, memory: int = 0) -> Shape:
    """So many whole GPUs, one a task, with the job's CPU (milli-cores) and memory spread over them.

    Without GPUs it is one task of CPU and memory.
    """
    tasks = max(gpus, 1)
    return Shape(tasks, 1 if gpus else 0, types=types, cpus=-(-cpus // tasks), memory=-(-memory // tasks))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a stop costs: the time to save and to restore, and the work since the last save."""

    every: int | None = None  # saved on its own each so much work; None: never
    on_stop: bool = True  # saved when asked to stop, which takes `save`
    save: int = 0
    restore: int = 0
    resize: int = 0  # a pause when the grant grows or shrinks


@dataclass(frozen=True, slots=True)
class Profile:
    """How a model's speed answers to what it holds; all against a job's reference run.

    The reference is the job's own request, on a device of speed 1, on as few nodes as it can be.
    """

    speeds: Mapping[str, float] = field(default_factory=dict, hash=False)  # by GPU type; 0: not there
    curve: Mapping[int, float] = field(default_factory=dict, hash=False)  # by tasks; between: linear
    # Times slower over more nodes than needed; or so by GPU type, 1 where that is not known.
    split: float | Mapping[str, float] = field(default=1.0, hash=False)
    use: float = 1.0  # of a device's time while alone on it
    hurt: float = 0.0  # further loss for each neighbour on a device
    cpus: int = 0  # milli-cores a task for full speed
    compute: float = 0.0  # seconds of computing a step, and
    gradient: float = 0.0  # bytes exchanged a step: the network slows it
    servers: int = 0  # parameter servers for full speed
    batch: int = 0  # the batch size of the reference run
    batch_cost: float = 0.0  # of a step's time, the part that grows with the batch
    noise_scale: float = 0.0  # statistical: batches beyond it help less (0: every sample counts alike)
    skewed: bool = False  # one very large tensor: hurts when split
    pace: float = 0.0  # steps a second of the reference run; 0: not known
    regimes: tuple[tuple[float, float], ...] = ()  # (part of its work, times as fast there), in this order
    # By GPU type, and by the model of one who is on the very same devices; 0: the two do not fit together.
    beside: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        splits = self.split.values() if isinstance(self.split, Mapping) else (self.split,)
        if min(splits, default=1.0) <= 0:
            raise ValueError(f"split is how many times slower, above 0, not {self.split}")
        if self.regimes:  # as tuples, whatever they were read as
            known = tuple((float(part), float(speed)) for part, speed in self.regimes)
            if min(min(regime) for regime in known) <= 0:
                raise ValueError(f"regimes are parts and speeds above 0, not {self.regimes}")
            object.__setattr__(self, "regimes", known)

    def split_on(self, kind: str) -> float:
        """Times slower over more nodes than needed, on GPUs of a type."""
        return self.split if isinstance(self.split, float | int) else self.split.get(kind, 1.0)


@dataclass(frozen=True)
class Traits:
    """What jobs of a sort have in common."""

    kind: Kind = Kind.TRAIN
    arch: Arch = Arch.ALLREDUCE
    least: int | None = None  # tasks, if elastic
    most: int | None = None
    checkpoint: Checkpoint = Checkpoint()
    profile: Profile | None = None
    epochs: int = 0  # in all, if it reports them
    retries: int = 0  # after a failure of its own
    preemptible: bool = True

    @cached_property
    def elastic(self) -> bool:
        return self.least is not None or self.most is not None


PLAIN = Traits()


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it was submitted."""

    id: str
    arrived_at: int
    shape: Shape
    work: int  # microseconds on its reference; only the simulated world looks
    estimate: int  # what it was said to take
    tenant: str = ""
    user: str = ""
    priority: int = 0
    deadline: int | None = None
    model: str = ""
    group: str = ""  # the study, service or array it belongs to
    traits: Traits = PLAIN
    fails_after: int | None = None  # work after which this run would crash by itself
