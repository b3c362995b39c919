"""Tenants take turns: one line each in order of arrival, and whose head ranks first is asked next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from dovetail.model.view import JobView, Key, View


def turns(
    view: View, rank: Callable[[JobView], Key], *, strict: bool = False, without: Collection[str] = ()
) -> Iterator[JobView]:
    """Waiting jobs, each once. A head's rank is asked for anew every time, so it may follow the plan.

    With `strict` a head that does not start holds up its own line, and no other.
    """
    lines: dict[str, list[JobView]] = {}
    for job in sorted(view.queue, key=_arrival, reverse=True):
        if job.id not in without:
            lines.setdefault(job.tenant, []).append(job)
    while lines:
        line = min(lines.values(), key=lambda line: (rank(line[-1]), *_arrival(line[-1])))
        job = line.pop()
        yield job
        if not line or (strict and job.spots is None):
            del lines[job.tenant]


def _arrival(job: JobView) -> tuple[int, int]:
    return job.arrived_at, job.seq
