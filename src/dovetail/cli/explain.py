"""`dovetail explain`: why a job waited, from the journal of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dovetail.core.explain import Reason
    from dovetail.core.journal import Header
    from dovetail.model.view import Policy

JournalArgument = Annotated[
    Path, typer.Argument(metavar="JOURNAL", help="A file made with simulate --journal.", show_default=False)
]


def explain(
    journal: JournalArgument,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)],
    at: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only at this step.", show_default=False)
    ] = None,
) -> None:
    """Say why a job waited, each time the reason changed.

    The run is replayed, and at each step the policy itself says what keeps the job from starting.

    \b
    dovetail explain run.jsonl train-17
    """
    from dovetail.cli.outputs import aligned, say
    from dovetail.core.replay import reasons
    from dovetail.model.units import spoken

    found = [(step.number, step.now, reason) for step, reason in reasons(journal, maker, job, at)]
    if not found:
        from dovetail.model.errors import JournalError

        when = "" if at is None else f" at step {at}"
        raise JournalError(f"{journal}: job {job!r} neither waited nor ran{when}; leave out --at to see when")
    waits = [reason.word != "Running" for _, _, reason in found]
    if at is not None:
        say(_named(found[0][2]))
    elif all(waits):
        say(f"{job} never started; its last reason was {found[-1][2].word}")
    else:
        nexts = (now for _, now, _ in found[1:])
        spans = [(now, then, reason.word) for then, (_, now, reason) in zip(nexts, found, strict=False)]
        waited = sum(then - now for now, then, word in spans if word != "Running")
        words = dict.fromkeys(reason.word for _, _, reason in found if reason.word != "Running")
        again = " and still waits at the end of the journal" if waits[-1] else ""
        say(f"{job} waited {spoken(waited)}{again}" + (f": {', '.join(words)}" if words else ""))
    say()
    rows = [["step", "time", "reason", ""]]
    rows += [[str(number), spoken(now), reason.word, reason.sentence] for number, now, reason in found]
    say(aligned(rows, left=(2, 3)))
    say()
    say(f"see a step:  dovetail replay {journal} --at {found[0][0]}")


def maker(header: Header) -> Policy:
    """The policy that wrote a journal."""
    from dovetail.policies.registry import made_policy

    return made_policy(header.policy, header.options)


def _named(reason: Reason) -> str:
    return f"{reason.job}: {reason.word}"
