"""Job files: our YAML, plain SkyPilot files and `#SBATCH` scripts, all as the body of `POST /api/v1/jobs`.

What a key means is for the plane to say; here a file is only turned into what the plane takes, with the lines
kept, so that its answer can be given with a file and a line. Meaning is translated, not names: in YAML a
number without a unit is seconds, in a `#SBATCH` line `-t 30` is minutes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.client.draft import Ignored as Ignored
from dovetail.client.draft import JobFile as JobFile
from dovetail.client.draft import JobFileError as JobFileError
from dovetail.client.draft import merged as merged
from dovetail.client.flags import from_flags as from_flags
from dovetail.client.jobyaml import read_yaml
from dovetail.client.sbatch import read_script

MOST_BYTES = 1_000_000


def read_jobfile(source: str | Path, overrides: Mapping[str, Any] | None = None) -> JobFile:
    """The request in a file (a path, or its text if it has more than one line), overridden by flags.

    `.ignored` lists what was understood but does nothing here.
    """
    text, file = _text_of(source)
    found = read_script(text, file) if _is_script(text, file) else read_yaml(text, file)
    if overrides:
        whole = merged(found, overrides)
        found.clear()
        found.update(whole)
    for name, value in found["env"].items() if isinstance(found.get("env"), dict) else ():
        if value is None:
            line = found.line_of(f"/env/{name}")
            raise JobFileError(file, line, f"{name} has no value; write one, or '' for an empty one")
    if "name" not in found and file != "<text>":
        found["name"] = Path(file).stem[:200] or "job"
    return found


def _text_of(source: str | Path) -> tuple[str, str]:
    if isinstance(source, str) and "\n" in source:
        return source, "<text>"
    file = str(source)
    try:
        with open(source, "rb") as stream:
            raw = stream.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise JobFileError(file, None, "there is no such file; name a YAML job file or a script") from None
    except (OSError, ValueError) as error:
        raise JobFileError(
            file, None, f"it cannot be read: {getattr(error, 'strerror', '') or error}"
        ) from None
    if len(raw) > MOST_BYTES:
        raise JobFileError(file, None, f"it has more than {MOST_BYTES:,} bytes; is it a job file?")
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n"), file
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise JobFileError(file, line, "it is no text in UTF-8; is it a job file?") from None


def _is_script(text: str, file: str) -> bool:
    if Path(file).suffix in (".yaml", ".yml", ".json"):
        return False
    if text.startswith("#!") or re.search(r"^#SBATCH\s", text, re.MULTILINE):
        return True
    return Path(file).suffix in (".sh", ".bash", ".sbatch", ".slurm", ".batch")
