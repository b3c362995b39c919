"""`dovetail up` and `dovetail down`: start a plane on this machine, and stop it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.connection import StateOption
from dovetail.cli.outputs import count, note, plainly, say
from dovetail.cli.policy import told_policy
from dovetail.client.connection import NoPlane, kept_address, state_folder
from dovetail.model.errors import CannotLoad, InputError, UnknownName

if TYPE_CHECKING:
    from dovetail.bench.policy_choice import PolicyChoice
    from dovetail.control.serve import Up

STOPPING = 120.0  # seconds that cancelled jobs may take to stop


def up(
    state: StateOption = None,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=1, max=65535, help="Port of the API.")
    ] = 8470,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address of the API; other machines can reach any address but loopback.",
        ),
    ] = "127.0.0.1",
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="Scheduling policy: a name, default, or FILE.py:FUNCTION; by default the last one chosen.",
            show_default=False,
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the policy.", show_default=False),
    ] = None,
    stand_in: Annotated[
        str,
        typer.Option(
            "--stand-in",
            metavar="NAME",
            help="Policy that decides while the chosen policy fails: a name, or the word last for the policy "
            "that was chosen before. [default: backfill]",
            show_default=False,
        ),
    ] = "",
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            metavar="URL",
            envvar="DOVETAIL_DATABASE",
            help="postgresql://...; by default SQLite in the state folder.",
            show_default=False,
            show_envvar=False,
        ),
    ] = None,
    rebind: Annotated[
        bool,
        typer.Option(
            "--rebind",
            help="Bind the state folder and the database to each other, after one of them was lost.",
        ),
    ] = False,
    virtual: Annotated[
        str | None,
        typer.Option(
            "--virtual", metavar="SPEC", help="Virtual GPUs: 2x4:A100,1x4:V100.", show_default=False
        ),
    ] = None,
    time_scale: Annotated[
        float,
        typer.Option("--time-scale", metavar="X", help="Time runs X times as fast (virtual GPUs only)."),
    ] = 1.0,
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", help="Serve /metrics without a token.")
    ] = False,
    keep: Annotated[
        float,
        typer.Option(
            "--keep",
            metavar="DAYS",
            min=0.0,
            help="Days to keep output of ended jobs and checkpoints of completed jobs; 0: for ever.",
        ),
    ] = 30.0,
    output_limit: Annotated[
        str,
        typer.Option(
            "--output-limit",
            metavar="SIZE",
            help="Output that is kept of an attempt, unless a job names its output file; 0: no limit.",
        ),
    ] = "1GiB",
    pass_env: Annotated[
        list[str] | None,
        typer.Option(
            "--pass-env",
            metavar="NAME",
            help="Variable of this environment that jobs get too; may be repeated.",
            show_default=False,
        ),
    ] = None,
    known_as: Annotated[
        list[str] | None,
        typer.Option(
            "--known-as",
            metavar="NAME",
            help="Host name of the plane behind a proxy.",
            show_default=False,
        ),
    ] = None,
    allow_root: Annotated[
        bool,
        typer.Option(
            "--allow-root",
            envvar="DOVETAIL_ALLOW_ROOT",
            show_envvar=False,
            help="Run jobs of tenants without an account as root, if the plane is root.",
        ),
    ] = False,
    set_clock: Annotated[
        bool,
        typer.Option(
            "--set-clock", help="Take the time from the wall clock, if it was set since the plane last ran."
        ),
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Start though the database is older than the state folder; stop jobs that it does not know.",
        ),
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Submit an example workload, until the plane stops.")
    ] = False,
) -> None:
    """Start a plane on this machine.

    The plane is one process: the scheduler, the API and the web page. It runs jobs on this machine. Jobs keep
    running when the plane stops, and the next plane finds them. Stop the plane with ^C or dovetail down.
    """
    from dovetail.control.serve import Wanted, serve
    from dovetail.model.code_files import whole_path

    folder = state_folder(state).absolute()
    if options and not policy:
        raise InputError("--set needs a policy; give it with --policy")
    chosen = _chosen(policy, options or []) if policy else None

    if demo:
        from dovetail.control.demo import check_room
        from dovetail.engines.local.devices import discover

        check_room(discover(virtual).cluster)

    def ready(up: Up) -> None:
        where = "" if state is None else f" --state {folder}"
        _announce(up, folder, where)
        if demo:
            from dovetail.control.demo import start_demo

            start_demo(up, ended_early=lambda why: note(plainly(f"the demo ends early: {why}")))
            say(f"\nthe demo runs: watch it with  dovetail ps{where} --watch")

    with _migrating() as migrating:
        serve(
            Wanted(
                folder=folder,
                port=port,
                host=host,
                policy=None if chosen is None else chosen.policy,
                options={} if chosen is None else chosen.options,
                stand_in=whole_path(stand_in),
                database=database,
                rebind=rebind,
                virtual=virtual,
                scale=time_scale,
                open_metrics=open_metrics,
                keep_days=keep,
                output_limit=_limit(output_limit),
                pass_env=tuple(pass_env or ()),
                allow_root=allow_root,
                set_clock=set_clock,
                accept_loss=accept_loss,
                migrating=migrating,
                hosts=tuple(known_as or ()),
            ),
            ready,
        )
    say(plainly(f"the plane on {folder} has stopped"))


def _chosen(policy: str, options: list[str]) -> PolicyChoice:
    """The policy that is asked for; a file is named by its whole path, as the plane keeps it."""
    from dovetail.cli.inputs import local_policy, read_settings
    from dovetail.model.code_files import whole_path

    try:
        return local_policy(whole_path(policy), read_settings(options))
    except (UnknownName, CannotLoad) as error:
        raise InputError(
            f"{error}; without --policy the plane starts with the policy that it had, or a stand-in for it"
        ) from None


@contextmanager
def _migrating() -> Iterator[Callable[[int, int], None]]:
    """Shows how far a migration of the database is, if it takes long; the line is gone in the end."""
    from dovetail.cli.progress import Line, ticking

    with ExitStack() as stack:
        shown: list[Line | None] = []

        def told(done: int, steps: int) -> None:
            if not shown:
                shown.append(stack.enter_context(ticking("migrating the database")))
            if (line := shown[0]) is not None:
                line.tell(done / steps, f"migrating the database, step {min(done + 1, steps)} of {steps}")
            if done >= steps:
                stack.close()

        yield told


def _limit(text: str) -> int:
    from dovetail.model.units import parse_memory

    try:
        return 0 if text.strip() == "0" else parse_memory(text)
    except ValueError:
        wrong = f"--output-limit {plainly(text)}: not a size; write 1GiB, 500MB, or 0 for no limit"
        raise InputError(wrong) from None


def _announce(up: Up, folder: Path, where: str) -> None:
    cluster = up.plane.cluster
    name, options = up.plane.policy if up.plane.leads else ("", {})
    lines = [f"dovetail is up at {up.url}", f"  open the page with  dovetail open{where}"]
    kind = "virtual " if up.found.virtual else ""
    there = f"{count(cluster.gpus, kind + 'GPU')} on {count(len(cluster.nodes), 'node')}"
    lines.append(f"  {there}; state in {folder}")
    failure = up.plane.policy_failure
    if failure is not None:
        lines += [
            f"  policy {name} cannot be used: {failure.reason}",
            f"  {failure.stand_in.name} decides meanwhile; choose another with  dovetail policy{where} NAME",
        ]
    elif name:
        lines.append(f"  policy {told_policy(name, options)}; change it with  dovetail policy{where} NAME")
    else:
        lines.append(
            f"  another plane is the leader ({up.plane.leader()}); this one takes over when the leader stops"
        )
    if up.found.note:
        lines.append(f"  {up.found.note}")
    if up.limits:
        lines.append(f"  {up.limits}")
    if up.root:
        lines += [f"  {line}" for line in up.root.splitlines()]
    if up.first:
        lines += [
            "",
            "  first token (admin), for other machines; the plane does not print it again:",
            f"  {up.first}",
        ]
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
    """Stop the plane of this machine; its jobs keep running.

    This is the plane of the state folder; DOVETAIL_URL and DOVETAIL_TOKEN are ignored.

    \b
    dovetail down
    dovetail down --cancel
    """
    from dovetail.control.serve import running_at, tell_to_stop

    folder = state_folder(state).absolute()
    pid = running_at(folder)
    if pid is None:
        raise NoPlane(f"no plane runs on {folder}; start one with dovetail up")
    url = kept_address(folder).url
    became = _cancelled(folder) if cancel else "its jobs keep running"
    tell_to_stop(folder)
    deadline = time.monotonic() + 60
    while running_at(folder) == pid and time.monotonic() < deadline:
        time.sleep(0.05)
    if running_at(folder) == pid:
        raise InputError(f"process {pid} does not stop; end it with kill {pid}")
    say(plainly(f"the plane on {folder} has stopped; {became}"))
    elsewhere = os.environ.get("DOVETAIL_URL")
    if elsewhere and elsewhere.rstrip("/") != url:
        note(plainly(f"DOVETAIL_URL is {elsewhere}; that plane was not stopped"))


def _cancelled(folder: Path) -> str:
    """Cancel all jobs, with the token of the plane; returns the outcome as a sentence."""
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
        told += f", {count(len(left), 'job')} still stopping after {STOPPING:g} s: {names}"
    return told
