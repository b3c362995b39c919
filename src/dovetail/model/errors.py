"""All errors of Dovetail, as one tree.

    DovetailError
    ├── InputError            invalid input: exit code 2
    │   ├── TraceError        a trace file cannot be read as asked
    │   ├── ClusterError      a cluster cannot be built as described
    │   ├── UnknownName       no such policy, trace, engine ...
    │   ├── BadOption         an unknown option, or a value that it does not accept
    │   ├── CannotLoad        a plug-in or a file with code that cannot be loaded
    │   ├── NeverFits         a job that does not fit even the empty cluster
    │   └── JournalError      a journal that is damaged, or does not hold what was asked for
    ├── PlanError             a plan that is not possible: a bug in the policy
    ├── PolicyError           a policy raised, or its plan was refused; the state is as it was before
    └── ReplayMismatch        the same events gave other actions: a bug in the core, or another policy

Each message says what was asked, what was found, and what to do next, in one line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class DovetailError(Exception):
    """An error with a message for users."""


class InputError(DovetailError):
    """The input is not valid."""


class TraceError(InputError):
    """A trace cannot be read; names the file and the line."""

    def __init__(self, file: str, line: int | None, problem: str, remedy: str = "") -> None:
        where = file if line is None else f"{file}, line {line}"
        super().__init__(f"{where}: {problem}" + (f"; {remedy}" if remedy else ""))


class ClusterError(InputError):
    """A description that is not of a valid cluster."""


class UnknownName(InputError):
    """A name that is not registered."""

    def __init__(self, kind: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3)
        if near:
            hint = f"did you mean {' or '.join(near)}?"
            hint += " see dovetail policies" if kind == "policy" else ""
        else:
            hint = f"known: {', '.join(names)}" + (f"; {remedy}" if remedy else "")
        super().__init__(f"no {kind} is named {name!r}; {hint}")


class BadOption(InputError):
    """An unknown option, or a value that it does not accept."""


class CannotLoad(InputError):
    """A plug-in or a file with code that cannot be loaded."""


class NeverFits(InputError):
    """A job that would wait for ever: it does not fit even the empty cluster."""


class JournalError(InputError):
    """A journal that cannot be read, or does not hold what was asked for."""


class PlanError(DovetailError):
    """A plan that breaks a rule of the cluster."""


class PolicyError(DovetailError):
    """A policy raised while it decided, or returned a plan that was refused.

    Nothing of its plan was enacted, and the core can be called again. `step` holds the events that were
    applied before the policy was asked, and the actions that follow from these alone: record and perform it
    like any other. `__cause__` is the policy's own exception.
    """

    def __init__(self, step: Any, cause: Exception) -> None:
        self.step = step
        where = f"step {step.number}, t={step.now / 1e6:.10g} s"
        super().__init__(f"the policy failed at {where}: {type(cause).__name__}: {cause}")


class ReplayMismatch(DovetailError):
    """Replaying a step gave other actions than the journal holds."""
