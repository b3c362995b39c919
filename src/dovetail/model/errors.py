"""Every mistake Dovetail reports, as one tree.

    DovetailError
    ├── InputError            the question is wrong: exit code 2
    │   ├── TraceError        a trace file cannot be read as asked
    │   ├── ClusterError      a cluster cannot be built as described
    │   ├── UnknownName       no such policy, trace, engine ...
    │   ├── BadOption         an option nobody knows, or a value it cannot take
    │   ├── NeverFits         a job that the empty cluster could not hold
    │   └── JournalError      a journal that is broken, or lacks what was asked
    ├── PlanError             a policy planned what cannot be: a bug in that policy
    └── ReplayMismatch        the same events gave other actions: a bug in the core or a changed policy

Each message says what was asked, what was found, and what to do next, in one line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DovetailError(Exception):
    """A mistake with a message for a person."""


class InputError(DovetailError):
    """What was asked cannot be answered."""


class TraceError(InputError):
    """A trace cannot be read; names the file and the line."""

    def __init__(self, file: str, line: int | None, problem: str, remedy: str = "") -> None:
        where = file if line is None else f"{file}, line {line}"
        super().__init__(f"{where}: {problem}" + (f"; {remedy}" if remedy else ""))


class ClusterError(InputError):
    """A cluster description that describes no cluster."""


class UnknownName(InputError):
    """A name that stands in no table."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"no {kind} is named {name!r}; {hint}")


class BadOption(InputError):
    """An option that is not taken, or not with that value."""


class NeverFits(InputError):
    """A job that would wait for ever."""


class JournalError(InputError):
    """A journal that cannot be read, or does not hold what was asked."""


class PlanError(DovetailError):
    """A plan that breaks a rule of the cluster."""


class ReplayMismatch(DovetailError):
    """Replaying a step gave other actions than the journal holds."""
