"""The policy of a plane: its name, its options, and the object made of them.

An object is made once for each choice, which checks the options: no later step checks them again. A policy
may be a function in a file, so only admins and the command line of this machine choose one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dovetail.core.journal import Header
from dovetail.model.cluster import Cluster
from dovetail.model.code_files import names_file, whole_path
from dovetail.model.errors import BadOption, CannotLoad, UnknownName
from dovetail.model.view import Policy
from dovetail.policies.registry import made_policy


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
        return ChosenPolicy(self.name, self.options, made_policy(self.name, self.options))


DEFAULT_POLICY = NamedPolicy("dovetail", {})  # priorities, quotas, preemption; no job is starved
PLAIN_POLICY = NamedPolicy("backfill", {})  # first come first served, with backfilling; it stops no job
DEFAULT = "default"  # names the policy of a new plane


def named_policy(name: str, options: Mapping[str, Any]) -> NamedPolicy:
    """The policy that an admin names. A file is on the machine of the plane, and named by its whole path."""
    if name == DEFAULT:
        if options:
            raise BadOption("default includes its options; to set options, give the name of the policy")
        return DEFAULT_POLICY
    if names_file(name) and whole_path(name) != name:
        raise CannotLoad(f"{name} is not the whole path of a file on the machine of the plane; give that")
    return NamedPolicy(name, dict(options))


def reason_of(error: Exception) -> str:
    """Why a policy cannot be used, in one line."""
    if isinstance(error, UnknownName):
        return "it is not installed"
    return str(error) if isinstance(error, CannotLoad) else f"{type(error).__name__}: {error}"
