"""Delayed persistence: a thread that writes chunks back to the durable store, behind the updates.

Adam, section 3.3.2: parameters are a write-back cache. Every `every_s` the thread looks which
chunks have moved, takes each once, however many updates it has had, and writes it. Updates never
wait for the disk, and a disk that is full or gone costs a warning, not the run:

    lane threads     update update update | copy a chunk | update update ...
                                              |
    this thread      which moved? collect, write, collect, write, ... force to disk, tidy up, wait

What a power cut can take is at most what came in the last `every_s`, as long as the disk keeps up:
the pause between two rounds is shortened by the time that a segment takes to reach the disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from manyhands.errors import ConfigError, in_a_sentence
from manyhands.optim.native import RuleSpec
from manyhands.parameter_server.shard_map import ShardMap
from manyhands.parameter_server.store.chunk_snapshot import read_header
from manyhands.parameter_server.store.folder import SEGMENT_BYTES, Store, cut_of
from manyhands.parameter_server.store.restoring import read_snapshots
from manyhands.parameter_server.store.segment_file import Cut, SegmentWriter

logger = logging.getLogger(__name__)

_LEAST_PAUSE_S = 0.1
_FIRST_LOOK_S = 0.2  # until something is on the disk for the first time


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteBack:
    """Where and how often a server writes back. `directory`'s parent must exist.

    `era` is that of `store.next_era`: the same for all servers of a run. `most_mb_s` bounds the
    bandwidth. `order` is the memory order of four-dimensional parameters, for whoever reads them.
    """

    directory: Path
    era: int = 1
    every_s: float = 5.0
    most_mb_s: float = 200.0
    order: str = ""

    def __post_init__(self) -> None:
        for name in ("every_s", "most_mb_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected a number > 0.")


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What was written back since the server started. `trouble` is empty while all is well."""

    records: int = 0
    written_bytes: int = 0
    updates: int = 0  # that were folded into the records
    rounds: int = 0
    round_s: float = 0.0  # how long the last one took
    durable_at: float = 0.0  # monotonic; all that was acknowledged before is on the disk
    trouble: str = ""


class Chunks(Protocol):
    """What persistence asks of `kernels.ChunkServer`."""

    def progress(self) -> npt.NDArray[np.int64]: ...
    def collect(self, chunk: int, *, since: int = -1) -> bytes | None: ...
    def restore(self, chunk: int, snapshot: bytes, lease: int) -> None: ...


