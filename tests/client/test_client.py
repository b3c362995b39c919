"""The client against a plane that restarts, moves, refuses requests and drops connections."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client import fakeplane as fake
from tests.client.fakeplane import Reply, a_job, problem

from dovetail.client import connection as connection_module
from dovetail.client.client import Client, overall
from dovetail.client.connection import (
    ApiError,
    Connection,
    NoPlane,
    Refused,
    find_address,
    is_loopback,
    read_events,
    segment,
)
from dovetail.model.errors import InputError

TOKEN = "dvt_secret_of_the_test"


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DOVETAIL_URL", "DOVETAIL_TOKEN", "DOVETAIL_INSECURE", "DOVETAIL_STATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def plane() -> Iterator[Any]:
    with fake.fake_plane() as made:
        yield made


@pytest.fixture
def client(plane: Any) -> Iterator[Client]:
    with Client(plane.url, TOKEN, patience=20.0) as made:
        yield made


def wait_until(met: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not met():
        assert time.monotonic() < until
        time.sleep(0.005)


# --- where the plane is ----------------------------------------------------------------------------


def write_address(folder: Path, url: str, token: str = "from-the-folder") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "address.json").write_text(json.dumps({"url": url, "token": token, "pid": 1}))


def test_arguments_override_the_environment_and_the_environment_overrides_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoPlane, match="dovetail up"):
        find_address()
    write_address(tmp_path / "state" / "dovetail", "http://127.0.0.1:1")
    assert (find_address().url, find_address().token) == ("http://127.0.0.1:1", "from-the-folder")
    write_address(tmp_path / "other", "http://127.0.0.1:2", "other")
    monkeypatch.setenv("DOVETAIL_STATE", str(tmp_path / "other"))
    assert find_address().url == "http://127.0.0.1:2"
    monkeypatch.setenv("DOVETAIL_URL", "http://127.0.0.1:3/")
    assert find_address().url == "http://127.0.0.1:3"
    assert find_address(state=tmp_path / "other").url == "http://127.0.0.1:2"
    monkeypatch.setenv("DOVETAIL_TOKEN", "mine")
    assert find_address(state=tmp_path / "other").token == "mine"
    assert find_address("http://127.0.0.1:4", "given").token == "given"


def test_the_token_of_a_folder_is_sent_only_to_its_plane(tmp_path: Path) -> None:
    write_address(tmp_path / "state" / "dovetail", "http://127.0.0.1:1")
    assert find_address("http://127.0.0.1:1").token == "from-the-folder"
    assert find_address("http://127.0.0.1:2").token == ""
    assert find_address("http://elsewhere.example").token == ""


def test_a_loopback_address_is_local_only_if_the_state_folder_contains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not Connection("http://127.0.0.1:1", TOKEN).local  # it may be a tunnel
    folder = tmp_path / "state" / "dovetail"
    write_address(folder, "http://127.0.0.1:1")
    assert Connection("http://127.0.0.1:1", TOKEN).state == folder
    assert Connection("http://localhost:1/", TOKEN).local
    assert find_address("http://localhost:1").token == ""  # another server may listen under that name
    assert not Connection("http://127.0.0.1:2", TOKEN).local
    (folder / "address.json").write_text("{")
    assert not Connection("http://127.0.0.1:1", TOKEN).local


def test_a_named_state_folder_of_another_account_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(file: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(Path, "read_bytes", closed)
    assert not Connection("http://127.0.0.1:1", TOKEN).local
    monkeypatch.setenv("DOVETAIL_STATE", str(tmp_path))
    assert Connection("http://127.0.0.1:1", TOKEN).state == tmp_path
    assert not Connection("https://gpu.example", TOKEN).local


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8470", "ftp://a", "http://", "http://a:b:c", "http://a:1\r\nX: y"]
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(InputError if url else NoPlane):
        find_address(url, "t")


def test_an_address_with_a_password_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        find_address("http://me:hunter2@127.0.0.1", "t")
    assert "hunter2" not in str(caught.value)


def test_an_invalid_address_file_is_named(tmp_path: Path) -> None:
    write_address(tmp_path, "http://127.0.0.1:1")
    (tmp_path / "address.json").write_text("{")
    with pytest.raises(InputError, match=r"address\.json"):
        find_address(state=tmp_path)


def test_a_token_is_not_sent_unencrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="https"):
        Connection("http://192.0.2.1:8470", TOKEN)
    Connection("https://192.0.2.1:8470", TOKEN)
    Connection("http://192.0.2.1:8470")  # there is no token to protect
    monkeypatch.setenv("DOVETAIL_INSECURE", "1")
    Connection("http://192.0.2.1:8470", TOKEN)


def test_loopback() -> None:
    assert all(
        map(is_loopback, ("http://127.0.0.1:1", "http://localhost", "http://[::1]:8470", "http://127.9.9.9"))
    )
    assert not any(map(is_loopback, ("http://10.0.0.1", "http://localhost.example", "http://0.0.0.0")))


def test_the_token_is_sent_and_never_shown(plane: Any, client: Client) -> None:
    plane.on("GET", "/version", Reply({"version": "1"}))
    client.version()
    assert plane.asked[0].headers["authorization"] == f"Bearer {TOKEN}"
    shown = [repr(client), repr(client.connection), repr(find_address(plane.url, TOKEN))]
    plane.on("GET", "/policy", problem(403, "no"))
    with pytest.raises(Refused) as caught:
        client.policy()
    assert not any(TOKEN in text for text in (*shown, str(caught.value), repr(caught.value)))


def test_a_name_is_one_segment_of_a_path(plane: Any, client: Client) -> None:
    assert segment("a/b?c#d%2e") == "a%2Fb%3Fc%23d%252e"
    with pytest.raises(InputError):
        segment("..")
    with pytest.raises(Refused):
        client.node("../tokens?x=1")
    assert plane.asked[0].path == "/api/v1/nodes/..%2Ftokens%3Fx%3D1"


# --- no plane ----------------------------------------------------------------------------------


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_missing_plane_is_reported_at_once() -> None:
    client = Client(f"http://127.0.0.1:{unused_port()}", patience=600.0)
    with pytest.raises(NoPlane, match=r"no plane answers at .*; start one with dovetail up"):
        client.version()


def test_a_plane_that_restarts_on_another_port_is_found_again(tmp_path: Path) -> None:
    first = fake.FakePlane()
    first.on("GET", "/version", Reply({"version": "1"}))
    write_address(tmp_path, first.url)
    with Client(state=tmp_path, patience=60.0) as client:
        assert client.version() == {"version": "1"}
        first.close()
        with fake.fake_plane() as second:
            second.on("GET", "/version", Reply({"version": "2"}))
            later = threading.Timer(0.5, write_address, (tmp_path, second.url))
            later.start()
            assert client.version() == {"version": "2"}
            later.join()


def test_a_kept_connection_is_used_again_and_replaced_when_it_was_closed(
    plane: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "MAX_IDLE", 3600.0)
    plane.on("GET", "/version", Reply({}))
    plane.on("POST", "/tokens", Reply({"id": "t"}, 201))
    client.version()
    client.version()
    assert plane.connections == 1
    plane.hang_up()
    kept = client.connection._http
    assert kept is not None
    wait_until(lambda: connection_module._closed_by_server(kept.sock))
    client.create_token("x")  # must not be sent twice, so the client must notice the closed connection before
    assert plane.connections == 2
    assert len(plane.of("/tokens")) == 1


def test_a_forked_child_opens_a_connection_of_its_own(plane: Any, client: Client) -> None:
    plane.on("GET", "/version", Reply({}))
    client.version()
    client.connection._owner = os.getpid() + 1  # as it looks after a fork
    client.version()
    assert plane.connections == 2


# --- lost connections --------------------------------------------------------------------------------


def test_a_request_is_repeated_when_its_answer_is_lost(plane: Any, client: Client) -> None:
    plane.on("GET", "/jobs/k3v9q2", [Reply(drop=True), Reply(drop=True), Reply(a_job())])
    assert client.job("k3v9q2").info.gpus == 4


def test_a_submit_is_repeated_with_the_same_key(plane: Any, client: Client) -> None:
    plane.on("POST", "/jobs", [Reply(drop=True), Reply({"id": "k3v9q2", "ids": ["k3v9q2"], "count": 1}, 201)])
    assert client.submit({"run": "true"}).id == "k3v9q2"
    first, second = plane.of("/jobs")
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.body == second.body == {"run": "true"}
    client.submit({"run": "true"})
    assert plane.of("/jobs")[2].headers["idempotency-key"] != first.headers["idempotency-key"]


def test_a_request_that_must_not_be_repeated_is_sent_once(plane: Any, client: Client) -> None:
    plane.on("POST", "/tokens", Reply(drop=True))
    with pytest.raises(NoPlane, match=r"was lost|answers"):
        client.create_token("x")
    assert len(plane.of("/tokens")) == 1


def test_the_client_follows_to_the_leader_and_stays_there(plane: Any, client: Client) -> None:
    with fake.fake_plane() as leader:
        leader.on("POST", "/jobs", Reply({"id": "a", "ids": ["a"], "count": 1}, 201))
        plane.on("POST", "/jobs", problem(503, "another plane leads", leader=leader.url))
        client.submit({"run": "true"})
        client.submit({"run": "true"})
        assert (len(plane.asked), len(leader.asked)) == (1, 2)
        assert leader.asked[0].headers["authorization"] == f"Bearer {TOKEN}"


def test_the_client_returns_to_the_first_plane_when_the_leader_died(plane: Any, client: Client) -> None:
    leader = fake.FakePlane()
    leader.on("GET", "/policy", Reply({"name": "fifo"}))
    plane.on("GET", "/policy", [problem(503, "no", leader=leader.url), Reply({"name": "srtf"})])
    assert client.policy() == {"name": "fifo"}
    leader.close()
    assert client.policy() == {"name": "srtf"}


def test_two_planes_that_name_each_other_as_leader_do_not_cause_a_loop(plane: Any) -> None:
    with fake.fake_plane() as other, Client(plane.url, patience=1.0) as client:
        plane.on("GET", "/policy", problem(503, "no", leader=other.url))
        other.on("GET", "/policy", problem(503, "no", leader=plane.url))
        with pytest.raises(ApiError, match="503"):
            client.policy()
        assert len(plane.asked) + len(other.asked) < 100


def test_a_leader_without_https_does_not_get_the_token(plane: Any, client: Client) -> None:
    plane.on("GET", "/policy", problem(503, "no", leader="http://192.0.2.1:8470"))
    with pytest.raises(InputError, match="https"):
        client.policy()


@pytest.mark.parametrize("status", [429, 503])
def test_the_client_waits_as_long_as_the_plane_says(plane: Any, client: Client, status: int) -> None:
    busy = problem(status, "later")
    busy.headers["Retry-After"] = "0.3"
    plane.on("POST", "/tokens", [busy, Reply({"id": "t"}, 201)])
    began = time.monotonic()
    assert client.create_token("x") == {"id": "t"}
    assert time.monotonic() - began > 0.2


def test_the_client_does_not_wait_longer_than_its_patience(plane: Any) -> None:
    busy = problem(429, "later")
    busy.headers["Retry-After"] = "3600"
    plane.on("GET", "/policy", busy)
    with Client(plane.url, patience=5.0) as client, pytest.raises(ApiError, match="too many requests"):
        client.policy()


def test_a_request_to_a_silent_plane_times_out(plane: Any) -> None:
    over = threading.Event()

    def silent(_: Any) -> Any:
        over.wait()
        return Reply({})

    plane.on("POST", "/tokens", silent)
    try:
        with Client(plane.url, timeout=0.1, patience=0.0) as client, pytest.raises(NoPlane, match="in time"):
            client.create_token("x")
    finally:
        over.set()


# --- problems --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
def test_a_refused_request_is_an_input_error(plane: Any, client: Client, status: int) -> None:
    plane.on("GET", "/policy", problem(status, "that\nis \x1b[31mwrong"))
    with pytest.raises(InputError) as caught:
        client.policy()
    assert isinstance(caught.value, ApiError)
    assert caught.value.status == status
    assert "that is ?[31mwrong" in str(caught.value)


def test_the_problem_of_each_field_is_in_the_message(plane: Any, client: Client) -> None:
    errors = [{"pointer": "/resources/gpus", "detail": "at least 0"}]
    plane.on("POST", "/plan", problem(422, "the request is wrong", errors=errors))
    with pytest.raises(Refused, match="the request is wrong; resources/gpus: at least 0") as caught:
        client.plan({"run": "true"})
    assert caught.value.problems == errors


def test_a_failure_of_the_plane_is_not_an_input_error(plane: Any, client: Client) -> None:
    plane.on("GET", "/policy", Reply(b"<html>", 500))
    with pytest.raises(ApiError) as caught:
        client.policy()
    assert not isinstance(caught.value, InputError)


def test_a_server_that_is_not_a_plane_is_reported(plane: Any, client: Client) -> None:
    plane.on("GET", "/policy", Reply(b"<html>hello"))
    with pytest.raises(ApiError, match="is this a plane"):
        client.policy()


# --- values ---------------------------------------------------------------------------


def test_unknown_fields_of_a_newer_plane_are_kept_in_raw(plane: Any, client: Client) -> None:
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(colour="green")))
    info = client.job("k3v9q2").info
    assert info.raw["colour"] == "green"
    assert info.started_at is not None
    assert info.submitted_at is not None
    assert (info.started_at - info.submitted_at).total_seconds() == 60


def test_pages_are_fetched_only_as_far_as_needed(plane: Any, client: Client) -> None:
    def page(asked: Any) -> Any:
        first = int(asked.query.get("cursor", "0"))
        items = [a_job(f"j{number}") for number in range(first, first + 2)]
        return Reply({"items": items, "next": str(first + 2) if first < 6 else None})

    plane.on("GET", "/jobs", page)
    assert [job.id for job in client.jobs(mine=True)] == [f"j{number}" for number in range(8)]
    assert plane.asked[0].query["mine"] == "true"
    assert [job.id for job in client.jobs(limit=3)] == ["j0", "j1", "j2"]
    assert len(plane.asked) == 4 + 2


def test_waiting_for_a_job(plane: Any, client: Client) -> None:
    states = [Reply(a_job(state=state)) for state in ("pending", "running", "running", "completed")]
    plane.on("GET", "/jobs/k3v9q2", states)
    assert client.job("k3v9q2").wait(60).state == "completed"
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job()))
    with pytest.raises(TimeoutError, match="running"):
        client.job("k3v9q2").wait(0.1)


def test_an_array_is_in_the_most_important_state_of_its_jobs(plane: Any, client: Client) -> None:
    plane.on(
        "GET", "/jobs/k3v9q2", Reply({"id": "k3v9q2", "count": 3, "states": {"failed": 1, "completed": 2}})
    )
    assert client.job("k3v9q2").state == "failed"
    assert overall({"completed": 2, "running": 1}) == "running"
    assert overall({"completed": 2, "running": 0}) == "completed"


def test_a_plan_tells_when_a_job_would_start(plane: Any, client: Client) -> None:
    span = {"low": "2026-11-15T12:00:00Z", "likely": "2026-11-15T13:00:00Z", "high": None}
    plane.on("POST", "/plan", Reply({"fits": True, "starts_at": span, "placement": []}))
    eta = client.plan({"run": "true"}).eta
    assert eta is not None
    assert eta.isoformat() == "2026-11-15T13:00:00+00:00"
    plane.on("GET", "/jobs/k3v9q2/why", Reply({"sentence": "4 GPUs are missing", "starts_at": None}))
    assert str(client.why("k3v9q2")) == "4 GPUs are missing"
    assert client.why("k3v9q2").starts is None


# --- logs and events -------------------------------------------------------------------------------


def serve_log(plane: Any, texts: dict[int, bytes], size: int = 7) -> None:
    """The log of each attempt, in small pieces."""

    def chunk(asked: Any) -> Any:
        offset = int(asked.query["offset"])
        piece = texts[int(asked.query["attempt"])][offset : offset + size]
        return Reply(piece, headers={"X-Next-Offset": str(offset + len(piece))})

    plane.on("GET", "/jobs/k3v9q2/logs", chunk)


def test_a_log_is_decoded_across_split_characters(plane: Any, client: Client) -> None:
    text = "größer\rγ 10 %\nünd \x1b[1mbold\n" * 3
    serve_log(plane, {1: text.encode()})
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(state="completed")))
    assert "".join(client.logs("k3v9q2")) == text


def test_following_a_log_continues_with_the_next_attempt(plane: Any, client: Client) -> None:
    serve_log(plane, {1: b"step 1\nstep 2\n", 2: b"step 2\nstep 3\n"})
    stages = [
        a_job(state="pending", attempt=0),
        a_job(attempt=1),
        a_job(state="pending", attempt=1, restarts=1),
        a_job(attempt=2, restarts=1),
        a_job(state="completed", attempt=2),
    ]
    plane.on("GET", "/jobs/k3v9q2", [Reply(stage) for stage in stages])
    assert "".join(client.logs("k3v9q2", follow=True)) == "step 1\nstep 2\nstep 2\nstep 3\n"


def test_following_a_log_survives_a_lost_connection(plane: Any, client: Client) -> None:
    text = b"abcdefghijklmnopqrstuvwxyz\n" * 4
    count = 0

    def chunk(asked: Any) -> Any:
        nonlocal count
        count += 1
        offset = int(asked.query["offset"])
        piece = text[offset : offset + 10]
        return Reply(piece, headers={"X-Next-Offset": str(offset + len(piece))}, drop=count % 3 == 0)

    plane.on("GET", "/jobs/k3v9q2/logs", chunk)
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(state="completed")))
    assert "".join(client.logs("k3v9q2", follow=True)).encode() == text


def test_server_sent_events_are_parsed_by_the_standard() -> None:
    lines = [
        ": hello\n",
        "event: job\n",
        "data: {\n",
        "data:}\n",
        "id: 7\n",
        "\n",
        "data: x\r\n",
        "\r\n",
        "data: cut\n",
    ]
    found = list(read_events(iter(line.encode() for line in lines)))
    assert [tuple(event) for event in found] == [("job", "{\n}", "7"), ("message", "x", "7")]


def test_a_watch_continues_after_the_last_event(plane: Any, client: Client) -> None:
    def stream(asked: Any) -> Any:
        first = int(asked.headers.get("last-event-id", "0")) + 1
        texts = [f'id: {n}\nevent: job\ndata: {{"id": "j{n}"}}\n\n' for n in range(first, first + 2)]
        return Reply(stream=[": comment\n\n", *texts, "id: 99\nevent: jo"])

    plane.on("GET", "/watch", stream)
    seen = []
    for change in client.watch():
        seen.append(change["id"])
        if len(seen) == 6:
            break
    assert seen == ["j1", "j2", "j3", "j4", "j5", "j6"]
    assert [asked.headers.get("last-event-id") for asked in plane.of("/watch")] == [None, "2", "4"]


def test_a_watch_that_is_refused_ends(plane: Any, client: Client) -> None:
    plane.on("GET", "/watch", problem(401, "no"))
    with pytest.raises(Refused):
        next(iter(client.watch()))


def test_importing_dovetail_is_light() -> None:
    import subprocess

    code = (
        "import sys, dovetail\n"
        "heavy = [n for n in ('http.client', 'yaml', 'pickle', 'dovetail.client') if n in sys.modules]\n"
        "assert heavy == [], heavy\n"
        "from dovetail import job\n"
        "assert dovetail.preemption_requested is job.preemption_requested\n"
        "assert 'http.client' not in sys.modules and 'dovetail.model' not in sys.modules\n"
        "assert dovetail.Client.__name__ == 'Client' and dovetail.Executor.__name__ == 'Executor'\n"
        "assert 'Client' in dir(dovetail)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    import dovetail

    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = dovetail.nothing_like_it


def test_cancel_returns_the_number_of_cancelled_jobs(plane: Any, client: Client) -> None:
    answers = {"a": a_job("a", state="cancelled"), "b": a_job("b", state="stopping")}
    answers |= {"c": a_job("c", state="completed"), "d": {"id": "d", "states": {"cancelled": 3}, "acted": 2}}
    for id, answer in answers.items():
        plane.on("POST", f"/jobs/{id}/cancel", Reply(answer))
    assert [client.cancel(id) for id in "abcd"] == [1, 1, 0, 2]
    plane.on("POST", "/jobs/cancel", Reply({"count": 1, "missing": ["x"]}))
    assert client.cancel("a", "x") == 1
    assert client.cancel_many("a", "x")["missing"] == ["x"]
    plane.on("POST", "/jobs/cancel", Reply({"count": 1, "unknown": ["x"]}))
    assert client.cancel_many("a", "x")["missing"] == ["x"]
