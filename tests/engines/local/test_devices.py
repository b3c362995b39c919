"""Devices as the driver reports them, and the cluster made of them."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.engines.local.devices import (
    DEFAULT_VIRTUAL,
    Device,
    cluster_of,
    discover,
    read_devices,
    type_of,
    virtual_cluster,
)
from dovetail.model.cluster import KNOWN_TYPES
from dovetail.model.errors import ClusterError
from dovetail.model.units import GIB


@pytest.mark.parametrize(
    ("name", "memory", "ours"),
    [
        ("NVIDIA A100-SXM4-80GB", 80, "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", 40, "A100"),
        ("NVIDIA A100-PCIE-40GB", 40, "A100"),
        ("NVIDIA A100 80GB PCIe", 80, "A100-80GB"),
        ("A100-SXM4-40GB", 40, "A100"),
        ("NVIDIA H100 80GB HBM3", 80, "H100"),
        ("NVIDIA H100 PCIe", 80, "H100"),
        ("Tesla V100-SXM2-16GB", 16, "V100"),
        ("Tesla V100-SXM2-32GB", 32, "V100M32"),
        ("Tesla V100-PCIE-16GB", 16, "V100"),
        ("Tesla P100-PCIE-16GB", 16, "P100"),
        ("Tesla T4", 15, "T4"),
        ("Tesla K80", 11, "K80"),
    ],
)
def test_known_gpu_names(name: str, memory: int, ours: str) -> None:
    assert type_of(name, memory * GIB) == KNOWN_TYPES[ours]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100-1g.5gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "H100-1g.10gb+me"),
        ("", "gpu"),
    ],
)
def test_unknown_gpu_names_are_kept(name: str, ours: str) -> None:
    kind = type_of(name, 24 * GIB)
    assert (kind.name, kind.memory, kind.sliceable) == (ours, 24 * GIB, False)


def test_a_machine_is_one_node() -> None:
    devices = [Device(f"GPU-{i}", "NVIDIA H100 80GB HBM3", 80 * GIB) for i in range(8)]
    found = cluster_of("box", devices, 64_000, 512 * GIB)
    (node,) = found.cluster.nodes
    assert (node.name, node.gpus, node.type.name, node.cpus, node.memory) == (
        "box",
        8,
        "H100",
        64_000,
        512 * GIB,
    )
    assert found.devices == {"box": tuple(f"GPU-{i}" for i in range(8))}
    assert not found.virtual
    assert found.note == "8 GPUs on box: 8 H100."


def test_a_machine_of_two_types_is_two_nodes() -> None:
    devices = [
        Device("a", "Tesla T4", 15 * GIB),
        Device("b", "NVIDIA L4", 24 * GIB),
        Device("c", "Tesla T4", 15 * GIB),
    ]
    found = cluster_of("box", devices, 12_000, 30 * GIB)
    assert [(n.name, n.gpus, n.cpus, n.memory) for n in found.cluster.nodes] == [
        ("box-T4", 2, 8_000, 20 * GIB),
        ("box-L4", 1, 4_000, 10 * GIB),
    ]
    assert found.devices == {"box-T4": ("a", "c"), "box-L4": ("b",)}


def test_virtual_devices_are_numbered() -> None:
    found = virtual_cluster("2x4:A100,1x2:V100", 8_000, GIB)
    assert found.virtual
    assert found.devices["n1"] == ("0", "1", "2", "3")
    assert [node.type.name for node in found.cluster.nodes] == ["A100", "A100", "V100"]
    with pytest.raises(ClusterError):
        discover("nonsense")


def test_discovery_on_this_machine() -> None:
    found = discover()
    assert found.cpus == len(os.sched_getaffinity(0)) * 1_000
    assert found.memory > 100 << 20
    assert found.note
    if found.virtual:
        assert DEFAULT_VIRTUAL in found.note
        assert found.cluster.gpus == 8
    assert discover("1x2:T4").cluster.gpus == 2


class Refused(Exception):
    """Like pynvml.NVMLError."""


def test_devices_are_read_from_the_driver() -> None:
    """Device 1 has two MIG slices, device 2 does not answer, device 3 has no MIG."""
    mig = {1: {0: "MIG-a", 3: "MIG-b"}}

    def handle(number: int) -> Any:
        if number == 2:
            raise Refused
        return number

    def mode(number: int) -> tuple[int, int]:
        if number == 3:
            raise Refused
        return (int(number in mig), 0)

    def part(number: int, index: int) -> str:
        if index not in mig[number]:
            raise Refused
        return mig[number][index]

    def name(handle: Any) -> Any:
        return "NVIDIA A100-SXM4-40GB MIG 3g.20gb" if isinstance(handle, str) else b"NVIDIA A100-SXM4-40GB"

    driver = SimpleNamespace(
        NVMLError=Refused,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlDeviceGetCount=lambda: 4,
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetMigMode=mode,
        nvmlDeviceGetMaxMigDeviceCount=lambda _: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=part,
        nvmlDeviceGetUUID=lambda h: h if isinstance(h, str) else f"GPU-{h}",
        nvmlDeviceGetName=name,
        nvmlDeviceGetMemoryInfo=lambda h: SimpleNamespace(total=(20 if isinstance(h, str) else 40) * GIB),
    )
    devices, why = read_devices(driver)
    assert [device.uuid for device in devices] == ["GPU-0", "MIG-a", "MIG-b", "GPU-3"]
    assert why == "1 devices do not answer"
    found = cluster_of("box", devices, 4_000, 4 * GIB)
    assert found.devices == {"box-A100": ("GPU-0", "GPU-3"), "box-A100-3g.20gb": ("MIG-a", "MIG-b")}
