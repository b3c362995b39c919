"""Speeds of a job on many GPUs of many types, from a profile of one GPU of each and from where it has run.

Sia (Jayaram Subramanya et al., SOSP 2023, section 3.2): a job is profiled on one GPU of each type when it
arrives. As long as it has run nowhere on several GPUs, it is taken to scale linearly. Once it has, its
scaling is known for that type; on another type it is taken to be the same, times the ratio of the speeds on
one GPU.

Deviation: what a job measures is not fitted. Where it has run on several GPUs, its declared profile counts,
at the noise scale that it reported last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.mechanisms.estimate.measured_speeds import WARM_UP
from dovetail.model.cluster import Cluster
from dovetail.model.estimate import ASSUMED, DECLARED, IMPOSSIBLE, KNOWN, Estimate, may_run, task_range
from dovetail.model.grant import nodes_of
from dovetail.model.topology import fewest_nodes
from dovetail.model.view import JobView, View

Ran = tuple[tuple[str, bool], ...]  # types on which a job ran with more than its fewest tasks; across nodes?
RATIO = 0.5  # the certainty of a speed that is worked out from another type


@dataclass(frozen=True)
class BootstrappedSpeeds:
    """An estimator (model.estimate), and a value that a policy keeps in its memory.

    The one GPU of the profile is the fewest tasks with which a job runs; so all is known of a rigid job. A
    job that has not run across nodes is taken to lose nothing there.
    """

    ran: Mapping[str, Ran] = field(default_factory=dict)  # by job

    @property
    def individual(self) -> bool:
        return True

    def observed(self, view: View) -> BootstrappedSpeeds:
        """With what the jobs that run now have measured on several GPUs; without jobs that have ended."""
        nodes, now = view.cluster.nodes, view.now
        ran = dict(self.ran)
        for job in view.running.values():
            least, _ = task_range(job.shape, job.traits)
            held = nodes_of(job.spots or ())
            kinds = {nodes[node].type.name for node in held}
            if len(kinds) != 1 or now - job.live_at < WARM_UP or not job.shape.exclusive:
                continue
            if sum(spot[1].bit_count() for spot in job.spots or ()) > least * job.shape.each:
                known, (kind,) = dict(ran.get(job.id, ())), kinds
                known[kind] = known.get(kind, False) or len(held) > 1
                ran[job.id] = tuple(sorted(known.items()))
        if ran.keys() - view.running.keys():
            active = view.running.keys() | {job.id for job in view.queue}
            ran = {name: known for name, known in ran.items() if name in active}
        return self if ran == self.ran else BootstrappedSpeeds(ran)

    def estimate(
        self, cluster: Cluster, job: JobView, tasks: int, type: str, nodes: int | None, batch: int | None
    ) -> Estimate:
        shape = job.shape
        if not may_run(shape, job.traits, tasks, type):
            return IMPOSSIBLE
        least, _ = task_range(shape, job.traits)
        if tasks == least:
            return DECLARED.estimate(cluster, job, tasks, type, nodes, batch)
        alone = DECLARED.estimate(cluster, job, least, type, None, batch)
        ran = known_on(dict(self.ran.get(job.id, ())), type)
        if not ran:
            return Estimate(alone.speed * tasks / least, ASSUMED)
        source = (
            type if type in ran else next((kind for kind, across in ran.items() if across), next(iter(ran)))
        )
        if nodes is None:
            nodes = fewest_nodes(cluster, shape.of(tasks))
        seen = ran[source]
        if not seen:
            nodes = min(nodes, fewest_nodes(cluster, shape.of(least)))
        there = DECLARED.estimate(cluster, job, tasks, source, nodes, batch).speed
        if source == type:
            return Estimate(there, KNOWN if seen or nodes == 1 else RATIO)
        base = DECLARED.estimate(cluster, job, least, source, None, batch).speed
        return Estimate(alone.speed * there / base if base else 0.0, RATIO)


def known_on(ran: dict[str, bool], type: str) -> dict[str, bool]:
    """The types whose scaling says something of this type: all on which the job has run."""
    return ran
