"""A small distributed training that can be preempted at any step and continues from there.

    dovetail submit examples/train.yaml          two processes, one for each GPU
    python examples/train.py --steps 20          or one alone, without a plane

Five lines make it preemptible: `catch_term` first, `report` at every step, `preemption_requested` to ask
whether it must stop, `checkpoint_dir` for the folder to save in, `finished` at the end. It trains on CPUs
(gloo), so it runs anywhere; with GPUs use nccl and move model and data to `cuda:LOCAL_RANK`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from dovetail import job

job.catch_term()  # before the slow import, during which the job may be told to stop

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

TOLD_TO_STOP = 128 + 15


def main() -> int:
    """Train. Exit code 0 when all steps are done, 143 if the job was told to stop and has saved."""
    options = arguments()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        return train(options.steps, options.every, options.pause, rank)
    finally:
        dist.destroy_process_group()


def train(steps: int, every: int, pause: float, rank: int) -> int:
    """Do the remaining steps; the exit code of the process."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    file = job.checkpoint_dir() / "last.pt"
    done = restored(file, model, optimizer)
    if rank == 0:
        print(f"attempt {job.attempt()} begins after step {done} of {steps}", flush=True)
    while done < steps:
        if stop_is_wanted():
            if rank == 0:
                save(file, done, model, optimizer)
                print(f"told to stop; step {done} is saved", flush=True)
            return TOLD_TO_STOP
        loss = step(model, optimizer, seed=1_000 * done + rank)
        time.sleep(pause)
        done += 1
        if rank == 0:
            print(f"step {done} loss {loss:.4f}", flush=True)
            job.report(step=done, loss=loss)
            if done % every == 0 or done == steps:
                save(file, done, model, optimizer)
    if rank == 0:
        job.finished()  # in case it was told to stop at the very end
        print(f"finished after {done} steps", flush=True)
    return 0


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
    """One step with a batch of its own on each process; gradients are averaged over all."""
    chance = torch.Generator().manual_seed(seed)
    inputs = torch.randn(64, 16, generator=chance)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True).sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def stop_is_wanted() -> bool:
    """Whether any process was told to stop: all must stop after the same step."""
    told = torch.tensor([int(job.preemption_requested())])
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return bool(told.item())


def save(file: Path, done: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the checkpoint atomically."""
    part = file.with_suffix(".part")
    torch.save({"step": done, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, part)
    part.replace(file)
    job.checkpointed(done)


def restored(file: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint, if there is one; the number of steps done."""
    if not file.exists():
        return 0
    kept: dict[str, Any] = torch.load(file, weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    return int(kept["step"])


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="A small distributed training.")
    parser.add_argument("--steps", type=int, default=300, help="in all attempts together")
    parser.add_argument(
        "--every", type=int, default=50, help="save after this many steps, and when told to stop"
    )
    parser.add_argument("--pause", type=float, default=0.1, help="seconds added to a step, to watch it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
