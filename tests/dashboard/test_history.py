"""GPU-hours and money: the page, the CSV file, and the permission to set prices."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

expect: Any = pytest.importorskip("playwright.sync_api").expect

Opener = Callable[..., "Page"]


@pytest.fixture(scope="module")
def work(plane: Any) -> dict[str, str]:
    """Two tenants have run something short; prices are such that seconds cost something."""
    plane.client.set_tenant("red", quota=None)
    every = {"run": "sleep 1"}
    ids = {
        "v100": plane.client.submit(
            {**every, "name": "ran-v100", "model": "resnet", "resources": {"accelerators": "V100:4"}}
        ).id,
        "k80": plane.client.submit(
            {**every, "name": "ran-k80", "model": "=bert", "resources": {"accelerators": "K80:2"}}
        ).id,
        "fails": plane.client.submit(
            {"name": "failed", "resources": {"accelerators": "K80:1"}, "run": "exit 3"}
        ).id,
        "red": plane.client.submit(
            {**every, "name": "scarlet", "queue": "red", "resources": {"accelerators": "K80:1"}}
        ).id,
    }
    plane.until(lambda: not list(plane.client.jobs(active=True)))
    return ids


def part(page: Page, name: str) -> Locator:
    return page.locator(f"[data-test={name}]")


def figures(page: Page) -> dict[str, list[str]]:
    """The rows of the table by their heads."""
    rows = part(page, "usage").locator("tbody tr, tfoot tr").all()
    return {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows}


def saved(page: Page) -> list[dict[str, str]]:
    with page.expect_download() as coming:
        page.get_by_role("button", name="Export CSV").click()
    with Path(coming.value.path()).open(newline="") as file:
        return list(csv.DictReader(file))


def test_types_that_load_after_the_price_dialog_opened_are_in_it(
    plane: Any, open_page: Opener, work: dict[str, str]
) -> None:
    page = open_page(plane.admin, "#/jobs")
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route(lambda url: "/report?by=type" in url, hold)
    page.goto(f"{plane.url}/#/history?by=model")
    page.get_by_role("button", name="Change prices").click()
    page.get_by_role("textbox", name="Currency").fill("EUR")
    expect(page.get_by_role("textbox", name="V100")).to_have_count(0)
    held[0].continue_()
    page.get_by_role("textbox", name="V100").fill("7")
    expect(page.get_by_role("textbox", name="Currency")).to_have_value("EUR")
    page.get_by_role("button", name="Keep the prices").click()


def test_an_admin_sets_prices_and_all_see_what_it_cost(
    plane: Any, open_page: Opener, work: dict[str, str]
) -> None:
    page = open_page(plane.admin, "#/history?by=model")
    expect(part(page, "prices")).to_contain_text("No GPU type has a price")
    expect(part(page, "totals")).to_contain_text("no prices are set")
    page.get_by_role("button", name="Change prices").click()
    page.get_by_role("textbox", name="Currency").fill("EUR")
    page.get_by_role("textbox", name="V100").fill("many")
    expect(page.get_by_role("button", name="Save prices")).to_be_disabled()
    page.get_by_role("textbox", name="V100").fill("3600")
    page.get_by_role("textbox", name="K80").fill("360")
    page.get_by_role("button", name="Save prices").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(part(page, "prices")).to_contain_text("V1003,600.00 EUR per GPU-hour")
    expect(part(page, "usage")).to_contain_text("Cost (EUR)")

    shown = figures(page)
    assert {"resnet", "=bert", "All"} <= shown.keys()
    rows = {row["model"]: row for row in saved(page)}
    hours, cost = (float(rows["resnet"][name]) for name in ("gpu_hours", "cost"))
    assert hours > 4 / 3600  # four GPUs for a second, and a little
    assert cost == pytest.approx(3600 * hours, rel=0.06)
    assert float(shown["resnet"][0]) == pytest.approx(hours, abs=6e-4)  # shown with three digits
    assert float(shown["resnet"][2]) == pytest.approx(cost, abs=0.01)
    total = float(shown["All"][2])
    assert total == pytest.approx(
        sum(float(cells[2]) for name, cells in shown.items() if name != "All"), abs=0.03
    )
    assert rows["resnet"]["currency"] == "EUR"
    assert "'=bert" in rows  # no formula for a spreadsheet
    assert {name.removeprefix("'") for name in rows} == {
        "" if name == "(none)" else name for name in shown if name != "All"
    }

    page = open_page(plane.token("user"), "#/history?by=type")
    expect(part(page, "prices")).to_contain_text("V100")
    expect(page.get_by_role("button", name="Change prices")).to_have_count(0)
    expect(part(page, "usage")).to_contain_text("Cost (EUR)")
    assert {"V100", "K80", "All"} == figures(page).keys()


def test_sums_by_tenant_user_month_and_day_in_a_range(
    plane: Any, open_page: Opener, work: dict[str, str]
) -> None:
    page = open_page(plane.admin, "#/history")
    expect(part(page, "usage")).to_contain_text("red")
    by_tenant = figures(page)
    assert {"default", "red", "All"} == by_tenant.keys()
    hours = float(by_tenant["All"][0])
    for by, word in (("User", "All"), ("Month", "20"), ("Day", "20")):
        page.get_by_label("By", exact=True).select_option(by)
        expect(part(page, "usage").locator("thead")).to_contain_text(by)
        expect(part(page, "usage")).to_contain_text(word)
        assert float(figures(page)["All"][0]) == pytest.approx(
            hours, abs=5e-4
        )  # lines are rounded, then added
    expect(page).to_have_url(re.compile("by=day"))
    page.get_by_label("Range").select_option("Last month")
    expect(page.get_by_text("No job ran in this time.")).to_be_visible()
    page.get_by_label("Range").select_option("From … to …")
    page.get_by_label("To", exact=True).fill("2001-01-01")
    page.get_by_label("To", exact=True).press("Tab")
    expect(page.get_by_text("No job ran in this time.")).to_be_visible()
    page.get_by_label("Range").select_option("This month")
    expect(part(page, "usage")).to_contain_text("20")


def test_ended_jobs_are_listed_and_filtered(plane: Any, open_page: Opener, work: dict[str, str]) -> None:
    page = open_page(plane.token("user"), "#/history")
    table = page.get_by_role("table", name="Jobs that have ended")
    expect(table.get_by_role("row", name=work["v100"])).to_contain_text("completed")
    expect(table.get_by_role("row", name=work["red"])).to_have_count(0)
    page.get_by_label("State").select_option("failed")
    expect(table.locator("tbody tr")).to_have_count(1)
    expect(table).to_contain_text(work["fails"])
    page.get_by_label("State").select_option("Any")
    page.get_by_role("searchbox", name="Name").fill("k80")
    expect(table.locator("tbody tr")).to_have_count(1)
    page.reload()
    table.get_by_role("link", name=work["k80"]).click()
    expect(part(page, "state")).to_contain_text("completed")


def test_a_tenant_sees_its_own_sums(plane: Any, open_page: Opener, work: dict[str, str]) -> None:
    page = open_page(plane.token("viewer", "red"), "#/history")
    expect(part(page, "usage")).to_contain_text("red")
    assert {"red", "All"} == figures(page).keys()
    assert [row["tenant"] for row in saved(page)] == ["red"]
    assert "default" not in page.locator("main").inner_text()
