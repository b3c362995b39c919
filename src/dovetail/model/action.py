"""Orders from the core to the engine that runs the jobs. They are idempotent by job and epoch."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.model.grant import Spots, Terms


class Start(NamedTuple):
    """Start this job on these spots, all of which are free."""

    job: str
    epoch: int
    spots: Spots
    terms: Terms


class Stop(NamedTuple):
    """Checkpoint the job if it can, and stop it; answered by the event STOPPED."""

    job: str
    epoch: int
    why: str  # preempted | moved | node lost | cancelled


class Resize(NamedTuple):
    """Continue the job on these spots and terms; answered by RESIZED once the devices given up are free."""

    job: str
    epoch: int
    spots: Spots
    terms: Terms


class Answer(NamedTuple):
    """A decision for the user: refused, accepted (value: finished by then), demoted (value: new priority)."""

    job: str
    answer: str
    value: int | None
    why: str


class SetPower(NamedTuple):
    """Switch a node on or off."""

    node: str
    on: bool


class Rent(NamedTuple):
    """Rent a node from a provider or another owner, or give it back."""

    node: str
    keep: bool
    owner: str  # "" is the market


Action = Start | Stop | Resize | Answer | SetPower | Rent
