"""Writes what the docs read off the code.

python docs/generate.py                 write the pages that are committed, where they changed
python docs/generate.py --check         write nothing, name what is out of date, exit with 1 if something is
python docs/generate.py --build FOLDER  build what is not committed: openapi.json, the Python reference

`make docs` does the first and the third, into build/docs. The same code gives the same bytes on any terminal.
"""

from __future__ import annotations

import argparse
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
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pdoc
import pytest
import typer
from pydantic import BaseModel

from dovetail.cli.main import VERBS, app
from dovetail.cli.policies import OBJECTIVES
from dovetail.cli.policies import _typed as typed
from dovetail.control import field_types, problems, request, resources, states
from dovetail.control.api import problems as api_problems
from dovetail.control.api.app import make_app
from dovetail.control.api.page_types import declarations
from dovetail.control.request import JobRequest
from dovetail.core.journal import Header, JournalWriter
from dovetail.engines.contract import Launch, NodeShare
from dovetail.engines.local.environment import processes
from dovetail.model.cluster import parse_cluster
from dovetail.model.event import Kind
from dovetail.model.job import Job, gang
from dovetail.model.units import SECOND
from dovetail.policies.catalogue import options_of
from dovetail.policies.registry import POLICIES
from dovetail.sim.run import run

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "dovetail"
CLAIMS = "src/dovetail/policies/claims.csv"
MUTANTS = "src/dovetail/policies/mutants.csv"
PUBLIC = [
    f"dovetail.{name}"
    for name in ("bench", "client", "core", "mechanisms", "model", "policies.composed", "sim", "traces")
]
NOTE = "<!-- written by docs/generate.py: change the code, then run `make docs` -->\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="docs/generate.py", description="Write what the docs read off the code."
    )
    parser.add_argument("--check", action="store_true", help="write nothing, name what is out of date")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="build what is not committed")
    given = parser.parse_args(arguments)
    if given.build is not None:
        build(given.build)
        return 0
    stale = []
    for path, text in pages():
        file = ROOT / path
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if not given.check:
            file.write_text(text, encoding="utf-8", newline="\n")
            print(f"wrote {path}")
    if stale and given.check:
        print(f"error: out of date: {', '.join(stale)}; run make docs", file=sys.stderr)
        return 1
    return 0


