"""Gangs on a real plane: each task is a process of its own, also if several tasks share a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.control.harness import PATIENCE, commanded

from dovetail import Client

# Each process says what it was given, and adds up the ranks of all processes over MASTER_ADDR:MASTER_PORT.
MEETS = """
import json, os, socket, sys, time
env, rank, size = os.environ, int(sys.argv[1]), int(sys.argv[2])
at = (env["MASTER_ADDR"], int(env["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(at) as server:
        ranks = [rank]
        for _ in range(size - 1):
            with server.accept()[0] as other:
                ranks.append(int(other.recv(9)))
else:
    ranks = []
    while True:
        try:
            with socket.create_connection(at) as other:
                other.sendall(str(rank).encode())
            break
        except ConnectionRefusedError:  # the first process does not listen yet
            time.sleep(0.02)
print(json.dumps({"met": sorted(ranks), "pid": os.getpid(), **env}), flush=True)
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with commanded(tmp_path_factory.mktemp("plane"), "--virtual", "2x4:A100") as found:
        yield found


def environments(client: Client, folder: Path, run: str, **request: Any) -> list[dict[str, Any]]:
    """What each process of a job was given, by rank."""
    (folder / "meets.py").write_text(MEETS)
    job = client.submit({"run": run, "workdir": str(folder), "output": "out-%t.txt", **request})
    end = job.wait(PATIENCE)
    files = sorted(folder.glob("out-*.txt"))
    assert end.state == "completed", [file.read_text() for file in files]
    return [json.loads(file.read_text()) for file in files]


BY_TASK = "exec python3 meets.py $NODE_RANK $NNODES"


@pytest.mark.parametrize(
    ("request_", "nodes", "devices"),
    [
        ({"nodes": 2, "resources": {"gpus": 2}}, ["n0", "n0"], ["0,1", "2,3"]),
        ({"nodes": 3, "resources": {"gpus": 2}}, ["n0", "n0", "n1"], ["0,1", "2,3", "0,1"]),
        ({"nodes": 2, "resources": {"gpus": 3}}, ["n0", "n1"], ["0,1,2", "0,1,2"]),
        ({"nodes": 2, "resources": {"gpus": 4}}, ["n0", "n1"], ["0,1,2,3", "0,1,2,3"]),
        ({"nodes": 4, "gpu_share": "50%", "resources": {"gpus": 1}}, ["n0"] * 4, ["0", "1", "2", "3"]),
        ({"nodes": 2, "resources": {"cpus": 0.5}}, ["n0", "n0"], ["", ""]),
    ],
)
def test_each_task_is_a_process_of_its_own(
    client: Client, tmp_path: Path, request_: dict[str, Any], nodes: list[str], devices: list[str]
) -> None:
    found = environments(client, tmp_path, BY_TASK, **request_)
    count = str(len(nodes))
    assert [env["NODE_RANK"] for env in found] == [str(rank) for rank in range(len(nodes))]
    assert {env["NNODES"] for env in found} == {count}
    assert found[0]["met"] == list(range(len(nodes))), "they met at MASTER_ADDR and MASTER_PORT"
    assert len({env["pid"] for env in found}) == len(nodes)
    assert [env["DOVETAIL_NODE"] for env in found] == nodes
    assert [env["CUDA_VISIBLE_DEVICES"] for env in found] == devices
    asked = request_["resources"].get("gpus", 0)
    assert {env["NPROC_PER_NODE"] for env in found} == {str(max(asked, 1))}
    assert {len(env["DOVETAIL_NODE_IPS"].split()) for env in found} == {len(nodes)}


def test_a_process_for_each_gpu_counts_over_all_tasks(client: Client, tmp_path: Path) -> None:
    found = environments(
        client,
        tmp_path,
        "exec python3 meets.py $RANK $WORLD_SIZE",
        nodes=2,
        resources={"gpus": 2},
        launch="gpu",
    )
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES")
    assert [tuple(env[name] for name in names) for env in found] == [
        ("0", "4", "0", "2", "0", "0,1"),
        ("1", "4", "1", "2", "0", "0,1"),
        ("2", "4", "0", "2", "1", "2,3"),
        ("3", "4", "1", "2", "1", "2,3"),
    ]
    assert found[0]["met"] == [0, 1, 2, 3]


def test_two_nodes_of_a_batch_script_are_two_nodes(client: Client, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --gpus-per-node=1\n#SBATCH -o out-%t.txt\n"
        "exec python3 meets.py $SLURM_NODEID $SLURM_NNODES\n"
    )
    (tmp_path / "meets.py").write_text(MEETS)
    end = client.submit(str(script), workdir=str(tmp_path)).wait(PATIENCE)
    files = sorted(tmp_path.glob("out-*.txt"))
    assert end.state == "completed", [file.read_text() for file in files]
    found = [json.loads(file.read_text()) for file in files]
    names = ("SLURM_NODEID", "SLURM_PROCID", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS")
    assert [tuple(env[name] for name in names) for env in found] == [
        ("0", "0", "2", "2", "2"),
        ("1", "1", "2", "2", "2"),
    ]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in found] == ["0", "1"]
    assert {env["SLURM_JOB_NODELIST"] for env in found} == {"n0,n0"}, "a name for each task, as many as nodes"
