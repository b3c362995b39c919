"""`dovetail simulate`: one policy on one trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.inputs import (
    ClusterOption,
    DropOption,
    EstimatesOption,
    HeadOption,
    JobsOption,
    LikeOption,
    LoadOption,
    RestartOption,
    SuspendOption,
    ThroughputsOption,
    TraceArgument,
)
from dovetail.cli.progress import QuietOption, progress

if TYPE_CHECKING:
    from dovetail.bench.compare import Hook, Result
    from dovetail.bench.policy_choice import PolicyChoice
    from dovetail.cli.inputs import Question
    from dovetail.core.journal import Header
    from dovetail.model.estimate_errors import EstimateErrors
    from dovetail.sim.run import Run


def simulate(
    trace: TraceArgument = None,
    *,
    cluster: ClusterOption,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="A name (see dovetail policies), the word default (as a new plane), or FILE.py:FUNCTION.",
            show_default=False,
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the policy.", show_default=False),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Random seed, for policies that use one and for --like.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: QuietOption = False,
    jobs_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv", help="One row for each job: times, waiting, preemptions.", show_default=False
        ),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="All steps, for dovetail explain and replay.", show_default=False),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Charts and tables.", show_default=False)
    ] = None,
    head: HeadOption = None,
    restart_cost: RestartOption = None,
    suspend_cost: SuspendOption = None,
    estimates: EstimatesOption = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="T", help="Stop at this simulated time: 90m, 2d12h.", show_default=False),
    ] = None,
    drop_unfit: DropOption = False,
    throughputs: ThroughputsOption = None,
    like: LikeOption = None,
    jobs: JobsOption = 1000,
    load: LoadOption = 0.9,
) -> None:
    """Replay a trace on a cluster under one policy.

    \b
    dovetail simulate philly --cluster 52x8 --policy tiresias-l
    dovetail simulate jobs.csv --cluster 4x8:A100,16x4:V100 --policy fifo --set discipline=skip
    dovetail simulate jobs.csv --cluster cluster.yaml --policy srtf --journal run.jsonl --report run.html
    dovetail simulate gavel.trace --throughputs gavel --cluster 8x1:V100,16x1:K80 --policy fifo
    dovetail simulate --like philly --jobs 5000 --load 0.9 --cluster 8x8 --policy sjf --json
    """
    from dovetail.bench.compare import WithProgress, result_of, watching
    from dovetail.bench.fragmentation import sampler
    from dovetail.bench.policy_choice import make_policy
    from dovetail.cli.inputs import local_policy, read_errors, read_question, read_settings, read_time
    from dovetail.cli.outputs import check_writable, note, print_json, write_jobs
    from dovetail.sim.run import run

    check_writable(jobs_out, journal, report, reads=(trace, cluster, throughputs, policy))
    choice = local_policy(policy, read_settings(settings or ()))
    stop_at = None if until is None else read_time("--until", until)
    errors = read_errors(estimates, seed)
    question = read_question(
        trace,
        cluster,
        like=like,
        jobs=jobs,
        load=load,
        head=head,
        drop_unfit=drop_unfit,
        restart_cost=restart_cost,
        suspend_cost=suspend_cost,
        throughputs=throughputs,
        seed=seed,
        silent=as_json or quiet,
    )
    for told in question.notes:
        note(told)
    if errors is not None:
        note(f"estimates: {errors.described()}")
    listed = question.prepare(question.source.jobs(seed if like is not None else 0))
    look = sampler(listed) if report else None
    with (
        _journal(journal, question, choice, seed, errors) as keep,
        progress(f"{choice.label}, jobs that have arrived", silent=as_json or quiet) as tell,
    ):
        made = run(
            listed if tell is None else WithProgress(listed, tell),
            question.cluster,
            make_policy(choice),
            name=choice.policy,
            seed=seed,
            until=stop_at,
            errors=errors,
            options=choice.options,
            trace=report is not None,
            on_step=watching(keep, look.watch if look else None),
        )
    result = result_of(made, choice.label, look)
    if jobs_out is not None:
        write_jobs(made, jobs_out)
    if report is not None:
        _write_report(report, question, choice, result)
    if as_json:
        print_json({**result.metrics.as_json(), "stalled": list(result.stalled)})
    else:
        _print(question, result, journal, report, _longest_waiter(made))
    if result.stalled:
        tell_stall(result)
        raise typer.Exit(1)


@contextmanager
def _journal(
    path: Path | None, question: Question, choice: PolicyChoice, seed: int, errors: EstimateErrors | None
) -> Iterator[Hook | None]:
    """The hook that writes each step to the journal; None without a journal."""
    if path is None:
        yield None
        return
    from dovetail.core.journal import Header, JournalWriter

    header: Header = Header(question.cluster, choice.policy, choice.options, seed, errors)
    with JournalWriter(path, header) as writer:
        yield lambda _, step: writer.write(step)


def _write_report(path: Path, question: Question, choice: PolicyChoice, result: Result) -> None:
    from dovetail.bench.compare import Comparison
    from dovetail.bench.report import rendered
    from dovetail.cli.outputs import written

    alone = Comparison(
        trace=question.source.name,
        cluster=question.described,
        gpus=question.cluster.gpus,
        varies=question.source.varies,
        labels=(choice.label,),
        seeds=1,
        results={choice.label: (result,)},
    )
    with written(path) as text:
        text.write(rendered(alone))


def _print(
    question: Question, result: Result, journal: Path | None, report: Path | None, waiter: str
) -> None:
    from shlex import quote

    from dovetail.cli.outputs import aligned, count, figure, percent, plainly, say, unit_for
    from dovetail.model.formats import duration, gpu_hours
    from dovetail.model.units import SECOND, spoken

    m = result.metrics
    done = f"deadlock, {m.finished:,} of " if result.stalled else ""
    say(
        f"{result.label}: {done}{count(m.jobs, 'job')} on {count(question.cluster.gpus, 'GPU')}, "
        f"{spoken(m.simulated * SECOND)} simulated in {duration(m.cpu_seconds)}"
    )
    say()
    size, unit = unit_for(m.jct.mean, m.jct.max, m.wait.max)

    def row(name: str, values: Any) -> list[str]:
        if not m.finished:
            return [name, *"-----"]
        of = (values.mean, values.p50, values.p90, values.p99, values.max)
        return [name, *(f"{figure(value / size)} {unit}" for value in of)]

    rows = [
        ["", "mean", "p50", "p90", "p99", "max"],
        row("completion", m.jct),
        row("waiting", m.wait),
        row("first start", m.first_start),
    ]

    def line(name: str, value: str, more: str = "") -> None:
        facts.append((name, value, more))

    facts: list[tuple[str, str, str]] = []
    line("in use", percent(m.utilization), "of the available GPU time")
    line("makespan", spoken(m.makespan * SECOND), "from the first arrival to the last finish")
    if m.finished < m.jobs:
        line("unfinished", f"{m.jobs - m.finished:,}", f"jobs: {_ends(result)}")
    if m.preemptions:
        line("preemptions", f"{m.preemptions:,}", f"{gpu_hours(m.lost_gpu_seconds)} lost")
    if m.deadlines:
        line("deadlines", f"{m.missed:,}", f"missed of {m.deadlines:,}")
    if m.fairness.jain is not None and m.fairness.share_error is not None:
        line(
            "fairness",
            figure(m.fairness.jain),
            f"Jain's index; share error {percent(m.fairness.share_error)}",
        )
    if m.cost is not None:
        line("cost", figure(m.cost), "for all nodes, in the currency of their prices")
    if m.energy_kwh is not None:
        line("energy", f"{figure(m.energy_kwh)} kWh")
    names = max(len(row[0]) for row in (*rows, *facts))
    rows = [[row[0].ljust(names), *row[1:]] for row in rows]
    say(aligned(rows))
    means = max(len(row[1]) for row in rows)
    for name, value, more in facts:
        say(f"  {name.ljust(names)}  {value.rjust(means)}  {more}".rstrip())
    say()
    if report is not None:
        say(f"report:  {report}")
    if journal is not None:
        say(f"why did a job wait?  dovetail explain {quote(str(journal))} {quote(plainly(waiter))}")
    if report is None and journal is None:
        say("more:  --report run.html draws charts, --journal run.jsonl records the run for dovetail explain")


def _ends(result: Result) -> str:
    m = result.metrics
    stuck = len(result.stalled)
    ends = (("failed", m.failed), ("waiting", m.waiting), ("stuck", stuck))
    running = m.jobs - m.finished - m.failed - m.waiting - stuck
    return ", ".join(f"{number:,} {end}" for end, number in (*ends, ("running", running)) if number > 0)


def _longest_waiter(made: Run) -> str:
    """The job with the longest waiting time, as an example for `dovetail explain`."""
    jobs = made.jobs
    if not jobs.job:
        return "JOB"
    return jobs.job[int(jobs.wait(made.until).argmax())].id


def tell_stall(result: Result) -> None:
    from dovetail.cli.outputs import count, plainly

    named = ", ".join(plainly(job) for job in result.stalled[:5])
    more = f" and {len(result.stalled) - 5:,} more" if len(result.stalled) > 5 else ""
    typer.echo(
        f"error: deadlock under {result.label}: {count(len(result.stalled), 'job')} ({named}{more}) "
        f"hold {count(result.stalled_gpus, 'GPU')} to the end and make no progress; "
        "use a policy that starts gangs whole",
        err=True,
    )
