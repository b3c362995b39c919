"""`dovetail replay`: one step of a run, replayed from its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.explain import JournalArgument

if TYPE_CHECKING:
    from dovetail.core.core import Core
    from dovetail.model.action import Action
    from dovetail.model.event import Event

MOST_LINES = 40


def replay(
    journal: JournalArgument,
    at: Annotated[int, typer.Option(metavar="N", min=1, help="The step's number.", show_default=False)],
) -> None:
    """Replay a run up to a step, and show that step.

    Every step before it is compared with the journal; a difference is an error.

    \b
    dovetail replay run.jsonl --at 41
    """
    from dovetail.cli.explain import maker
    from dovetail.cli.outputs import count, say
    from dovetail.core.replay import core_at
    from dovetail.model.units import seconds, spoken

    core, step = core_at(journal, maker, at)
    asked = (
        f"the policy decided, {count(len(step.actions), 'action')}"
        if step.decided
        else "the policy was not asked: it decides again when a waiting job may start, or at its next round"
    )
    say(
        f"step {step.number} at t={seconds(step.now):.10g} s ({spoken(step.now)}): "
        f"{count(len(step.events), 'event')}; {asked}"
    )
    say()
    _listed("happened", [_event(event) for event in step.events])
    _listed("done", [_action(core, action) for action in step.actions])
    say(
        f"then  {len(core.running):,} running, {len(core.queue):,} waiting, "
        f"{core.room.free_gpus:,} of {core.cluster.gpus:,} GPUs free"
    )
    say()
    say("the replay agrees with the journal")
    say(f"why does a job wait?  dovetail explain {journal} JOB --at {step.number}")


def _listed(head: str, lines: list[str]) -> None:
    from dovetail.cli.outputs import say

    for line in lines[:MOST_LINES]:
        say(f"  {head:8}  {line}")
    if len(lines) > MOST_LINES:
        say(f"  {head:8}  and {len(lines) - MOST_LINES:,} more")
    if lines:
        say()


def _event(event: Event) -> str:
    from dovetail.cli.outputs import plainly
    from dovetail.model.event import SUBMITTED, Kind

    _, kind, subject, epoch, fact = event
    name = Kind(kind).name.lower().replace("_", " ")
    if kind == SUBMITTED:
        return f"{name} {plainly(subject)}, {fact.shape.gpus} GPU{'s' * (fact.shape.gpus != 1)}"
    told = f" ({fact})" if fact is not None else ""
    return f"{name} {plainly(subject)}" + (f", start {epoch}" if epoch else "") + told


def _action(core: Core, action: Action) -> str:
    from dovetail.cli.outputs import plainly
    from dovetail.model.action import Answer, Rent, Resize, SetPower, Stop
    from dovetail.model.action import Start as Started

    if isinstance(action, Started | Resize):
        spots = ", ".join(
            f"{core.cluster.nodes[node].name} ({devices.bit_count()})" for node, devices, *_ in action.spots
        )
        verb = "start" if isinstance(action, Started) else "resize"
        return f"{verb} {plainly(action.job)} on {spots}"
    if isinstance(action, Stop):
        return f"stop {plainly(action.job)}: {action.why}"
    if isinstance(action, Answer):
        return f"{action.answer} {plainly(action.job)}: {action.why}"
    if isinstance(action, SetPower):
        return f"switch {action.node} {'on' if action.on else 'off'}"
    if isinstance(action, Rent):
        return f"{'rent' if action.keep else 'return'} {action.node}"
    raise TypeError(f"no action {action}")
