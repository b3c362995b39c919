"""What the page needs of the API: its own files, the cluster as a stream, use over time, prices, YAML."""

from __future__ import annotations

import asyncio
import base64
import csv
import gzip
import hashlib
import http.client
import io
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.control import harness
from tests.control import test_api as api
from tests.control import test_api_queries as queried
from tests.control.test_api import Live, eventually, gpus

from dovetail.control import tables
from dovetail.control.api.page import FOLDER, Files, content_policy
from dovetail.control.api.settings import Settings
from dovetail.control.api.stream import Board, Picture, Reader, View, drawn
from dovetail.control.clock import iso
from dovetail.control.cluster_state import NodeState, Overview
from dovetail.control.forecast import Window, end_of_running, end_of_waiting
from dovetail.control.inbox import Unavailable
from dovetail.control.prices import Prices, parts_of
from dovetail.control.records import AttemptRecord
from dovetail.control.states import State
from dovetail.control.store import Batch, Store
from dovetail.control.tenant_shares import fair_shares
from dovetail.control.tokens import Caller
from dovetail.control.usage_report import usage_report
from dovetail.control.usage_series import Bins, Curve, use_over_time
from dovetail.core.core import Core
from dovetail.model.cluster import Tenant, parse_cluster, with_tenants
from dovetail.model.event import Kind
from dovetail.model.job import Job, gang
from dovetail.model.units import DAY, HOUR, SECOND
from dovetail.policies.registry import POLICIES

ADMIN = Caller("t0", "default", "root", "admin")
ANN = Caller("t1", "red", "ann", "user")
BOB = Caller("t2", "blue", "bob", "user")
CAT = Caller("t3", "green", "cat", "user")


Held = dict[tuple[int, int], list[tuple[str, int]]]  # by node and device


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with api.living(tmp_path_factory.mktemp("plane"), api.FAST) as made:
        yield made