def build(folder: Path) -> None:
    """The description of the API, and the Python packages that a program may use."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(openapi(), indent=1, ensure_ascii=False)
    (folder / "openapi.json").write_text(text + "\n", encoding="utf-8")
    # pdoc warns of objects that it describes by their text alone: types in strings, closed drafts.
    warnings.filterwarnings("ignore", category=UserWarning, module="pdoc")
    pdoc.render.configure(show_source=False, search=False)
    pdoc.pdoc(*PUBLIC, output_directory=folder / "python")
    print(f"built {folder}/openapi.json and {folder}/python/index.html")


def pages() -> Iterator[tuple[str, str]]:
    """Each generated file and its text."""
    items = collected_claim_tests()
    claims, mutants = list(claims_of(items)), list(mutants_of(items))
    yield CLAIMS, claims_csv(claims)
    yield MUTANTS, mutants_csv(mutants)
    yield "docs/systems/README.md", systems_page(claims, mutants)
    for name in POLICIES.paths:
        yield f"docs/systems/{name}.md", with_mutants(name, mutants)
    yield "docs/reference/cli.md", cli_page()
    yield "docs/reference/policies.md", policies_page()
    yield "docs/reference/formats.md", formats_page()
    yield "docs/reference/jobfile.md", jobfile_page()
    yield "docs/reference/environment.md", environment_page()
    yield "docs/reference/api.md", api_page(openapi())
    yield "docs/reference/metrics.md", metrics_page()
    yield "tests/dashboard/documents.d.ts", declarations()


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


def collected_claim_tests() -> list[pytest.Item]:
    """The claim tests: not those that are skipped or expected to fail."""
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
    return [
        item for item in found.items if not any(item.get_closest_marker(mark) for mark in ("skip", "xfail"))
    ]


def claims_of(items: list[pytest.Item]) -> Iterator[tuple[str, str, str]]:
    """(system, sentence, test) of every claim that is tested."""
    seen = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        for mark in item.iter_markers("claim"):
            system, sentence = mark.args
            if (system, sentence, test) not in seen:
                seen.add((system, sentence, test))
                yield system, sentence, test


def mutants_of(items: list[pytest.Item]) -> Iterator[tuple[str, str, str, str]]:
    """(system, part, change, test) of every mutant beside those claims."""
    files = {
        item.nodeid.partition("::")[0]: item.module for item in items if isinstance(item, pytest.Function)
    }
    for file, module in files.items():
        if not file.endswith("test_mutants.py"):
            for each in getattr(module, "MUTANTS", ()):
                yield each.system, each.part, each.change, f"{file}::{each.killed_by}"


def claims_csv(claims: list[tuple[str, str, str]]) -> str:
    rows = sorted((system, test, sentence) for system, sentence, test in claims)
    return as_csv(["system", "sentence", "test"], ((s, sentence, test) for s, test, sentence in rows))


def mutants_csv(mutants: list[tuple[str, str, str, str]]) -> str:
    return as_csv(["system", "part", "change", "test"], mutants)


def as_csv(head: list[str], rows: Iterable[Sequence[str]]) -> str:
    """A table by system, in the order of the catalogue."""
    place = {row["name"]: number for number, row in enumerate(catalogue())}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    ordered: list[Sequence[str]] = sorted(rows, key=lambda row: place.get(row[0], len(place)))
    writer.writerows(ordered)
    return out.getvalue()


def catalogue() -> list[dict[str, str]]:
    with (SOURCE / "policies/catalogue.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# -- systems


MARK = "<!-- mutants: written by docs/generate.py from the claim file -->\n"


def with_mutants(name: str, mutants: list[tuple[str, str, str, str]]) -> str:
    """The page of a system, with the table of its mutants at its end."""
    page = (ROOT / f"docs/systems/{name}.md").read_text(encoding="utf-8").partition(MARK)[0].rstrip(
        "\n"
    ) + "\n"
    mine = [
        (part, change, test.partition("::")[2]) for system, part, change, test in mutants if system == name
    ]
    if not mine:
        return page
    rows = table(
        ["part", "switched off", "noticed by"], ((part, change, f"`{test}`") for part, change, test in mine)
    )
    said = "**Mutants.** Each part is switched off alone; the claim test in the last column then fails."
    return f"{page}\n{MARK}{said}\n\n{rows}"


def systems_page(claims: list[tuple[str, str, str]], mutants: list[tuple[str, str, str, str]]) -> str:
    shown = Counter(system for system, _, _ in claims)
    broken = Counter(system for system, *_ in mutants)
    parts = len({(system, part) for system, part, *_ in mutants})
    rows = catalogue()
    now = [row for row in rows if shown[row["name"]] and broken[row["name"]]]
    unproved = [row for row in rows if row["name"] in POLICIES.paths and row not in now]
    later = [row for row in rows if row["name"] not in POLICIES.paths]

    def told(row: dict[str, str]) -> list[str]:
        aims = ", ".join(OBJECTIVES.get(word, word) for word in row["objectives"].split())
        return [row["year"] or "-", row["kind"], aims, row["title"]]

    head = ["year", "for", "objectives", "what it is"]
    working = table(
        ["system", *head, "claims", "mutants"],
        (
            [
                f"[{row['name']}]({row['name']}.md)",
                *told(row),
                str(shown[row["name"]]),
                str(broken[row["name"]]),
            ]
            for row in now
        ),
    )
    linked = ([f"[{row['name']}]({row['name']}.md)", *told(row)] for row in unproved)
    can_run = (
        f"## Can be run, and not yet proved by mutants\n\n{table(['system', *head], linked)}\n"
        if unproved
        else ""
    )
    coming = table(["system", *head], ([row["name"], *told(row)] for row in later))
    return (
        f"{NOTE}# Systems\n\n"
        f"{len(now)} of {len(rows)} schedulers work: published ones, and `dovetail`, our own. A system\n"
        "works when a command can run it by name and a claim test shows it doing what it was published for,\n"
        "on a small scenario where its natural baseline does not, and when its claims notice a mutant: the\n"
        "system with one part of its paper switched off.\n"
        f"The tests kill {len(mutants)} mutants of {parts} parts.\n\n"
        "Each system has a page: claims, rules, options, deviations, tests, mutants. The\n"
        "[reference](../reference/policies.md) lists all options too. The [tournament](tournament.md) has\n"
        "the figures of all working systems on the same workloads.\n\n"
        f"## Work now\n\n{working}\n{can_run}## To come\n\n{coming}"
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
    rows.append(["`-h, --help`", "", "Show this help."])
    listed = table(["argument or option", "default", "meaning"], rows)
    return f"### {name}\n\n```\n{' '.join(usage)}\n```\n\n{prose(command.help)}\n{listed}"


def prose(text: str) -> str:
    """A help text as Markdown: text after `\\b` is an example."""
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


# -- reading source


def parsed(package: str, module: str) -> tuple[ast.Module, list[str]]:
    text = (SOURCE / package / f"{module}.py").read_text(encoding="utf-8")
    return ast.parse(text), text.splitlines()


def named(node: ast.stmt) -> set[str]:
    """The names that an assignment gives."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


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

