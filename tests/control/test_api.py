"""The HTTP API over a real server and a real plane; only the processes are pretended."""

from __future__ import annotations

import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.routing import Match

from dovetail.control import clock, questions
from dovetail.control.api.app import make_app
from dovetail.control.api.server import make_server
from dovetail.control.api.settings import Settings
from dovetail.control.chosen_policy import NamedPolicy
from dovetail.control.election import FileElection
from dovetail.control.plane import Plane
from dovetail.control.plane_settings import Settings as PlaneSettings
from dovetail.control.store import Store, url_of
from dovetail.control.tokens import first_token
from dovetail.engines.contract import AttemptEnd, Exit, Launch, StartStopEngine
from dovetail.engines.local.devices import discover
from dovetail.testing.search import searched

ROOT = "/api/v1"
PATIENCE = 60.0


class PretendEngine(StartStopEngine):
    """Attempts that run until a test says so; what they print is what a test writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bell = threading.Event()
        self._turn = threading.Lock()
        self.started: dict[tuple[str, int], Launch] = {}
        self._ended: dict[tuple[str, int], AttemptEnd] = {}
        self.said: dict[tuple[str, int], list[dict[str, object]]] = {}
        self._term = 0

    def newest_term(self) -> int:
        return self._term

    def lead(self, term: int) -> None:
        self._term = term

    def file(self, job: str, epoch: int, node: int = 0) -> Path:
        return self._folder / f"{job}.{epoch}.{node}.out"

    def start(self, launch: Launch) -> None:
        with self._turn:
            if self.started.setdefault((launch.job, launch.epoch), launch) is launch:
                for node in range(len(launch.shares)):
                    self.file(launch.job, launch.epoch, node).write_bytes(b"")

    def end(self, job: str, epoch: int = 1, code: int = 0, cause: str = "exited") -> None:
        now = clock.wall_now()
        with self._turn:
            self._ended[job, epoch] = AttemptEnd(job, epoch, Exit(code, cause, f"exit {code}", now, now))
        self.ring()

    def stop(self, job: str, epoch: int, why: str, grace: int) -> None:
        if (job, epoch) in self.started:
            self.end(job, epoch, 143, "stopped")

    def signal(self, job: str, epoch: int, number: int) -> None:
        pass

    def poll(self) -> list[AttemptEnd]:
        with self._turn:
            return list(self._ended.values())

    def known(self) -> set[tuple[str, int]]:
        with self._turn:
            return set(self.started)

    def forget(self, job: str, epoch: int) -> None:
        with self._turn:
            self._ended.pop((job, epoch), None)

    def wait(self, timeout: float) -> None:
        self._bell.wait(timeout)
        self._bell.clear()

    def ring(self) -> None:
        self._bell.set()

    def logs(self, job: str, epoch: int) -> list[Path]:
        launch = self.started.get((job, epoch))
        return [] if launch is None else [self.file(job, epoch, n) for n in range(len(launch.shares))]

    def reports(self, job: str, epoch: int, offset: int) -> tuple[list[dict[str, object]], int]:
        found = self.said.get((job, epoch), [])
        return found[offset:], len(found)


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Live:
    """A plane that answers, and tokens for it."""

    plane: Plane
    engine: PretendEngine
    port: int
    folder: Path
    app: FastAPI
    tokens: dict[str, str] = field(default_factory=dict)  # by user: admin, ann (red), bob (blue), ...
    ids: dict[str, str] = field(default_factory=dict)

    def ask(
        self,
        method: str,
        path: str,
        user: str | None = "admin",
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        sent = dict(headers or {})
        if user is not None:
            sent["Authorization"] = f"Bearer {self.tokens[user]}"
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path if path.startswith("/") else f"{ROOT}/{path}", data, sent)
            reply = connection.getresponse()
            answer = Answer(reply.status, reply.headers, reply.read().decode())
        finally:
            connection.close()
        check_shape(self.app, method, path, answer)
        return answer

    def get(self, path: str, user: str | None = "admin") -> Any:
        answer = self.ask("GET", path, user)
        assert answer.status == 200, answer
        return answer.json

    def submit(self, user: str = "ann", /, **request: object) -> str:
        answer = self.ask("POST", "jobs", user, {"run": "true", **request})
        assert answer.status == 201, answer
        return str(answer.json["id"])

    def until(self, job: str, *states: str) -> Any:
        shown = eventually(lambda: (found := self.get(f"jobs/{job}"))["state"] in states and found)
        if shown["state"] == "running":  # on record first, then done
            eventually(lambda: (job, shown["attempt"]) in self.engine.known())
            return self.get(f"jobs/{job}")
        return shown

    @contextmanager
    def stream(
        self, path: str, user: str = "ann", last: str | None = None
    ) -> Iterator[Iterator[tuple[str, str, str]]]:
        """Events as (kind, data, id)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        headers = {"Authorization": f"Bearer {self.tokens[user]}"}
        connection.request(
            "GET", f"{ROOT}/{path}", headers=headers | ({"Last-Event-ID": last} if last else {})
        )
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        try:
            yield events_of(reply)
        finally:
            reply.close()
            connection.close()


def check_shape(app: FastAPI, method: str, path: str, answer: Answer) -> None:
    """Every answer that a test gets has exactly the fields and types that its response model declares."""
    if answer.status >= 300 or answer.headers["Content-Type"] != "application/json":
        return
    at = "/" + path.removeprefix(ROOT).lstrip("/").partition("?")[0]
    scope = {"type": "http", "method": method, "path": at, "root_path": ""}
    routers = [getattr(included, "original_router", None) for included in app.routes]
    routes = [route for router in routers if router is not None for route in router.routes]
    (route,) = (one for one in routes if isinstance(one, APIRoute) and one.matches(scope)[0] is Match.FULL)
    if route.operation_id != "get_openapi":
        assert route.response_model is not None, f"{method} {path} has no response model"
        adapter_of(route.response_model).validate_json(answer.text, strict=True)


