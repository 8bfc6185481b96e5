"""A controller that decides nothing: tests say what is placed where, and read what it heard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from manyhands.parameter_server.placement import (
    BucketPlace,
    Member,
    Placement,
    endpoint_from_json,
)
from manyhands.transport.calls import CallPeer, CallServer
from manyhands.transport.certificates import RunCertificates
from tests.cluster.conftest import wait_until


class ScriptedController:
    """Answers heartbeats with the placement that was published last. Use it in a `with`."""

    def __init__(
        self,
        token: str,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        certificates: RunCertificates | None = None,
    ) -> None:
        self._server = CallServer(
            host,
            port,
            token=token,
            handle=self._handle,
            on_close=self._on_close,
            credentials=certificates.server if certificates else None,
            tls=certificates is not None,
        )
        self._changed = threading.Condition()  # its lock may be taken twice by a thread
        self.endpoint = self._server.endpoint
        self.placement = Placement(0, {}, {})
        self.heard: dict[int, dict[str, Any]] = {}  # the last heartbeat of each server
        self.callers: dict[int, CallPeer] = {}
        self.in_step: set[tuple[int, int, int, int]] = set()
        self.in_the_dark: set[int] = set()  # servers that are told nothing
        self.suspected: set[tuple[int, int]] = set()  # by whom, whom
        self.hung_up: list[CallPeer] = []

    def __enter__(self) -> ScriptedController:
        self._server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.close()

    def wait_for_servers(self, *servers: int) -> None:
        wait_until(lambda: set(servers) <= set(self.heard), what=f"heartbeats of {servers}")

    def publish(self, buckets: Mapping[int, BucketPlace]) -> Placement:
        """Place the buckets so, on the servers as they were heard last."""
        with self._changed:
            members = {server: _member(said) for server, said in self.heard.items()}
            self.announce(Placement(self.placement.version + 1, members, dict(buckets)))
            return self.placement

    def announce(self, placement: Placement) -> None:
        """From now on this is the newest."""
        with self._changed:
            self.placement = placement
            self._changed.notify_all()

    def change(self, how: Callable[[BucketPlace], BucketPlace]) -> Placement:
        """Change the place of every bucket."""
        return self.publish({b: how(place) for b, place in self.placement.buckets.items()})

    def wait_until_known(self, *servers: int) -> None:
        """Wait until these servers act on the newest placement."""
        version = self.placement.version
        wait_until(
            lambda: all(self.heard[server]["known"] >= version for server in servers),
            what=f"placement {version} known to {servers}",
        )

    def _handle(self, command: str, arguments: dict[str, Any], peer: CallPeer) -> Any:
        if command == "placement":
            with self._changed:
                self._changed.wait_for(
                    lambda: self.placement.version > arguments["after"], arguments["wait_s"]
                )
                return self._newer_than(arguments["after"])
        assert command == "heartbeat", command
        with self._changed:
            server = arguments["server"]
            self.heard[server] = arguments
            self.callers[server] = peer
            self.in_step |= {tuple(entry) for entry in arguments["in_step"]}
            self.suspected |= {(server, other) for other in arguments["suspects"]}
            known = self.placement.version if server in self.in_the_dark else arguments["known"]
            return self._newer_than(known)

    def _newer_than(self, version: int) -> dict[str, Any]:
        newer = self.placement.version > version
        return {"placement": self.placement.to_json() if newer else None}

    def _on_close(self, peer: CallPeer) -> None:
        self.hung_up.append(peer)


def _member(said: dict[str, Any]) -> Member:
    return Member(
        said["server"],
        said["incarnation"],
        endpoint_from_json(said["endpoint"]),
        endpoint_from_json(said["replication"]),
        said["host"],
    )
