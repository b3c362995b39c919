"""Jobs that the quota of their tenant never lets start, found by asking the policy.

The meaning of a quota depends on the policy: one lets tenants borrow, another knows limits only, a third
ignores quotas. So the job is tried alone on an empty cluster. If a quota or a limit keeps it from starting
there, it would wait for ever.
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

OVER = frozenset(
    {"AssocGrpGRES", "QOSMaxGRESPerUser"}
)  # reasons of policies and the core for quotas and limits
MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class TooMuch:
    """A job that its tenant's quota, or one above it, never lets start."""

    tenant: str
    asked: float  # GPUs
    most: int  # GPUs that the tenant may hold
    above: tuple[str, ...]  # parent tenants, whose quotas and limits count as well

    @property
    def sentence(self) -> str:
        holds = f"tenant {self.tenant}{self._under} may hold {_gpus(self.most)} at most"
        return f"{holds}; it asks for {self.asked:g}"

    @property
    def refusal(self) -> str:
        """The message to the user that submits it."""
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
    """Answers for one cluster and one policy, each worked out once."""

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        self._cluster, self._policy = cluster, policy
        self._found: dict[tuple[str, str, Shape], TooMuch | None] = {}

    def too_much(self, job: Job) -> TooMuch | None:
        """Why a job can never start, if the quota of its tenant is the reason."""
        tenants: Mapping[str, object] = self._cluster.tenants
        if job.tenant not in tenants or not job.shape.load:
            return None
        key = (job.tenant, job.user, job.shape)
        if key not in self._found:
            if len(self._found) >= MOST_REMEMBERED:
                self._found.clear()
            self._found[key] = self._worked_out(job)
        return self._found[key]

    def _worked_out(self, job: Job) -> TooMuch | None:
        if self._may_start(job):
            return None
        low, high = 0, -(-job.shape.load // WHOLE)  # `low` GPUs may start, `high` may not
        while high - low > 1:
            middle = (low + high) // 2
            if self._may_start(replace(job, shape=gang(middle, job.shape.types))):
                low = middle
            else:
                high = middle
        above = tuple(name for name in self._cluster.line(job.tenant)[1:] if name in self._cluster.tenants)
        return TooMuch(job.tenant, job.shape.load / WHOLE, low, above)

    def _may_start(self, job: Job) -> bool:
        """Whether no quota keeps the job from starting on an empty cluster."""
        tenants = [self._cluster.tenants.get(name) for name in self._cluster.line(job.tenant)]
        limits = [tenant.limit for tenant in tenants if tenant is not None and tenant.limit is not None]
        if job.shape.load > min(limits, default=job.shape.load) * WHOLE:
            return False  # the core's own rule; some policies would start a part of it
        core = Core(self._cluster, self._policy)
        core.now = job.arrived_at
        try:
            core.handle(job.arrived_at, [(job.arrived_at, SUBMITTED, job.id, 0, job)])
        except Exception:  # a policy that fails refuses no job
            return True
        if job.id in core.running or job.id not in core.jobs:
            return True
        try:
            notes = core.notes()
        except Exception:
            return True
        return not any(note.job == job.id and note.word in OVER for note in notes)


def _gpus(count: float) -> str:
    return f"{count:g} GPU{'s' * (count != 1)}"
