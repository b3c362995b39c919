"""`dovetail up` and `dovetail down`: start a plane on this machine, and stop it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.live import StateOption
from dovetail.cli.outputs import count, note, plainly, say
from dovetail.cli.policy import told_policy
from dovetail.client.connection import kept_address, state_folder
from dovetail.model.errors import InputError

if TYPE_CHECKING:
    from dovetail.control.serve import Up

STOPPING = 120.0  # seconds that cancelled jobs may take to leave


def up(
    state: StateOption = None,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=1, max=65535, help="Where the API listens.")
    ] = 8470,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="On which address; others than loopback are open to the network.",
        ),
    ] = "127.0.0.1",
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", metavar="NAME", help="Who decides; as before if left out.", show_default=False
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the policy.", show_default=False),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            metavar="URL",
            envvar="DOVETAIL_DATABASE",
            help="postgresql://...; SQLite in the state folder if left out.",
            show_default=False,
            show_envvar=False,
        ),
    ] = None,
    virtual: Annotated[
        str | None,
        typer.Option(
            "--virtual", metavar="SPEC", help="Pretend to have 2x4:A100,1x4:V100.", show_default=False
        ),
    ] = None,
    time_scale: Annotated[
        float, typer.Option("--time-scale", metavar="X", help="Let time run X times as fast (virtual GPUs).")
    ] = 1.0,
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", help="Let everybody read /metrics, without a token.")
    ] = False,
    keep: Annotated[
        float,
        typer.Option(
            "--keep",
            metavar="DAYS",
            min=0.0,
            help="Remove output of jobs that ended longer ago, checkpoints if completed; 0: never.",
        ),
    ] = 30.0,
    known_as: Annotated[
        list[str] | None,
        typer.Option(
            "--known-as",
            metavar="NAME",
            help="A host name it is reached by, behind a proxy.",
            show_default=False,
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Submit an example and watch it.")] = False,
) -> None:
    """Start a plane on this machine.

    It is scheduler, API and the jobs of this machine, in one process. Jobs outlive it: a plane that is
    started again finds them. Stop it with ^C or dovetail down.
    """
    from dovetail.bench.entrants import read_entrant
    from dovetail.cli.inputs import read_settings
    from dovetail.control.serve import Wanted, serve

    folder = state_folder(state).absolute()
    if options and not policy:
        raise InputError("--set gives options of a policy; name it with --policy")
    chosen = read_entrant(policy, read_settings(options or [])).options if policy else {}

    if demo:
        from dovetail.control.demo import check_room
        from dovetail.engines.gpus import discover

        check_room(discover(virtual).cluster)

    def ready(up: Up) -> None:
        where = "" if state is None else f" --state {folder}"
        _announce(up, folder, where)
        if demo:
            from dovetail.control.demo import start_demo

            start_demo(up)
            say(f"\nthe demo runs: watch it with  dovetail ps{where} --watch")

    serve(
        Wanted(
            folder=folder,
            port=port,
            host=host,
            policy=policy,
            options=chosen,
            database=database,
            virtual=virtual,
            scale=time_scale,
            open_metrics=open_metrics,
            keep_days=keep,
            hosts=tuple(known_as or ()),
        ),
        ready,
    )


def _announce(up: Up, folder: Path, where: str) -> None:
    cluster = up.plane.cluster
    name, options = up.plane.policy if up.plane.leads else ("", {})
    lines = [f"dovetail is up at {up.url}", f"  the page is there too: see it with  dovetail open{where}"]
    kind = "virtual " if up.found.virtual else ""
    there = f"{count(cluster.gpus, kind + 'GPU')} on {count(len(cluster.nodes), 'node')}"
    lines.append(f"  {there}; state in {folder}")
    if name:
        lines.append(f"  policy {told_policy(name, options)}; change it with  dovetail policy{where} NAME")
    else:
        lines.append(f"  another plane leads ({up.plane.leader()}); this one takes over when it goes")
    if up.found.note:
        lines.append(f"  {up.found.note}")
    if up.limits:
        lines.append(f"  {up.limits}")
    if up.first:
        lines += ["", "  first token (admin), shown this once:", f"  {up.first}"]
    lines += [
        "",
        "try, in another terminal:",
        f"  dovetail run{where} --gpus 1 -- nvidia-smi -L" if not up.found.virtual else
        f"  dovetail run{where} --gpus 1 -- bash -c 'echo hello from GPU $CUDA_VISIBLE_DEVICES'",
        f"  dovetail submit{where} --gpus 4 --time 1h -- sleep 60",
        f"  dovetail ps{where}",
    ]  # fmt: skip
    say("\n".join(lines))


def down(
    state: StateOption = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel all jobs first.")] = False,
) -> None:
    """Stop the plane of this machine; its jobs go on.

    It is the plane of the state folder, whatever DOVETAIL_URL and DOVETAIL_TOKEN say.

    \b
    dovetail down
    dovetail down --cancel
    """
    from dovetail.control.serve import running_at, tell_to_stop

    folder = state_folder(state).absolute()
    pid = running_at(folder)
    if pid is None:
        raise InputError(f"no plane runs on {folder}; start one with dovetail up")
    url = kept_address(folder).url
    became = _cancelled(folder) if cancel else "its jobs go on"
    tell_to_stop(pid)
    deadline = time.monotonic() + 60
    while running_at(folder) == pid and time.monotonic() < deadline:
        time.sleep(0.05)
    if running_at(folder) == pid:
        raise InputError(f"process {pid} does not stop; end it with kill {pid}")
    say(plainly(f"the plane on {folder} has stopped; {became}"))
    elsewhere = os.environ.get("DOVETAIL_URL")
    if elsewhere and elsewhere.rstrip("/") != url:
        note(plainly(f"DOVETAIL_URL is {elsewhere}, which this has not stopped"))


def _cancelled(folder: Path) -> str:
    """End all jobs, with the token of the plane itself; says what became of them."""
    from dovetail.client.client import Client

    kept = kept_address(folder)
    asked: set[str] = set()
    done = 0
    with Client(kept.url, kept.token, folder, patience=10.0) as client:
        deadline = time.monotonic() + STOPPING
        while left := [job.id for job in client.jobs(active=True, limit=1_000)]:
            if time.monotonic() > deadline:
                break
            if new := [id for id in left if id not in asked]:
                done += int(client.cancel_many(*new)["count"])
                asked.update(new)
            time.sleep(0.3)
    told = f"{count(done, 'job')} cancelled" if asked else "there were no jobs"
    if left:
        names = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
        told += f", {count(len(left), 'job')} not gone after {STOPPING:g} s: {names}"
    return told
