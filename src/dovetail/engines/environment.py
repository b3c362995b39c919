"""The variables that a job's processes find, so that unmodified scripts run.

All families at once: torch's (ranks only when we start one process for each device; otherwise torchrun gives
them), the devices by UUID, Slurm's behind a switch (Lightning and Accelerate take them for Slurm itself), and
our own. What only the start itself knows (the deadline) is added by the supervisor.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from dovetail.engines.launch import Launch

FIRST_PORT, PORTS = 20_000, 10_000  # below what the kernel gives to outgoing connections
LOOPBACK = "127.0.0.1"

# What is the plane's own and means nothing, or too much, to a job.
_NOT_PASSED_ON = frozenset({
    "CREDENTIALS_DIRECTORY", "INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_FDNAMES", "LISTEN_FDS", "LISTEN_PID",
    "MAINPID", "MAKEFLAGS", "MAKELEVEL", "MAKE_TERMERR", "MAKE_TERMOUT", "MFLAGS", "NOTIFY_SOCKET",
    "PGPASSFILE", "PGPASSWORD", "WATCHDOG_PID", "WATCHDOG_USEC",
    "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE",
})  # fmt: skip
_NOT_PASSED_ON_FAMILIES = ("DOVETAIL_", "SLURM_", "SLURMD_")


class Process(NamedTuple):
    """One process of an attempt."""

    rank: int
    share: int  # number of its node within the attempt
    node: str
    env: dict[str, str]


def inherited(environ: Mapping[str, str], secrets: Collection[str] = ()) -> dict[str, str]:
    """What of the plane's own environment a job may see."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _NOT_PASSED_ON and name not in secrets and not name.startswith(_NOT_PASSED_ON_FAMILIES)
    }


def processes(launch: Launch, run_dir: Path, port: int) -> list[Process]:
    """The processes of an attempt by rank: one for each node, or for each device."""
    counts = [max(len(share.devices), 1) if launch.per_gpu else 1 for share in launch.shares]
    world = sum(counts)
    found: list[Process] = []
    for number, (share, count) in enumerate(zip(launch.shares, counts, strict=True)):
        for local in range(count):
            env = {
                "GLOO_SOCKET_IFNAME": "lo",
                "MASTER_ADDR": LOOPBACK,
                "MASTER_PORT": str(port),
                **dict(launch.env),
                **_ours(launch, run_dir),
                **_devices(share.devices),
                "NNODES": str(len(launch.shares)),
                "NODE_RANK": str(number),
                "DOVETAIL_NODE": share.node,
                "NPROC_PER_NODE": str(max(len(share.devices), 1)),
            }
            rank = len(found)
            if launch.per_gpu:
                env |= {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world),
                    "LOCAL_RANK": str(local),
                    "LOCAL_WORLD_SIZE": str(count),
                    "GROUP_RANK": str(number),
                }
            if launch.slurm_names:
                env |= _slurm(launch, rank, local, number, counts)
            found.append(Process(rank, number, share.node, env))
    return found


def _ours(launch: Launch, run_dir: Path) -> dict[str, str]:
    env = {
        "DOVETAIL_JOB_ID": launch.job,
        "DOVETAIL_JOB_NAME": launch.name,
        "DOVETAIL_ATTEMPT": str(launch.epoch),
        "DOVETAIL_RESTART_COUNT": str(max(launch.epoch - 1, 0)),
        "DOVETAIL_RUN_DIR": str(run_dir),
        "DOVETAIL_NODE_IPS": "\n".join(LOOPBACK for _ in launch.shares),
    }
    if launch.checkpoint_dir:
        env["DOVETAIL_CHECKPOINT_DIR"] = launch.checkpoint_dir
    return env


def _devices(devices: tuple[str, ...]) -> dict[str, str]:
    """None given is none seen: an empty list hides them all."""
    return dict.fromkeys(
        ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), ",".join(devices)
    )


def _slurm(launch: Launch, rank: int, local: int, node: int, counts: list[int]) -> dict[str, str]:
    nodes, mine = ",".join(share.node for share in launch.shares), launch.shares[node]
    env = {
        "SLURM_JOB_ID": launch.job,
        "SLURM_JOBID": launch.job,
        "SLURM_JOB_NAME": launch.name,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURM_NNODES": str(len(counts)),
        "SLURM_JOB_NUM_NODES": str(len(counts)),
        "SLURM_NTASKS": str(sum(counts)),
        "SLURM_NPROCS": str(sum(counts)),
        "SLURM_GPUS": str(sum(len(share.devices) for share in launch.shares)),
        "SLURM_GPUS_ON_NODE": str(len(mine.devices)),
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NODELIST": nodes,
        "SLURMD_NODENAME": mine.node,
        "SLURM_RESTART_COUNT": str(max(launch.epoch - 1, 0)),
    }
    if mine.cpus:  # as Slurm does, only if a number was asked for; a task is one of our processes
        whole = max(mine.cpus // 1_000, 1)
        env |= {
            "SLURM_CPUS_PER_TASK": str(max(whole // counts[node], 1)),
            "SLURM_CPUS_ON_NODE": str(whole),
            "SLURM_JOB_CPUS_PER_NODE": ",".join(str(max(s.cpus // 1_000, 1)) for s in launch.shares),
        }
    given = dict(launch.env)
    for ours, theirs in (
        ("DOVETAIL_ARRAY_ID", "SLURM_ARRAY_JOB_ID"),
        ("DOVETAIL_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID"),
    ):
        if ours in given:
            env[theirs] = given[ours]
    return env


def free_port(job: str, epoch: int, taken: Collection[int] = ()) -> int:
    """A port for the processes of an attempt to meet at: nobody listens there, and none was promised it.

    The same attempt begins its search at the same port, so a port seen in a log can be found again.
    """
    first = int.from_bytes(hashlib.blake2b(f"{job}@{epoch}".encode(), digest_size=4).digest()) % PORTS
    for step in range(PORTS):
        port = FIRST_PORT + (first + step) % PORTS
        if port in taken:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        return port
    return FIRST_PORT + first


def environment_of(folder: Path) -> dict[str, str]:
    """What the first process of an attempt got, to open a shell beside it; empty before it was started."""
    try:
        said = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(value) for name, value in said.items()} if isinstance(said, dict) else {}
