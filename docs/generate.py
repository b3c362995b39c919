"""Writes what the docs can read off the code: docs/reference, the index of systems, the list of claims.

python docs/generate.py           write what has changed (make docs)
python docs/generate.py --check   write nothing, name what is out of date, exit with 1 if something is

The same code gives the same bytes, whatever the terminal.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import dataclasses
import inspect
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from dovetail.cli.main import VERBS, app
from dovetail.cli.policies import OBJECTIVES
from dovetail.cli.policies import _typed as typed
from dovetail.control import forms, problems, request, resources, states
from dovetail.control.api import problems as api_problems
from dovetail.control.api.app import make_app
from dovetail.control.request import JobRequest
from dovetail.core.journal import Header, JournalWriter
from dovetail.engines.environment import processes
from dovetail.engines.launch import Launch, Share
from dovetail.model.cluster import parse_cluster
from dovetail.model.event import Kind
from dovetail.model.job import Job, gang
from dovetail.model.units import SECOND
from dovetail.policies.catalogue import options_of
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
    yield "docs/reference/jobfile.md", jobfile_page()
    yield "docs/reference/environment.md", environment_page()
    description = openapi()
    yield "docs/reference/api.md", api_page(description)
    yield "docs/reference/openapi.json", json.dumps(description, indent=1, ensure_ascii=False) + "\n"
    yield "docs/reference/metrics.md", metrics_page()


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
    options += [
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    ]  # of what we have imported, and do not test
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
        "a missing file or an unknown option; 130: interrupted. `run` and `submit --wait` end with the\n"
        "code of the job; 124 if it ran out of time, 130 if it was cancelled, 137 if out of memory.\n\n"
        "Verbs of the live plane find it in the state folder of this machine (`--state`,\n"
        "`DOVETAIL_STATE`), or at `DOVETAIL_URL` with `DOVETAIL_TOKEN`.\n"
    ]
    for heading, verbs in VERBS.items():
        parts.append(f"## {heading}\n")
        shown = {name: group.commands[name] for name in verbs if not name.startswith("(")}
        parts += [command_section(f"dovetail {name}", command) for name, command in each_command(shown)]
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
    if type(command).__name__ == "WithCommand":
        usage.append("[-- COMMAND...]")
    rows = [
        [f"`{(p.metavar or p.name.upper()).strip('[]')}`", "" if p.required else "optional", p.help or ""]
        for p in arguments
    ]
    for option in options:
        word = ", ".join([*option.opts, *option.secondary_opts])
        word += f" {option.metavar}" if option.metavar else ""
        silent = option.default is None or option.default == "" or option.is_flag
        default = "" if silent else f"`{option.default}`"
        rows.append([f"`{word}`", "required" if option.required else default, option.help])
    rows.append(["`-h, --help`", "", "Show what it takes."])
    listed = table(["argument or option", "default", "meaning"], rows)
    return f"### {name}\n\n```\n{' '.join(usage)}\n```\n\n{prose(command.help)}\n{listed}"


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
    "client": ("client", "executor", "job", "connection"),
}
INTRO = """# Python

What a program may use, package by package, with what is first said of each. Names that begin with an
underscore may change at any time. Times are integer microseconds (`SECOND` is a million of them) unless a
name or a sentence says otherwise.

