"""The queue, one job, submitting: what people do all day, in a real browser on a real plane."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

expect: Any = pytest.importorskip("playwright.sync_api").expect

# Trains until it is let go: prints and reports ten times a second.
TRAIN = """\
import os, sys, time
from dovetail import job
step = 0
while not os.path.exists(sys.argv[1]):
    step += 1
    job.report(step=step, loss=1 / step, accuracy=1 - 1 / step)
    print(f"\\x1b[32mstep {step}\\x1b[0m <b>bold</b>", flush=True)
    time.sleep(0.1)
print("the last line", flush=True)
"""

Opener = Callable[..., "Page"]


@pytest.fixture
def train(tmp_path: Path) -> tuple[str, Path]:
    """A command that trains until a file is there, and that file."""
    script, gate = tmp_path / "train.py", tmp_path / "gate"
    script.write_text(TRAIN)
    return f"exec {sys.executable} {script} {gate}", gate


@pytest.fixture
def free(plane: Any) -> None:
    """Nobody is on the cluster."""
    if left := [job.id for job in plane.client.jobs(active=True)]:
        plane.client.cancel(*left)
    plane.until(lambda: not list(plane.client.jobs(active=True)))


def part(page: Page, name: str) -> Locator:
    return page.locator(f"[data-test={name}]")


def state(page: Page) -> Locator:
    return part(page, "state")


def shows(page: Page, word: str) -> None:
    expect(state(page)).to_contain_text(word)


def running(plane: Any, **more: Any) -> str:
    """A job that runs until it is stopped."""
    id = str(plane.client.submit({"name": "runs", "run": "sleep 3600", **more}).id)
    plane.until(lambda: plane.client.job_info(id).state == "running")
    return id


# --- from the editor to the end ---------------------------------------------------------------------


def test_submit_from_the_editor_with_the_plan_shown_then_watch_it_run(
    plane: Any, open_page: Opener, train: tuple[str, Path], free: None
) -> None:
    command, gate = train
    page = open_page(plane.token("user"), "#/submit")
    posts: list[str] = []
    page.on("request", lambda request: posts.append(request.url) if request.method == "POST" else None)
    editor = page.get_by_role("textbox", name="Job file in YAML")
    editor.fill(f"name: from-the-page\nresources:\n  accelerators: V100:2\nexpected: 1m\nrun: {command}\n")
    page.get_by_role("button", name="Plan").click()
    plan = part(page, "plan")
    expect(plan).to_contain_text("It fits")
    expect(plan).to_contain_text("2 GPUs")
    expect(plan).to_contain_text("Would preemptno job")
    page.get_by_role("button", name="Confirm and submit").dblclick()

    expect(page).to_have_url(re.compile(r"#/jobs/\w+$"))
    id = page.url.rpartition("/")[2]
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"from-the-page {id}")
    shows(page, "running")
    expect(part(page, "facts")).to_contain_text("2 V100")
    expect(part(page, "timeline")).to_be_visible()
    log = page.get_by_role("log")
    expect(log).to_contain_text("step 5 <b>bold</b>")  # text, neither markup nor colours of a terminal
    expect(log).not_to_contain_text("[32m")
    expect(log.locator("b")).to_have_count(0)
    for key in ("loss", "accuracy", "steps_per_second"):
        expect(part(page, f"chart-{key}").locator("canvas")).to_be_visible()
    expect(part(page, "chart-loss").locator("tbody td").nth(1)).to_be_attached()
    gate.touch()
    shows(page, "completed")
    expect(log).to_contain_text("the last line")
    expect(page.get_by_role("table", name="Starts of this job")).to_contain_text("finished")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    assert sum(url.endswith("/jobs") for url in posts) == 1  # two clicks, one job
    assert [job.id for job in plane.client.jobs(name="from-the-page")] == [id]


def test_a_plan_is_of_the_text_that_is_there(plane: Any, open_page: Opener) -> None:
    page = open_page(plane.token("user"), "#/submit")
    editor = page.get_by_role("textbox", name="Job file in YAML")
    for template in ("4 GPUs on one node", "Array", "CPU only", "One GPU"):
        page.get_by_label("Template").select_option(template)
        page.get_by_role("button", name="Plan").click()
        expect(part(page, "plan")).to_contain_text("It fits")
    confirm = page.get_by_role("button", name="Confirm and submit")
    expect(confirm).to_be_enabled()
    editor.press("Control+Home")
    editor.press("End")
    editor.type("x")
    expect(confirm).to_be_disabled()
    expect(part(page, "plan")).to_contain_text("plan again")
    page.reload()  # the draft is kept in the tab
    expect(editor).to_have_value(re.compile(r"^name: trainx\n"))


def test_tab_indents_and_escape_then_tab_leaves_the_editor(plane: Any, open_page: Opener) -> None:
    page = open_page(plane.token("user"), "#/submit")
    editor = page.get_by_role("textbox", name="Job file in YAML")
    editor.fill("")
    editor.type("resources:\n")
    editor.press("Tab")
    expect(editor).to_have_value("resources:\n    ")  # one step by itself after a colon, one by hand
    editor.press("Escape")
    editor.press("Tab")
    expect(editor).not_to_be_focused()
    expect(editor).to_have_value("resources:\n    ")


def test_mistakes_stand_beside_their_lines(plane: Any, open_page: Opener, watch: Any) -> None:
    watch.expected = ("422",)
    page = open_page(plane.token("user"), "#/submit")
    editor = page.get_by_role("textbox", name="Job file in YAML")
    wrong, marks = page.get_by_role("alert"), part(page, "mark")

    editor.fill("name: wrong\nresources:\n  gpu: 2\ntime: soon\nrun: python train.py\n")
    page.get_by_role("button", name="Plan").click()
    expect(wrong).to_contain_text("Line 3: unknown key 'gpu'; it is called gpus here")
    expect(wrong).to_contain_text("Line 4")
    expect(marks).to_have_count(2)
    expect(marks.first).to_contain_text("it is called gpus here")
    expect(part(page, "plan")).to_have_count(0)
    wrong.get_by_role("button", name="Line 3").click()
    expect(editor).to_be_focused()
    assert page.evaluate("getSelection().toString()") == "  gpu: 2"

    editor.fill('name: "never closed\nrun: x\n')
    expect(marks).to_have_count(0)  # what was wrong with another text is gone
    page.get_by_role("button", name="Plan").click()
    expect(wrong).to_contain_text(re.compile(r"Line \d"))

    editor.fill("name: huge\nresources:\n  gpus: 60\nrun: x\n")
    page.get_by_role("button", name="Plan").click()
    expect(wrong).to_contain_text("60 GPUs, but the cluster has 8")


# --- why it waits -----------------------------------------------------------------------------------


def test_a_job_that_waits_says_what_is_missing_and_starts_before_ones_eyes(
    plane: Any, open_page: Opener, free: None
) -> None:
    holder = running(plane, nodes=2, resources={"accelerators": "V100:4"}, expected="1h")
    waiting = plane.client.submit(
        {"name": "waits", "resources": {"accelerators": "V100:4"}, "expected": "10m", "run": "sleep 3600"}
    ).id
    page = open_page(plane.token("user"), f"#/jobs/{waiting}")
    shows(page, "pending")
    why = part(page, "why")
    expect(why).to_contain_text("It asks for 4 GPUs of type V100; none is free.")
    expect(part(page, "remedy")).to_have_text(f"dovetail priority {waiting} high (preempts {holder})")
    expect(why).to_contain_text(re.compile(r"Expected start.*about .* \(.* to .*\)", re.DOTALL))
    expect(why).to_contain_text("Expected finish")
    expect(why.get_by_role("link", name=holder)).to_be_visible()
    expect(state(page)).to_contain_text("Resources")

    page.goto(f"{plane.url}/#/jobs?state=waiting")
    row = page.get_by_role("row", name=waiting)
    expect(row).to_contain_text("pending")
    expect(row).to_contain_text("Resources")
    row.get_by_role("link", name=waiting).click()
    expect(why).to_be_visible()
    plane.client.cancel(holder)
    shows(page, "running")
    expect(why).to_have_count(0)


def test_others_who_hold_what_is_missing_are_not_named(
    plane: Any, open_page: Opener, watch: Any, free: None
) -> None:
    watch.expected = ("404",)
    plane.client.set_tenant("green", quota=None)
    holder = running(plane, nodes=2, resources={"accelerators": "V100:4"}, expected="1h", queue="green")
    waiting = plane.client.submit({"resources": {"accelerators": "V100:4"}, "run": "sleep 1"}).id
    page = open_page(plane.token("user"), f"#/jobs/{waiting}")
    expect(part(page, "holder")).to_contain_text("8 GPUs: a job of another tenant")
    assert holder not in page.content()
    page.goto(f"{plane.url}/#/jobs/{holder}")
    expect(page.get_by_role("heading", level=1)).to_have_text("No such job")


# --- acting -----------------------------------------------------------------------------------------


def test_hold_release_priority_requeue_cancel(plane: Any, open_page: Opener, free: None) -> None:
    id = running(plane, resources={"gpus": 1}, expected="1h")
    page = open_page(plane.token("user"), f"#/jobs/{id}")
    button = page.get_by_role("button", name=re.compile("^(Hold|Release|Requeue|Change priority|Cancel)$"))
    shows(page, "running")
    expect(button).to_have_text(["Hold", "Requeue", "Change priority", "Cancel"])

    page.get_by_role("button", name="Requeue", exact=True).click()
    page.get_by_role("button", name="Yes, requeue").click()
    expect(page.get_by_role("table", name="Starts of this job").locator("tbody tr")).to_have_count(2)
    shows(page, "running")

    page.get_by_role("button", name="Hold", exact=True).click()
    shows(page, "held")
    expect(part(page, "why")).to_contain_text("Its user holds it.")
    expect(button).to_have_text(["Release", "Change priority", "Cancel"])

    page.get_by_role("button", name="Change priority").click()
    field = page.get_by_role("textbox", name="Priority")
    field.fill("much")
    expect(page.get_by_role("button", name="Set priority")).to_be_disabled()
    page.get_by_role("button", name="high (100)").click()
    expect(field).to_have_value("100")
    page.get_by_role("button", name="Set priority").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(part(page, "facts")).to_contain_text("Priority100")

    page.get_by_role("button", name="Release").click()
    shows(page, "running")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Keep it").click()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Yes, cancel").click()
    shows(page, "cancelled")
    expect(button).to_have_count(0)
    expect(page.get_by_label("Attempt", exact=True).locator("option")).to_have_count(4)


def test_a_viewer_looks_and_is_offered_nothing(plane: Any, open_page: Opener, free: None) -> None:
    id = running(plane, resources={"gpus": 1})
    page = open_page(plane.token("viewer"), f"#/jobs/{id}")
    shows(page, "running")
    expect(page.get_by_role("log")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Hold|Requeue|priority|Cancel"))).to_have_count(0)
    page.goto(f"{plane.url}/#/jobs")
    expect(page.get_by_role("row", name=id)).to_be_visible()
    expect(page.get_by_role("checkbox", name=re.compile("Select"))).to_have_count(0)
    expect(page.get_by_role("link", name="Submit a job")).to_have_count(0)
    page.goto(f"{plane.url}/#/submit")
    expect(page.get_by_text("Your token cannot submit jobs")).to_be_visible()
    expect(page.get_by_role("textbox")).to_have_count(0)


@pytest.mark.parametrize("id", ["zzzzzz", "..%2Ftokens", "%22%3Cb%3E", "a b"])
def test_an_unknown_id_is_told_in_words(plane: Any, open_page: Opener, watch: Any, id: str) -> None:
    watch.expected = ("404",)
    page = open_page(plane.token("user"), f"#/jobs/{id}")
    expect(page.get_by_role("heading", level=1)).to_have_text("No such job")
    page.get_by_role("link", name="All jobs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")


# --- the list ---------------------------------------------------------------------------------------


def test_the_list_is_live_and_draws_only_what_changed(plane: Any, open_page: Opener, free: None) -> None:
    first = running(plane, name="stays", resources={"gpus": 1})
    page = open_page(plane.token("user"), "#/jobs")
    expect(page.get_by_role("row", name=first)).to_contain_text("running")
    page.evaluate(
        """id => {
          window.drawn = [];
          const row = document.querySelector(`tr[data-job="${id}"]`);
          const text = (node) => node.textContent.replace(/\\d+ (s|min)/g, "");
          let before = text(row);
          new MutationObserver(() => {
            if (!row.isConnected) window.drawn.push("gone");
            if (text(row) !== before) window.drawn.push(before = text(row));
          }).observe(document.body, {subtree: true, childList: true, characterData: true});
        }""",
        first,
    )
    second = running(plane, name="comes", resources={"gpus": 1})
    row = page.get_by_role("row", name=second)
    expect(row).to_contain_text("running")
    plane.client.cancel(second)
    expect(row).to_have_count(0)  # the list is of those that are active
    assert page.evaluate("window.drawn") == []


def test_filters_stand_in_the_address(plane: Any, open_page: Opener, free: None) -> None:
    alpha = running(plane, name="alpha-one", resources={"gpus": 1})
    beta = running(plane, name="beta-two", resources={"gpus": 1})
    page = open_page(plane.token("user"), "#/jobs")
    expect(page.get_by_role("row", name=alpha)).to_be_visible()
    search = page.get_by_role("searchbox", name="Name")
    search.fill("alpha")
    expect(page.get_by_role("row", name=beta)).to_have_count(0)
    expect(page.get_by_role("row", name=alpha)).to_be_visible()
    expect(page).to_have_url(re.compile("#/jobs.name=alpha$"))
    expect(search).to_be_focused()
    search.fill("*two")
    expect(page.get_by_role("row", name=beta)).to_be_visible()
    page.reload()
    expect(page.get_by_role("row", name=beta)).to_be_visible()
    expect(page.get_by_role("row", name=alpha)).to_have_count(0)
    page.get_by_label("Show").select_option("Waiting")
    expect(page.get_by_text("No job matches these filters.")).to_be_visible()
    page.goto(f"{plane.url}/#/jobs")
    page.get_by_label("Only mine").check()  # they were submitted by the admin
    expect(page.get_by_text("No job matches these filters.")).to_be_visible()
    search.fill(alpha)
    page.get_by_role("link", name=f"Open the job with the id {alpha}").click()
    shows(page, "running")


def test_arrays_are_one_row_and_many_are_cancelled_at_once(plane: Any, open_page: Opener, free: None) -> None:
    every = {"resources": {"cpus": 0.1}, "run": "sleep 3600"}
    array = plane.client.submit({**every, "name": "sweep", "array": "0-9%2"}).id
    other = plane.client.submit({**every, "name": "other", "hold": True}).id
    kept = plane.client.submit({**every, "name": "kept", "hold": True}).id
    page = open_page(plane.token("user"), "#/jobs")
    row = page.get_by_role("row", name=array)
    expect(row).to_contain_text("× 10")
    expect(row).to_contain_text("8 held")
    expect(row).to_contain_text("2 running")
    row.get_by_role("link").click()
    expect(state(page)).to_contain_text("An array of 10 jobs")
    expect(page.get_by_role("table", name="Members of the array").locator("tbody tr")).to_have_count(10)
    page.get_by_label("Show").select_option("running")
    expect(page.get_by_role("table", name="Members of the array").locator("tbody tr")).to_have_count(2)

    page.goto(f"{plane.url}/#/jobs")
    page.get_by_role("checkbox", name=f"Select {array}").check()
    page.get_by_role("checkbox", name=f"Select {other}").check()
    expect(part(page, "picked")).to_contain_text("2 rows selected")
    page.get_by_role("button", name="Cancel selected").click()
    page.get_by_role("button", name="Yes, cancel").click()
    expect(page.get_by_text("11 jobs cancelled.")).to_be_visible()
    expect(page.get_by_role("row", name=array)).to_have_count(0)
    expect(page.get_by_role("row", name=other)).to_have_count(0)
    expect(page.get_by_role("row", name=kept)).to_be_visible()


def test_more_pages_come_when_asked_for(plane: Any, open_page: Opener, free: None) -> None:
    plane.client.set_tenant("crowd", quota=None)
    for number in range(105):
        plane.client.submit({"name": f"crowd-{number}", "queue": "crowd", "hold": True, "run": "true"})
    page = open_page(plane.token("user", "crowd"), "#/jobs")
    rows = page.locator("tr[data-job]")
    expect(rows).to_have_count(100)
    page.get_by_role("button", name="More").click()
    expect(rows).to_have_count(105)
    expect(page.get_by_role("button", name="More")).to_have_count(0)
    plane.client.submit({"name": "the-newest", "queue": "crowd", "hold": True, "run": "true"})
    expect(page.get_by_text("the-newest")).to_be_visible()
    expect(rows).to_have_count(106)  # the one that was pushed over the edge of the first page is still there
    names = [text.split()[0] for text in page.locator("tr[data-job] .jobs-name").all_inner_texts()]
    assert names == ["the-newest", *(f"crowd-{number}" for number in reversed(range(105)))]


# --- the log ----------------------------------------------------------------------------------------


def test_a_long_log_keeps_its_end_and_is_downloaded_whole(
    plane: Any, open_page: Opener, free: None, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    command = f"seq 12000; until [ -e {gate} ]; do echo tick; sleep 0.1; done; echo over"
    id = running(plane, resources={"cpus": 0.1}, run=command)
    page = open_page(plane.token("user"), f"#/jobs/{id}")
    log = page.get_by_role("log")
    expect(log).to_contain_text("tick")
    expect(log).to_contain_text("11999")
    expect(log).not_to_contain_text("\n4999\n")
    pause = page.get_by_role("button", name="Pause")
    pause.click()
    expect(page.get_by_role("button", name=re.compile(r"Follow \(\d+ new\)"))).to_be_visible()
    held = log.inner_text()
    gate.touch()
    shows(page, "completed")
    assert log.inner_text() == held  # a paused log does not scroll
    page.get_by_role("button", name="Follow").click()
    expect(log).to_contain_text("over")
    expect(pause).to_be_visible()
    lines = len(log.inner_text().splitlines())
    assert 1_000 < lines <= 7_000, lines
    with page.expect_download() as coming:
        page.get_by_role("button", name="Download").click()
    assert coming.value.suggested_filename == f"{id}.log"
    text = Path(coming.value.path()).read_text().splitlines()
    assert text[:12_000] == [str(n) for n in range(1, 12_001)]
    assert text[-1] == "over"
