"""A server's part in a replicated run: the door for other servers, the copies, the controller.

Adam, sections 3.3.3 and 3.3.4. Three ways in and out of a server, each with its own sockets and
address: updates (`server.py`), replication (the door here, and `peers.py`), administration
(`membership.py`).
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from manyhands import kernels
from manyhands.messages import Refusal, Welcome
from manyhands.parameter_server.membership import Membership
from manyhands.parameter_server.mirrors import Mirrors, Restore
from manyhands.parameter_server.peers import PeerDialling, Peers
from manyhands.parameter_server.placement import Member
from manyhands.parameter_server.reception import Reception
from manyhands.parameter_server.shard_map import ShardMap
from manyhands.transport.calls import Caller
from manyhands.transport.certificates import Credentials
from manyhands.transport.endpoint import Endpoint
from manyhands.transport.listener import Arrival, listen


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicationSettings:
    """How one server takes part. Addresses are those of this machine that its sockets are bound to.

    `machine` tells the controller which servers share one; None is this machine's name.
    """

    controller: Endpoint
    host: str
    admin_host: str | None
    token: str
    credentials: Credentials | None = None
    client_credentials: Credentials | None = None  # with which it dials servers and controller
    tls: bool = False
    fill_mb_s: float = 200.0
    machine: str | None = None


class Replication:
    """Keeps a server's copies in step. `start` after the lanes, `close` before they are stopped."""

    def __init__(
        self,
        chunks: kernels.ChunkServer,
        shard_map: ShardMap,
        server: int,
        endpoint: Endpoint,
        settings: ReplicationSettings,
        *,
        states: Sequence[int],
        restore: Restore | None = None,
    ) -> None:
        self.incarnation = secrets.token_hex(8)
        self._chunks = chunks
        self._shards = shard_map
        self._door = Reception(
            listen(
                settings.host,
                token=settings.token,
                credentials=settings.credentials,
                tls=settings.tls,
            ),
            self._admit,
            "A server",
        )
        self._peers = Peers(chunks, self._dialling(server, settings))
        self.mirrors = Mirrors(
            chunks,
            shard_map,
            (server, self.incarnation),
            self._peers,
            states=states,
            fill_mb_s=settings.fill_mb_s,
            restore=restore,
            on_news=lambda: self._membership.wake(),
        )
        self._membership = Membership(
            self._caller(server, settings),
            Member(
                server,
                self.incarnation,
                endpoint,
                self._door.endpoint,
                settings.machine or socket.gethostname(),
            ),
            news=self.mirrors.news,
            take=self.mirrors.take,
        )

    @property
    def endpoint(self) -> Endpoint:
        """Where other servers connect."""
        return self._door.endpoint

    @property
    def strangers(self) -> int:
        return self._door.strangers

    @property
    def is_over(self) -> bool:
        """Whether another process has taken this one's number, or this one is broken."""
        return self._membership.over.is_set() or self.mirrors.failed.is_set()

    def start(self) -> None:
        """Let other servers in, and tell the controller that we are there."""
        self._door.start()
        self.mirrors.start()
        self._membership.start()

    def cut(self, other: int | None, on: bool) -> None:
        """For faults: neither hear nor tell another server (None: the controller) anything."""
        if other is None:
            self._membership.cut(on)
        else:
            self._peers.cut(other, on)
            self._chunks.mute_peer(other, on)

    def close(self) -> None:
        """Leave the controller and the others."""
        self._membership.close()
        self.mirrors.close()
        self._door.close()

    def _admit(self, arrival: Arrival) -> None:
        hello = arrival.hello
        if self._peers.is_cut(hello.peer):
            arrival.close()
            return
        if refusal := self._refusal(arrival):
            arrival.refuse(Refusal.NOT_ALLOWED, refusal)
            return
        fd = arrival.welcome(Welcome(lanes=self._shards.lanes, map_version=self._shards.version))
        try:
            self._chunks.adopt(fd, lane=hello.lane, client=hello.client, peer=hello.peer)
        except BaseException:
            os.close(fd)
            raise

    def _refusal(self, arrival: Arrival) -> str:
        hello = arrival.hello
        if hello.peer < 0 or hello.lane >= self._shards.lanes or arrival.fds:
            return "This door is for the run's servers, each of which names itself and a lane."
        if hello.target != self.incarnation:
            return "This server was started again: the one that is meant is gone."
        return ""

    def _dialling(self, server: int, settings: ReplicationSettings) -> PeerDialling:
        return PeerDialling(
            server=server,
            token=settings.token,
            map_version=self._shards.version,
            credentials=settings.client_credentials,
            bind_host=settings.host,
        )

    @staticmethod
    def _caller(server: int, settings: ReplicationSettings) -> Caller:
        return Caller(
            settings.controller,
            token=settings.token,
            credentials=settings.client_credentials,
            bind_host=settings.admin_host,
            purpose=f"heartbeats of server {server}",
        )
