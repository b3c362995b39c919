"""Dovetail decides which deep-learning work runs on which GPU, when, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.client import job as job
    from dovetail.client.client import Client as Client
    from dovetail.client.executor import Executor as Executor
    from dovetail.client.executor import JobFailed as JobFailed
    from dovetail.client.job import checkpoint_dir as checkpoint_dir
    from dovetail.client.job import preemption_requested as preemption_requested

__version__ = "0.1.0"

# Found when they are asked for: a training script should not pay for what it does not use.
_ELSEWHERE = {
    "Client": "dovetail.client.client",
    "Executor": "dovetail.client.executor",
    "JobFailed": "dovetail.client.executor",
    "checkpoint_dir": "dovetail.client.job",
    "job": "dovetail.client.job",
    "preemption_requested": "dovetail.client.job",
}


def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    module = import_module(_ELSEWHERE[name])
    found = module if name == "job" else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_ELSEWHERE})