@cache
def adapter_of(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def events_of(reply: http.client.HTTPResponse) -> Iterator[tuple[str, str, str]]:
    kind, data, id = "message", list[str](), ""
    for raw in reply:
        line = raw.decode().rstrip("\n")
        if not line:
            if data:
                yield kind, "\n".join(data), id
            kind, data = "message", []
        elif line.startswith("data: "):
            data.append(line[6:])
        elif line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("id: "):
            id = line[4:]


def eventually(what: Callable[[], Any]) -> Any:
    until = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)
    return found


@contextmanager
def living(folder: Path, settings: Settings, virtual: str = "2x4:A100,1x2:V100") -> Iterator[Live]:
    folder.mkdir(exist_ok=True)
    found = discover(virtual)
    store = Store(url_of(None, folder))
    store.migrate()
    engine = PretendEngine(folder)
    first = first_token(store)
    assert first is not None
    plane = Plane(
        PlaneSettings(
            folder, found.cluster, found.devices, NamedPolicy("priority", {}).make(), url="http://127.0.0.1:1"
        ),
        store,
        engine,
        FileElection(folder / "plane.lock", store),
    )
    plane.start()
    app = make_app(plane, settings)
    server = make_server(app, port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        live = Live(plane, engine, port, folder, app, {"admin": first})
        people = {
            "ann": ("red", "user"),
            "abe": ("red", "user"),
            "eve": ("red", "viewer"),
            "bob": ("blue", "user"),
            "ops": ("", "viewer"),
        }
        for user, (tenant, role) in people.items():
            body = {"name": user, "tenant": tenant, "user": user, "role": role}
            made = live.ask("POST", "tokens", "admin", body)
            assert made.status == 201, made
            live.tokens[user], live.ids[user] = made.json["token"], made.json["id"]
        yield live
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
        plane.close()
        store.close()


FAST = Settings(rate=1e6, burst=1_000_000, bad_rate=1e6, bad_burst=1_000_000)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with living(tmp_path_factory.mktemp("plane"), FAST) as made:
        yield made


@pytest.fixture(autouse=True)
def _tidy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that share a plane leave it empty."""
    yield
    for name in {"live", "short"} & set(request.fixturenames):
        made: Live = request.getfixturevalue(name)

        def empty(made: Live = made) -> bool:
            ids = [job["id"] for job in made.get("jobs?active=true&limit=200")["items"]]
            if ids:
                assert made.ask("POST", "jobs/cancel", "admin", {"ids": ids}).status == 200
            return not ids

        eventually(empty)


def gpus(count: int, **more: object) -> dict[str, object]:
    return {"resources": {"gpus": count}, **more}


# --- jobs -------------------------------------------------------------------------------------------


def test_a_job_from_submission_to_its_end(live: Live) -> None:
    job = live.submit(name="fit", model="bert", **gpus(2))
    shown = live.until(job, "running")
    assert (shown["name"], shown["tenant"], shown["user"], shown["letter"]) == ("fit", "red", "ann", "R")
    assert shown["gpus"] == 2
    assert len(shown["placement"][0]["devices"]) == 2
    assert shown["attempt"] == 1
    assert shown["output"] == str(live.engine.file(job, 1))
    live.engine.end(job, code=3)
    over = live.until(job, "failed")
    assert (over["exit_code"], over["cause"], over["detail"]) == (3, "exited", "exit 3")
    assert over["ended_at"] >= over["started_at"] >= over["submitted_at"]
    attempts = live.get(f"jobs/{job}/attempts")["items"]
    assert [(a["attempt"], a["exit_code"], a["gpu_types"]) for a in attempts] == [(1, 3, ["A100"])]
    assert job in [item["id"] for item in live.get("history?user=ann")["items"]]
    assert live.get(f"jobs/{job}/why")["sentence"] == f"{job} is over: failed: exit 3"


def test_an_array_is_one_answer_and_many_jobs(live: Live) -> None:
    array = live.submit(array="0-24%2", **gpus(1))
    eventually(lambda: live.get(f"jobs/{array}")["states"].get("running") == 2)
    summary = live.get(f"arrays/{array}", "eve")
    assert (summary["count"], summary["states"]) == (25, {"held": 23, "running": 2})
    assert len(live.get(f"jobs?array={array}", "eve")["items"]) == 25
    folded = live.get(f"jobs?array={array}&fold=true", "eve")["items"]
    assert [(one["array"]["id"], one["members"]["count"]) for one in folded] == [(array, 25)]
    assert folded[0]["members"]["states"] == summary["states"]
    some = live.ask("POST", f"jobs/{array}/cancel?tasks=20-24", "ann").json
    assert (some["acted"], some["states"]["cancelled"]) == (5, 5)
    one = live.ask("POST", f"jobs/{array}_7/hold", "ann").json
    assert (one["state"], one["reason"], one["array"]) == ("held", "JobHeldUser", {"id": array, "index": 7})
    assert live.ask("POST", f"jobs/{array}/cancel?tasks=99", "ann").status == 404
    assert live.ask("POST", f"jobs/{array}/cancel?tasks=x", "ann").status == 422
    assert live.ask("GET", f"jobs/{array}/logs", "ann").status == 409
    assert live.ask("POST", "jobs/cancel", "ann", {"ids": [array, "nosuch"]}).json["unknown"] == ["nosuch"]


def test_verbs_say_when_they_make_no_sense(live: Live) -> None:
    job = live.submit(hold=True)
    assert live.ask("POST", f"jobs/{job}/requeue", "ann").status == 409
    assert live.ask("POST", f"jobs/{job}/priority", "ann", {"priority": "high"}).json["priority"] == 100
    assert live.ask("POST", f"jobs/{job}/priority", "ann", {"priority": "highest"}).status == 422
    assert live.ask("POST", f"jobs/{job}/release", "ann").status == 200
    assert live.ask("POST", f"jobs/{job}/cancel", "abe").status == 200  # a team shares its queue
    live.until(job, "cancelled")
    assert live.ask("POST", f"jobs/{job}/cancel", "ann").json["state"] == "cancelled"
    assert live.ask("POST", f"jobs/{job}/hold", "ann").status == 409


def test_cancel_mine_leaves_what_is_not(live: Live) -> None:
    ann, abe, bob = live.submit("ann"), live.submit("abe"), live.submit("bob")
    answer = live.ask("POST", "jobs/cancel", "ann", {"mine": True}).json
    assert answer == {"count": 1, "cancelled": [ann], "already_over": [], "unknown": []}
    live.until(ann, "cancelled")
    assert live.get(f"jobs/{abe}")["state"] == live.get(f"jobs/{bob}")["state"] == "running"


def test_ones_own_jobs_are_ones_own_in_every_tenant(live: Live) -> None:
    """An admin may submit for several tenants; all other tokens see one tenant only."""
    here, there = live.submit("admin"), live.submit("admin", queue="red")
    ann = live.submit("ann")
    listed = live.get("jobs?mine=true&active=true", "admin")["items"]
    assert {job["id"] for job in listed} == {here, there}
    assert [job["id"] for job in live.get("jobs?mine=true&active=true&tenant=red", "admin")["items"]] == [
        there
    ]
    answer = live.ask("POST", "jobs/cancel", "admin", {"mine": True}).json
    assert sorted(answer["cancelled"]) == sorted([here, there])
    live.until(there, "cancelled")
    assert live.get(f"jobs/{ann}")["state"] == "running"
    ended = live.get("history?mine=true", "admin")["items"]
    assert {here, there} <= {job["id"] for job in ended}
    refused = live.ask("GET", "jobs?mine=true&user=ann", "admin")
    assert (refused.status, refused.json["errors"][0]["pointer"]) == (422, "query/mine")


def test_a_submission_that_is_sent_twice_is_taken_once(live: Live) -> None:
    body = {"run": "true", "name": "once", "hold": True}
    key = {"Idempotency-Key": "a-key-of-ann"}
    answers = [live.ask("POST", "jobs", "ann", body, key) for _ in range(3)]
    assert [a.status for a in answers] == [201] * 3
    assert len({a.text for a in answers}) == 1
    assert len(live.get("jobs?name=once&active=true")["items"]) == 1
    other = live.ask("POST", "jobs", "ann", {**body, "name": "another"}, key)
    assert (other.status, other.json["type"]) == (422, "/problems/invalid")
    assert "key" in other.json["detail"]
    assert (
        live.ask("POST", "jobs", "abe", body, key).json["id"] != answers[0].json["id"]
    )  # keys are one's own
    assert live.ask("POST", "jobs", "ann", body, {"Idempotency-Key": "x" * 256}).status == 422


def test_what_never_fits_is_refused_with_the_reason(live: Live) -> None:
    refused = live.ask("POST", "jobs", "ann", {"run": "true", **gpus(9)})
    assert (refused.status, refused.json["type"]) == (422, "/problems/never-fits")
    assert "4" in refused.json["reason"]
    assert live.ask("POST", "plan", "ann", {"run": "true", **gpus(9)}).json["type"] == "/problems/never-fits"


def test_plan_and_why_say_when(live: Live) -> None:
    planned = live.ask("POST", "plan", "ann", {"run": "true", **gpus(4), "time": "1h"}).json
    assert planned["fits"]
    assert planned["placement"][0]["gpus"] == 4
    assert planned["starts_at"]["likely"]
    holders = [live.submit(time="1h", **gpus(4)) for _ in range(2)]
    waiting = live.submit(**gpus(4))
    why = live.get(f"jobs/{waiting}/why", "eve")
    assert why["state"] == "pending"
    assert {holder["job"] for holder in why["holders"]} == set(holders)
    assert why["starts_at"]["likely"] > why["starts_at"]["low"] or why["starts_at"]["likely"]
    assert why["ahead"] == {"own": 0, "others": False}


def test_pages_neither_skip_nor_repeat_while_jobs_arrive(live: Live) -> None:
    array = live.submit(array="0-39", hold=True, name="paged")
    first = {f"{array}_{i}" for i in range(40)}
    seen: list[str] = []
    cursor = ""
    while True:
        page = live.get(f"jobs?name=paged&limit=7{cursor}", "ann")
        seen += [job["id"] for job in page["items"]]
        live.submit(name="paged", hold=True)
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert len(seen) == 40
    assert set(seen) == first
    assert live.ask("GET", "jobs?cursor=bm90aGluZw", "ann").status == 422
    assert live.get(f"jobs{cursor.replace('&', '?')}", "bob")["items"] == []  # another tenant's


def test_reports_are_shown_though_a_loss_is_no_number(live: Live) -> None:
    job = live.submit(**gpus(1))
    live.until(job, "running")
    live.engine.said[job, 1] = [{"step": step, "loss": [float("nan"), 1e400]} for step in range(30)]
    items = live.get(f"jobs/{job}/reports?limit=2", "eve")["items"]
    assert items == [{"step": 28, "loss": [None, None]}, {"step": 29, "loss": [None, None]}]
    assert len(live.get(f"jobs/{job}/reports")["items"]) == 20
    every, spread = (
        live.get(f"jobs/{job}/reports?{how}")["items"] for how in ("limit=200", "limit=5&spread=true")
    )
    assert spread[0] == every[0], "from the first"
    assert spread[-1] == every[-1], "to the last"
    assert 3 <= len(spread) <= 5


def test_answers_stay_small_whatever_the_jobs_are_called(live: Live) -> None:
    for _ in range(3):
        live.submit(array="0-99", hold=True, name="ü" * 200, model="\U0001f9e0" * 200, dependency="singleton")
    answer = live.ask("GET", "jobs?limit=200", "ann")
    assert len(answer.json["items"]) > 150  # or as many as fit
    assert answer.json["next"]
    assert len(answer.text.encode()) < 200_000
    assert answer.json["items"][0]["name"].endswith("…")
    assert live.get(f"jobs/{answer.json['items'][0]['id']}")["name"] == "ü" * 200


# --- roles and tenants --------------------------------------------------------------------------------

ALL = ("admin", "ann", "eve", "ops")  # ann: user, eve: viewer, ops: viewer without a tenant
USERS = ("admin", "ann")
ADMINS = ("admin",)
BODY: dict[str, object] = {"run": "true"}


class Case(NamedTuple):
    """One operation: how to call it, and the users that may. {job} and {array} are of tenant red."""

    may: tuple[str, ...]
    path: str
    body: object = None
    about_jobs: bool = False  # of red: for blue there is none


MATRIX = {
    "submit_job": Case(USERS, "jobs", {**BODY, "hold": True}),
    "list_jobs": Case(ALL, "jobs"),
    "cancel_jobs": Case(USERS, "jobs/cancel", {"mine": True}),
    "get_job": Case(ALL, "jobs/{job}", about_jobs=True),
    "get_array": Case(ALL, "arrays/{array}", about_jobs=True),
    "explain_job": Case(ALL, "jobs/{job}/why", about_jobs=True),
    "plan_job": Case(USERS, "plan", BODY),
    "list_attempts": Case(ALL, "jobs/{job}/attempts", about_jobs=True),
    "list_reports": Case(ALL, "jobs/{job}/reports", about_jobs=True),
    "cancel_job": Case(USERS, "jobs/{job}/cancel", about_jobs=True),
    "hold_job": Case(USERS, "jobs/{job}/hold", about_jobs=True),
    "release_job": Case(USERS, "jobs/{job}/release", about_jobs=True),
    "requeue_job": Case(USERS, "jobs/{job}/requeue", about_jobs=True),
    "set_job_priority": Case(USERS, "jobs/{job}/priority", {"priority": 1}, about_jobs=True),
    "read_logs": Case(ALL, "jobs/{job}/logs", about_jobs=True),
    "follow_logs": Case(ALL, "jobs/{job}/logs/stream?attempt=1", about_jobs=True),
    "watch": Case(ALL, "watch"),
    "watch_cluster": Case(ALL, "cluster/stream"),
    "list_nodes": Case(ALL, "nodes"),
    "get_node": Case(ALL, "nodes/{node}"),
    "drain_node": Case(ADMINS, "nodes/{node}/drain", {"reason": "fan"}),
    "resume_node": Case(ADMINS, "nodes/{node}/resume"),
    "list_gpus": Case(ALL, "gpus"),
    "list_shares": Case(ALL, "shares"),
    "set_tenant": Case(ADMINS, "tenants/green", {"weight": 2.0}),
    "delete_tenant": Case(ADMINS, "tenants/green"),
    "list_limits": Case(ALL, "limits"),
    "set_limits": Case(ADMINS, "limits/user/zoe", {"priority": 5}),
    "drop_limits": Case(ADMINS, "limits/user/zoe"),
    "list_history": Case(ALL, "history"),
    "sum_history": Case(ALL, "history/total"),
    "report_usage": Case(ALL, "report?by=user"),
    "get_usage": Case(ALL, "usage?points=10"),
    "get_prices": Case(ALL, "prices"),
    "set_prices": Case(ADMINS, "prices", {"per_gpu_hour": {"A100": 2.5}}),
    "list_speeds": Case(ALL, "speeds"),
    "get_policy": Case(ALL, "policy"),
    "list_policies": Case(ALL, "policies"),
    "list_traces": Case(ALL, "traces"),
    "lab_simulate": Case(
        ALL, "lab/simulate", {"cluster": "1x2", "jobs": [{"id": "a", "duration": 9}], "policy": "fifo"}
    ),
    "lab_compare": Case(
        ALL, "lab/compare", {"cluster": "1x2", "jobs": [{"id": "a", "duration": 9}], "policy": "fifo"}
    ),
    "lab_throughput": Case(
        ALL,
        "lab/throughput",
        {"types": [{"name": "K80", "count": 1}], "jobs": [{"name": "a", "speeds": [1]}]},
    ),
    "lab_frontier": Case(
        ALL, "lab/frontier", {"types": [{"name": "K80", "count": 1}], "jobs": [{"name": "a", "speeds": [1]}]}
    ),
    "lab_placement": Case(ALL, "lab/placement", {}),
    "lab_whatif": Case(ALL, "lab/what-if", {"policy": "fifo"}),
    "set_policy": Case(ADMINS, "policy", {"name": "priority", "options": {}}),
    "create_token": Case(ADMINS, "tokens", {"name": "x", "tenant": "red"}),
    "list_tokens": Case(ADMINS, "tokens"),
    "revoke_token": Case(ADMINS, "tokens/nosuchtoken"),
    "get_me": Case(ALL, "me"),
    "read_journal": Case(ADMINS, "journal"),
    "get_health": Case((*ALL, "public"), "health"),
    "get_ready": Case((*ALL, "public"), "ready"),
    "get_version": Case((*ALL, "public"), "version"),
    "get_metrics": Case(("admin", "ops"), "metrics"),
    "get_openapi": Case((*ALL, "public"), "openapi.json"),
}
FINE = (200, 201, 204, 404, 409)  # allowed; for whom there is nothing to act on, 404 or 409 says so


def operations(live: Live) -> dict[str, tuple[str, str]]:
    paths = live.get("openapi.json", None)["paths"]
    return {
        operation["operationId"]: (method.upper(), path)
        for path, methods in paths.items()
        for method, operation in methods.items()
    }


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Like `live`, but streams end by themselves at once."""
    settings = Settings(
        rate=1e6,
        burst=1_000_000,
        bad_rate=1e6,
        bad_burst=1_000_000,
        longest_stream=0.3,
        streams_per_token=100,
    )
    with living(tmp_path_factory.mktemp("plane"), settings) as made:
        yield made


def test_an_answer_of_another_shape_is_noticed(short: Live) -> None:
    short.submit("ann", **gpus(1))
    answer = short.ask("GET", "jobs?limit=1")
    (job,) = answer.json["items"]
    lacking = {name: value for name, value in job.items() if name != "restarts"}
    for wrong in (lacking, {**job, "restart": 0}, {**job, "restarts": "0"}, {**job, "ended_at": "soon"}):
        text = json.dumps({"items": [wrong], "next": None})
        with pytest.raises(ValidationError):
            check_shape(short.app, "GET", "jobs?limit=1", answer._replace(text=text))


def test_every_operation_is_in_the_matrix(short: Live) -> None:
    assert set(operations(short)) == set(MATRIX)


@pytest.mark.parametrize("name", MATRIX)
def test_roles_call_by_call(short: Live, name: str) -> None:
    method, _ = operations(short)[name]
    case = MATRIX[name]
    job = short.submit("ann", **gpus(1))
    short.until(job, "running")
    array = short.submit("ann", array="0-1", hold=True)
    path = case.path.format(job=job, array=array, node=short.get("nodes")["items"][0]["name"])
    assert short.ask(method, path, None, case.body).status == (200 if "public" in case.may else 401)
    for user in ("ops", "eve", "ann", "admin"):
        answer = short.ask(method, path, user, case.body)
        if user not in case.may:
            assert (answer.status, answer.headers["Content-Type"]) == (403, "application/problem+json"), user
        elif case.about_jobs and user == "ops":
            assert answer.status == 404
        else:
            assert answer.status in FINE, (user, answer)
            assert answer.status != 404 or name in ("delete_tenant", "drop_limits", "revoke_token")
    assert len(answer.text) < 200_000


@pytest.mark.parametrize("name", [name for name, case in MATRIX.items() if case.about_jobs])
def test_a_job_of_another_tenant_is_like_none(short: Live, name: str) -> None:
    method, _ = operations(short)[name]
    case = MATRIX[name]
    job, array = short.submit("ann", **gpus(1)), short.submit("ann", array="0-1", hold=True)
    before = short.get(f"jobs/{job}")
    foreign = short.ask(method, case.path.format(job=job, array=array), "bob", case.body)
    missing = short.ask(method, case.path.format(job="zzzzzz", array="zzzzzz"), "bob", case.body)
    assert foreign.status == missing.status == 404
    assert "zzzzzz" in missing.json["detail"] or case.path.startswith("watch")
    assert foreign.text.replace(job, "zzzzzz").replace(array, "zzzzzz") == missing.text
    assert sorted(foreign.headers.keys()) == sorted(missing.headers.keys())
    after = short.get(f"jobs/{job}")
    assert (after["state"], after["priority"]) in ((before["state"], 0), ("running", 0))


def test_nothing_that_blue_can_ask_names_a_job_of_red(short: Live) -> None:
    names = []
    for user in ("ann", "bob"):
        busy = [
            short.submit(user, name=f"{user}-secret", model=f"{user}-model", time="1h", **gpus(2))
            for _ in range(4)
        ]
        array = short.submit(user, name=f"{user}-secret", array="0-3", hold=True)
        over = short.submit(user, name=f"{user}-secret", **gpus(0))
        short.until(over, "running")
        short.engine.said[over, 1] = [{"step": 1, "steps_per_second": 5.0}]
        short.engine.end(over)
        short.until(over, "completed")
        if user == "ann":
            names = [*busy, array, over, "ann-secret", "ann-model", "red", "ann"]
        else:
            waiting = short.submit(user, time="1h", **gpus(4))
    foreign = names[0]
    asked = [
        "jobs", "jobs?tenant=red", "jobs?user=ann", "jobs?name=ann-secret", f"jobs?array={names[4]}",
        "history", "history?tenant=red", "nodes", "gpus", "shares", "report?by=tenant", "report?by=user",
        "report?by=day", "report?by=type", "report?by=month", "report?by=model", "report?format=csv", "usage",
        "usage?by=type", "prices", "me", "cluster/stream", "speeds", "policy", f"jobs/{waiting}/why",
        f"watch?job={foreign}", "limits",
        "watch", "health", "version", *(f"nodes/{node['name']}" for node in short.get("nodes")["items"]),
    ]  # fmt: skip
    for path in asked:
        answer = short.ask("GET", path, "bob")
        assert answer.status == 200
        words = set(answer.text.replace('"', " ").replace(":", " ").replace(",", " ").split())
        assert not words & set(names), path
    for body in ({"run": "x", **gpus(4), "priority": 100}, {"run": "x", **gpus(2)}):
        planned = short.ask("POST", "plan", "bob", body)
        assert planned.status == 200
        assert not any(name in planned.text for name in names[:5])
    why = short.get(f"jobs/{waiting}/why", "bob")
    others = [holder for holder in why["holders"] if holder["job"] is None]
    assert others == [{"job": None, "tenant": None, "gpus": 8.0, "ends_at": None}] or others[0]["gpus"] > 0
    told = [
        short.ask("POST", "jobs", "bob", {"run": "x", "dependency": f"afterok:{job}"})
        for job in (foreign, "zzzzzz")
    ]
    assert [answer.status for answer in told] == [422, 422]
    assert told[0].text.replace(foreign, "zzzzzz") == told[1].text
    for queue in ("red", "nosuch"):
        refused = short.ask("POST", "jobs", "bob", {"run": "x", "queue": queue})
        assert (refused.status, refused.json["type"]) == (403, "/problems/role")
    assert short.ask("POST", "jobs/cancel", "bob", {"ids": [foreign]}).json == {
        "count": 0,
        "cancelled": [],
        "already_over": [],
        "unknown": [foreign],
    }
    own = {share["tenant"] for share in short.get("shares", "bob")["items"]}
    assert own == {"blue"}
    assert {share["tenant"] for share in short.get("shares", "admin")["items"]} >= {"red", "blue"}


# --- tokens -------------------------------------------------------------------------------------------


def test_tokens_are_made_once_and_revoked_at_once(live: Live) -> None:
    made = live.ask("POST", "tokens", "admin", {"name": "ci", "tenant": "red", "role": "viewer"}).json
    live.tokens["ci"] = made["token"]
    assert made["token"].startswith("dt_")
    assert live.get("jobs", "ci")["items"] is not None
    with live.stream("watch", "ci") as events:
        assert next(events)[0] == "ready"
        assert live.ask("DELETE", f"tokens/{made['id']}").status == 204
        assert list(events) == []  # the stream ends too
    assert live.ask("GET", "jobs", "ci").status == 401
    listed = [t for t in live.get("tokens")["items"] if t["id"] == made["id"]]
    assert listed[0]["revoked_at"]
    assert set(listed[0]) == {
        "id",
        "name",
        "tenant",
        "user",
        "role",
        "created_at",
        "expires_at",
        "revoked_at",
    }


def test_the_last_admin_cannot_go(live: Live) -> None:
    admins = [t for t in live.get("tokens")["items"] if t["role"] == "admin" and not t["revoked_at"]]
    assert len(admins) == 1
    refused = live.ask("DELETE", f"tokens/{admins[0]['id']}")
    assert (refused.status, refused.json["type"]) == (409, "/problems/conflict")
    other = live.ask("POST", "tokens", "admin", {"name": "2", "tenant": "default", "role": "admin"}).json
    assert live.ask("DELETE", f"tokens/{other['id']}").status == 204


def test_tokens_come_in_the_header_and_stand_nowhere(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        token = live.tokens["ann"]
        assert live.ask("GET", f"jobs?token={token}&access_token={token}", None).status == 401
        assert live.ask("GET", "jobs", None, headers={"Cookie": f"token={token}"}).status == 401
        assert live.ask("GET", "jobs", None, headers={"Authorization": f"Basic {token}"}).status == 401
        assert live.ask("GET", "jobs", "ann").status == 200
    secrets = [token.removeprefix("dt_") for token in live.tokens.values()]
    kept = b"".join(file.read_bytes() for file in live.folder.iterdir() if file.is_file())
    assert len(kept) > 10_000
    assert not any(secret.encode() in kept for secret in secrets)
    assert not any(secret in caplog.text for secret in secrets)


def test_an_expired_token_is_none(live: Live) -> None:
    made = live.ask("POST", "tokens", "admin", {"tenant": "red", "expires_in": 0.2}).json
    live.tokens["brief"] = made["token"]
    eventually(lambda: live.ask("GET", "jobs", "brief").status == 401)


# --- problems and limits --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("GET", "/nowhere", None, 404, "not-found"),
        ("GET", "/api/v1/", None, 404, "not-found"),
        ("DELETE", "jobs", None, 405, "method"),
        ("POST", "jobs", b"{not json", 422, "invalid"),
        ("POST", "jobs", b"", 422, "invalid"),
        ("POST", "jobs", b'{"run": NaN}', 422, "invalid"),
        ("POST", "jobs", b"[" * 100_000, 422, "invalid"),
        ("POST", "jobs", b"\xff\xfe\x00", 422, "invalid"),
        ("POST", "jobs", b'"\xed\xa0\x80"', 422, "invalid"),
        ("POST", "jobs", b"9" * 10_000, 422, "invalid"),
        ("POST", "jobs", b"[]", 422, "invalid"),
        ("POST", "jobs", {"run": "true", "gpu": 1, "time": "soon"}, 422, "invalid"),
        ("POST", "jobs", b'{"run":"' + b"x" * 1_100_000 + b'"}', 413, "too-large"),
        ("GET", "jobs?limit=0", None, 422, "invalid"),
        ("GET", "jobs?state=asleep", None, 422, "invalid"),
        ("GET", "jobs?since=yesterday", None, 422, "invalid"),
        ("GET", "jobs?name=%00", None, 422, "invalid"),
        ("GET", "jobs/%00", None, 404, "not-found"),
        ("GET", "jobs/..%2f..%2fetc", None, 404, "not-found"),
        ("GET", "jobs/k3v9q2'--", None, 404, "not-found"),
        ("PUT", "policy", {"name": "nosuch"}, 422, "invalid"),
        ("PUT", "policy", {"name": "priority", "options": {"nosuch": 1}}, 422, "invalid"),
        ("PUT", "tenants/green", {"weight": 0}, 422, "invalid"),
        ("PUT", "tenants/green", {"parent": "nosuch"}, 422, "invalid"),
        ("PUT", "tenants/a%00b", {}, 422, "invalid"),
        ("POST", "tokens", {"role": "user"}, 422, "invalid"),
        ("GET", "nodes/nosuch", None, 404, "not-found"),
        ("POST", "nodes/nosuch/drain", {}, 404, "not-found"),
    ],
)  # fmt: skip
def test_problems_have_one_shape(
    live: Live, method: str, path: str, body: object, status: int, kind: str
) -> None:
    answer = live.ask(method, path, "admin", body)
    assert answer.status == status, answer
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    document = answer.json
    assert document["type"] == f"/problems/{kind}"
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    if kind == "invalid":
        assert all(set(error) == {"pointer", "detail"} for error in document["errors"])
        assert document["errors"]
    if status == 405:
        assert set(answer.headers["Allow"].split(", ")) >= {"GET"} or answer.headers["Allow"]


