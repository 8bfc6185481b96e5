"""Carries a group's calls to the chunks' primaries until every chunk was answered.

The retry policy lives here and nowhere else. What a connection loses, or a server that is not (or
not yet, or no longer) the primary refuses, is split again by the newest routes and sent on, with
the same sequence number, until it is answered. A call ends without success only after `retry_s` in
which no chunk was answered and no route of those that are left changed, and never half-way before.

**Exactly once.** An update is known by (client, sequence). A chunk's log keeps the last sequence of
each client and goes with the chunk to every copy; an update at or below it is acknowledged and not
applied. That is sound only if a client's updates reach a chunk in the order of their numbers, each
once the one before it is decided. So no update of a client may overtake another:

 1. A chunk belongs to one group for ever, whichever server serves it, and a group is used by one
    thread at a time. That thread draws the number of a call (`ServerLink`), higher than all before,
    and is in the call until every chunk of it is acknowledged or the call raises. So at any time a
    chunk has at most one number of this client that is not decided.
 2. Within a call a chunk is in one part, a part on one link, and an attempt at it has ended, its
    native call included, before the next begins. What the earlier attempt left in a socket, or in
    the queue of a server that is paused, is the same number with the same contents: `values` are
    unchanged until the call returns.
 3. Such a leftover may arrive at any later time: after the call was acknowledged elsewhere, after
    the next call's update was applied, after the route has changed twice. Whoever is the primary
    then has in its log the number of the acknowledged update, because all copies that may be
    promoted got it before it was acknowledged; the leftover is not above it and is not applied. A
    server that only believes to be the primary may apply it to its own copy, which is given up: its
    copies refuse its lease, so it can acknowledge nothing.
 4. A push that is half acknowledged: the chunks that are not are sent again. One that was applied
    and whose acknowledgement was lost is recognised by the log, wherever it goes.
 5. A route that changes under a call, and `interrupt`, cut the link from another thread. The cut
    ends the attempt as a lost connection does, with nothing between the two; the thread of the call
    alone decides what is sent again.
 6. A call that raises (time is up, interrupt, Ctrl-C) leaves updates that may be applied or not,
    once at most. The group's next call has a higher number: either the leftover comes first, or it
    is not applied. Only where payloads travel by reference must the caller leave the arrays of such
    a call alone, for what a server reads there later is what it finds.

Overwriting an array (`set`) is an update with a number like any other.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from manyhands import kernels
from manyhands.errors import ManyhandsError, ProtocolError, ServerUnavailable, StaleRoute
from manyhands.messages import Refusal
from manyhands.parameter_server.client.links import CLOSING_REFUSALS, Links, Moved
from manyhands.parameter_server.client.parts import ChunkSet, Outcomes, Part, split
from manyhands.parameter_server.client.routes import Routes, RouteTable
from manyhands.parameter_server.shard_map import Chunk, ShardMap

_WORTH_A_THREAD_BYTES = 1 << 20  # of a part: less is sent before a thread has woken up
_THREADS_PER_LANE = 4  # at most: parts of a lane may lie on several servers
_ROUTE_REFUSALS = (Refusal.UNKNOWN_CHUNK, Refusal.STALE_LEASE, Refusal.WRONG_LANE)
_REFUSALS_OF_ALL = (*CLOSING_REFUSALS, Refusal.NOT_ALLOWED)  # not of one chunk's update

# To be done with one part over one link; writes to the outcomes what it has carried out, 1 each.
Work = Callable[[kernels.Link, Part, Outcomes], None]


@dataclass(frozen=True, slots=True)
class Pauses:
    """Between attempts: a share of the time spent in vain so far, within limits."""

    share: float
    longest_s: float
    shortest_s: float = 0.02

    def after(self, vain_s: float) -> float:
        pause_s = min(max(self.share * vain_s, self.shortest_s), self.longest_s)
        return pause_s * random.uniform(0.5, 1.5)


# A server that has just become the primary may not know it yet, and a restarted one may be back at
# any moment; a new route ends a pause at once.
_WHILE_ROUTES_CHANGE = Pauses(share=0.05, longest_s=0.25)
_WHILE_ROUTES_STAY = Pauses(share=1.0, longest_s=2.0)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of sending a part: the chunks to send again, and why; a refusal that is final."""

    part: Part
    left: Sequence[Chunk]
    why: Exception
    refusal: ManyhandsError | None = None


