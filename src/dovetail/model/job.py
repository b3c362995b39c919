"""A job: what it asks for (its shape), and what is known of it (its traits).

A trace has a million jobs but only a few dozen shapes and traits, so jobs share those two values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from dovetail.model.cluster import SLICES
from dovetail.model.goodput import Goodput
from dovetail.model.grant import Spots, devices_of, same_place
from dovetail.model.loss import LossCurve
from dovetail.model.server_speed import ServerSpeed
from dovetail.model.units import WHOLE


class Kind(StrEnum):
    """What a job is a part of."""

    TRAIN = "train"
    SERVICE = "service"  # a replica: runs until it is stopped
    TRIAL = "trial"  # one configuration of a study


class Arch(StrEnum):
    """How the tasks of a job exchange gradients."""

    ALLREDUCE = "allreduce"
    PARAMETER_SERVER = "ps"


@dataclass(frozen=True, slots=True)
class Role:
    """Helpers of a job that need no GPU, such as parameter servers; each is on one node."""

    name: str
    count: int
    cpus: int = 0
    memory: int = 0


class _Derived:
    """What follows from the fields of a shape, in slots: every start reads it; a cached property is slow."""

    __slots__ = ("exclusive", "gpus", "load", "plain")

    gpus: int  # the number of devices, whole or shared
    load: int  # milli-GPUs asked for in all; a slice counts by its memory slots
    plain: bool  # tasks are single whole GPUs and ask for nothing else: the case that the indexes serve
    exclusive: bool  # the job shares no device with other jobs


@dataclass(frozen=True, eq=False, slots=True)
class Shape(_Derived):
    """A gang of equal tasks, each on one node. Jobs of one shape fit in the same places.

    Equal shapes are one object, so that queues compare and hash them at no cost.
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
        whole = self.milli == WHOLE and not self.slice
        part = WHOLE * SLICES[self.slice][0] // 8 if self.slice else self.milli
        derive = object.__setattr__
        derive(self, "gpus", self.tasks * self.each)
        derive(self, "load", self.tasks * self.each * part)
        derive(self, "exclusive", whole)
        asks_more = self.cpus or self.memory or self.roles or self.partition
        derive(self, "plain", whole and self.each == 1 and not asks_more)

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

    def of(self, tasks: int) -> Shape:
        """The same shape with another number of tasks."""
        return _resized(self, tasks) if tasks != self.tasks else self


_SHAPES: dict[tuple[Any, ...], Shape] = {}
_SHAPE_FIELDS: list[tuple[str, Any]] = [(f.name, f.default) for f in fields(Shape)]


@lru_cache(maxsize=4096)
def _resized(shape: Shape, tasks: int) -> Shape:
    return replace(shape, tasks=tasks)


