"""The server under the API: uvicorn with connections of our own, no log of requests, no wait for streams."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from dovetail.control.api.connections import ACCEPTED, protocol
from dovetail.control.api.settings import is_loopback

SWITCH = 0.0005  # seconds; see `run`
COLLECTIONS = (5_000, 10, 200)  # thresholds of the three generations; see `run`
BACKLOG = 2_048  # connections that wait to be accepted


class Server(uvicorn.Server):
    """Tells streams to end before it waits for connections to close."""

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to exit.

        A thread that computes gives way to others ten times as often as usual: whatever does input and output
        (the event loop, a commit) would have to wait so long after each call to the system.

        Full garbage collections are rare: they stop every thread for 0.3 s in a plane with 10,000 jobs, and
        what is large (copies of the core, `take_apart`) is freed without them.
        """
        before = sys.getswitchinterval(), gc.get_threshold()
        sys.setswitchinterval(SWITCH)
        gc.set_threshold(*COLLECTIONS)
        try:
            super().run(sockets)
        finally:
            sys.setswitchinterval(before[0])
            gc.set_threshold(*before[1])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in (one for server in self.servers for one in server.sockets):
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                same.listen(BACKLOG)  # more may wait than are accepted at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app: Any = self.config.app
        app.state.wiring.streams.end()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal ends the server, not the process: the plane is still to be closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def make_server(app: FastAPI, host: str = "127.0.0.1", port: int = 8470) -> Server:
    """Ready to `run()`, which returns when it was told to exit."""
    settings = app.state.wiring.settings
    return Server(
        uvicorn.Config(
            app,
            http=protocol(settings),
            host=host,
            port=port,
            log_config=None,
            access_log=False,  # addresses may hold what people should not have put there
            server_header=False,
            proxy_headers=not is_loopback(host),
            timeout_keep_alive=settings.idle_timeout,
            timeout_graceful_shutdown=5,
            backlog=ACCEPTED,
            h11_max_incomplete_event_size=64_000,
            ws="none",
            lifespan="on",
        )
    )
