"""Which stored records count: the newest of every part of every parameter. Pure functions.

Records are never overwritten, so several of one chunk may lie in a store, in segments of several
servers. They are ordered by (era, lease, version): a later run that went on in the store, then a
later primary, then more updates. Whoever removes a record knows of a newer one that covers it, and
that one is removed only for a newer still; so however many servers tidy up, the newest stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from manyhands.parameter_server.store.segment_file import Cut, Record, Segment

Position = tuple[int, int, int]  # era, lease, version


@dataclass(frozen=True, slots=True)
class Found:
    """A record and the segment that it lies in.

    `age` is a total order: of two equal copies the one in the segment with the later name counts.
    """

    segment: Segment
    record: Record
    age: tuple[int, int, int, str]

    @property
    def position(self) -> Position:
        return self.age[:3]


def records_of(segments: Iterable[Segment]) -> list[Found]:
    return [
        Found(segment, record, (segment.era, record.lease, record.version, segment.path.name))
        for segment in segments
        for record in segment.records
    ]


def live(found: Iterable[Found]) -> list[Found]:
    """The records that are needed to read the newest state, oldest first.

    One of each cut of a parameter; and where a later era, which may have cut it differently, has
    all of a parameter, nothing of the eras before.
    """
    newest: dict[Cut, Found] = {}
    for one in found:
        known = newest.get(one.record.cut)
        if known is None or one.age > known.age:
            newest[one.record.cut] = one
    complete = _complete_since(newest.values())
    counting = (
        one
        for one in newest.values()
        if one.segment.era >= complete.get(one.record.cut.parameter, 0)
    )
    return sorted(counting, key=lambda one: one.age)


def _complete_since(newest: Iterable[Found]) -> dict[str, int]:
    """The last era in which all of a parameter was written; in one era all cuts are the same."""
    floats: dict[tuple[str, int], int] = defaultdict(int)
    wanted: dict[tuple[str, int], int] = {}
    for one in newest:
        key = one.record.cut.parameter, one.segment.era
        floats[key] += one.record.cut.floats
        wanted[key] = one.record.cut.parameter_floats
    complete: dict[str, int] = {}
    for (name, era), held in floats.items():
        if held >= wanted[name, era]:
            complete[name] = max(complete.get(name, 0), era)
    return complete


@dataclass(frozen=True, slots=True)
class Tidying:
    """What can be done about segments that hold old records."""

    superseded: tuple[Path, ...]  # nothing in them counts
    scattered: frozenset[Cut]  # worth writing again, so that the segments they lie in can go


def tidying(segments: Iterable[Segment], *, spare_bytes: int) -> Tidying:
    """Which segments can go, and which records to write again when more than half is waste.

    Waste of `spare_bytes` is always borne: rewriting for less would cost more than it frees.
    """
    everything = list(segments)
    counting = live(records_of(everything))
    used: dict[Path, int] = defaultdict(int)
    for one in counting:
        used[one.segment.path] += one.record.size_bytes
    total = sum(record.size_bytes for segment in everything for record in segment.records)
    superseded = tuple(s.path for s in everything if s.path not in used)
    gone = sum(r.size_bytes for s in everything if s.path not in used for r in s.records)
    if total - gone <= 2 * sum(used.values()) + spare_bytes:
        return Tidying(superseded, frozenset())
    sizes = {s.path: sum(record.size_bytes for record in s.records) for s in everything}
    poor = {path for path, bytes_used in used.items() if 2 * bytes_used < sizes[path]}
    scattered = frozenset(one.record.cut for one in counting if one.segment.path in poor)
    return Tidying(superseded, scattered)
