"""What `run` and `logs -f` say of a job that waits: one line, so that silence is not taken for a failure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dovetail.cli.outputs import note, plainly

if TYPE_CHECKING:
    from dovetail.client.client import Client
    from dovetail.client.documents import Job

SOON = 1.0  # seconds after which a job is said to wait


def until_started(client: Client, id: str, *, quiet: bool = False) -> Job:
    """Wait until a job has started or ended; if that takes longer than a moment, note why it waits."""
    began, pause = time.monotonic(), 0.05
    told: str | None = None
    while not (seen := client.job_info(id)).done and not seen.attempt:
        if not quiet and time.monotonic() - began > SOON and seen.reason != told:
            why = client.why(id)
            if why.state in ("pending", "held"):  # it may have started since
                told = seen.reason
                sentence = (why.sentence or told or "for resources").rstrip(".")
                note(plainly(f"{id} waits: {sentence}; see dovetail why {id}"))
        time.sleep(pause)
        pause = min(1.5 * pause, 1.0)
    return seen
