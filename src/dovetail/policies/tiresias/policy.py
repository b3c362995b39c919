"""Tiresias: short jobs first without knowing durations (Gu et al., NSDI 2019).

Jobs that have received little GPU-time go first. `tiresias-l` needs no information about jobs; `tiresias-g`
also knows how GPU-times are distributed, and orders each queue by how likely a job is to end soon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from dovetail.mechanisms.order.attained_service import attained_service
from dovetail.mechanisms.place.placement import Placement, packed, scattered
from dovetail.mechanisms.place.tensor_skew import by_tensor_skew
from dovetail.mechanisms.preempt.displacement import preemptive
from dovetail.mechanisms.preempt.full_ranking import SELECTIONS, Selection, ranked, selected_by_count
from dovetail.mechanisms.queue.discipline import Discipline
from dovetail.model.units import WHOLE, micros
from dovetail.model.view import JobView, Plan, Policy, View
from dovetail.policies.composed import Composed
from dovetail.policies.tiresias.gittins_index import Indices, LearnedSizes, with_ended, with_running
from dovetail.policies.tiresias.sticky_queues import QueueOrder, queue_order, queued_jobs

PLACEMENTS: dict[str, Placement] = {"skew": by_tensor_skew, "packed": packed, "scattered": scattered}


def tiresias_l(
    *,
    thresholds: Sequence[float] = (3250.0,),
    promote: float | None = None,
    quantum: float | None = 60.0,
    placement: Literal["skew", "packed", "scattered"] = "skew",
    service: Literal["gpu-time", "time"] = "gpu-time",
    queue_order: Literal["entry", "submit", "sticky"] = "entry",
    select: Literal["fit", "count"] = "fit",
) -> Policy:
    """Queues by attained GPU-time; no information about jobs is needed.

    A job is demoted at each of `thresholds` (GPU-seconds; plain seconds with `service="time"`), and returns
    to the first queue once it waited `promote` times as long as it ever ran. Inside a queue: by entry into
    it, by submission, or `sticky` (a waiting job never preempts a running job of the same queue).
    """
    order = attained_service(
        [micros(t) for t in thresholds],
        promote,
        service=service,
        within="submit" if queue_order == "submit" else "entry",
    )
    place = PLACEMENTS[placement]
    rounds = micros(quantum) if quantum else None
    if queue_order == "sticky":
        serve = in_sticky_queues(SELECTIONS[select])
    else:
        serve = selected_by_count(order) if select == "count" else preemptive(order)
    return Composed(order=order, serve=serve, place=place, quantum=rounds)


def in_sticky_queues(select: Selection) -> Discipline:
    """Queues that keep their order from one decision to the next (`sticky_queues`)."""

    def serve(view: View, place: Placement) -> Plan:
        jobs = queued_jobs(view, cast("QueueOrder", view.memory or ()))
        plan = select(view, place, jobs)
        plan.memory = queue_order(jobs)
        return plan

    return serve


def tiresias_g(
    *,
    samples: Sequence[float] = (),
    window: int = 1000,
    horizon: float | None = None,
    thresholds: Sequence[float] = (3250.0,),
    promote: float | None = None,
    quantum: float | None = 60.0,
    placement: Literal["skew", "packed", "scattered"] = "skew",
    select: Literal["fit", "count"] = "fit",
) -> Policy:
    """The queues of tiresias-l, and inside a queue the largest two-dimensional Gittins index first.

    The index of a job with s GPU-seconds of service is the largest over all x (or that at x = `horizon`) of
    P(S - s <= x | S > s) / E[min(S - s, x) | S > s], with S distributed as `samples`. Without samples the
    GPU-times of the last `window` jobs that ended are used; until a job has ended, a queue is in order of
    entry.

    Deviation: the index is computed at a hundred quantiles of the samples and is constant between them, so
    that the rank of a job changes only at known moments.
    """
    given = Indices.of([micros(s) for s in samples], micros(horizon) if horizon else None)
    learned_over = (window, micros(horizon) if horizon else None)
    return Composed(
        order=attained_service([micros(t) for t in thresholds], promote),
        serve=by_gittins_index(SELECTIONS[select], given if samples else None, *learned_over),
        place=PLACEMENTS[placement],
        quantum=micros(quantum) if quantum else None,
    )


def index_rank(index: Indices, job: JobView, now: int) -> tuple[int, float, int]:
    """Queue, then the largest index of the GPU-time received, then entry into the queue."""
    return (job.stage, -index.at(job.service_at(now)), job.stage_since)


def by_gittins_index(
    select: Selection, given: Indices | None, window: int, horizon: int | None
) -> Discipline:
    """Ranks all active jobs by `index_rank`. Without a given index it is learned from ended jobs."""

    def serve(view: View, place: Placement) -> Plan:
        known = cast("LearnedSizes | None", view.memory) or LearnedSizes()
        if given is None:
            known = with_ended(known, view, window, horizon)
        index, now = given or known.indices, view.now

        plan = select(view, place, ranked(view, lambda job: index_rank(index, job, now)))
        if given is None:
            plan.memory = with_running(known, view)
        if len(view.queue):
            plan.review_at = min(
                (
                    now + max(1, -(-(step - service) * WHOLE // job.held))
                    for job in view.running.values()
                    if job.held and (step := index.next_step(service := job.service_at(now))) is not None
                ),
                default=None,
            )
        return plan

    return serve
