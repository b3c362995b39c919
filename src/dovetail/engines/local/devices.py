"""The GPUs of this machine as the driver reports them, or virtual ones for trying things out.

`read_devices` asks the driver and does nothing else. Plain functions over its answers make the cluster,
so other machines can be tested without having them.
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

DEFAULT_VIRTUAL = "2x4:A100"  # if the machine has no GPU and the user describes no cluster


class Device(NamedTuple):
    """A device or a slice of one, as the driver reports it."""

    uuid: str
    name: str  # "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    memory: int  # bytes


@dataclass(frozen=True, slots=True)
class FoundDevices:
    """The cluster to schedule, and the name of each device for a job."""

    cluster: Cluster
    devices: Mapping[str, tuple[str, ...]]  # by node: the entry of CUDA_VISIBLE_DEVICES for each device
    virtual: bool  # the devices do not exist
    cpus: int  # milli-cores of this machine
    memory: int  # bytes of this machine
    note: str = ""  # one sentence for people


def discover(virtual: str | None = None) -> FoundDevices:
    """The GPUs of this machine, or virtual ones from a description like `2x4:A100,1x4:V100`."""
    cpus, memory = _machine()
    if virtual:
        return virtual_cluster(virtual, cpus, memory, f"Pretending to have {virtual}.")
    devices, why = _ask_driver()
    if not devices:
        note = f"No GPU was found ({why}); pretending to have {DEFAULT_VIRTUAL}."
        return virtual_cluster(DEFAULT_VIRTUAL, cpus, memory, note)
    return cluster_of(socket.gethostname(), devices, cpus, memory)


def virtual_cluster(description: str, cpus: int, memory: int, note: str = "") -> FoundDevices:
    """A virtual cluster. Each node has all the CPU and memory of this machine.

    So a job that fits the machine fits a node, however many nodes there are. If they were divided among 64
    virtual nodes, a job that runs on one node would be refused.
    """
    described = parse_cluster(description)
    nodes = tuple(replace(node, cpus=cpus, memory=memory) for node in described.nodes)
    devices = {node.name: tuple(map(str, range(node.gpus))) for node in nodes}
    return FoundDevices(replace(described, nodes=nodes), devices, True, cpus, memory, note)


def cluster_of(host: str, devices: Sequence[Device], cpus: int, memory: int) -> FoundDevices:
    """One node with the name of the machine. With several GPU types, one node for each type.

    CPU and memory are then divided by the number of devices.
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
    return FoundDevices(Cluster(tuple(nodes)), names, False, cpus, memory, note)


# --- names -----------------------------------------------------------------------------------------

_BRANDS = frozenset({"nvidia", "tesla", "geforce", "quadro", "generation", "graphics"})
_FORM_FACTOR = re.compile(r"sxm\d*|pcie|nvl|hbm\d\w*|fhhl|lp|\d+gb", re.IGNORECASE)
_NOT_IN_NAME = re.compile(r"[^\w.+-]")  # characters that the name of a type cannot have


def type_of(name: str, memory: int) -> GpuType:
    """The GPU type for a device name of the driver; a new type if the name is unknown.

    >>> type_of("NVIDIA A100-SXM4-80GB", 80 * GIB).name
    'A100-80GB'
    >>> type_of("NVIDIA GeForce RTX 4090", 24 * GIB).name
    'RTX-4090'
    """
    whole, _, profile = name.partition(" MIG ")
    words = [
        w
        for w in re.split(r"[\s-]+", whole)
        if w and w.lower() not in _BRANDS and not _FORM_FACTOR.fullmatch(w)
    ]
    model = _NOT_IN_NAME.sub("", "-".join(words)) or "gpu"
    if profile:  # a MIG slice is a small device that cannot be divided further
        return GpuType(f"{model}-{_NOT_IN_NAME.sub('', profile)}", memory or KNOWN_TYPES["gpu"].memory)
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
    """All devices, with the MIG slices in place of a divided device; or none, and why."""
    try:
        import pynvml as nvml  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError:
        return [], "nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as problem:
        return [], str(problem)
    try:
        return read_devices(nvml)
    except nvml.NVMLError as problem:
        return [], str(problem)
    finally:
        nvml.nvmlShutdown()


def read_devices(nvml: Any) -> tuple[list[Device], str]:
    """Every device that the driver reports. A device that does not answer is left out."""
    found: list[Device] = []
    silent = 0  # e.g. fallen off the bus
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            found += _slices(nvml, handle) or [_device(nvml, handle)]
        except nvml.NVMLError:
            silent += 1
    return found, f"{silent} devices do not answer" if silent else "the driver knows of none"


def _slices(nvml: Any, handle: Any) -> list[Device]:
    try:
        mode, _ = nvml.nvmlDeviceGetMigMode(handle)
        if mode != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        max_slices = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:  # a device without MIG
        return []
    found = []
    for number in range(max_slices):
        try:
            found.append(_device(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
        except nvml.NVMLError:  # slices are numbered with gaps
            continue
    return found


def _device(nvml: Any, handle: Any) -> Device:
    texts = (nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle))
    uuid, name = (text.decode() if isinstance(text, bytes) else str(text) for text in texts)
    return Device(uuid, name, int(nvml.nvmlDeviceGetMemoryInfo(handle).total))
