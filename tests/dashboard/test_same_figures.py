"""One job, one array and one report: page, command line and API tell the same, field by field.

Time runs six hundred times as fast on this plane: a second is ten minutes, so that figures have more than one
digit, and whoever counts by another clock than the plane's is caught.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.control import harness
from tests.dashboard.conftest import Plane
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.client import documents

expect: Any = pytest.importorskip("playwright.sync_api").expect

Json = dict[str, Any]
SECRET = "s3cr3t-Zq81"
TRAIN = """\
import sys, time
from dovetail import job
first = job.attempt() == 1
job.report(step=40 if first else 52, loss=0.5 if first else 0.25)
job.checkpointed(30 if first else 45)
while first and not job.preemption_requested():
    time.sleep(0.02)
time.sleep(0 if first else 1.5)
sys.exit(143 if first else 0)
"""


# --- the plane, and the three ways to ask it ----------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plane")


@pytest.fixture(scope="module")
def plane(folder: Path) -> Iterator[Plane]:
    with harness.commanded(folder, "--virtual", "2x4:A100", "--time-scale", "600") as client:
        token = (folder / "state" / "token").read_text().strip()
        client.connection.put("/prices", {"currency": "EUR", "per_gpu_hour": {"A100": 2.5}})
        yield Plane(client, client.connection.url, token)


@pytest.fixture
def typed(folder: Path, plane: Plane) -> Callable[[str], str]:
    """What a command prints."""

    def run(words: str) -> str:
        result = CliRunner().invoke(app, [*shlex.split(words), "--state", str(folder / "state")])
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    return run


@pytest.fixture(scope="module")
def job(plane: Plane, folder: Path) -> str:
    """It ran twice: it was requeued, lost what it had done, and completed."""
    script = folder / "train.py"
    script.write_text(TRAIN)
    asked = {
        "name": "fit",
        "model": "resnet",
        "priority": 7,
        "resources": {"accelerators": "A100:2", "cpus": 1, "memory": "1G"},
        "time": "20h",
        "expected": "1h",
        "workdir": str(folder),
        "env": {"LR": "0.1", "HF_TOKEN": SECRET},
        "command": [sys.executable, str(script), "--api-key", SECRET],
    }
    id = str(plane.client.submit(asked).id)
    plane.until(lambda: plane.client.job_info(id).progress)
    plane.client.connection.post(f"/jobs/{id}/requeue", None)
    plane.until(lambda: plane.client.job_info(id).state == "completed")
    return id


@pytest.fixture(scope="module")
def array(plane: Plane, job: str) -> str:
    asked = {
        "name": "sweep",
        "array": "0-2",
        "resources": {"gpus": 1},
        "run": "sleep 1\ntrue",
        "env": {"N": "1"},
    }
    id = str(plane.client.submit(asked).id)
    plane.until(lambda: plane.client.connection.get(f"/arrays/{id}")["states"] == {"completed": 3})
    return id


# --- figures as people read them ----------------------------------------------------------------------

UNITS = {"d": 86_400.0, "h": 3_600.0, "min": 60.0, "s": 1.0, "ms": 0.001}


def duration(text: str) -> tuple[float, float]:
    """`1 h 5 min` or `1.08 h` in seconds, and how far from the truth that may be."""
    parts = re.findall(r"([\d.,]+) (d|h|min|s|ms)\b", text)
    assert parts, text
    total = sum(float(number.replace(",", "")) * UNITS[unit] for number, unit in parts)
    number, unit = parts[-1]
    digits = len(number.partition(".")[2])
    return total, 0.51 * UNITS[unit] / 10**digits + 0.5  # whole seconds may have been made of it before


def is_duration(text: str, seconds: float) -> None:
    shown, off = duration(text)
    assert abs(shown - seconds) <= off, f"{text} is shown for {seconds} s"


def is_number(text: str, exact: float) -> None:
    """`0.023` or `<0.001`; a unit may follow."""
    match = re.match(r"(<?)([\d.,]+)", text)
    assert match, text
    shown, digits = float(match[2].replace(",", "")), len(match[2].partition(".")[2])
    if match[1]:
        assert 0 < exact < shown, f"{text} is shown for {exact}"
    else:
        assert abs(shown - exact) <= 0.51 / 10**digits + 0.005 * exact, f"{text} is shown for {exact}"


def is_moment(text: str, moment: str) -> None:
    """The hour and minute of this machine's clock; both show a date only if it is not today's."""
    local = datetime.fromisoformat(moment).astimezone()
    assert local.strftime("%H:%M") in text, f"{text} is shown for {moment}"


def facts_of_command(text: str) -> dict[str, str]:
    """The lines of `describe` by their labels; a line without one belongs to the label above it."""
    found: dict[str, str] = {}
    label = ""
    for line in text.split("\n\n")[1].splitlines():
        said = re.fullmatch(r"  ((?:\S+ ?)*\S+)?\s{2,}(.*)", line)
        assert said, line
        label = said[1] or label
        found[label] = f"{found[label]}\n{said[2]}" if label in found else said[2]
    return found


def facts_of_page(page: Any) -> dict[str, str]:
    pairs = page.locator("[data-test=facts] > div").all()
    return {pair.locator("dt").inner_text(): pair.locator("dd").inner_text() for pair in pairs}


def table(text: str) -> list[dict[str, str]]:
    """The rows of a table that a command prints, by the heads of its columns."""
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    heads = [(match[0], match.start(), match.end()) for match in re.finditer(r"\S+(?: \S+)*", lines[0])]
    found = []
    for line in lines[1:]:
        cells = [(match[0], match.start(), match.end()) for match in re.finditer(r"\S+(?: \S+)*", line)]
        row = {}
        for cell, start, end in cells:
            near = min(heads, key=lambda head: min(abs(head[1] - start), abs(head[2] - end)))
            row[near[0]] = cell
        found.append(row)
    return found


# --- one job ------------------------------------------------------------------------------------------


def test_one_job(plane: Plane, open_page: Any, typed: Any, job: str) -> None:
    api = plane.client.connection.get(f"/jobs/{job}")
    attempts = plane.client.connection.get(f"/jobs/{job}/attempts")["items"]
    assert set(api) == {name for name, _, _, _ in documents.fields_of(documents.Job)}, "one has every field"

    # the command line, for programs: exactly the API's
    said = json.loads(typed(f"describe {job} --json"))
    assert said == {**api, "attempts": attempts}
    (listed,) = (one for one in json.loads(typed("history --json"))["jobs"] if one["id"] == job)
    assert {**api, **listed} == {**api, "output": None}, "a list leaves out, and says nothing else"

    # the command line and the page, for people
    text = facts_of_command(typed(f"describe {job}"))
    page = open_page(plane.admin, f"#/jobs/{job}")
    expect(page.locator("[data-test=facts]")).to_contain_text("Took")
    shown = facts_of_page(page)
    state = page.locator("[data-test=state]").inner_text()
    program = page.locator("[data-test=program]")
    reports = page.locator("[data-test=reports] .jobs-last")

    heading = page.get_by_role("heading", level=1).inner_text()
    assert heading == f"{api['name']} {api['id']}"
    assert typed(f"describe {job}").startswith(f"{api['id']} {api['name']}: {api['state']}")
    assert (api["state"], api["letter"]) == ("completed", "CD")
    assert text["state"] == "completed (CD)"
    assert state.strip() == "completed"
    assert (api["reason"], api["detail"], api["waiting_since"], api["ends_at"]) == ("", "", None, None)
    assert "reason" not in text
    assert text["user"] == f"{api['user']} of {api['tenant']}"
    assert shown["Owner"] == f"{api['user']}, tenant {api['tenant']}"
    assert (api["gpus"], api["gpu_share"], api["nodes"], api["cpus"], api["memory"]) == (
        2,
        1.0,
        1,
        1.0,
        1 << 30,
    )
    assert text["asks for"] == "2 GPUs on 1 node, A100; 1 CPU and 1 GiB of memory"
    assert shown["Requested"].startswith("2 A100, 1 core, 1 GiB, at most ")
    assert api["gpu_types"] == ["A100"]
    assert api["time_limit"] == 20 * 3600
    is_duration(text["limit"], api["time_limit"])
    is_duration(shown["Requested"].partition("at most ")[2], api["time_limit"])
    assert text["priority"] == shown["Priority"] == str(api["priority"]) == "7"
    assert shown["Model"] == api["model"]
    for label, word, moment in (
        ("submitted", "Submitted", api["submitted_at"]),
        ("started", "Last start", api["started_at"]),
        ("ended", "Ended", api["ended_at"]),
    ):
        is_moment(text[label], moment)
        is_moment(shown[word], moment)
    is_moment(shown["First start"], api["first_started_at"])
    assert api["submitted_at"] <= api["eligible_at"] <= api["first_started_at"] < api["started_at"]
    is_duration(text["waited"], api["waited"])
    is_duration(shown["Waited"], api["waited"])
    assert api["waited"] >= api["first_start_after"]
    is_duration(text["took"], api["took"])
    is_duration(shown["Took"], api["took"])
    assert text["restarts"] == shown["Restarts"] == str(api["restarts"]) == "1"
    assert api["attempt"] == 2
    assert text["exit code"] == shown["Exit code"] == str(api["exit_code"]) == "0"
    is_number(text["used"], api["gpu_seconds"] / 3600)
    is_number(shown["GPU time"], api["gpu_seconds"] / 3600)
    is_number(text["lost"], api["lost_gpu_seconds"] / 3600)
    is_number(shown["Lost GPU time"], api["lost_gpu_seconds"] / 3600)
    assert api["gpu_seconds"] == pytest.approx(2 * api["took"], abs=0.002)
    (part,) = api["placement"]
    assert text["on"] == part["node"]
    first, last = part["devices"]
    assert shown["Runs on"] == f"{part['node']} ({first}–{last})"
    assert text["output"] == shown["Output file"] == api["output"]

    # what it runs
    hidden = [*api["command"][:3], "(hidden)"]
    assert api["command"] == hidden
    assert (api["run"], api["setup"]) == (None, "")
    assert text["runs"] == shlex.join(hidden)
    expect(program.get_by_label("Command")).to_have_text(shlex.join(hidden))
    assert text["in"] == api["workdir"]
    expect(program).to_contain_text(f"Folder{api['workdir']}")
    assert api["env"] == {"HF_TOKEN": "(hidden)", "LR": "0.1"}
    assert text["with"].splitlines() == ["HF_TOKEN=(hidden)", "LR=0.1"]
    for variable in text["with"].splitlines():
        expect(program).to_contain_text(variable)
    assert SECRET not in page.content() + typed(f"describe {job}") + json.dumps(said)

    # what it reported
    assert {name: api["progress"][name] for name in ("step", "loss", "checkpoint_step")} == {
        "step": 52,
        "loss": 0.25,
        "checkpoint_step": 45,
    }
    for name in ("step", "loss", "checkpoint_step"):
        assert f"{name} {api['progress'][name]}" in text["progress"]
        expect(reports).to_contain_text(f"{name} {api['progress'][name]}".replace("_", " "), ignore_case=True)

    # its attempts
    rows = page.get_by_role("table", name="Starts of this job").locator("tbody tr").all()
    lines = table("  attempt" + typed(f"describe {job}").partition("\n  attempt")[2].partition("\n\n")[0])
    assert len(rows) == len(lines) == len(attempts) == 2
    for attempt, row, line in zip(attempts, rows, lines, strict=True):
        cells = row.locator("td").all_inner_texts()
        assert cells[0] == line["attempt"] == str(attempt["attempt"])
        assert cells[1].startswith(f"{attempt['placement'][0]['node']}: ")
        assert line["on"] == attempt["placement"][0]["node"]
        is_moment(cells[2], attempt["started_at"])
        is_moment(line["started"], attempt["started_at"])
        is_duration(cells[3], attempt["took"])
        is_duration(line["took"], attempt["took"])
        assert line["exit"] == str(attempt["exit_code"])
        assert attempt["detail"] in cells[4]
    assert api["took"] == pytest.approx(sum(one["took"] for one in attempts), abs=0.001)
    assert api["cause"] == attempts[0]["cause"] == "exited"
    assert attempts[1]["detail"].startswith("told to stop (requeued)")  # a busy machine may have to kill it

    # in lists
    row = page.get_by_role("table", name="Jobs that have ended").get_by_role("row", name=job)
    page.goto(f"{plane.url}/#/history")
    expect(row).to_contain_text("completed")
    cells = row.get_by_role("cell").all_inner_texts()
    (line,) = (one for one in table(typed("history -o wide")) if one.get("job") == job)
    heads = page.get_by_role("table", name="Jobs that have ended").locator("thead th").all_inner_texts()
    ended = dict(zip(heads, cells, strict=True))
    is_duration(ended["Took"], api["took"])
    is_duration(line["took"], api["took"])
    is_duration(line["waited"], api["waited"])
    is_number(ended["GPU-hours"], api["gpu_seconds"] / 3600)
    is_number(line["GPU-hours"], api["gpu_seconds"] / 3600)
    is_number(ended["Lost"], api["lost_gpu_seconds"] / 3600)
    is_number(line["lost"], api["lost_gpu_seconds"] / 3600)
    is_moment(ended["Ended"], api["ended_at"])
    page.goto(f"{plane.url}/#/jobs?state=all")
    time = page.get_by_role("row", name=job).get_by_role("cell").last
    expect(time).to_contain_text("took ")
    is_duration(time.inner_text(), api["took"])
    (line,) = (one for one in table(typed("ps -a")) if one.get("job") == job)
    is_duration(line["time"], api["took"])


def test_a_job_that_runs_took_the_same_time_everywhere(plane: Plane, open_page: Any, typed: Any) -> None:
    id = str(plane.client.submit({"name": "runs", "resources": {"gpus": 1}, "run": "sleep 3600"}).id)
    plane.until(lambda: plane.client.job_info(id).took > 3_600)
    page = open_page(plane.admin, f"#/jobs/{id}")
    took = page.locator("[data-test=facts] > div", has_text="Took").locator("dd")
    expect(took).to_contain_text("so far")
    looks: dict[str, Callable[[], str]] = {
        "describe": lambda: facts_of_command(typed(f"describe {id}"))["took"],
        "ps": lambda: next(one["time"] for one in table(typed("ps")) if one.get("job") == id),
    }
    for name, look in looks.items():
        before = plane.client.job_info(id).took
        shown, off = duration(look())
        assert before - off <= shown <= plane.client.job_info(id).took + off, name

    before = plane.client.job_info(id).took

    def caught_up() -> bool:
        """The page counts on from its last look, and is never ahead of the plane."""
        shown, off = duration(took.inner_text())
        assert shown <= plane.client.job_info(id).took + off
        return bool(shown >= before - off)

    plane.until(caught_up)
    plane.client.cancel(id)
    plane.until(lambda: plane.client.job_info(id).done)


# --- one array ----------------------------------------------------------------------------------------


def test_one_array(plane: Plane, open_page: Any, typed: Any, array: str) -> None:
    api = plane.client.connection.get(f"/arrays/{array}")
    missing = {name for name, _, _, missing in documents.fields_of(documents.Array) if missing}
    assert set(api) == {name for name, _, _, _ in documents.fields_of(documents.Array)} - missing
    assert json.loads(typed(f"describe {array} --json")) == {**api, "attempts": []}
    members = [plane.client.connection.get(f"/jobs/{array}_{index}") for index in range(3)]
    assert api["gpu_seconds"] == pytest.approx(sum(one["gpu_seconds"] for one in members), abs=0.01)
    assert api["lost_gpu_seconds"] == sum(one["lost_gpu_seconds"] for one in members)
    assert api["first_started_at"] == min(one["first_started_at"] for one in members)
    assert api["ended_at"] == max(one["ended_at"] for one in members)
    assert api["gpus_held"] == 0

    said = typed(f"describe {array}")
    text = facts_of_command(said)
    page = open_page(plane.admin, f"#/jobs/{array}")
    expect(page.locator("[data-test=facts]")).to_contain_text("GPU time")
    shown = facts_of_page(page)
    assert said.startswith(f"array {array} of {api['count']} jobs: 3 completed")
    assert re.sub(r"\s+", " ", page.locator("[data-test=state]").inner_text()) == (
        f"An array of {api['count']} jobs: 3 completed"
    )
    assert api["states"] == {"completed": 3}
    assert page.get_by_role("heading", level=1).inner_text() == f"{api['name']} {array}"
    assert text["user"] == f"{api['user']} of {api['tenant']}"
    assert shown["Owner"] == f"{api['user']}, tenant {api['tenant']}"
    for label, word, name in (
        ("submitted", "Submitted", "submitted_at"),
        ("started", "First start", "first_started_at"),
        ("ended", "Ended", "ended_at"),
    ):
        is_moment(text[label], api[name])
        is_moment(shown[word], api[name])
    is_number(text["used"], api["gpu_seconds"] / 3600)
    is_number(shown["GPU time"], api["gpu_seconds"] / 3600)
    assert api["gpu_seconds"] > 60, "it is not nothing"
    assert (api["run"], api["command"], api["setup"], api["workdir"]) == ("sleep 1\ntrue", None, "", "")
    assert "what it runs:\n  sleep 1\n  true\n" in said
    program = page.locator("[data-test=program]")
    assert program.get_by_label("Command").inner_text() == api["run"]
    assert text["with"] == "N=1"
    expect(program).to_contain_text("N=1")
    rows = page.get_by_role("table", name="Members of the array").locator("tbody tr").all()
    lines = {one["job"]: one for one in table(typed("ps -a --expand --name sweep"))}
    for row in rows:
        cells = row.locator("td").all_inner_texts()
        (member,) = (one for one in members if one["id"] == cells[0])
        assert cells[1].strip() == member["state"] == lines[member["id"]]["state"]
        is_duration(cells[3], member["took"])
        is_duration(lines[member["id"]]["time"], member["took"])
    assert len(rows) == 3


def test_the_gpu_time_of_an_array_grows_while_it_runs(plane: Plane, open_page: Any) -> None:
    id = plane.client.submit(
        {"name": "grows", "array": "0-1", "resources": {"gpus": 1}, "run": "sleep 3600"}
    ).id
    page = open_page(plane.admin, f"#/jobs/{id}")
    expect(page.locator("[data-test=state]")).to_contain_text("2 running")
    fact = page.locator("[data-test=facts] > div", has_text="GPU time").locator("dd")
    first = plane.client.connection.get(f"/arrays/{id}")["gpu_seconds"] / 3600

    def shown() -> float:
        return float(re.findall(r"[\d.,]+", fact.inner_text())[0].replace(",", ""))

    plane.until(lambda: shown() > first + 0.3)  # though no member changes
    assert shown() <= plane.client.connection.get(f"/arrays/{id}")["gpu_seconds"] / 3600 + 0.5
    page.goto(f"{plane.url}/#/jobs?state=ended")
    expect(page.get_by_role("table", name="Jobs, newest first").or_(page.locator(".empty"))).to_be_visible()
    assert page.get_by_role("row", name=id).count() == 0
    plane.client.cancel(id)
    plane.until(lambda: plane.client.job_info(id).done)


# --- one report ---------------------------------------------------------------------------------------


def test_one_report(plane: Plane, open_page: Any, typed: Any, job: str, array: str) -> None:
    plane.until(lambda: not list(plane.client.jobs(active=True)))
    api = plane.client.connection.get("/report", {"by": "model"})
    said = json.loads(typed("report --by model --json"))
    moving = ("since", "until")
    assert {key: value for key, value in said.items() if key not in moving} == {
        key: value for key, value in api.items() if key not in moving
    }
    assert api["by"] == "model"
    assert (api["more"], api["unpriced"]) == (0, [])
    text = typed("report --by model -o wide")
    lines = {one["model"]: one for one in table(text)}
    page = open_page(plane.admin, "#/history?by=model")
    usage = page.locator("[data-test=usage]")
    expect(usage).to_contain_text("resnet")
    heads = usage.locator("thead th").all_inner_texts()
    shown = {}
    for row in usage.locator("tbody tr, tfoot tr").all():
        name, *cells = row.locator("th, td").all_inner_texts()
        shown[name] = dict(zip(heads[1:], cells, strict=True))

    (counted,) = (one for one in api["items"] if one["key"] == "resnet")
    document = plane.client.connection.get(f"/jobs/{job}")
    assert counted["jobs"] == 1
    assert counted["gpu_hours"] == pytest.approx(document["gpu_seconds"] / 3600, abs=1e-3)
    assert counted["lost_gpu_hours"] == pytest.approx(document["lost_gpu_seconds"] / 3600, abs=1e-3)
    assert counted["wait"]["mean"] == pytest.approx(document["waited"], abs=0.01)
    assert counted["first_start_after"]["mean"] == pytest.approx(document["first_start_after"], abs=0.01)
    assert counted["cost"] == pytest.approx(2.5 * counted["gpu_hours"], abs=0.01)
    for item in api["items"]:
        row, line = shown[item["key"] or "(none)"], lines[item["key"] or "-"]
        is_number(row["GPU-hours"], item["gpu_hours"])
        is_number(line["GPU-hours"], item["gpu_hours"])
        is_number(row["Lost"], item["lost_gpu_hours"])
        is_number(line["lost"], item["lost_gpu_hours"])
        is_number(row["Cost (EUR)"], item["cost"])
        is_number(line["cost (EUR)"], item["cost"])
        assert row["Jobs"] == line["jobs"] == str(item["jobs"])
        is_duration(row["Mean wait"], item["wait"]["mean"])
        is_duration(line["mean wait"], item["wait"]["mean"])
        is_duration(row["90 % waited less than"], item["wait"]["p90"])
        is_duration(line["p90 wait"], item["wait"]["p90"])
    total = api["total"]
    head = text.splitlines()[0]
    is_number(head, total["gpu_hours"])
    assert head.endswith(f"by {total['jobs']} jobs that ran or still run")
    is_number(shown["All"]["GPU-hours"], total["gpu_hours"])
    is_number(shown["All"]["Lost"], total["lost_gpu_hours"])
    is_number(shown["All"]["Cost (EUR)"], total["cost"])
    assert shown["All"]["Jobs"] == str(total["jobs"])
    stats = page.locator("[data-test=totals]")
    for label, value in (
        ("GPU-hours", total["gpu_hours"]),
        ("Lost GPU-hours", total["lost_gpu_hours"]),
        ("Cost", total["cost"]),
        ("Jobs that ran", total["jobs"]),
    ):
        stat = stats.locator(f".stat:has(.stat-label:text-is('{label}')) .stat-value")
        is_number(stat.inner_text(), value)


def test_one_answer_to_why(plane: Plane, open_page: Any, typed: Any) -> None:
    """A job without an estimate waits for CPUs, and one job holds them."""
    cpus = plane.client.nodes()[0].cpus
    asks = {"run": "sleep 3600", "resources": {"gpus": 1, "cpus": cpus}}
    holder = plane.client.submit({**asks, "nodes": 2, "expected": "100d"}).id
    plane.until(lambda: plane.client.job_info(holder).state == "running")
    waiting = plane.client.submit(asks).id
    page = open_page(plane.admin, f"#/jobs/{waiting}")
    lines = typed(f"why {waiting}").splitlines()
    told = plane.client.why(waiting)
    sooner = [one.text for one in told.remedies if one.kind != "wait"]
    assert [one.resource for one in told.short] == ["cpus"]
    assert sooner
    assert told.sentence.startswith("It asks for ")
    assert "CPU" in told.sentence

    assert lines[0] == told.sentence
    assert told.assumed in lines
    assert [
        line.partition(":  ")[2] for line in lines if line.startswith(("to start sooner:", "or:"))
    ] == sooner
    (row,) = table("\n".join(lines))
    assert (row["holder"], row["CPUs"]) == (holder, f"{2 * cpus:g}")

    why = page.locator("[data-test=why]")
    expect(why).to_contain_text(told.sentence)
    expect(why.locator("[data-test=assumed]")).to_have_text(told.assumed, ignore_case=True)
    expect(why.locator("[data-test=remedy]")).to_have_text(sooner, ignore_case=True)
    expect(why.locator("[data-test=holder]")).to_contain_text(f"{2 * cpus:g} CPUs")
    plane.client.cancel(waiting, holder)
    plane.until(lambda: plane.client.job_info(holder).done)
