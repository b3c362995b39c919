"""Job files: our YAML, plain SkyPilot files and `#SBATCH` scripts, all as the body of `POST /api/v1/jobs`.

A file is only translated here; the plane checks what its keys mean. The line of each part is kept, so
that an error of the plane can be reported with file and line. Meanings are translated, not names: in a
`#SBATCH` line `-t 30` is minutes, in a SkyPilot file `memory: 32` is gigabytes. Elsewhere a number without a
unit is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.client.flags import from_flags as from_flags
from dovetail.client.job_request import Ignored as Ignored
from dovetail.client.job_request import JobFile as JobFile
from dovetail.client.job_request import JobFileError as JobFileError
from dovetail.client.job_request import merged as merged
from dovetail.client.jobyaml import read_yaml
from dovetail.client.sbatch import Option, read_script

MAX_BYTES = 1_000_000


def read_jobfile(
    source: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    given: Sequence[Option] = (),
    arguments: Sequence[str] = (),
) -> JobFile:
    """The request in a file, overridden by flags. `source` is a path, or text of more than one line.

    `given` are Slurm's options and `arguments` the words that a script gets; only scripts take them.
    `.ignored` lists the parts that have no effect.
    """
    text, file = _text_of(source)
    if is_script(text, file):
        found = read_script(text, file, given=given, arguments=arguments)
    elif given or arguments:
        word = given[0].written if given else arguments[0]
        raise JobFileError(file, None, f"it is no script, so it takes no {word}; leave that out")
    else:
        found = read_yaml(text, file)
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
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise JobFileError(file, None, "there is no such file; name a YAML job file or a script") from None
    except (OSError, ValueError) as error:
        raise JobFileError(
            file, None, f"it cannot be read: {getattr(error, 'strerror', '') or error}"
        ) from None
    if len(raw) > MAX_BYTES:
        raise JobFileError(file, None, f"it has more than {MAX_BYTES:,} bytes; is it a job file?")
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n"), file
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise JobFileError(file, line, "it is not text in UTF-8; is it a job file?") from None


def is_script(text: str, file: str) -> bool:
    if Path(file).suffix in (".yaml", ".yml", ".json"):
        return False
    if text.startswith("#!") or re.search(r"^#SBATCH\s", text, re.MULTILINE):
        return True
    return Path(file).suffix in (".sh", ".bash", ".sbatch", ".slurm", ".batch")
