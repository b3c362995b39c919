"""The environment variables of a job's processes, so that unmodified scripts run.

There are those of PyTorch (ranks only with one process for each device; otherwise torchrun sets them),
the devices by UUID, those of Slurm if the job asks for them (Lightning and Accelerate would take the job
for one of Slurm), and those of Dovetail. The supervisor adds those that are known only at the start, such
as the deadline. Of the plane's own environment a job gets a fixed list, and what an admin adds to it.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from dovetail.engines.contract import Launch
from dovetail.engines.local.attempt_files import ENVIRONMENT
from dovetail.engines.local.json_files import Unreadable, check_shape, read_json
from dovetail.model.errors import InputError

FIRST_PORT, PORTS = 20_000, 10_000  # below the kernel's range for outgoing connections
LOOPBACK = "127.0.0.1"
LARGEST_ENVIRONMENT = 1 << 24  # bytes

# What a job gets of the plane's environment: what describes the account, the language and the machine. The
# shell that started the plane may hold keys and passwords in any other variable.
_PASSED_ON = frozenset({
    "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER",
    "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "SSL_CERT_DIR", "SSL_CERT_FILE",
})  # fmt: skip
_PASSED_ON_FAMILIES = ("LC_", "NCCL_", "NVIDIA_")
_OF_THE_PLANE = frozenset({"HOME", "LOGNAME", "SHELL", "TMPDIR", "USER"})  # another account has its own
_NEVER_PASSED_ON = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})  # a job has its own devices
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SET_BY_DOVETAIL = ("DOVETAIL_", "SLURM_", "SLURMD_")


class Process(NamedTuple):
    """One process of an attempt."""

    rank: int
    share: int  # the number of its task
    node: str
    env: dict[str, str]


def inherited(
    environ: Mapping[str, str], *, passed: Collection[str] = (), own_account: bool = False
) -> dict[str, str]:
    """The part of the plane's environment that a job may see, with the variables that an admin adds to it."""
    found = {}
    for name, value in environ.items():
        allowed = name in _PASSED_ON or name.startswith(_PASSED_ON_FAMILIES)
        if name in passed or (allowed and not (own_account and name in _OF_THE_PLANE)):
            found[name] = value
    return {name: value for name, value in found.items() if name not in _NEVER_PASSED_ON}


def check_passed(names: Iterable[str], secrets: Collection[str]) -> None:
    """Refuse variables that an admin cannot pass on to jobs."""
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise InputError(f"{name!r} is not the name of a variable; give a name such as HF_HOME")
        if name in secrets:
            raise InputError(
                f"{name} holds a secret of the plane and is never passed on to jobs; leave it out"
            )
        if name in _NEVER_PASSED_ON or name.startswith(_SET_BY_DOVETAIL):
            raise InputError(f"{name} is set for each job and cannot be passed on; leave it out")


def processes(launch: Launch, run_dir: Path, port: int) -> list[Process]:
    """The processes of an attempt by rank: one for each task, or one for each device."""
    counts = [max(len(share.devices), 1) if launch.per_gpu else 1 for share in launch.shares]
    world = sum(counts)
    found: list[Process] = []
    for number, (share, count) in enumerate(zip(launch.shares, counts, strict=True)):
        for local in range(count):
            env = {
                "PYTHONUNBUFFERED": "1",  # or what a job prints would come to its log in blocks of 8 kB
                "GLOO_SOCKET_IFNAME": "lo",
                "MASTER_ADDR": LOOPBACK,
                "MASTER_PORT": str(port),
                **dict(launch.env),
                **_dovetail(launch, run_dir),
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


def _dovetail(launch: Launch, run_dir: Path) -> dict[str, str]:
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
    """Without devices the list is empty, which hides all devices."""
    return dict.fromkeys(
        ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), ",".join(devices)
    )


def _slurm(launch: Launch, rank: int, local: int, node: int, counts: list[int]) -> dict[str, str]:
    nodes, own = ",".join(share.node for share in launch.shares), launch.shares[node]
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
        "SLURM_GPUS_ON_NODE": str(len(own.devices)),
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NODELIST": nodes,
        "SLURMD_NODENAME": own.node,
        "SLURM_RESTART_COUNT": str(max(launch.epoch - 1, 0)),
    }
    if own.cpus:  # as in Slurm, only if the job asks for a number of CPUs; a task is one process
        whole = max(own.cpus // 1_000, 1)
        env |= {
            "SLURM_CPUS_PER_TASK": str(max(whole // counts[node], 1)),
            "SLURM_CPUS_ON_NODE": str(whole),
            "SLURM_JOB_CPUS_PER_NODE": ",".join(str(max(s.cpus // 1_000, 1)) for s in launch.shares),
        }
    given = dict(launch.env)
    for name, slurm_name in (
        ("DOVETAIL_ARRAY_ID", "SLURM_ARRAY_JOB_ID"),
        ("DOVETAIL_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID"),
    ):
        if name in given:
            env[slurm_name] = given[name]
    return env


def free_port(job: str, epoch: int, taken: Collection[int] = ()) -> int:
    """A port for MASTER_PORT: no process listens there, and no other attempt has it.

    The search begins at a port that depends on the attempt only, so a port in a log can be traced back.
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
    """The environment of the first process of an attempt; empty before its start."""
    try:
        found = read_json(str(folder / ENVIRONMENT), LARGEST_ENVIRONMENT)
        check_shape(found, {str: str})
    except Unreadable:
        return {}
    return dict(found)
