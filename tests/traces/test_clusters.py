"""Clusters from specs, YAML and published machine lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.model.cluster import Links
from dovetail.model.errors import ClusterError
from dovetail.model.units import GIB
from dovetail.traces import load_cluster

SAMPLES = Path(__file__).parent / "samples"


def test_short_specs() -> None:
    assert load_cluster("8x8").gpus == 64
    assert [kind.name for kind in load_cluster("4x8:A100,16x4:V100").types] == ["A100", "V100"]


def test_yaml() -> None:
    cluster = load_cluster(SAMPLES / "cluster.yaml")
    assert [node.name for node in cluster.nodes] == ["n0", "n1", "n2", "n3", "old0", "old1", "head"]
    first = cluster.nodes[0]
    assert (first.gpus, first.cpus, first.memory, first.sockets, first.nvlink) == (8, 96_000, 768 * GIB, 2, 8)
    assert (first.rack, first.price, first.spot, first.idle_watts, first.gpu_watts) == (
        "r1",
        32.8,
        False,
        300,
        400,
    )
    assert (first.type.name, first.type.speed, first.type.memory, first.type.sliceable) == (
        "A100",
        2.5,
        40 * GIB,
        True,
    )
    assert first.partitions == {"main"}
    assert cluster.links == Links(nvlink=600e9, node=16e9, rack=12.5e9, cluster=10e9)
    assert cluster.tenants["research"].limit == 32
    assert cluster.line("vision") == ("vision", "research")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a cluster file; a cluster file starts with nodes:"),
        ("- 1\n", "is not a cluster file"),
        ("nodes: []\n", "line 1: no nodes"),
        ("nodes:\n  - {gpu: 8}\n", "line 2: a node has no key 'gpu'; did you mean gpus?"),
        ("nodes:\n  - {count: 2}\n", "line 2: a node needs gpus"),
        ("nodes:\n  - {gpus: eight}\n", "line 2: gpus is 'eight'; give a whole number of at least 0"),
        ("nodes:\n  - {gpus: 8, memory: lots}\n", "line 2: memory is 'lots'"),
        ("nodes:\n  - {gpus: 8, cpus: -1}\n", "line 2: cpus is -1; give a number of at least 0"),
        ("nodes:\n  - {gpus: 65}\n", "line 2: node n0: 65 GPUs; a node has 0 to 64"),
        ("nodes:\n  - {gpus: 8, spot: maybe}\n", "line 2: spot is 'maybe'; give true or false"),
        ("nodes: 8x8\n", "line 1: nodes is not a list of mappings"),
        ("nodes:\n  - {gpus: 8\ntypes: {}\n", "is not valid YAML"),
        ("nodes:\n  - {gpus: 8, gpus: 4}\n", "line 2: is not valid YAML ('gpus' is given twice)"),
        ("nodes:\n  - {gpus: 8}\nlink: {}\n", "line 1: a cluster has no key 'link'; did you mean links?"),
        ("nodes:\n  - {gpus: 8}\nlinks: {nvlnk: 1}\n", "did you mean nvlink?"),
        ("nodes:\n  - {gpus: 8}\ntypes: {A100: fast}\n", "type A100 is 'fast'"),
        ("nodes:\n  - {gpus: 8}\ntenants:\n  - {weight: 1}\n", "line 4: a tenant needs a name"),
        ("nodes:\n  - {gpus: 8}\ntenants:\n  - {name: a, parent: b}\n", "tenant 'a' has no parent 'b'"),
        (
            "nodes:\n  - {gpus: 8}\ntenants:\n  - {name: a}\n  - {name: a}\n",
            "line 5: two tenants are named 'a'",
        ),
        ("nodes:\n  - {gpus: 8}\ntenants:\n  - {name: a, parent: a}\n", "is its own ancestor"),
        ("nodes:\n  - {gpus: 8, name: a}\n  - {gpus: 8, name: a}\n", "two nodes are named 'a'"),
    ],
)
def test_broken_yaml(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ClusterError) as caught:
        load_cluster(path)
    said = str(caught.value)
    assert said.startswith(str(path))
    assert message in said
    assert "\n" not in said


def test_published_machine_lists() -> None:
    openb = load_cluster(SAMPLES / "openb_nodes.csv")
    assert (openb.nodes[0].name, openb.nodes[0].gpus, openb.nodes[0].type.name) == (
        "openb-node-0000",
        2,
        "P100",
    )
    assert openb.nodes[0].cpus == 64_000
    pai = load_cluster(SAMPLES / "pai_machine_spec.csv")
    assert (len(pai.nodes), pai.gpus) == (7, 28)
    assert pai.nodes[2].type.name == "V100"
    spot = load_cluster(SAMPLES / "spot_nodes.csv")
    assert (spot.nodes[0].gpus, spot.nodes[0].type.name, spot.nodes[0].cpus) == (4, "GPU-series-1", 192_000)
    tiresias = load_cluster(SAMPLES / "tiresias_cluster.csv")
    assert (len(tiresias.nodes), tiresias.gpus, len({node.rack for node in tiresias.nodes})) == (
        160,
        1_280,
        5,
    )
    synergy = load_cluster(SAMPLES / "synergy_cluster.ini")
    assert (len(synergy.nodes), synergy.gpus, synergy.nodes[0].memory) == (64, 512, 500 * GIB)


def test_invalid_clusters_are_refused(tmp_path: Path) -> None:
    for spec, message in (
        ("8y8", "describes no cluster"),
        ("missing.yaml", "no such file"),
        ("missing.csv", "no such file"),
    ):
        with pytest.raises(ClusterError, match=message):
            load_cluster(spec)
    path = tmp_path / "jobs.csv"
    path.write_text("id,submit\na,0\n")
    with pytest.raises(ClusterError, match="no known cluster format has the columns id, submit"):
        load_cluster(path)
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\na,1,1,x,T4\n")
    with pytest.raises(ClusterError, match="line 2: gpu is 'x'"):
        load_cluster(path)
