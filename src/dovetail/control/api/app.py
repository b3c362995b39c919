"""The API of a plane as an ASGI app."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from fastapi import FastAPI

from dovetail import __version__
from dovetail.control.api import accounts, cluster, jobs, lab, logs, page, stream, user_limits, watch
from dovetail.control.api.auth import ROOT, Gate, Wiring
from dovetail.control.api.lanes import THREADS
from dovetail.control.api.limits import Streams
from dovetail.control.api.openapi import describe
from dovetail.control.api.page import Files
from dovetail.control.api.problems import handle_problems
from dovetail.control.api.settings import Settings
from dovetail.control.api.stream import Board
from dovetail.control.api.watch import Hub
from dovetail.control.lists import Lists
from dovetail.control.lookup import Lookup
from dovetail.control.metrics import Metrics
from dovetail.control.plane import Plane
from dovetail.control.prices import PriceList
from dovetail.control.tokens import Tokens


def make_app(plane: Plane, settings: Settings | None = None) -> FastAPI:
    """All of /api/v1 on a plane that was started, and the page. /health, /ready and /metrics are at / too."""

    def now() -> int:
        return plane.clock.now()

    wiring = Wiring(
        plane=plane,
        settings=(at := settings or Settings()),
        tokens=Tokens(plane.store),
        lists=Lists(plane.store, now),
        lookup=Lookup(plane.store, now),
        streams=Streams(at.streams, at.streams_per_token),
        hub=Hub(plane),
        board=Board(plane),
        prices=PriceList(plane.store),
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        logging.getLogger(
            "uvicorn.access"
        ).disabled = True  # addresses may hold what people put there by mistake
        wiring.hub.open()

        def end_streams(token: str) -> None:
            loop.call_soon_threadsafe(wiring.streams.end, token)

        wiring.tokens.on_revoke(end_streams)
        try:
            yield
        finally:
            await wiring.board.close()
            wiring.hub.close()

    # The pages that show the description load scripts from elsewhere, so there are none.
    app = FastAPI(
        title="Dovetail",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.wiring = wiring
    app.state.metrics = Metrics(plane)
    app.state.files = Files()
    handle_problems(app)
    for module in (jobs, logs, watch, cluster, user_limits, stream, lab, accounts):
        app.include_router(module.router, prefix=ROOT)
    app.include_router(accounts.tokens, prefix=ROOT)
    for name, endpoint in (
        ("health", accounts.get_health),
        ("ready", accounts.get_ready),
        ("version", accounts.get_version),
        ("metrics", accounts.get_metrics),
        ("openapi.json", accounts.get_openapi),
    ):
        app.add_api_route(f"/{name}", endpoint, methods=["GET"], include_in_schema=False)
    app.include_router(page.router)
    app.add_middleware(Gate, wiring=wiring)
    describe(app)
    return app
