"""Who holds each bucket, and under which lease: plain data, the same in every process.

Adam, section 3.3.3: the controller keeps the map bucket -> servers and hands out leases. It alone
makes a new placement, each with a higher version; servers and clients act on the newest they know.
A server is named by its number *and* its incarnation, which is new for every process: one that was
started again holds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from manyhands.errors import ProtocolError
from manyhands.transport.endpoint import Endpoint

ORIGINS = ("new", "held", "store")


@dataclass(frozen=True, slots=True)
class Member:
    """A server that takes part. `host` names its machine: copies are kept on different ones."""

    server: int
    incarnation: str
    endpoint: Endpoint
    replication: Endpoint
    host: str
    draining: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: object) -> Member:
        """ProtocolError when anything about it is not right."""
        members = _members(
            "member",
            found,
            server=int,
            incarnation=str,
            endpoint=dict,
            replication=dict,
            host=str,
            draining=bool,
        )
        for door in ("endpoint", "replication"):
            members[door] = endpoint_from_json(members[door])
        return cls(**members)


@dataclass(frozen=True, slots=True)
class Joining:
    """A copy that is being filled; `since` is the version of the placement that began it."""

    server: int
    since: int


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """The copies of a bucket. `lease` rises with every change of the primary, never by time.

    `mirrors` hold every acknowledged update; one of them may become primary, a joining one may not.
    `origin` says where a primary that is new under this lease has the contents from: they are zeros
    ("new"), it was a mirror ("held"), or it reads them back from the durable store ("store").
    """

    primary: int | None
    lease: int
    mirrors: tuple[int, ...] = ()
    joining: tuple[Joining, ...] = ()
    origin: str = "new"

    def __post_init__(self) -> None:
        copies = self.copies
        if len(set(copies)) != len(copies):
            raise ValueError(f"a server holds two copies of one bucket: {self}")
        if self.lease < 1 or self.origin not in ORIGINS:
            raise ValueError(f"the lease is not >= 1 or the origin not one of {ORIGINS}: {self}")

    @property
    def copies(self) -> tuple[int, ...]:
        """The servers that hold the bucket or are being filled: primary, mirrors, joining."""
        first = () if self.primary is None else (self.primary,)
        return (*first, *self.mirrors, *(joining.server for joining in self.joining))

    def to_json(self) -> dict[str, Any]:
        return {
            "primary": self.primary,
            "lease": self.lease,
            "mirrors": list(self.mirrors),
            "joining": [[joining.server, joining.since] for joining in self.joining],
            "origin": self.origin,
        }

    @classmethod
    def from_json(cls, found: object) -> BucketPlace:
        """ProtocolError when anything about it is not right."""
        members = _members(
            "bucket's place",
            found,
            primary=(int, type(None)),
            lease=int,
            mirrors=list,
            joining=list,
            origin=str,
        )
        members["mirrors"] = tuple(_number(server) for server in members["mirrors"])
        members["joining"] = tuple(_joining(entry) for entry in members["joining"])
        try:
            return cls(**members)
        except ValueError as error:
            raise ProtocolError(f"A placement can't be right: {error}.") from None


@dataclass(frozen=True, slots=True)
class Placement:
    """Every bucket that holds chunks, and the servers there are. Immutable: shared by threads."""

    version: int
    members: Mapping[int, Member]
    buckets: Mapping[int, BucketPlace]

    def names(self, server: int, incarnation: str) -> bool:
        """Whether this process is meant when the placement says `server`."""
        member = self.members.get(server)
        return member is not None and member.incarnation == incarnation

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `json.dumps`."""
        return {
            "version": self.version,
            "members": [self.members[server].to_json() for server in sorted(self.members)],
            "buckets": {str(bucket): place.to_json() for bucket, place in self.buckets.items()},
        }

    @classmethod
    def from_json(cls, found: object) -> Placement:
        """The placement in what `json.loads` gave; ProtocolError when it is not one."""
        read = _members("placement", found, version=int, members=list, buckets=dict)
        members = [Member.from_json(member) for member in read["members"]]
        return cls(
            read["version"],
            {member.server: member for member in members},
            {_key(key): BucketPlace.from_json(place) for key, place in read["buckets"].items()},
        )


def endpoint_from_json(found: object) -> Endpoint:
    """The endpoint whose `dataclasses.asdict` this is; ProtocolError when it is none."""
    optional = (str, type(None))
    members = _members("endpoint", found, host=str, port=int, unix=optional, tls=bool)
    return Endpoint(**members)


def _members(what: str, found: object, **types: type | tuple[type, ...]) -> dict[str, Any]:
    """A copy of a JSON object that has exactly these members, each of its type."""
    if not isinstance(found, dict) or found.keys() != types.keys():
        raise ProtocolError(f"A {what} has the members {', '.join(types)}.")
    for name, expected in types.items():
        allowed = expected if isinstance(expected, tuple) else (expected,)
        if type(found[name]) not in allowed:  # not isinstance: True is no number here
            raise ProtocolError(f"A {what}'s {name} is {found[name]!r:.100}, of the wrong type.")
    return dict(found)


def _number(found: object) -> int:
    if type(found) is not int:
        raise ProtocolError(f"A placement names a server {found!r:.100}, which is no number.")
    return found


def _joining(found: object) -> Joining:
    if not isinstance(found, list) or len(found) != 2:
        raise ProtocolError("A joining copy is a pair: server, since.")
    return Joining(_number(found[0]), _number(found[1]))


def _key(found: str) -> int:
    if not (found.isascii() and found.isdecimal()):
        raise ProtocolError(f"A placement names a bucket {found!r:.100}, which is no number.")
    return int(found)
