"""Connections to the servers that hold copies of ours: dialled, given to the lanes, dialled again.

Replication has sockets of its own, from an address of its own (Adam, section 3.3.4), one for each
lane and copy. A thread for each peer dials, so that one that is silent holds up no other.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from manyhands.errors import ManyhandsError, ProtocolError
from manyhands.messages import Hello
from manyhands.parameter_server.placement import Member
from manyhands.transport.certificates import Credentials
from manyhands.transport.connection import greet

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.2


class Lanes(Protocol):
    """Who takes the connections over; the native server."""

    def adopt_peer(self, fd: int, *, lane: int, peer: int) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerDialling:
    """How this server introduces itself to others."""

    server: int
    token: str
    map_version: int
    credentials: Credentials | None = None  # a client's: who dials is the client of TLS
    bind_host: str | None = None
    timeout_s: float = 1.0

    def dial(self, member: Member, lane: int) -> int:
        """The descriptor of a new connection to a lane of a peer; errors as `greet` has them.

        The peer refuses us when it is another incarnation than the one that is meant: it would be
        empty, whatever the one before it had acknowledged.
        """
        hello = Hello(
            token=self.token,
            client=self.server,
            lane=lane,
            purpose=f"copies of server {self.server}",
            peer=self.server,
            target=member.incarnation,
        )
        greeting = greet(
            member.replication,
            hello,
            credentials=self.credentials,
            same_machine=self._is_near(member),
            bind_host=self.bind_host,
            timeout_s=self.timeout_s,
        )
        if greeting.welcome.map_version != self.map_version:
            os.close(greeting.fd)
            raise ProtocolError(f"Server {member.server} has another shard map than we have.")
        return greeting.fd

    def _is_near(self, member: Member) -> bool:
        """Whether it is reached by a local socket, where a message costs less than over TCP.

        Not if replication has addresses of its own, even on loopback: they were asked for.
        """
        addresses = {member.endpoint.host, member.replication.host, self.bind_host} - {None}
        return member.replication.unix is not None and len(addresses) == 1


class Peers:
    """Keeps every wanted connection up. Thread-safe; nothing here blocks for long."""

    def __init__(self, lanes: Lanes, dialling: PeerDialling) -> None:
        self._lanes = lanes
        self._dialling = dialling
        self._lines: dict[int, _PeerLine] = {}
        self._cut: set[int] = set()
        self._lock = threading.Lock()

    def want(self, wanted: Mapping[int, tuple[Member, frozenset[int]]]) -> None:
        """Be connected to these lanes of these peers; others are no longer dialled."""
        with self._lock:
            for peer in [peer for peer in self._lines if peer not in wanted]:
                self._lines.pop(peer).close()
            for peer, (member, lanes) in wanted.items():
                line = self._lines.get(peer)
                if line is None or line.member.incarnation != member.incarnation:
                    line = self._replaced(peer, member)
                line.want(lanes)

    def drop(self, peer: int) -> None:
        """Dial this peer no more; nothing is adopted for it after this returns."""
        with self._lock:
            if peer in self._lines:
                self._lines.pop(peer).close()

    def lost(self, peer: int, lane: int) -> None:
        """A connection has broken: dial again."""
        with self._lock:
            if peer in self._lines:
                self._lines[peer].lost(lane)

    def cut(self, peer: int, on: bool) -> None:
        """For faults: don't dial this peer, until told otherwise."""
        with self._lock:
            (self._cut.add if on else self._cut.discard)(peer)
            if peer in self._lines:
                self._lines[peer].cut(on)

    def is_cut(self, peer: int) -> bool:
        with self._lock:
            return peer in self._cut

    def close(self) -> None:
        """Dial nobody any more."""
        self.want({})

    def _replaced(self, peer: int, member: Member) -> _PeerLine:
        if peer in self._lines:
            self._lines[peer].close()
        line = self._lines[peer] = _PeerLine(peer, member, self._lanes, self._dialling)
        line.cut(peer in self._cut)
        line.start()
        return line


class _PeerLine:
    """The connections to one peer, and the thread that dials them."""

    def __init__(self, peer: int, member: Member, lanes: Lanes, dialling: PeerDialling) -> None:
        self.member = member
        self._peer = peer
        self._lanes = lanes
        self._dialling = dialling
        self._wanted: frozenset[int] = frozenset()
        self._connected: set[int] = set()
        self._cut = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._dial_all, name=f"peer {peer}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def want(self, lanes: frozenset[int]) -> None:
        with self._changed:
            self._wanted = lanes
            self._changed.notify()

    def lost(self, lane: int) -> None:
        with self._changed:
            self._connected.discard(lane)
            self._changed.notify()

    def cut(self, on: bool) -> None:
        with self._changed:
            self._cut = on
            self._changed.notify()

    def close(self) -> None:
        """No connection is adopted after this returns; a dial under way ends by itself."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _dial_all(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while (lane := self._next_lane()) is not None:
            try:
                self._adopt(lane, self._dialling.dial(self.member, lane))
                pause_s = _FIRST_PAUSE_S
            except (ManyhandsError, OSError, ValueError, RuntimeError) as error:
                logger.debug("server %d can't be reached: %s", self._peer, error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _next_lane(self) -> int | None:
        """A lane to dial, as soon as there is one; None when this line is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._wanted - self._connected and not self._cut)
            )
            return None if self._closed else min(self._wanted - self._connected)

    def _adopt(self, lane: int, fd: int) -> None:
        with self._changed:
            if self._closed:
                return os.close(fd)
            # Before the lane has it: from then on its loss may be told at any moment.
            self._connected.add(lane)
            try:
                self._lanes.adopt_peer(fd, lane=lane, peer=self._peer)
            except BaseException:
                self._connected.discard(lane)
                os.close(fd)
                raise
