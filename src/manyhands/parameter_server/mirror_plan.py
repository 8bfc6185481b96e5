"""What a new placement asks of one server: pure functions from placements to what must change.

Adam, section 3.3.3. Nothing here has an effect; `mirrors.py` carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from manyhands.parameter_server.placement import BucketPlace, Joining, Member, Placement


@dataclass(frozen=True, slots=True)
class Stand:
    """What this server is to a bucket; only a primary has mirrors and joining copies.

    A copy that is being filled is a mirror like any other in its own eyes.
    """

    role: str  # "primary", "mirror" or "none", the native words
    lease: int
    mirrors: tuple[int, ...] = ()
    joining: tuple[Joining, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """What a placement changes for this server, in the order in which it is carried out."""

    dropped: frozenset[int]  # peers whose process is gone or another: nothing they knew counts
    restored: tuple[int, ...]  # buckets to be read back from the durable store before they are held
    stands: Mapping[int, Stand]  # of the buckets for which this server's stand is new


@dataclass(frozen=True, slots=True)
class View:
    """A placement as one server sees it. Nothing is its own when another incarnation is named."""

    stands: Mapping[int, Stand]
    stored: frozenset[int]  # buckets whose primary begins with what the durable store has
    members: Mapping[int, Member]

    def peers(self) -> dict[int, Member]:
        """The servers that this one sends to: those with a copy of what it is primary of."""
        wanted = {
            peer
            for stand in self.stands.values()
            for peer in (*stand.mirrors, *(joining.server for joining in stand.joining))
        }
        return {peer: self.members[peer] for peer in sorted(wanted) if peer in self.members}

    def buckets_sent_to(self, peer: int) -> list[int]:
        """The buckets that this server is primary of and the peer has a copy of."""
        return [
            bucket
            for bucket, stand in self.stands.items()
            if peer in stand.mirrors or any(entry.server == peer for entry in stand.joining)
        ]


NOTHING = View({}, frozenset(), {})


def view_of(placement: Placement, server: int, incarnation: str) -> View:
    """The placement as this process sees it."""
    named = placement.names(server, incarnation)
    return View(
        {
            bucket: _stand(place, server) if named else Stand("none", place.lease)
            for bucket, place in placement.buckets.items()
        },
        frozenset(
            bucket
            for bucket, place in placement.buckets.items()
            if named and place.primary == server and place.origin == "store"
        ),
        placement.members,
    )


def change(old: View, new: View) -> Change:
    """What must be done to get from one view to the next."""
    dropped = frozenset(
        peer
        for peer, member in old.members.items()
        if peer not in new.members or new.members[peer].incarnation != member.incarnation
    )
    stands = {
        bucket: stand
        for bucket, stand in new.stands.items()
        if old.stands.get(bucket) != stand or dropped.intersection(_copies(stand))
    }
    return Change(dropped, _restored(old, new), stands)


def kept_joining(old: Stand | None, new: Stand, dropped: frozenset[int]) -> frozenset[int]:
    """Joining copies whose filling goes on: the same primary, the same joining, the same process.

    What any other copy has said before counts for nothing: it is to be asked anew.
    """
    if old is None or old.role != "primary" or old.lease != new.lease:
        return frozenset()
    return frozenset(
        entry.server
        for entry in new.joining
        if entry in old.joining and entry.server not in dropped
    )


def _stand(place: BucketPlace, server: int) -> Stand:
    if place.primary == server:
        return Stand("primary", place.lease, place.mirrors, place.joining)
    return Stand("mirror" if server in place.copies else "none", place.lease)


def _copies(stand: Stand) -> tuple[int, ...]:
    return (*stand.mirrors, *(entry.server for entry in stand.joining))


def _restored(old: View, new: View) -> tuple[int, ...]:
    """Only once under a lease: after that the primary's own contents are the newest."""
    return tuple(
        bucket
        for bucket in sorted(new.stored)
        if _lease(old.stands.get(bucket)) != new.stands[bucket].lease
        or old.stands[bucket].role != "primary"
    )


def _lease(stand: Stand | None) -> int:
    return 0 if stand is None else stand.lease