What talks to a live plane comes first hand from the package: `dovetail.Client`, `dovetail.Executor`,
`dovetail.JobFailed` and `dovetail.job`, all of [dovetail.client](#dovetailclient). There times are seconds
and moments are `datetime`.
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

Traces and clusters have a page of their own: [Traces](../guides/traces.md); so have [job files](jobfile.md).
Here is the journal, which `dovetail simulate --journal FILE` writes and `explain` and `replay` read. A live
plane keeps the same lines in its database; an admin reads them at `/api/v1/journal`.

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


# -- job files

KINDS_OF_FORM: dict[int, str] = {
    id(form): word
    for form, word in (
        (forms.DURATION, "duration"),
        (forms.TIME_LIMIT, "duration"),
        (forms.MEMORY, "size"),
        (forms.CORES, "cores"),
        (forms.SHARE, "share"),
        (forms.MOMENT, "moment"),
        (forms.PRIORITY, "word or number"),
        (forms.SWITCH, "true or false"),
        (forms.ENV, "names and values"),
        (forms.TENANT, "name"),
        (forms.PATH, "path"),
        (forms.SHELL, "shell text"),
        (resources.ACCELERATORS, "GPUs"),
        (resources.GPU_MEMORY, "range of sizes"),
        (request.ARRAY, "range"),
        (request.DEPENDENCY, "dependency"),
    )
}
JOBFILE = """# Job files

The keys of a job file, which are also the body of `POST /api/v1/jobs`. [Jobs](../guides/jobs.md) shows how to
use them. An unknown key is refused, with the nearest known one. `run` or `command` is needed, all else is
optional.

| written as | examples |
| --- | --- |
| duration | `90` (seconds), `45m`, `2h30m`, `1-12:00:00` |
| size | `400` (bytes), `32G`, `1.5TiB` |
| cores | `4`, `0.5`, `32+` (the same as 32) |
| share | `50%`, `0.5`, `500` (thousandths of a GPU) |
| moment | `2026-12-01T09:00Z`, `+2h`; without a zone: in a file or flag that of its machine, else UTC |
| GPUs | `8`, `A100:8`, `{A100: 8, H100: 8}`, `[H100:8, A100:8]`, `any:1` |
| range | `0-99%8`, `1,3,5-9:2`, a list of numbers |
"""


def jobfile_page() -> str:
    parts = [NOTE + JOBFILE, keys_section("Keys", JobRequest, "")]
    for name, field in JobRequest.model_fields.items():
        if (inner := inner_model(field.annotation)) is not None:
            said = " ".join((inspect.getdoc(inner) or "").split())
            parts.append(keys_section(f"{name}:", inner, said))
    other = table(
        ["written elsewhere", "here"],
        ([f"`{theirs}`", f"`{ours}`"] for theirs, ours in sorted(problems._OTHER_NAMES.items())),
    )
    parts.append(
        "## Words of other systems\n\nThey are refused, and the answer names the right key. `num_nodes`,\n"
        f"`tenant`, `account`, `partition` and `qos` are taken as they are.\n\n{other}"
    )
    rows = [[f"`{state}`", state.letter, "yes" if state.final else ""] for state in states.State]
    parts.append(f"## States of a job\n\n{table(['state', 'letter', 'final'], rows)}")
    return "\n".join(parts)


def inner_model(annotation: Any) -> type[BaseModel] | None:
    for kind in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def keys_section(heading: str, model: type[BaseModel], said: str) -> str:
    schema = model.model_json_schema()
    rows = []
    for name, field in model.model_fields.items():
        described = schema["properties"][name]
        rows.append([
            f"`{name}`", kind_of(field, described), default_of(field), field.description or ""
        ])  # fmt: skip
    listed = table(["key", "written as", "default", "meaning"], rows)
    return f"## {heading}\n\n" + (f"{said}\n\n" if said else "") + listed


def kind_of(field: Any, schema: dict[str, Any]) -> str:
    """How a value is written, in a word or two."""
    if inner_model(field.annotation) is not None:
        return "a table, see below"
    for form in field.metadata:
        if (word := KINDS_OF_FORM.get(id(form))) is not None:
            return word
    if "enum" in schema:
        words = [word for word in schema["enum"] if not word.startswith("SIG")]
        return " ".join(f"`{word}`" for word in words)
    if schema.get("type") == "array":
        return "list of words"
    whole = next((one for one in (schema, *schema.get("anyOf", ())) if one.get("type") == "integer"), None)
    if whole is not None:
        return f"{whole['minimum']:,} to {whole['maximum']:,}"
    return "text"


def default_of(field: Any) -> str:
    """As one would write it."""
    value = field.default
    for form in field.metadata:
        if value and getattr(form, "write", None) is not None:
            value = form.write(value)
    if value is None or value == "" or isinstance(value, BaseModel | dict):
        return ""
    return f"`{', '.join(value) if isinstance(value, tuple) else json.dumps(value).strip(chr(34))}`"


# -- what a job finds around it

VARIABLES = {
    "DOVETAIL_JOB_ID": "Its id.",
    "DOVETAIL_JOB_NAME": "Its name.",
    "DOVETAIL_ATTEMPT": "Which start of the job this is, from 1.",
    "DOVETAIL_RESTART_COUNT": "Starts before this one.",
    "DOVETAIL_RUN_DIR": "A folder of this attempt. `stop.json` appears there when it must stop.",
    "DOVETAIL_CHECKPOINT_DIR": "A folder of the job, the same in every attempt.",
    "DOVETAIL_STARTED_AT": "When this attempt started, seconds since 1970.",
    "DOVETAIL_DEADLINE": "When its time limit ends it, seconds since 1970; only with a limit.",
    "DOVETAIL_NODE": "The name of the node this process is on.",
    "DOVETAIL_NODE_IPS": "The address of each of its nodes, one a line.",
    "DOVETAIL_ARRAY_ID": "Of a member of an array: the array.",
    "DOVETAIL_ARRAY_INDEX": "Of a member of an array: its number.",
    "DOVETAIL_GPU_SHARE": "Thousandths of a GPU it was given; only with `gpu_share`.",
    "CUDA_VISIBLE_DEVICES": "Its GPUs, by UUID (virtual ones by number); empty if it asked for none.",
    "ROCR_VISIBLE_DEVICES": "The same.",
    "HIP_VISIBLE_DEVICES": "The same.",
    "NNODES": "How many nodes it has.",
    "NODE_RANK": "Which of them this is, from 0.",
    "NPROC_PER_NODE": "GPUs on this node, at least 1: what `torchrun` should start.",
    "MASTER_ADDR": "Where its processes meet.",
    "MASTER_PORT": "A port that was free there.",
    "GLOO_SOCKET_IFNAME": "`lo`: all nodes of a local plane are this machine.",
    "RANK": "With `launch: gpu`: number of this process among all.",
    "WORLD_SIZE": "With `launch: gpu`: how many there are.",
    "LOCAL_RANK": "With `launch: gpu`: number of this process on its node.",
    "LOCAL_WORLD_SIZE": "With `launch: gpu`: how many are on this node.",
    "GROUP_RANK": "With `launch: gpu`: number of the node.",
}
ONLY_AT_START = {
    "DOVETAIL_STARTED_AT",
    "DOVETAIL_DEADLINE",
    "SLURM_JOB_END_TIME",
}  # the supervisor adds these
ONLY_SOMETIMES = {"DOVETAIL_ARRAY_ID", "DOVETAIL_ARRAY_INDEX", "DOVETAIL_GPU_SHARE"}


def environment_page() -> str:
    shares = (Share("n0", ("0", "1")), Share("n1", ("0", "1")))
    launch = Launch("k3v9q2", 1, shares, ("true",), checkpoint_dir="/checkpoints", per_gpu=True)
    ours = set(processes(launch, Path("/run"), 20_000)[0].env)
    ours |= ONLY_SOMETIMES | ONLY_AT_START - {"SLURM_JOB_END_TIME"}
    if wrong := ours ^ set(VARIABLES):
        sys.exit(f"error: say in docs/generate.py what a job finds in {', '.join(sorted(wrong))}")
    array = dataclasses.replace(
        launch, slurm_names=True, env=(("DOVETAIL_ARRAY_ID", "k3v9q2"), ("DOVETAIL_ARRAY_INDEX", "7"))
    )
    theirs = {name for name in processes(array, Path("/run"), 20_000)[0].env if name.startswith("SLURM")}
    slurm = ", ".join(f"`{name}`" for name in sorted(theirs | {"SLURM_JOB_END_TIME"}))
    listed = table(["variable", "meaning"], ([f"`{name}`", said] for name, said in VARIABLES.items()))
    return f"""{NOTE}# Environment of a job

What Dovetail sets in every process of a job. A job's own `env` comes first, except where a name begins with
`DOVETAIL_` or says which devices or which place in the gang a process has.

{listed}
With `slurm_env: true`, and in every `#SBATCH` script, also {slurm}.

Besides it finds the environment of the plane, without the plane's secrets, and `PATH`, `VIRTUAL_ENV`,
`CONDA_PREFIX`, `PYTHONPATH` and `LD_LIBRARY_PATH` of the shell that submitted it on the plane's machine.

## Signals and exit codes

| signal | when |
| --- | --- |
| TERM, or `checkpoint.signal` | it must stop: preempted, cancelled, requeued, or out of time |
| USR1 | its time limit is near, 120 s or `signal_before` before it |
| KILL | `checkpoint.grace` after that, 30 s unless it says otherwise |

| exit code | what becomes of the job |
| --- | --- |
| 0 | `completed` |
| any, after it was told to stop for others | back to the queue, unless it called `dovetail.job.finished()` |
| {states.REQUEUE_ME} | back to the queue, with no retry spent |
| one in `retry.on` as `exit:N` | back to the queue while `retry.max` allows, then `failed` |
| any other | `failed` |

A time limit that is over makes it `timeout`, too much memory `out-of-memory`, a lost supervisor or machine
`node-failed`. `retry.on` may name `timeout` and `node-failure`; who ran out of memory is not started again.
"""


# -- the HTTP API


def openapi() -> dict[str, Any]:
    """The description of the API; no plane is needed to describe it."""
    nobody: Any = SimpleNamespace(store=SimpleNamespace(sqlite=True))
    return make_app(nobody).openapi()


API = """# HTTP API

JSON over HTTP at `/api/v1`. Send `Authorization: Bearer TOKEN`; only `/health`, `/version` and
`/openapi.json` need none. [openapi.json](openapi.json) describes every field; a plane serves the same at
`/openapi.json`. Changes are additive.

- Moments are ISO 8601 in UTC, durations are seconds, memory is bytes.
- A list comes in pages: `items`, and `next`, which goes into `cursor` of the next request. No answer is
  larger than 200 kB.
- `POST /jobs` takes an `Idempotency-Key` header: asked again with the same key, it answers with the same job.
- Roles: a viewer reads what its tenant does, a user also acts on its tenant's jobs, an admin does everything.
  What belongs to another tenant answers as if it were not there.
- At most 1 MB a body, 50 requests a second and token (200 at once), 10 open streams a token.
- `/watch` and `/logs/stream` are server-sent events; `Last-Event-ID` goes on where a stream broke off.
- A plane that does not lead answers 503 with `leader`, the address of the one that does.
"""


def api_page(description: dict[str, Any]) -> str:
    parts = [NOTE + API, "## Calls\n"]
    by_tag: dict[str, list[list[str]]] = {}
    details = []
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            call = f"{method.upper()} {path.removeprefix('/api/v1')}"
            by_tag.setdefault(operation["tags"][0], []).append([f"`{call}`", operation["summary"]])
            details.append(call_section(call, operation))
    for tag, rows in by_tag.items():
        parts.append(f"**{tag}**\n\n{table(['call', 'what it does'], rows)}")
    parts += [f"## Parameters and answers\n\n{''.join(details)}", problems_section()]
    return "\n".join(parts)


def call_section(call: str, operation: dict[str, Any]) -> str:
    text = (
        f"### {call}\n\n{operation['summary']}. {' '.join(operation.get('description', '').split())}".strip()
    )
    rows = []
    for one in operation.get("parameters", ()):
        kind = schema_word(one["schema"])
        said = one.get("description", one["schema"].get("description", ""))
        rows.append([f"`{one['name']}`", one["in"], kind, said])
    text += "\n\n"
    if rows:
        text += table(["parameter", "in", "written as", "meaning"], rows) + "\n"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    answer = next((code for code in operation["responses"] if code.startswith("2")), "200")
    content = operation["responses"][answer].get("content", {})
    told = ", ".join(f"{schema_word(v.get('schema', {}))} ({kind})" for kind, v in content.items())
    text += (
        f"Body: `{schema_word(body)}`. " if body else ""
    ) + f"Answer: {answer}{f', {told}' if told else ''}.\n\n"
    return text


def schema_word(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(schema_word(s) for s in schema["anyOf"] if s.get("type") != "null"))
    kind = str(schema.get("format") or schema.get("type", "JSON"))
    if "minimum" in schema and "maximum" in schema:
        return f"{kind}, {schema['minimum']} to {schema['maximum']}"
    return kind


def problems_section() -> str:
    """The table of its own words, checked against what the code can say."""
    listed = inspect.getdoc(api_problems) or ""
    rows = re.findall(r"^\| /problems/([\w-]+) \| (\d+) \| ?(.*?) ?\|$", listed, re.M)
    if {kind for kind, _, _ in rows} != set(api_problems.TITLES):
        sys.exit("error: the table on top of control/api/problems.py does not name all problems")
    shown = [
        [f"`/problems/{kind}`", status, said or api_problems.TITLES[kind][1]] for kind, status, said in rows
    ]
    return (
        "## Errors\n\nEvery refusal is `application/problem+json` (RFC 9457): `type`, `title`, `status`,\n"
        "`detail`, and what else helps, such as `errors` with a JSON pointer for each mistake.\n\n"
        + table(["type", "status", "meaning"], shown)
    )


# -- metrics


def metrics_page() -> str:
    rows = []
    for call in ast.walk(parsed("control", "metrics")[0]):
        kind = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
        if not isinstance(call, ast.Call) or not kind.endswith("MetricFamily"):
            continue
        name, said = (ast.literal_eval(argument) for argument in call.args[:2])
        labels: list[str] = next((ast.literal_eval(k.value) for k in call.keywords if k.arg == "labels"), [])
        kind = kind.removesuffix("MetricFamily").lower()
        shown = f"{name}_total" if kind == "counter" else name
        rows.append([f"`{shown}`", kind, " ".join(f"`{label}`" for label in labels), said])
    listed = table(["metric", "kind", "labels", "meaning"], sorted(rows))
    return f"""{NOTE}# Metrics

For Prometheus, at `/metrics`. Admins may read them, and viewers without a tenant; everybody if the plane was
started with `--open-metrics`. `queue` is the tenant. No label names a job.

{listed}"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
