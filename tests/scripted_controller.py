"""A controller in a few lines: it publishes the placements that a test wants, over real sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from manyhands.parameter_server.placement import BucketPlace, Member, Placement
from manyhands.parameter_server.shard_map import ShardMap
from manyhands.transport.calls import CallPeer, CallServer
from manyhands.transport.endpoint import Endpoint

TOKEN = "5a" * 16


class ScriptedController:
    """Answers "placement", waiting for a newer one, and "heartbeat" with the newest."""

    def __init__(self, *, token: str = TOKEN, port: int = 0) -> None:
        self.placement: Placement | None = None
        self.beats: dict[int, dict[str, Any]] = {}  # the last heartbeat of each server
        self.in_the_dark: set[int] = set()  # servers that are told nothing
        self.questions = 0
        self._news = threading.Condition()
        self._server = CallServer("127.0.0.1", port, token=token, handle=self._answer)

    @property
    def endpoint(self) -> Endpoint:
        return self._server.endpoint

    def publish(self, placement: Placement) -> None:
        """From now on this is the newest."""
        with self._news:
            self.placement = placement
            self._news.notify_all()

    def member(self, server: int) -> Member:
        """The server as its heartbeat tells of it; waits for one."""
        with self._news:
            assert self._news.wait_for(lambda: server in self.beats, 60), "no heartbeat came"
            told = self.beats[server]
        return Member.from_json(
            {name: told[name] for name in ("server", "incarnation", "endpoint", "replication")}
            | {"host": told["host"], "draining": False}
        )

    def _answer(self, command: str, arguments: dict[str, Any], peer: CallPeer) -> Any:
        with self._news:
            if command == "heartbeat":
                self.beats[arguments["server"]] = arguments
                self._news.notify_all()
                is_told = arguments["server"] not in self.in_the_dark
                return {"placement": self._newer(arguments["known"]) if is_told else None}
            assert command == "placement", command
            self.questions += 1
            until = time.monotonic() + arguments["wait_s"]
            while self._newer(arguments["after"]) is None and time.monotonic() < until:
                self._news.wait(until - time.monotonic())
            return {"placement": self._newer(arguments["after"])}

    def _newer(self, version: int) -> dict[str, Any] | None:
        newest = self.placement
        return newest.to_json() if newest is not None and newest.version > version else None

    def __enter__(self) -> ScriptedController:
        self._server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.close()


def member(server: int, endpoint: Endpoint, incarnation: str = "first") -> Member:
    return Member(server, incarnation, endpoint, endpoint, "here")


def placed(
    shards: ShardMap,
    version: int,
    members: Sequence[Member],
    places: Mapping[int, BucketPlace],
    otherwise: BucketPlace,
) -> Placement:
    """A placement of all buckets that hold chunks: some as given, the others alike."""
    buckets = {chunk.bucket: places.get(chunk.bucket, otherwise) for chunk in shards.chunks}
    return Placement(version, {one.server: one for one in members}, buckets)
