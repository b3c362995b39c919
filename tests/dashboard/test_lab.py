"""The Lab in a real browser: every tool, set as a user would set it, against the answers that are known.

The numbers are those of the worked examples that the Lab starts with: four jobs on two GPUs (35/70, 34/66,
43.5/53), three jobs on three types of GPU (135 in turn, 185 at best), two jobs of two GPUs (260 or 210), and
a gigabyte over three links (1.67, 40 and 100 ms).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.control import harness

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

expect: Any = pytest.importorskip("playwright.sync_api").expect

TOOLS = {
    "queue": "Queue simulator",
    "compare": "Policy comparison",
    "sensitivity": "Throughput sensitivity",
    "assignment": "Assignment game",
    "placement": "Placement calculator",
    "fairness": "Fairness against throughput",
    "whatif": "What if",
}

Opener = Callable[..., "Page"]


NUMBERS = count()


@pytest.fixture
def tool(plane: Any, open_page: Opener) -> Opener:
    """`tool("queue")` is that tool, with reduced motion.

    Each page has a token of its own, because requests and questions to the Lab are limited by token.
    """

    def opened(name: str, query: str = "", **more: Any) -> Page:
        token = plane.token("viewer", user=f"viewer-{next(NUMBERS)}")
        page = open_page(token, f"#/lab/{name}{query}", **{"reduced_motion": "reduce", **more})
        expect(page.get_by_role("heading", level=1, name=TOOLS[name])).to_be_visible()
        return page

    return opened


def part(page: Page | Locator, name: str) -> Locator:
    return page.locator(f"[data-test='{name}']")


def figure(place: Page | Locator, label: str) -> Locator:
    """The value of the figure with this label."""
    return place.locator(f".stat:has(.stat-label:text-is('{label}')) .stat-value")


# --- all of them ------------------------------------------------------------------------------------


def test_the_first_page_leads_to_every_tool_and_says_what_it_answers(plane: Any, open_page: Opener) -> None:
    page = open_page(plane.token("viewer"), "#/lab")
    entries = page.get_by_role("main").get_by_role("listitem").get_by_role("link")
    expect(entries).to_have_count(len(TOOLS))
    for name, title in TOOLS.items():
        entry = page.get_by_role("link", name=title)
        expect(entry).to_contain_text("?")
        entry.click()
        expect(page.get_by_role("heading", level=1, name=title)).to_be_visible()
        assert page.url.endswith(f"#/lab/{name}")
        page.get_by_role("link", name="All tools").click()


def test_a_tool_that_is_not_there_says_so(plane: Any, open_page: Opener) -> None:
    page = open_page(plane.token("viewer"), "#/lab/crystal-ball")
    expect(page.get_by_role("alert")).to_contain_text("no tool of that name")


@pytest.mark.parametrize("name", TOOLS)
def test_a_phone_is_wide_enough(tool: Opener, name: str) -> None:
    page = tool(name, viewport={"width": 390, "height": 844})
    expect(page.get_by_role("region", name="What to try").get_by_role("button").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def tries(page: Page) -> Locator:
    return page.get_by_role("region", name="What to try")


CHANGES: dict[str, tuple[str, Callable[[Page], object], Callable[[Page], object]]] = {
    # by tool: a trial, an edit after which it is another set-up, and one that undoes the edit
    "queue": (
        "By priority",
        lambda page: page.get_by_label("Duration of job 3").fill("20"),
        lambda page: page.get_by_label("Duration of job 3").fill("40"),
    ),
    "compare": (
        "Four jobs",
        lambda page: page.get_by_role("button", name="Remove sjf").click(),
        lambda page: page.get_by_role("button", name="Four jobs").click(),
    ),
    "sensitivity": (
        "Two jobs, two GPUs",
        lambda page: page.get_by_role("slider", name="ResNet on V100").fill("20"),
        lambda page: page.get_by_role("slider", name="ResNet on V100").fill("70"),
    ),
    "assignment": (
        "Round robin",
        lambda page: page.get_by_label("A runs on").select_option(label="V100"),
        lambda page: page.get_by_label("A runs on").select_option(label="K80"),
    ),
    "placement": (
        "A ring of 4",
        lambda page: page.get_by_role("slider", name="GPUs in the ring").fill("8"),
        lambda page: page.get_by_role("slider", name="GPUs in the ring").fill("4"),
    ),
    "fairness": (
        "Best for the worst-off job",
        lambda page: page.get_by_role("slider", name="No job below").fill("50"),
        lambda page: page.get_by_role("slider", name="No job below").fill("100"),
    ),
    "whatif": (
        "One node more",
        lambda page: page.get_by_label("Nodes to add").fill("3"),
        lambda page: page.get_by_label("Nodes to add").fill("1"),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_trial_is_chosen_as_long_as_nothing_of_it_is_changed(tool: Opener, name: str) -> None:
    label, edit, undo = CHANGES[name]
    page = tool(name)
    button = tries(page).get_by_role("button", name=label)
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(tries(page).get_by_role("status")).to_contain_text("Notice:")
    expect(tries(page).locator("[aria-pressed=true]")).to_have_count(1)
    told = tries(page).get_by_role("status").inner_text()
    edit(page)
    expect(button).to_have_attribute("aria-pressed", "false")
    expect(tries(page).get_by_role("status")).not_to_contain_text(told)
    undo(page)
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(tries(page).get_by_role("status")).to_have_text(told)


def test_a_random_problem_stays_chosen_while_it_is_played(tool: Opener) -> None:
    page = tool("assignment")
    button = tries(page).get_by_role("button", name="A random problem")
    expect(button).to_be_visible()
    expect(tries(page).locator("[aria-pressed=true]")).to_have_count(0)  # no job is on a GPU yet
    button.click()
    page.get_by_label("D runs on").select_option(label="V100")
    expect(button).to_have_attribute("aria-pressed", "true")
    tries(page).get_by_role("button", name="Two jobs").click()
    expect(button).to_have_attribute("aria-pressed", "false")


# --- queue ------------------------------------------------------------------------------------------


def test_four_jobs_two_gpus_four_policies(tool: Opener) -> None:
    page = tool("queue")
    policy = page.get_by_label("Policy", exact=True)

    def shows(mean: str, makespan: str, use: str) -> None:
        expect(figure(page, "Mean completion")).to_have_text(f"{mean} s")
        expect(figure(page, "Makespan")).to_have_text(f"{makespan} s")
        expect(figure(page, "GPUs in use")).to_have_text(f"{use} %")

    shows("35", "70", "75")
    expect(figure(page, "Mean wait")).to_have_text("8.75 s")
    policy.select_option("srtf")
    shows("34", "66", "79.5")
    expect(figure(page, "Preemptions")).to_have_text("1")
    policy.select_option("priority")
    shows("43.5", "53", "99.1")
    page.get_by_label("higher is").select_option(label="smaller")
    shows("34", "66", "79.5")
    page.get_by_label("preempt").select_option(label="no")
    shows("35", "70", "75")


def test_the_schedule_can_be_read_without_being_seen(tool: Opener) -> None:
    page = tool("queue")
    rows = page.get_by_role("list", name="Which job each GPU runs").get_by_role("listitem")
    expect(rows).to_have_text(
        ["GPU 0: 0 0 s to 30 s, 3 30 s to 70 s", "GPU 1: 1 0 s to 10 s, 2 10 s to 35 s"]
    )
    page.get_by_label("A row for each").select_option(label="job")
    rows = page.get_by_role("list", name="When each job waits and runs").get_by_role("listitem")
    expect(rows.nth(3)).to_have_text("job 3: waits 4 s to 30 s, 3 30 s to 70 s")
    page.get_by_text("Results of each job").click()
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="3"))
    expect(row.get_by_role("cell")).to_have_text(["30 s", "70 s", "66 s", "26 s", "0"])


def test_one_steps_and_scrubs_through_a_schedule(tool: Opener) -> None:
    page = tool("queue")
    moment = page.locator(".lab-moment")
    expect(moment).to_contain_text("Done0, 1, 2, 3")  # with reduced motion the end is shown at once
    expect(page.get_by_role("button", name="Play")).to_have_count(0)
    page.get_by_role("button", name="Back", exact=True).click()
    expect(moment).to_contain_text("Running3Waitingnone")
    page.get_by_role("slider", name="Time").fill("4.06")
    expect(moment).to_contain_text("Running0, 1Waiting2, 3Donenone")
    page.get_by_role("button", name="Step").click()
    expect(moment).to_contain_text("Running0, 2Waiting3Done1")


def test_a_schedule_is_drawn_as_time_goes_on(tool: Opener) -> None:
    page = tool("queue", reduced_motion="no-preference")
    play, pause = page.get_by_role("button", name="Play"), page.get_by_role("button", name="Pause")
    expect(play).to_be_visible()  # it began by itself, and is over
    expect(page.locator(".lab-scrub output")).to_have_text("70 s")
    play.click()
    pause.click()
    expect(page.locator(".gantt .now")).to_have_count(1)
    expect(page.locator(".lab-scrub output")).not_to_have_text("70 s")
    page.get_by_label("Speed").select_option(label="fast")
    play.click()
    expect(page.locator(".lab-scrub output")).to_have_text("70 s")


def test_other_jobs_are_shown_to_their_end_however_early_the_last_ones_were_paused(tool: Opener) -> None:
    page = tool("queue", reduced_motion="no-preference")
    page.get_by_role("slider", name="Time").fill("1.4")  # which pauses it
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    page.get_by_label("Policy", exact=True).select_option("srtf")
    expect(figure(page, "Makespan")).to_have_text("66 s")
    expect(page.locator(".lab-scrub output")).to_have_text("1.4 s")  # the same jobs at the same time
    tries(page).get_by_role("button", name="Backfilling").click()
    expect(figure(page, "Makespan")).to_have_text("27 h")
    expect(page.locator(".lab-scrub output")).to_have_text("27 h")
    expect(page.locator(".lab-moment")).to_contain_text("DoneA, H, B, C")
    expect(page.locator(".gantt .bar.run")).to_have_count(4)


def test_jobs_are_changed_added_and_removed_and_the_address_holds_them(tool: Opener) -> None:
    page = tool("queue")
    page.get_by_label("Duration of job 3").fill("20")
    expect(figure(page, "Makespan")).to_have_text("50 s")
    page.get_by_role("button", name="Add a job").click()
    page.get_by_label("Name of job 4").fill("late")
    page.get_by_label("Name of job 4").press("Tab")
    page.get_by_label("Arrival of job late").fill("60")
    expect(figure(page, "Makespan")).to_have_text("80 s")
    page.get_by_role("button", name="Remove job 0").click()
    page.get_by_label("GPUs", exact=True).fill("1")
    expect(figure(page, "Makespan")).to_have_text("80 s")
    expect(page.get_by_role("list", name="Which job each GPU runs").get_by_role("listitem")).to_have_count(1)
    page.wait_for_url(re.compile(r"gpus=1&.*late"))
    page.reload()
    expect(page.get_by_label("Name of job late")).to_have_value("late")
    expect(figure(page, "Makespan")).to_have_text("80 s")
    expect(page.get_by_role("button", name=re.compile("^Remove job"))).to_have_count(4)


def test_hours_and_a_policy_come_with_an_address(tool: Opener) -> None:
    jobs = "Alice,0,4,6,0;Bob,0,2,1,0;Carol,0,1,0.5,0;Dave,0,2,3,0;Eve,0,1,0.25,0"
    page = tool("queue", f"?gpus=8&unit=h&policy=fifo&jobs={jobs}")
    expect(figure(page, "Mean completion")).to_have_text("2.45 h")
    page.get_by_label("discipline").select_option(label="skip")
    expect(figure(page, "Mean completion")).to_have_text("2.25 h")


def test_a_job_that_is_too_large_is_refused_in_one_line(tool: Opener, watch: Any) -> None:
    watch.expected = ("422",)
    page = tool("queue")
    page.get_by_label("GPUs of job 2").fill("3")
    expect(page.get_by_role("alert")).to_contain_text("job '2' asks for 3 GPUs")
    page.get_by_label("GPUs of job 2").fill("2")
    expect(page.get_by_role("alert")).to_have_count(0)


# --- comparison -------------------------------------------------------------------------------------


def test_policies_are_compared_and_the_best_are_marked(tool: Opener) -> None:
    page = tool("compare")
    table = part(page, "compare")

    def row(policy: str) -> Locator:
        header = page.get_by_role("rowheader", name=policy, exact=True)
        return table.get_by_role("row").filter(has=header).get_by_role("cell")

    expect(row("fifo")).to_have_text(["35 s", "8.75 s", "8.75 s", "70 s", "75 %", "0", "×"])
    expect(row("sjf").first).to_have_text("35 s")
    expect(row("srtf").first).to_have_text(re.compile("best: 34 s"))
    expect(row("priority").first).to_have_text("43.5 s")
    expect(row("priority").nth(3)).to_have_text(re.compile("best: 53 s"))
    expect(row("priority, higher is smaller").first).to_have_text(re.compile("best: 34 s"))
    expect(page.get_by_role("img", name=re.compile("Half of the jobs are done within: fifo"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Most at once: fifo 2"))).to_be_visible()

    page.get_by_role("button", name="Remove sjf").click()
    page.get_by_text("Add a policy").click()
    page.get_by_label("Policy to add").select_option("sjf")
    page.get_by_label("preempt").select_option(label="yes")
    page.get_by_role("button", name="Add sjf, preempt").click()
    expect(row("sjf, preempt").first).to_contain_text("s")
    expect(table.get_by_role("rowheader")).to_have_count(5)


def test_a_trace_is_compared_and_can_be_stopped(tool: Opener) -> None:
    page = tool("compare", "?jobs=four&policies=fifo;srtf")
    expect(part(page, "compare")).to_contain_text("35 s")
    page.get_by_role("combobox", name="Jobs", exact=True).select_option("itp:cluster10")
    page.get_by_label("First N jobs").fill("100")
    expect(page.get_by_role("row", name=re.compile("fifo not run yet"))).to_be_visible()
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Compare", exact=True)).to_be_enabled()
    page.get_by_role("button", name="Compare", exact=True).click()
    for policy in ("fifo", "srtf"):
        header = page.get_by_role("rowheader", name=policy, exact=True)
        cells = page.get_by_role("row").filter(has=header).get_by_role("cell")
        expect(cells).to_have_count(9)
        expect(cells.first).to_contain_text(re.compile(r"\d+ (s|min|h|d)"))
    page.wait_for_url(re.compile("jobs=itp:cluster10&head=100"))


# --- sensitivity ------------------------------------------------------------------------------------


def test_three_jobs_make_185_and_max_min_helps_the_worst_off(tool: Opener) -> None:
    page = tool("sensitivity")
    most, fair = part(page, "max-sum"), part(page, "max-min")
    expect(figure(most, "Total")).to_have_text("185/s")
    expect(figure(fair, "Worst-off job")).to_have_text("1.14 ×")  # 90/79
    expect(page.get_by_role("img", name="A has V100 100 %")).to_be_visible()
    expect(page.get_by_role("img", name="B has K80 100 %")).to_be_visible()
    expect(page.get_by_text("8 times as fast on V100 as K80")).to_be_visible()
    page.get_by_role("button", name="Two jobs, two GPUs").click()
    expect(figure(most, "Total")).to_have_text("130/s")
    expect(page.get_by_text("1.4 times as fast on V100 as K80")).to_be_visible()
    page.get_by_role("slider", name="Transformer on V100").fill("20")
    expect(figure(most, "Total")).to_have_text("80/s")
    page.get_by_label("Number of V100").fill("2")
    expect(figure(most, "Total")).to_have_text("90/s")


def test_sliders_that_move_ask_once_a_second(tool: Opener) -> None:
    page = tool("sensitivity")
    expect(figure(part(page, "max-sum"), "Total")).to_have_text("185/s")
    page.evaluate("""() => {
      const fetched = window.fetch;
      window.asked = [];
      window.fetch = (...args) => {
        if (String(args[0]).includes("/lab/")) window.asked.push(performance.now());
        return fetched(...args);
      };
    }""")
    slider = page.get_by_role("slider", name="A on V100")
    for value in range(79, 39, -1):
        slider.fill(str(value))
    expect(figure(part(page, "max-sum"), "Total")).to_have_text("145/s")
    times = page.evaluate("window.asked")
    assert times
    assert all(later - sooner > 900 for sooner, later in pairwise(times))


# --- assignment -------------------------------------------------------------------------------------


def test_the_best_assignment_is_found_by_hand_in_three_ways(tool: Opener) -> None:
    page = tool("assignment", viewport={"width": 1280, "height": 1400})
    expect(figure(page, "Optimum")).to_have_text("185/s")
    expect(figure(page, "Yours")).to_have_text("0/s")
    part(page, "job-A").drag_to(part(page, "place-V100"))
    expect(figure(page, "Yours")).to_have_text("80/s")
    page.get_by_label("B runs on").select_option(label="K80")
    expect(figure(page, "Yours")).to_have_text("130/s")
    page.get_by_role("button", name="C waits pick up").press("Enter")
    part(page, "place-P100").get_by_role("button", name="Put C here").press("Enter")
    expect(figure(page, "Yours")).to_have_text("185/s")
    expect(figure(page, "Score")).to_have_text("100 %")
    expect(page.get_by_text("This is the optimum.")).to_be_visible()


def test_in_turn_makes_135_and_the_best_can_be_shown(tool: Opener) -> None:
    page = tool("assignment")
    page.get_by_role("button", name="Round robin").click()
    expect(figure(page, "Yours")).to_have_text("135/s")
    expect(figure(page, "Score")).to_have_text("73 %")
    page.get_by_label("A runs on").select_option(label="V100")
    expect(page.get_by_role("alert")).to_contain_text("V100: 2 asked, 1 there")
    page.get_by_role("button", name="Show the optimum").click()
    expect(figure(page, "Yours")).to_have_text("185/s")
    expect(part(page, "place-V100")).to_contain_text("A")
    page.wait_for_url(re.compile("put=2,0,1"))
    page.get_by_role("button", name="Start over").click()
    expect(figure(page, "Yours")).to_have_text("0/s")
    page.get_by_role("button", name="A random problem").click()
    expect(page.get_by_label("D runs on")).to_be_visible()
    page.get_by_role("button", name="Show the optimum").click()
    expect(figure(page, "Score")).to_have_text("100 %")


# --- placement --------------------------------------------------------------------------------------


def test_a_step_over_three_links(tool: Opener) -> None:
    page = tool("placement")

    def shows(*links: tuple[str, str, str]) -> None:
        for name, step, sent in links:
            expect(part(page, f"link-{name}").locator(".lab-step")).to_have_text(f"{step} ms")
            expect(part(page, f"link-{name}")).to_contain_text(f"+ {sent} ms to send")

    shows(("NVLink", "101.7", "1.67"), ("InfiniBand", "140", "40"), ("Ethernet", "200", "100"))
    page.get_by_role("slider", name="Compute time").fill("200")
    page.get_by_role("slider", name="Gradients to send").fill("0.5")
    shows(("NVLink", "200.8", "0.83"), ("InfiniBand", "220", "20"), ("Ethernet", "250", "50"))
    expect(part(page, "link-Ethernet")).to_contain_text("24.5 % slower")
    page.get_by_role("slider", name="Gradients to send").fill("4")
    shows(("NVLink", "206.7", "6.67"), ("InfiniBand", "360", "160"), ("Ethernet", "600", "400"))
    page.get_by_role("button", name="A ring of 4").click()
    shows(("NVLink", "102.5", "2.5"), ("InfiniBand", "160", "60"), ("Ethernet", "250", "150"))
    page.get_by_role("slider", name="GPUs in the ring").fill("2")
    shows(("NVLink", "101.7", "1.67"))
    page.get_by_text("Speeds of the links").click()
    page.get_by_label("Ethernet, GB/s").fill("100")
    shows(("Ethernet", "110", "10"))


# --- fairness ---------------------------------------------------------------------------------------


def test_every_floor_of_the_worst_off_job_has_an_outcome_of_its_own(tool: Opener) -> None:
    page = tool("fairness")
    slider = page.get_by_role("slider", name="No job below")
    expect(figure(page, "Total")).to_have_text("260/s")
    expect(part(page, "fairness")).to_contain_text("160 + 100")
    expect(figure(page, "Smallest share")).to_have_text("0.83 ×")
    seen = []
    for percent in range(0, 101, 10):
        slider.fill(str(percent))
        expect(slider).to_have_attribute("aria-valuetext", re.compile(r"^[\d.]+ × a fair share$"))
        seen.append((figure(page, "Total").inner_text(), figure(page, "Smallest share").inner_text()))
    assert len(set(seen)) == len(seen), seen
    expect(figure(page, "Total")).to_have_text("253.6/s")
    expect(figure(page, "Smallest share")).to_have_text("1.21 ×")
    expect(figure(page, "Price of fairness")).to_have_text("2.5 %")
    expect(
        page.get_by_role("img", name=re.compile("From a total of 260 .* to a total of 253.6"))
    ).to_be_visible()
    page.get_by_label("A job holds").select_option(label="as many GPUs as it asks for")
    expect(figure(page, "Total")).to_have_text("210/s")
    expect(part(page, "fairness")).to_contain_text("90 + 120")
    expect(figure(page, "Smallest share")).to_have_text("1 ×")
    expect(page.get_by_role("img", name="A: 1 of its fair share")).to_be_visible()
    page.wait_for_url(re.compile("floor=100&sizes=fixed"))


# --- what if ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full(plane: Any) -> list[str]:
    """All twelve GPUs taken for two hours, and two jobs that wait for four of them."""
    asked = {"run": "exec sleep 7200", "resources": {"gpus": 4}, "time": "3h"}
    jobs = [plane.client.submit({**asked, "name": f"long-{i}", "expected": "2h"}) for i in range(3)]
    plane.until(lambda: all(job.refresh().state == "running" for job in jobs))
    jobs += [plane.client.submit({**asked, "name": f"next-{i}", "expected": "1h"}) for i in range(2)]
    return [str(job.id) for job in jobs]


def test_with_more_nodes_those_who_wait_would_start_sooner(
    plane: Any, open_page: Opener, full: list[str]
) -> None:
    page = open_page(plane.token("user"), "#/lab/whatif")
    expect(page.get_by_text("3 running, 2 waiting")).to_be_visible()
    expect(page.get_by_text("8 V100, 4 K80")).to_be_visible()
    expect(page.get_by_role("button", name="Simulate")).to_be_disabled()
    page.get_by_label("Nodes to add").fill("2")
    page.get_by_label("GPUs on each").fill("4")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_role("heading", name="Now, and with 2 more nodes with 4 V100")).to_be_visible()
    waits = part(page, "mean_wait").get_by_role("cell")
    expect(waits.nth(0)).to_have_text(re.compile("^1 h|^2 h"))
    expect(waits.nth(1)).to_have_text("0 s")
    expect(waits.nth(2)).to_contain_text("better")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="next-0", exact=True))
    expect(row.get_by_role("cell").nth(1)).to_have_text(re.compile("^in [12] h"))
    expect(row.get_by_role("cell").nth(2)).to_have_text("now")
    expect(row).to_contain_text("sooner")
    expect(
        page.get_by_role("region", name="Done sooner").or_(page.get_by_label("Done sooner"))
    ).to_contain_text("next-1")
    expect(page.get_by_text("No job is done later.")).to_be_visible()
    expect(page.get_by_text("What this assumes")).to_be_visible()

    page.get_by_label("Nodes to add").fill("0")
    page.get_by_label("Replace").select_option("K80")
    page.get_by_label("With", exact=True).select_option("H100")
    page.get_by_label("Speed factor").fill("4")
    page.get_by_role("button", name="Simulate").click()
    title = "Now, and with H100 instead of K80, 4 times as fast"
    expect(page.get_by_role("heading", name=title)).to_be_visible()
    expect(part(page, "mean_finish").get_by_role("cell").nth(2)).to_contain_text("better")
    page.wait_for_url(re.compile("from=K80&to=H100&faster=4"))


def test_an_answer_to_an_earlier_question_says_so(plane: Any, open_page: Opener, full: list[str]) -> None:
    page = open_page(plane.token("user"), "#/lab/whatif?policy=srtf")
    simulate, changed = (
        page.get_by_role("button", name="Simulate"),
        page.get_by_text("You have changed the question"),
    )
    simulate.click()
    expect(page.get_by_role("heading", name="Now, and with srtf")).to_be_visible()
    expect(changed).to_have_count(0)
    page.get_by_label("Nodes to add").fill("3")
    expect(changed).to_be_visible()
    expect(changed).to_contain_text("the earlier one: srtf")
    page.get_by_label("Nodes to add").fill("0")
    expect(changed).to_have_count(0)  # it is the same question again

    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/lab/what-if", hold)
    page.get_by_label("Nodes to add").fill("1")
    with page.expect_request("**/lab/what-if"):
        simulate.click()
    page.get_by_label("Nodes to add").fill("2")  # while the answer is on its way
    held[0].continue_()
    title = "Now, and with srtf; 1 more node with 8 V100"
    expect(page.get_by_role("heading", name=title)).to_be_visible()
    expect(changed).to_contain_text("the earlier one: srtf; 1 more node")


def test_newer_gpus_are_newer(browser: Any, tmp_path: Path) -> None:
    with harness.commanded(tmp_path, "--virtual", "1x2:H100,1x2:A100") as client:
        context = browser.new_context()
        context.set_default_timeout(60_000)
        page = context.new_page()
        token = (tmp_path / "state" / "token").read_text().strip()
        page.goto(f"{client.connection.url}/#token={token}")
        page.get_by_role("heading", level=1, name="Cluster").wait_for()
        page.goto(f"{client.connection.url}/#/lab/whatif")
        button = tries(page).get_by_role("button", name="Newer GPUs")
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        expect(page.get_by_label("Replace")).to_have_value("A100")
        expect(page.get_by_label("With", exact=True)).to_have_value("B200")
        upgrade = "types => import('/page/lab/whatif.js').then(({ upgrade }) => upgrade(types))"
        for types, found in (
            (["K80", "V100"], {"from": "K80", "to": "B200"}),
            (["T4", "A100-80GB"], {"from": "A100-80GB", "to": "B200"}),
            (["gpu"], {"from": "gpu", "to": "B200"}),
            (["A100", "H100", "H200", "B200"], {"from": "A100", "to": "B200"}),
            (["B200"], None),
            ([], None),
        ):
            assert page.evaluate(upgrade, types) == found, types
        context.close()


# The address changes in the very turn in which the tool is drawn for the first time, before its effects run.
MOVE_AT_ONCE = """
new MutationObserver((_, self) => {
  if (!document.querySelector("fieldset")) return;
  self.disconnect();
  location.hash = "#/lab/whatif?policy=srtf";
}).observe(document, { childList: true, subtree: true });
"""


def test_an_address_that_changes_while_the_tool_is_drawn_counts(plane: Any, open_page: Opener) -> None:
    page = open_page(plane.token("user"), "#/lab")
    page.get_by_role("heading", name="Lab").wait_for()
    page.evaluate(MOVE_AT_ONCE)
    page.goto(f"{plane.url}/#/lab/whatif")
    expect(page.get_by_role("button", name="Simulate")).to_be_enabled()


def test_another_tenant_sees_none_of_it(plane: Any, open_page: Opener, full: list[str]) -> None:
    page = open_page(plane.token("user", "other"), "#/lab/whatif?policy=srtf")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_text("None of your jobs runs or waits now.")).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("long|next"))).to_have_count(0)