class Persistence:
    """Writes back the chunks that a server is primary of. Use it in a `with` statement.

    `served` says which chunks those are at the moment. `restore` and `report` may be called from
    any thread. Leaving writes what has moved once more, so the lanes must still be running.
    """

    def __init__(
        self,
        chunks: Chunks,
        shard_map: ShardMap,
        rules: Sequence[RuleSpec],
        settings: WriteBack,
        served: Callable[[], Iterable[int]],
    ) -> None:
        self._chunks = chunks
        self._shards = shard_map
        self._rules = rules
        self._settings = settings
        self._served = served
        self._cuts = [cut_of(chunk, shard_map, rules) for chunk in shard_map.chunks]
        self._store = Store(settings.directory, era=settings.era, order=settings.order)
        self._scattered: frozenset[Cut] = frozenset()
        self._folded: dict[int, int] = {}
        self._report = StoreReport()
        self._segment_s = 0.0
        self._is_late = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="write-back", daemon=True)

    @property
    def report(self) -> StoreReport:
        """What was written so far, and what is wrong."""
        return self._report

    def start(self) -> None:
        self._thread.start()

    def restore(self, chunks: Sequence[int], lease: int) -> None:
        """Fill chunks from the store, before they are served. CheckpointError when it lacks one."""
        found = read_snapshots(
            self._settings.directory,
            self._shards,
            [self._shards.chunks[number] for number in chunks],
            self._rules,
            era=self._settings.era,
            order=self._settings.order,
        )
        for number, snapshot in found.items():
            self._chunks.restore(number, snapshot, lease)

    def close(self) -> None:
        """Write back once more, as quickly as the disk takes it, and end; may be called twice."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Persistence:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._closing.wait(pause_s):
            began = time.monotonic()
            self.write_back()
            pause_s = self._pause_s(time.monotonic() - began)
        self.write_back()

    def write_back(self) -> None:
        """One round. Whatever goes wrong is reported, and tried again by the next."""
        began = time.monotonic()
        try:
            self._round()
        except Exception as error:  # the thread's main loop: the run goes on without it
            self._complain(error)
            return
        self._relax()
        took = time.monotonic() - began
        rounds = self._report.rounds + 1
        self._report = replace(self._report, rounds=rounds, round_s=took, durable_at=began)
        self._look_at_the_clock(took)

    def _round(self) -> None:
        if not self._store.refresh():
            logger.warning(
                "What was written back to %s has vanished from it; all of it is written again.",
                self._settings.directory,
            )
        if not self._report.records:
            self._store.remove_abandoned()
        due = deque(self._due())
        while due:
            self._write_segment(due)
            self._scattered = self._store.tidy()

    def _due(self) -> list[int]:
        """The chunks that have moved since they were written, and those worth moving together."""
        served = set(self._served())
        return [
            number
            for number, lease, version in self._chunks.progress().tolist()
            if number in served and self._is_due(self._cuts[number], lease, version)
        ]

    def _is_due(self, cut: Cut, lease: int, version: int) -> bool:
        return version > 0 and (self._store.is_newer(cut, lease, version) or cut in self._scattered)

    def _write_segment(self, due: deque[int]) -> None:
        began = time.monotonic()
        folded: dict[int, int] = {}
        with self._store.segment() as writer:
            while due and writer.size_bytes < SEGMENT_BYTES:
                number = due.popleft()
                snapshot = self._chunks.collect(number)
                if snapshot is not None and self._add(writer, number, snapshot):
                    folded[number] = read_header(snapshot).version
                    self._keep_pace(began, writer.size_bytes)
        self._segment_s = time.monotonic() - began
        self._count(folded, writer.size_bytes)

    def _add(self, writer: SegmentWriter, number: int, snapshot: bytes) -> bool:
        header, cut = read_header(snapshot), self._cuts[number]
        if not self._is_due(cut, header.last_lease, header.version):
            return False
        writer.add(cut, snapshot)
        return True

    def _keep_pace(self, began: float, written_bytes: int) -> None:
        due = began + written_bytes / (self._settings.most_mb_s * 1e6)
        ahead_s = due - time.monotonic()
        if ahead_s > 0:
            self._closing.wait(ahead_s)

    def _count(self, folded: dict[int, int], written_bytes: int) -> None:
        updates = sum(max(0, v - self._folded.get(n, 0)) for n, v in folded.items())
        self._folded |= folded
        self._report = replace(
            self._report,
            records=self._report.records + len(folded),
            written_bytes=self._report.written_bytes + (written_bytes if folded else 0),
            updates=self._report.updates + updates,
        )

    def _pause_s(self, took_s: float) -> float:
        """Until the next round, so that what it writes is on the disk in time."""
        if not self._report.records and not self._report.trouble:
            return min(_FIRST_LOOK_S, self._settings.every_s)
        return max(_LEAST_PAUSE_S, self._settings.every_s - took_s - self._segment_s)

    def _look_at_the_clock(self, took_s: float) -> None:
        if took_s > self._settings.every_s and not self._is_late:
            self._is_late = True
            logger.warning(
                "Writing back to %s takes %.1f s, and it was to be done every %g s: a power cut "
                "would lose what was learned in that time. A faster disk, more bandwidth "
                "(most_mb_s) or a longer interval helps.",
                self._settings.directory,
                took_s,
                self._settings.every_s,
            )

    def _complain(self, error: Exception) -> None:
        reason = (error.strerror if isinstance(error, OSError) else None) or in_a_sentence(error)
        trouble = f"The parameters can't be written back to {self._settings.directory}: {reason}."
        if trouble != self._report.trouble:
            logger.warning(
                "%s Training goes on, and it is tried again every %g s; a power cut would lose "
                "what was learned since.",
                trouble,
                self._settings.every_s,
            )
        self._report = replace(self._report, trouble=trouble)

    def _relax(self) -> None:
        if self._report.trouble:
            self._report = replace(self._report, trouble="")
            logger.warning("The parameters are written back to %s again.", self._settings.directory)
