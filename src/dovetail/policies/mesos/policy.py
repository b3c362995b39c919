"""Two-level scheduling by resource offers (Hindman et al., "Mesos", NSDI 2011).

The master does not know what frameworks want. It offers free resources to the framework with the smallest
dominant share, which accepts some of them for its own jobs, or declines. A framework is a tenant here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

from dovetail.mechanisms.fair.dominant_share import Holdings, held, tenant_of
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.queue.reviews import review_by
from dovetail.model.cluster import Cluster
from dovetail.model.job import Shape
from dovetail.model.units import micros
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.policies.mesos.offers import (
    Offer,
    as_offer,
    as_spots,
    contains,
    fewest_nodes,
    free_on,
    less,
    taken,
)


class Refusal(NamedTuple):
    """An offer that a framework declined: it wants none that holds no more than this, until then."""

    refused: Offer
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """Each round the offers of the last are answered, and what is free then is offered."""

    quantum: int
    filter: int
    reserved: Mapping[str, int]  # GPUs that only this framework is offered
    split: bool
    order: Order = arrival
    group: Callable[[JobView], Hashable] = field(default=tenant_of)

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        holdings = Holdings(view)
        refusals = dict(cast("Mapping[str, Refusal]", view.memory or {}))
        self._answer(view, plan, holdings, refusals)
        offered = self._offer(view, plan, holdings, refusals)
        if offered:
            review_by(plan, view.now + self.quantum)
        plan.memory = refusals
        return plan

    def _answer(self, view: View, plan: Plan, holdings: Holdings, refusals: dict[str, Refusal]) -> None:
        """Frameworks start their jobs, in order, on what they are offered, and decline the rest."""
        room = plan.room
        offers: dict[str, Offer] = {}
        for owner, (spots, _) in list(view.holds.items()):
            if owner.startswith("offer "):
                plan.release(owner)
                offers[owner.split(" to ", 1)[1]] = {
                    node: free for node, free in as_offer(spots).items() if room.is_open(node)
                }
        if not offers:
            return
        for job in view.queue.walk():
            offer = offers.get(job.tenant)
            if offer is None:
                plan.deny(job, "Resources", f"no offer to {job.tenant}")
                continue
            spots_ = taken(view.cluster, job.shape, offer, self._nodes(view.cluster, job.shape))
            if spots_ is None:
                plan.deny(job, "Resources", f"{job.tenant} declined: the offer is too small")
            elif plan.start(job, spots_):
                offers[job.tenant] = less(offer, spots_)
                holdings.add(job.tenant, held(spots_))
        for name, rest in offers.items():
            refusals[name] = Refusal(rest, view.now + self.filter)

    def _offer(self, view: View, plan: Plan, holdings: Holdings, refusals: dict[str, Refusal]) -> bool:
        """Offer all free resources to the first framework by share that has not just declined them."""
        waiting: dict[str, list[Shape]] = {}
        for shape in view.queue.shapes():
            for name in view.queue.groups(shape):
                waiting.setdefault(cast("str", name), []).append(shape)
        owners = self._reservations(view.cluster)
        left = dict.fromkeys(range(len(view.cluster.nodes)))
        gpus_only = all(shape.each for shapes in waiting.values() for shape in shapes)
        made = False
        for name in sorted(waiting, key=lambda n: (holdings.dominant(n), n)):
            offer = free_on(plan.room, [n for n in left if owners.get(n, name) == name], gpus_only=gpus_only)
            refusal = refusals.get(name)
            if not offer:
                continue
            if refusal is not None and contains(refusal.refused, offer):
                # The same offer again: not before its time, and not if it would be declined again.
                useful = any(
                    taken(view.cluster, shape, offer, self._nodes(view.cluster, shape))
                    for shape in waiting[name]
                )
                if useful and refusal.until > view.now:
                    review_by(plan, refusal.until)
                if not useful or refusal.until > view.now:
                    continue
            refusals.pop(name, None)
            plan.hold(f"offer {view.number} to {name}", as_spots(offer), view.now + 2 * self.quantum)
            for node in offer:
                del left[node]
            made = True
        return made

    def _nodes(self, cluster: Cluster, shape: Shape) -> int:
        return len(cluster.nodes) if self.split else fewest_nodes(cluster, shape)

    def _reservations(self, cluster: Cluster) -> dict[int, str]:
        """Whole nodes, from the last one back, until each framework has its GPUs."""
        owners: dict[int, str] = {}
        nodes = list(enumerate(cluster.nodes))
        for name, gpus in sorted(self.reserved.items()):
            left = gpus
            while left > 0 and nodes:
                number, node = nodes.pop()
                owners[number] = name
                left -= node.gpus
        return owners


def mesos_drf(
    *,
    interval: float = 1.0,
    decline: float = 5.0,
    reserve: Mapping[str, float] | None = None,
    placement: Literal["packed", "scattered"] = "packed",
) -> Policy:
    """Offers go to the framework with the smallest weighted dominant share; it accepts what fits its jobs.

    `interval` is the time between offers, `decline` the time for which a declined offer is not repeated, in
    seconds; `reserve` gives GPUs of whole nodes to one framework only. Deviations: a decline covers the offer
    as a whole and not each node by itself, or gangs over several nodes would never be offered these nodes
    together; an offer that is known to be declined again is not repeated.
    """
    return Offers(
        quantum=micros(interval),
        filter=micros(decline),
        reserved={name: int(gpus) for name, gpus in (reserve or {}).items()},
        split=placement == "scattered",
    )
