"""Every example of the README and the docs runs, and prints what the page shows.

A page is one session in one folder, from top to bottom:

- ```` ```console ```` blocks are commands. Live commands go to a real plane. The page starts the plane with
  `dovetail up` or `make up`, or the test starts one. Ids, times, tokens and paths may differ.
- ```` ```python ```` blocks run, and print the ```` ```text ```` block after them, if there is one.
- A block that starts with a file name in a comment, `# train.yaml`, after `#!` if there is one, is that file.
- An example that cannot run here has `<!-- not run: why -->` before it. The tests count these.

A command that only reads the state of a plane is repeated until it prints what the page shows, so that a busy
machine is only slower. After a change of the output, DOVETAIL_DOCS_WRITE=1 writes the new output into the
pages: read the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from dovetail.cli.main import VERBS
from dovetail.engines.local.devices import DEFAULT_VIRTUAL

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```\n"
    r"(?:\n```text\n(?P<prints>.*?)^```$)?",
    re.M | re.S,
)
FILE = re.compile(r"(?:#![^\n]*\n)?# ([\w.-]+\.(?:yaml|py|sh|csv))\n")
LIVE = {verb for heading in ("Plane", "Jobs", "Cluster") for verb in VERBS[heading]}
ONLY_LOOKS = {
    "ps",
    "why",
    "plan",
    "describe",
    "nodes",
    "gpus",
    "shares",
    "history",
    "report",
    "policy",
    "logs",
}
EXAMPLES = sorted(p for p in (ROOT / "src").rglob("*.py") if ">>>" in p.read_text(encoding="utf-8"))
WRITE = bool(os.environ.get("DOVETAIL_DOCS_WRITE"))
PATIENCE = 180.0  # a limit for hangs: tests wait for events
HOME = "/home/ada"  # as the pages show it


class Block(NamedTuple):
    why: str | None  # it does not run
    kind: str
    text: str
    prints: str
    span: tuple[int, int]  # of what it prints, or else of its text, in the page

    @property
    def file(self) -> str:
        found = FILE.match(self.text)
        return found[1] if found else ""


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(m["why"], m["kind"], m["text"], m["prints"] or "", m.span("prints" if m["prints"] else "text"))
        for m in BLOCK.finditer(text)
    ]


def runs(block: Block) -> bool:
    return block.why is None and (block.kind in ("console", "python") or bool(block.file))


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and the output shown below it, if any."""
    assert block.startswith("$ "), block
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        while command.endswith("\\"):
            more, _, output = output.partition("\n")
            command += "\n" + more
        yield command, output.rstrip()


# --- what may differ -------------------------------------------------------------------------------

