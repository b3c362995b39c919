"""A comparison as one self-contained HTML file.

Charts are SVG made here, so that the page works without scripts; a short script shows the values under the
pointer and can hide policies. Names from traces are untrusted: every text is escaped with `esc`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape as esc
from importlib.resources import files

from dovetail import __version__
from dovetail.bench.chart_data import ChartData, Row
from dovetail.bench.compare import COLUMNS, MORE_COLUMNS, Column, Comparison
from dovetail.bench.metrics import Group
from dovetail.model.formats import duration, figure, hours, unit_for

COLOURS = 8  # in the style sheet; further policies have dashed lines
MOST_GROUPS = 25
HOUR = 3_600.0

_MEASURED = (
    ("completion", "from a job's arrival to its finish, of the jobs that finished"),
    ("waiting", "time in which a job could run and did not, after preemptions too, until it ended"),
    ("first start", "time from a job's arrival to its first start, of the jobs that started"),
    ("makespan", "from the first arrival to the last finish"),
    ("in use", "GPU time held over GPU time available, from the first arrival to the last event"),
    ("GPU-hours lost", "held without lasting work: saving, restoring, work since the last checkpoint"),
    (
        "finish-time rho",
        "completion over the time on an isolated 1/n share of the cluster, n being the jobs in the system "
        "averaged over the job's stay; above 1 the job did worse than that",
    ),
    (
        "Jain's index",
        "over service received / service due of the tenants (weighted max-min share while requests exceed "
        "the GPUs); 1 is even",
    ),
    ("share error", "the part of the GPUs due to tenants that they did not hold"),
    ("GPUs stranded", "the share of all GPUs that is free, but that a waiting job cannot use"),
    ("±", "half of the 95 % interval (Student's t) of the mean over the seeds"),
)


def answer(found: Comparison) -> str:
    """The comparison in a sentence."""
    column = COLUMNS[0]
    means = {label: interval.mean for label in found.labels if (interval := found.interval(label, column))}
    if len(found.labels) == 1:
        metrics = found.first(found.labels[0]).metrics
        return (
            f"{found.labels[0]}: mean completion {_said(metrics.jct.mean)}, "
            f"waiting {_said(metrics.wait.mean)}, {100 * metrics.utilization:.0f} % of the GPU time in use"
        )
    whole = [label for label in found.labels if found.whole(label)]
    if not whole:
        return "no policy finished every job"
    means = {label: means[label] for label in whole}
    if len(whole) == 1:
        return f"only {whole[0]} finished every job: mean completion {_said(means[whole[0]])}"
    best = [label for label in found.labels if label in found.best(column)]
    if not best:
        return f"all have the same mean completion time, {_said(next(iter(means.values()), 0.0))}"
    least = means[best[0]]
    rest = {label: mean for label, mean in means.items() if label not in best}
    have = "has" if len(best) == 1 else "have"
    text = f"{' and '.join(best)} {have} the lowest mean completion time, {_said(least)}"
    if rest and least > 0:
        worst = max(rest, key=lambda label: rest[label])
        ratio = rest[worst] / least
        gap = f"{ratio:.3g} times as long" if ratio >= 1.5 else f"{100 * (ratio - 1):.2g} % longer"
        text += f"; {worst} takes {gap}"
    if level := [label for label in found.labels if label in found.level(column)]:
        text += f" ({found.seeds} seeds show no significant difference from {' and '.join(level)})"
    return text


def rendered(found: Comparison) -> str:
    """The whole page."""
    first = found.first(found.labels[0])
    jobs = first.metrics.jobs
    title = f"{_listed(found.labels)} on {found.trace}"
    facts = [f"{jobs:,} jobs", f"{found.gpus:,} GPUs ({found.cluster})"]
    if found.seeds > 1:
        facts.append(f"{found.seeds} seeds: {found.varies}; charts and tables below the first show seed 0")
    drawn = [(label, found.first(label).charts) for label in found.labels]
    shown = [(label, figures) for label, figures in drawn if figures is not None]
    parts = [
        f"<h1>{esc(title)}</h1>",
        f'<p class="answer">{_unbroken(esc(answer(found)))}.</p>',
        f'<p class="facts">{esc(" · ".join(facts))}</p>',
        *_warnings(found),
        _summary(found),
        _legend(found.labels) if shown and len(found.labels) > 1 else "",
        _charts(shown),
        _gantts(shown, jobs),
        _grouped("By size", "GPUs", found, lambda label: found.first(label).metrics.by_size),
        _grouped("By tenant", "tenant", found, lambda label: found.first(label).metrics.by_tenant),
        _more(found),
        _measured(),
        f"<footer>Made by dovetail {esc(__version__)}. Times are those of the simulation.</footer>",
    ]
    folder = files("dovetail.bench")
    style = (folder / "report.css").read_text(encoding="utf-8")
    style += "".join(f"#gantt{n}:checked ~ #chart{n} {{ display: block; }}\n" for n in range(len(shown)))
    script = (folder / "report.js").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{esc(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + f"\n</main>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _listed(labels: Sequence[str]) -> str:
    if len(labels) > 4:
        return f"{len(labels)} policies"
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def _said(seconds: float) -> str:
    return duration(seconds)


def _unbroken(text: str) -> str:
    """Keep a number and its unit on one line."""
    return re.sub(r"(\d) (?=(?:h|min|s|ms|d|%|times)\b|%)", "\\1\u00a0", text)


def _warnings(found: Comparison) -> Iterable[str]:
    for label in found.labels:
        result = found.first(label)
        metrics = result.metrics
        if result.stalled:
            named = ", ".join(result.stalled[:5]) + (" ..." if len(result.stalled) > 5 else "")
            text = (
                f"{label} deadlocked: {len(result.stalled):,} jobs ({named}) held GPUs to the end "
                "and made no progress. It is not a candidate for the best."
            )
            yield f'<p class="warning" role="note">{esc(text)}</p>'
        elif metrics.waiting:
            text = f"{label} left {metrics.waiting:,} jobs unfinished. It is not a candidate for the best."
            yield f'<p class="warning" role="note">{esc(text)}</p>'


# --- tables ----------------------------------------------------------------------------------------


def _table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, groups: str = "", note: str = ""
) -> str:
    """A table of HTML cells; the first cell of a row is its heading."""
    heads = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "\n".join(
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return (
        f'<section><h2>{esc(caption)}</h2>{note}\n<div class="wide" tabindex="0" role="region" '
        f'aria-label="{esc(caption)}"><table>\n<thead>{groups}<tr>{heads}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div></section>"
    )


def _key(number: int) -> str:
    """A sample of the line of a policy, beside its name."""
    return (
        f'<svg class="key" viewBox="0 0 22 8" aria-hidden="true">'
        f'<path class="line {_pen(number)}" d="M1 4H21"/></svg>'
    )


def _pen(number: int) -> str:
    return f"c{number % COLOURS}" + (" dash" if number >= COLOURS else "")


def _scaled(found: Comparison, column: Column) -> tuple[float, str]:
    """The divisor of a column, and its unit."""
    if column.unit == "share":
        return 0.01, "%"
    if column.unit != "time":
        return 1.0, ""
    means = [interval.mean for label in found.labels if (interval := found.interval(label, column))]
    return unit_for(max(means, default=0.0))


def _compared(found: Comparison, caption: str, columns: Sequence[Column], note: str) -> str:
    scales = [_scaled(found, column) for column in columns]
    head = ["policy"]
    head += [
        esc(column.title) + (f'<span class="unit">{unit}</span>' if unit else "")
        for column, (_, unit) in zip(columns, scales, strict=True)
    ]
    shown = [_marked(found, column, size) for column, (size, _) in zip(columns, scales, strict=True)]
    rows = [
        [f"{_key(number)}{esc(label)}", *(cells[label] for cells in shown)]
        for number, label in enumerate(found.labels)
    ]
    return _table(caption, head, rows, note=note)


def _marked(found: Comparison, column: Column, size: float) -> dict[str, str]:
    """The cells of a column by label, with their marks."""
    cells = {}
    for label in found.labels:
        interval = found.interval(label, column)
        cells[label] = '<span class="none">–</span>' if interval is None else figure(interval.mean / size)
        if interval is not None and interval.half is not None:
            cells[label] += f'<span class="half"> ± {figure(interval.half / size)}</span>'
    marks = found.marks(column, cells)
    for label, mark in marks.items():
        if mark == "best":
            best = '<span class="mark" title="best"> ★</span>'
            cells[label] = f'<strong class="best">{cells[label]}{best}</strong>'
        else:
            cells[label] += '<span class="mark" title="no significant difference from the best"> ≈</span>'
    return cells


def _summary(found: Comparison) -> str:
    note = ""
    if len(found.labels) > 1:
        told = "★ best of its column"
        if found.seeds > 1:
            told += (
                " · ≈ no significant difference from the best (paired, 95 %) · ± 95 % interval of the mean"
            )
        note = f'<p class="facts">{told}</p>'
    return _compared(found, "Summary", COLUMNS, note)


def _more(found: Comparison) -> str:
    columns = [
        column
        for column in MORE_COLUMNS
        if any(found.interval(label, column) is not None for label in found.labels)
    ]
    return _compared(found, "Fairness, losses and cost", columns, "")


def _grouped(caption: str, what: str, found: Comparison, groups_of: Callable[[str], Sequence[Group]]) -> str:
    """Mean completion and waiting of each group of jobs, policy by policy."""
    groups = {label: {group.name: group for group in groups_of(label)} for label in found.labels}
    order = list(groups_of(found.labels[0]))
    if not order:
        return ""
    longest = max((group.jct.mean for by_name in groups.values() for group in by_name.values()), default=0.0)
    size, unit = unit_for(longest / 10)
    reads: list[tuple[str, Callable[[Group], float]]] = [
        ("mean completion", lambda group: group.jct.mean),
        ("mean waiting", lambda group: group.wait.mean),
    ]
    if len(found.labels) < 4:  # more would not fit a page
        reads.insert(1, ("p99 completion", lambda group: group.jct.p99))
    heads = "".join(
        f'<th scope="colgroup" colspan="{len(found.labels)}">{name}<span class="unit">{unit}</span></th>'
        for name, _ in reads
    )
    over = f'<tr><td colspan="3"></td>{heads}</tr>'
    labels = [f"{_key(number)}{esc(label)}" for number, label in enumerate(found.labels)]
    rows = []
    for group in order[:MOST_GROUPS]:
        cells = [esc(group.name or "(none)"), f"{group.jobs:,}", hours(group.gpu_hours)]
        for _, read in reads:
            values = [
                read(groups[label][group.name]) / size if group.name in groups[label] else None
                for label in found.labels
            ]
            known = [value for value in values if value is not None]
            least = min(known) if len(known) > 1 and len(set(known)) > 1 else None
            cells += [
                '<span class="none">–</span>'
                if value is None
                else f'<strong class="best">{figure(value)}</strong>'
                if value == least
                else figure(value)
                for value in values
            ]
        rows.append(cells)
    left = len(order) - MOST_GROUPS
    note = (
        f'<p class="facts">The {MOST_GROUPS} with most work; {left:,} more are left out.</p>'
        if left > 0
        else ""
    )
    return _table(caption, [what, "jobs", "GPU-hours", *labels * len(reads)], rows, groups=over, note=note)


def _measured() -> str:
    items = "".join(f"<dt>{esc(word)}</dt><dd>{esc(means)}</dd>" for word, means in _MEASURED)
    return f"<details><summary>How these are measured</summary><dl>{items}</dl></details>"


# --- charts ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to positions in the drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            low, high, value = math.log(self.low), math.log(self.high), math.log(max(value, self.low))
        else:
            low, high = self.low, self.high
        share = (min(max(value, low), high) - low) / (high - low) if high > low else 0.0
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Axis:
    """Ticks with their labels, and a title."""

    scale: Scale
    ticks: Sequence[tuple[float, str]]
    title: str


_MOMENTS = (
    *((1.0, "1 s"), (10.0, "10 s"), (60.0, "1 min"), (600.0, "10 min"), (HOUR, "1 h"), (6 * HOUR, "6 h")),
    *((24 * HOUR, "1 d"), (168 * HOUR, "1 week"), (720 * HOUR, "30 d"), (8_760 * HOUR, "1 year")),
)
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560.0, 270.0, 50.0, 12.0, 12.0, 42.0


def _legend(labels: Sequence[str]) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-series="{number}">{_key(number)}{esc(label)}'
        "</button>"
        for number, label in enumerate(labels)
    )
    return f'<div class="legend" role="group" aria-label="Show or hide policies">{buttons}</div>'


def _charts(shown: Sequence[tuple[str, ChartData]]) -> str:
    if not shown:
        return ""
    charts = [_cdf(shown), _over_time(shown, "GPUs in use", lambda f: f.in_use, share=True)]
    charts.append(_over_time(shown, "Jobs waiting", lambda f: f.waiting, share=False))
    if any(figures.stranded for _, figures in shown):
        charts.append(_stranded(shown))
    return f'<div class="charts">{"".join(chart for chart in charts if chart)}</div>'


def _cdf(shown: Sequence[tuple[str, ChartData]]) -> str:
    times = [time for _, figures in shown for time, _ in figures.cdf]
    if not times:
        return ""
    low = max(min(times), 1.0)
    high = max(*times, low * 1.01)
    x = Scale(low, high, _LEFT, _WIDTH - _RIGHT, log=True)
    ticks = [(at, word) for at, word in _MOMENTS if low <= at <= high]
    if len(ticks) < 2:
        ticks = [(low, _said(low)), (high, _said(high))]
    lines = [
        (label, [(figures.cdf[0][0], 0.0), *figures.cdf] if figures.cdf else []) for label, figures in shown
    ]
    return _chart(
        "Completion times",
        "Share of the jobs that finished within a time; further left and higher is better.",
        Axis(x, ticks, "completion time, log scale"),
        Axis(_share_scale(), _SHARES, ""),
        lines,
        kind="time|share",
        steps=True,
    )


_SHARES = ((0.0, "0"), (0.25, "25 %"), (0.5, "50 %"), (0.75, "75 %"), (1.0, "100 %"))


def _share_scale() -> Scale:
    return Scale(0.0, 1.0, _HEIGHT - _BOTTOM, _TOP)


def _time_axis(high: float) -> Axis:
    size, unit = next(
        ((s, name) for s, name in ((86_400.0, "days"), (HOUR, "hours"), (60.0, "minutes")) if high >= 2 * s),
        (1.0, "seconds"),
    )
    ticks = [(at * size, f"{at:g}") for at in _round_ticks(high / size)]
    return Axis(Scale(0.0, high, _LEFT, _WIDTH - _RIGHT), ticks, f"{unit} since the first arrival")


def _round_ticks(high: float, wanted: int = 6) -> list[float]:
    """About `wanted` round numbers from 0 to `high`."""
    if high <= 0:
        return [0.0]
    rough = high / wanted
    step = 10.0 ** math.floor(math.log10(rough))
    step *= next(times for times in (1, 2, 5, 10) if times * step >= rough * 0.999)
    return [k * step for k in range(int(high / step + 1e-9) + 1)]


def _over_time(
    shown: Sequence[tuple[str, ChartData]],
    title: str,
    read: Callable[[ChartData], list[float]],
    *,
    share: bool,
) -> str:
    lines = []
    for label, figures in shown:
        middles = [(a + b) / 2 for a, b in zip(figures.edges, figures.edges[1:], strict=False)]
        lines.append((label, list(zip(middles, read(figures), strict=True))))
    high = max((figures.edges[-1] for _, figures in shown if figures.edges), default=0.0)
    if not high:
        return ""
    if share:
        y = Axis(_share_scale(), _SHARES, "")
        told = "Share of the cluster's GPUs that jobs hold, averaged over 240 time bins."
    else:
        most = max((value for _, points in lines for _, value in points), default=0.0) or 1.0
        ticks = [(at, f"{at:,.0f}" if most >= 5 else f"{at:g}") for at in _round_ticks(most, 4)]
        y = Axis(Scale(0.0, most * 1.03, _HEIGHT - _BOTTOM, _TOP), ticks, "")
        told = "Jobs in the queue, averaged over 240 time bins; lower is better."
    return _chart(title, told, _time_axis(high), y, lines, kind="span|share" if share else "span|count")


def _stranded(shown: Sequence[tuple[str, ChartData]]) -> str:
    high = max((figures.edges[-1] for _, figures in shown if figures.edges), default=0.0)
    lines = [(label, figures.stranded) for label, figures in shown]
    most = max(max((share for _, points in lines for _, share in points), default=0.0), 0.01)
    ticks = [(at / 100, f"{at:g} %") for at in _round_ticks(100 * most, 4)]
    return _chart(
        "GPUs stranded",
        "Share of the GPUs that is free, but that the waiting jobs cannot use.",
        _time_axis(high),
        Axis(Scale(0.0, most * 1.03, _HEIGHT - _BOTTOM, _TOP), ticks, ""),
        lines,
        kind="span|share",
        steps=True,
    )


def _chart(
    title: str,
    told: str,
    x: Axis,
    y: Axis,
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    *,
    kind: str,
    steps: bool = False,
) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for at, word in y.ticks:
        place = y.scale(at)
        parts.append(f'<path class="grid" d="M{_LEFT:g} {place:.1f}H{right:g}"/>')
        parts.append(f'<text x="{_LEFT - 6:g}" y="{place + 4:.1f}" text-anchor="end">{esc(word)}</text>')
    last = -math.inf
    for at, word in x.ticks:
        place = x.scale(at)
        parts.append(f'<path class="tick" d="M{place:.1f} {bottom:g}v4"/>')
        if place - last >= 44:  # labels must not overlap
            parts.append(f'<text x="{place:.1f}" y="{bottom + 17:g}" text-anchor="middle">{esc(word)}</text>')
            last = place
    parts.append(f'<path class="base" d="M{_LEFT:g} {bottom:g}H{right:g}"/>')
    parts.append(
        f'<text class="title" x="{(_LEFT + right) / 2:g}" y="{_HEIGHT - 6:g}" text-anchor="middle">'
        f"{esc(x.title)}</text>"
    )
    for number, (label, points) in enumerate(lines):
        if points:
            places = [(x.scale(a), y.scale(b)) for a, b in points]
            if steps:
                path = f"{places[0][0]:.1f} {places[0][1]:.1f}"
                path += "".join(f"H{a:.1f}V{b:.1f}" for a, b in places[1:])
            else:
                path = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
            parts.append(
                f'<path class="line {_pen(number)}" data-series="{number}" d="M{path}">'
                f"<title>{esc(label)}</title></path>"
            )
    data = {
        "kind": kind,
        "log": x.scale.log,
        "x": [x.scale.low, x.scale.high, _LEFT, right],
        "names": [label for label, _ in lines],
        "points": [[[_short(a), _short(b)] for a, b in points] for _, points in lines],
    }
    return (
        f'<figure class="chart"><figcaption><h2>{esc(title)}</h2><p>{esc(told)}</p></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{esc(title)}. {esc(told)}">'
        f'{"".join(parts)}<path class="cross" d="M0 {_TOP:g}V{bottom:g}" hidden/></svg>'
        f'<output class="reading"></output>'
        f'<script type="application/json">{_json(data)}</script></figure>'
    )


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _json(value: object) -> str:
    """JSON that cannot end the script element around it."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --- the Gantt chart -------------------------------------------------------------------------------

