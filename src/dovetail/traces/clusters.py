"""Readers of clusters: a short spec, a YAML file, or a published machine list."""

from __future__ import annotations

import configparser
import csv
from pathlib import Path

from dovetail.model.cluster import KNOWN_TYPES, Cluster, GpuType, Node, parse_cluster
from dovetail.model.errors import ClusterError, TraceError
from dovetail.model.units import BOUNDLESS, GIB, MIB
from dovetail.traces.clusterfile import read_yaml
from dovetail.traces.csv_rows import rows
from dovetail.traces.files import opened
from dovetail.traces.shipped import SHIPPED_CLUSTERS

_SIGNS = (
    ("openb", {"sn", "cpu_milli", "memory_mib", "gpu", "model"}),
    ("spot", {"gpu_model", "gpu_capacity_num", "cpu_num", "node_name"}),
    ("tiresias", {"num_switch", "num_node_p_switch", "num_gpu_p_node"}),
    ("pai", {"machine", "gpu_type", "cap_cpu", "cap_mem", "cap_gpu"}),
)


def load_cluster(spec_or_path: str | Path) -> Cluster:
    """`8x8`, `4x8:A100,16x4:V100`, a shipped name (`openb`), a YAML file, or a published machine list."""
    text = str(spec_or_path)
    path = Path(SHIPPED_CLUSTERS.get(text, text))
    if path.suffix in (".yaml", ".yml"):
        return read_yaml(path)
    if not path.is_file():
        if path.is_dir() or path.suffix in (".csv", ".gz", ".xz", ".ini") or len(path.parts) > 1:
            raise ClusterError(f"{path}: no such file; write 8x8, 4x8:A100 or the path of a cluster file")
        return parse_cluster(text)
    try:
        return Cluster(tuple(_nodes(path)))
    except TraceError as error:
        raise ClusterError(str(error)) from None


def _nodes(path: Path) -> list[Node]:
    with opened(path) as text:
        first = text.readline().strip()
    if first.startswith("["):
        return _synergy(path)
    names = {name.strip() for name in next(csv.reader([first]), [])}
    kind = next((kind for kind, columns in _SIGNS if columns <= names), None)
    if kind == "openb":
        return [
            Node(
                row.text("sn"),
                row.whole("gpu"),
                _type(row.text("model")),
                row.whole("cpu_milli"),
                row.whole("memory_mib") * MIB,
            )
            for row in rows(path, ("sn", "gpu", "model"))
        ]
    if kind == "spot":
        return [
            Node(
                row.text("node_name"),
                row.whole("gpu_capacity_num"),
                _type(row.text("gpu_model")),
                row.whole("cpu_num") * 1_000,
            )
            for row in rows(path, ("node_name",))
        ]
    if kind == "tiresias":
        return _switches(path)
    if kind == "pai" or path.name.startswith("pai_machine_spec"):
        header = None if kind else ("machine", "gpu_type", "cap_cpu", "cap_mem", "cap_gpu")
        return [
            Node(
                row.text("machine"),
                row.whole("cap_gpu"),
                _type(row.text("gpu_type") if row.whole("cap_gpu") else ""),
                row.whole("cap_cpu") * 1_000,
                round(row.number("cap_mem") * GIB),
            )
            for row in rows(path, ("machine", "gpu_type"), header=header)
        ]
    raise ClusterError(
        f"{path}: no known cluster format has the columns {', '.join(sorted(names))}; write YAML, or 8x8"
    )


def _switches(path: Path) -> list[Node]:
    """Tiresias, Muri and ElasticFlow: switches (racks) of equal nodes, memory in GB."""
    nodes: list[Node] = []
    for row in rows(path, ("num_switch", "num_node_p_switch", "num_gpu_p_node")):
        racks = len({node.rack for node in nodes})
        for rack in range(racks, racks + row.whole("num_switch")):
            for _ in range(row.whole("num_node_p_switch")):
                cpus = row.whole("num_cpu_p_node") * 1_000 if row.has("num_cpu_p_node") else BOUNDLESS
                memory = round(row.number("mem_p_node") * GIB) if row.has("mem_p_node") else BOUNDLESS
                nodes.append(
                    Node(
                        f"n{len(nodes)}",
                        row.whole("num_gpu_p_node"),
                        cpus=cpus,
                        memory=memory,
                        rack=f"r{rack}",
                    )
                )
    return nodes


def _synergy(path: Path) -> list[Node]:
    """Synergy's .ini: racks of equal servers, memory in GB."""
    parser = configparser.ConfigParser()
    try:
        with opened(path) as text:
            parser.read_file(text, str(path))
        said = {name.upper(): parser[name] for name in parser.sections()}["CLUSTER"]
        racks, servers, gpus = (int(said[name]) for name in ("racks", "servers_per_rack", "gpus_per_server"))
        cpus, memory = int(said["cpus_per_server"]) * 1_000, int(said["dram_per_server"]) * GIB
    except (configparser.Error, KeyError, ValueError) as error:
        why = str(error).replace("\n", " ")
        raise ClusterError(
            f"{path}: not a Synergy cluster ({why}); expected [CLUSTER] with racks, servers_per_rack ..."
        ) from None
    return [
        Node(f"n{rack * servers + i}", gpus, cpus=cpus, memory=memory, rack=f"r{rack}")
        for rack in range(racks)
        for i in range(servers)
    ]


def _type(name: str) -> GpuType:
    return KNOWN_TYPES.get(name or "gpu") or GpuType(name)
