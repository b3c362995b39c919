"""What this machine has to give: its GPUs as the driver names them, or pretended ones to try things out.

The driver is asked by a few calls that do nothing else (`read_out`); what its answers mean is worked out by
plain functions over values, so that machines we do not own can be tested.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dovetail.model.cluster import KNOWN_TYPES, MOST_DEVICES, Cluster, GpuType, Node, parse_cluster
from dovetail.model.units import GIB

PRETENDED = "2x4:A100"  # where there is no GPU and nobody said what to pretend


class Device(NamedTuple):
    """A device, or a slice of one, in the driver's words."""

    uuid: str
    name: str  # "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    memory: int  # bytes


@dataclass(frozen=True, slots=True)
class Found:
    """What there is to schedule, and how to name each device to a job."""

    cluster: Cluster
    devices: Mapping[str, tuple[str, ...]]  # by node: what CUDA_VISIBLE_DEVICES is to hold for each
    virtual: bool  # pretended: no job will find these
    cpus: int  # milli-cores of this machine
    memory: int  # bytes of this machine
    note: str = ""  # one sentence for people


def discover(virtual: str | None = None) -> Found:
    """The GPUs of this machine; those of a description like `2x4:A100,1x4:V100` instead, if one is given."""
    cpus, memory = _machine()
    if virtual:
        return pretended(virtual, cpus, memory, f"Pretending to have {virtual}.")
    devices, why = _ask_driver()
    if not devices:
        note = f"No GPU was found ({why}); pretending to have {PRETENDED}."
        return pretended(PRETENDED, cpus, memory, note)
    return translated(socket.gethostname(), devices, cpus, memory)


def pretended(description: str, cpus: int, memory: int, note: str = "") -> Found:
    """Nodes that exist by name only. Each has all the CPU and memory of this machine: they overlap.

    So what the machine could never run is refused, and what it could is taken, on however many nodes. To
    split it up would refuse on 64 pretended nodes what runs on one.
    """
    described = parse_cluster(description)
    nodes = tuple(replace(node, cpus=cpus, memory=memory) for node in described.nodes)
    devices = {node.name: tuple(map(str, range(node.gpus))) for node in nodes}
    return Found(replace(described, nodes=nodes), devices, True, cpus, memory, note)


def translated(host: str, devices: Sequence[Device], cpus: int, memory: int) -> Found:
    """One node named like the machine; one for each type if the types are mixed, for a node is of one type.

    CPU and memory are then split by the number of devices: the parts are still one machine.
    """
    by_type: dict[GpuType, list[Device]] = {}
    for device in devices:
        by_type.setdefault(type_of(device.name, device.memory), []).append(device)
    nodes, names = [], {}
    for kind, same in by_type.items():
        name = host if len(by_type) == 1 else f"{host}-{kind.name}"
        members = same[:MOST_DEVICES]
        part = len(members) / len(devices)
        nodes.append(Node(name, len(members), kind, cpus=int(cpus * part), memory=int(memory * part)))
        names[name] = tuple(device.uuid for device in members)
    count = sum(node.gpus for node in nodes)
    kinds = ", ".join(f"{node.gpus} {node.type.name}" for node in nodes)
    note = f"{count} GPU{'s' if count > 1 else ''} on {host}: {kinds}."
    return Found(Cluster(tuple(nodes)), names, False, cpus, memory, note)


# --- names -----------------------------------------------------------------------------------------

_MAKERS = frozenset({"nvidia", "tesla", "geforce", "quadro", "generation", "graphics"})
_FORM = re.compile(r"sxm\d*|pcie|nvl|hbm\d\w*|fhhl|lp|\d+gb", re.IGNORECASE)
_ODD = re.compile(r"[^\w.+-]")  # what the name of a type cannot hold


def type_of(name: str, memory: int) -> GpuType:
    """Our type for what the driver calls a device; one of its own name if we have none.

    >>> type_of("NVIDIA A100-SXM4-80GB", 80 * GIB).name
    'A100-80GB'
    >>> type_of("NVIDIA GeForce RTX 4090", 24 * GIB).name
    'RTX-4090'
    """
    whole, _, profile = name.partition(" MIG ")
    words = [
        w for w in re.split(r"[\s-]+", whole) if w and w.lower() not in _MAKERS and not _FORM.fullmatch(w)
    ]
    model = _ODD.sub("", "-".join(words)) or "gpu"
    if profile:  # a slice that is cut already is a small device, not one to be cut
        return GpuType(f"{model}-{_ODD.sub('', profile)}", memory or KNOWN_TYPES["gpu"].memory)
    if model == "V100" and memory > 24 * GIB:
        model = "V100M32"
    if model == "A100" and memory > 60 * GIB:
        model = "A100-80GB"
    if model in KNOWN_TYPES and model != "gpu":
        return KNOWN_TYPES[model]
    return GpuType(model, memory or KNOWN_TYPES["gpu"].memory)


# --- this machine ------------------------------------------------------------------------------------


def _machine() -> tuple[int, int]:
    return len(os.sched_getaffinity(0)) * 1_000, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _ask_driver() -> tuple[list[Device], str]:
    """All devices, slices in place of a device that is cut; or none, and why."""
    try:
        import pynvml as nvml  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError:
        return [], "nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as problem:
        return [], str(problem)
    try:
        return read_out(nvml)
    except nvml.NVMLError as problem:
        return [], str(problem)
    finally:
        nvml.nvmlShutdown()


def read_out(nvml: Any) -> tuple[list[Device], str]:
    """What the driver says of each device. One that does not answer (fallen off the bus) is left out."""
    found: list[Device] = []
    silent = 0
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            found += _slices(nvml, handle) or [_device(nvml, handle)]
        except nvml.NVMLError:
            silent += 1
    return found, f"{silent} devices do not answer" if silent else "the driver knows of none"


def _slices(nvml: Any, handle: Any) -> list[Device]:
    try:
        cut, _ = nvml.nvmlDeviceGetMigMode(handle)
        if cut != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:  # a device that cannot be cut
        return []
    found = []
    for number in range(most):
        try:
            found.append(_device(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
        except nvml.NVMLError:  # slices are numbered with gaps
            continue
    return found


def _device(nvml: Any, handle: Any) -> Device:
    texts = (nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle))
    uuid, name = (text.decode() if isinstance(text, bytes) else str(text) for text in texts)
    return Device(uuid, name, int(nvml.nvmlDeviceGetMemoryInfo(handle).total))
