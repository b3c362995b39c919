"""The report: one file, nothing fetched, other people's names kept as names."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from dovetail.bench.chart_data import MOST_BARS, MOST_ROWS, shown_jobs
from dovetail.bench.compare import Comparison, compared
from dovetail.bench.fragmentation import Sampler, useful
from dovetail.bench.policy_choice import PolicyChoice
from dovetail.bench.report import answer, rendered
from dovetail.bench.resample import Given
from dovetail.model.job import Job, gang
from dovetail.testing.build import cluster, job
from dovetail.traces import Trace, generate

VOID = {"meta", "input", "br", "path", "rect"}
HOSTILE = "</script><script>alert(1)</script>"
RUDE = "\"><img src=x onerror='alert(2)'>"


class Page(HTMLParser):
    """Checks that what is opened is closed, and keeps what it meets."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID or (tag == "path" and not self.get_starttag_text().endswith("/>")):  # type: ignore[union-attr]
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag == "rect":
            return
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def report(jobs: list[Job], *policies: str, gpus: int = 8, seeds: int = 1, name: str = "small") -> Comparison:
    return compared(
        Given(Trace(name, jobs)),
        cluster(nodes=2, gpus=gpus),
        [PolicyChoice(policy) for policy in policies],
        described=f"2x{gpus}",
        seeds=seeds,
        draw=True,
        workers=1,
    )


@pytest.fixture(scope="module")
def page() -> str:
    jobs = [job(f"j{n}", gpus=1 + n % 8, minutes=10 + n, at=60 * n, tenant=f"t{n % 3}") for n in range(40)]
    return rendered(report(jobs, "fifo", "srtf", seeds=2))


def test_it_is_well_formed_and_fetches_nothing(page: str) -> None:
    parsed = Page(page)
    for tag, attrs in parsed.tags:
        assert "src" not in attrs
        assert "href" not in attrs
        assert tag not in ("link", "iframe", "img", "object")
    assert re.search(r"(https?:)?//\w", re.sub(r"<script.*?</script>", "", page, flags=re.S)) is None
    assert "http" not in page
    assert "@import" not in page
    assert "url(" not in page


def test_it_has_the_answer_and_every_chart(page: str) -> None:
    parsed = Page(page)
    text = " ".join(parsed.text).replace("\u00a0", " ")
    assert "srtf has the lowest mean completion time" in text
    for heading in ("Summary", "Completion times", "GPUs in use", "Jobs waiting", "By size", "By tenant"):
        assert heading in text
    charts = [attrs for tag, attrs in parsed.tags if tag == "svg" and attrs.get("role") == "img"]
    assert len(charts) == 4 + 2
    assert all(attrs["aria-label"] for attrs in charts)
    assert "★" in page
    assert "prefers-color-scheme: dark" in page


def test_names_are_escaped() -> None:
    jobs = [job(HOSTILE, gpus=4, minutes=10, tenant=RUDE), job(RUDE, gpus=16, minutes=5, tenant=HOSTILE)]
    text = rendered(report(jobs, "fifo", "sjf", name=HOSTILE))
    parsed = Page(text)
    assert HOSTILE not in text
    assert "<img" not in text
    assert [tag for tag, _ in parsed.tags].count("script") == 4 + 1
    assert not any(name.startswith("on") for _, attrs in parsed.tags for name in attrs)
    assert any(HOSTILE in data for data in parsed.text), "it is shown all the same"
    for data in re.findall(r'<script type="application/json">(.*?)</script>', text, flags=re.S):
        json.loads(data)


def test_a_large_trace_makes_a_small_file() -> None:
    jobs = generate("philly", 3000, 16, 0.9, seed=1).jobs
    found = report([j for j in jobs if j.shape.gpus <= 16], "fifo", "srtf", "tiresias-l")
    text = rendered(found)
    assert len(text) < 400_000
    for label in found.labels:
        figures = found.first(label).charts
        assert figures is not None
        assert len(figures.rows) <= MOST_ROWS
        assert len(figures.bars) <= MOST_BARS
        assert len(figures.cdf) <= 240
    assert f"of the {found.first('fifo').metrics.jobs:,} jobs" in text


def test_curves_average_what_was_held() -> None:
    found = report([job("a", gpus=16, hours=1), job("b", gpus=16, hours=1)], "fifo")
    figures = found.first("fifo").charts
    assert figures is not None
    assert set(figures.in_use) == {1.0}
    assert figures.waiting[0] == pytest.approx(1)
    assert figures.waiting[-1] == pytest.approx(0)
    assert figures.edges[-1] == 7200
    assert figures.cdf == [(3600.0, 0.5), (7200.0, 1.0)]
    assert [(bar.row, bar.start, bar.end) for bar in figures.bars] == [(0, 0, 3600), (1, 3600, 7200)]


def test_shown_jobs_do_not_depend_on_the_policy_and_skip_equal_jobs() -> None:
    calm = [job(f"calm{n}", minutes=1, at=3600 * n) for n in range(100)]
    burst = [job(f"burst{n}", hours=1, at=3600 * 100 + n) for n in range(100)]
    after = [job(f"after{n}", hours=1, at=3600 * 101 + 300 * n) for n in range(100)]
    shown = shown_jobs([*calm, *burst, *after], cluster(nodes=1, gpus=8))
    assert len(shown) <= MOST_ROWS
    assert any(name.startswith("burst") for name in shown)
    assert sum(name.startswith("burst") for name in shown) < 10
    assert sum(name.startswith("after") for name in shown) > 20


def test_free_gpus_that_no_waiting_job_can_use_are_stranded() -> None:
    from collections import Counter

    blocks = Counter({("gpu", 8, 3): 2, ("gpu", 8, 5): 1})
    assert useful(gang(1), blocks) == 11
    assert useful(gang(4), blocks) == 5
    assert useful(gang(6), blocks) == 0
    assert useful(gang(11), blocks) == 11, "8 + 3: every node holds the rest of 3"
    assert useful(gang(4, ("A100",)), blocks) == 0
    # two jobs of 5 on nodes of 8; two more wait for 5 while 3 are free on each
    jobs = [job(str(n), gpus=5, hours=1) for n in range(4)]
    found = report(jobs, "fifo")
    metrics = found.first("fifo").metrics
    assert metrics.fragmentation == 1.0
    assert metrics.stranded == pytest.approx(6 / 16)
    assert Sampler(1).fragmentation is None


def test_one_run_has_an_answer_too() -> None:
    found = report([job("a", hours=1)], "fifo")
    assert answer(found) == "fifo: mean completion 1 h, waiting 0 s, 6 % of the GPU time in use"
    Page(rendered(found))


def test_level_policies_say_so() -> None:
    found = report([job("a", hours=1), job("b", hours=1)], "fifo", "sjf")
    assert answer(found) == "all have the same mean completion time, 1 h"
