"""Policies as users choose them: a name, and options as text."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.model.errors import BadOption
from dovetail.model.registry import read_option
from dovetail.model.view import Policy
from dovetail.policies.registry import POLICIES


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


def read_policy_choice(name: str, typed: Mapping[str, str]) -> PolicyChoice:
    """Check the name and the options of a policy as typed, before anything runs."""
    known = POLICIES.options(name)
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
    """Make the policy; a value that its factory refuses is a usage error."""
    try:
        return POLICIES.make(choice.policy, **choice.options)
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError) as error:
        raise BadOption(f"policy {choice.label}: {error}; see dovetail policies {choice.policy}") from None
