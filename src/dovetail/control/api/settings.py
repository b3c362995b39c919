"""What an administrator may set about the API."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Limits, and who may speak to the plane."""

    host: str = "127.0.0.1"  # where it listens
    hosts: tuple[str, ...] = ()  # further names it is known by; "*" is any
    open_metrics: bool = False  # /metrics for everybody
    largest_body: int = 1_000_000  # bytes
    body_timeout: float = 20.0  # seconds for a whole body to arrive
    rate: float = 50.0  # requests a second and token, in the long run
    burst: int = 200
    bad_rate: float = 1.0  # wrong tokens a second and address
    bad_burst: int = 20
    streams: int = 100  # open at once
    streams_per_token: int = 10
    longest_stream: float = 3_600.0  # seconds; whoever listens connects again and misses nothing
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
