"""A page that is used while the plane is down: it says so, and is complete once the plane is up again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.control import harness

from dovetail import Client

expect: Any = pytest.importorskip("playwright.sync_api").expect


class Restartable:
    """`dovetail up` at one address, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._state, self._log, self._port = folder / "state", folder / "up.log", harness.free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._log.unlink(missing_ok=True)
        words = ["--state", str(self._state), "--port", str(self._port), "--virtual", "1x4:A100"]
        with self._log.open("wb") as output:
            command = [sys.executable, "-m", "dovetail.cli", "up", *words]
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        harness.eventually(lambda: "dovetail is up" in self._log.read_text(), "the plane")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    @property
    def token(self) -> str:
        return (self._state / "token").read_text().strip()

    def client(self) -> Client:
        return Client(state=self._state)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restartable]:
    made = Restartable(tmp_path_factory.mktemp("plane"))
    made.start()
    try:
        yield made
        if made._process is None:
            made.start()
        with made.client() as client:
            client.cancel(mine=True)
            harness.eventually(lambda: not list(client.jobs(active=True)), "the end of all jobs")
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def _up(plane: Restartable) -> None:
    if plane._process is None:
        plane.start()


REFUSED = (
    "ERR_CONNECTION_REFUSED",
    "ERR_INCOMPLETE_CHUNKED",
    "Failed to fetch dynamically imported module",
    "429",  # the Lab answers one question of a token at a time
)


def test_every_page_goes_on_once_the_plane_is_up_again(
    plane: Restartable, open_page: Any, watch: Any
) -> None:
    watch.expected = REFUSED
    with plane.client() as client:
        running = client.submit(
            {"name": "long", "run": "echo hello; sleep 3600", "resources": {"gpus": 1}}
        ).id
        array = client.submit({"name": "many", "run": "sleep 3600", "hold": True, "array": "0-2"}).id
        harness.eventually(lambda: client.job_info(running).state == "running", "the job")
    shown = {  # by route: what is there only when all of it has loaded
        "#/cluster": ".shares .tenant, .legend",
        "#/jobs": f"tr[data-job='{running}']",
        f"#/jobs/{running}": "[data-test=timeline]",
        f"#/jobs/{array}": "[data-test=program]",
        "#/history": "[data-test=totals]",
        "#/lab/queue": "[data-test=queue-figures]",
        "#/lab/fairness": "[data-test=fairness]",
    }
    pages = {}
    for route in shown:
        page = pages[route] = open_page(plane.token, "#/submit")
        expect(page.get_by_role("heading", level=1, name="Submit")).to_be_visible()
    plane.stop()
    for route, page in pages.items():
        page.evaluate(f"location.hash = '{route}'")
    for page in pages.values():
        expect(page.get_by_text("The plane does not answer. This page goes on by itself")).to_be_visible()
    plane.start()
    for route, page in pages.items():
        for part in shown[route].split(", "):
            expect(page.locator(part).first).to_be_visible()
        expect(page.get_by_text("does not answer")).to_have_count(0)
        expect(page.get_by_role("alert")).to_have_count(0)
        assert page.url == f"{plane.url}/{route}"


def test_a_page_that_is_loaded_goes_on_where_it_was(plane: Restartable, open_page: Any, watch: Any) -> None:
    """Without another look at the files: only what was asked for is asked for again."""
    watch.expected = REFUSED
    with plane.client() as client:
        id = client.submit({"name": "one", "run": "echo hello; sleep 3600", "resources": {"gpus": 1}}).id
        harness.eventually(lambda: client.job_info(id).state == "running", "the job")
    page = open_page(plane.token, f"#/jobs/{id}")
    expect(page.get_by_role("log")).to_contain_text("hello")
    page.goto(f"{plane.url}/#/history")
    expect(page.locator("[data-test=totals]")).to_be_visible()
    page.evaluate("window.same = true")
    plane.stop()
    page.goto(f"{plane.url}/#/jobs/{id}")
    expect(page.get_by_role("alert")).to_contain_text("The plane does not answer")
    plane.start()
    expect(page.get_by_role("table", name="Starts of this job")).to_contain_text("running")
    expect(page.get_by_role("log")).to_contain_text("hello")
    expect(page.get_by_role("alert")).to_have_count(0)
    assert page.evaluate("window.same") is True


def test_a_page_that_finds_no_place_asks_again(plane: Restartable, open_page: Any, watch: Any) -> None:
    """All tabs of a user share the places of a token, so a page may be told 429 for what others ask."""
    watch.expected = ("429",)
    page = open_page(plane.token, "#/submit")
    expect(page.get_by_role("heading", level=1, name="Submit")).to_be_visible()
    left = {"report": 2, "prices": 1}

    def answer(route: Any) -> None:
        name = route.request.url.partition("?")[0].rpartition("/")[2]
        left[name] -= 1
        if left[name] >= 0:
            route.fulfill(status=429, headers={"Retry-After": "1"}, json={"detail": "wait for their answers"})
        else:
            route.continue_()

    page.route("**/api/v1/report*", answer)
    page.route("**/api/v1/prices*", answer)
    page.goto(f"{plane.url}/#/history")
    expect(page.locator("[data-test=totals]")).to_be_visible()
    for _ in range(300):  # the other answer is asked for again after its own pause
        if max(left.values()) < 0:
            break
        page.wait_for_timeout(100)
    assert max(left.values()) < 0
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_kept_token_signs_in_once_the_plane_answers(plane: Restartable, open_page: Any, watch: Any) -> None:
    """The files of the page came, from a cache or through a proxy, and the API did not."""
    watch.expected = ("ERR_FAILED", "502")
    page = open_page(None, "")
    expect(page.get_by_label("Token")).to_be_visible()
    down = [True]

    def answer(route: Any) -> None:
        if down[0]:
            route.fulfill(status=502, body="bad gateway")
        else:
            route.continue_()

    page.route("**/api/**", answer)
    page.evaluate(f"sessionStorage.setItem('dovetail.token', '{plane.token}')")
    page.goto(f"{plane.url}/#/jobs")
    page.reload()
    expect(page.get_by_text("Waiting for the plane")).to_be_visible()
    expect(page.get_by_label("Token")).to_have_count(0)
    down[0] = False
    expect(page.get_by_role("heading", level=1, name="Jobs")).to_be_visible()


def test_files_that_did_not_come_are_asked_for_again(plane: Restartable, open_page: Any, watch: Any) -> None:
    watch.expected = ("ERR_FAILED",)
    page = open_page(None, "")
    expect(page.get_by_label("Token")).to_be_visible()
    left = [2]

    def answer(route: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            route.abort()
        else:
            route.continue_()

    page.route("**/page/session.js", answer)
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()
    assert left[0] < 0
