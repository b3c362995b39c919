"""E-LAS: attained service, read together with the progress that a job reports (Sultana et al., ICPP 2020)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from dovetail.mechanisms.census import by_fit, ranked
from dovetail.mechanisms.order import arrival
from dovetail.mechanisms.place import Place, packed
from dovetail.mechanisms.progress import extrapolated_service
from dovetail.model.units import micros
from dovetail.model.view import JobView, Order, Plan, Policy, View


def e_las(*, period: float = 60.0, hysteresis: float = 0.1) -> Policy:
    """Least service left first, as far as a job's epochs tell; how long it takes need not be known.

    With s GPU-seconds behind it and a share r of its epochs done, a job ranks by s (1 - r) / r; before its
    first epoch ends, by s. Who waits displaces who runs if it ranks lower by more than `hysteresis`.
    Decisions are made every `period` seconds.

    The key is reconstructed: the paper says that both quantities are combined.
    """
    return Elas(quantum=micros(period), hysteresis=hysteresis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elas:
    """Ranks all active jobs at every period."""

    quantum: int | None
    hysteresis: float
    place: Place = packed
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None

    def decide(self, view: View) -> Plan:
        now = view.now

        def rank(job: JobView) -> float:
            # A runner counts as that much nearer to its end, so nobody is displaced for less.
            favour = 1.0 if job.spots is None else 1.0 - self.hysteresis
            return extrapolated_service(job, now) * favour

        plan = by_fit(view, self.place, ranked(view, rank))
        if len(view.queue) and self.quantum is not None:
            plan.review_at = now + self.quantum  # ranks change as jobs run
        return plan
