"""The most that a tenant may ever hold, found by asking the policy itself.

What a quota means is the policy's affair: one lends and borrows, another knows limits only, a third takes no
notice. So it is tried: one job alone on an empty cluster, with nobody else in the queue. Who is sent away
there for a quota or a limit is sent away always, and would wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dovetail.core.core import Core
from dovetail.model.cluster import Cluster
from dovetail.model.event import SUBMITTED
from dovetail.model.job import Job, Shape, gang
from dovetail.model.units import WHOLE
from dovetail.model.view import Policy

OVER = frozenset({"AssocGrpGRES", "QOSMaxGRESPerUser"})  # what policies and the core say of quotas and limits
MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class TooMuch:
    """A job that its tenant's quota, or one above it, never lets start."""

    tenant: str
    asked: float  # GPUs
    most: int  # that it may hold
    above: tuple[str, ...]  # whose quotas and limits count as well

    @property
    def sentence(self) -> str:
        holds = f"tenant {self.tenant}{self._under} may hold {_gpus(self.most)} at most"
        return f"{holds}; it asks for {self.asked:g}"

    @property
    def refusal(self) -> str:
        """For who submits it."""
        return (
            f"the job asks for {_gpus(self.asked)}, and tenant {self.tenant}{self._under} may hold "
            f"{self.most} at most; ask for fewer, or let an administrator raise its quota, borrow or limit "
            f"(dovetail tenant set {self.tenant})"
        )

    @property
    def remedy(self) -> str:
        return (
            "cancel it and ask for fewer GPUs, or let an administrator raise the quota, borrow or limit "
            f"(dovetail tenant set {self.tenant})"
        )

    @property
    def _under(self) -> str:
        return f" (under {', '.join(self.above)})" if self.above else ""


class Quotas:
    """What was found on one cluster under one policy."""

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        self._cluster, self._policy = cluster, policy
        self._found: dict[tuple[str, str, Shape], TooMuch | None] = {}

    def too_much(self, job: Job) -> TooMuch | None:
        """Why it can never start, if its tenant's quota is the reason."""
        tenants: Mapping[str, object] = self._cluster.tenants
        if job.tenant not in tenants or not job.shape.load:
            return None
        key = (job.tenant, job.user, job.shape)
        if key not in self._found:
            if len(self._found) >= MOST_REMEMBERED:
                self._found.clear()
            self._found[key] = self._looked(job)
        return self._found[key]

    def _looked(self, job: Job) -> TooMuch | None:
        if self._lets(job):
            return None
        low, high = 0, -(-job.shape.load // WHOLE)  # `low` is let in, `high` is not
        while high - low > 1:
            middle = (low + high) // 2
            if self._lets(replace(job, shape=gang(middle, job.shape.types))):
                low = middle
            else:
                high = middle
        above = tuple(name for name in self._cluster.line(job.tenant)[1:] if name in self._cluster.tenants)
        return TooMuch(job.tenant, job.shape.load / WHOLE, low, above)

    def _lets(self, job: Job) -> bool:
        """Whether no quota keeps it from an empty cluster."""
        tenants = [self._cluster.tenants.get(name) for name in self._cluster.line(job.tenant)]
        limits = [tenant.limit for tenant in tenants if tenant is not None and tenant.limit is not None]
        if job.shape.load > min(limits, default=job.shape.load) * WHOLE:
            return False  # the core's own rule; some policies would start a part of it
        core = Core(self._cluster, self._policy)
        core.now = job.arrived_at
        core.handle(job.arrived_at, [(job.arrived_at, SUBMITTED, job.id, 0, job)])
        if job.id in core.running or job.id not in core.jobs:
            return True
        return not any(note.job == job.id and note.word in OVER for note in core.notes())


def _gpus(count: float) -> str:
    return f"{count:g} GPU{'s' * (count != 1)}"