@lru_cache(maxsize=4096)
def gang(gpus: int, types: tuple[str, ...] = (), cpus: int = 0, memory: int = 0) -> Shape:
    """A shape of whole GPUs, one for each task, with the job's CPU (milli-cores) and memory divided by tasks.

    Without GPUs it is one task of CPU and memory.
    """
    tasks = max(gpus, 1)
    return Shape(tasks, 1 if gpus else 0, types=types, cpus=-(-cpus // tasks), memory=-(-memory // tasks))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a stop costs: the time to save and to restore, and the work since the last save.

    A job with `suspend` is suspended when it is stopped: its state stays in the host memory of its nodes. If
    it resumes there, that is all it pays. If it moves, it is saved and restored.
    """

    every: int | None = None  # the job saves after each such amount of work; None: never
    on_stop: bool = True  # the job saves when it is told to stop, which takes `save`
    save: int = 0
    restore: int = 0
    resize: int | None = None  # a pause when the grant grows; None: a restart, `save` and `restore`
    shrink: int | None = None  # a pause when the grant shrinks; None: as when it grows
    suspend: int | None = None  # to suspend and to resume in place, together; None: as anywhere else

    @property
    def suspends(self) -> bool:
        """Whether a stopped job keeps its state on its nodes."""
        return self.suspend is not None and self.on_stop

    def pause(self, before: Spots, after: Spots) -> int:
        """The pause of a running job that gets other spots; none if only its shares or terms are others."""
        if {spot[:2] for spot in before} == {spot[:2] for spot in after}:
            return 0
        return self.to_shrink if devices_of(after) < devices_of(before) else self.to_grow

    @property
    def to_grow(self) -> int:
        """The pause of a running job that grows or moves."""
        return self.save + self.restore if self.resize is None else self.resize

    @property
    def to_shrink(self) -> int:
        """The pause of a running job that shrinks."""
        return self.to_grow if self.shrink is None else self.shrink

    def restart(self, suspended_on: Spots | None, spots: Spots) -> int:
        """The time that the next start takes on these spots."""
        if suspended_on is None or self.suspend is None:
            return self.restore
        return self.suspend if same_place(suspended_on, spots) else self.save + self.restore


_OF_GOODPUT = (
    "curve",
    "curves",
    "split",
    "gradient",
    "batch",
    "batch_cost",
    "noise_scale",
    "regimes",
    "server_speed",
)


@dataclass(frozen=True, slots=True)
class Profile:
    """How a job's speed depends on what it holds, relative to its reference run.

    The reference run has what the job asks for, on devices of speed 1, on as few nodes as possible.
    """

    speeds: Mapping[str, float] = field(default_factory=dict, hash=False)  # by GPU type; 0: cannot run
    curve: Mapping[int, float] = field(default_factory=dict, hash=False)  # by tasks; interpolated
    # The same for types whose curve is another; each is relative to the number of tasks asked for.
    curves: Mapping[str, Mapping[int, float]] = field(default_factory=dict, hash=False)
    # The slowdown on more nodes than needed: a factor, or one for each GPU type (1 if not given).
    split: float | Mapping[str, float] = field(default=1.0, hash=False)
    use: float = 1.0  # fraction of a device's time that the job uses when alone
    hurt: float = 0.0  # further fraction of speed that it costs each neighbour on a device
    cpus: int = 0  # milli-cores per task for full speed
    compute: float = 0.0  # seconds of computation in a step
    gradient: float = 0.0  # bytes exchanged in a step, over the network
    servers: int = 0  # parameter servers for full speed
    batch: int = 0  # the batch size of the reference run
    batch_cost: float = 0.0  # the part of a step's time that grows with the batch
    noise_scale: float = 0.0  # of the gradient: larger batches help less (0: all samples count the same)
    skewed: bool = False  # one very large tensor: slow on more than one node
    pace: float = 0.0  # steps a second of the reference run; 0: not known
    regimes: tuple[tuple[float, float], ...] = ()  # (part of its work, speed-up in it), in order
    # Speed by GPU type and by the model of another job on the same devices; 0: the two cannot share.
    beside: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    # Speed by GPU type, number of GPUs, nodes and batch, in place of the figures in `_OF_GOODPUT`.
    goodput: Goodput | None = None
    server_speed: ServerSpeed | None = None  # speed by workers, over parameter servers, in place of `curve`
    loss: LossCurve | None = None  # what it reports at the end of each epoch (`Traits.epochs`)

    def __post_init__(self) -> None:
        splits = self.split.values() if isinstance(self.split, Mapping) else (self.split,)
        if min(splits, default=1.0) <= 0:
            raise ValueError(f"split is how many times slower, above 0, not {self.split}")
        if self.regimes:  # make tuples of lists that a file may have given
            known = tuple((float(part), float(speed)) for part, speed in self.regimes)
            if min(min(regime) for regime in known) <= 0:
                raise ValueError(f"regimes are parts and speeds above 0, not {self.regimes}")
            object.__setattr__(self, "regimes", known)
        if self.server_speed is not None and (self.curve or self.curves):
            raise ValueError("server_speed says what curve would say: give one of them")
        if self.goodput is not None:
            twice = [name for name in _OF_GOODPUT if getattr(self, name) != (1.0 if name == "split" else 0)]
            twice = [name for name in twice if getattr(self, name) not in ((), {}, None)]
            if twice:
                raise ValueError(f"goodput says what {', '.join(twice)} would say: give one of them")

    def split_on(self, kind: str) -> float:
        """The slowdown on more nodes than needed, on GPUs of a type."""
        return self.split if isinstance(self.split, float | int) else self.split.get(kind, 1.0)


class _Elastic:
    """What follows from the fields of traits."""

    __slots__ = ("elastic",)

    elastic: bool  # the job runs with other numbers of tasks as well


@dataclass(frozen=True, slots=True)
class Traits(_Elastic):
    """What jobs of one kind have in common."""

    kind: Kind = Kind.TRAIN
    arch: Arch = Arch.ALLREDUCE
    least: int | None = None  # tasks, if elastic
    most: int | None = None
    checkpoint: Checkpoint = Checkpoint()
    profile: Profile | None = None
    epochs: int = 0  # in all, if it reports them
    retries: int = 0  # after a failure of its own
    preemptible: bool = True
    # Its workers can take turns on fewer devices (model.splicing): the part of its speed that this costs.
    splice: float | None = None  # None: they cannot

    def __post_init__(self) -> None:
        if self.splice is not None:
            if not 0 <= self.splice < 1:
                raise ValueError(f"splice is a part of the speed, at least 0 and below 1, not {self.splice}")
            if self.least is None:
                object.__setattr__(self, "least", 1)
        object.__setattr__(self, "elastic", self.least is not None or self.most is not None)


PLAIN = Traits()


def least_devices(shape: Shape, traits: Traits) -> int:
    """The fewest devices on which a gang computes."""
    return (shape.tasks if traits.least is None else traits.least) * shape.each


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it was submitted."""

    id: str
    arrived_at: int
    shape: Shape
    work: int  # true work, in microseconds of its reference run; only the simulated world reads it
    estimate: int  # its declared duration
    tenant: str = ""
    user: str = ""
    priority: int = 0
    deadline: int | None = None
    model: str = ""
    group: str = ""  # the study, service or array it belongs to
    traits: Traits = PLAIN
    fails_after: int | None = None  # the work after which the simulated job fails

    def pause(self, before: Spots, after: Spots) -> int:
        """The pause for other spots; a gang that is not yet whole does not compute, and has none."""
        if devices_of(before) < least_devices(self.shape, self.traits):
            return 0
        return self.traits.checkpoint.pause(before, after)
