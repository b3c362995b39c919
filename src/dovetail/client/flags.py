"""Flags of the command line as a request: the same keys as a job file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.client.job_request import JobFileError, zoned
from dovetail.model.units import parse_duration, parse_memory


def from_flags(
    *,
    name: str | None = None,
    gpus: int | str | None = None,
    gpu_type: str | None = None,
    nodes: int | None = None,
    cpus: float | str | None = None,
    memory: str | int | None = None,
    time: str | float | None = None,
    priority: int | str | None = None,
    queue: str | None = None,
    array: str | None = None,
    dependency: str | None = None,
    output: str | None = None,
    error: str | None = None,
    workdir: str | None = None,
    env: Sequence[str] | None = None,
    hold: bool | None = None,
    begin: str | None = None,
    comment: str | None = None,
    preemptible: bool | None = None,
    checkpoint_every: str | float | None = None,
    grace: str | float | None = None,
    retry: str | int | None = None,
    model: str | None = None,
    per_gpu: bool | None = None,
    command: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    local: bool = True,
) -> dict[str, Any]:
    """The flags of `dovetail submit` and `run` as a request; flags that were not given are left out.

    A command runs in the current folder if the plane is on this machine (`local`). `--retry` accepts `3`,
    `exit:33` and `exit:33,timeout@3`. Amounts are checked here, so that an error names the flag.
    """
    if time is not None and re.fullmatch(r"0*\.?0+", str(time).strip()):
        raise JobFileError("--time", None, f"{time} is not a time limit; leave --time out for none")
    checked("--time", time, parse_duration)
    checked("--grace", grace, parse_duration)
    checked("--checkpoint-every", checkpoint_every, parse_duration)
    checked("--memory", memory, lambda text: parse_memory(str(text).rstrip("+")))
    if begin is not None and begin.startswith("+"):
        checked("--begin", begin[1:], parse_duration)
    resources: dict[str, Any] = {"cpus": cpus, "memory": memory}
    if isinstance(gpus, str) and re.fullmatch(r"0*\.[0-9]+|[0-9.]+%", gpus):
        raise JobFileError("--gpus", None, f"{gpus} of a GPU? write --gpus 1 --gpu-share {gpus}")
    is_span = isinstance(gpus, str) and re.match(r"[0-9.]*\.\.", gpus) is not None
    typed = isinstance(gpus, str) and not is_span and re.fullmatch("[0-9]+", gpus) is None
    if gpu_type and typed:
        raise JobFileError(
            "--gpus", None, f"{gpus} names a type and --gpu-type another; give --gpus a number"
        )
    if typed or gpu_type:
        resources["accelerators"] = gpus if typed else f"{gpu_type}:{1 if gpus is None else gpus}"
    else:
        resources["gpus"] = gpus if is_span or gpus is None else int(gpus)
    checkpoint = {"every": checkpoint_every, "grace": grace}
    found = {
        "name": name or (_name_of(command) if command else None),
        "nodes": nodes,
        "resources": _given(resources) or None,
        "time": time,
        "priority": _number_or_word(priority),
        "queue": queue,
        "array": array,
        "dependency": dependency,
        "output": output,
        "error": error,
        "workdir": _workdir(workdir, local, bool(command)),
        "env": _variables(env, os.environ if environ is None else environ) if env else None,
        "hold": hold or None,
        "begin": zoned(begin) if begin else None,
        "comment": comment,
        "preemptible": preemptible,
        "checkpoint": _given(checkpoint) or None,
        "retry": None if retry is None else _retry(str(retry)),
        "model": model,
        "launch": "gpu" if per_gpu else None,
        "command": list(command) if command else None,
    }
    return _given(found)


def checked(flag: str, value: Any, parse: Callable[[Any], object]) -> None:
    """Refuse a value that its parser cannot read, or that has no unit."""
    try:
        if value is not None:
            parse(value)
    except ValueError as error:
        raise JobFileError(flag, None, str(error)) from None


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _workdir(given: str | None, local: bool, command: bool) -> str | None:
    if local:
        return os.path.abspath(given or ".") if given or command else None
    if given and not os.path.isabs(given):
        problem = f"{given!r} is relative, but the plane is on another machine; write an absolute path"
        raise JobFileError("--workdir", None, problem)
    return given


def _name_of(command: Sequence[str]) -> str:
    """A short name for a command: `train.py` for `python -u train.py`."""
    plain = [os.path.basename(word) for word in command]
    script = next((word for word in plain[1:3] if re.fullmatch(r"[\w.-]+\.(?:py|sh|pl|R|jl)", word)), "")
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "_", (script or plain[0])[:200]) or "job"


def _number_or_word(value: int | str | None) -> int | str | None:
    return int(value) if isinstance(value, str) and re.fullmatch("-?[0-9]{1,9}", value) else value


def _variables(items: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables given as `K=V`, or as `K` for the value of this environment."""
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals and name not in environ:
            raise JobFileError("--env", None, f"{name} is not set here; write {name}=VALUE")
        found[name] = value if equals else environ[name]
    return found


def _retry(text: str) -> dict[str, Any]:
    causes, at, most = text.partition("@")
    if re.fullmatch("[0-9]{1,4}", causes) and not at:
        return {"max": int(causes)}
    if at and re.fullmatch("[0-9]{1,4}", most) is None:
        raise JobFileError(
            "--retry", None, f"{text!r} is not understood; write 3, exit:33,timeout or exit:33@3"
        )
    on = [cause.strip() for cause in causes.split(",") if cause.strip()]
    return {"on": on, "max": int(most)} if at else {"on": on}
