"""One connection to one lane of one server, from its dialling to its end.

It lives once: what is lost or cut stays so, and whoever needs the lane makes another. So a thread
that cuts it can't hit the one that comes after it, and a call can't begin on it unnoticed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from manyhands import kernels
from manyhands.parameter_server.client.dialling import Dialling, dial
from manyhands.parameter_server.client.routes import Target
from manyhands.parameter_server.shard_map import Chunk

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Counters:
    """What has passed over connections.

    `waited_s` is the time in which there was more to send and the server did not take it;
    `reconnects` counts connections that were lost, `reroutes` calls that went on elsewhere because
    the chunks' primary had changed meanwhile.
    """

    pushed_bytes: int = 0
    pulled_bytes: int = 0
    waited_s: float = 0.0
    reconnects: int = 0
    reroutes: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.pushed_bytes + other.pushed_bytes,
            self.pulled_bytes + other.pulled_bytes,
            self.waited_s + other.waited_s,
            self.reconnects + other.reconnects,
            self.reroutes + other.reroutes,
        )


class LaneLink:
    """The connection. Used by one thread at a time; `cut` by any, also while it is dialled."""

    def __init__(
        self,
        target: Target,
        lane: int,
        chunks: Sequence[Chunk],
        dialling: Dialling,
        map_version: int,
    ) -> None:
        self.target = target
        self.lane = lane
        self._chunks = chunks
        self._dialling = dialling
        self._map_version = map_version
        self._link: kernels.Link | None = None
        self._dialled: Future[kernels.Link] = Future()
        self._is_dialling = False
        self.is_cut = False

    def call(self, work: Callable[[kernels.Link], _Answer]) -> _Answer:
        """What `work` gives; dials first if that was not done yet.

        OSError or ServerUnavailable when the server does not answer or the link is cut; other
        errors of `dial` and of `work` as they are.
        """
        if self._link is None:
            self._link = self._connected()
        return work(self._link)

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    @property
    def counters(self) -> Counters:
        """What has passed so far. Any thread may ask."""
        link = self._link
        if link is None:
            return Counters()
        return Counters(link.pushed_bytes, link.pulled_bytes, link.waited_s)

    def cut(self) -> None:
        """Close for good; a thread that waits for an answer hears of it at once. Any thread may."""
        self.is_cut = True
        with suppress(InvalidStateError):
            self._dialled.set_exception(ConnectionAbortedError("the link was cut"))
            return
        if self._dialled.exception() is None:
            self._dialled.result().close()

    def _connected(self) -> kernels.Link:
        """Dial in a thread that can be left behind: a server that is paused may never answer."""
        if not self._is_dialling and not self.is_cut:
            self._is_dialling = True
            threading.Thread(target=self._dial, name="dial", daemon=True).start()
        return self._dialled.result()

    def _dial(self) -> None:
        try:
            link = dial(
                self._dialling, self.target.endpoint, self.lane, self._chunks, self._map_version
            )
        except BaseException as error:
            with suppress(InvalidStateError):
                self._dialled.set_exception(error)
            return
        try:
            self._dialled.set_result(link)
        except InvalidStateError:
            link.close()
