"""The tournament as a page: a page of the docs in Markdown, or one HTML file.

Both have the same tables. `!` marks a figure in which a policy is worse than `fifo` and claims to be better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape as esc
from importlib.resources import files
from textwrap import fill

from dovetail import __version__
from dovetail.bench.compare import Column
from dovetail.bench.tournament import BASELINE, CPU, FIGURES, SLACK, Shortfall, Tournament
from dovetail.bench.workloads import COSTS, LOAD, RESIZE, SPLIT, WORKLOADS
from dovetail.model.formats import count, figure, percent, unit_for
from dovetail.model.units import SECOND
from dovetail.policies.registry import POLICIES

JCT = FIGURES[0]
STARRED = ("jct_mean", "jct_p99", "makespan", "rho_max", "jain", "missed")  # the best is marked
WIDTH = 118
COMMAND = "make bench-policies"


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table with a heading; cells are plain text, and the first cell of a row is a policy."""

    title: str
    text: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def answer(found: Tournament) -> str:
    """The tournament in a sentence."""
    wins = Counter(
        label for workload in found.workloads for label in sorted(found.played[workload.name].best(JCT))
    )
    short = sum(1 for label in found.labels if found.shortfalls(label))
    total = count(len(found.workloads), "workload")
    if wins:
        leader, won = wins.most_common(1)[0]
        where = f"on {won} of {total}" if len(found.workloads) > 1 else f"on {found.workloads[0].name}"
        text = f"{leader} has the lowest mean completion time {where}"
    else:
        text = "no policy is ahead of the others in mean completion time"
    if not short:
        return f"{text}; no policy is worse than {BASELINE} where it claims to be better"
    said = "1 policy is" if short == 1 else f"{short} policies are"
    claim = "it claims" if short == 1 else "they claim"
    return f"{text}; {said} worse than {BASELINE} where {claim} to be better"


def summary(found: Tournament) -> Sheet:
    """Mean completion time relative to the baseline, of each policy on each workload."""
    head = ("policy", *(workload.name for workload in found.workloads), CPU.title)
    rows = []
    for label in found.labels:
        short = {fall.workload for fall in found.shortfalls(label)}
        cells = [label]
        for workload in found.workloads:
            ratio = found.against_baseline(workload.name, label)
            cell = "unfinished" if ratio is None else f"{ratio:.2f}"
            best = "*" if label in found.played[workload.name].best(JCT) else ""
            cells.append(cell + best + ("!" if workload.name in short else ""))
        rows.append((*cells, figure(found.cpu(label))))
    return Sheet(
        "All workloads",
        f"Mean completion time relative to `{BASELINE}`: below 1 is faster. It is a low bar: `{BASELINE}` is "
        "strict, so that a wide job delays all jobs behind it. `*`: the lowest of the workload. "
        f"`!`: the policy is worse than `{BASELINE}` in something that it claims to be better at: "
        "completion time, utilisation (makespan), fairness, deadlines. `unfinished`: some jobs did not end.",
        head,
        tuple(rows),
    )


def shortfalls(found: Tournament) -> Sheet:
    """One row for each policy and objective in which the policy falls short."""
    rows: list[tuple[str, ...]] = []
    for label in found.labels:
        by_objective: dict[str, list[Shortfall]] = {}
        for fall in found.shortfalls(label):
            by_objective.setdefault(fall.claim.objective, []).append(fall)
        for objective, falls in by_objective.items():
            rows.append((label, objective, "; ".join(map(_fall, falls))))
    text = (
        f"By more than {percent(SLACK)} in the mean over the seeds. A policy that is worse on some seeds "
        "only may have had bad luck. The page of the policy says why."
        if rows
        else "None."
    )
    head = ("policy", "objective", f"workload: its figure, that of {BASELINE}") if rows else ()
    return Sheet(f"Worse than {BASELINE} where they claim to be better", text, head, tuple(rows))


def _fall(fall: Shortfall) -> str:
    column = fall.claim.column
    size, unit = _scale(column, [fall.value, fall.baseline])
    unit = f" {unit}" if unit else ""
    mine, other = figure(fall.value / size) + unit, figure(fall.baseline / size) + unit
    left = f", {figure(fall.unfinished)} jobs unfinished" if fall.unfinished else ""
    some = f" (worse on {fall.worse} of {fall.seeds} seeds)" if fall.worse < fall.seeds else ""
    return f"{fall.workload}: {column.title} {mine}, {other}{some}{left}"


