"""The command as a whole: quick help, clear mistakes, honest exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import dovetail.bench.compare  # noqa: F401  (it keeps `run` by name: not while a test has replaced it)

Dove = Callable[..., Result]

HEAVY = (
    *("numpy", "highspy", "scipy", "fastapi", "sqlalchemy", "uvicorn", "yaml", "multiprocessing"),
    *("dovetail.sim", "dovetail.core", "dovetail.bench", "dovetail.control"),
)


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["simulate", "--help"],
        ["compare", "--help"],
        ["ps", "--help"],
        ["run", "--help"],
        ["--version"],
    ],
)
def test_help_loads_nothing_heavy(command: list[str]) -> None:
    code = (
        "import sys\nfrom dovetail.cli.main import app\n"
        f"try: app({command!r})\nexcept SystemExit as end: assert not end.code, end.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "dovetail" in done.stdout


def test_both_names_are_the_same_command() -> None:
    folder = Path(sys.executable).parent
    said = [
        subprocess.run([folder / name, "--version"], capture_output=True, text=True, check=True).stdout
        for name in ("dovetail", "dove")
    ]
    assert said[0] == said[1] != ""


def every_verb() -> list[str]:
    from typer.main import get_command

    from dovetail.cli.main import app

    verbs: list[str] = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        verbs += [name, *(f"{name} {inner}" for inner in getattr(command, "commands", {}))]
    return verbs


@pytest.mark.parametrize("verb", ["", *every_verb()])
def test_no_summary_is_cut_and_no_bracket_doubled(dove: Dove, verb: str) -> None:
    said = dove(f"{verb} --help").stdout
    usage = said.partition("\n\n")[0]
    assert not set("{}") & set(usage)
    assert "[[" not in usage
    assert "...]..." not in usage
    assert not re.search("<[a-z]+>", said)  # names of types
    head, _, listed = said.partition("Plane:") if not verb else said.partition("Commands:")
    assert head
    assert "..." not in listed


def test_arguments_are_named_as_people_write_them(dove: Dove) -> None:
    for verb, words in {
        "cancel": "[JOB...]",
        "submit": "[FILE] [-- COMMAND...]",
        "why": "JOB",
        "run": "COMMAND...",
        "policy": "[NAME]",
        "shell": "JOB [-- COMMAND...]",
        "nodes": "[NODE...]",
    }.items():
        assert dove(f"{verb} --help").stdout.splitlines()[0] == f"Usage: dovetail {verb} [OPTIONS] {words}"


def test_every_verb_explains_itself_with_examples(dove: Dove) -> None:
    live = "submit run plan ps why describe logs shell cancel hold release requeue priority history"
    cluster = "nodes drain resume gpus shares report policy"
    two = ("token create", "token list", "token revoke", "trace info", "trace generate")
    simulated = "simulate compare policies explain replay"
    for verb in (*f"{live} {cluster} {simulated}".split(), *two):
        result = dove(f"{verb} --help")
        assert result.exit_code == 0
        assert f"  dovetail {verb} " in result.stdout, verb


MISTAKES = {
    "simulate five.csv --cluster 1x8 --policy fio": ("'fio'", "did you mean fifo"),
    "simulate five.csv --cluster 1x8 --policy fifo --set disciplin=skip": ("disciplin", "discipline?"),
    "simulate five.csv --cluster 1x8 --policy fifo --set discipline=x": ("discipline", "strict | skip"),
    "simulate five.csv --cluster 1x8 --policy fifo --set discipline": ("--set", "key=value"),
    "simulate five.csv --cluster 1x8 --policy fifo --until soon": ("--until", "2h30m"),
    "simulate five.csv --cluster 8by8 --policy fifo": ("8by8", "8x8"),
    "simulate five.csv --cluster broken.yaml --policy fifo": ("broken.yaml, line 2", "check"),
    "simulate none.csv --cluster 1x8 --policy fifo": ("none.csv", "check the path"),
    "simulate phily --cluster 1x8 --policy fifo": ("phily", "did you mean philly"),
    "simulate --cluster 1x8 --policy fifo": ("no trace", "--like"),
    "simulate short.csv --cluster 1x8 --policy fifo": ("short.csv, line 1", "duration"),
    "simulate negative.csv --cluster 1x8 --policy fifo": ("negative.csv, line 3", "at least 0"),
    "simulate large.csv --cluster 1x8 --policy fifo": ("large.csv, line 3", "'b'", "--drop-unfit"),
    "compare large.csv --cluster 1x8 --policies fifo,sjf": ("large.csv, line 3", "larger cluster"),
    "simulate typed.csv --cluster 1x8:A100 --policy fifo": ("typed.csv, line 2", "H100", "larger cluster"),
    "simulate five.csv --cluster 1x8 --policy fifo --jobs-out no/x.csv": ("no/x.csv", "another folder"),
    "simulate five.csv --cluster 1x8 --policy fifo --report .": (".", "is a directory"),
    "simulate five.csv --cluster 1x8 --policy fifo --report x --jobs-out x": ("x", "its own file"),
    "simulate five.csv --cluster 1x8": ("--policy", "--help"),
    "simulate five.csv --cluster 1x8 --polcy fifo": ("--polcy", "--policy"),
    "simulat five.csv": ("simulat", "simulate"),
    "compare five.csv --cluster 1x8 --policies fifo,sjff": ("sjff", "did you mean sjf"),
    "compare five.csv --cluster 1x8 --policies fifo,fifo": ("fifo", "twice"),
    "compare five.csv --cluster 1x8 --policies fifo --set sjf.discipline=skip": ("sjf.discipline", "fifo"),
    "policies tiresia": ("tiresia", "did you mean tiresias"),
    "policies --kind cooking": ("cooking", "training"),
    "trace convert five.csv out.parquet": ("out.parquet", ".csv or .jsonl"),
    "trace generate --like moon --jobs 5 --gpus 8": ("moon", "philly"),
    "explain five.csv Eve": ("five.csv, line 1", "run"),
    "replay none.jsonl --at 1": ("none.jsonl",),
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_usage_error_is_one_clear_line(dove: Dove, folder: Path, command: str) -> None:
    (folder / "short.csv").write_text("id,submit,gpus\na,0,1\n")
    (folder / "negative.csv").write_text("id,submit,gpus,duration\na,0,1,5\nb,0,1,-5\n")
    (folder / "large.csv").write_text("id,submit,gpus,duration\na,0,1,5\nb,0,64,5\n")
    (folder / "typed.csv").write_text("id,submit,gpus,duration,gpu_type\na,0,1,5,H100\n")
    (folder / "broken.yaml").write_text("nodes: [\n  - {gpus: 8\n")
    before = sorted(folder.iterdir())

    result = dove(command)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in MISTAKES[command]:
        assert word in result.stderr
    assert sorted(folder.iterdir()) == before, "something half-written is left behind"


def test_a_policy_that_plans_nonsense_is_a_failed_run(dove: Dove, monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.model.errors import PlanError
    from dovetail.sim import run

    def broken(*_: object, **__: object) -> None:
        raise PlanError("policy fifo put 9 GPUs on node n3, which has 8")

    monkeypatch.setattr(run, "run", broken)
    result = dove("simulate five.csv --cluster 1x8 --policy fifo --journal run.jsonl")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: policy fifo put 9 GPUs on node n3, which has 8\n"
    assert not Path("run.jsonl").exists()


def test_an_interruption_is_130(dove: Dove, monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.sim import run

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run", interrupted)
    result = dove("simulate five.csv --cluster 1x8 --policy fifo --jobs-out jobs.csv")
    assert result.exit_code == 130
    assert [path.name for path in Path().iterdir()] == ["five.csv"]


def test_a_reader_that_closes_the_pipe_is_no_error() -> None:
    command = (
        f"{sys.executable} -m dovetail.cli trace generate --like philly --jobs 20000 --gpus 64 | head -1"
    )
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("id,submit,gpus,duration")
    assert done.stderr == ""


def test_a_full_disk_is_reported_in_one_line() -> None:
    command = [sys.executable, "-m", "dovetail.cli", "policies"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: cannot write to standard output: No space left on device\n"


def test_a_closed_standard_output_is_no_error() -> None:
    command = f"{sys.executable} -m dovetail.cli --version >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