class Delivery:
    """The calls of one group. Used by one thread at a time; `interrupt` by any."""

    def __init__(
        self,
        shards: ShardMap,
        links: Links,
        routes: Routes,
        *,
        retry_s: float,
        stopping: threading.Event,
        name: str,
    ) -> None:
        self._shards = shards
        self._links = links
        self._routes = routes
        self._retry_s = retry_s
        self._stopping = stopping
        self._pauses = _WHILE_ROUTES_CHANGE if routes.may_change else _WHILE_ROUTES_STAY
        self._threads = ThreadPoolExecutor(_THREADS_PER_LANE * shards.lanes, name)

    def carry_out(self, chunks: ChunkSet, work: Work) -> None:
        """Have the work done for every chunk, over the link that leads to it.

        ServerUnavailable after `retry_s` in vain, StaleRoute when the server has another map, or
        another lease and there is no controller; ProtocolError for any other refusal, raised when
        the other chunks are done.
        """
        table = self._routes.table
        self._links.keep_needed(table)
        failed = self._attempt_all(chunks.parts(table), work)
        if failed:
            self._carry_on(failed, work)

    def close(self) -> None:
        """Hang up. No other thread may be in a call; see `interrupt`."""
        self._threads.shutdown()
        self._links.cut()

    def _carry_on(self, failed: list[Attempt], work: Work) -> None:
        since = time.monotonic()
        final: ManyhandsError | None = None
        while failed:
            final = final or next((f.refusal for f in failed if f.refusal), None)
            left = [chunk for attempt in failed for chunk in attempt.left]
            if not left:
                break
            vain_s = time.monotonic() - since
            if vain_s >= self._retry_s or self._stopping.is_set():
                raise self._unavailable(failed)
            table = self._next_chance(failed, vain_s)
            is_moved = any(attempt.part.is_moved(table) for attempt in failed)
            if is_moved:
                self._links.note_reroute()
            failed = self._attempt_all(split(self._shards, left, table), work)
            if is_moved or sum(len(attempt.left) for attempt in failed) < len(left):
                since = time.monotonic()
        if final is not None:
            raise final

    def _next_chance(self, failed: Sequence[Attempt], vain_s: float) -> RouteTable:
        """The newest routes: at once if what failed has moved already, else after a pause."""
        table = self._routes.table
        if any(attempt.part.is_moved(table) for attempt in failed):
            return table
        pause_s = self._pauses.after(vain_s)
        if self._routes.may_change:
            self._routes.wait_newer(table.version, pause_s)
        else:
            self._stopping.wait(pause_s)
        return self._routes.table

    def _attempt_all(self, parts: Sequence[Part], work: Work) -> list[Attempt]:
        """Send every part, at the same time where they are large; those that were not done."""
        if len(parts) <= 1 or max(part.size_bytes for part in parts) < _WORTH_A_THREAD_BYTES:
            found = [self._attempt(part, work) for part in parts]
        else:
            others = [self._threads.submit(self._attempt, part, work) for part in parts[1:]]
            try:
                found = [self._attempt(parts[0], work)]
            finally:
                wait(others)
            found += [future.result() for future in others]
        return [attempt for attempt in found if attempt is not None]

    def _attempt(self, part: Part, work: Work) -> Attempt | None:
        outcomes = np.zeros(len(part.chunks), np.int8)
        if part.target is None:
            return Attempt(part, part.chunks, StaleRoute("No server serves them at present."))
        try:
            self._links.call(part, lambda link: work(link, part, outcomes))
        except kernels.Refused as refusal:
            return self._refused(part, outcomes, refusal)
        except (OSError, ServerUnavailable, Moved) as error:  # a TimeoutError is an OSError
            return Attempt(part, part.remaining(outcomes), error)
        return None

    def _refused(self, part: Part, outcomes: Outcomes, refusal: kernels.Refused) -> Attempt:
        # The link tells of a stale lease only if nothing worse was said of another chunk.
        if refusal.code == Refusal.STALE_LEASE and self._routes.may_change:
            return Attempt(part, part.remaining(outcomes), refusal)
        again = self._not_refused(part, outcomes, refusal)
        sentence = f"{_name(part)} refused: {refusal}"
        if refusal.code in _ROUTE_REFUSALS:
            return Attempt(part, again, refusal, StaleRoute(sentence))
        return Attempt(part, again, refusal, ProtocolError(sentence, refusal=refusal.code))

    def _not_refused(self, part: Part, outcomes: Outcomes, refusal: kernels.Refused) -> list[Chunk]:
        """The chunks that are not done and were not themselves refused for good."""
        if refusal.code in _REFUSALS_OF_ALL:
            return []
        worth_it = {0, -Refusal.STALE_LEASE} if self._routes.may_change else {0}
        return [
            chunk
            for chunk, outcome in zip(part.chunks, outcomes.tolist(), strict=True)
            if outcome in worth_it and chunk.number != refusal.chunk
        ]

    def _unavailable(self, failed: Sequence[Attempt]) -> ServerUnavailable:
        attempt = next(attempt for attempt in failed if attempt.left)
        name = _name(attempt.part)
        if self._stopping.is_set():
            return ServerUnavailable(f"{name} is no longer wanted: the client is closing.")
        return ServerUnavailable(
            f"{name} has not answered for {self._retry_s:g} s: see whether its process runs and "
            f"its machine is reached from here. The last attempt: {attempt.why}"
        )


def _name(part: Part) -> str:
    if part.target is None:
        return f"The primary of bucket {part.chunks[0].bucket}, which nobody is at present,"
    return f"The parameter server at {part.target.endpoint}"
