"""A hostile tenant: one token that asks for all it can get at once, for as long as its input is open.

python -m benchmarks.hostile URL TOKEN JOB [KIND ...]     plans, lists, idle, slow, streams; all by default

It writes `ready` when all of it has begun, and when its input ends a line of JSON: how many answers of which
status it got.
"""

from __future__ import annotations

import http.client
import json
import random
import resource
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

PLANS, LISTS, IDLE, SLOW, STREAMS = 60, 20, 1_050, 100, 30  # at once


class Hostile:
    """Requests with one token, and connections without any."""

    def __init__(self, url: str, token: str, job: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self.job = job
        self.statuses: Counter[str] = Counter()
        self.over = threading.Event()

    def asks(self, method: str, path: str, body: object = None) -> None:
        """One request after another, on a connection of its own each."""
        while not self.over.is_set():
            connection = http.client.HTTPConnection(self.host, self.port, timeout=300)
            try:
                data = None if body is None else json.dumps(body).encode()
                connection.request(method, f"/api/v1{path}", data, self.headers)
                status = connection.getresponse().status
                self.statuses[f"{path.partition('?')[0].rpartition('/')[2]} {status}"] += 1
                if status in (429, 503):
                    self.over.wait(0.2)
            except (OSError, http.client.HTTPException):
                self.over.wait(0.2)
            finally:
                connection.close()

    def plan(self) -> None:
        self.asks("POST", "/plan", {"run": "true", "resources": {"gpus": random.randint(1, 8)}})

    def lists(self) -> None:
        self.asks("GET", random.choice((f"/jobs/{self.job}/why", "/jobs?limit=200", "/report", "/gpus")))

    def holds(self, sent: bytes) -> None:
        """A connection that says this and no more, again whenever it is closed."""
        while not self.over.is_set():
            with suppress(OSError), socket.create_connection((self.host, self.port), timeout=300) as held:
                held.sendall(sent)
                held.settimeout(1.0)
                while not self.over.is_set():
                    with suppress(TimeoutError):
                        if not held.recv(65_536):
                            break
            self.over.wait(1.0)

    def slow(self) -> None:
        """A body of which a byte arrives."""
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        self.holds(
            f"POST /api/v1/jobs HTTP/1.1\r\nHost: {self.host}\r\n{head}Content-Length: 900\r\n\r\n{{".encode()
        )

    def stream(self) -> None:
        token = self.headers["Authorization"]
        self.holds(
            f"GET /api/v1/watch HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: {token}\r\n\r\n".encode()
        )


def main(url: str, token: str, job: str, *kinds: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    threading.stack_size(256 * 1024)
    hostile = Hostile(url, token, job)
    work: dict[str, tuple[int, Callable[[], None]]] = {
        "plans": (PLANS, hostile.plan),
        "lists": (LISTS, hostile.lists),
        "idle": (IDLE, lambda: hostile.holds(b"")),
        "slow": (SLOW, hostile.slow),
        "streams": (STREAMS, hostile.stream),
    }
    for kind in kinds or tuple(work):
        count, act = work[kind]
        for _ in range(count):
            threading.Thread(target=act, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    hostile.over.set()
    print(json.dumps(dict(hostile.statuses)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
