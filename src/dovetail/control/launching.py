"""What an engine is told of an attempt: the request of its user, on the devices it was given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from signal import Signals
from string import Template

from dovetail.control.book import Asked
from dovetail.control.clock import Clock
from dovetail.control.records import Record
from dovetail.control.request import Checkpoints, command_of, output_of
from dovetail.engines.launch import Launch, Share
from dovetail.model.cluster import Cluster
from dovetail.model.grant import Spots
from dovetail.model.units import WHOLE

DeviceNames = Mapping[str, tuple[str, ...]]  # of each node, as CUDA_VISIBLE_DEVICES wants them


def launch_of(
    record: Record,
    asked: Asked,
    shares: tuple[Share, ...],
    clock: Clock,
    *,
    checkpoints: Path,
    account: str = "",
) -> Launch:
    """One attempt, ready for an engine."""
    request = asked.request
    command, setup = command_of(request)
    env = dict(request.env)
    if record.array is not None:
        env["DOVETAIL_ARRAY_ID"] = record.array
        env["DOVETAIL_ARRAY_INDEX"] = str(record.task)
    if request.gpu_share < WHOLE:
        env["DOVETAIL_GPU_SHARE"] = str(request.gpu_share)
    saving = request.checkpoint or Checkpoints()
    path = Template(saving.path).safe_substitute(env)

    def file(pattern: str) -> str:
        return output_of(pattern, record.id, record.array, record.task, record.name) if pattern else ""

    return Launch(
        job=record.id,
        epoch=record.epoch,
        name=record.name,
        shares=shares,
        command=command,
        setup=setup,
        env=tuple(sorted(env.items())),
        workdir=request.workdir or asked.workdir,
        output=file(request.output),
        error=file(request.error),
        time_limit=None if record.time_limit is None else clock.wall_span(record.time_limit),
        warning=clock.wall_span(request.warning),
        stop_signal=int(Signals[f"SIG{saving.signal.removeprefix('SIG')}"]),
        grace=clock.wall_span(request.grace),
        per_gpu=request.launch == "gpu",
        slurm_names=request.slurm_env,
        account=account,
        checkpoint_dir=path or str(checkpoints / record.id),
    )


def shares_of(spots: Spots, cluster: Cluster, names: DeviceNames) -> tuple[Share, ...]:
    """What is held on each node, in the order of the nodes; the parts of a gang on one node are one share."""
    devices: dict[int, set[int]] = {}
    cpus: dict[int, int] = {}
    memory: dict[int, int] = {}
    for node, mask, _, cores, size in spots:
        devices.setdefault(node, set()).update(i for i in range(mask.bit_length()) if mask >> i & 1)
        cpus[node] = cpus.get(node, 0) + cores
        memory[node] = memory.get(node, 0) + size
    found = []
    for node in sorted(devices):
        name = cluster.nodes[node].name
        known = names.get(name, ())
        held = tuple(known[i] if i < len(known) else str(i) for i in sorted(devices[node]))
        found.append(Share(name, held, cpus[node], memory[node]))
    return tuple(found)
