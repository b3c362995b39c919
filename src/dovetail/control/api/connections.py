"""The connections of a server: how many there are, and how long one may keep the server waiting.

uvicorn answers all clients with 503 when there are too many connections. Here a new connection finds room if
another one is idle: that one is closed instead, of the same peer if this peer has too many, else of the peer
that has most. A connection is idle while the server waits for a request on it, or for the rest of one. So a
peer that opens connections and says nothing only loses its own.

Three clocks run: for the head of a request, for the next request on a kept connection, and for a client to
read what it is sent. The body has a clock in the gate, which can say why it gives up.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from dovetail.control.api.settings import Settings

SCARCE = 2  # of the files that the process may open, connections take the half at most
ACCEPTED = 100  # connections at once, before it is looked at whether there are too many
REFUSED = "dovetail.refused"  # in the scope of a request that is refused, and told so later
NO_ROOM = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 2\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s"
)


class Connections:
    """The open connections by peer. For the event loop's thread only."""

    def __init__(self, most: int, per_peer: int) -> None:
        self.most, self.per_peer = most, per_peer
        self._by_peer: dict[str, dict[Connection, None]] = {}  # in the order in which they were last heard of
        self._count = 0
        self._waits = False  # for the moment to make room

    def __len__(self) -> int:
        return self._count

    def add(self, connection: Connection) -> bool:
        """Whether it is taken; the next moment others are closed for it if need be."""
        if self._count >= self.most + ACCEPTED:
            return False
        mine = self._by_peer.setdefault(connection.peer, {})
        mine[connection] = None
        self._count += 1
        if not self._waits and (len(mine) > self.per_peer or self._count > self.most):
            self._waits = True
            # Not before the event loop has read what was sent: then it is known which are idle.
            connection.loop.call_soon(connection.loop.call_soon, self._make_room)
        return True

    def heard_of(self, connection: Connection) -> None:
        """It goes to the end of the line of those that may be closed."""
        mine = self._by_peer.get(connection.peer, {})
        if connection in mine:
            del mine[connection]
            mine[connection] = None

    def remove(self, connection: Connection) -> None:
        mine = self._by_peer.get(connection.peer, {})
        if connection in mine:
            self._count -= 1
            del mine[connection]
            if not mine:
                del self._by_peer[connection.peer]

    def _make_room(self) -> None:
        self._waits = False
        for mine in list(self._by_peer.values()):
            self._close_idle(mine, len(mine) - self.per_peer)
        for mine in sorted(self._by_peer.values(), key=len, reverse=True):
            self._close_idle(mine, self._count - self.most)

    def _close_idle(self, connections: Iterable[Connection], count: int) -> None:
        """Close those that were silent longest: a new one, of which nothing is heard yet, goes last."""
        if count <= 0:
            return
        idle = [one for one in connections if one.idle]
        for one in idle[:count]:
            self.remove(one)
            one.transport.abort()


class Connection(H11Protocol):
    """One connection, with its clocks."""

    settings: Settings
    all: Connections

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.peer = ""
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def has_asked(self) -> bool:
        """The head of a request has come on it."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None

    @property
    def idle(self) -> bool:
        """The server waits for a request, or for the rest of one, or to tell that it is refused."""
        if not self.has_asked:
            return True
        cycle = self.cycle
        waits = cycle.more_body or REFUSED in self.scope
        return cycle.response_complete or (waits and not cycle.response_started)

    # -- what the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = peer_of(self.client[0] if self.client else "")
        if self.all.add(self):
            self._expect("head", self.settings.head_timeout)
        else:
            said = b"too many connections are open; try again"
            transport.write(NO_ROOM % (len(said), said))
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self.all.heard_of(self)
        if self.has_asked and not self.cycle.response_complete:
            self._stop("head")
        elif "head" not in self._timers:
            self._expect("head", self.settings.head_timeout)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect("reading", self.settings.read_timeout)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop("reading")

    def connection_lost(self, exc: Exception | None) -> None:
        self.all.remove(self)
        self._stop("head")
        self._stop("reading")
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    # -- what the server calls

    def on_response_complete(self) -> None:
        self.all.heard_of(self)
        self._stop("head")
        super().on_response_complete()

    def _expect(self, what: str, within: float) -> None:
        self._stop(what)
        self._timers[what] = self.loop.call_later(within, self.transport.abort)

    def _stop(self, what: str) -> None:
        if (timer := self._timers.pop(what, None)) is not None:
            timer.cancel()


def peer_of(address: str) -> str:
    """A machine: its address, or the network of 64 bits that it has to itself."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


def protocol(settings: Settings) -> type[Connection]:
    """The connections of one server."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = settings.connections if files < 0 else min(settings.connections, files // SCARCE)
    counted = Connections(most, min(settings.connections_per_peer, most))
    return type("CountedConnection", (Connection,), {"settings": settings, "all": counted})