This page describes the journal. `dovetail simulate --journal FILE` writes it; `explain` and `replay` read
it. A live plane keeps the same lines in its database; an admin reads them at `/api/v1/journal`. Other
formats: [traces and clusters](../guides/traces.md), [job files](jobfile.md).

## Journal

A journal is a text file in UTF-8 with one JSON object per line. It is compressed if its name ends with `.gz`.
It is written to `FILE.part` and renamed when it is complete. Equal runs give equal bytes. A journal is
complete in itself: it contains the cluster and the jobs. Times are integer microseconds from the start of
the trace.

The first line describes the run: `dovetail` is the version of the format, then `policy`, `options`, `seed`
and `cluster`, with every node, the links and the tenants.

```json
{head}
```

Each further line is a step: one call of the core.

| key | meaning |
| --- | --- |
| `n` | its number, from 1 |
| `t` | its time |
| `decided` | whether the policy was called |
| `events` | what happened since the step before, each `[time, kind, subject, epoch, fact]` |
| `actions` | what to do, each `[name, field, ...]` |
| `failure` | only if the policy failed: why; a replay does not ask it at this step |

```json
{steps}
```

### Events

`subject` is a job or a node. `epoch` counts the starts of a job, so that a late event of an earlier start is
recognised. The fact of a kind is in brackets.

{events}
A submitted job is written with `id`, `arrived_at`, `work`, and what differs from the default: `estimate` if
it differs from the work; of `shape`, `tenant`, `user`, `model`, `group`, `priority`, `deadline`,
`fails_after` and `traits` what differs from the default. The fields are those of `Job`, `Shape` and
`Traits` in [model/job.py](../../src/dovetail/model/job.py).

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
        (field_types.DURATION, "duration"),
        (field_types.TIME_LIMIT, "duration"),
        (field_types.MEMORY, "size"),
        (field_types.CORES, "cores"),
        (field_types.SHARE, "share"),
        (field_types.MOMENT, "moment"),
        (field_types.PRIORITY, "word or number"),
        (field_types.SWITCH, "true or false"),
        (field_types.ENV, "names and values"),
        (field_types.TENANT, "name"),
        (field_types.PATH, "path"),
        (field_types.SHELL, "shell text"),
        (resources.ACCELERATORS, "GPUs"),
        (resources.GPU_MEMORY, "range of sizes"),
        (request.ARRAY, "range"),
        (request.DEPENDENCY, "dependency"),
    )
}
JOBFILE = """# Job files

The keys of a job file. They are also the body of `POST /api/v1/jobs`. [Jobs](../guides/jobs.md) explains
them. An unknown key is refused, and the error names the nearest known key. `run` or `command` is required,
all else is optional.

| written as | examples |
| --- | --- |
| duration | `90s`, `45m`, `2h30m`, `1-12:00:00` |
| size | `32G`, `400GB`, `1.5TiB` |
| cores | `4`, `0.5`, `32+` (the same as 32) |
| share | `50%` or `0.5` of a GPU |
| moment | `2026-12-01T09:00Z`, `+2h`; without a zone: in a file or flag that of its machine, else UTC |
| GPUs | `8`, `A100:8`, `{A100: 8, H100: 8}`, `[H100:8, A100:8]`, `any:1` |
| range | `0-99%8`, `1,3,5-9:2`, a list of numbers |

A duration, size or share without a unit is refused, because systems read `2` or `32` differently; only a
duration of `0` needs none. `#SBATCH` lines keep the meaning that they have in Slurm (`-t 30` is minutes,
`--mem=32` megabytes), and SkyPilot files theirs (`memory: 32` is gigabytes).
"""


