"""For which jobs a job was preempted, as the core said it, and how much of that a caller may know.

Jobs of tenants that the caller sees are named, with their users. Of others it is told only that they are jobs
of another tenant, and whether their priority was higher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.control.records import Record

MOST_KEPT = 20  # jobs that one preemption is recorded with
MOST_TOLD = 3  # of these, in a sentence
ENDS = ("stopped", "lost")  # causes of an attempt's end that a preemption explains

Kept = Sequence[Mapping[str, Any]]  # as in the store
Sees = Callable[[str], bool]  # whether jobs of a tenant may be named


def kept(record: Record, by: Sequence[str], records: Mapping[str, Record]) -> list[dict[str, Any]]:
    """What is recorded of a preemption: the jobs in whose favour, as they are now."""
    others = [records[name] for name in by[:MOST_KEPT] if name in records]
    return [
        {
            "job": other.id,
            "tenant": other.tenant,
            "user": other.user,
            "higher_priority": other.priority > record.priority,
        }
        for other in others
    ]


def told(preempted_by: Kept | None, sees: Sees) -> list[dict[str, Any]]:
    """The same for a caller: jobs that it may not see are one entry without a name."""
    known = preempted_by or ()
    shown = [dict(one) for one in known if sees(one["tenant"])]
    hidden = [one for one in known if not sees(one["tenant"])]
    if hidden:
        higher = all(one["higher_priority"] for one in hidden)
        shown.append({"job": None, "tenant": None, "user": None, "higher_priority": higher})
    return shown


def for_which_jobs(preempted_by: Kept | None, sees: Sees) -> str:
    """`job k3v9q2 of bob`: the jobs of a preemption for a sentence; "" if there are none."""
    found = told(preempted_by, sees)
    names = [f"job {one['job']} of {one['user']}" for one in found if one["job"] is not None]
    parts = names[:MOST_TOLD]
    if len(names) > MOST_TOLD:
        parts.append(f"{len(names) - MOST_TOLD} more")
    if found and found[-1]["job"] is None:
        higher = " with higher priority" if found[-1]["higher_priority"] else ""
        parts.append(f"a job of another tenant{higher}")
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
