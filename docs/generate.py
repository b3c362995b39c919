"""Writes what the docs can read off the code: docs/reference, the index of systems, the list of claims.

python docs/generate.py           write what has changed (make docs)
python docs/generate.py --check   write nothing, name what is out of date, exit with 1 if something is

The same code gives the same bytes, whatever the terminal.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import inspect
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from dovetail.cli.main import app
from dovetail.cli.policies import OBJECTIVES, options_of
from dovetail.cli.policies import _typed as typed
from dovetail.core.journal import Header, JournalWriter
from dovetail.model.cluster import parse_cluster
from dovetail.model.event import Kind
from dovetail.model.job import Job, gang
from dovetail.model.units import SECOND
from dovetail.policies.table import POLICIES
from dovetail.sim.run import run

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "dovetail"
CLAIMS = "src/dovetail/policies/claims.csv"
NOTE = "<!-- written by docs/generate.py: change the code, then run `make docs` -->\n"


def main(arguments: list[str]) -> int:
    unknown = [word for word in arguments if word != "--check"]
    if unknown:
        print(f"error: docs/generate.py does not know {unknown[0]}; it takes --check", file=sys.stderr)
        return 2
    (ROOT / "docs/reference").mkdir(exist_ok=True)
    stale = []
    for path, text in pages():
        file = ROOT / path
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if "--check" not in arguments:
            file.write_text(text, encoding="utf-8", newline="\n")
            print(f"wrote {path}")
    if stale and "--check" in arguments:
        print(f"error: out of date: {', '.join(stale)}; run make docs", file=sys.stderr)
        return 1
    return 0


def pages() -> Iterator[tuple[str, str]]:
    """Each generated file and its text."""
    claims = list(claims_of_tests())
    yield CLAIMS, claims_csv(claims)
    yield "docs/systems/README.md", systems_page(claims)
    yield "docs/reference/cli.md", cli_page()
    yield "docs/reference/policies.md", policies_page()
    yield "docs/reference/python.md", python_page()
    yield "docs/reference/formats.md", formats_page()


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


# -- claims


class Collector:
    """Keeps what pytest collects."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def claims_of_tests() -> Iterator[tuple[str, str, str]]:
    """(system, sentence, test) of every claim that is tested: not of tests that are skipped or fail."""
    found, said = Collector(), io.StringIO()
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={ROOT}"]
    options += ["-c", str(ROOT / "pyproject.toml"), str(ROOT / "tests/claims")]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main(options, [found])
    if code != pytest.ExitCode.OK:
        sys.exit(f"error: the claim tests cannot be collected\n{said.getvalue()}")
    seen = set()
    for item in found.items:
        if any(item.get_closest_marker(mark) for mark in ("skip", "xfail")):
            continue
        test = item.nodeid.partition("[")[0]
        for mark in item.iter_markers("claim"):
            system, sentence = mark.args
            if (system, sentence, test) not in seen:
                seen.add((system, sentence, test))
                yield system, sentence, test


def claims_csv(claims: list[tuple[str, str, str]]) -> str:
    place = {row["name"]: number for number, row in enumerate(catalogue())}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["system", "sentence", "test"])
    rows = [(place.get(system, len(place)), system, test, sentence) for system, sentence, test in claims]
    writer.writerows((system, sentence, test) for _, system, test, sentence in sorted(rows))
    return out.getvalue()