_ROW, _NAMES = 13.0, 150.0
_GANTT_WIDTH = 1_120.0


def _gantts(shown: Sequence[tuple[str, ChartData]], jobs: int) -> str:
    """The same jobs under each policy, one chart at a time."""
    drawn = [(label, figures) for label, figures in shown if figures.rows]
    if not drawn:
        return ""
    rows = drawn[0][1].rows
    low = min(row.submit for row in rows)
    ends = sorted(row.finish for _, figures in drawn for row in figures.rows if row.finish is not None)
    if not ends:
        return ""
    # a few jobs that run for weeks would squeeze all others
    high = ends[-1] if len(ends) < 12 else min(ends[-1], max(ends[int(0.85 * len(ends))], low + 1.0) * 1.02)
    inputs, charts = [], []
    for number, (label, figures) in enumerate(drawn):
        checked = " checked" if number == 0 else ""
        inputs.append(
            f'<input type="radio" name="gantt" id="gantt{number}"{checked}>'
            f'<label for="gantt{number}">{esc(label)}</label>'
        )
        charts.append(_gantt(number, label, figures, low, high))
    which = f"all {jobs:,} jobs" if len(rows) == jobs else f"{len(rows):,} of the {jobs:,} jobs"
    told = f"Shows {which}: a thin line while a job waits, a bar while it runs, darker for more GPUs."
    if len(rows) < jobs:
        told += " They are an even sample of the time in which the queue builds up."
    if high < ends[-1]:
        told += " Later times are cut off."
    return (
        f'<section class="gantts"><h2>The same jobs under each policy</h2><p class="told">{esc(told)}</p>'
        f"{''.join(inputs)}{''.join(charts)}</section>"
    )


