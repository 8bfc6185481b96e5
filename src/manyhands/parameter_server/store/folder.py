"""A directory of segments: the durable store of the parameters, as a server writes it.

Adam, section 3.3.2. Several servers may write into one directory, or each into one on its own disk.
Records are only ever added; what newer ones have superseded is removed once those are on the disk.
Reading a model back is in `restoring.py`.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from manyhands.errors import CheckpointError
from manyhands.optim.native import RuleSpec
from manyhands.parameter_server.shard_map import Chunk, ShardMap
from manyhands.parameter_server.store.catalogue import Position, live, records_of, tidying
from manyhands.parameter_server.store.segment_file import (
    PARTIAL,
    SUFFIX,
    Cut,
    Segment,
    SegmentWriter,
    read_segment,
    remove_abandoned,
)

logger = logging.getLogger(__name__)

_ERA = re.compile(r"(\d{6,})-")
SEGMENT_BYTES = 64 << 20  # of a finished segment, about; what one force to the disk is good for


class Store:
    """What a server has written and what it finds written by others. Used by one thread.

    Everything that touches the disk raises OSError when that is full, read-only or gone, and may
    simply be tried again.
    """

    def __init__(self, directory: Path, *, era: int = 1, order: str = "") -> None:
        self.directory = directory
        self._era = era
        self._order = order
        self._writer = secrets.token_hex(4)
        self._written = 0
        self._segments: dict[str, Segment] = {}
        self._unreadable: set[str] = set()
        self._newest: dict[Cut, Position] = {}

    def refresh(self) -> bool:
        """Look what is in the directory, which is made if it is missing.

        False when records that counted have vanished: somebody removed them, or the directory.
        """
        self.directory.mkdir(exist_ok=True)
        names = set(segment_names(self.directory)) - self._unreadable
        if names == self._segments.keys():
            return True
        for name in self._segments.keys() - names:
            del self._segments[name]
        for name in names - self._segments.keys():
            self._read(name)
        before = self._newest
        counting = live(records_of(self._segments.values()))
        self._newest = {one.record.cut: one.position for one in counting}
        return all(self.position(cut) >= position for cut, position in before.items())

    def position(self, cut: Cut) -> Position:
        """How new the store's record of these floats is; lower than any where there is none."""
        return self._newest.get(cut, (0, 0, 0))

    def is_newer(self, cut: Cut, lease: int, version: int) -> bool:
        """Whether a chunk at this position is newer than what the store has of it."""
        return (self._era, lease, version) > self.position(cut)

    @contextmanager
    def segment(self) -> Iterator[SegmentWriter]:
        """A segment to fill; it counts when the block ends without an error."""
        self._written += 1
        name = f"{self._era:06d}-{self._writer}-{self._written:08d}{SUFFIX}"
        writer = SegmentWriter(self.directory / name, era=self._era, order=self._order)
        try:
            yield writer
            if len(writer):
                self._add(writer.finish())
        finally:
            writer.discard()

    def tidy(self) -> frozenset[Cut]:
        """Remove segments that nothing in counts; what is worth writing again, to free others."""
        found = tidying(self._segments.values(), spare_bytes=SEGMENT_BYTES)
        for path in found.superseded:
            path.unlink(missing_ok=True)
            self._segments.pop(path.name, None)
        return found.scattered

    def remove_abandoned(self) -> None:
        """Remove what writers that were killed left unfinished."""
        remove_abandoned(self.directory)

    def _read(self, name: str) -> None:
        try:
            self._segments[name] = read_segment(self.directory / name)
        except FileNotFoundError:
            pass  # another server has just removed it
        except CheckpointError as error:
            self._unreadable.add(name)
            logger.warning("%s It is left as it is; what it held is written again.", error)

    def _add(self, segment: Segment) -> None:
        self._segments[segment.path.name] = segment
        for one in records_of([segment]):
            cut = one.record.cut
            self._newest[cut] = max(one.position, self.position(cut))


def cut_of(chunk: Chunk, shard_map: ShardMap, rules: Sequence[RuleSpec]) -> Cut:
    """A chunk as the store names it."""
    spec = shard_map.parameters[chunk.parameter]
    return Cut(
        parameter=spec.name,
        shape=spec.shape,
        rule=rules[chunk.parameter].name,
        first_row=chunk.first_row,
        rows=chunk.rows,
        row_floats=chunk.row_floats,
    )


def segment_names(directory: Path) -> list[str]:
    """The segments in a directory, in the order of their eras."""
    return sorted(path.name for path in directory.glob(f"*{SUFFIX}"))


def next_era(directories: Iterable[Path]) -> int:
    """The number for a run that goes on from what is stored, or begins: 1 where nothing is."""
    names = [name for directory in directories for name in segment_names(directory)]
    eras = [int(found[1]) for found in map(_ERA.match, names) if found]
    return 1 + max(eras, default=0)


def discard(directories: Iterable[Path]) -> None:
    """Remove everything that is stored: a run begins anew, or goes on from somewhere else."""
    for directory in directories:
        for suffix in (SUFFIX, PARTIAL):
            for path in directory.glob(f"*{suffix}"):
                path.unlink(missing_ok=True)
