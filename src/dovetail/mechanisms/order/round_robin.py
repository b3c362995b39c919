"""Round robin between tenants: one queue each in order of arrival; the best-ranked head is served next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from dovetail.model.view import JobView, Key, View


def round_robin(
    view: View, rank: Callable[[JobView], Key], *, strict: bool = False, without: Collection[str] = ()
) -> Iterator[JobView]:
    """Waiting jobs, each once. The rank of a head is computed each time, so it may follow the plan.

    With `strict` a head that does not start blocks the rest of its own tenant's queue, and no other.
    """
    queues: dict[str, list[JobView]] = {}
    for job in sorted(view.queue, key=_arrival, reverse=True):
        if job.id not in without:
            queues.setdefault(job.tenant, []).append(job)
    while queues:
        queue = min(queues.values(), key=lambda queue: (rank(queue[-1]), *_arrival(queue[-1])))
        job = queue.pop()
        yield job
        if not queue or (strict and job.spots is None):
            del queues[job.tenant]


def _arrival(job: JobView) -> tuple[int, int]:
    return job.arrived_at, job.seq
