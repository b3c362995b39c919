"""Estimates of a job's speed, for policies: the speed, how certain it is, and the sources of estimates.

A policy asks `view.speed(job, tasks=4, type="A100")` and gets an `Estimate`: a speed against the job's
reference run, and how certain it is. An `Estimator` answers. `Declared` reads the profile that came with the
job. A measured estimator averages the rates of running jobs (mechanisms). A learned one fits a model; it has
the same three members. The simulator's true speed is another function (sim.true_speed), which no policy can
import.

An estimate is for one job alone on its devices. It leaves out neighbours, CPU, parameter servers and regimes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dovetail.model.cluster import Cluster
from dovetail.model.goodput import relative_speed
from dovetail.model.grant import Terms
from dovetail.model.job import Profile, Shape, Traits
from dovetail.model.profile_arithmetic import on_terms, ring, scaled
from dovetail.model.splicing import spliced
from dovetail.model.topology import fastest_link, fewest_nodes

if TYPE_CHECKING:
    from dovetail.model.view import JobView, View

KNOWN = 1.0  # the source has a value for exactly this case
ASSUMED = 0.0  # the source has no value: the type's own speed and linear scaling are assumed


class Estimate(NamedTuple):
    """How fast a job would run, and how certain that is."""

    speed: float  # work per unit of time; 1: as the job's reference run, 0: the job cannot run like this
    certainty: float  # from ASSUMED (0) to KNOWN (1)


IMPOSSIBLE = Estimate(0.0, KNOWN)


class Estimator(Protocol):
    """A source of estimates. It is a value: `observed` returns another one and changes nothing."""

    @property
    def individual(self) -> bool: ...  # jobs of equal shape, traits and model may get different estimates

    def estimate(
        self,
        cluster: Cluster,
        job: JobView,
        tasks: int,
        type: str,
        nodes: int | None,  # None: as few as the gang needs
        batch: int | None,  # None: that of the reference run; an adaptive job sets its own (model.goodput)
    ) -> Estimate: ...

    def observed(self, view: View) -> Estimator: ...  # updated by the measured rates of running jobs


class Declared:
    """Estimates from the job's profile; where that has no value, the type's own speed and linear scaling."""

    __slots__ = ()
    individual = False

    def estimate(
        self, cluster: Cluster, job: JobView, tasks: int, type: str, nodes: int | None, batch: int | None
    ) -> Estimate:
        traits = job.traits
        noise = job.noise_scale if traits.profile is not None and traits.profile.goodput else None
        return declared_speed(cluster, job.shape, traits, tasks, type, nodes, batch, noise)

    def observed(self, view: View) -> Declared:
        return self

    def __repr__(self) -> str:
        return "Declared()"


DECLARED = Declared()


def declared_speed(
    cluster: Cluster,
    shape: Shape,
    traits: Traits,
    tasks: int,
    type: str,
    nodes: int | None = None,
    batch: int | None = None,
    noise: float | None = None,
) -> Estimate:
    """What the profile of a job says of its speed; the arguments are those of `Estimator.estimate`.

    `noise` is the noise scale that the job reported last; None: as its training begins.
    """
    if not may_run(shape, traits, tasks, type):
        return IMPOSSIBLE
    profile = traits.profile
    own = cluster.type_speeds.get(type, 1.0)
    workers = tasks if traits.splice is None else shape.tasks  # a spliced job is as fast as with these ...
    part = 1.0 if workers == tasks else spliced(shape, traits, tasks)  # ... but for the turns that they take
    if profile is None:
        return Estimate(own * part * workers / shape.tasks if tasks != shape.tasks else own, ASSUMED)
    speed = profile.speeds.get(type, own) * part
    if profile.goodput is not None:
        model, size = profile.goodput, shape.of(workers)
        fewest = fewest_nodes(cluster, shape.of(tasks)) if nodes is None else nodes
        held, asked = (size.gpus or 1, fewest > 1), (shape.gpus or 1, fewest_nodes(cluster, shape) > 1)
        named = type in model.steps
        speed = (part if named else speed) * relative_speed(model, type, held, asked, noise, batch)
        return Estimate(speed, KNOWN if named or type in profile.speeds or own == 1.0 else ASSUMED)
    if workers != shape.tasks:
        speed = speed * scaled(profile, workers, type) / scaled(profile, shape.tasks, type)
    if nodes is not None or (profile.gradient and tasks != shape.tasks):
        speed *= _placed(cluster, profile, shape, tasks, type, nodes, workers)
    if batch is not None:
        speed *= on_terms(profile, Terms(batch=batch))
    curve = profile.curves.get(type, profile.curve)
    says = (type in profile.speeds or own == 1.0) and (workers == shape.tasks or workers in curve)
    return Estimate(speed, KNOWN if says else ASSUMED)


def may_run(shape: Shape, traits: Traits, tasks: int, type: str) -> bool:
    """Whether the job accepts this number of tasks and this type."""
    least, most = task_range(shape, traits)
    return least <= tasks <= most and (not shape.types or type in shape.types)


def task_range(shape: Shape, traits: Traits) -> tuple[int, int]:
    """The fewest and the most tasks with which a job runs; a rigid job has one number."""
    least, most = traits.least, traits.most
    asked = shape.tasks
    return asked if least is None or least > asked else least, asked if most is None or most < asked else most


def speed_of(
    estimator: Estimator,
    cluster: Cluster,
    job: JobView,
    *,
    tasks: int | None = None,
    type: str | None = None,
    nodes: int | None = None,
    batch: int | None = None,
) -> Estimate:
    """What `View.speed` returns: the estimate, with defaults for the arguments that were left out.

    Default `tasks`: as many as the job asked for. Default `type`: the type that it runs on, the slowest if it
    runs on several; for a waiting job the fastest that it accepts.
    """
    if tasks is None:
        tasks = job.shape.tasks
    if type is not None:
        return estimator.estimate(cluster, job, tasks, type, nodes, batch)
    kinds = types_of(cluster, job)
    found = [estimator.estimate(cluster, job, tasks, kind, nodes, batch) for kind in kinds]
    return found[0] if len(found) == 1 else (min if job.spots else max)(found)


def alike(estimator: Estimator, job: JobView) -> Hashable:
    """Jobs for which this is equal get equal estimates for a given type."""
    if estimator.individual:
        return job.id, job.epoch > 0, job.noise_scale
    return job.shape, id(job.traits), job.model, job.noise_scale


def types_of(cluster: Cluster, job: JobView) -> Sequence[str]:
    """The types that a running job holds; those that a waiting job accepts."""
    every = cluster.type_speeds
    if len(every) > 1 and job.spots:
        nodes = cluster.nodes
        held = dict.fromkeys(nodes[spot[0]].type.name for spot in job.spots if spot[1])
        return tuple(held) or tuple(every)
    return job.shape.types or tuple(every)


def _placed(
    cluster: Cluster, profile: Profile, shape: Shape, tasks: int, type: str, nodes: int | None, workers: int
) -> float:
    """The factor on speed of the number of nodes and the network, relative to the reference placement.

    `tasks` is what the job has devices for, and `workers` how many exchange gradients.
    """
    gain, size = 1.0, shape.of(tasks)
    spread = nodes is not None and nodes > fewest_nodes(cluster, size)
    if spread:
        gain /= profile.split_on(type)
    if profile.gradient and size.gpus > 1:
        link = cluster.links.rack if spread else fastest_link(cluster, size)
        reference = profile.compute + ring(profile.gradient, shape.gpus or 1, fastest_link(cluster, shape))
        gain *= reference / (profile.compute + ring(profile.gradient, workers * shape.each, link))
    return gain