@pytest.fixture(autouse=True)
def _tidy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that share a plane leave it empty, and without prices."""
    yield
    if "live" in request.fixturenames:
        made: Live = request.getfixturevalue("live")

        def empty() -> bool:
            ids = [job["id"] for job in made.get("jobs?active=true&limit=200")["items"]]
            if ids:
                assert made.ask("POST", "jobs/cancel", "admin", {"ids": ids}).status == 200
            return not ids

        eventually(empty)
        assert made.ask("PUT", "prices", "admin", {}).status == 200


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    database = request.getfixturevalue("database")() if request.param == "postgresql" else None
    with harness.stored(tmp_path, database) as made:
        yield made


@pytest.fixture
def desk(store: Store) -> Any:
    return queried.Desk(store)


# --- the page's files ---------------------------------------------------------------------------------


def fetched(live: Live, method: str, path: str, **headers: str) -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=60)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): v for name, v in headers.items()})
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def test_the_page_needs_no_token_and_may_run_nothing_but_its_own_files(live: Live) -> None:
    status, headers, text = fetched(live, "GET", "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert text == (FOLDER / "index.html").read_bytes()
    inner = re.search(r'<script type="importmap">(.*?)</script>', text.decode(), re.DOTALL)
    assert inner is not None
    digest = base64.b64encode(hashlib.sha256(inner[1].encode()).digest()).decode()
    policy = dict(part.strip().partition(" ")[::2] for part in headers["Content-Security-Policy"].split(";"))
    assert policy == {
        "default-src": "'none'", "script-src": f"'self' 'sha256-{digest}'", "style-src": "'self'",
        "img-src": "'self' data:", "connect-src": "'self'", "font-src": "'self'", "base-uri": "'none'",
        "form-action": "'none'", "frame-ancestors": "'none'",
    }  # fmt: skip
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-cache"


def test_files_are_sent_packed_and_only_once(live: Live) -> None:
    path, file = "/page/vendor/preact.mjs", FOLDER / "vendor" / "preact.mjs"
    status, headers, plain = fetched(live, "GET", path)
    assert (status, plain, headers["Content-Encoding"]) == (200, file.read_bytes(), None)
    assert headers["Content-Type"] == "text/javascript; charset=utf-8"
    status, packed, body = fetched(live, "GET", path, Accept_Encoding="br, gzip;q=0.8")
    assert (packed["Content-Encoding"], packed["Vary"], gzip.decompress(body)) == (
        "gzip", "Accept-Encoding", plain,
    )  # fmt: skip
    assert len(body) < len(plain) / 2
    assert packed["ETag"] != headers["ETag"]  # another form of it is another thing
    assert fetched(live, "GET", path, Accept_Encoding="gzip;q=0")[1]["Content-Encoding"] is None
    for etag in (headers["ETag"], f'"other", W/{headers["ETag"]}', "*"):
        status, again, body = fetched(live, "GET", path, If_None_Match=etag)
        assert (status, body, again["ETag"]) == (304, b"", headers["ETag"])
        assert again["Cache-Control"] == "no-cache"
    assert fetched(live, "GET", path, If_None_Match='"other"')[0] == 200
    status, head, body = fetched(live, "HEAD", path)
    assert (status, body, head["Content-Length"]) == (200, b"", str(len(plain)))
    assert fetched(live, "HEAD", "/")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/", "/page/nosuch.js", "/page/../app.py", "/page/..%2f..%2f__init__.py",
        "/page/%2e%2e/__init__.py", "/page//etc/passwd", "/page/vendor", "/page/vendor/",
        "/page/index.html%00.js", "/page/vendor\\preact.mjs",
    ],
)  # fmt: skip
def test_nothing_else_is_a_file_of_the_page(live: Live, path: str) -> None:
    status, headers, body = fetched(live, "GET", path)
    assert (status, headers["Content-Type"]) == (404, "application/problem+json")
    assert json.loads(body)["type"] == "/problems/not-found"


def test_the_page_takes_no_other_methods_and_no_other_hosts(live: Live) -> None:
    assert fetched(live, "POST", "/")[0] == 405
    assert fetched(live, "GET", "/", Host="evil.example")[0] == 421
    assert fetched(live, "GET", "/pages")[0] == 401


def test_a_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index.html").write_text('<script type="importmap">{}</script>')
    (tmp_path / ".hidden.js").write_text("1")
    (tmp_path / "notes.md").write_text("1")
    files = Files(tmp_path)
    assert files.names() == ["index.html"]
    before = files.policy
    (tmp_path / "index.html").write_text('<script type="importmap">{ }</script>')
    (tmp_path / "new.js").write_text("2")
    monkeypatch.setattr("dovetail.control.api.page.LOOK_AGAIN", 0.0)
    found = files.get("new.js")
    assert found is not None
    assert (found.body, found.packed) == (b"2", None)  # too short to be worth it
    assert files.policy != before
    assert content_policy("") in before.replace(
        before[before.index(" 'sha256") : before.index("; style")], ""
    )
    assert Files(tmp_path / "nosuch").get("index.html") is None


def test_a_view_of_the_page_is_not_too_many_requests(tmp_path: Path) -> None:
    with api.living(tmp_path / "plane", Settings(rate=0.01, burst=8)) as plane:
        assert {fetched(plane, "GET", "/page/vendor/htm.mjs")[0] for _ in range(60)} == {200}
        assert {fetched(plane, "GET", "/version")[0] for _ in range(9)} == {200, 429}
        assert 429 in {fetched(plane, "GET", "/")[0] for _ in range(30)}


class Follower:
    """A plane as the API sees it while another leads; its loop goes on as it was."""

    leads = False

    def __init__(self, plane: Any) -> None:
        self._plane = plane

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)


def test_a_plane_that_does_not_lead_shows_the_page(live: Live) -> None:
    wiring = live.app.state.wiring
    object.__setattr__(wiring, "plane", Follower(live.plane))
    try:
        page, me = fetched(live, "GET", "/"), live.ask("GET", "me", "ann")
    finally:
        object.__setattr__(wiring, "plane", live.plane)
    assert page[0] == 200
    assert (me.status, me.json["type"], me.json["leader"]) == (
        503,
        "/problems/not-leading",
        "http://127.0.0.1:1",
    )


def test_me(live: Live) -> None:
    me = live.get("me", "ann")
    assert {name: me[name] for name in ("user", "tenant", "role", "token")} == {
        "user": "ann", "tenant": "red", "role": "user", "token": {"name": "ann", "expires_at": None},
    }  # fmt: skip
    assert (me["policy"], me["virtual"], me["scale"], me["gpus"], me["nodes"]) == (
        "priority",
        False,
        1.0,
        10,
        3,
    )
    made = live.ask("POST", "tokens", "admin", {"name": "x", "tenant": "red", "expires_in": 60.0}).json
    live.tokens["soon"] = made["token"]
    assert live.get("me", "soon")["token"]["expires_at"] > me["now"]


# --- the cluster as a stream --------------------------------------------------------------------------


def told(events: Iterator[tuple[str, str, str]]) -> tuple[str, Any]:
    kind, data, _ = next(events)
    return kind, json.loads(data)


def until(events: Iterator[tuple[str, str, str]], found: Callable[[Any], bool]) -> list[Any]:
    """The changes up to one."""
    seen = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        kind, data = told(events)
        assert kind == "changes"
        seen.append(data)
        if found(data):
            return seen
    raise AssertionError("it did not happen")


def test_the_cluster_as_it_changes(live: Live) -> None:
    with live.stream("cluster/stream", "admin") as events:
        kind, first = told(events)
        assert kind == "cluster"
        assert first["types"] == ["A100", "V100"]
        assert first["tenants"] == []
        free: list[list[Any]] = [
            ["n0", 0, "u", "", [0] * 4],
            ["n1", 0, "u", "", [0] * 4],
            ["n2", 1, "u", "", [0] * 2],
        ]
        assert first["nodes"] == free
        assert (first["policy"], first["waiting"], first["running"], first["asked"]) == ("priority", 0, 0, 0)
        job = live.submit("ann", **gpus(2, time="1h"))
        seen = until(events, lambda said: said["running"] == 1)
        (change,) = [said for said in seen if said["nodes"]]
        assert change["tenants"] == ["red"]
        ((number, row),) = change["nodes"].items()
        assert row[4].count(f"{job}:0") == 2
        assert row[4].count(0) == len(free[int(number)][4]) - 2
        assert live.ask("POST", "nodes/n2/drain", "admin", {"reason": "new fan"}).status == 200
        seen = until(events, lambda said: "2" in said["nodes"])
        assert seen[-1]["nodes"] == {"2": ["n2", 1, "d", "new fan", [0, 0]]}
        assert seen[-1]["tenants"] == []
        assert live.ask("POST", "nodes/n2/resume", "admin").status == 200
        until(events, lambda said: said["nodes"].get("2", [0, 0, ""])[2] == "u")
        assert live.ask("PUT", "policy", "admin", {"name": "fifo"}).status == 200
        assert until(events, lambda said: said["policy"] == "fifo")[-1]["nodes"] == {}
        assert live.ask("PUT", "policy", "admin", {"name": "priority"}).status == 200
        until(events, lambda said: said["policy"] == "priority")
        asked = live.submit("ann", **gpus(4, nodes=2, time="1h"))
        assert until(events, lambda said: said["waiting"] == 1)[-1]["asked"] == 8
        assert asked


def test_of_other_tenants_one_sees_that_a_device_is_taken(live: Live) -> None:
    whole = live.submit("ann", name="ann-secret", **gpus(1, time="1h"))
    half = live.submit("ann", gpu_share=0.25)
    mine = live.submit("bob", gpu_share=0.5)
    for job in (whole, half, mine):
        live.until(job, "running")
    seen = shown(live, "bob", lambda seen: seen["running"] == 3)
    assert seen["tenants"] == ["blue"]
    devices = [device for node in seen["nodes"] for device in node[4] if device != 0]
    assert 1 in devices
    assert [mine, 500, 0] in [share for device in devices if isinstance(device, list) for share in device]
    taken = sum(
        device if isinstance(device, int) else sum(s[1] for s in device) / 1_000 for device in devices
    )
    assert taken == 1.75
    assert not any(word in json.dumps(seen) for word in (whole, half, "red", "ann"))
    outsider = shown(live, "ops", lambda seen: seen["running"] == 3)  # of no tenant
    assert not any(word in json.dumps(outsider) for word in (whole, half, mine, "red", "blue"))
    seen = shown(live, "admin", lambda seen: seen["running"] == 3)
    assert sorted(seen["tenants"]) == ["blue", "red"]
    assert all(word in json.dumps(seen) for word in (whole, half, mine))


def shown(live: Live, who: str, found: Callable[[Any], bool]) -> Any:
    """The cluster as the page puts it together, once it is so."""
    with live.stream("cluster/stream", who) as events:
        kind, seen = told(events)
        assert kind == "cluster"
        while not found(seen):
            kind, data = told(events)
            assert kind == "changes"
            for number, row in data.pop("nodes").items():
                seen["nodes"][int(number)] = row
            seen["tenants"] += data.pop("tenants")
            seen.update(data)
    return seen


def test_a_tenant_hears_nothing_of_what_it_cannot_see(live: Live) -> None:
    job = live.submit("ann", **gpus(1, time="1h"))
    live.until(job, "running")
    with live.stream("cluster/stream", "bob") as events:
        told(events)
        other = live.submit("ann", **gpus(1, time="1h"))
        seen = until(events, lambda said: said["running"] == 2)
        text = json.dumps(seen)
    assert job not in text
    assert other not in text
    assert all(said["tenants"] == [] for said in seen)


def test_a_revoked_token_hears_no_more(live: Live) -> None:
    made = live.ask("POST", "tokens", "admin", {"name": "tmp", "tenant": "red", "role": "viewer"}).json
    live.tokens["tmp"] = made["token"]
    with live.stream("cluster/stream", "tmp") as events:
        assert told(events)[0] == "cluster"
        assert live.ask("DELETE", f"tokens/{made['id']}").status == 204
        assert list(events) == []


def test_streams_of_the_cluster_are_counted(tmp_path: Path) -> None:
    with api.living(tmp_path / "plane", Settings(streams_per_token=1, keep_alive=0.1)) as plane:
        with plane.stream("cluster/stream", "ann") as events:
            told(events)
            assert plane.ask("GET", "cluster/stream", "ann").status == 429
            assert plane.ask("GET", "watch", "ann").status == 429
        eventually(lambda: len(plane.plane.store.tenants()) == 0)


def overview(
    nodes: int = 2,
    each: int = 2,
    step: int = 0,
    held: Held | None = None,
    tenants: dict[str, str] | None = None,
    **more: Any,
) -> Overview:
    on = held or {}
    states = [
        NodeState(
            f"gpu-{n:04d}", "A100", each, 0, "up", "", 0, 0, [(d, on.get((n, d), [])) for d in range(each)]
        )
        for n in range(nodes)
    ]
    facts = {"waiting": 0, "running": 0, "asked": 0.0, **more}
    return Overview(1_000_000 * step, (0, step), "fifo", states, tenants or {}, **facts)


def data_of(event: bytes) -> Any:
    return json.loads(event.decode().partition("data: ")[2])


def test_a_thousand_nodes_are_a_small_event() -> None:
    rng = random.Random(1)
    names = ["".join(rng.choices("23456789abcdefghjkmnpqrstuvwxyz", k=6)) for _ in range(8_000)]
    held = {(n, d): [(names[8 * n + d], 1_000)] for n in range(1_000) for d in range(8)}
    tenants = {name: f"team-{rng.randrange(30)}" for name in names}
    seen = overview(1_000, 8, held=held, tenants=tenants, waiting=10_000)
    began = time.process_time()
    whole = drawn(seen, None)
    took = time.process_time() - began
    assert len(whole.whole()) < 150_000
    assert len(drawn(seen, "team-1").whole()) < 80_000
    assert took < 1.0
    after = overview(1_000, 8, 1, {**held, (7, 3): []}, tenants, waiting=10_000)
    changed = drawn(after, None, whole)
    assert list(data_of(changed.since(whole.version))["nodes"]) == ["7"]
    assert len(changed.since(whole.version)) < 500


def test_a_picture_tells_what_each_reader_has_not_seen() -> None:
    view = View(None)
    quick, slow = Reader(view), Reader(view)
    tenants = {"a": "red", "b": "blue"}
    view.show(drawn(overview(), None))
    assert data_of(quick.take())["nodes"] == [
        ["gpu-0000", 0, "u", "", [0, 0]],
        ["gpu-0001", 0, "u", "", [0, 0]],
    ]
    slow.take()
    assert quick.take() == b""

    def show(step: int, held: Held) -> Picture:
        assert view.picture is not None
        picture = drawn(overview(2, 2, step, held, tenants), None, view.picture)
        view.show(picture)
        return picture

    show(1, {(0, 0): [("a", 1_000)]})
    assert data_of(quick.take()) == {
        "now": iso(1_000_000), "policy": "fifo", "waiting": 0, "running": 0, "asked": 0.0, "tenants": ["red"],
        "policy_failure": "",
        "nodes": {"0": ["gpu-0000", 0, "u", "", ["a:0", 0]]},
    }  # fmt: skip
    same = show(2, {(0, 0): [("a", 1_000)]})
    assert quick.take() == b""
    assert same.version == 2  # nothing was new, so nothing is told
    show(3, {(0, 0): [("a", 1_000)], (1, 1): [("b", 250), ("a", 250)]})
    assert list(data_of(quick.take())["nodes"]) == ["1"]
    both = data_of(slow.take())
    assert (both["tenants"], list(both["nodes"])) == (["red", "blue"], ["0", "1"])
    assert both["nodes"]["1"][4] == [0, [["b", 250, 1], ["a", 250, 0]]]
    view.show(drawn(overview(3, 2, 4), None, view.picture))
    assert quick.take().startswith(b"event: cluster\n")  # other nodes: from the beginning


def test_many_small_parts_of_a_device_are_not_all_named() -> None:
    held = {(0, 0): [(f"j{n}", 10) for n in range(100)]}
    row = data_of(drawn(overview(1, 1, held=held, tenants={}), "").whole())["nodes"][0]
    assert len(row[4][0]) == 21
    assert row[4][0][-1] == [None, 800]


def test_the_loop_is_asked_once_for_all_and_only_if_something_happened() -> None:
    class Pretended:
        def __init__(self) -> None:
            self.moment, self.asked = (0, 0), 0

        def ask(self, question: object) -> Overview:
            self.asked += 1
            if self.moment == (-1, -1):
                raise Unavailable("this plane does not lead")
            return overview(step=self.moment[1], running=self.moment[1])

    async def watched() -> None:
        plane: Any = Pretended()
        board = Board(plane, every=0.05)
        readers = [await board.join(caller) for caller in (ADMIN, ANN, ANN, BOB)]
        assert plane.asked == 1
        assert all(reader.take() for reader in readers)
        await asyncio.sleep(0.3)
        assert plane.asked == 1
        plane.moment = (0, 1)
        for reader in readers:
            await asyncio.wait_for(reader.rung.wait(), 30)
            assert data_of(reader.take())["running"] == 1
        assert plane.asked == 2
        await asyncio.sleep(0.06)
        plane.moment = (0, 2)
        newcomer = await board.join(CAT)  # joins between a change and the next look
        for reader in readers:
            await asyncio.wait_for(reader.rung.wait(), 30)
            assert reader.take()
        board.leave(newcomer)
        plane.moment = (-1, -1)
        for reader in readers:
            await asyncio.wait_for(reader.rung.wait(), 30)
            assert reader.lost
            board.leave(reader)
        with pytest.raises(Unavailable):
            await asyncio.wait_for(_late(board), 30)
        await board.close()

    async def _late(board: Board) -> None:
        await asyncio.sleep(0.1)
        await board.join(BOB)

    asyncio.run(watched())


# --- use over time ------------------------------------------------------------------------------------


def test_means_are_those_of_the_spans() -> None:
    rng = random.Random(3)
    bins = Bins.of(1_000, 1_000 + 977, 10)
    assert (bins.step, bins.count, bins.width(bins.count - 1)) == (98, 10, 95)
    spans = []
    for _ in range(200):
        first, last = sorted(rng.choices(range(bins.since, bins.until + 1), k=2))
        spans.append((first, last, rng.choice([1, 2, 8])))
    curve = Curve(bins)
    for span in spans:
        curve.add(*span)
    for number, mean in enumerate(curve.means()):
        begins, width = bins.since + number * bins.step, bins.width(number)
        inside = sum(n * max(0, min(last, begins + width) - max(first, begins)) for first, last, n in spans)
        assert mean == pytest.approx(inside / width, abs=1e-3)


def used(answer: Any) -> dict[str, list[float]]:
    return {series["name"]: series["used"] for series in answer["series"]}


def test_use_is_summed_up_in_bins(desk: Any, store: Store) -> None:
    one = desk.add(eligible_at=0, submitted_at=0, state=State.COMPLETED)
    desk.ran(one, (1 * HOUR, 2 * HOUR), (3 * HOUR, 5 * HOUR))
    two = desk.add("blue", "bob", eligible_at=HOUR, submitted_at=0, state=State.RUNNING, gpus=1, load=500)
    desk.ran(two, (90 * 60 * SECOND, None), types="V100")
    desk.add("blue", eligible_at=3 * HOUR, waiting_since=3 * HOUR, submitted_at=0, state=State.PENDING)
    desk.add("blue", eligible_at=3 * HOUR, submitted_at=0, state=State.HELD)
    bins, kinds = Bins.of(0, 4 * HOUR, 4), dict[str, str]()
    found = use_over_time(store, ADMIN, "tenant", bins, 4 * HOUR, kinds)
    assert used(found) == {"red": [0, 2, 0, 2], "blue": [0, 0.25, 0.5, 0.5]}
    assert (found["step"], found["since"]) == (3_600.0, "1970-01-01T00:00:00.000Z")
    assert found["waiting"] == [1, 0.5, 1, 1]
    assert found["asked"] == [2, 0.25, 2, 2]
    assert used(use_over_time(store, ADMIN, "type", bins, 4 * HOUR, kinds)) == {
        "A100": [0, 2, 0, 2], "V100": [0, 0.25, 0.5, 0.5],
    }  # fmt: skip
    assert used(use_over_time(store, BOB, "tenant", bins, 4 * HOUR, kinds)) == {
        "blue": [0, 0.25, 0.5, 0.5], "all others": [0, 2, 0, 2],
    }  # fmt: skip
    outsider = Caller("t9", "", "ops", "viewer")
    assert used(use_over_time(store, outsider, "tenant", bins, 4 * HOUR, kinds)) == {
        "all others": [0, 2.25, 0.5, 2.5]
    }
    part = use_over_time(
        store, ANN, "tenant", Bins.of(150 * 60 * SECOND, 210 * 60 * SECOND, 2), 4 * HOUR, kinds
    )
    assert used(part) == {"red": [0, 2], "all others": [0.5, 0.5]}
    assert part["waiting"] == [1, 1]


def test_an_attempt_on_several_types_is_split_by_its_devices(desk: Any, store: Store) -> None:
    job = desk.add(gpus=4, load=4_000)
    placement = [{"node": "a", "devices": [0, 1, 2]}, {"node": "v", "devices": [0]}]
    attempts = [AttemptRecord(job.id, 1, placement, "A100,V100", 4_000, 0, 2 * HOUR)]
    job.epoch, job.first_started_at, job.started_at, job.ended_at = 1, 0, 0, 2 * HOUR
    store.commit(Batch(changed={job.id: job}, begun=attempts))
    kinds = {"a": "A100", "v": "V100"}
    found = use_over_time(store, ANN, "type", Bins.of(0, 2 * HOUR, 1), 2 * HOUR, kinds)
    assert used(found) == {"A100": [3.0], "V100": [1.0]}
    prices = Prices("EUR", {"A100": 2.0, "V100": 1.0})
    for by, key in (("user", "ann"), ("day", "1970-01-01"), ("month", "1970-01"), ("type", "A100,V100")):
        report = usage_report(store, ANN, by, 0, 3 * HOUR, 3 * HOUR, prices=prices, kind_of=kinds)
        assert [(row["key"], row["gpu_hours"], row["cost"]) for row in report["items"]] == [(key, 8.0, 14.0)]
    assert parts_of(["A100", "V100"], placement, {"a": "A100"}) == {
        "A100": 0.5,
        "V100": 0.5,
    }  # v is unknown


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_hundred_thousand_attempts_take_little(store: Store) -> None:
    """One in ten was stopped once; a start every six seconds, half an hour each."""
    first = queried.Desk(store).add(eligible_at=0, submitted_at=0, state=State.COMPLETED)
    new = {
        "id": "'x' || n", "seq": "n + 1", "tenant": "'t' || (n % 30)", "model": "'m' || (n % 7)",
        "epoch": "1 + (n % 10 = 0)", "first_started_at": f"n * {6 * SECOND}",
        "eligible_at": f"max(0, n * {6 * SECOND} - {HOUR})", "ended_at": f"n * {6 * SECOND} + {2 * HOUR}",
    }  # fmt: skip
    names = tables.jobs.c.keys()
    many = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 90909)"
    columns = ", ".join(f'"{name}"' for name in names)
    values = ", ".join(new.get(name, f'jobs."{name}"') for name in names)
    begin = f"n * {6 * SECOND} + (e - 1) * {HOUR}"
    attempt = (
        f"'x' || n, e, '[]', 'X' || (n % 3), 2000, {begin}, {begin} + {HOUR // 2}, NULL, '', '', "
        f"{HOUR} / e, NULL, NULL"
    )
    with store.transaction() as connection:
        for text in (
            f"INSERT INTO jobs ({columns}) {many} SELECT {values} FROM r, jobs WHERE jobs.id = '{first.id}'",
            f"INSERT INTO attempts {many} SELECT {attempt} FROM r, (SELECT 1 AS e UNION SELECT 2) "
            "WHERE e = 1 OR n % 10 = 0",
        ):
            connection.exec_driver_sql(text)
    with store.reading() as connection:
        held = connection.execute(sa.select(sa.func.count()).select_from(tables.attempts)).scalar_one()
    assert held >= 99_999
    now = 90_909 * 6 * SECOND + 3 * HOUR
    for by in ("tenant", "type"):
        began = time.process_time()
        found = use_over_time(store, ADMIN, by, Bins.of(0, now, 500), now, {})
        assert time.process_time() - began < 2.5  # about 0.7
        total = sum(sum(series["used"]) for series in found["series"]) * found["step"] / 3_600
        assert total == pytest.approx(held, rel=1e-3)
        assert len(found["series"]) <= 21
        assert max(found["waiting"]) > 500
    for by in ("month", "user"):
        began = time.process_time()
        usage_report(store, ADMIN, by, 0, now, now, prices=Prices("USD", {"X0": 1.0}))
        assert time.process_time() - began < 4.0  # about 0.6


def test_use_is_asked_for_over_http(live: Live) -> None:
    job = live.submit("ann", **gpus(2, time="1h"))
    live.until(job, "running")
    found = live.get("usage?points=7", "ann")
    assert found["capacity"] == 10
    assert found["series"][0]["name"] == "red"
    assert {len(series["used"]) for series in found["series"]} | {len(found["waiting"])} == {7}
    since = iso(live.plane.clock.now() - 2 * SECOND)
    now = eventually(lambda: live.get(f"usage?by=type&points=1&since={since}", "bob")["series"])
    assert [series["name"] for series in now] == ["A100"]
    for wrong in (
        "points=0",
        "points=501",
        "by=user",
        "since=2999-01-01",
        "since=2020-01-02&until=2020-01-01",
    ):
        assert live.ask("GET", f"usage?{wrong}", "ann").status == 422, wrong
    assert live.get("usage?since=1970-01-01", "ann")["step"] > 0


# --- money --------------------------------------------------------------------------------------------


def test_months_and_models_and_what_they_cost(desk: Any, store: Store) -> None:
    desk.ran(desk.add(model="bert", eligible_at=0, submitted_at=0), (30 * DAY, 32 * DAY))
    desk.ran(desk.add(model="gpt"), (60 * DAY, 60 * DAY + HOUR), types="V100")
    desk.ran(desk.add("blue", "bob", model="secret"), (0, HOUR), types="K80")
    now = 100 * DAY
    prices = Prices("EUR", {"A100": 2.0, "V100": 0.5})
    report = usage_report(store, ANN, "month", 0, now, now, prices=prices)
    rows = {row["key"]: (row["gpu_hours"], row["cost"], row["jobs"]) for row in report["items"]}
    assert rows == {"1970-01": (48.0, 96.0, 0), "1970-02": (48.0, 96.0, 1), "1970-03": (2.0, 1.0, 1)}
    assert (report["currency"], report["total"]["cost"], report["unpriced"]) == ("EUR", 193.0, [])
    assert report["items"][0]["wait"]["mean"] == 30 * 86_400
    models = usage_report(store, ADMIN, "model", 0, now, now, prices=prices)
    assert [(row["key"], row["cost"]) for row in models["items"]] == [
        ("bert", 192.0),
        ("gpt", 1.0),
        ("secret", None),
    ]
    assert (models["total"]["cost"], models["unpriced"]) == (None, ["K80"])
    plain = usage_report(store, ADMIN, "model", 0, now, now)
    assert ({row["cost"] for row in plain["items"]}, plain["unpriced"]) == ({None}, [])
    end = usage_report(
        store, ANN, "month", 253_402_300_000 * SECOND, 253_402_300_001 * SECOND, now
    )  # the last
    assert end["items"] == []


def test_prices_are_set_by_an_admin(live: Live) -> None:
    assert live.get("prices", "eve") == {"currency": "USD", "per_gpu_hour": {}}
    body = {"currency": "EUR", "per_gpu_hour": {"A100": 2.5, "V100": 0}}
    assert live.ask("PUT", "prices", "ann", body).status == 403
    answer = live.ask("PUT", "prices", "admin", body)
    assert (answer.status, answer.json) == (
        200,
        {"currency": "EUR", "per_gpu_hour": {"A100": 2.5, "V100": 0.0}},
    )
    assert live.get("prices", "ops") == answer.json
    for wrong in (
        {"per_gpu_hour": {"A100": -1}}, {"per_gpu_hour": {"A100": "free"}}, {"per_gpu_hour": {"a b": 1}},
        {"currency": ""}, {"currency": "x" * 17}, {"price": 1},
    ):  # fmt: skip
        refused = live.ask("PUT", "prices", "admin", wrong)
        assert (refused.status, len(refused.json["errors"])) == (422, 1)
    assert refused.json["errors"][0]["pointer"] == "/price"
    planned = live.ask("POST", "plan", "ann", {"run": "true", **gpus(2), "time": "2h"}).json
    assert planned["cost"] == 2.5 * 2 * 2
    assert planned["starts_at"]["likely"] < planned["ends_at"]["low"] < planned["ends_at"]["likely"]
    assert live.ask("POST", "plan", "ann", {"run": "true", **gpus(2)}).json["cost"] is None


def test_a_report_for_a_spreadsheet(live: Live) -> None:
    for who, model in (
        ("ann", '=HYPERLINK("http://evil.example","x")'),
        ("ann", "-2+3"),
        ("bob", "blue,model"),
    ):
        job = live.submit(who, model=model, **gpus(1))
        live.until(job, "running")
        live.engine.end(job)
        live.until(job, "completed")
    assert (
        live.ask("PUT", "prices", "admin", {"currency": "=1+1", "per_gpu_hour": {"A100": 1e5}}).status == 200
    )
    answers = [
        live.ask("GET", "report?by=model&format=csv", "ann"),
        live.ask("GET", "report?by=model", "ann", headers={"Accept": "text/csv"}),
    ]
    for answer in answers:
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/csv; charset=utf-8")
        assert re.fullmatch(
            r'attachment; filename="dovetail-model-\d{4}-\d\d-\d\d-\d{4}-\d\d-\d\d\.csv"',
            answer.headers["Content-Disposition"],
        )
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        models = {row["model"] for row in rows}
        assert {'\'=HYPERLINK("http://evil.example","x")', "'-2+3"} <= models
        assert {row["currency"] for row in rows} <= {"'=1+1", ""}
        assert "blue" not in answer.text
        assert "bob" not in answer.text
        assert all(float(row["gpu_hours"]) >= 0 for row in rows)
    assert "blue,model" in {
        row["model"]
        for row in csv.DictReader(io.StringIO(live.ask("GET", "report?by=model&format=csv").text))
    }
    assert live.ask("GET", "report?format=xml").status == 422
    assert live.get("report?by=model")["currency"] == "=1+1"


def test_no_report_history_or_use_of_blue_speaks_of_red(live: Live) -> None:
    secret = live.submit("ann", name="ann-secret", model="ann-model", **gpus(1))
    live.until(secret, "running")
    live.engine.end(secret)
    live.until(secret, "completed")
    running = live.submit("ann", name="ann-secret", model="ann-model", **gpus(1))
    live.until(running, "running")
    words = (secret, running, "ann-secret", "ann-model", '"red"', "red,", '"ann"', "ann,")
    for by in ("tenant", "user", "type", "day", "month", "model"):
        for path in (f"report?by={by}", f"report?by={by}&format=csv"):
            text = live.ask("GET", path, "bob").text
            assert not any(word in text for word in words), path
    for path in ("usage", "usage?by=type", "history", "shares", "me", "prices"):
        text = live.ask("GET", path, "bob").text
        assert not any(word in text for word in words), path
    assert {series["name"] for series in live.get("usage", "bob")["series"]} == {"blue", "all others"}
    assert {"red", "blue"} <= {series["name"] for series in live.get("usage")["series"]} | {"blue"}


# --- fair shares --------------------------------------------------------------------------------------


def shared(tenants: list[Tenant], jobs: dict[str, int], cluster: str = "2x4") -> dict[str, float]:
    core = Core(with_tenants(parse_cluster(cluster), tenants), POLICIES.make("fifo"))
    made = [
        Job(f"{tenant}{n}", 0, gang(1), HOUR, estimate=HOUR, tenant=tenant)
        for tenant, count in jobs.items()
        for n in range(count)
    ]
    core.handle(0, [(0, Kind.SUBMITTED, job.id, 0, job) for job in made])
    return fair_shares(core)


def test_fair_is_by_weight_among_those_with_work() -> None:
    assert shared([], {"a": 10, "b": 10}) == {"a": 4.0, "b": 4.0}
    assert shared([], {"a": 1, "b": 10}) == {"a": 1.0, "b": 7.0}
    assert shared([Tenant("a", weight=3.0), Tenant("c")], {"a": 10, "b": 10}) == {"a": 6.0, "b": 2.0}
    assert shared([Tenant("a", quota=6)], {"a": 10, "b": 10}) == {"a": 7.0, "b": 1.0}
    assert shared([Tenant("a", limit=2)], {"a": 10, "b": 10}) == {"a": 2.0, "b": 6.0}
    assert shared([Tenant("a", quota=8), Tenant("b", quota=8)], {"a": 10, "b": 10}) == {"a": 4.0, "b": 4.0}
    assert shared([], {}) == {}


def test_shares_say_what_is_fair(live: Live) -> None:
    for who in ("ann", "bob"):
        for _ in range(4):
            live.submit(who, **gpus(2, time="1h"))
    fair = {share["tenant"]: share["fair"] for share in live.get("shares")["items"]}
    assert (fair["red"], fair["blue"]) == (5.0, 5.0)
    assert [share["fair"] for share in live.get("shares", "ann")["items"]] == [5.0]


# --- when it ends -------------------------------------------------------------------------------------


def test_ends_are_windows() -> None:
    assert end_of_running(100, 60, None) == Window(80, 100, 120)
    assert end_of_running(100, 60, 110) == Window(80, 100, 110)
    assert end_of_running(50, 60, 110) == Window(60, None, 110)  # it has outlived its estimate
    assert end_of_waiting(Window(10, 20, 30), 100, None) == Window(60, 120, 180)
    assert end_of_waiting(Window(10, 20, 30), 100, 100) == Window(60, 120, 130)
    assert end_of_waiting(Window(10, None, None), 100, 100) == Window(60, None, None)


def test_a_job_says_when_it_is_expected_to_end(live: Live) -> None:
    first = live.submit("ann", **gpus(2, time="2h", expected="1h"))
    runs = live.until(first, "running")
    ends = runs["ends_at"]
    assert runs["started_at"] < ends["low"] < ends["likely"] < ends["high"]
    assert live.get(f"jobs/{first}/why", "ann")["ends_at"]["likely"] == ends["likely"]
    for _ in range(5):
        live.submit("ann", **gpus(2, time="1h"))
    waits = live.submit("ann", **gpus(2, time="1h"))
    why = eventually(lambda: (found := live.get(f"jobs/{waits}/why", "ann"))["ends_at"] and found)
    assert why["starts_at"]["likely"] < why["ends_at"]["likely"]
    assert live.get(f"jobs/{waits}", "ann")["ends_at"] is None
    assert all(job["ends_at"] is None for job in live.get("jobs", "ann")["items"])


def test_who_said_nothing_is_not_expected_to_end(live: Live) -> None:
    job = live.submit("ann", **gpus(1))
    assert live.until(job, "running")["ends_at"] is None


# --- YAML ---------------------------------------------------------------------------------------------

YAML = """\
# a comment
name: fit
resources:
  accelerators: A100:2
  cloud: aws
