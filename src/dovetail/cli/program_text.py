"""What a job runs, for people: its command, its folder and its environment."""

from __future__ import annotations

import shlex

from dovetail.cli.outputs import plainly
from dovetail.cli.tables import Raw


def program_facts(raw: Raw) -> list[tuple[str, str]]:
    """A line for the command, the folder and each variable. A longer script follows as `script_text`.

    Variables that the client passes on by itself, such as PATH, are long and alike for all jobs: see JSON.
    """
    from dovetail.client.client import PASSED_ON

    lines = _script(raw)
    more = f" ... ({len(lines)} lines, see below)" if len(lines) > 1 else ""
    facts = [("runs", f"{lines[0]}{more}" if lines else "-"), ("in", str(raw.get("workdir") or "-"))]
    for name, value in (raw.get("env") or {}).items():
        if name in PASSED_ON:
            continue
        label = "with" if facts[-1][0] == "in" else ""
        facts.append((label, f"{name}={value}"))
    return facts


def script_text(raw: Raw) -> str:
    """A script of several lines, indented; empty for a command of one line."""
    lines = _script(raw)
    return "\n".join(f"  {plainly(line)}".rstrip() for line in lines) if len(lines) > 1 else ""


def _script(raw: Raw) -> list[str]:
    if raw.get("command"):
        return [shlex.join(raw["command"])]
    return [line for text in (raw.get("setup"), raw.get("run")) for line in (text or "").strip().splitlines()]
