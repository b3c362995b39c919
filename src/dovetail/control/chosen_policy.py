"""The policy of a plane: its name, its options, and the object made of them.

An object is made once for each choice, which checks the options: no later step checks them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dovetail.core.journal import Header
from dovetail.model.cluster import Cluster
from dovetail.model.view import Policy
from dovetail.policies.registry import POLICIES


@dataclass(frozen=True, slots=True)
class ChosenPolicy:
    """A policy, and the name and options that it was made from."""

    name: str
    options: Mapping[str, Any]
    policy: Policy

    @property
    def named(self) -> NamedPolicy:
        return NamedPolicy(self.name, self.options)

    def header(self, cluster: Cluster, seed: int) -> Header:
        """The header of an era in which it decides."""
        return Header(cluster, self.name, self.options, seed)


class NamedPolicy(NamedTuple):
    """A policy by name, which may be one that cannot be made (any more)."""

    name: str
    options: Mapping[str, Any]

    def make(self) -> ChosenPolicy:
        """The policy. An unknown name, an unknown option or a wrong value is an InputError."""
        return ChosenPolicy(self.name, self.options, POLICIES.make(self.name, **self.options))


DEFAULT_POLICY = NamedPolicy("kueue", {"whole": True, "score": "pack"})  # priorities, quotas, preemption
PLAIN_POLICY = NamedPolicy("backfill", {})  # first come first served, with backfilling; it stops no job
