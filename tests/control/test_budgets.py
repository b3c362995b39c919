"""One tenant asks for all it can get; the others are served all the same.

Nothing here depends on how fast the machine is: what is checked is who is served before whom, how often the
core is copied, and which connection is closed.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.control.test_api import FAST, PATIENCE, ROOT, Live, eventually, living
from tests.control.test_scale import Deaf

from dovetail.control import forecast, questions, standing, submission
from dovetail.control import inbox as inbox_module
from dovetail.control.api import lanes
from dovetail.control.api.auth import Gate
from dovetail.control.api.lanes import Lane, Width
from dovetail.control.api.problems import Refusal
from dovetail.control.api.settings import Settings
from dovetail.control.election import FileElection
from dovetail.control.inbox import Command, Inbox
from dovetail.control.plane import Plane
from dovetail.control.plane_settings import Settings as PlaneSettings
from dovetail.control.plane_state import PlaneState
from dovetail.control.request import JobRequest, parse_request
from dovetail.control.store import Store, url_of
from dovetail.control.tokens import Caller
from dovetail.core import core as core_module
from dovetail.model.cluster import parse_cluster

PLANS, IDLE, SLOW, STREAMS = 60, 1_050, 40, 20
QUEUED = 3_000
ANN, BOB = Caller("t1", "red", "ann", "user"), Caller("t2", "blue", "bob", "user")


# --- a hostile tenant, over HTTP ----------------------------------------------------------------------


class Hostile:
    """Requests with one token, as many at once as there are threads, and connections that say nothing."""

    def __init__(self, live: Live, user: str) -> None:
        self.live, self.user = live, user
        self.answers: list[int] = []  # the statuses of plans, in the order of the answers
        self.sent = 0
        self._turn = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._held = ExitStack()

    def __enter__(self) -> Hostile:
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()
        for thread in self._threads:
            thread.join(PATIENCE)

    @property
    def worked_out(self) -> int:
        return self.answers.count(200)

    def plans(self, count: int) -> None:
        """So many plans at once, each of another job; returns when all of them are sent."""
        for number in range(count):
            self._threads.append(threading.Thread(target=self._plan, args=(number,)))
            self._threads[-1].start()
        eventually(lambda: self.sent == count)

    def _plan(self, number: int) -> None:
        body = json.dumps({"run": "true", "resources": {"gpus": 1 + number % 4}, "time": f"{number + 1}h"})
        connection = http.client.HTTPConnection("127.0.0.1", self.live.port, timeout=300)
        headers = {"Authorization": f"Bearer {self.live.tokens[self.user]}"}
        connection.request("POST", f"{ROOT}/plan", body, headers | {"Content-Type": "application/json"})
        with self._turn:
            self.sent += 1
        status = connection.getresponse().status
        connection.close()
        with self._turn:
            self.answers.append(status)

    def holds(self, count: int, sent: bytes = b"") -> list[socket.socket]:
        """So many connections that say this and no more."""
        made = []
        for _ in range(count):
            one = self._held.enter_context(socket.create_connection(("127.0.0.1", self.live.port)))
            one.sendall(sent)
            made.append(one)
        return made

    def request(self, line: str, *, length: int | None = None) -> bytes:
        head = (
            f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.live.tokens[self.user]}\r\n"
        )
        if length is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {length}\r\n"
        return head.encode() + b"\r\n"


def filled(live: Live, jobs: int) -> None:
    """Jobs of the hostile tenant, which wait."""
    for _ in range(jobs // 500):
        live.submit("ann", resources={"gpus": 4}, array="0-499", time="10h")


@pytest.fixture
def files() -> Iterator[None]:
    """Enough open files for both ends of many connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 4_096:
        pytest.skip("a process may open too few files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 4_096), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Stuck:
    """Forecasts that do not end before a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        forward: Any = getattr(forecast, "forward")  # noqa: B009

        def stuck(*args: Any) -> Any:
            self.begun.set()
            self.go_on.wait(3 * PATIENCE)
            return forward(*args)

        monkeypatch.setattr(forecast, "forward", stuck)

    def __enter__(self) -> Stuck:
        return self

    def __exit__(self, *error: object) -> None:
        self.go_on.set()


def test_plans_of_one_tenant_do_not_keep_another_from_submitting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with living(tmp_path, FAST) as live, Hostile(live, "ann") as hostile, Stuck(monkeypatch) as stuck:
        filled(live, QUEUED)
        hostile.plans(PLANS)
        stuck.begun.wait(PATIENCE)
        job = live.submit("bob", resources={"gpus": 4})
        assert live.ask("POST", f"jobs/{job}/cancel", "bob").json["state"] == "cancelled"
        assert live.get("jobs?mine=true", "bob")["items"]
        assert hostile.worked_out == 0
        # One is worked on and eight wait; the others were refused in a sentence.
        eventually(lambda: hostile.answers.count(429) == PLANS - 9)
        refused = live.ask("POST", "plan", "ann", {"run": "true"})
        assert refused.headers["Retry-After"] == "2"
        assert refused.json["detail"].startswith("8 plans, explanations and reports with this token wait")
    assert hostile.worked_out == 9


def test_nothing_is_worked_out_for_a_client_that_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with living(tmp_path, FAST) as live, Hostile(live, "ann") as hostile, Stuck(monkeypatch) as stuck:
        hostile.plans(1)
        stuck.begun.wait(PATIENCE)
        asked = hostile.request(f"GET {ROOT}/report")
        waiting = live.app.state.wiring.lanes[lanes.SLOW]
        for one in hostile.holds(8, asked):
            eventually(lambda: len(waiting) > 0)
            one.close()
        eventually(lambda: len(waiting) == 0)
    assert hostile.worked_out == 1


def test_silent_connections_cost_only_the_one_who_opened_them(tmp_path: Path, files: None) -> None:
    with living(tmp_path, FAST) as live, Hostile(live, "ann") as hostile:
        first = hostile.holds(1)[0]
        hostile.holds(IDLE - 1)
        job = live.submit("bob", resources={"gpus": 4})
        assert live.ask("POST", f"jobs/{job}/cancel", "bob").status == 200
        assert live.get("/health", None)["status"] == "ok"
        assert gone(first)  # the one that was silent longest


def test_one_tenant_does_it_all_and_another_is_served(
    tmp_path: Path, files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with living(tmp_path, Settings()) as live, Hostile(live, "ann") as hostile, Stuck(monkeypatch) as stuck:
        filled(live, QUEUED)
        hostile.plans(PLANS)
        stuck.begun.wait(PATIENCE)
        hostile.holds(IDLE)
        hostile.holds(SLOW, hostile.request(f"POST {ROOT}/jobs", length=900) + b"{")
        hostile.holds(SLOW, b"GET /api/v1/jobs HTTP/1.1\r\nHost:")
        hostile.holds(STREAMS, hostile.request(f"GET {ROOT}/watch"))
        ticks = live.plane.statistics.commits
        for _ in range(5):
            job = live.submit("bob", resources={"gpus": 4})
            assert live.ask("POST", f"jobs/{job}/cancel", "bob").json["state"] == "cancelled"
            assert live.get("/health", None)["status"] == "ok"
        assert live.plane.statistics.commits - ticks <= 5 * 4  # one for each change, and for what follows
        assert hostile.worked_out == 0


def test_a_token_that_asks_too_much_can_still_cancel(tmp_path: Path) -> None:
    with living(tmp_path, Settings(rate=0.001, burst=5)) as live:
        job = live.submit("ann", resources={"gpus": 4})
        while live.ask("GET", "jobs", "ann").status == 200:
            pass
        assert live.ask("GET", f"jobs/{job}", "ann").status == 429
        assert live.ask("POST", f"jobs/{job}/cancel", "ann").status == 200
        assert {live.ask("GET", "/health", None).status for _ in range(10)} == {200}


def test_requests_of_a_token_are_counted_and_streams_apart(tmp_path: Path) -> None:
    settings = Settings(requests_per_token=2)
    with living(tmp_path, settings) as live, Hostile(live, "ann") as hostile:
        streams = hostile.holds(3, hostile.request(f"GET {ROOT}/watch"))
        for one in streams:
            one.settimeout(PATIENCE)
            assert one.recv(65_536).startswith(b"HTTP/1.1 200")
        assert live.ask("GET", "jobs", "ann").status == 200
        hostile.holds(2, hostile.request(f"POST {ROOT}/jobs", length=900))  # whose body does not come
        refused = eventually(lambda: (found := live.ask("GET", "jobs", "ann")).status == 429 and found)
        assert "2 requests with this token are not answered yet" in refused.json["detail"]
        assert live.ask("GET", "jobs", "bob").status == 200


def test_a_request_above_the_rate_is_told_later_and_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    check = Gate._check_rate

    def noted(gate: Gate, key: str, rates: Any) -> None:
        try:
            check(gate, key, rates)
        except Refusal:
            refused.append(key)
            raise

    monkeypatch.setattr(Gate, "_check_rate", noted)
    settings = Settings(rate=0.001, burst=6, refusal_delay=3_600.0, connections_per_peer=3)
    with living(tmp_path, settings) as live, Hostile(live, "ann") as hostile:
        for _ in range(6):
            assert live.ask("GET", "me", "ann").status == 200
        first, *_ = hostile.holds(3, hostile.request(f"GET {ROOT}/me"))
        eventually(lambda: len(refused) == 3)
        hostile.holds(1)
        assert gone(first)
        assert live.ask("GET", "me", "bob").status == 200


# --- connections that keep the server waiting ---------------------------------------------------------


def gone(connection: socket.socket) -> bool:
    connection.settimeout(PATIENCE)
    try:
        return connection.recv(65_536) == b""
    except ConnectionResetError:
        return True


def cut_off(connection: socket.socket, sent: bytes, every: float = 0.0) -> bool:
    """Whether the server ends a connection on which this is sent again and again, and nothing is read."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            connection.sendall(sent)
        except (BrokenPipeError, ConnectionResetError):
            return True
        time.sleep(every)
    return False


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_a_head_that_does_not_come_ends_the_connection(tmp_path: Path, sent: bytes) -> None:
    with living(tmp_path, Settings(head_timeout=0.3)) as live, Hostile(live, "ann") as hostile:
        assert gone(hostile.holds(1, sent)[0])


def test_an_idle_connection_is_not_kept_by_crumbs(tmp_path: Path) -> None:
    """After an answer, a byte now and then is not a request."""
    with living(tmp_path, Settings(head_timeout=0.5)) as live, Hostile(live, "ann") as hostile:
        one = hostile.holds(1, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")[0]
        assert one.recv(65_536).startswith(b"HTTP/1.1 200")
        assert cut_off(one, b"G", every=0.1)


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    settings = Settings(rate=1e6, burst=1_000_000, read_timeout=0.5)
    with living(tmp_path, settings) as live, Hostile(live, "ann") as hostile:
        one = hostile.holds(1)[0]
        one.settimeout(PATIENCE)
        assert cut_off(one, b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100)


# --- the order of service in the loop -----------------------------------------------------------------


class Ticking:
    """A clock that goes on by so much whenever it is read."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def sent(inbox: Inbox, name: str, *, changes: bool = False, slow: bool = False) -> None:
    def run(state: PlaneState, now: int) -> str:
        return name

    inbox.add(Command(run, changes, slow, name.partition(" ")[0]))


def names(taken: Iterator[Command[Any]]) -> list[str]:
    return [command.run(None, 0) for command in taken]  # type: ignore[arg-type]


def test_changes_are_taken_apart_and_tokens_take_turns() -> None:
    inbox = Inbox(Ticking(0.0))
    for number in range(3):
        sent(inbox, f"mallory asks {number}", slow=True)
        sent(inbox, f"mallory looks {number}")
        sent(inbox, f"mallory submits {number}", changes=True)
    sent(inbox, "bob asks", slow=True)
    sent(inbox, "bob looks")
    sent(inbox, "bob submits", changes=True)
    turns = ["mallory {} 0", "bob {}", "mallory {} 1", "mallory {} 2"]
    assert names(inbox.changes()) == [name.format("submits") for name in turns]
    asked = [name.format(verb) for verb in ("looks", "asks") for name in turns]
    assert names(inbox.questions()) == asked
    assert not inbox


def test_a_tick_takes_a_part_of_many_changes_and_puts_off_questions_for_those_that_wait() -> None:
    inbox = Inbox(Ticking(0.03))
    for number in range(6):
        sent(inbox, f"mallory submits {number}", changes=True)
        sent(inbox, f"mallory looks {number}")
        sent(inbox, f"mallory asks {number}", slow=True)
    assert names(inbox.changes()) == [f"mallory submits {number}" for number in range(4)]
    assert names(inbox.questions()) == ["mallory looks 0", "mallory asks 0"]  # two changes wait
    assert len(names(inbox.changes())) == 2
    assert names(inbox.questions()) == [
        *(f"mallory looks {n}" for n in range(1, 6)),
        "mallory asks 1",
        "mallory asks 2",
    ]


def test_a_command_that_is_put_back_is_the_next() -> None:
    inbox = Inbox(Ticking(0.0))
    sent(inbox, "ann 0", changes=True)
    sent(inbox, "bob 0", changes=True)
    sent(inbox, "ann 1", changes=True)
    first = next(inbox.changes())
    inbox.put_back(first)
    assert names(inbox.changes()) == ["ann 0", "bob 0", "ann 1"]


def test_the_loop_hears_a_submission_before_the_plans_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "QUESTIONS_SECONDS", 0.0, raising=False)
    order: list[str] = []

    def noted(module: Any, name: str, what: str) -> None:
        whole = getattr(module, name)

        def note(*args: Any) -> Any:
            answer = whole(*args)
            order.append(what)
            return answer

        monkeypatch.setattr(module, name, note)

    with busy_plane(tmp_path) as plane, ThreadPoolExecutor(PLANS + 2) as threads:
        noted(plane._inbox, "add", "sent")
        at_work, go_on = threading.Event(), threading.Event()

        def held(state: PlaneState, now: int) -> None:
            at_work.set()
            go_on.wait(PATIENCE)

        threads.submit(plane.ask, held)
        at_work.wait(PATIENCE)
        for hours in range(PLANS):
            threads.submit(questions.forecast, plane, ANN, job_of(1 + hours))
        eventually(lambda: order.count("sent") == 1 + PLANS)
        submitted = threads.submit(submission.submit, plane, BOB, job_of(1), {"run": "true"})
        eventually(lambda: order.count("sent") == 2 + PLANS)
        noted(questions, "checked_job", "plan")
        noted(submission, "checked_job", "submit")
        go_on.set()
        submitted.result(PATIENCE)
    heard = [what for what in order if what != "sent"]
    assert len(heard) == PLANS + 1
    assert "submit" in heard[:2]  # one plan may belong to the tick that was under way


# --- forecasts outside the loop -----------------------------------------------------------------------


@contextmanager
def busy_plane(folder: Path, jobs: int = 500) -> Iterator[Plane]:
    store = Store(url_of(None, folder))
    store.migrate()
    election = FileElection(folder / "plane.lock", store)
    plane = Plane(PlaneSettings(folder, parse_cluster("2x4:A100")), store, Deaf(), election)
    plane.start()
    try:
        body = {"run": "sleep 1", "array": f"0-{jobs - 1}", "resources": {"gpus": 4}, "time": "10h"}
        submission.submit(plane, ANN, parse_request(body), body)
        yield plane
    finally:
        plane.close()
        store.close()


def at_once(asks: Sequence[Callable[[], Any]]) -> list[Any]:
    """The answers to all of these, asked by a thread each."""
    with ThreadPoolExecutor(len(asks)) as threads:
        return [answer.result(PATIENCE) for answer in [threads.submit(ask) for ask in asks]]


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, calls: list[str]) -> None:
    """Note on which thread a function of a module is called."""
    whole = getattr(module, name)

    def noted(*args: Any) -> Any:
        calls.append(threading.current_thread().name)
        return whole(*args)

    monkeypatch.setattr(module, name, noted)


def job_of(hours: int) -> JobRequest:
    return parse_request({"run": "true", "resources": {"gpus": 4}, "time": f"{hours}h"})


def test_the_same_question_at_one_moment_costs_one_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "PLAN_GOOD_FOR", 1e9, raising=False)
    with busy_plane(tmp_path) as plane:
        runs: list[str] = []
        counted(monkeypatch, forecast, "forward", runs)
        found = at_once([partial(questions.forecast, plane, ANN, job_of(1))] * PLANS)
        assert len(found) == PLANS
        assert len({one.starts_at for one in found}) == 1
        assert len(runs) == 1
        questions.forecast(plane, ANN, job_of(2))
        assert len(runs) == 2


def test_an_answer_to_another_moment_is_not_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "PLAN_GOOD_FOR", 1e9, raising=False)
    with busy_plane(tmp_path, jobs=1) as plane:
        one = questions.forecast(plane, ANN, job_of(1))
        body = {"run": "true", "array": "0-9", "resources": {"gpus": 4}, "time": "10h"}
        submission.submit(plane, ANN, parse_request(body), body)
        other = questions.forecast(plane, ANN, job_of(1))
        assert one.starts_at is not None
        assert other.starts_at is not None
        assert other.starts_at.low > one.starts_at.low


def test_the_loop_takes_its_core_down_once_for_all_that_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with busy_plane(tmp_path) as plane:
        taken: list[str] = []
        built: list[str] = []
        for module in (forecast, core_module):
            counted(monkeypatch, module, "recorded", taken)
        for module in (standing, core_module):
            counted(monkeypatch, module, "rebuilt", built)
        asks = [partial(questions.forecast, plane, ANN, job_of(1 + hours)) for hours in range(30)]
        assert len(at_once(asks)) == 30
        assert taken == ["loop"]
        assert len(built) == 30
        assert "loop" not in built


# --- places -------------------------------------------------------------------------------------------


async def entered(lane: Lane, token: str, order: list[str]) -> None:
    await lane.enter(token)
    order.append(token)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_tokens_take_turns_for_the_places_of_a_lane() -> None:
    async def play() -> list[str]:
        lane, order = Lane(Width("questions", 2, 1, 3)), list[str]()
        tasks = [asyncio.ensure_future(entered(lane, name, order)) for name in "aaaabbc"]
        await settled()
        assert order == ["a", "b"]  # one of each has a place
        with pytest.raises(Refusal, match="3 questions with this token wait already"):
            await lane.enter("a")
        lane.leave("a")
        await settled()
        assert order == ["a", "b", "a"]  # b has its own, c comes after
        lane.leave("a")
        await settled()
        lane.leave("b")
        await settled()
        lane.leave("c")
        await settled()
        assert len(tasks) == 7
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return order

    assert asyncio.run(play()) == ["a", "b", "a", "c", "b", "a"]


def test_a_call_that_goes_away_leaves_its_place() -> None:
    async def play() -> None:
        lane, order = Lane(Width("questions", 1, 1, 3)), list[str]()
        await lane.enter("a")
        gone_away = asyncio.ensure_future(entered(lane, "b", order))
        other = asyncio.ensure_future(entered(lane, "c", order))
        await settled()
        gone_away.cancel()
        await settled()
        lane.leave("a")
        await asyncio.wait_for(other, PATIENCE)
        granted = asyncio.ensure_future(entered(lane, "d", order))
        await settled()
        lane.leave("c")
        granted.cancel()  # the place is its own by now
        await settled()
        await asyncio.wait_for(lane.enter("e"), PATIENCE)
        assert order == ["c"]

    asyncio.run(play())
