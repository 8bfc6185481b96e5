"""How a client reaches one lane of a server: connect, greet, and hand the socket to the kernels.

On the same machine the two sides show each other their memory: updates then travel as places in
the client's (Adam, section 3.2.3: what stays on a machine is passed by pointer), and a pull is a
copy out of the server's. The server may change what is being copied: a pull may be stale by an
update, which asynchronous training allows, and no float is ever torn.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from manyhands import kernels
from manyhands.errors import ProtocolError, StaleRoute
from manyhands.messages import Hello, Welcome
from manyhands.parameter_server.shard_map import Chunk
from manyhands.transport.arena import Arena
from manyhands.transport.certificates import Credentials
from manyhands.transport.connection import greet
from manyhands.transport.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class OwnMemory:
    """Shared memory of the client: what lies in it goes to a server on this machine by reference.

    `view` must stay valid, and `fd` open, as long as the client is.
    """

    fd: int
    view: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, arena: Arena) -> OwnMemory:
        """The memory of an arena."""
        whole = arena.view(0, torch.uint8, (arena.size_bytes,), (1,))
        return cls(arena.fd, whole.numpy())


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialling:
    """What all connections of a client have in common."""

    token: str
    client: int
    credentials: Credentials | None = None
    same_machine: bool = False
    own: OwnMemory | None = None
    admin: bool = False
    window: int = 16
    timeout_s: float = 30.0
    purpose: str = ""

    def hello(self, lane: int) -> Hello:
        """What is said first on a connection to this lane."""
        return Hello(
            token=self.token,
            client=self.client,
            lane=lane,
            admin=self.admin,
            shared_bytes=0 if self.shown is None else len(self.shown),
            purpose=self.purpose,
        )

    @property
    def shown(self) -> npt.NDArray[np.uint8] | None:
        """Our memory, as far as the server may see it."""
        return self.own.view if self.own is not None and self.same_machine else None

    @property
    def shown_fds(self) -> tuple[int, ...]:
        return (self.own.fd,) if self.own is not None and self.same_machine else ()


def dial(
    dialling: Dialling,
    endpoint: Endpoint,
    lane: int,
    chunks: Sequence[Chunk],
    map_version: int,
) -> kernels.Link:
    """A connection to one lane that holds these chunks.

    ServerUnavailable when nobody answers, ProtocolError when we are refused, StaleRoute when the
    server has another map.
    """
    greeting = greet(
        endpoint,
        dialling.hello(lane),
        credentials=dialling.credentials,
        same_machine=dialling.same_machine,
        fds=dialling.shown_fds,
    )
    with ExitStack() as on_failure, ExitStack() as always:
        on_failure.callback(os.close, greeting.fd)
        for fd in greeting.fds:
            always.callback(os.close, fd)
        _require_map(greeting.welcome, lane, map_version, endpoint)
        memory = _mapped(greeting.fds, greeting.welcome.memory_bytes)
        link = kernels.Link(
            greeting.fd,
            client=dialling.client,
            window=dialling.window,
            timeout_s=dialling.timeout_s,
            own=dialling.shown,
            values=memory,
        )
        on_failure.pop_all()
    if memory is not None:
        _show_places(link, greeting.welcome, chunks)
    return link


def _show_places(link: kernels.Link, welcome: Welcome, chunks: Sequence[Chunk]) -> None:
    """Tell the link where in the server's memory it finds each chunk."""
    places = {chunk: (weights, version) for chunk, weights, version in welcome.places}
    missing = [chunk.number for chunk in chunks if chunk.number not in places]
    if missing:
        link.close()
        raise ProtocolError(f"The server did not say where chunk {missing[0]} lies.")
    numbers = np.array([chunk.number for chunk in chunks], np.int64)
    found = np.array([places[chunk.number] for chunk in chunks], np.int64).reshape(-1, 2)
    link.places(numbers, found[:, 0].copy(), found[:, 1].copy())


def _require_map(welcome: Welcome, lane: int, map_version: int, endpoint: Endpoint) -> None:
    if welcome.map_version != map_version or lane >= welcome.lanes:
        raise StaleRoute(
            f"The server at {endpoint} has shard map {welcome.map_version} with {welcome.lanes} "
            f"lanes; this client has map {map_version} and wants lane {lane}."
        )


def _mapped(fds: Sequence[int], size_bytes: int) -> npt.NDArray[np.uint8] | None:
    """The server's memory, to read; it stays mapped as long as the array lives."""
    if not fds:
        return None
    return np.frombuffer(mmap.mmap(fds[0], size_bytes, prot=mmap.PROT_READ), np.uint8)
