"""Policies as people ask for them: a name, and options as text."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from dovetail.bench.compare import Entrant
from dovetail.model.errors import BadOption
from dovetail.model.registry import read_option
from dovetail.model.view import Policy
from dovetail.policies.table import POLICIES


def read_entrant(name: str, typed: Mapping[str, str]) -> Entrant:
    """A policy and its options as typed; both are checked here, before anything runs."""
    known = POLICIES.options(name)
    options: dict[str, Any] = {}
    for option, text in typed.items():
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known) or 'none'}"
            raise BadOption(f"policy {name} has no option {option!r}; {hint}")
        options[option] = read_option("policy", name, known[option], text)
    entrant = Entrant(name, options, dict(typed))
    make_policy(entrant)
    return entrant


def make_policy(entrant: Entrant) -> Policy:
    """The policy; a value its factory refuses is the user's mistake."""
    try:
        return POLICIES.make(entrant.policy, **entrant.options)
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError) as error:
        raise BadOption(f"policy {entrant.label}: {error}; see dovetail policies {entrant.policy}") from None