def workload_sheet(found: Tournament, name: str) -> Sheet:
    """All figures of one workload, the policy with the lowest mean completion time first."""
    workload = WORKLOADS[name]
    columns = found.columns(name)
    comparison = found.played[name]
    means = {label: found.figure(name, label, JCT) or 0.0 for label in found.labels}
    order = sorted(found.labels, key=lambda label: (not comparison.whole(label), means[label]))
    scales = {
        column.key: _scale(column, [found.figure(name, label, column) or 0.0 for label in found.labels])
        for column in columns
    }
    head = ["policy"]
    for column in columns:
        unit = scales[column.key][1]
        head.append(f"{column.title}, {unit}" if unit else column.title)
    rows = []
    for label in order:
        short = {fall.claim.column.key for fall in found.shortfalls(label) if fall.workload == name}
        cells = [label]
        for column in columns:
            value = found.figure(name, label, column)
            cell = "-" if value is None else figure(value / scales[column.key][0])
            best = column.key in STARRED and label in comparison.best(column)
            cells.append(cell + ("*" if best else "") + ("!" if column.key in short else ""))
        rows.append(tuple(cells))
    stresses = f"{workload.stresses[0].upper()}{workload.stresses[1:]}."
    text = f"{stresses} {count(found.jobs, 'job')} on `{workload.spec}`, {count(found.seeds, 'seed')}."
    return Sheet(name, text, tuple(head), tuple(rows))


def _scale(column: Column, values: Sequence[float]) -> tuple[float, str]:
    """The divisor of a column, and its unit."""
    if column.unit == "share":
        return 0.01, "%"
    return unit_for(max(values)) if column.unit == "time" else (1.0, "")


def sheets(found: Tournament) -> list[Sheet]:
    each = [workload_sheet(found, workload.name) for workload in found.workloads]
    return [summary(found), shortfalls(found), *each]


def _terms() -> str:
    return (
        f"Every policy has its default options. The load is {LOAD}: the work of all jobs over what the "
        "cluster can do between the first and the last arrival. A declared duration is wrong by up to a "
        f"factor of two either way. A preemption takes {COSTS.save // SECOND} s to save and "
        f"{COSTS.restore // SECOND} s to restore, a resize {RESIZE // SECOND} s. A gang on more nodes "
        f"than it needs is {SPLIT} times slower. The same jobs give the same figures, except CPU seconds: "
        "those are of the machine that made this page, simulation and decisions together."
    )


# --- Markdown --------------------------------------------------------------------------------------


def markdown(found: Tournament) -> str:
    """A page of docs/systems, beside the pages of the policies."""
    parts = [
        f"<!-- written by `{COMMAND}`: change the code, then run it again -->\n# The tournament\n",
        _wrapped(f"{_count(found)}: {answer(found)}."),
        _wrapped(_terms()),
        _wrapped(
            f"`{COMMAND}` makes this page. `dovetail tournament` plays a part of it, or your own policy "
            "([how](../guides/compare.md#against-every-policy)). [Metrics](../concepts/metrics.md) defines "
            "the figures. The workloads are in `src/dovetail/bench/workloads.py`."
        ),
    ]
    pages = {choice.label: choice.policy for choice in found.choices if choice.policy in POLICIES.paths}
    for sheet in sheets(found):
        parts.append(f"## {sheet.title}\n\n{_wrapped(sheet.text)}")
        if sheet.head:
            rows = [(_linked(row[0], pages), *row[1:]) for row in sheet.rows]
            parts.append(_markdown_table(sheet.head, rows))
    return "\n".join(parts)


def _wrapped(text: str) -> str:
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def _linked(label: str, pages: Mapping[str, str]) -> str:
    return f"[{label}]({pages[label]}.md)" if label in pages else f"`{label}`"


def _count(found: Tournament) -> str:
    policies = "1 policy" if len(found.labels) == 1 else f"{len(found.labels)} policies"
    return f"{policies} on {count(len(found.workloads), 'workload')}"


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    marks = ["---", *("---:" if _figures(rows, at) else "---" for at in range(1, len(head)))]
    lines = [head, marks, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _figures(rows: Sequence[Sequence[str]], at: int) -> bool:
    """Whether a column holds figures, which are aligned on the right."""
    return all(row[at][:1].isdigit() or row[at].startswith(("-", "<", "unfinished")) for row in rows)


# --- HTML ------------------------------------------------------------------------------------------


def html(found: Tournament) -> str:
    """One self-contained file."""
    style = (files("dovetail.bench") / "report.css").read_text(encoding="utf-8")
    body = [
        f"<h1>{esc(_count(found))}</h1>",
        f'<p class="answer">{esc(answer(found))}.</p>',
        f'<p class="facts">{esc(_terms())}</p>',
        *map(_section, sheets(found)),
        f"<footer>Made by dovetail {esc(__version__)}. Times are those of the simulation.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Tournament</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _section(sheet: Sheet) -> str:
    text = f'<h2>{esc(sheet.title)}</h2><p class="facts">{esc(sheet.text.replace("`", ""))}</p>'
    if not sheet.head:
        return f"<section>{text}</section>"
    heads = "".join(f'<th scope="col">{esc(cell)}</th>' for cell in sheet.head)
    rows = "\n".join(
        f'<tr><th scope="row">{esc(row[0])}</th>'
        + "".join(f"<td>{esc(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in sheet.rows
    )
    return (
        f'<section>{text}\n<div class="wide" tabindex="0" role="region" aria-label="{esc(sheet.title)}">'
        f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div></section>"
    )
