"""What a job runs, as documents show it: its command, its folder and its environment, with secrets hidden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.control.hidden_secrets import secrets_of, shown_env, shown_text, shown_words
from dovetail.control.job_document import shortened

LONGEST_TEXT = 20_000  # bytes of shell text, of a command and of all variables
LONGEST_VALUE = 1_000  # bytes of one variable
LONGEST_SECRET = (
    32_000  # characters; text is cut that far behind what is shown, so that no secret is cut in two
)

Json = dict[str, Any]

NOTHING: Json = {"run": None, "command": None, "setup": "", "workdir": "", "env": {}}


def program_document(body: Mapping[str, Any]) -> Json:
    """The fields of a stored submission that say what it runs; long ones are cut."""
    env = {str(name): _value(value) for name, value in (body.get("env") or {}).items()}
    secrets = secrets_of(env)
    command = body.get("command")
    return {
        "run": None if body.get("run") is None else _text(body["run"], secrets),
        "command": None if command is None else _words([str(word) for word in command], secrets),
        "setup": _text(body.get("setup") or "", secrets),
        "workdir": str(body.get("workdir") or ""),
        "env": _variables(shown_env(env)),
    }


def _value(value: object) -> str:
    """A variable as the job gets it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(text: object, secrets: tuple[str, ...]) -> str:
    return shortened(shown_text(str(text)[: LONGEST_TEXT + LONGEST_SECRET], secrets), LONGEST_TEXT)


def _words(words: list[str], secrets: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    room = LONGEST_TEXT
    for word in words:
        room -= len(word) + 1
        kept.append(word[: LONGEST_TEXT + LONGEST_SECRET])
        if room < 0:
            break
    shown = [shortened(word, LONGEST_TEXT) for word in shown_words(kept, secrets)]
    return shown if len(kept) == len(words) else [*shown, f"… {len(words) - len(kept)} more"]


def _variables(env: dict[str, str]) -> dict[str, str]:
    room, kept = LONGEST_TEXT, dict[str, str]()
    for name, value in env.items():
        kept[name] = shortened(value, max(min(LONGEST_VALUE, room), 3))
        room -= len(name) + len(kept[name])
    return kept