def jobfile_page() -> str:
    parts = [NOTE + JOBFILE, keys_section("Keys", JobRequest, "")]
    for name, field in JobRequest.model_fields.items():
        if (inner := inner_model(field.annotation)) is not None:
            said = " ".join((inspect.getdoc(inner) or "").split())
            parts.append(keys_section(f"{name}:", inner, said))
    other = table(
        ["other system", "here"],
        ([f"`{theirs}`", f"`{ours}`"] for theirs, ours in sorted(problems._OTHER_NAMES.items())),
    )
    parts.append(
        "## Keys of other systems\n\nThese are refused, and the error names the right key. `num_nodes`,\n"
        f"`tenant`, `account`, `partition` and `qos` are accepted.\n\n{other}"
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
    """As a user writes it."""
    value = field.default
    for form in field.metadata:
        if value and getattr(form, "write", None) is not None:
            value = form.write(value)
    if value is None or value == "" or isinstance(value, BaseModel | dict):
        return ""
    return f"`{', '.join(value) if isinstance(value, tuple) else json.dumps(value).strip(chr(34))}`"


# -- the environment of a job

VARIABLES = {
    "DOVETAIL_JOB_ID": "The id of the job.",
    "DOVETAIL_JOB_NAME": "The name of the job.",
    "DOVETAIL_ATTEMPT": "Which start of the job this is, from 1.",
    "DOVETAIL_RESTART_COUNT": "Starts before this one.",
    "DOVETAIL_RUN_DIR": "A folder of this attempt. `stop.json` appears there when the job must stop.",
    "DOVETAIL_CHECKPOINT_DIR": "A folder of the job, the same in every attempt.",
    "DOVETAIL_STARTED_AT": "When this attempt started, seconds since 1970.",
    "DOVETAIL_DEADLINE": "When the time limit ends the job, seconds since 1970; only with a limit.",
    "DOVETAIL_NODE": "The name of the node this process is on.",
    "DOVETAIL_NODE_IPS": "The address of each node of the job, one per line.",
    "DOVETAIL_ARRAY_ID": "In an array: the id of the array.",
    "DOVETAIL_ARRAY_INDEX": "In an array: the index of the job.",
    "DOVETAIL_GPU_SHARE": "The GPU share in thousandths; only with `gpu_share`.",
    "CUDA_VISIBLE_DEVICES": "GPUs of the process, by UUID (virtual GPUs by number); empty without GPUs.",
    "ROCR_VISIBLE_DEVICES": "The same.",
    "HIP_VISIBLE_DEVICES": "The same.",
    "NNODES": "Number of tasks of the job.",
    "NODE_RANK": "Number of this task, from 0.",
    "NPROC_PER_NODE": "GPUs of this task, at least 1: the processes that `torchrun` starts.",
    "MASTER_ADDR": "Address of the rendezvous of the processes.",
    "MASTER_PORT": "Port of the rendezvous; it was free when the job started.",
    "PYTHONUNBUFFERED": "`1`, so that what Python prints is in the log at once.",
    "GLOO_SOCKET_IFNAME": "`lo`, because all nodes of a local plane are this machine.",
    "RANK": "With `launch: gpu`: number of this process in the job.",
    "WORLD_SIZE": "With `launch: gpu`: number of processes of the job.",
    "LOCAL_RANK": "With `launch: gpu`: number of this process on its node.",
    "LOCAL_WORLD_SIZE": "With `launch: gpu`: number of processes on this node.",
    "GROUP_RANK": "With `launch: gpu`: number of the node.",
}
ONLY_AT_START = {
    "DOVETAIL_STARTED_AT",
    "DOVETAIL_DEADLINE",
    "SLURM_JOB_END_TIME",
}  # the supervisor adds these
ONLY_SOMETIMES = {"DOVETAIL_ARRAY_ID", "DOVETAIL_ARRAY_INDEX", "DOVETAIL_GPU_SHARE"}


def environment_page() -> str:
    shares = (NodeShare("n0", ("0", "1")), NodeShare("n1", ("0", "1")))
    launch = Launch("k3v9q2", 1, shares, ("true",), checkpoint_dir="/checkpoints", per_gpu=True)
    ours = set(processes(launch, Path("/run"), 20_000)[0].env)
    ours |= ONLY_SOMETIMES | ONLY_AT_START - {"SLURM_JOB_END_TIME"}
    if wrong := ours ^ set(VARIABLES):
        sys.exit(f"error: describe in docs/generate.py the variables {', '.join(sorted(wrong))}")
    array = dataclasses.replace(
        launch, slurm_names=True, env=(("DOVETAIL_ARRAY_ID", "k3v9q2"), ("DOVETAIL_ARRAY_INDEX", "7"))
    )
    theirs = {name for name in processes(array, Path("/run"), 20_000)[0].env if name.startswith("SLURM")}
    slurm = ", ".join(f"`{name}`" for name in sorted(theirs | {"SLURM_JOB_END_TIME"}))
    listed = table(["variable", "meaning"], ([f"`{name}`", said] for name, said in VARIABLES.items()))
    return f"""{NOTE}# Environment of a job

Dovetail sets these variables in every process of a job. The job's own `env` overrides them, except names
that begin with `DOVETAIL_` and variables for devices and ranks.

{listed}
With `slurm_env: true`, and in every `#SBATCH` script, also {slurm}.

Of the environment of the plane a job gets what describes the account, the language and the machine, and what
`dovetail up --pass-env` names; the [guide](../guides/live.md#start-and-stop) lists it. A job submitted on the
plane's machine gets `PATH`, `VIRTUAL_ENV`, `CONDA_PREFIX`, `PYTHONPATH` and `LD_LIBRARY_PATH` of the
submitting shell.

## Signals and exit codes

| signal | when |
| --- | --- |
| TERM, or `checkpoint.signal` | the job must stop: preempted, cancelled, requeued, or over its time limit |
| USR1 | the time limit is near: `signal_before` (default 120 s) before it |
| KILL | `checkpoint.grace` (default 30 s) after TERM |

| exit code | result |
| --- | --- |
| 0 | `completed` |
| any, after a preemption | requeued, unless the job called `dovetail.job.finished()` |
| {states.REQUEUE_ME} | requeued; does not count as a retry |
| `N` with `exit:N` in `retry.on` | requeued while `retry.max` allows, then `failed` |
| any other | `failed` |

A job over its time limit becomes `timeout`, a job over its memory limit `out-of-memory`, a job with a lost
supervisor or machine `node-failed`. `retry.on` may name `timeout` and `node-failure`. A job that ran out of
memory is not retried.
"""


# -- the HTTP API


def openapi() -> dict[str, Any]:
    """The description of the API; no plane is needed to describe it."""
    no_plane: Any = SimpleNamespace(store=SimpleNamespace(sqlite=True))
    return make_app(no_plane).openapi()


API = """# HTTP API

JSON over HTTP at `/api/v1`. Send `Authorization: Bearer TOKEN`; only `/health`, `/version` and
`/openapi.json` need none. A plane serves the description of every parameter and field at `/openapi.json`;
`make docs` writes the same to `build/docs/openapi.json`. Changes are additive.

- Times of day are ISO 8601 in UTC. In answers durations are seconds and memory is bytes; in a job
  request both have a unit: `2h`, `32G`.
- Lists are paged: `items`, and `next`, the `cursor` of the next request. No response is larger than 200 kB.
- `POST /jobs` takes an `Idempotency-Key` header: a repeated request with the same key returns the same job.
- Roles: a viewer reads the data of its tenant, a user also acts on its tenant's jobs, an admin does
  everything. Jobs of other tenants answer 404.
- Limits: 1 MB per body, 50 requests per second and token (200 at once), 10 open streams per token.
- `/watch` and `/logs/stream` are server-sent events; `Last-Event-ID` resumes a stream.
- A standby plane answers 503 with `leader`, the address of the leader.
"""


def api_page(description: dict[str, Any]) -> str:
    parts = [NOTE + API, "## Calls\n"]
    by_tag: dict[str, list[list[str]]] = {}
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            call = f"{method.upper()} {path.removeprefix('/api/v1')}"
            by_tag.setdefault(operation["tags"][0], []).append([f"`{call}`", operation["summary"]])
    for tag, rows in by_tag.items():
        parts.append(f"**{tag}**\n\n{table(['call', 'what it does'], rows)}")
    return "\n".join([*parts, problems_section()])


def problems_section() -> str:
    """The table in the docstring of api/problems.py, checked against the problems in the code."""
    listed = inspect.getdoc(api_problems) or ""
    rows = re.findall(r"^\| /problems/([\w-]+) \| (\d+) \| ?(.*?) ?\|$", listed, re.M)
    if {kind for kind, _, _ in rows} != set(api_problems.TITLES):
        sys.exit("error: the table on top of control/api/problems.py does not name all problems")
    shown = [
        [f"`/problems/{kind}`", status, said or api_problems.TITLES[kind][1]] for kind, status, said in rows
    ]
    return (
        "## Errors\n\nEvery error is `application/problem+json` (RFC 9457): `type`, `title`, `status`,\n"
        "`detail`, and more where it helps, such as `errors` with a JSON pointer for each wrong field.\n\n"
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

For Prometheus, at `/metrics`. Admins may read them, and viewers without a tenant. With `dovetail up
--open-metrics` they need no token. `queue` is the tenant. No label names a job.

{listed}"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
