"""Orders to an engine: attempts to start, from what a user asked for and the devices granted, and to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from signal import Signals

from dovetail.control.clock import Clock
from dovetail.control.job_index import Asked, JobIndex
from dovetail.control.job_paths import checkpoint_path
from dovetail.control.ledger import Begin, Ledger, ResizeOrder
from dovetail.control.records import Record
from dovetail.control.request import Checkpoints, command_of, output_of
from dovetail.control.unix_accounts import Accounts, NoAccount
from dovetail.engines.contract import Engine, Launch, NodeShare
from dovetail.mechanisms.place.pods import tasks_on
from dovetail.model.action import Rent, SetPower
from dovetail.model.cluster import Cluster
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.units import SECOND, WHOLE

MOST_PERFORMING = 0.05  # seconds in a tick; an attempt takes some milliseconds to start
UNKNOWN_GRACE = 10 * SECOND  # for an attempt of which no record is left

DeviceNames = Mapping[str, tuple[str, ...]]  # of each node, as CUDA_VISIBLE_DEVICES wants them


def launch_of(
    record: Record,
    asked: Asked,
    shares: tuple[NodeShare, ...],
    clock: Clock,
    *,
    checkpoints: Path,
    account: str = "",
) -> Launch:
    """The order to start one attempt."""
    request = asked.request
    command, setup = command_of(request)
    env = dict(request.env)
    if record.array is not None:
        env["DOVETAIL_ARRAY_ID"] = record.array
        env["DOVETAIL_ARRAY_INDEX"] = str(record.task)
    if request.gpu_share < WHOLE:
        env["DOVETAIL_GPU_SHARE"] = str(request.gpu_share)
    saving = request.checkpoint or Checkpoints()

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
        checkpoint_dir=checkpoint_path(request, env) or str(checkpoints / record.id),
    )


def shares_of(
    spots: Spots, shape: Shape, cluster: Cluster, names: DeviceNames, *, elastic: bool = False
) -> tuple[NodeShare, ...]:
    """What each task of a gang gets, by node and device. Tasks on one node have devices of their own.

    The tasks of an elastic job that are on one node are one there, with all its devices: `gpus: 1..4` starts
    one process on a node, as `gpus: 4` does.
    """
    devices: dict[int, list[int]] = {}
    tasks: dict[int, int] = {}
    for spot in spots:
        node, mask = spot[:2]
        devices.setdefault(node, []).extend(i for i in range(mask.bit_length()) if mask >> i & 1)
        tasks[node] = tasks.get(node, 0) + (0 if shape.each else tasks_on(spot, shape))
    found = []
    for node, held in sorted(devices.items()):
        name = cluster.nodes[node].name
        known = names.get(name, ())
        here = [known[i] if i < len(known) else str(i) for i in sorted(held)]
        if elastic:
            found.append(NodeShare(name, tuple(here), shape.cpus * len(here), shape.memory * len(here)))
            continue
        # A policy may shrink a task: the last one has the devices that are left.
        for task in range(-(-len(here) // shape.each) if shape.each else tasks[node]):
            mine = tuple(here[task * shape.each : (task + 1) * shape.each])
            found.append(NodeShare(name, mine, shape.cpus, shape.memory))
    return tuple(found)


def grace_of(record: Record, index: JobIndex, clock: Clock) -> int:
    """How long an attempt may take to stop before it is killed, in microseconds of the wall clock."""
    return clock.wall_span(index.asked[record.request].request.grace)


def perform(
    ledger: Ledger,
    engine: Engine,
    clock: Clock,
    *,
    devices: DeviceNames,
    checkpoints: Path,
    accounts: Accounts,
    check: Callable[[], None],
) -> None:
    """Give the orders that are on record to the engine; those that take too long, in the next tick.

    `check` is called before each order and raises if this plane does not lead any more. The engine refuses
    orders of an older term as well; but a plane that knows better should not give them.
    """
    orders, ledger.orders = ledger.orders, []
    until = time.monotonic() + MOST_PERFORMING
    for number, order in enumerate(orders):
        if number and time.monotonic() > until:
            ledger.orders = orders[number:] + ledger.orders
            break
        check()
        if isinstance(order, Begin):
            record = order.record
            asked = ledger.index.asked.get(record.request)
            if asked is not None:
                shares = shares_of(
                    order.spots,
                    order.shape,
                    ledger.core.cluster,
                    devices,
                    elastic=asked.request.resources.span is not None,
                )
                try:
                    account = accounts.at_start(record.tenant, asked.account)
                except NoAccount as refused:
                    ledger.unstartable(record, str(refused), clock.now())
                    continue
                engine.start(
                    launch_of(record, asked, shares, clock, checkpoints=checkpoints, account=account)
                )
        elif isinstance(order, ResizeOrder):
            asked = ledger.index.asked.get(order.record.request)
            elastic = asked is not None and asked.request.resources.span is not None
            shares = shares_of(order.spots, order.shape, ledger.core.cluster, devices, elastic=elastic)
            engine.resize(order.record.id, order.record.epoch, order.number, shares)
        elif isinstance(order, SetPower):
            engine.power(order.node, order.on)
        elif isinstance(order, Rent):
            engine.rent(order.node, order.keep, order.owner)
        else:
            stopping = ledger.index.records.get(order.job)
            grace = UNKNOWN_GRACE if stopping is None else grace_of(stopping, ledger.index, clock)
            engine.stop(order.job, order.epoch, order.why, grace)
    forget, ledger.forget = ledger.forget, []
    for job, epoch in forget:
        check()
        engine.forget(job, epoch)
