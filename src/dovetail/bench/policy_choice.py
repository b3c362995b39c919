"""Policies as users choose them: a name, and options as text.

A choice is checked once, where it is read; after that it is trusted.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.model.errors import BadOption
from dovetail.model.registry import read_option
from dovetail.model.view import Policy
from dovetail.policies.registry import POLICIES, TRUSTED_POLICIES, made_policy


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy with its options; `label` is its name in tables."""

    policy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    typed: Mapping[str, str] = field(default_factory=dict)  # the options as the user wrote them

    @property
    def label(self) -> str:
        said = self.typed or self.options
        return " ".join([self.policy, *(f"{name}={value}" for name, value in said.items())])


def read_policy_choice(name: str, typed: Mapping[str, str], *, files: bool = False) -> PolicyChoice:
    """Check the name and the options of a policy as typed, before anything runs.

    With `files` the name may be a function in a file, which is run: not for names that others sent.
    """
    known = (TRUSTED_POLICIES if files else POLICIES).options(name)
    options: dict[str, Any] = {}
    for option, text in typed.items():
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known) or 'none'}"
            raise BadOption(f"policy {name} has no option {option!r}; {hint}")
        options[option] = read_option("policy", name, known[option], text)
    choice = PolicyChoice(name, options, dict(typed))
    make_policy(choice)
    return choice


def make_policy(choice: PolicyChoice) -> Policy:
    """Make a policy that was checked; a value that its factory refuses is a usage error."""
    return made_policy(choice.policy, choice.options)
