"""One lane of one server, reached over a connection that mends itself.

The retry policy lives here and nowhere else. A call that fails because the connection broke is made
again over a new one, with the same sequence numbers, so that the server recognises what it had
already applied: an acknowledged update is applied exactly once. After `retry_s` of vain attempts
the server is said to be unavailable.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from manyhands import kernels
from manyhands.errors import ManyhandsError, ProtocolError, ServerUnavailable, StaleRoute
from manyhands.messages import Refusal
from manyhands.parameter_server.dialling import Dialling, dial
from manyhands.parameter_server.shard_map import Chunk
from manyhands.transport.endpoint import Endpoint

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0
_ROUTE_REFUSALS = (Refusal.UNKNOWN_CHUNK, Refusal.STALE_LEASE, Refusal.WRONG_LANE)
_CLOSING_REFUSALS = (Refusal.MALFORMED, Refusal.TOO_LARGE, Refusal.VERSION, Refusal.STRANGER)

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Counters:
    """What has passed over connections.

    `waited_s` is the time in which there was more to send and the server did not take it;
    `reconnects` counts connections that were lost.
    """

    pushed_bytes: int = 0
    pulled_bytes: int = 0
    waited_s: float = 0.0
    reconnects: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.pushed_bytes + other.pushed_bytes,
            self.pulled_bytes + other.pulled_bytes,
            self.waited_s + other.waited_s,
            self.reconnects + other.reconnects,
        )


class LaneLink:
    """The connection to one lane. Used by one thread at a time; `interrupt` by any.

    `call` blocks until the server has answered, or for `retry_s` after it went silent.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        lane: int,
        chunks: Sequence[Chunk],
        dialling: Dialling,
        *,
        map_version: int,
        retry_s: float,
        stopping: threading.Event,
    ) -> None:
        self.lane = lane
        self.is_needed = bool(chunks)
        self._endpoint = endpoint
        self._chunks = chunks
        self._dialling = dialling
        self._map_version = map_version
        self._retry_s = retry_s
        self._stopping = stopping
        self._link: kernels.Link | None = None
        self._past = Counters()
        self._sequence = 1

    def take_sequences(self, count: int) -> int:
        """The first of so many sequence numbers that no other update of this lane will have."""
        first = self._sequence
        self._sequence += count
        return first

    def connect(self) -> None:
        """Connect now rather than at the first call."""
        self.call(lambda link: None)

    def call(self, work: Callable[[kernels.Link], _Answer]) -> _Answer:
        """What `work` gives, called again with a new link as often as connections break.

        ServerUnavailable after `retry_s`; StaleRoute when the chunk lives elsewhere; ProtocolError
        for any other refusal, of which nothing was applied.
        """
        deadline: float | None = None
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return work(self._connected())
            except kernels.Refused as refusal:
                raise self._refused(refusal) from None
            except (OSError, ServerUnavailable) as error:  # a TimeoutError is an OSError
                self._lose()
                now = time.monotonic()
                deadline = deadline or now + self._retry_s
                if now >= deadline or self._stopping.wait(pause_s * random.uniform(0.5, 1.5)):
                    raise self._unavailable(error) from None
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    @property
    def counters(self) -> Counters:
        """Over all connections so far."""
        link = self._link
        return self._past if link is None else self._past + _counted(link)

    def interrupt(self) -> None:
        """Cut the connection: a thread that waits on it hears of it at once. Any thread may."""
        link = self._link
        if link is not None:
            link.close()

    def close(self) -> None:
        """Hang up. May be called twice."""
        self._drop()

    def _connected(self) -> kernels.Link:
        if self._link is None and not self._stopping.is_set():
            self._link = dial(
                self._dialling, self._endpoint, self.lane, self._chunks, self._map_version
            )
        if self._link is None or self._stopping.is_set():  # also when it was set while we dialled
            raise ConnectionAbortedError("the client is closing")
        return self._link

    def _lose(self) -> None:
        if self._link is not None:
            self._past = self._past + Counters(reconnects=1)
        self._drop()

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
            self._past = self._past + _counted(link)

    def _refused(self, refusal: kernels.Refused) -> ManyhandsError:
        sentence = f"{self._name} refused: {refusal}"
        if refusal.code in _CLOSING_REFUSALS:
            self._lose()
        if refusal.code in _ROUTE_REFUSALS:
            return StaleRoute(sentence)
        return ProtocolError(sentence, refusal=refusal.code)

    def _unavailable(self, error: Exception) -> ServerUnavailable:
        if self._stopping.is_set():
            return ServerUnavailable(f"{self._name} is no longer wanted: the client is closing.")
        return ServerUnavailable(
            f"{self._name} has not answered for {self._retry_s:g} s: see whether its process runs "
            f"and its machine is reached from here. The last attempt: {error}"
        )

    @property
    def _name(self) -> str:
        return f"The parameter server at {self._endpoint}"


def _counted(link: kernels.Link) -> Counters:
    return Counters(link.pushed_bytes, link.pulled_bytes, link.waited_s)
