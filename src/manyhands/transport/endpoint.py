"""Where a server is reached: an address that others can use, and on one machine a quicker door."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address. Travels to clients with the shard map.

    `unix` names the server's local socket, for clients of the same machine. `tls` asks for
    encryption also on loopback, where there is none otherwise; elsewhere there always is.
    """

    host: str
    port: int
    unix: str | None = None
    tls: bool = False

    @property
    def encrypted(self) -> bool:
        return self.tls or not is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether what is sent to this address can't leave the machine. Other names may: False."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether this means every address of a machine, which nobody else can connect to."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