envs:
  LEVEL: 007
retry: {on: [node-failure], max: 2}
time: 1h
run: |
  echo one
  echo two
"""


def sent(live: Live, text: str | bytes, path: str = "jobs", kind: str = "application/yaml") -> Any:
    body = text if isinstance(text, bytes) else text.encode()
    return live.ask("POST", path, "ann", body, {"Content-Type": kind})


def test_a_job_may_be_written_in_yaml(live: Live) -> None:
    planned = sent(live, YAML, "plan", "application/yaml; charset=utf-8")
    assert (planned.status, planned.json["fits"]) == (200, True)
    assert planned.json["notes"] == ["line 5: resources.cloud is ignored: there is no cloud to choose from"]
    made = sent(live, YAML, kind="text/yaml")
    assert (made.status, made.json["notes"]) == (201, planned.json["notes"])
    job = live.until(made.json["id"], "running")
    assert (job["name"], job["gpus"], job["gpu_types"], job["time_limit"]) == ("fit", 2, ["A100"], 3_600.0)
    launch = live.engine.started[job["id"], 1]
    assert dict(launch.env)["LEVEL"] == "007"
    key = {"Idempotency-Key": "k1", "Content-Type": "application/yaml"}
    ids = {live.ask("POST", "jobs", "ann", YAML.encode(), key).json["id"] for _ in range(2)}
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("run: true\nname: [a\n", 3, "line 3, column 1: "),
        ("run: x\nrun: y\n", 2, "'run' is repeated"),
        ("run: x\nenv: &a {A: b}\n", 2, "anchors and aliases"),
        ("a: &a [x,x]\nb: &b [*a,*a]\n", 1, "anchors and aliases"),
        ("run: x\n---\nrun: y\n", 2, "a second document"),
        ("", None, "it is empty"),
        ("- a\n- b\n", 1, "not a mapping"),
        ("run: !!python/object/apply:os.system [id]\n", 1, ""),
        ("run: !!binary aGk=\n", 1, "cannot be read"),
        ("x: " + "[" * 5_000, 1, "nested too deep"),
        ("x: [" + "1," * 200_000 + "]", 1, "too many values"),
        ("run: x\n\tname: y\n", 2, "column"),
        ("run: \x07\n", None, "not valid YAML"),
        ("<<: {run: x}\n<<: {run: y}\nnodes: 0\n", 3, ""),
    ],
)
def test_wrong_yaml_says_where(live: Live, text: str, line: int | None, says: str) -> None:
    began = time.process_time()
    answer = sent(live, text, "plan")
    assert (answer.status, answer.json["type"]) == (422, "/problems/invalid"), answer
    (error,) = answer.json["errors"][:1]
    assert error["line"] == line
    assert says in answer.json["detail"]
    assert "\n" not in answer.json["detail"]
    assert time.process_time() - began < 10


def test_wrong_fields_of_yaml_have_pointer_and_line(live: Live) -> None:
    answer = sent(live, "run: x\nresources:\n  gpus: -1\ngpu: 2\n")
    assert {(e["pointer"], e["line"]) for e in answer.json["errors"]} == {("/resources/gpus", 3), ("/gpu", 4)}
    assert sent(live, b"run: \xff\n").status == 422
    assert sent(live, "run: x\n", "nodes/n0/drain").status in (403, 415)
    assert sent(live, "x" * 1_100_000).status == 413
    assert (
        sent(live, "run=x", kind="text/plain")
        .json["detail"]
        .endswith("send application/json or application/yaml")
    )


def test_what_is_sent_means_nothing_of_the_planes_machine(live: Live) -> None:
    from dovetail.client.jobyaml import read_yaml

    found = read_yaml("run: x\nworkdir: sub\nbegin: 2030-01-01T00:00\n", "f", sent=True)
    assert (found["workdir"], found["begin"]) == ("sub", "2030-01-01T00:00")
    assert read_yaml("run: x\nenv: &a {A: b}\n", "f")["env"] == {"A": "b"}  # one's own file may
