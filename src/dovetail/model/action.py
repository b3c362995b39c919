"""Orders from the core to whatever runs the jobs. An engine performs them idempotently by job and epoch."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.model.grant import Spots, Terms


class Start(NamedTuple):
    """Run this job on these spots: every one of them is free by now."""

    job: str
    epoch: int
    spots: Spots
    terms: Terms


class Stop(NamedTuple):
    """Save what can be saved and let go; answered by `stopped`."""

    job: str
    epoch: int
    why: str  # preempted | moved | node lost | cancelled


class Resize(NamedTuple):
    """Go on with these spots and terms; answered by `resized` once what was given up is free."""

    job: str
    epoch: int
    spots: Spots
    terms: Terms


class Answer(NamedTuple):
    """A word to the user: refused, accepted (by when it will be done), demoted (to which priority)."""

    job: str
    answer: str
    value: int | None
    why: str


class SetPower(NamedTuple):
    """Switch a node on or off."""

    node: str
    on: bool


class Rent(NamedTuple):
    """Take a node from a provider or another owner, or give it back."""

    node: str
    keep: bool
    owner: str  # "" is the market


Action = Start | Stop | Resize | Answer | SetPower | Rent