def _gantt(number: int, label: str, figures: ChartData, low: float, high: float) -> str:
    rows = figures.rows
    height = 22 + _ROW * len(rows) + 34
    bottom = 22 + _ROW * len(rows)
    x = Scale(low, high, _NAMES, _GANTT_WIDTH - 10)
    size, unit = next(
        ((s, n) for s, n in ((86_400.0, "days"), (HOUR, "hours"), (60.0, "minutes")) if high - low >= 2 * s),
        (1.0, "seconds"),
    )
    parts = []
    for at in _round_ticks((high - low) / size, 8):
        place = x(low + at * size)
        parts.append(f'<path class="grid" d="M{place:.1f} 16V{bottom:g}"/>')
        parts.append(f'<text x="{place:.1f}" y="{bottom + 14:g}" text-anchor="middle">{at:g}</text>')
    parts.append(
        f'<text class="title" x="{_GANTT_WIDTH / 2:g}" y="{bottom + 30:g}" text-anchor="middle">'
        f"{unit} since the first of these jobs arrived</text>"
    )
    most = max((row.gpus for row in rows), default=1)
    for at, row in enumerate(rows):
        parts.append(_waiting_line(at, row, x, high))
    left = figures.stretches - len(figures.bars)
    for bar in figures.bars:
        if bar.start >= high:
            continue
        row, top = rows[bar.row], 22 + _ROW * bar.row + 2
        begin, width = x(bar.start), max(x(bar.end) - x(bar.start), 0.8)
        strength = 0.35 + 0.65 * (math.log2(row.gpus + 1) / math.log2(most + 1) if most > 1 else 1.0)
        title = (
            f"{row.job}: {row.gpus} GPUs on {bar.nodes} for {_said(bar.end - bar.start)}, "
            f"from {_said(bar.start)} to {_said(bar.end)}"
        )
        parts.append(
            f'<rect class="{_pen(number)}" x="{begin:.1f}" y="{top:g}" width="{width:.1f}" '
            f'height="{_ROW - 4:g}" fill-opacity="{strength:.2f}"><title>{esc(title)}</title></rect>'
        )
    told = f'<p class="told">{left:,} later bars are left out.</p>' if left > 0 else ""
    spoken_label = esc(f"When each of {len(rows)} jobs ran under {label}")
    return (
        f'<div class="gantt wide" id="chart{number}"><svg viewBox="0 0 {_GANTT_WIDTH:g} {height:g}" '
        f'role="img" aria-label="{spoken_label}">{"".join(parts)}</svg>{told}</div>'
    )


def _waiting_line(at: int, row: Row, x: Scale, high: float) -> str:
    middle = 22 + _ROW * at + _ROW / 2
    end = row.finish if row.finish is not None else high
    name = row.job if len(row.job) <= 18 else f"{row.job[:8]}…{row.job[-9:]}"
    title = f"{row.job}: {row.gpus} GPUs, waited {_said(row.wait)}"
    if row.finish is not None:
        title += f", done after {_said(row.finish - row.submit)}"
    return (
        f'<g><title>{esc(title)}</title><text x="{_NAMES - 8:g}" y="{middle + 3.5:g}" text-anchor="end">'
        f'{esc(name)}<tspan class="title"> ×{row.gpus}</tspan></text>'
        f'<path class="wait" d="M{x(row.submit):.1f} {middle:g}H{x(end):.1f}"/></g>'
    )
