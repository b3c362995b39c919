"""A plane with scripted answers, over real HTTP on a real port."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

ROOT = "/api/v1"


@dataclass
class Received:
    """One request that the plane received."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Reply:
    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False  # close the connection without an answer
    stream: Sequence[str] = ()  # server-sent events, then the connection is closed


Script = Reply | Callable[[Received], Reply] | list[Reply]


def problem(status: int, detail: str, **members: Any) -> Reply:
    body = {"type": "about:blank", "title": "no", "status": status, "detail": detail, **members}
    return Reply(body, status, {"Content-Type": "application/problem+json"})


class FakePlane:
    def __init__(self) -> None:
        self.asked: list[Received] = []
        self.connections = 0
        self._scripts: dict[tuple[str, str], Script] = {}
        self._open: list[socket.socket] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                fake.connections += 1
                fake._open.append(self.connection)

            def log_message(self, format: str, *args: object) -> None:
                pass

            def handle(self) -> None:
                with suppress(OSError, ValueError):  # the plane was closed
                    super().handle()

            def _any(self) -> None:
                fake._answer(self)

            do_GET = do_POST = do_PUT = do_DELETE = _any  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def on(self, method: str, path: str, script: Script) -> None:
        self._scripts[method, ROOT + path] = script

    def of(self, path: str) -> list[Received]:
        return [asked for asked in self.asked if asked.path == ROOT + path]

    def hang_up(self) -> None:
        """Close the connections that are open, as a server does with idle ones."""
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown()
        self.hang_up()
        self._server.server_close()
        self._thread.join()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        raw = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        headers = {key.lower(): value for key, value in handler.headers.items()}
        asked = Received(handler.command, parts.path, query, headers, json.loads(raw) if raw else None)
        self.asked.append(asked)
        script = self._scripts.get((asked.method, asked.path), problem(404, f"no {parts.path}"))
        if isinstance(script, list):
            reply = script.pop(0) if len(script) > 1 else script[0]
        else:
            reply = script(asked) if callable(script) else script
        if reply.drop:
            handler.close_connection = True
            return
        if reply.stream:
            handler.send_response(200)
            handler.send_header("Content-Type", "text/event-stream")
            handler.send_header("Connection", "close")
            handler.end_headers()
            for piece in reply.stream:
                handler.wfile.write(piece.encode())
                handler.wfile.flush()
            handler.close_connection = True
            return
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        handler.send_response(reply.status)
        for key, value in reply.headers.items():
            handler.send_header(key, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


@contextmanager
def fake_plane() -> Iterator[FakePlane]:
    plane = FakePlane()
    try:
        yield plane
    finally:
        plane.close()


def a_job(id: str = "k3v9q2", **facts: Any) -> dict[str, Any]:
    """A job as the API returns it."""
    return {
        "id": id,
        "name": "train",
        "state": "running",
        "letter": "R",
        "reason": "",
        "kind": "train",
        "tenant": "research",
        "user": "ann",
        "priority": 0,
        "gpus": 4,
        "nodes": 1,
        "gpu_types": ["A100"],
        "time_limit": 7200.0,
        "submitted_at": "2026-11-15T12:00:00Z",
        "started_at": "2026-11-15T12:01:00Z",
        "first_started_at": "2026-11-15T12:01:00Z",
        "ended_at": None,
        "placement": [{"node": "n0", "devices": [0, 1, 2, 3]}],
        "attempt": 1,
        "restarts": 0,
        "exit_code": None,
        "cause": "",
        "detail": "",
        "array": None,
        "dependency": None,
        "output": None,
        "progress": None,
        "gpu_seconds": 240.0,
        "lost_gpu_seconds": 0.0,
        **facts,
    }