def test_wrong_fields_are_named_by_pointer(live: Live) -> None:
    body = {"run": "true", "gpu": 1, "resources": {"gpus": -1}}
    errors = live.ask("POST", "jobs", "ann", body).json["errors"]
    assert {error["pointer"] for error in errors} == {"/gpu", "/resources/gpus"}


def test_a_form_is_no_json(live: Live) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = live.ask("POST", "jobs", "ann", b"run=true", headers)
    assert (answer.status, answer.json["type"]) == (415, "/problems/media-type")


def test_a_body_without_length_is_limited_too(live: Live) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=PATIENCE)
    connection.putrequest("POST", f"{ROOT}/jobs")
    connection.putheader("Authorization", f"Bearer {live.tokens['ann']}")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    for _ in range(40):
        connection.send(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
    connection.send(b"0\r\n\r\n")
    assert connection.getresponse().status == 413
    connection.close()


def test_a_bug_shows_nothing_of_itself(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("secret inside")

    monkeypatch.setattr(questions, "nodes", broken)
    answer = live.ask("GET", "nodes", "ann")
    assert (answer.status, answer.json["type"]) == (500, "/problems/internal")
    assert "secret" not in answer.text
    assert "secret inside" in caplog.text


def test_another_host_is_refused(live: Live) -> None:
    for host, status in (
        ("evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
        ("localhost", 200),
        ("[::1]:8470", 200),
        ("127.0.0.1:9", 200),
    ):
        assert live.ask("GET", "health", None, headers={"Host": host}).status == status, host


def test_rates_are_limited(tmp_path: Path) -> None:
    settings = Settings(rate=0.01, burst=8, bad_rate=0.01, bad_burst=3, body_timeout=0.5)
    with living(tmp_path / "plane", settings) as live:
        statuses = [live.ask("GET", "policy", "ann").status for _ in range(10)]
        assert statuses == [200] * 8 + [429] * 2
        answer = live.ask("GET", "policy", "ann")
        assert int(answer.headers["Retry-After"]) >= 1
        assert live.ask("GET", "policy", "abe").status == 200  # another token
        wrong = [live.ask("GET", "policy", None).status for _ in range(5)]
        assert wrong == [401] * 3 + [429] * 2
        assert (
            live.ask("GET", "policy", "abe").status == 200
        )  # callers with a token are not delayed by callers without
        connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=PATIENCE)
        connection.putrequest("POST", f"{ROOT}/jobs")
        connection.putheader("Authorization", f"Bearer {live.tokens['bob']}")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b"{")
        assert connection.getresponse().status == 408
        connection.close()


def test_a_plane_that_does_not_lead_names_who_does(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.plane, "leads", False)
    answer = live.ask("GET", "jobs", "ann")
    monkeypatch.undo()
    assert (answer.status, answer.json["leader"]) == (503, "http://127.0.0.1:1")
    assert answer.headers["Retry-After"]


# --- logs and streams -----------------------------------------------------------------------------------


def test_logs_by_offset_never_cut_a_character(live: Live) -> None:
    job = live.submit(**gpus(1))
    live.until(job, "running")
    data = "grün €42 \U0001f600\n".encode() * 300 + b"bad \xff byte\n" + "half €".encode()[:-1]
    live.engine.file(job, 1).write_bytes(data)
    offset, text = 0, ""
    for _ in range(10_000):
        answer = live.ask("GET", f"jobs/{job}/logs?offset={offset}&limit=33", "eve")
        assert answer.headers["X-Size"] == str(len(data))
        text += answer.text
        if int(answer.headers["X-Next-Offset"]) == offset:
            break
        offset = int(answer.headers["X-Next-Offset"])
    assert text == data[:-2].decode(errors="replace")  # the half character may still be finished
    live.engine.end(job)
    live.until(job, "completed")
    assert live.ask("GET", f"jobs/{job}/logs?offset={offset}", "eve").text == "�"
    assert live.ask("GET", f"jobs/{job}/logs?tail=2", "eve").text == "bad � byte\nhalf �"
    assert live.ask("GET", f"jobs/{job}/logs?offset=999999", "eve").text == ""
    assert live.ask("GET", f"jobs/{job}/logs?attempt=2", "eve").status == 404


def test_logs_of_several_nodes(live: Live) -> None:
    job = live.submit(nodes=2, **gpus(4))
    placement = live.until(job, "running")["placement"]
    for node in range(2):
        live.engine.file(job, 1, node).write_text(f"of {node}\n")
    assert live.ask("GET", f"jobs/{job}/logs", "ann").text == "of 0\n"
    assert live.ask("GET", f"jobs/{job}/logs?node=1", "ann").text == "of 1\n"
    assert live.ask("GET", f"jobs/{job}/logs?node={placement[1]['node']}", "ann").text == "of 1\n"
    assert live.ask("GET", f"jobs/{job}/logs?node=2", "ann").status == 422
    assert live.ask("GET", f"jobs/{job}/logs?node=nosuch", "ann").status == 404


def test_a_log_that_is_a_link_or_a_pipe_is_empty(live: Live) -> None:
    import os

    job = live.submit(**gpus(1))
    live.until(job, "running")
    file = live.engine.file(job, 1)
    file.unlink()
    file.symlink_to(live.folder / "plane.db")
    assert live.ask("GET", f"jobs/{job}/logs", "ann").text == ""
    file.unlink()
    os.mkfifo(file)
    assert live.ask("GET", f"jobs/{job}/logs", "ann").text == ""


def test_following_a_log_over_attempts(live: Live) -> None:
    job = live.submit(**gpus(1))
    live.until(job, "running")
    with live.stream(f"jobs/{job}/logs/stream") as events:
        assert next(events)[:2] == ("attempt", '{"attempt": 1}')
        with live.engine.file(job, 1).open("ab") as file:
            file.write(b"one\ntwo\r\n10%\r20%\rhal")
            file.flush()
            got = ""
            while "20%" not in got:
                kind, data, id = next(events)
                assert kind == "message"
                got += data + "\n"
            assert got == "one\ntwo\n10%\n20%\n"
            file.write(b"f\nend")
        assert live.ask("POST", f"jobs/{job}/requeue", "ann").status == 200
        assert next(events)[1] in ("half", "half\nend")
        rest = []
        for kind, data, _ in events:
            rest.append((kind, data))
            if kind == "attempt":
                break
        assert rest[-1] == ("attempt", '{"attempt": 2}')
        live.until(job, "running")
        live.engine.file(job, 2).write_text("again\n")
        assert next(events)[1] == "again"
        live.engine.end(job, 2)
        assert next(events)[:2] == ("end", '{"state": "completed", "exit_code": 0}')
        assert list(events) == []
    with live.stream(f"jobs/{job}/logs/stream", last=id) as events:  # on from where it broke off
        told = [(kind, data) for kind, data, _ in events]
    assert told[1:] == [
        ("message", "half"),
        ("message", "end"),
        ("attempt", '{"attempt": 2}'),
        ("message", "again"),
        ("end", '{"state": "completed", "exit_code": 0}'),
    ]


def test_watching_shows_ones_own_and_goes_on_where_it_was(live: Live) -> None:
    with live.stream("watch", "bob") as events:
        kind, _, id = next(events)
        assert kind == "ready"
        red, blue = live.submit("ann", **gpus(1)), live.submit("bob", **gpus(1))
        seen = []
        while ("running", blue) not in seen:
            kind, data, _ = next(events)
            assert kind == "job"
            change = json.loads(data)
            assert change["tenant"] == "blue"
            seen.append((change["state"], change["id"]))
    assert red not in {job for _, job in seen}
    with live.stream("watch", "bob", last=id) as events:
        assert next(events)[0] == "ready"
        kind, data, _ = next(events)
        assert (kind, json.loads(data)["id"]) == ("job", blue)
    with live.stream("watch", "bob", last="other.1") as events:
        assert next(events)[0] == "lost"
    with live.stream(f"watch?job={red}", "ann") as events:
        assert next(events)[0] == "ready"
        live.submit("ann", hold=True)
        live.engine.end(red)
        states = []
        while "completed" not in states:
            change = json.loads(next(events)[1])
            assert change["id"] == red
            states.append(change["state"])


def test_streams_are_counted(live: Live) -> None:
    from contextlib import ExitStack

    with ExitStack() as opened:
        for _ in range(10):
            next(opened.enter_context(live.stream("watch", "eve")))
        answer = live.ask("GET", "watch", "eve")
        assert (answer.status, answer.json["type"]) == (429, "/problems/too-many")
        next(opened.enter_context(live.stream("watch", "ann")))

    def again() -> bool:
        try:
            with live.stream("watch", "eve") as events:
                return next(events)[0] == "ready"
        except AssertionError:
            return False

    eventually(again)  # those that were closed are not counted any more


# --- the cluster --------------------------------------------------------------------------------------


def test_nodes_and_devices_show_counts_and_own_ids(live: Live) -> None:
    red = live.submit("ann", **gpus(2))
    blue = live.submit("bob", resources={"accelerators": "V100:1"}, gpu_share="50%")
    live.until(red, "running")
    live.until(blue, "running")
    for user, mine, other in (("ann", red, blue), ("bob", blue, red)):
        for path in ("nodes", "gpus"):
            text = live.ask("GET", path, user).text
            assert mine in text
            assert other not in text
        devices = live.get("gpus", user)["items"]
        assert sum(device["used"] for device in devices) == 2.5
        assert [d["state"] for d in devices].count("shared") == 1
    pages, cursor = [], ""
    while True:
        page = live.get(f"gpus?limit=3{cursor}")
        pages += [(d["node"], d["index"]) for d in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert pages == [(d["node"], d["index"]) for d in live.get("gpus")["items"]]
    assert len(pages) == 10
    name = live.get("nodes")["items"][0]["name"]
    drained = live.ask("POST", f"nodes/{name}/drain", "admin", {"reason": "new fan"}).json
    assert (drained["state"], drained["reason"]) == ("drained", "new fan")
    eventually(lambda: live.ask("POST", f"nodes/{name}/resume", "admin").json["state"] == "up")


def test_tenants_and_policies_are_set(live: Live) -> None:
    made = live.ask("PUT", "tenants/red", "admin", {"weight": 2.0, "quota": 4})
    assert (made.status, made.json["quota"]) == (200, 4)
    shares = live.get("shares", "ann")
    assert [(s["tenant"], s["quota"], s["weight"]) for s in shares["items"]] == [("red", 4, 2.0)]
    assert shares["total"]["gpus"] == 10
    assert live.ask("DELETE", "tenants/red").status == 204
    assert live.ask("DELETE", "tenants/red").status == 404
    assert live.ask("PUT", "policy", "admin", {"name": "fifo"}).json["name"] == "fifo"
    assert live.get("policy", "eve")["name"] == "fifo"
    assert live.ask("PUT", "policy", "admin", {"name": "priority"}).status == 200
    steps = live.get("journal?limit=5")
    assert steps["items"]
    assert json.loads(steps["items"][0]["line"])


def test_metrics_are_what_prometheus_reads(live: Live) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    job = live.submit("ann", **gpus(2))
    live.until(job, "running")
    for _ in range(2):
        text = live.ask("GET", "/metrics", "ops").text
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert {
        "dovetail_jobs", "dovetail_pending_reason_jobs", "dovetail_queue_wait_seconds", "dovetail_gpus",
        "dovetail_gpu_seconds", "dovetail_preemptions", "dovetail_lost_gpu_seconds",
        "dovetail_fragmentation_ratio", "dovetail_scheduler_cycle_seconds", "dovetail_eta_error_seconds",
    } <= set(found)  # fmt: skip
    running = [s for s in found["dovetail_jobs"].samples if s.labels["state"] == "running"]
    assert [(s.labels["queue"], s.value) for s in running] == [("red", 1.0)]
    taken = [s.value for s in found["dovetail_gpus"].samples if s.labels["state"] == "allocated"]
    assert sum(taken) == 2.0
    assert job not in text
    jobs = sum(s.value for s in found["dovetail_jobs"].samples)
    assert jobs == live.plane.store.next_seq() - 1


def test_the_description_is_complete(live: Live) -> None:
    described = live.get("/openapi.json", None)
    assert described["openapi"].startswith("3.1")
    for path, methods in described["paths"].items():
        for operation in methods.values():
            assert operation["operationId"].replace("_", "").isalpha()
            assert operation["summary"]
            refusals = {code for code, said in operation["responses"].items() if code >= "400"}
            assert {"422", "429", "503"} <= refusals, path
            for code in refusals:
                assert "application/problem+json" in operation["responses"][code]["content"]
    text = json.dumps(described)
    for ref in set(text.split('"$ref": "#/components/schemas/')[1:]):
        assert ref.partition('"')[0] in described["components"]["schemas"]


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", MATRIX)
def test_schemathesis_finds_no_server_error(short: Live, name: str) -> None:
    """Generated input, right and wrong: no 5xx, and nothing that the description does not say."""
    import schemathesis
    from hypothesis import HealthCheck, given
    from hypothesis import settings as hypothesis_settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [
        not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance
    ]  # fmt: skip
    method, path = operations(short)[name]
    operation = schemathesis.openapi.from_dict(short.get("openapi.json", None))[path][method]
    token = {"Authorization": f"Bearer {short.tokens['admin']}"}
    there = {"id": short.submit(**gpus(1)), "name": short.get("nodes")["items"][0]["name"]}
    turns = count()
    for mode in schemathesis.GenerationMode:

        @hypothesis_settings(searched(12), suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def one(case: Any) -> None:
            for key, value in there.items():  # half of the time there is such a thing
                if key in (case.path_parameters or {}) and next(turns) % 2:
                    case.path_parameters[key] = value
            case.call_and_validate(
                base_url=f"http://127.0.0.1:{short.port}", headers=token, checks=checks, timeout=PATIENCE
            )

        with suppress(Unsatisfiable):  # where nothing can be wrong
            one()
