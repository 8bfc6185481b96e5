"""One server's part in keeping copies: takes placements, holds buckets, fills those that join.

Adam, section 3.3.3. The native lanes replicate (docs/protocol.md); here is decided what they hold,
under which lease and with whom, which is always what the newest placement says:

    1 take      a placement -> what changes (`mirror_plan.py`) -> `hold` on the lanes
    2 connect   to a lane of every server that has a copy of ours (`peers.py`)
    3 fill      joining copies, chunk by chunk, within a budget (`filling.py`)
    4 tell      which copies are in step, which do not answer: the controller decides what follows
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from manyhands import kernels
from manyhands.errors import CheckpointError, ManyhandsError
from manyhands.parameter_server.filling import Fill, Filling
from manyhands.parameter_server.mirror_plan import (
    NOTHING,
    Stand,
    View,
    change,
    kept_joining,
    view_of,
)
from manyhands.parameter_server.peers import Peers
from manyhands.parameter_server.placement import Placement
from manyhands.parameter_server.shard_map import Chunk, ShardMap
from manyhands.parameter_server.suspicion import Suspicion

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.05
_FILL_EVERY_S = 0.01
_STALLED_S = 5.0
_PROGRESS_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class InStep:
    """A joining copy has everything, and from now on nothing is acknowledged without it."""

    bucket: int
    server: int
    since: int
    lease: int


@dataclass(frozen=True, slots=True)
class News:
    """What the controller is told with a heartbeat."""

    known: int  # the version of the newest placement that was carried out
    in_step: tuple[InStep, ...]
    suspects: tuple[int, ...]
    progress: Mapping[int, int]  # by bucket: updates applied; empty when told a moment ago


Restore = Callable[[Sequence[int], int], None]


class Mirrors:
    """What one server holds. Thread-safe; a thread of its own listens to the lanes.

    `restore(chunks, lease)` puts what the durable store has into chunks that are not held yet, and
    raises a ManyhandsError when it lacks one. `on_news` is called, by any thread, when there is
    something that the controller should hear at once.
    """

    def __init__(
        self,
        chunks: kernels.ChunkServer,
        shard_map: ShardMap,
        identity: tuple[int, str],
        peers: Peers,
        *,
        states: Sequence[int],
        fill_mb_s: float,
        suspect_s: float = 1.0,
        restore: Restore | None = None,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        now = time.monotonic()
        self._chunks = chunks
        self._shards = shard_map
        self._identity = identity
        self._peers = peers
        self._states = states
        self._restore = restore
        self._on_news = on_news
        self._by_bucket = _by_bucket(shard_map.chunks)
        self._view: View = NOTHING
        self._version = 0
        self._restoring: dict[int, int] = {}  # buckets that are being read back, and their leases
        self._lost: set[int] = set()  # those of which that failed
        # Of each chunk: the joining copies that the lane was told of, with their `since`.
        self._listed: dict[int, dict[int, int]] = defaultdict(dict)
        self._in_step: set[tuple[int, int]] = set()  # chunk, peer
        self._filling = Filling(fill_mb_s * 1e6, now)
        self._suspicion = Suspicion(suspect_s, now)
        self._suspects: frozenset[int] = frozenset()
        self._progress_told_s = 0.0
        self._lock = threading.RLock()
        self.failed = threading.Event()  # the lanes are no longer listened to
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="mirrors", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Listen no more, dial nobody; the lanes keep what they hold. Before they are stopped."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._peers.close()

    def take(self, placement: Placement) -> None:
        """Act on a placement, unless a newer one was taken before. Returns when the lanes know."""
        with self._lock:
            if placement.version <= self._version or self._closed.is_set():
                return
            old, new = self._view, view_of(placement, *self._identity)
            self._view, self._version = new, placement.version
            self._carry_out(old, new)
            self._peers.want(
                {peer: (member, self._lanes_to(peer)) for peer, member in new.peers().items()}
            )

    def news(self) -> News:
        """What the controller is to be told now."""
        with self._lock:
            return News(
                self._version, tuple(self._all_in_step()), tuple(self._suspects), self._progress()
            )

    def served(self) -> list[int]:
        """The chunks that this server is primary of at the moment."""
        with self._lock:
            return [
                chunk.number
                for bucket, stand in self._view.stands.items()
                if stand.role == "primary" and bucket not in self._restoring
                for chunk in self._by_bucket[bucket]
            ]

    @property
    def lost(self) -> int:
        """Buckets that this server was to read back from the durable store, and could not."""
        return len(self._lost & self._restoring.keys())

    def _carry_out(self, old: View, new: View) -> None:
        todo = change(old, new)
        for peer in todo.dropped:
            self._peers.drop(peer)
            self._chunks.drop_peer(peer)
        for bucket, stand in todo.stands.items():
            self._renew(bucket, old.stands.get(bucket), stand, todo.dropped)
            if self._restoring.get(bucket) != stand.lease:
                self._restoring.pop(bucket, None)
        self._restoring |= {bucket: new.stands[bucket].lease for bucket in todo.restored}
        self._hold(chunk for bucket in todo.stands for chunk in self._by_bucket[bucket])
        for lease in {new.stands[bucket].lease for bucket in todo.restored}:
            buckets = [bucket for bucket in todo.restored if new.stands[bucket].lease == lease]
            threading.Thread(
                target=self._read_back, args=(buckets, lease), name="restore", daemon=True
            ).start()

    def _renew(self, bucket: int, old: Stand | None, new: Stand, dropped: frozenset[int]) -> None:
        """Forget which copies were being filled, but for those that go on; let new ones wait."""
        kept = kept_joining(old, new, dropped)
        gone = {entry.server for entry in old.joining if entry.server not in kept} if old else ()
        for chunk in self._by_bucket[bucket]:
            for peer in gone:
                self._filling.forget(chunk.number, peer)
                self._listed[chunk.number].pop(peer, None)
                self._in_step.discard((chunk.number, peer))
            for entry in new.joining:
                if entry.server not in kept:
                    self._filling.add(
                        Fill(chunk.number, entry.server, entry.since, self._bytes_of(chunk))
                    )

    def _hold(self, chunks: Iterable[Chunk]) -> None:
        """Tell the lanes what this server is to these chunks, by the present view."""
        groups: dict[tuple[Stand, tuple[tuple[int, int], ...]], list[int]] = defaultdict(list)
        for chunk in chunks:
            if chunk.bucket not in self._restoring:
                stand = self._view.stands[chunk.bucket]
                joining = tuple(sorted(self._listed[chunk.number].items()))
                groups[stand, joining].append(chunk.number)
        for (stand, joining), numbers in groups.items():
            self._chunks.hold(
                numbers,
                role=stand.role,
                lease=stand.lease,
                mirrors=stand.mirrors,
                joining=joining,
            )

    def _listen(self) -> None:
        try:
            while not self._closed.is_set():
                self._listen_once(_FILL_EVERY_S if self._filling else _LOOK_EVERY_S)
        except Exception:  # the thread's main loop: the process is to end by it
            logger.exception("The lanes can't be listened to")
            self.failed.set()

    def _listen_once(self, timeout_s: float) -> None:
        events = self._chunks.wait_events(timeout_s)
        with self._lock:
            told = [self._heard(*event) for event in events]
            self._fill(time.monotonic())
            looked = self._look(time.monotonic())
        if looked or any(told):
            self._on_news()

    def _heard(self, kind: str, first: int, second: int, third: int) -> bool:
        """Take in an event of a lane; whether the controller should hear of it."""
        if kind == "in_step":
            return self._got_in_step(peer=first, chunk=second, since=third)
        if kind == "peer_lost":
            self._peers.lost(first, second)
            return False
        logger.info("Chunk %d is held by another server under lease %d.", first, second)
        return True

    def _got_in_step(self, *, peer: int, chunk: int, since: int) -> bool:
        # An event may have waited while the copy was taken out and let in again: it is then of
        # an entry that is no more, and says nothing of what the copy has missed meanwhile.
        if self._listed[chunk].get(peer) != since:
            return False
        self._in_step.add((chunk, peer))
        self._filling.done(chunk, peer, time.monotonic())
        return True

    def _fill(self, now_s: float) -> None:
        taken = self._filling.take(now_s)
        for fill in taken:
            self._listed[fill.chunk][fill.peer] = fill.since
        self._hold(self._shards.chunks[fill.chunk] for fill in taken)

    def _look(self, now_s: float) -> bool:
        before = self._suspects
        self._suspects = self._suspicion.look(self._chunks.lagging(), now_s)
        self._suspects |= self._filling.stalled(now_s, _STALLED_S)
        return bool(self._suspects - before)

    def _read_back(self, buckets: Sequence[int], lease: int) -> None:
        """Fill buckets that nobody holds any more from the durable store, then serve them."""
        chunks = [chunk for bucket in buckets for chunk in self._by_bucket[bucket]]
        try:
            if self._restore is None:
                raise CheckpointError("This run has no durable store.")
            self._restore([chunk.number for chunk in chunks], lease)
        except (ManyhandsError, OSError, ValueError) as error:
            self._lost.update(buckets)
            logger.error(
                "%d buckets have no copy left and can't be read back: %s", len(buckets), error
            )
            return
        with self._lock:
            ours = {bucket for bucket in buckets if self._restoring.get(bucket) == lease}
            for bucket in ours:  # the others are another server's affair by now
                del self._restoring[bucket]
            self._hold(chunk for chunk in chunks if chunk.bucket in ours)

    def _all_in_step(self) -> Iterable[InStep]:
        for bucket, stand in self._view.stands.items():
            for entry in stand.joining:
                if all((c.number, entry.server) in self._in_step for c in self._by_bucket[bucket]):
                    yield InStep(bucket, entry.server, entry.since, stand.lease)

    def _progress(self) -> dict[int, int]:
        now = time.monotonic()
        if now < self._progress_told_s + _PROGRESS_EVERY_S:
            return {}
        self._progress_told_s = now
        sums: dict[int, int] = defaultdict(int)
        for chunk, _, version in self._chunks.progress().tolist():
            sums[self._shards.chunks[chunk].bucket] += version
        return sums

    def _lanes_to(self, peer: int) -> frozenset[int]:
        return frozenset(
            self._shards.lane_of(chunk)
            for bucket in self._view.buckets_sent_to(peer)
            for chunk in self._by_bucket[bucket]
        )

    def _bytes_of(self, chunk: Chunk) -> int:
        return 4 * chunk.floats * (1 + self._states[chunk.parameter])


def _by_bucket(chunks: Sequence[Chunk]) -> dict[int, list[Chunk]]:
    buckets: dict[int, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        buckets[chunk.bucket].append(chunk)
    return buckets
