"""`dovetail fidelity`: the same jobs live and simulated, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.inputs import DropOption, HeadOption, JobsOption, LikeOption, LoadOption
from dovetail.cli.progress import QuietOption, ticking

if TYPE_CHECKING:
    from dovetail.bench.policy_choice import PolicyChoice
    from dovetail.control.fidelity import Fidelity
    from dovetail.model.job import Job

DEFAULT_POLICIES = "fifo,srtf,tiresias-l"
MOST_SHOWN = 100
LONG = 600.0  # seconds of real time that are worth a warning

Tell = Callable[[int, int], None]


def fidelity(
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="A trace, as for simulate; by default 55 mixed jobs.",
            show_default=False,
        ),
    ] = None,
    *,
    virtual: Annotated[
        str,
        typer.Option("--virtual", "--cluster", metavar="SPEC", help="Virtual GPUs: 4x8:A100,2x4:V100."),
    ] = "5x4:A100",
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help=f"Separated by commas; by default {DEFAULT_POLICIES}.", show_default=False
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="One policy, with --set.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="An option of the policy (POLICY.KEY=VALUE with --policies).",
            show_default=False,
        ),
    ] = None,
    time_scale: Annotated[
        float,
        typer.Option(metavar="X", help="Run X times as fast as real time; a smaller X is more accurate."),
    ] = 60.0,
    jobs_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Live and simulated figures of each job.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: QuietOption = False,
    head: HeadOption = None,
    drop_unfit: DropOption = False,
    like: LikeOption = None,
    jobs: JobsOption = 60,
    load: LoadOption = 0.9,
) -> None:
    """Run jobs live on virtual GPUs and in the simulator, and compare their completion times.

    In the live run each job is a real process that sleeps for as long as it would train, and saves a
    checkpoint when it is preempted. All policies run at the same time, each on its own plane.

    \b
    dovetail fidelity
    dovetail fidelity jobs.csv --virtual 2x4:A100 --policy srtf --set cost=30
    dovetail fidelity --like philly --jobs 50 --virtual 4x8 --policies fifo,sjf --time-scale 600
    """
    from dovetail.cli.outputs import check_writable, count, note, print_json
    from dovetail.control.fidelity import entries_of, simulated
    from dovetail.model.errors import BadOption
    from dovetail.model.units import SECOND, spoken

    check_writable(jobs_out, reads=(workload, virtual, policy, *(policies or "").split(",")))
    if not 0 < time_scale < float("inf"):
        raise BadOption(f"a time scale of {time_scale:g} is not valid; give a number above 0")
    choices = _choices(policies, policy, settings or [])
    listed = _jobs(workload, virtual, like=like, jobs=jobs, load=load, head=head, drop_unfit=drop_unfit)
    entries, notes = entries_of(listed, virtual, time_scale)
    for told in notes:
        note(told)
    spans = [simulated(entries, virtual, e.policy, e.options).makespan / SECOND / time_scale for e in choices]
    longest = max(spans)
    if longest > LONG or not quiet:
        at_once = f" under {len(choices)} policies at once" if len(choices) > 1 else ""
        shorter = "; a larger --time-scale shortens it" if longest > LONG else ""
        took = spoken(max(round(longest), 1) * SECOND)
        note(f"{count(len(listed), 'job')} live{at_once}: this takes about {took} of real time{shorter}")
    with (
        _progress(len(listed) * len(choices), silent=as_json or quiet) as progress,
        _ended_by_signals(),
    ):
        found = _played(listed, choices, virtual, time_scale, progress)
    if jobs_out is not None:
        _write(found, jobs_out)
    if as_json:
        played = [
            {"policy": e.policy, "options": e.options, **_as_json(f)}
            for e, f in zip(choices, found, strict=True)
        ]
        print_json({"time_scale": time_scale, "cluster": virtual, "policies": played})
    else:
        _print(found, jobs_out)


def _choices(policies: str | None, policy: str | None, settings: list[str]) -> list[PolicyChoice]:
    from dovetail.cli.inputs import local_policy, read_policy_choices, read_settings
    from dovetail.model.errors import InputError

    if policy is not None:
        if policies is not None:
            raise InputError("--policy and --policies exclude each other; give one of them")
        return [local_policy(policy, read_settings(settings))]
    return read_policy_choices(policies or DEFAULT_POLICIES, settings)


def _jobs(
    workload: str | None,
    virtual: str,
    *,
    like: str | None,
    jobs: int,
    load: float,
    head: int | None,
    drop_unfit: bool,
) -> list[Job]:
    """The jobs of a trace, or the default workload."""
    from dovetail.cli.inputs import read_question
    from dovetail.cli.outputs import note
    from dovetail.control.fidelity import mixed_workload
    from dovetail.model.cluster import parse_cluster
    from dovetail.model.errors import ClusterError, InputError

    try:
        parse_cluster(virtual)
    except ClusterError:
        raise InputError(
            f"--virtual {virtual!r} describes no GPUs; write 2x4, or 4x8:A100,2x4:V100"
        ) from None
    if workload is None and like is None:
        workload = str(mixed_workload())
    question = read_question(
        workload, virtual, like=like, jobs=jobs, load=load, head=head, drop_unfit=drop_unfit
    )
    for told in question.notes:
        note(told)
    return question.prepare(question.source.jobs(0))


def _played(
    listed: Sequence[Job],
    choices: Sequence[PolicyChoice],
    virtual: str,
    scale: float,
    progress: Callable[[str], Tell] | None,
) -> list[Fidelity]:
    """Run all policies at the same time: their jobs only sleep, so they do not disturb each other."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from dovetail.control import fidelity as live

    cancelled = threading.Event()

    def play(choice: PolicyChoice) -> Fidelity:
        try:
            return live.fidelity(
                listed,
                choice.policy,
                choice.options,
                label=choice.label,
                cluster=virtual,
                scale=scale,
                progress=progress(choice.label) if progress else None,
                cancelled=cancelled,
            )
        except BaseException:
            cancelled.set()  # stop the other policies
            raise

    with ThreadPoolExecutor(len(choices)) as pool:
        try:
            played = [pool.submit(play, choice) for choice in choices]
            errors = [error for future in played if (error := future.exception()) is not None]
            for error in sorted(errors, key=lambda error: isinstance(error, live.Cancelled)):
                raise error  # the first error; the later ones follow from it
            return [future.result() for future in played]
        except BaseException:
            cancelled.set()
            raise


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the command as ^C does: its planes stop, and their folders are removed."""
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heard = [number for number, handler in before.items() if handler == signal.SIG_DFL]  # nohup ignores one

    def end(number: int, _: object) -> None:
        for other in heard:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


@contextmanager
def _progress(total: int, *, silent: bool) -> Iterator[Callable[[str], Tell] | None]:
    """How many jobs have ended live, of all policies together."""
    over: dict[str, int] = {}
    with ticking("jobs that have ended live", silent=silent) as shown:
        if shown is None:
            yield None
            return

        def of(label: str) -> Tell:
            def tell(done: int, _: int) -> None:
                over[label] = done
                count = sum(over.values())
                shown.tell(count / total, f"{count} of {total} jobs have ended live")

            return tell

        yield of


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _print(found: Sequence[Fidelity], jobs_out: Path | None) -> None:
    from dovetail.cli.outputs import aligned, count, figure, plainly, say, unit_for
    from dovetail.control.fidelity import JOB_WITHIN, MEAN_WITHIN
    from dovetail.model.formats import duration

    for one in found:
        say(
            f"{one.label}: {count(len(one.pairs), 'job')}, mean completion {duration(one.live)} "
            f"live, {duration(one.simulated)} simulated ({_signed(one.difference)}); "
            f"worst job {_signed(one.worst.difference)}"
        )
    say()
    size, unit = unit_for(min(one.live for one in found))
    listed = range(len(found[0].pairs))
    if len(listed) > MOST_SHOWN:  # the jobs that differ most, in order of arrival
        far = sorted(listed, key=lambda row: -max(abs(one.pairs[row].difference) for one in found))
        shown: Sequence[int] = sorted(far[:20])
    else:
        shown = listed
    rows = [["job", "GPUs"], ["", ""]]
    for one in found:
        rows[0] += ["", one.label, ""]
        rows[1] += [f"live, {unit}", f"simulated, {unit}", "differs"]
    for row in shown:
        first = found[0].pairs[row]
        cells = [plainly(first.id), f"{first.gpus}"]
        for one in found:
            pair = one.pairs[row]
            cells += [figure(pair.live / size), figure(pair.simulated / size), _signed(pair.difference)]
        rows.append(cells)
    say(aligned(rows))
    if len(shown) < len(listed):
        say(f"  the {len(shown)} of {len(listed):,} jobs that differ most")
    say()
    beyond = sum(len(one.beyond()) for one in found)
    limits = f"means within {MEAN_WITHIN:.0%}, every job within {JOB_WITHIN:.0%}".replace("%", " %")
    say(f"{limits}: {'yes' if not beyond else f'no, {beyond:,} are not'}")
    for one in found:
        live_stops = sum(pair.live_stops for pair in one.pairs)
        simulated_stops = sum(pair.simulated_stops for pair in one.pairs)
        if live_stops or simulated_stops:
            say(f"{one.label}: {count(live_stops, 'preemption')} live, {simulated_stops:,} simulated")
    if jobs_out is None:
        say("every job:  --jobs-out jobs.csv writes live and simulated figures of each job")


def _as_json(one: Fidelity) -> dict[str, Any]:
    return {
        "label": one.label,
        "jobs": len(one.pairs),
        "mean_live": one.live,
        "mean_simulated": one.simulated,
        "difference": one.difference,
        "worst": {"job": one.worst.id, "difference": one.worst.difference},
        "within": not one.beyond(),
        "pairs": [
            {
                "id": pair.id,
                "gpus": pair.gpus,
                "submit": pair.submitted,
                "live": pair.live,
                "simulated": pair.simulated,
                "difference": pair.difference,
                "preemptions_live": pair.live_stops,
                "preemptions_simulated": pair.simulated_stops,
            }
            for pair in one.pairs
        ],
    }


def _write(found: Sequence[Fidelity], path: Path) -> None:
    """One row for each policy and job, in seconds."""
    import csv

    from dovetail.cli.outputs import written

    columns = ("id", "gpus", "submit", "live", "simulated", "difference")
    with written(path) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("policy", *columns, "preemptions_live", "preemptions_simulated"))
        for one in found:
            for pair in one.pairs:
                times = (f"{pair.submitted:g}", f"{pair.live:.3f}", f"{pair.simulated:.3f}")
                writer.writerow(
                    (one.label, pair.id, pair.gpus, *times, f"{pair.difference:.5f}",
                     pair.live_stops, pair.simulated_stops)
                )  # fmt: skip
