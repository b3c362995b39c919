"""Every page: sign-in, content security, and accessibility."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
LAB = ("queue", "compare", "sensitivity", "assignment", "placement", "fairness", "whatif")
ROUTES = (
    "#/cluster",
    "#/jobs",
    "#/jobs/RUNNING",
    "#/jobs/WAITING",
    "#/submit",
    "#/history",
    "#/lab",
    *(f"#/lab/{tool}" for tool in LAB),
)


@pytest.fixture(scope="module")
def work(plane: Any) -> dict[str, str]:
    """A job of red that holds all V100, one of red that waits for them, one of blue that runs."""
    for tenant in ("red", "blue"):
        plane.client.set_tenant(tenant, quota=None)
    every = {"resources": {"accelerators": "V100:4"}, "expected": "1h", "run": "sleep 3600"}
    ids = {
        "RUNNING": plane.client.submit({**every, "name": "scarlet-run", "queue": "red", "nodes": 2}).id,
        "WAITING": plane.client.submit({**every, "name": "crimson-wait", "queue": "red"}).id,
        "BLUE": plane.client.submit(
            {
                "name": "azure-run",
                "queue": "blue",
                "resources": {"accelerators": "K80:1"},
                "run": "sleep 3600",
            }
        ).id,
    }
    for name in ("RUNNING", "BLUE"):
        plane.until(lambda name=name: plane.client.job_info(ids[name]).state == "running")
    return ids


def settled(page: Page) -> None:
    """The page has its heading, and shows no sign of waiting."""
    from playwright.sync_api import expect

    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


def filled(route: str, ids: dict[str, str]) -> str:
    for name, id in ids.items():
        route = route.replace(name, id)
    return route


# --- sign-in ------------------------------------------------------------------------------------------


def test_one_signs_in_with_a_token_and_out_again(plane: Any, open_page: Any) -> None:
    from playwright.sync_api import expect

    page = open_page()
    page.get_by_label("Token").fill(plane.admin)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1, name="Cluster")).to_be_visible()
    assert plane.admin not in page.url
    assert page.context.cookies() == []
    assert page.evaluate("localStorage.getItem('dovetail.token')") is None
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_wrong_token_is_told_in_one_line(open_page: Any, watch: Any) -> None:
    from playwright.sync_api import expect

    watch.expected = ("401",)
    page = open_page()
    page.get_by_label("Token").fill("dt_nosuchtoken")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown, expired or revoked")


def test_a_token_in_the_address_is_read_and_wiped(plane: Any, open_page: Any) -> None:
    from playwright.sync_api import expect

    page = open_page(None, f"#token={plane.admin}")
    expect(page.get_by_role("heading", level=1, name="Cluster")).to_be_visible()
    assert plane.admin not in page.url

    page.get_by_role("button", name="Sign out").click()
    page.goto(f"{plane.url}/#token={plane.admin}")  # the page is open already
    expect(page.get_by_role("heading", level=1, name="Cluster")).to_be_visible()
    assert plane.admin not in page.url


def test_who_stays_signed_in_is_so_in_every_tab(plane: Any, open_page: Any) -> None:
    from playwright.sync_api import expect

    first = open_page()
    first.get_by_label("Token").fill(plane.token("user", "red"))
    first.get_by_label("Stay signed in").check()
    first.get_by_role("button", name="Sign in").click()
    expect(first.get_by_role("heading", level=1, name="Cluster")).to_be_visible()
    second, third = first.context.new_page(), first.context.new_page()
    second.goto(plane.url)
    third.goto(f"{plane.url}/#token={plane.admin}")  # for this tab only
    for tab in (second, third, first):
        expect(tab.get_by_role("heading", level=1, name="Cluster")).to_be_visible()
    first.get_by_role("link", name="Submit").click()
    first.get_by_role("textbox").first.fill("name: draft\nenv: {KEY: secret}\n")
    first.get_by_role("button", name="Sign out").click()
    expect(second.get_by_label("Token")).to_be_visible()
    expect(third.get_by_role("heading", level=1, name="Cluster")).to_be_visible()
    assert first.evaluate("localStorage.getItem('dovetail.token')") is None
    assert first.evaluate("JSON.stringify(sessionStorage)") == "{}"


def test_a_broken_link_leads_to_the_sign_in_page(open_page: Any, watch: Any) -> None:
    from playwright.sync_api import expect

    watch.expected = ("401",)
    expect(open_page(None, "#token=%").get_by_label("Token")).to_be_visible()


def test_a_token_that_is_revoked_ends_the_session(plane: Any, open_page: Any, watch: Any) -> None:
    from playwright.sync_api import expect

    watch.expected = ("401",)
    made = plane.client.create_token("short", tenant="red", user="short", role="user")
    page = open_page(made["token"], "#/jobs")
    expect(page.get_by_role("heading", level=1, name="Jobs")).to_be_visible()
    plane.client.revoke_token(made["id"])
    # By address, not by a click: the page may have been refused, and its links gone, before the click lands.
    page.evaluate("location.hash = '#/history'")
    expect(page.get_by_label("Token")).to_be_visible()


# --- what leaves the plane ----------------------------------------------------------------------------


class Tap:
    """Every byte that a page is sent by the API, streams included."""

    def __init__(self, page: Page) -> None:
        self._parts: dict[str, list[bytes]] = {}  # by request
        self._urls: dict[str, str] = {}
        self._whole: set[str] = set()  # answers that are read when they are complete
        self._line = page.context.new_cdp_session(page)
        self._line.on("Network.responseReceived", self._begins)
        self._line.on("Network.dataReceived", self._more)
        self._line.on("Network.loadingFinished", self._ends)
        self._line.send("Network.enable")

    def _begins(self, event: Any) -> None:
        answer, request = event["response"], event["requestId"]
        if "/api/" not in answer["url"]:
            return
        self._urls[request], self._parts[request] = answer["url"], []
        if answer["mimeType"] == "text/event-stream":
            said = self._line.send("Network.streamResourceContent", {"requestId": request})
            self._parts[request].append(base64.b64decode(said["bufferedData"]))
        else:
            self._whole.add(request)

    def _more(self, event: Any) -> None:
        if "data" in event and event["requestId"] in self._parts:
            self._parts[event["requestId"]].append(base64.b64decode(event["data"]))

    def _ends(self, event: Any) -> None:
        if event["requestId"] in self._whole:
            body = self._line.send("Network.getResponseBody", {"requestId": event["requestId"]})
            text = body["body"]
            part = base64.b64decode(text) if body["base64Encoded"] else text.encode()
            self._parts[event["requestId"]].append(part)

    def tells(self, word: str) -> list[str]:
        """Which answers hold a word that the question did not."""
        return [
            url
            for request, url in self._urls.items()
            if word not in url and word in b"".join(self._parts[request]).decode("utf-8", "replace")
        ]


def visit(page: Page, plane: Any, work: dict[str, str]) -> None:
    for route in ROUTES:
        page.goto(f"{plane.url}/{filled(route, work)}")
        settled(page)
    page.goto(f"{plane.url}/#/lab/whatif?policy=srtf")
    page.get_by_role("button", name="Simulate").click()
    page.get_by_role("table").first.wait_for()
    settled(page)


def test_a_user_never_receives_what_is_anothers(
    plane: Any, open_page: Any, watch: Any, work: dict[str, str]
) -> None:
    watch.expected = ("404",)
    secrets = (work["RUNNING"], work["WAITING"], "scarlet", "crimson")
    page = open_page(plane.token("user", "blue"), "#/lab")
    tap = Tap(page)
    visit(page, plane, {"BLUE": work["BLUE"]})
    plane.client.set_priority(work["WAITING"], 7)  # and what happens while it watches
    page.goto(f"{plane.url}/#/jobs/{work['RUNNING']}")
    settled(page)
    shown = page.content()
    assert tap.tells(work["BLUE"])
    assert {secret: tap.tells(secret) for secret in secrets} == {secret: [] for secret in secrets}
    assert "scarlet" not in shown

    mine = open_page(plane.token("user", "red"), "#/lab")
    own = Tap(mine)
    visit(mine, plane, work)
    assert all(own.tells(secret) for secret in secrets), "the tap hears nothing"


def test_no_page_asks_more_than_once_a_second(plane: Any, open_page: Any, work: dict[str, str]) -> None:
    page = open_page(plane.admin, "#/jobs")
    settled(page)
    asked: dict[str, list[Any]] = {}
    page.on("request", lambda request: asked.setdefault(request.url, []).append(request))
    for route in ("#/jobs", f"#/jobs/{work['WAITING']}", "#/cluster"):
        page.goto(f"{plane.url}/{route}")
        settled(page)
        asked.clear()
        for number in range(30):
            plane.client.set_priority(work["WAITING"], number)
            page.wait_for_timeout(100)
        for url, requests in asked.items():
            starts = sorted(request.timing["startTime"] for request in requests)  # by the browser's clock, ms
            least = 950 * (len(starts) - 1)  # ms; one alone may come late, and the next then seems early
            assert starts[-1] - starts[0] >= least, f"{url} was asked too often: {starts}"


# --- accessibility ------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_violation(plane: Any, open_page: Any, work: dict[str, str], theme: str) -> None:
    page = open_page(plane.admin, "#/cluster", color_scheme=theme, reduced_motion="reduce")
    script = AXE.read_text()
    found = []
    for route in ("#/", *ROUTES):
        page.goto(f"{plane.url}/{filled(route, work)}")
        settled(page)
        page.evaluate(script)
        report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found += [
            f"{route}: {wrong['id']} ({wrong['impact']}): {node['target']} {node['failureSummary']}"
            for wrong in report["violations"]
            if wrong["impact"] in ("serious", "critical")
            for node in wrong["nodes"][:3]
        ]
    assert not found, "\n".join(found)


def test_the_sign_in_page_too(open_page: Any) -> None:
    page = open_page()
    settled(page)
    page.evaluate(AXE.read_text())
    report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert [wrong["id"] for wrong in report["violations"]] == []


def test_a_phone_never_scrolls_sideways(plane: Any, open_page: Any, work: dict[str, str]) -> None:
    page = open_page(plane.admin, "#/cluster", viewport={"width": 390, "height": 844}, has_touch=True)
    for route in ROUTES:
        page.goto(f"{plane.url}/{filled(route, work)}")
        settled(page)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, f"{route} is {width} wide"


def test_the_keyboard_reaches_every_page(plane: Any, open_page: Any) -> None:
    from playwright.sync_api import expect

    page = open_page(plane.admin, "#/cluster")
    settled(page)
    for name in ("Jobs", "Submit", "History", "Lab", "Cluster"):
        for _ in range(400):
            if page.evaluate("document.activeElement?.tagName") == "TEXTAREA":
                page.keyboard.press("Escape")  # an editor keeps Tab for itself until then, and says so
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement?.textContent?.trim()") == name:
                break
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_be_focused()
        assert page.evaluate("document.title").startswith(
            page.get_by_role("heading", level=1).inner_text().split("\n")[0]
        )
