"""What an administrator may set about the API."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Limits, and the hosts that may be addressed."""

    host: str = "127.0.0.1"  # where it listens
    hosts: tuple[str, ...] = ()  # further names it is known by; "*" is any
    open_metrics: bool = False  # /metrics without a token
    largest_body: int = 1_000_000  # bytes
    head_timeout: float = 10.0  # seconds for the head of a request to arrive
    body_timeout: float = 20.0  # seconds for a whole body to arrive
    read_timeout: float = 60.0  # seconds in which a client must read some of what it is sent
    idle_timeout: int = 30  # seconds that a connection is kept without a request
    connections: int = 1_000  # open at once
    connections_per_peer: int = 500
    requests_per_token: int = 64  # in work at once, or waiting for that
    rate: float = 50.0  # requests a second and token, in the long run
    burst: int = 200
    refusal_delay: float = 1.0  # seconds until a request above the rate is told so
    bad_rate: float = 1.0  # wrong tokens a second and address
    bad_burst: int = 20
    streams: int = 100  # open at once
    streams_per_token: int = 10
    longest_stream: float = 3_600.0  # seconds; then the client connects again and misses nothing
    keep_alive: float = 15.0  # seconds between signs of life in a stream

    @property
    def names(self) -> frozenset[str] | None:
        """The hosts a request may be addressed to; None: any.

        A page on the web can make its own name point to 127.0.0.1 and then speak to what listens there as if
        it were its own server; the name in the request gives it away.
        """
        if "*" in self.hosts or (not self.hosts and not is_loopback(self.host)):
            return None
        return frozenset(name.lower() for name in (*self.hosts, self.host, "localhost"))


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