def catalogue() -> list[dict[str, str]]:
    with (SOURCE / "policies/catalogue.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# -- systems


def systems_page(claims: list[tuple[str, str, str]]) -> str:
    shown = {name: sum(1 for system, _, _ in claims if system == name) for name in POLICIES.paths}
    rows = catalogue()
    now = [row for row in rows if shown.get(row["name"])]
    later = [row for row in rows if not shown.get(row["name"])]

    def told(row: dict[str, str]) -> list[str]:
        aims = ", ".join(OBJECTIVES.get(word, word) for word in row["objectives"].split())
        return [row["year"] or "-", row["kind"], aims, row["title"]]

    head = ["year", "for", "objectives", "what it is"]
    working = table(
        ["system", *head, "claims"],
        ([f"[{row['name']}]({row['name']}.md)", *told(row), str(shown[row["name"]])] for row in now),
    )
    coming = table(["system", *head], ([row["name"], *told(row)] for row in later))
    return (
        f"{NOTE}# Systems\n\n"
        f"{len(now)} of {len(rows)} published schedulers work. One works when it can be run by name and a\n"
        "claim test shows it doing what it was published for, on a small scenario where its natural\n"
        "baseline does not. Each has a page: what it claims, how it decides, its options, where we differ,\n"
        "the tests. All options are also in the [reference](../reference/policies.md).\n\n"
        f"## Work now\n\n{working}\n## To come\n\n{coming}"
    )


# -- the command line


def cli_page() -> str:
    group: Any = typer.main.get_command(app)
    parts = [
        f"{NOTE}# Command line\n\n{prose(group.help)}\n"
        "`dove` is short for `dovetail`. Exit code 0: done; 1: the run failed; 2: a wrong question, such as\n"
        "a missing file or an unknown option; 130: interrupted.\n"
    ]
    parts += [
        command_section(f"dovetail {name}", command)
        for name, command in each_command(group.commands)
        if not command.hidden
    ]
    return "\n".join(parts)


def each_command(commands: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in commands.items():
        if inner := getattr(command, "commands", None):
            yield from each_command(inner, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def command_section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = [name]
    for argument in arguments:
        word = (argument.metavar or argument.name.upper()).strip("[]")
        usage.append(word if argument.required else f"[{word}]")
    usage += [f"{option.opts[-1]} {option.metavar}" for option in options if option.required]
    if any(not option.required for option in options):
        usage.append("[OPTIONS]")
    rows = [
        [f"`{(p.metavar or p.name.upper()).strip('[]')}`", "" if p.required else "optional", p.help or ""]
        for p in arguments
    ]
    for option in options:
        word = ", ".join(option.opts) + (f" {option.metavar}" if option.metavar else "")
        default = "" if option.default is None or option.is_flag else f"`{option.default}`"
        rows.append([f"`{word}`", "required" if option.required else default, option.help])
    rows.append(["`-h, --help`", "", "Show what it takes."])
    listed = table(["argument or option", "default", "meaning"], rows)
    return f"## {name}\n\n```\n{' '.join(usage)}\n```\n\n{prose(command.help)}\n{listed}"


def prose(text: str) -> str:
    """A help text as Markdown: what stands after `\\b` is an example."""
    out = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph.lstrip().startswith("\b"):
            lines = [line.strip() for line in paragraph.splitlines() if line.strip("\b ")]
            out.append("```\n" + "\n".join(lines) + "\n```\n")
        else:
            out.append("\n".join(line.strip() for line in paragraph.splitlines()) + "\n")
    return "\n".join(out)


# -- policies


def policies_page() -> str:
    parts = [
        f"{NOTE}# Policies\n\nSet an option with `--set key=value`, after a colon in `compare --policies "
        "fifo:discipline=skip`, or as an\nargument of `POLICIES.make(name, key=value)`.\n"
    ]
    titles = {row["name"]: row["title"] for row in catalogue()}
    for name in POLICIES.paths:
        doc = inspect.getdoc(POLICIES.factory(name)) or ""
        options = options_of(name)
        rows = [[f"`{o['name']}`", f"`{typed(o['default'])}`", o["type"]] for o in options]
        listed = table(["option", "default", "values"], rows) if rows else "It has no options.\n"
        parts.append(
            f"## {name}\n\n{titles[name][0].upper()}{titles[name][1:]}. [Its page](../systems/{name}.md).\n\n"
            f"{doc.strip()}\n\n{listed}"
        )
    return "\n".join(parts)


# -- Python

MODULES: dict[str, tuple[str, ...]] = {
    "model": (
        *("units", "job", "cluster", "grant", "speed", "view", "event", "action", "registry", "chance"),
        "errors",
    ),
    "core": ("core", "journal", "replay", "explain"),
    "sim": ("run", "world", "simulate", "outcomes"),
    "traces": (),  # what the package itself passes on
    "bench": ("metrics", "compare", "report"),
}
INTRO = """# Python

What a program may use, package by package, with what is first said of each. Names that begin with an
underscore may change at any time. Times are integer microseconds (`SECOND` is a million of them) unless a
name or a sentence says otherwise.
"""


def python_page() -> str:
    parts = [NOTE + INTRO]
    for package, modules in MODULES.items():
        parts.append(f"## dovetail.{package}\n\n{summary(parsed(package, '__init__'))}\n")
        if modules:
            parts += [module_section(package, module) for module in modules]
        else:
            parts.append(exported(package))
    return "\n".join(parts)


def parsed(package: str, module: str) -> tuple[ast.Module, list[str]]:
    text = (SOURCE / package / f"{module}.py").read_text(encoding="utf-8")
    return ast.parse(text), text.splitlines()


def summary(code: tuple[ast.Module, list[str]]) -> str:
    return first_paragraph(ast.get_docstring(code[0]) or "")


def first_paragraph(doc: str) -> str:
    return re.split(r"\n\s*\n", doc.strip(), maxsplit=1)[0]


def module_section(package: str, module: str) -> str:
    tree, lines = parsed(package, module)
    found = [entry for node in tree.body if (entry := described(node, lines))]
    return f"### dovetail.{package}.{module}\n\n{summary((tree, lines))}\n\n" + "\n".join(found)


def exported(package: str) -> str:
    """What `__init__` imports under its own name."""
    found = []
    for node in parsed(package, "__init__")[0].body:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("dovetail."):
            continue
        wanted = {alias.name for alias in node.names if alias.asname == alias.name}
        tree, lines = parsed(package, (node.module or "").rpartition(".")[2])
        for inner in tree.body:
            if getattr(inner, "name", None) in wanted and (entry := described(inner, lines)):
                found.append(entry)
            elif named(inner) & wanted:
                name = min(named(inner) & wanted)
                kind = f": {ast.unparse(inner.annotation)}" if isinstance(inner, ast.AnnAssign) else ""
                found.append(f"#### `{name}{kind}`\n\n{comment(inner, lines)}".rstrip() + "\n")
    return "\n".join(found)


def named(node: ast.stmt) -> set[str]:
    """The names that an assignment gives."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def described(node: ast.stmt, lines: list[str]) -> str | None:
    """A public function or class: its signature, its first paragraph, its fields and methods."""
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
        return f"#### `{signature(node)}`\n\n{documented(node)}"
    if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
        return None
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    parts = [f"#### class `{node.name}{f'({bases})' if bases else ''}`\n\n{documented(node)}"]
    rows: list[list[str]] = []
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign | ast.Assign):
            rows += field_rows(inner, lines)
        elif isinstance(inner, ast.FunctionDef) and (inner.name == "__init__" or inner.name[0] != "_"):
            rows.append(method_row(node.name, inner, lines))
    if rows:
        parts.append(table(["member", "meaning"], rows))
    return "\n".join(parts)


def documented(node: ast.FunctionDef | ast.ClassDef) -> str:
    doc = first_paragraph(ast.get_docstring(node) or "")
    return f"{doc}\n" if doc else ""


def field_rows(node: ast.AnnAssign | ast.Assign, lines: list[str]) -> Iterator[list[str]]:
    for name in sorted(named(node)):
        if name.startswith("_"):
            continue
        kind = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
        value = f" = {ast.unparse(node.value)}" if node.value is not None else ""
        value = re.sub(r"field\(default_factory=(\w+).*", r"\1()", value)
        yield [f"`{name}{kind}{value if len(value) < 60 else ' = ...'}`", comment(node, lines)]


def method_row(owner: str, node: ast.FunctionDef, lines: list[str]) -> list[str]:
    read = any(ast.unparse(mark) in ("property", "cached_property") for mark in node.decorator_list)
    if read:
        shown = f"{node.name}: {ast.unparse(node.returns)}" if node.returns else node.name
    else:
        shown = signature(node).replace("__init__(", f"{owner}(", 1).removesuffix(" -> None")
    doc = first_paragraph(ast.get_docstring(node) or "") or comment(node, lines)
    return [f"`{shown}`", " ".join(doc.split())]


def signature(node: ast.FunctionDef) -> str:
    arguments = node.args
    mine = ast.unparse(arguments)
    mine = re.sub(r"^(self|cls)(, )?", "", mine)
    return f"{node.name}({mine})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def comment(node: ast.stmt, lines: list[str]) -> str:
    """What is said beside it, at the end of its last line or of a line within."""
    start, end = node.lineno - 1, node.end_lineno or node.lineno
    for line in reversed(lines[start:end]):
        code, mark, said = line.rpartition("  # ")
        if mark and code.strip() and not said.startswith(("noqa", "type:")):
            return said.strip()
    return ""


# -- formats


def formats_page() -> str:
    tree, lines = parsed("model", "event")
    kinds = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Kind")
    facts = {min(named(node)): comment(node, lines) for node in kinds.body if isinstance(node, ast.Assign)}
    events = table(
        ["kind", "name", "fact and meaning"],
        ([str(kind.value), kind.name.lower().replace("_", " "), facts[kind.name]] for kind in Kind),
    )
    tree, lines = parsed("model", "action")
    actions = table(
        ["action", "fields", "meaning"],
        (
            [
                node.name,
                ", ".join(name for inner in node.body for name in sorted(named(inner))),
                " ".join((ast.get_docstring(node) or "").split()),
            ]
            for node in tree.body
            if isinstance(node, ast.ClassDef)
        ),
    )
    head, steps = example_journal()
    return f"""{NOTE}# Formats

Traces and clusters have a page of their own: [Traces](../guides/traces.md). Here is the journal, which
`dovetail simulate --journal FILE` writes and `explain` and `replay` read.

## Journal

A journal is a text file in UTF-8 with one JSON object a line; with `.gz` at the end of its name it is packed.
It is written beside its name as `FILE.part` and moved there when it is whole. Equal runs give equal bytes. It
needs nothing beside it: cluster and jobs are inside. Times are integer microseconds from the start of the
trace.

The first line says what was run: `dovetail` is the version of the format, then `policy`, `options`, `seed`
and `cluster`, with every node, the links and the tenants.

```json
{head}
```

Each further line is a step: one call of the core.

| key | meaning |
| --- | --- |
| `n` | its number, from 1 |
| `t` | its time |
| `decided` | whether the policy was asked |
| `events` | what happened since the step before, each `[time, kind, subject, epoch, fact]` |
| `actions` | what is to be done, each `[name, field, ...]` |

```json
{steps}
```

### Events

`subject` is a job or a node; `epoch` counts the starts of a job, so that late word of an earlier start is
known for what it is. The fact of a kind stands in brackets.

{events}
A submitted job is written with `id`, `arrived_at`, `work`, and what is not as usual about it: `estimate` if
it is not the work; of `shape`, `tenant`, `user`, `model`, `group`, `priority`, `deadline`, `fails_after` and
`traits` what differs from the default. The fields are those of `Job`, `Shape` and `Traits` in
[Python](python.md).

### Actions

{actions}
`spots` is a list of `[node, devices, share, cpus, memory]`: the node's place in the cluster's list, a mask of
its devices (bit 0 is the first), milli-GPUs of each (below 0: minus the mask of memory
slots of a slice), milli-cores, bytes. `terms` is null where nothing is
special.
"""


def example_journal() -> tuple[str, str]:
    """A run small enough to read."""
    cluster = parse_cluster("1x2")
    jobs = [
        Job("a", 0, gang(2), work=60 * SECOND, estimate=60 * SECOND),
        Job("b", 5 * SECOND, gang(1), work=30 * SECOND, estimate=60 * SECOND, tenant="red"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.jsonl"
        with JournalWriter(file, Header(cluster, "fifo", {})) as journal:
            run(jobs, cluster, POLICIES.make("fifo"), on_step=lambda core, step: journal.write(step))
        first, *steps = file.read_text(encoding="utf-8").splitlines()
    return json.dumps(json.loads(first), ensure_ascii=False), "\n".join(steps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
