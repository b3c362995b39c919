"""`dovetail compare`: several policies on the same traces."""

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
from dovetail.cli.progress import QuietOption, line

if TYPE_CHECKING:
    from dovetail.bench.compare import Column, Comparison, Progress
    from dovetail.bench.policy_choice import PolicyChoice


def compare(
    trace: TraceArgument = None,
    *,
    cluster: ClusterOption,
    policies: Annotated[
        str,
        typer.Option(
            metavar="A,B,C",
            help="Policies, with options as fifo:discipline=skip; also default and FILE.py:FUNCTION.",
            show_default=False,
        ),
    ],
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of traces; all but the first are resampled.")
    ] = 1,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Charts and tables.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: QuietOption = False,
    head: HeadOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="POLICY.KEY=VALUE", help="An option of one policy.", show_default=False
        ),
    ] = None,
    restart_cost: RestartOption = None,
    suspend_cost: SuspendOption = None,
    estimates: EstimatesOption = None,
    drop_unfit: DropOption = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of processes; by default one for each core."),
    ] = None,
    throughputs: ThroughputsOption = None,
    like: LikeOption = None,
    jobs: JobsOption = 1000,
    load: LoadOption = 0.9,
) -> None:
    """Run several policies on one trace and mark the best.

    With --seeds, figures are means over several traces, with 95 % confidence intervals. Seed 0 is the trace
    itself; every other seed resamples its days with replacement (a block bootstrap). A trace generated with
    --like is generated again for each seed.

    \b
    dovetail compare philly --cluster 52x8 --policies fifo,sjf,srtf --report report.html
    dovetail compare jobs.csv --cluster 8x8 --policies fifo,fifo:discipline=skip --seeds 10
    dovetail compare --like philly --jobs 5000 --load 0.9 --cluster 8x8 --policies sjf,srtf --seeds 5
    """
    from dovetail.bench.compare import compared
    from dovetail.cli.inputs import read_errors, read_policy_choices, read_question
    from dovetail.cli.outputs import check_writable, note, print_json, written

    check_writable(report, reads=(trace, cluster, throughputs, *policies.split(",")))
    choices = read_policy_choices(policies, settings or ())
    errors = read_errors(estimates, 0)
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
        silent=as_json or quiet,
    )
    which = "seed 0: " if like is not None and seeds > 1 else ""
    for told in question.notes:
        note(f"{which}{told}")
    if errors is not None:
        note(f"estimates: {errors.described()}")
    with _progress(choices, seeds, silent=as_json or quiet) as progress:
        found = compared(
            question.source,
            question.cluster,
            choices,
            described=question.described,
            seeds=seeds,
            draw=report is not None,
            workers=workers,
            prepare=question.prepare,
            errors=errors,
            progress=progress,
        )
    if report is not None:
        from dovetail.bench.report import rendered

        with written(report) as text:
            text.write(rendered(found))
    if as_json:
        print_json(_as_json(found))
    else:
        _print(found, report)
    stalled = [result for results in found.results.values() for result in results if result.stalled]
    for result in stalled:
        from dovetail.cli.simulate import tell_stall

        tell_stall(result)
    if stalled:
        raise typer.Exit(1)


@contextmanager
def _progress(choices: list[PolicyChoice], seeds: int, *, silent: bool) -> Iterator[Progress | None]:
    """How far the runs are together, by the jobs that have arrived in each."""
    total = len(choices) * seeds
    shares: dict[tuple[str, int], float] = {}
    with line(f"0 of {total} runs", silent=silent) as shown:
        if shown is None:
            yield None
            return

        def told(label: str, seed: int, share: float) -> None:
            shares[label, seed] = share
            done = sum(1 for value in shares.values() if value >= 1.0)
            shown.tell(sum(shares.values()) / total, f"{done} of {total} runs")

        yield told


def _as_json(found: Comparison) -> dict[str, Any]:
    from dataclasses import asdict

    from dovetail.bench.compare import COLUMNS, MORE_COLUMNS

    columns = (*COLUMNS, *MORE_COLUMNS)
    rows = []
    for label in found.labels:
        intervals = {column.key: found.interval(label, column) for column in columns}
        first = found.first(label).metrics
        rows.append(
            {
                "label": label,
                "policy": first.policy,
                "options": dict(first.options),
                "figures": {key: asdict(value) for key, value in intervals.items() if value is not None},
                "runs": [
                    {**result.metrics.as_json(), "stalled": list(result.stalled)}
                    for result in found.results[label]
                ],
            }
        )
    return {
        "trace": found.trace,
        "cluster": found.cluster,
        "gpus": found.gpus,
        "seeds": found.seeds,
        "seed_varies": found.varies,
        "policies": rows,
        "best": {column.key: sorted(best) for column in columns if (best := found.best(column))},
        "level": {column.key: sorted(level) for column in columns if (level := found.level(column))},
    }


def _print(found: Comparison, report: Path | None) -> None:
    from dovetail.bench.compare import COLUMNS
    from dovetail.bench.report import answer
    from dovetail.cli.outputs import aligned, count, plainly, say

    jobs = found.first(found.labels[0]).metrics.jobs
    say(answer(found))
    say(
        f"{plainly(found.trace)}: {count(jobs, 'job')} on {count(found.gpus, 'GPU')}"
        + (f", means over {found.seeds} seeds ± 95 % interval" if found.seeds > 1 else "")
    )
    say()
    units = {column.key: _unit(found, column) for column in COLUMNS}
    top = [["policy"], [""]]
    for column in COLUMNS:
        first, _, rest = column.title.partition(" ")
        top[0].append(first)
        top[1].append(", ".join(part for part in (rest, units[column.key][1]) if part))
    columns = [_marked(found, column, units[column.key][0]) for column in COLUMNS]
    rows = [[label, *cells] for label, *cells in zip(found.labels, *columns, strict=True)]
    say(aligned([[cells[0], *(f"{cell} " for cell in cells[1:])] for cells in top] + rows))
    say()
    if len(found.labels) > 1:
        level = "   ~ no significant difference from the best (paired, 95 %)" if found.seeds > 1 else ""
        say(f"* best of its column{level}")
    if found.seeds > 1:
        say(found.varies)
    if report is not None:
        say(f"report:  {report}")
    else:
        say("more:  --report report.html draws charts")


def _unit(found: Comparison, column: Column) -> tuple[float, str]:
    """The divisor of a column, and the unit in its heading."""
    from dovetail.cli.outputs import unit_for

    if column.unit == "share":
        return 0.01, "%"
    if column.unit != "time":
        return 1.0, ""
    means = [interval.mean for label in found.labels if (interval := found.interval(label, column))]
    size, name = unit_for(max(means, default=0.0))
    return size, name


def _marked(found: Comparison, column: Column, size: float) -> list[str]:
    """The cells of a column, with their marks."""
    cells = {label: _cell(found, label, column, size) for label in found.labels}
    marks = found.marks(column, cells)
    return [
        cell + {"best": "*", "level": "~"}.get(marks.get(label, ""), " ") for label, cell in cells.items()
    ]


def _cell(found: Comparison, label: str, column: Column, size: float) -> str:
    from dovetail.cli.outputs import figure

    interval = found.interval(label, column)
    if interval is None:
        return "-"
    whole = column.unit == "count" and interval.mean == int(interval.mean)
    text = f"{interval.mean:,.0f}" if whole else figure(interval.mean / size)
    return text if interval.half is None else f"{text} ± {figure(interval.half / size)}"
