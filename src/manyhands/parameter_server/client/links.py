"""The connections of one group of chunks: made when needed, cut when what they carry has moved.

A call that waits for a server that is paused or cut off would wait for long. When a new table of
routes comes, the calls under way whose chunks have another primary by then are ended by cutting
their links; the caller sends what was not answered to where the chunks are now. No cut is missed:
a call says first what it carries and looks at the table then, the table is replaced first and the
calls under way are looked at then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import TypeVar

from manyhands import kernels
from manyhands.messages import Refusal
from manyhands.parameter_server.client.dialling import Dialling
from manyhands.parameter_server.client.lane_link import Counters, LaneLink
from manyhands.parameter_server.client.parts import Part
from manyhands.parameter_server.client.routes import Routes, RouteTable, Target
from manyhands.parameter_server.shard_map import Chunk, ShardMap

CLOSING_REFUSALS = (Refusal.MALFORMED, Refusal.TOO_LARGE, Refusal.VERSION, Refusal.STRANGER)

_Answer = TypeVar("_Answer")
_Key = tuple[Target, int]


class Moved(Exception):
    """The chunks of a part are served elsewhere by now; nothing was sent."""


class Links:
    """One connection to each lane of each server that the group needs.

    Parts on different lanes or servers may be called at the same time; the rest is thread-safe.
    """

    def __init__(
        self, shards: ShardMap, chunks: Sequence[Chunk], dialling: Dialling, routes: Routes
    ) -> None:
        self._shards = shards
        self._chunks = chunks
        self._dialling = dialling
        self._routes = routes
        self._links: dict[_Key, LaneLink] = {}
        self._under_way: dict[LaneLink, Part] = {}
        self._kept_for: RouteTable | None = None
        self._past = Counters()
        self._is_closed = False
        self._lock = threading.Lock()
        routes.listen(self._cut_moved)

    def call(self, part: Part, work: Callable[[kernels.Link], _Answer]) -> _Answer:
        """What `work` gives, over the link to the part's server.

        OSError and ServerUnavailable when that is lost, and Moved. A refusal leaves the link whole.
        """
        link = self._begin(part)
        try:
            if part.table is not self._routes.table and part.is_moved(self._routes.table):
                raise Moved
            return link.call(work)
        except Moved:
            raise
        except kernels.Refused as refusal:
            if refusal.code in CLOSING_REFUSALS:
                self._lose(link)
            raise
        except BaseException:
            self._lose(link)
            raise
        finally:
            with self._lock:
                del self._under_way[link]

    def keep_needed(self, table: RouteTable) -> None:
        """Hang up on servers that serve none of the chunks any more. Not during a call."""
        if table is self._kept_for:
            return
        self._kept_for = table
        routes = (table.of(chunk.bucket) for chunk in self._chunks)
        needed = {route.target for route in routes if route is not None}
        with self._lock:
            old = [link for (target, _), link in self._links.items() if target not in needed]
        for link in old:
            self._drop(link)

    @property
    def counters(self) -> Counters:
        """Over all connections so far."""
        with self._lock:
            return reduce(add, (link.counters for link in self._links.values()), self._past)

    def note_reroute(self) -> None:
        """Count a call that goes on elsewhere."""
        with self._lock:
            self._past += Counters(reroutes=1)

    def cut(self) -> None:
        """End every call and every later one with an OSError. Any thread may."""
        with self._lock:
            self._is_closed = True
            links = tuple(self._links.values())
        for link in links:
            link.cut()

    def _begin(self, part: Part) -> LaneLink:
        assert part.target is not None
        key = part.target, part.lane
        with self._lock:
            if self._is_closed:
                raise ConnectionAbortedError("the client is closing")
            link = self._links.get(key)
            if link is not None and link.is_cut:  # for a call that had ended just before
                self._past += link.counters
                link = None
            if link is None:
                link = self._links[key] = self._new_link(*key)
            self._under_way[link] = part
        return link

    def _new_link(self, target: Target, lane: int) -> LaneLink:
        own = [chunk for chunk in self._chunks if self._shards.lane_of(chunk) == lane]
        return LaneLink(target, lane, own, self._dialling, self._shards.version)

    def _cut_moved(self, table: RouteTable) -> None:
        with self._lock:
            stuck = [link for link, part in self._under_way.items() if part.is_moved(table)]
        for link in stuck:
            link.cut()

    def _lose(self, link: LaneLink) -> None:
        is_loss = link.is_connected and not link.is_cut
        self._drop(link)
        with self._lock:
            self._past += Counters(reconnects=int(is_loss))

    def _drop(self, link: LaneLink) -> None:
        link.cut()
        with self._lock:
            if self._links.pop((link.target, link.lane), None) is not None:
                self._past += link.counters
