"""Tiresias: short jobs first though nobody knows their length (Gu et al., NSDI 2019).

A job is young until it has had so much GPU-time, whatever its length; the young go first. `tiresias-l`
needs to know nothing of a job; `tiresias-g` also knows how GPU-times are distributed, and orders a queue by
how soon a job with so much behind it is likely to be done.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from dovetail.mechanisms.census import SELECTS, Select, choose_by_count, ranked
from dovetail.mechanisms.gittins import Indices, Learned, learn, observed
from dovetail.mechanisms.las import Standing, attained_service, left_standing, standing
from dovetail.mechanisms.place import Place, packed, scattered
from dovetail.mechanisms.preempt import preemptive
from dovetail.mechanisms.skew import by_skew
from dovetail.model.units import WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.policies.composed import Composed

PLACEMENTS: dict[str, Place] = {"skew": by_skew, "packed": packed, "scattered": scattered}


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
    """Queues by attained GPU-time; nothing need be known of a job.

    A job is demoted at each of `thresholds` (GPU-seconds; plain seconds with `service="time"`), and starts
    again at the top once it waited `promote` times as long as it ever ran. Inside a queue: by entry into it,
    by submission, or `sticky` (nobody who runs is displaced by one who waits in the same queue).
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
        return Sticky(order=order, place=place, select=SELECTS[select], quantum=rounds)
    serve = choose_by_count(order) if select == "count" else preemptive(order)
    return Composed(order=order, serve=serve, place=place, quantum=rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sticky:
    """Queues that are lists: after each decision those who run stand before those who wait.

    The authors' simulator does this. Who runs is safe from all of its own queue, and who is displaced by a
    higher queue is the first of its own to come back.
    """

    order: Order
    place: Place
    select: Select
    quantum: int | None = None
    group: Callable[[JobView], Hashable] | None = None

    def decide(self, view: View) -> Plan:
        jobs = standing(view, cast("Standing", view.memory or ()))
        plan = self.select(view, self.place, jobs)
        plan.memory = left_standing(jobs)
        return plan


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

    The index of a job that has had s GPU-seconds is the largest over all x (or that at x = `horizon`) of
    P(S - s <= x | S > s) / E[min(S - s, x) | S > s], with S distributed as `samples`. Without samples the
    GPU-times of the last `window` jobs that ended are taken; until one has, a queue is in order of entry.

    Deviation: the index is worked out at a hundred quantiles of the samples and kept from one to the next, so
    that a job's place changes at moments that are known, and not at every one of them.
    """
    given = Indices.of([micros(s) for s in samples], micros(horizon) if horizon else None)
    return Gittins(
        order=attained_service([micros(t) for t in thresholds], promote),
        place=PLACEMENTS[placement],
        select=SELECTS[select],
        quantum=micros(quantum) if quantum else None,
        given=given if samples else None,
        window=window,
        horizon=micros(horizon) if horizon else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gittins:
    """Queue, then index, then entry into the queue."""

    order: Order
    place: Place
    select: Select
    quantum: int | None
    given: Indices | None
    window: int
    horizon: int | None
    group: Callable[[JobView], Hashable] | None = None

    def decide(self, view: View) -> Plan:
        known = cast("Learned | None", view.memory) or Learned()
        if self.given is None:
            known = learn(known, view, self.window, self.horizon)
        index, now = self.given or known.indices, view.now

        def rank(job: JobView) -> tuple[int, float, int]:
            return (job.stage, -index.at(job.service_at(now)), job.turned_at)

        plan = self.select(view, self.place, ranked(view, rank))
        if self.given is None:
            plan.memory = observed(known, view)
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
