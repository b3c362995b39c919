"""Pages, usage and waits on a real database; limits and pieces of the API without a server."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families
from tests.control import harness

from dovetail.control import tables
from dovetail.control.api import watch
from dovetail.control.api.logs import Log, plainly_opened, whole_characters
from dovetail.control.api.problems import Refusal, answer_to
from dovetail.control.api.settings import Settings
from dovetail.control.buckets import Buckets
from dovetail.control.clock import iso
from dovetail.control.cursors import cut_to_room, from_cursor, to_cursor
from dovetail.control.lists import Filter, Lists
from dovetail.control.lookup import Lookup
from dovetail.control.metrics import Metrics
from dovetail.control.plane import Change
from dovetail.control.records import AttemptRecord, Record
from dovetail.control.states import State
from dovetail.control.statistics import Statistics
from dovetail.control.store import Batch, Deposed, Store, StoreError
from dovetail.control.tokens import Caller
from dovetail.control.usage_report import DAY, usage_report
from dovetail.model.errors import InputError, NeverFits, PlanError
from dovetail.model.units import HOUR, SECOND

ADMIN = Caller("t0", "default", "root", "admin")
ANN = Caller("t1", "red", "ann", "user")
BOB = Caller("t2", "blue", "bob", "user")
ALL = Filter()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    database = request.getfixturevalue("database")() if request.param == "postgresql" else None
    with harness.stored(tmp_path, database) as made:
        yield made


class Desk:
    """Writes jobs as a plane would."""

    def __init__(self, store: Store) -> None:
        self.store, self.seq = store, 0
        store.commit(Batch(requests=[{"id": "r", "body": "{}", "workdir": ""}]))

    def add(self, tenant: str = "red", user: str = "ann", **more: Any) -> Record:
        self.seq += 1
        facts: dict[str, Any] = {"id": f"j{self.seq:05d}", "gpus": 2, "load": 2_000, "submitted_at": self.seq}
        record = Record(seq=self.seq, request="r", tenant=tenant, user=user, **{**facts, **more})
        self.store.commit(Batch(added=[record]))
        return record

    def ran(self, record: Record, *spans: tuple[int, int | None], types: str = "A100") -> None:
        """The attempts of a job."""
        record.epoch = len(spans)
        record.first_started_at = spans[0][0]
        record.started_at, record.ended_at = spans[-1]
        free = record.submitted_at if record.eligible_at is None else record.eligible_at
        attempts = []
        for at, (start, end) in enumerate(spans):
            waited, free = start - free, end or 0
            attempts.append(
                AttemptRecord(record.id, at + 1, [], types, record.load, start, end, waited=waited)
            )
        record.wait_time = record.wait_at_start = sum(attempt.waited for attempt in attempts)
        self.store.commit(Batch(changed={record.id: record}, begun=attempts))


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


# --- pages --------------------------------------------------------------------------------------------


def walked(lists: Lists, caller: Caller, wanted: Filter = ALL, limit: int = 3) -> list[str]:
    ids, cursor = [], None
    while True:
        page = lists.jobs(caller, wanted, cursor, limit)
        ids += [job["id"] for job in page.items]
        cursor = page.next
        if cursor is None:
            return ids


def test_jobs_come_newest_first_and_each_once(desk: Desk, store: Store) -> None:
    made = [desk.add().id for _ in range(10)]
    assert walked(Lists(store), ANN) == made[::-1]
    assert walked(Lists(store), ANN, limit=10) == made[::-1]
    assert walked(Lists(store), ANN, limit=9) == made[::-1]


def test_filters(desk: Desk, store: Store) -> None:
    desk.add(name="a_b", state=State.RUNNING)
    desk.add(name="a%b", user="abe")
    desk.add(name="aXb", state=State.COMPLETED, ended_at=5)
    desk.add("blue", "bob", id="arr_0", array="arr", task=0)
    lists = Lists(store)
    assert walked(lists, ADMIN) == ["arr_0", "j00003", "j00002", "j00001"]
    assert walked(lists, ANN) == ["j00003", "j00002", "j00001"]
    assert walked(lists, ANN, Filter(tenant="blue")) == []
    assert walked(lists, ADMIN, Filter(tenant="blue")) == ["arr_0"]
    assert walked(lists, ANN, Filter(array="arr")) == []
    assert walked(lists, BOB, Filter(array="arr")) == ["arr_0"]
    assert walked(lists, ANN, Filter(user="abe")) == ["j00002"]
    assert walked(lists, ANN, Filter(active=True)) == ["j00002", "j00001"]
    assert walked(lists, ANN, Filter(active=False)) == ["j00003"]
    assert walked(lists, ANN, Filter(states=("running", "completed"))) == ["j00003", "j00001"]
    assert walked(lists, ANN, Filter(name="a_b")) == ["j00001"]
    assert walked(lists, ANN, Filter(name="a%*")) == ["j00002"]
    assert walked(lists, ANN, Filter(name="*b")) == ["j00003", "j00002", "j00001"]
    assert walked(lists, ANN, Filter(since=2)) == ["j00003", "j00002"]


def test_history_is_by_end(desk: Desk, store: Store) -> None:
    for ended in (50, 70, 60, 60, None):
        desk.add(state=State.FAILED if ended else State.RUNNING, ended_at=ended)
    lists = Lists(store)
    first = lists.history(ANN, ALL, None, 2)
    desk.add(state=State.FAILED, ended_at=80)
    second = lists.history(ANN, ALL, first.next, 2)
    assert [j["id"] for j in first.items + second.items] == ["j00002", "j00004", "j00003", "j00001"]
    assert second.next is None
    assert [j["id"] for j in lists.history(ANN, Filter(since=60, until=70), None, 9).items] == [
        "j00004",
        "j00003",
    ]
    assert lists.history(BOB, ALL, None, 9).items == []


def test_cursors_are_taken_as_they_were_given() -> None:
    assert from_cursor(to_cursor("jobs", 7), "jobs", int) == [7]
    with pytest.raises(InputError, match="cursor"):
        from_cursor(to_cursor("jobs", "a\0"), "jobs", str)
    for wrong in ("", "x", "é", "====", to_cursor("history", 7), to_cursor("jobs", "7"),
                  to_cursor("jobs", 1 << 70), to_cursor("jobs", 1, 2), to_cursor("jobs", True)):  # fmt: skip
        with pytest.raises(InputError, match="cursor"):
            from_cursor(wrong, "jobs", int)


def test_a_page_holds_what_fits() -> None:
    rows = [{"id": f"{i:03d}", "text": "x" * 100} for i in range(20)]
    page = cut_to_room(rows, "things", "id", 15, room=1_000)
    assert len(page.items) == 8
    assert page.next is not None
    assert from_cursor(page.next, "things", str) == ["007"]
    assert cut_to_room(rows[:3], "things", "id", 3).next is None
    assert len(cut_to_room(rows, "things", "id", 3, room=1).items) == 1  # never none: one would not get on


def test_a_page_stays_small_with_everything_at_its_longest(desk: Desk, store: Store) -> None:
    longest: dict[str, Any] = {
        "name": "\U0001f9e0" * 200, "model": "ü" * 200, "reason": "x" * 500, "tenant": "t" * 64,
        "user": "u" * 64,
        "placement": [{"node": f"node-{i}", "devices": list(range(8))} for i in range(64)],
        "progress": {f"key{i}": "v" * 30 for i in range(20)} | {"nan": float("nan"), "deep": [1] * 100},
        "state": State.FAILED, "ended_at": 9, "dependency": "afterok:" + "a" * 30_000,
        "types": ",".join(["A100"] * 50),
    }  # fmt: skip
    for _ in range(200):
        desk.add(**longest)
    seen, cursor = 0, None
    while True:
        page = Lists(store).jobs(ADMIN, ALL, cursor, 200)
        text = json.dumps(page.document(), ensure_ascii=False, allow_nan=False)
        assert len(text.encode()) < 200_000
        seen += len(page.items)
        cursor = page.next
        if cursor is None:
            break
    assert seen == 200
    assert len(page.items[0]["placement"]) == 6


def test_an_array_in_one_line(desk: Desk, store: Store) -> None:
    for task in range(5):
        state = State.COMPLETED if task < 3 else State.RUNNING
        desk.add(id=f"arr_{task}", array="arr", task=task, state=state, gpu_time=2_000 * SECOND)
    lookup = Lookup(store)
    found = lookup.array(ANN, "arr")
    assert found is not None
    assert (found["count"], found["states"]) == (5, {"completed": 3, "running": 2})
    assert (found["ended_at"], found["gpu_seconds"]) == (None, 10.0)
    assert lookup.array(BOB, "arr") is None
    assert lookup.members(ANN, "arr", {1, 3}) == ["arr_1", "arr_3"]
    assert lookup.members(ANN, "arr_2") == ["arr_2"]
    assert lookup.members(BOB, "arr") == []
    assert lookup.found(ANN, ["arr", "arr_2", "no"]) == {
        "arr": [f"arr_{i}" for i in range(5)],
        "arr_2": ["arr_2"],
    }
    assert lookup.found(BOB, ["arr", "arr_2"]) == {}


def test_a_long_step_is_cut(store: Store) -> None:
    with store.transaction() as connection:
        connection.execute(
            sa.insert(tables.eras), [{"id": 0, "after": 0, "time": 0, "header": "{}", "why": ""}]
        )
        lines = ["{}", '"' * 400_000, "[]"]
        connection.execute(
            sa.insert(tables.journal),
            [{"number": n, "era": 0, "time": n, "line": line} for n, line in enumerate(lines)],
        )
    seen, after = [], -1
    while True:
        page = Lists(store).journal(after, 10)
        assert len(json.dumps(page.document())) < 200_000
        seen += [(step["number"], step["cut"]) for step in page.items]
        if page.next is None:
            break
        after = int(page.next)
    assert seen == [(0, False), (1, True), (2, False)]


# --- usage --------------------------------------------------------------------------------------------


def test_usage_is_what_lies_between(desk: Desk, store: Store) -> None:
    one = desk.add(submitted_at=0, eligible_at=0, lost_time=2_000 * HOUR)
    desk.ran(one, (1 * HOUR, 2 * HOUR), (3 * HOUR, 5 * HOUR))
    two = desk.add("blue", "bob", submitted_at=0)
    desk.ran(two, (2 * HOUR, None), types="V100")
    report = usage_report(store, ADMIN, "tenant", 0, 10 * HOUR, now=4 * HOUR)
    rows = {row["key"]: (row["gpu_hours"], row["lost_gpu_hours"], row["jobs"]) for row in report["items"]}
    assert rows == {"red": (6.0, 2.0, 1), "blue": (4.0, 0.0, 1)}
    assert report["total"] == {"gpu_hours": 10.0, "lost_gpu_hours": 2.0, "jobs": 2, "cost": None}
    part = usage_report(store, ADMIN, "type", 90 * 60 * SECOND, 4 * HOUR, now=4 * HOUR)
    assert {row["key"]: row["gpu_hours"] for row in part["items"]} == {"A100": 3.0, "V100": 4.0}
    own = usage_report(store, BOB, "user", 0, 10 * HOUR, now=4 * HOUR)
    assert [row["key"] for row in own["items"]] == ["bob"]


def test_usage_by_day_is_cut_at_midnight(desk: Desk, store: Store) -> None:
    desk.ran(desk.add(), (22 * HOUR, 23 * HOUR))
    desk.ran(desk.add(), (23 * HOUR, 2 * DAY + 2 * HOUR))
    report = usage_report(store, ANN, "day", 0, 3 * DAY, now=3 * DAY)
    held = {row["key"]: row["gpu_hours"] for row in report["items"]}
    assert held == {"1970-01-01": 4.0, "1970-01-02": 48.0, "1970-01-03": 4.0}


def test_waits(desk: Desk, store: Store) -> None:
    for wait in range(1, 11):
        desk.ran(desk.add(submitted_at=0, eligible_at=HOUR), (HOUR + wait * SECOND, None))
    (row,) = usage_report(store, ANN, "user", 0, 2 * HOUR, now=2 * HOUR)["items"]
    assert row["wait"] == row["first_start_after"] == {"mean": 5.5, "p50": 5.0, "p90": 9.0}
    desk.ran(desk.add(submitted_at=0, eligible_at=HOUR), (3 * HOUR, None))  # outside
    (row,) = usage_report(store, ANN, "type", 0, 2 * HOUR, now=2 * HOUR)["items"]
    assert row["wait"]["mean"] == 5.5


def test_a_wait_after_a_preemption_counts_in_reports_and_the_first_start_is_another_figure(
    desk: Desk, store: Store
) -> None:
    desk.ran(desk.add(submitted_at=0, eligible_at=0), (SECOND, HOUR), (7 * HOUR, None))  # six hours away
    desk.add(submitted_at=0, eligible_at=0, state=State.PENDING, waiting_since=0)  # was never started
    (row,) = usage_report(store, ANN, "tenant", 0, 8 * HOUR, now=8 * HOUR)["items"]
    assert row["wait"]["mean"] == 1 + 6 * 3_600
    assert row["first_start_after"]["mean"] == 1


def test_a_year_of_a_large_cluster_does_not_overflow(desk: Desk, store: Store) -> None:
    year = 365 * DAY
    for _ in range(3):
        desk.ran(desk.add(gpus=4_096, load=4_096_000), (0, year))
    report = usage_report(store, ANN, "tenant", 0, year, now=year)
    assert report["total"]["gpu_hours"] == pytest.approx(3 * 4_096 * 365 * 24)


def test_speeds_are_shown_to_the_tenant_that_measured_them(store: Store) -> None:
    rows = [
        {"tenant": tenant, "model": model, "type": kind, "gpus": 2, "rate": 1.5, "count": 3, "time": 0}
        for tenant, model, kind in (
            ("green", "bert", "A100"), ("green", "gpt", "A100"),
            ("red", "bert", "A100"), ("red", "gpt", "V100"),
        )
    ]  # fmt: skip
    store.commit(Batch(speeds=rows))
    lists = Lists(store)
    assert len(lists.speeds(ADMIN, None, 10).items) == 4
    assert [(r["model"], r["gpu_type"]) for r in lists.speeds(ANN, None, 10).items] == [
        ("bert", "A100"),
        ("gpt", "V100"),
    ]
    assert lists.speeds(BOB, None, 10).items == []
    first = lists.speeds(ADMIN, None, 3)
    assert [r["gpu_type"] for r in lists.speeds(ADMIN, first.next, 3).items] == ["V100"]


# --- metrics ------------------------------------------------------------------------------------------


class Still:
    """A plane at rest."""

    def __init__(self, store: Store) -> None:
        self.store, self.clock, self.policy = store, self, ("fifo", dict[str, Any]())
        self.time = 0
        self.policy_failure = None

    def now(self) -> int:
        return self.time

    def ask(self, question: object) -> list[Any]:
        return []

    @property
    def statistics(self) -> Statistics:
        return Statistics(eta_errors=deque([-5.0, 1.0, 2.0]), preemptions={"preempted": 2})


def test_metrics_count_every_job_once(desk: Desk, store: Store) -> None:
    plane = Still(store)
    metrics = Metrics(plane)  # type: ignore[arg-type]

    def value(name: str, **labels: str) -> float:
        text = metrics.exposition()[0].decode()
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        return round(
            sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items()), 6
        )

    first, second, third = (desk.add(eligible_at=0) for _ in range(3))
    assert value("dovetail_jobs", state="held") == 3
    first.state, first.lost_time, first.cause = State.COMPLETED, 1_000 * SECOND, "stopped"
    desk.ran(first, (10 * SECOND, 20 * SECOND))
    second.state = State.RUNNING
    desk.ran(second, (20 * SECOND, None))
    plane.time = 30 * SECOND
    for _ in range(2):  # the second time most is remembered
        assert value("dovetail_jobs", state="completed") == 1
        assert value("dovetail_gpu_seconds_total", queue="red", user="ann", type="A100") == 40
        assert value("dovetail_lost_gpu_seconds_total", cause="stopped") == 1
        assert value("dovetail_queue_wait_seconds_count") == 2
        assert value("dovetail_queue_wait_seconds_sum") == 30
        assert value("dovetail_queue_wait_seconds_bucket", le="15.0") == 1
    plane.time = 40 * SECOND
    assert value("dovetail_gpu_seconds_total") == 60
    second.state, second.ended_at = State.FAILED, 40 * SECOND
    ended = AttemptRecord(second.id, 1, [], "A100", 2_000, 20 * SECOND, 40 * SECOND, 1, "exited")
    store.commit(Batch(changed={second.id: second}, ended=[ended]))
    third.state, third.ended_at = State.CANCELLED, 41 * SECOND
    store.commit(Batch(changed={third.id: third}))
    plane.time = 99 * SECOND
    assert value("dovetail_jobs") == 3
    assert value("dovetail_jobs", state="held") == 0
    assert value("dovetail_gpu_seconds_total") == 60
    desk.add(state=State.PENDING)
    assert value("dovetail_jobs") == 4
    assert value("dovetail_pending_reason_jobs", reason="Queued") == 1
    assert value("dovetail_preemptions_total", reason="preempted") == 2
    assert value("dovetail_eta_error_seconds", quantile="0.9") == 5


# --- limits, settings, problems -----------------------------------------------------------------------


def test_a_bucket_fills_again() -> None:
    now = [0.0]
    buckets = Buckets(2.0, 4, clock=lambda: now[0])
    assert [buckets.take("a") for _ in range(4)] == [0.0] * 4
    assert buckets.take("a") == pytest.approx(0.5)
    assert buckets.take("b") == 0.0
    now[0] = 1.0
    assert [buckets.take("a"), buckets.take("a")] == [0.0, 0.0]
    assert buckets.take("a") > 0
    now[0] = 1_000.0
    assert [buckets.take("a") > 0 for _ in range(5)] == [False] * 4 + [
        True
    ]  # no more than the burst is saved up


def test_hosts() -> None:
    assert set(Settings().names or ()) == {"127.0.0.1", "localhost"}
    assert set(Settings(hosts=("Plane.Lab",)).names or ()) == {"127.0.0.1", "localhost", "plane.lab"}
    assert Settings(host="0.0.0.0").names is None
    assert set(Settings(host="10.0.0.1", hosts=("plane.lab",)).names or ()) == {
        "10.0.0.1",
        "localhost",
        "plane.lab",
    }
    assert Settings(hosts=("*",)).names is None


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InputError("wrong"), 422, "invalid"),
        (NeverFits("too large"), 422, "never-fits"),
        (StoreError("disk /secret is full"), 503, "unavailable"),
        (Deposed("another leads"), 503, "not-leading"),
        (TimeoutError(), 503, "unavailable"),
        (PlanError("secret bug"), 500, "internal"),
        (ValueError("secret bug"), 500, "internal"),
        (Refusal("conflict", "no"), 409, "conflict"),
    ],
)
def test_what_is_said_of_errors(error: Exception, status: int, kind: str) -> None:
    answer = answer_to(error)
    document = json.loads(bytes(answer.body))
    assert (answer.status_code, document["type"]) == (status, f"/problems/{kind}")
    assert b"secret" not in bytes(answer.body)
    assert ("Retry-After" in answer.headers) == (status == 503)


# --- logs ---------------------------------------------------------------------------------------------


def test_characters_stay_whole() -> None:
    text = "aé€\U0001f600".encode()
    for cut in range(len(text) + 1):
        whole = whole_characters(text[:cut])
        whole.decode()
        assert cut - len(whole) < 4
    assert whole_characters(b"\xff\xfe") == b"\xff\xfe"  # no characters at all: nothing to wait for
    assert whole_characters(b"\x80" * 9) == b"\x80" * 9


def test_pieces_of_a_file(tmp_path: Path) -> None:
    file = Log(tmp_path / "log", plainly_opened)
    assert file.read(5, 10) == (b"", 5, 0)
    file.path.write_bytes(b"0123456789")
    assert file.read(4, 3) == (b"456", 7, 10)
    assert file.read(99, 3) == (b"", 99, 10)
    assert Log(tmp_path, plainly_opened).read(0, 3) == (b"", 0, 0)
    assert iso(0) == "1970-01-01T00:00:00.000Z"


# --- listeners ----------------------------------------------------------------------------------------


def test_a_hub_remembers_the_last_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "REMEMBERED", 6)
    monkeypatch.setattr(watch, "MOST_WAITING", 4)
    hub = watch.Hub(Quiet())  # type: ignore[arg-type]
    words = [hub.now]
    slow, only = hub.listen(ANN), hub.listen(ADMIN, "arr")
    for at in range(5):
        hub._tell((Change(f"j{at}", "red", "running", 1), Change("arr_1", "blue", "held", 1)))
        words.append(hub.now)
    assert len(set(words)) == 6
    assert [batch[0] for batch in hub.since(words[-1]) or ()] == []
    assert [batch[0] for batch in hub.since(words[3]) or ()] == words[4:]
    assert [batch[0] for batch in hub.since(words[2]) or ()] == words[3:]
    assert hub.since(words[1]) is None
    assert hub.since("nonsense") is None
    assert slow.lost  # five changes of red, and none was read
    assert only.lost
    hub.leave(slow)
    quick = hub.listen(BOB)
    hub._tell((Change("j9", "red", "running", 1), Change("b1", "blue", "running", 1)))
    assert [[change.id for change in changes] for _, changes in quick.take()] == [["b1"]]
    assert quick.take() == []


class Quiet:
    """A plane that says nothing by itself."""
