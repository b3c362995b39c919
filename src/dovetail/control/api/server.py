"""The server under the API: uvicorn, without its habits of logging requests and waiting for streams."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from dovetail.control.api.settings import is_loopback


class Server(uvicorn.Server):
    """Tells streams to end before it waits for connections to close."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app: Any = self.config.app
        app.state.wiring.streams.end()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal ends the server and not the process, which has a plane to close in good order."""
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
    return Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_config=None,
            access_log=False,  # addresses may hold what people should not have put there
            server_header=False,
            proxy_headers=not is_loopback(host),
            timeout_keep_alive=30,
            timeout_graceful_shutdown=5,
            limit_concurrency=1_000,
            h11_max_incomplete_event_size=64_000,
            ws="none",
            lifespan="on",
        )
    )
