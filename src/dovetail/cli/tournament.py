"""`dovetail tournament`: every working policy on the same workloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.progress import QuietOption, line

if TYPE_CHECKING:
    from dovetail.bench.tournament import Progress, Tournament
    from dovetail.bench.tournament_page import Sheet
    from dovetail.bench.workloads import Workload


def tournament(
    *,
    workloads: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Only these workloads; by default all six.", show_default=False),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Only these policies, named as in compare, and fifo; by default all that work.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of traces of each workload.")] = 3,
    jobs: Annotated[int, typer.Option(min=2, metavar="N", help="Number of jobs of each trace.")] = 300,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="All tables as HTML.", show_default=False)
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE.md", help="All tables as a page of the docs.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: QuietOption = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of processes; by default one for each core."),
    ] = None,
) -> None:
    """Run every working policy on the same six workloads.

    The workloads are uniform, mixed-types, elastic, deadline, bursty and multi-tenant. A policy that is worse
    than fifo in what its paper claims is marked with an exclamation mark. The same workloads and seeds give
    the same figures, except CPU seconds. A deadlock is a result here: the exit code is 0.

    \b
    dovetail tournament --workloads uniform --policies srtf,tiresias-l
    dovetail tournament --policies my_policy.py:mine,srtf --report tournament.html
    """
    from dovetail.bench.tournament import played, working_policies
    from dovetail.cli.inputs import read_policy_choices
    from dovetail.cli.outputs import check_writable, print_json, written

    check_writable(report, page, reads=(policies or "").split(","))
    chosen = _chosen(workloads)
    choices = working_policies() if policies is None else read_policy_choices(policies)
    runs = len(chosen) * seeds * (len(choices) + all(choice.label != "fifo" for choice in choices))
    with _progress(runs, silent=as_json or quiet) as progress:
        found = played(chosen, choices, jobs=jobs, seeds=seeds, workers=workers, progress=progress)
    if report is not None or page is not None:
        from dovetail.bench.tournament_page import html, markdown

        for path, text in ((report, html), (page, markdown)):
            if path is not None:
                with written(path) as file:
                    file.write(text(found))
    if as_json:
        print_json(_as_json(found))
    else:
        _print(found, report or page)


def _chosen(text: str | None) -> list[Workload]:
    from dovetail.bench.workloads import WORKLOADS, named_workload
    from dovetail.model.errors import InputError

    if text is None:
        return list(WORKLOADS.values())
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InputError(f"no workload was given; give --workloads {','.join(WORKLOADS)} or leave it out")
    return [named_workload(name) for name in names]


@contextmanager
def _progress(runs: int, *, silent: bool) -> Iterator[Progress | None]:
    """How far the runs are together."""
    shares: dict[tuple[str, str, int], float] = {}
    with line(f"0 of {runs} runs", silent=silent) as shown:
        if shown is None:
            yield None
            return

        def told(workload: str, label: str, seed: int, share: float) -> None:
            shares[workload, label, seed] = share
            done = sum(1 for value in shares.values() if value >= 1.0)
            shown.tell(sum(shares.values()) / runs, f"{done} of {runs} runs")

        yield told


def _as_json(found: Tournament) -> dict[str, Any]:
    from dataclasses import asdict

    from dovetail.bench.tournament import BASELINE, FIGURES

    by_workload = []
    for workload in found.workloads:
        comparison, rows = found.played[workload.name], []
        for choice in found.choices:
            label = choice.label
            intervals = {column.key: comparison.interval(label, column) for column in FIGURES}
            falls = [fall for fall in found.shortfalls(label) if fall.workload == workload.name]
            rows.append(
                {
                    "label": label,
                    "policy": choice.policy,
                    "options": dict(choice.options),
                    "figures": {key: asdict(value) for key, value in intervals.items() if value is not None},
                    "worse": [
                        {
                            "objective": fall.claim.objective,
                            "figure": fall.claim.column.key,
                            "value": fall.value,
                            "baseline": fall.baseline,
                            "worse_on_seeds": fall.worse,
                        }
                        for fall in falls
                    ],
                }
            )
        by_workload.append(
            {
                "workload": workload.name,
                "stresses": workload.stresses,
                "cluster": workload.spec,
                "gpus": workload.cluster.gpus,
                "jobs": found.jobs,
                "policies": rows,
            }
        )
    return {"seeds": found.seeds, "baseline": BASELINE, "workloads": by_workload}


def _print(found: Tournament, report: Path | None) -> None:
    from dovetail.bench.tournament_page import answer, shortfalls, summary, workload_sheet
    from dovetail.cli.outputs import count, say

    say(answer(found))
    traces = f"{count(len(found.workloads), 'workload')} of {count(found.jobs, 'job')}"
    say(f"{len(found.labels)} policies, {traces}, {count(found.seeds, 'seed')}")
    say()
    if len(found.workloads) == 1:
        _say_table(workload_sheet(found, found.workloads[0].name))
    else:
        say("mean completion time relative to fifo")
        _say_table(summary(found))
    say()
    say("* best   ! worse than fifo in what it claims to be better at")
    worse = shortfalls(found)
    for row in worse.rows:
        say(f"! {row[0]}, {row[1]}: {row[2]}")
    say(f"report:  {report}" if report else "more:  --report tournament.html has all figures")


def _say_table(sheet: Sheet) -> None:
    from dovetail.cli.outputs import aligned, plainly, say

    top: list[list[str]] = [[], []]
    for cell in sheet.head:
        first, _, rest = cell.partition(" ")
        top[0].append(first.removesuffix(","))
        top[1].append(rest)

    def marked(row: Sequence[str]) -> list[str]:
        """Figures with a place for a mark after each."""
        return [row[0], *(cell if cell[-1:] in ("*", "!") else f"{cell} " for cell in row[1:])]

    rows = [marked([plainly(cell) for cell in row]) for row in sheet.rows]
    say(aligned([*map(marked, top if any(top[1]) else top[:1]), *rows]))
