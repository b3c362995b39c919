"""The page of the cluster: every device, live updates, and permissions."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


@pytest.fixture(scope="module")
def work(plane: Any) -> dict[str, str]:
    """Red has one whole node of V100, blue a half of a K80."""
    for tenant in ("red", "blue"):
        plane.client.set_tenant(tenant, quota=None)
    red = {"queue": "red", "resources": {"accelerators": "V100:4"}, "run": "sleep 3600"}
    blue = {"queue": "blue", "resources": {"accelerators": "K80:1"}, "gpu_share": 0.5, "run": "sleep 3600"}
    ids = {"red": plane.client.submit(red).id, "blue": plane.client.submit(blue).id}
    for id in ids.values():
        plane.until(lambda id=id: plane.client.job_info(id).state == "running")
    return ids


def node(page: Page, name: str) -> Locator:
    """The button of a node, by the first word of its label."""
    return page.get_by_role("button", name=re.compile(rf"^{name},"))


def home(plane: Any, id: str) -> str:
    """The node that a job is on."""
    found = [item["name"] for item in plane.client.connection.get("/nodes")["items"] if id in item["jobs"]]
    return str(found[0])


def test_every_device_shows_who_is_on_it(plane: Any, open_page: Any, work: dict[str, str]) -> None:
    from playwright.sync_api import expect

    page = open_page(plane.admin, "#/cluster")
    red, blue = home(plane, work["red"]), home(plane, work["blue"])
    expect(page.get_by_role("button", name=f"{red}, V100, 4 of 4 in use")).to_be_visible()
    expect(page.get_by_role("button", name=f"{blue}, K80, 0.5 of 4 in use")).to_be_visible()
    expect(page.locator(".cell[data-device]")).to_have_count(12)
    figures = page.locator(".stats")
    expect(figures).to_contain_text("GPUs in use4.5of 12")
    expect(figures).to_contain_text("V100 4 · K80 3")

    node(page, blue).click()
    dialog = page.get_by_role("dialog", name=f"Node {blue}")
    expect(dialog.get_by_role("row")).to_have_count(5)
    expect(dialog.get_by_role("row").nth(1)).to_contain_text("blue")
    expect(dialog.get_by_role("row").nth(1)).to_contain_text("50 %")
    dialog.get_by_role("link", name=work["blue"]).click()
    expect(page).to_have_url(re.compile(rf"#/jobs/{work['blue']}$"))


def test_what_another_tenant_has_is_shown_without_a_name(
    plane: Any, open_page: Any, work: dict[str, str]
) -> None:
    from playwright.sync_api import expect

    page = open_page(plane.token("viewer", "blue"), "#/cluster")
    red = home(plane, work["red"])
    expect(node(page, red).locator(".cell.other")).to_have_count(4)
    node(page, red).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("job of another tenant")).to_have_count(4)
    expect(dialog.get_by_role("button", name="Drain")).to_have_count(0)
    assert work["red"] not in page.content()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Change policy")).to_have_count(0)
    expect(page.get_by_role("link", name="Submit")).to_have_count(0)


def test_a_policy_that_fails_is_a_notice(plane: Any, open_page: Any) -> None:
    from playwright.sync_api import expect

    told = "policy mine failed (KeyError: 'x'); kueue decides until it works again"
    first: dict[str, Any] = {"now": "2026-11-15T12:00:00Z", "policy": "mine", "policy_failure": told}
    first |= {"waiting": 0, "running": 0, "asked": 0, "types": ["V100"], "tenants": [], "nodes": []}
    page = open_page(None)
    page.route("**/cluster/stream*", lambda route: route.fulfill(
        content_type="text/event-stream", body=f"event: cluster\ndata: {json.dumps(first)}\n\n"
    ))  # fmt: skip
    page.goto(f"{plane.url}/#token={plane.admin}")  # signs in and shows the cluster
    expect(page.get_by_role("alert").filter(has_text="decides until it works again.")).to_have_text(
        f"P{told[1:]}."
    )


COUNT_CHANGES = """() => {
  window.touched = new Set();
  new MutationObserver((changes) => {
    for (const { target } of changes) {
      const node = (target.closest ? target : target.parentElement).closest(".node");
      if (node) window.touched.add(node.getAttribute("aria-label").split(",")[0]);
    }
  }).observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
}"""


def test_a_change_is_seen_at_once_and_touches_its_node_only(
    plane: Any, open_page: Any, work: dict[str, str]
) -> None:
    from playwright.sync_api import expect

    page = open_page(plane.admin, "#/cluster")
    name = home(plane, work["blue"])
    expect(page.get_by_role("button", name=f"{name}, K80, 0.5 of 4 in use")).to_be_visible()
    page.evaluate(COUNT_CHANGES)
    job = plane.client.submit({"queue": "red", "resources": {"accelerators": "K80:2"}, "run": "sleep 3600"})
    expect(page.get_by_role("button", name=f"{name}, K80, 2.5 of 4 in use")).to_be_visible()
    plane.client.cancel(job.id)
    expect(page.get_by_role("button", name=f"{name}, K80, 0.5 of 4 in use")).to_be_visible()
    assert page.evaluate("[...window.touched]") == [name]


def test_arrows_move_among_the_nodes(plane: Any, open_page: Any) -> None:
    from playwright.sync_api import expect

    page = open_page(plane.admin, "#/cluster")
    expect(page.locator('.node[tabindex="0"]')).to_have_count(1)
    node(page, "n0").focus()
    page.keyboard.press("ArrowRight")
    expect(node(page, "n1")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(node(page, "n2")).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Node n0")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(node(page, "n0")).to_be_focused()
    expect(page.locator('.node[tabindex="0"]')).to_have_count(1)


def test_an_admin_drains_a_node_and_lets_it_work_again(plane: Any, open_page: Any) -> None:
    from playwright.sync_api import expect

    page = open_page(plane.admin, "#/cluster")
    node(page, "n1").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason for draining").fill("the fan <b>rattles</b>")
    dialog.get_by_role("button", name="Drain").click()
    expect(dialog.locator("[data-test=node-state]")).to_have_text("drained: the fan <b>rattles</b>")
    assert plane.client.connection.get("/nodes/n1")["reason"] == "the fan <b>rattles</b>"
    expect(page.locator('.node.d[aria-label^="n1,"]')).to_have_count(1)
    dialog.get_by_role("button", name="Resume").click()
    expect(dialog.get_by_role("button", name="Drain")).to_be_visible()
    assert plane.client.connection.get("/nodes/n1")["state"] == "up"


def test_filters_stand_in_the_address(plane: Any, open_page: Any, work: dict[str, str]) -> None:
    from playwright.sync_api import expect

    page = open_page(plane.admin, "#/cluster?type=V100")
    expect(page.locator(".node[data-at]")).to_have_count(2)
    page.get_by_label("State").select_option(label="Empty")
    expect(page.locator(".node[data-at]")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"\?type=V100&state=idle$"))
    page.get_by_label("Type").select_option(label="K80")
    expect(page.get_by_text("No node matches the filters.")).to_be_visible()
    page.goto(f"{plane.url}/#/cluster?tenant=red")
    expect(node(page, home(plane, work["red"]))).to_be_visible()
    expect(page.locator(".node[data-at]")).to_have_count(1)


def test_the_past_is_drawn_and_can_be_read(plane: Any, open_page: Any, work: dict[str, str]) -> None:
    from playwright.sync_api import expect

    page = open_page(plane.admin, "#/cluster")
    used = page.get_by_role("table", name="GPUs in use, in GPUs")
    expect(used.get_by_role("columnheader", name="red")).to_be_attached()
    expect(page.locator(".chart canvas")).to_have_count(2)
    page.get_by_label("By", exact=True).select_option(label="GPU type")
    expect(used.get_by_role("columnheader", name="K80")).to_be_attached()
    shares = page.get_by_role("region", name="Fair share and use")
    expect(shares.get_by_role("listitem").filter(has_text="red")).to_contain_text("4 in use")


def test_an_admin_changes_the_policy(plane: Any, open_page: Any) -> None:
    from playwright.sync_api import expect

    page = open_page(plane.admin, "#/cluster")
    before = plane.client.connection.get("/policy")
    expect(page.locator("[data-test=policy]")).to_have_text(before["name"])
    page.get_by_role("button", name="Change policy").click()
    dialog = page.get_by_role("dialog", name="Change the policy")
    dialog.get_by_label("Policy").select_option("fifo")
    dialog.get_by_text("Options").click()
    dialog.get_by_label("discipline").select_option("skip")
    dialog.get_by_role("button", name="Switch to fifo").click()
    expect(page.locator("[data-test=policy]")).to_have_text("fifo")
    assert plane.client.connection.get("/policy")["options"] == {"discipline": "skip"}
    plane.client.connection.put("/policy", {"name": before["name"], "options": before["options"]})
    expect(page.locator("[data-test=policy]")).to_have_text(before["name"])


def test_the_theme_stays_chosen(plane: Any, open_page: Any) -> None:
    from playwright.sync_api import expect

    page = open_page(plane.admin, "#/cluster", color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    expect(node(page, "n0")).to_be_visible()
    light = page.evaluate(ground)
    page.locator("summary").click()
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    expect(node(page, "n0")).to_be_visible()
    assert page.evaluate(ground) == dark
    page.locator("summary").click()
    page.get_by_label("Theme").select_option("system")
    assert page.evaluate(ground) == light


def test_a_stream_that_breaks_is_opened_again(plane: Any, open_page: Any, watch: Any) -> None:
    from playwright.sync_api import expect

    watch.expected = ("net::ERR_",)
    page = open_page(plane.admin, "#/jobs")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.context.route("**/cluster/stream", lambda route: route.abort())
    page.goto(f"{plane.url}/#/cluster")
    expect(page.get_by_role("alert")).to_contain_text("The plane does not answer")
    page.context.unroute("**/cluster/stream")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(node(page, "n0")).to_be_visible()


# --- charts and colours -------------------------------------------------------------------------------


def test_what_a_chart_shows_is_in_the_address(plane: Any, open_page: Any, work: dict[str, str]) -> None:
    from playwright.sync_api import expect

    page = open_page(plane.admin, "#/cluster?sort=most")
    by, last = page.get_by_label("By", exact=True), page.get_by_label("Last", exact=True)
    by.select_option("GPU type")
    last.select_option("24 hours")
    expect(page).to_have_url(re.compile(r"#/cluster\?sort=most&by=type&last=86400$"))
    page.get_by_label("State").select_option("Up")  # a filter of the nodes leaves the chart as it is
    page.reload()
    expect(by).to_have_value("type")
    expect(last).to_have_value("86400")
    expect(page.get_by_label("State")).to_have_value("up")
    expect(page.get_by_label("Order")).to_have_value("most")
    expect(page.locator(".chart").first.locator("thead")).to_contain_text("V100")
    by.select_option("Tenant")
    last.select_option("1 hour")
    expect(page).to_have_url(re.compile(r"#/cluster\?sort=most&state=up$"))


# Keeps every text that is drawn on a canvas, with its box and the size of the canvas.
DRAWN = """() => {
  window.drawn = [];
  const fill = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {
    const { width, actualBoundingBoxAscent: up, actualBoundingBoxDescent: down } = this.measureText(text);
    const left = this.textAlign === "center" ? x - width / 2 : this.textAlign === "right" ? x - width : x;
    const { width: w, height: h } = this.canvas;
    const box = { left, right: left + width, top: y - up, bottom: y + down };
    if (this.getTransform().b === 0) window.drawn.push({ text, ...box, w, h }); // not what is written upwards
    return fill.call(this, text, x, y, ...more);
  };
}"""


@pytest.mark.parametrize("width", [390, 1280])
def test_no_date_of_a_chart_is_clipped(plane: Any, open_page: Any, work: dict[str, str], width: int) -> None:
    from playwright.sync_api import expect

    page = open_page(plane.admin, "#/lab", viewport={"width": width, "height": 800})
    expect(page.get_by_role("heading", level=1, name="Lab")).to_be_visible()
    page.evaluate(DRAWN)
    page.goto(f"{plane.url}/#/cluster")
    for last in ("3600", "86400", "604800", "2592000"):
        page.evaluate("window.drawn = []")
        page.get_by_label("Last", exact=True).select_option(last)
        page.get_by_role("button", name="Refresh").click()
        plane.until(lambda: page.evaluate("window.drawn.some(({ text }) => /^\\d+[: ]/.test(text))"))
        clipped = page.evaluate(
            "window.drawn.filter((at) => at.left < 0 || at.right > at.w || at.top < 0 || at.bottom > at.h)"
        )
        assert clipped == [], last


def hashed(name: str) -> int:
    """The colour that a name alone would have."""
    at = 0
    for letter in name:
        at = (at * 31 + ord(letter)) % 9973
    return at % 8


def test_a_tenant_has_the_same_colour_at_every_visit(plane: Any, open_page: Any) -> None:
    from playwright.sync_api import expect

    names = [name for name in (f"team{n}" for n in range(200)) if hashed(name) == hashed("team0")][:4]

    def run(name: str) -> str:
        half = {"resources": {"accelerators": "K80:1"}, "gpu_share": 0.1, "run": "sleep 3600"}
        id = str(plane.client.submit({**half, "queue": name}).id)
        plane.until(lambda: plane.client.job_info(id).state == "running")
        return id

    def colours() -> dict[str, str]:
        """Of each tenant in the list of shares."""
        page = open_page(plane.admin, "#/cluster")
        for name in names:
            expect(page.locator(".shares .tenant", has_text=name)).to_be_visible()
        shown = page.locator(".shares .tenant").all()
        return {item.inner_text(): painted(item.locator(".swatch")) for item in shown}

    for name in names:
        plane.client.set_tenant(name, quota=None)
    jobs = {name: run(name) for name in names}
    first = colours()
    assert len({first[name] for name in names}) == len(names)
    plane.client.cancel(*(jobs[name] for name in names[:2]))  # the plane names those first that came first
    for name in names[:2]:
        plane.until(lambda name=name: plane.client.job_info(jobs[name]).done)
        run(name)
    assert colours() == first


def test_no_type_of_gpu_has_the_colour_of_a_tenant(plane: Any, open_page: Any, work: dict[str, str]) -> None:
    from playwright.sync_api import expect

    page = open_page(plane.admin, "#/cluster?by=type")
    page.get_by_label("By", exact=True).select_option("GPU type")
    legend = page.locator(".legend").first
    expect(legend).to_contain_text("K80")
    types = {painted(item) for item in legend.locator(".swatch:not(.dashed)").all()}
    assert len(types) == 2
    page.evaluate("document.body.innerHTML = '<i class=swatch></i>'")
    for number in range(12):
        page.locator("i").evaluate(f"element => (element.className = 'swatch t{number}')")
        assert painted(page.locator("i")) not in types, number


def painted(swatch: Locator) -> str:
    return str(swatch.evaluate("element => getComputedStyle(element).backgroundColor"))
