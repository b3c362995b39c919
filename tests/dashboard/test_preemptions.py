"""For which job a job was preempted, and a priority above the limit, in a real browser on a real plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect: Any = pytest.importorskip("playwright.sync_api").expect

Opener = Callable[..., "Page"]
WHOLE = {"nodes": 2, "resources": {"accelerators": "V100:4"}, "time": "1h", "run": "sleep 600"}


@pytest.fixture
def empty(plane: Any) -> None:
    """No job is on the cluster."""
    if left := [job.id for job in plane.client.jobs(active=True)]:
        plane.client.cancel(*left)
    plane.until(lambda: not list(plane.client.jobs(active=True)))


def test_the_page_says_for_which_job_a_job_was_preempted(plane: Any, open_page: Opener, empty: None) -> None:
    victim = plane.client.submit(WHOLE).id
    plane.until(lambda: plane.client.job_info(victim).state == "running")
    other = plane.client.submit({**WHOLE, "priority": "high"}).id
    plane.until(lambda: plane.client.job_info(other).state == "running")
    user = plane.client.job_info(other).user
    page = open_page(plane.token("user"), f"#/jobs/{victim}")
    why = page.locator("[data-test=why]")
    expect(why).to_contain_text(f"It was preempted for job {other} of {user}.")
    starts = page.get_by_role("table", name="Starts of this job")
    expect(starts).to_contain_text(f"it made way for job {other} of {user}")


def test_a_priority_above_the_limit_is_refused_where_it_was_typed(
    plane: Any, open_page: Opener, watch: Any, empty: None
) -> None:
    watch.expected = ("422",)
    job = plane.client.submit({"run": "true", "hold": True}).id
    page = open_page(plane.token("user"), f"#/jobs/{job}")
    page.get_by_role("button", name="Change priority").click()
    page.get_by_role("textbox", name="Priority").fill("1000")
    page.get_by_role("button", name="Set priority").click()
    expect(page.get_by_role("dialog")).to_contain_text("the limit of role user is 100")
    assert plane.client.job_info(job).priority == 0
