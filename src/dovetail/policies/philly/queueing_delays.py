"""What kept jobs waiting in a run: their tenant's quota, or the lack of a good place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.model.view import View


@dataclass(slots=True)
class QueueingDelays:
    """The time before each job's first start, by cause; call `watch` after every step of a run.

    Fair-share delay: the tenant would be over its quota. Fragmentation delay: it would not, and yet no place
    was good enough. (The two causes of Jeon et al., ATC 2019, section 3.1.)
    """

    quota: Mapping[str, float]  # milli-GPUs by tenant; a tenant that is not listed has no quota
    fair_share: dict[str, int] = field(default_factory=dict)
    fragmentation: dict[str, int] = field(default_factory=dict)
    _at: int = 0
    _waiting: list[tuple[str, bool]] = field(default_factory=list)

    def watch(self, view: View) -> None:
        for job, over in self._waiting:
            causes = self.fair_share if over else self.fragmentation
            causes[job] = causes.get(job, 0) + view.now - self._at
        self._at = view.now
        self._waiting = [
            (job.id, view.used.get(job.tenant, 0) + job.shape.load > self.quota.get(job.tenant, float("inf")))
            for job in view.queue
            if job.first_start is None
        ]
