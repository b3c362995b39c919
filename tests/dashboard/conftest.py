"""A real plane and a real Chromium for the tests of the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from tests.control import harness

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# A machine of tests has neither a screen nor a way out; the rest keeps Chromium from looking for one.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 60_000
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(slots=True)
class Plane:
    """`dovetail up`, its administrator's client, and tokens for others."""

    client: Any
    url: str
    admin: str
    _tokens: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def token(self, role: str = "user", tenant: str = "default", user: str = "") -> str:
        user = user or f"{role}-of-{tenant}"
        if (found := self._tokens.get((role, tenant, user))) is None:
            made = self.client.create_token(user, tenant=tenant, user=user, role=role)
            found = self._tokens[role, tenant, user] = str(made["token"])
        return found

    def until(self, look: Callable[[], Any]) -> Any:
        """What `look` finds, once it finds something."""
        return harness.eventually(look)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """8 idle V100 and 4 idle K80, on a new plane for each test file."""
    folder = tmp_path_factory.mktemp("plane")
    with harness.commanded(folder, "--virtual", "2x4:V100,1x4:K80") as client:
        yield Plane(client, client.connection.url, (folder / "state" / "token").read_text().strip())


def chromium() -> str:
    """Where it is; without one the test is left out, never in the build."""
    found = next((path for name in CHROMIUMS if (path := shutil.which(name))), None)
    if found is None:
        if os.environ.get("CI") == "true":
            raise LookupError("no Chromium; make browser installs it")
        pytest.skip("no Chromium here: make browser installs it")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For a file of tests only: while Playwright lives nothing else in the process can run an event loop."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield made
        made.close()


@dataclass(slots=True)
class Watch:
    """What no page of ours does: complain, fail, or ask another server."""

    url: str
    wrong: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # parts of complaints that a test provokes

    def follow(self, page: Page) -> None:
        def said(message: Any) -> None:
            if message.type in ("error", "warning"):
                self.wrong.append(f"console: {message.text} ({message.location.get('url', '')})")

        def asked(request: Any) -> None:
            if not request.url.startswith((self.url + "/", "data:", "blob:")):
                self.wrong.append(f"asked elsewhere: {request.url}")

        page.on("console", said)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("request", asked)

    @property
    def left(self) -> list[str]:
        return [line for line in self.wrong if not any(part in line for part in self.expected)]


Opener = Callable[..., Any]


@pytest.fixture
def watch(plane: Plane) -> Watch:
    """Name in `watch.expected` what a test provokes, such as "401"."""
    return Watch(plane.url)


@pytest.fixture
def open_page(plane: Plane, browser: Browser, watch: Watch) -> Iterator[Opener]:
    """`open_page(token, "#/jobs")` is a page in a browser of its own; nothing may go wrong in it."""
    contexts = []

    def opened(token: str | None = None, hash: str = "", **more: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **more})
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        watch.follow(page)
        if token:
            context.add_init_script(f"sessionStorage.setItem('dovetail.token', {token!r})")
        page.goto(f"{plane.url}/{hash}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not watch.left, "\n".join(watch.left)


@pytest.fixture(autouse=True, scope="session")
def _patient() -> None:
    try:
        from playwright.sync_api import expect
    except ImportError:
        return
    expect.set_options(timeout=PATIENCE_MS)
