"""A policy made of replaceable parts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from dovetail.mechanisms.allocate.sizes import Allocate, as_asked
from dovetail.mechanisms.estimate.speeds import estimated
from dovetail.mechanisms.place.placement import Placement, packed
from dovetail.mechanisms.queue.discipline import Discipline, skip
from dovetail.mechanisms.resize.resizing import Resize, enact_sizes, rigid
from dovetail.mechanisms.share.sharing import Share, exclusive
from dovetail.model.estimate import Estimator
from dovetail.model.view import JobView, Order, Plan, View


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """The parts of a scheduler. A part that is left out works as in a plain queue of rigid jobs.

    With `order`, `serve` and `place` alone, jobs run as they asked to, and `serve` says which start. With
    `allocate`, `resize`, `share` or `estimate` the policy works out a size for each job, then starts, resizes
    and stops jobs to get there; `serve` is not used then.
    """

    order: Order  # which job goes first
    serve: Discipline = skip  # how far down the queue to look when the first job does not fit
    allocate: Allocate = as_asked  # how many tasks each job gets
    place: Placement = packed  # on which devices
    share: Share = exclusive  # which jobs use the same devices
    resize: Resize = rigid  # which running jobs grow and shrink
    estimate: Estimator | None = None  # how fast jobs run; None: as the view says, mostly as declared
    group: Callable[[JobView], Hashable] | None = None  # keeps jobs of one shape apart in the queue
    quantum: int | None = None  # decide at multiples of this time only
    _decide: Discipline = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sized = (self.allocate, self.share, self.resize, self.estimate) != (as_asked, exclusive, rigid, None)
        if sized and self.serve is not skip:
            raise ValueError("a policy with allocate, share, resize or estimate cannot have serve too")
        object.__setattr__(self, "_decide", self._by_sizes if sized else self.serve)

    def decide(self, view: View) -> Plan:
        return self._decide(view, self.place)

    def _by_sizes(self, view: View, place: Placement) -> Plan:
        known = None
        if self.estimate is not None:
            last = view.memory if isinstance(view.memory, type(self.estimate)) else self.estimate
            known = last.observed(view)
            view = estimated(view, known)
        sizes = self.resize(view, self.allocate(view))
        plan = view.draft()
        if known is not None:
            plan.memory = known  # a value: what was measured is kept with the policy's memory
        enact_sizes(view, plan, sizes, self.order, place, self.share)
        return plan