_CHANGES = (
    (r"simulated in .*", ""),  # how long this machine took
    (r"dt_[\w-]{43}", "TOKEN"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?", "MOMENT"),
    (r"\b(?:[A-Z][a-z]{2} )?\d\d:\d\d(?::\d\d)?\b", "CLOCK"),
    (r"\b\d[\d,]*(?:\.\d+)? (?:us|ms|s|min|h|d)\b(?: \d+ (?:s|min|h)\b)?", "SPAN"),
    (r", between CLOCK and CLOCK", ""),  # not said of two moments in the same minute
    (r"cancelled; it is stopping", "cancelled"),  # unless it has stopped already
    (r"\(now\)", "(SPAN ago)"),
    (r"\d+\.\d+", "N"),
    (r"\bstep \d+", "step N"),
    (r"[+<-](?=N)", ""),
    (r"^ +[0-9a-z]{6}\b", "  ID"),  # of jobs that no page has named
    (r"(?<=dovetail release )[0-9a-z]{6}\b", "ID"),
    (
        r"^ +(?:No GPU was found|Pretending to have|Memory and CPU limits|Only \w+ limits|Jobs of).*\n",
        "",
    ),
)


def loose(text: str) -> list[str]:
    """What has to be the same of the output of a live plane."""
    for pattern, word in _CHANGES:
        text = re.sub(pattern, word, text, flags=re.M)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def same(text: str) -> str:
    return re.sub(_CHANGES[0][0], "", text).strip()


# --- a page being typed ----------------------------------------------------------------------------


class Session:
    """One page: its folder, its plane, and which real id each shown one stands for."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.state = folder / "work", folder / "state"
        self.folder.mkdir()
        self.plane: subprocess.Popen[bytes] | None = None
        self.left = False  # jobs of a plane that was stopped
        self.names = {HOME + "/.local/state/dovetail": str(self.state), HOME + "/work": str(self.folder)}
        bin_folder = str(Path(sys.executable).parent)
        patch.chdir(self.folder)
        for name, value in {
            "PATH": bin_folder + os.pathsep + os.environ["PATH"],
            "DOVETAIL_STATE": str(self.state),
            "LOGNAME": "ada",
            "PYTHONPATH": str(ROOT / "src"),
        }.items():
            patch.setenv(name, value)
        for name in ("DOVETAIL_URL", "DOVETAIL_TOKEN", "DOVETAIL_DATABASE"):
            patch.delenv(name, raising=False)

    def real(self, text: str) -> str:
        for shown, real in self.names.items():
            text = text.replace(shown, real)
        return text

    def shown(self, text: str) -> str:
        for shown, real in self.names.items():
            text = text.replace(real, shown)
        return text

    def learn(self, shown: str, real: str) -> None:
        """Ids stand where something was made."""
        for pattern in (
            r"^submitted (\w{6})\b",
            r"\A([0-9a-z]{6})\Z",
            r"^(dt_[\w-]{43})$",
            r"^note: token (\w{10}) of",
        ):
            for one, other in zip(
                re.findall(pattern, shown.strip(), re.M),
                re.findall(pattern, real.strip(), re.M),
                strict=False,
            ):
                self.names[one] = other

    # -- the plane

    def up(self, words: list[str]) -> str:
        """Start a plane; what it announces."""
        assert self.plane is None, "the page has a plane already"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.names["127.0.0.1:8470"] = f"127.0.0.1:{port}"
        words, usual = [*words, "--port", str(port)], not any(word.startswith("--virtual") for word in words)
        if usual:
            words += ["--virtual", DEFAULT_VIRTUAL]
        said = self.folder.parent / "up.txt"
        with said.open("wb") as out:
            self.plane = subprocess.Popen(
                [sys.executable, "-m", "dovetail.cli", "up", *words],
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + PATIENCE
        while "dovetail ps" not in (text := said.read_text()):
            assert self.plane.poll() is None, text
            assert time.monotonic() < end, text
            time.sleep(0.05)
        threading.Thread(target=self.plane.wait, daemon=True).start()  # `down` waits until it is gone
        return text.replace(
            "Pretending", "No GPU was found (NVML Shared Library Not Found); pretending", usual
        )

    def down(self) -> None:
        """Leave nothing behind."""
        if self.left:
            self.up([])
        if self.plane is None:
            return
        if self.plane.poll() is None:
            words = [sys.executable, "-m", "dovetail.cli", "down", "--cancel"]
            subprocess.run(words, check=False, capture_output=True, timeout=2 * PATIENCE)
        if self.plane.poll() is None:
            self.plane.send_signal(signal.SIGKILL)
        self.plane.wait(PATIENCE)
        self.plane = None

    # -- commands

    def typed(self, command: str, shown: str) -> str:
        """What a command prints; asked again, if it only looks, until that is what is shown."""
        command = re.sub(r"\s+# .*", "", command)
        verb = verb_of(command)
        if command.startswith("make up") or verb == "up":
            given = re.search(r"ARGS=(?:\"(.*?)\"|(\S+))", command)
            words = shlex.split(command)[2:] if verb == "up" else shlex.split((given and given[1]) or "")
            return self.up(words)
        if verb in LIVE and self.plane is None:
            self.up([])
        self.left = verb == "down" and "--cancel" not in command
        command = self.real(command)
        end = time.monotonic() + PATIENCE
        if WRITE and verb in ONLY_LOOKS:
            time.sleep(1.5)
        while True:
            said, code = self.once(command)
            if verb == "down" and self.plane is not None:
                self.plane.wait(PATIENCE)
                self.plane = None
            if WRITE or not asked_again(command) or not shown or loose(self.shown(said)) == loose(shown):
                break
            if time.monotonic() > end:
                break
            time.sleep(0.2)
        may_fail = WRITE or re.search(r"^(error:|note: job)", shown, re.M)
        assert code == 0 or may_fail, (command, said)
        return said

    def once(self, command: str) -> tuple[str, int]:
        if not is_plain(command):
            done = subprocess.run(
                ["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
            return done.stdout.decode(), done.returncode
        from dovetail.cli.main import app

        words = shlex.split(command)[1:]
        if words[0] == "compare" and "--workers" not in words:
            words += ["--workers", "1"]
        result = CliRunner().invoke(app, words)
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            command,
            result.exception,
        )
        return result.output if words[0] in LIVE else result.stdout, result.exit_code


def verb_of(command: str) -> str:
    found = re.match(r"(?:\w+=\S+ )*(?:\.venv/bin/)?(?:dovetail|dove) ([\w-]+)", command)
    return found[1] if found else ""


def asked_again(command: str) -> bool:
    """It only looks, and may have looked too early. What follows a job has seen it all the first time."""
    return verb_of(command) in ONLY_LOOKS and " -f " not in command


def is_plain(command: str) -> bool:
    """One call of ours, which needs no shell and no process of its own."""
    if not re.match(r"(?:\.venv/bin/)?(?:dovetail|dove) (?!shell|down)", command):
        return False
    outside = re.sub(r"'[^']*'|\"[^\"$`]*\"", "", command)
    return not re.search(r"[|<>;&$`\\]", outside)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    made = Session(tmp_path, monkeypatch)
    try:
        yield made
    finally:
        made.down()


@pytest.mark.slow(10)
@pytest.mark.parametrize("page", [page for page in PAGES if any(map(runs, blocks(page)))])
def test_what_is_shown_is_what_happens(page: str, session: Session) -> None:
    """The blocks of a page run in their order, in one folder; the programs of a page share their names."""
    names: dict[str, object] = {"__name__": "docs"}
    changed: list[tuple[tuple[int, int], str]] = []
    for block in filter(runs, blocks(page)):
        if block.file:
            text = block.text.partition("\n")[2] if block.file.endswith(".csv") else block.text
            (session.folder / block.file).write_text(session.real(text), encoding="utf-8")
        elif block.kind == "console":
            changed.append((block.span, typed_block(session, block)))
        else:
            said = run_program(session, page, block, names)
            if block.prints:
                changed.append((block.span, said))
    if WRITE:
        file = ROOT / page
        text = file.read_text(encoding="utf-8")
        for (start, end), new in reversed(changed):
            text = text[:start] + new + text[end:]
        file.write_text(text, encoding="utf-8")


def typed_block(session: Session, block: Block) -> str:
    """The block as it is now."""
    out = ""
    for command, shown in commands(block.text):
        said = session.typed(command, shown)
        session.learn(shown, said)
        out += f"$ {command}\n"
        if shown:
            said = "\n".join(line.rstrip() for line in session.shown(said).strip("\n").splitlines())
            exact = verb_of(command) not in LIVE and is_plain(command)
            if exact and not WRITE:
                assert same(said) == same(shown), command
            elif not WRITE:
                assert loose(said) == loose(shown), command
            out += said + "\n"
    return out


def run_program(session: Session, page: str, block: Block, names: dict[str, object]) -> str:
    """What it prints."""
    if re.search(r"\bClient\(|\bExecutor\(", block.text) and session.plane is None:
        session.up([])
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(session.real(block.text), page, "exec", dont_inherit=True), names)
    said = session.shown(out.getvalue())
    assert WRITE or not block.prints or loose(said) == loose(block.prints), block.text
    return said


def test_the_pages_are_there() -> None:
    with_examples = {page for page in PAGES if any(map(runs, blocks(page)))}
    wanted = {"docs/tutorial/first-steps.md", "docs/tutorial/simulation.md", "docs/guides/compare.md"}
    wanted |= {
        f"docs/guides/{name}.md"
        for name in ("live", "jobs", "python", "policies-live", "from-slurm", "write-a-policy")
    }
    assert {"README.md", *wanted} <= with_examples


# What cannot run in a test: it installs, needs another program, or another machine.
NOT_RUN = {
    "README.md": 1,
    "docs/guides/live.md": 6,
    "docs/guides/page.md": 1,
    "docs/guides/write-a-policy.md": 1,
    "docs/tutorial/first-steps.md": 1,
}


def test_what_does_not_run_says_why_and_is_counted() -> None:
    """Every command is run by a test, or marked with the reason why not."""
    found = Counter(page for page in PAGES for block in blocks(page) if block.why is not None)
    assert dict(found) == NOT_RUN
    every = [(page, block) for page in PAGES for block in blocks(page)]
    silent = [(page, block) for page, block in every if block.why is None and not runs(block)]
    assert [page for page, block in silent if block.kind in ("sh", "bash", "ini", "console")] == []


def test_the_readme_begins_with_a_job_its_log_and_a_why() -> None:
    """From `make up` to there, within ten lines of commands and what they print."""
    first = next(block for block in blocks("README.md") if block.kind == "console")
    verbs = [command.split()[1] if command.startswith("make") else verb_of(command)
             for command, _ in commands(first.text)]  # fmt: skip
    assert verbs[0] == "up"
    assert {"run", "logs", "why"} <= set(verbs)
    assert len(verbs) <= 10
    head = (ROOT / "README.md").read_text(encoding="utf-8").partition("```")[0]
    assert len(head.splitlines()) <= 8


def test_make_up_starts_a_plane() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^up: install .*\n\t@?\$\(BIN\)/(.*)$", makefile, re.M)
    assert recipe is not None
    assert recipe[1] == "dovetail up $(ARGS)"


def test_make_example_is_shown() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^example: install .*\n\t\$\(BIN\)/(.*)$", makefile, re.M)
    assert recipe is not None
    typed = [command for b in blocks("README.md") if b.kind == "console" for command, _ in commands(b.text)]
    assert recipe[1] in typed


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_in_docstrings(file: Path) -> None:
    parts = file.relative_to(ROOT / "src").with_suffix("").parts
    failed, tried = doctest.testmod(importlib.import_module(".".join(parts)))
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    file = ROOT / page
    text = re.sub(r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.M | re.S)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    inside = [target for target in targets if target and "://" not in target]
    assert [target for target in inside if not (file.parent / target).exists()] == []
