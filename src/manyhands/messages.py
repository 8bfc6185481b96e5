"""Everything that crosses a socket, and its encoding: the header, its words, the two greetings.

The header is that of `native/wire/frame.h`, byte for byte, and both are described in
docs/protocol.md. Payloads of updates and values are raw floats that only the native ends read; the
greetings are small JSON objects, checked strictly. Nothing that arrives is ever unpickled.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, fields
from enum import IntEnum, IntFlag
from typing import Any, TypeVar

from manyhands.errors import ProtocolError

MAGIC = 0x5350484D  # "MHPS" as it appears on the wire
PROTOCOL_VERSION = 5
MAX_HELLO_BYTES = 64 << 10  # what a stranger may make a server read
MAX_WELCOME_BYTES = 8 << 20  # the places of a server's chunks, for a client on the same machine
MAX_SENTENCE_BYTES = 4 << 10  # of a refusal

_LAYOUT = struct.Struct("<IHBBIIQQQfIIIQ")
HEADER_BYTES = _LAYOUT.size


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    DELTA = 4
    FACTORS = 5
    ROWS = 6
    PULL = 7
    ACK = 8
    VALUES = 9
    SET = 10
    GET = 11
    ALIGN = 12
    SNAPSHOT = 13
    CALL = 14
    ANSWER = 15
    SHARE = 16
    PULL_ROWS = 17
    ROW_VALUES = 18


class Flag(IntFlag):
    """The lower four bits of a header's flags."""

    NONE = 0
    BY_REFERENCE = 1
    WANT_VALUES = 2
    REPLICATED = 4
    MAY_WAIT = 8


class Encoding(IntEnum):
    """How a payload holds its floats: the upper four bits of a header's flags."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    TOP_K = 3


class Refusal(IntEnum):
    """Why a frame was not accepted: the `count` of a REFUSED frame."""

    UNKNOWN_CHUNK = 1
    WRONG_SIZE = 2
    NOT_FINITE = 3
    STALE_LEASE = 4
    WRONG_LANE = 5
    MALFORMED = 6
    TOO_LARGE = 7
    VERSION = 8
    STRANGER = 9
    NOT_ALLOWED = 10
    OUT_OF_STEP = 11


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The 64 bytes before every payload."""

    kind: Kind
    flags: Flag = Flag.NONE
    encoding: Encoding = Encoding.FLOAT32
    chunk: int = 0
    lease: int = 0
    client: int = 0
    sequence: int = 0
    seen: int = 0
    rate: float = 0.0
    count: int = 0
    steps: int = 0
    payload_bytes: int = 0
    place: int = 0
    version: int = PROTOCOL_VERSION

    def pack(self) -> bytes:
        """The header as it is sent."""
        return _LAYOUT.pack(
            MAGIC,
            self.version,
            self.kind,
            self.flags | (self.encoding << 4),
            self.chunk,
            self.lease,
            self.client,
            self.sequence,
            self.seen,
            self.rate,
            self.count,
            self.steps,
            self.payload_bytes,
            self.place,
        )

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Header:
        """The header in these 64 bytes; ProtocolError for anything that is not one of ours.

        Lengths are not judged here: whoever allocates compares `payload_bytes` with its limit.
        """
        if len(data) != HEADER_BYTES:
            raise ProtocolError(f"A header has {HEADER_BYTES} bytes; {len(data)} came.")
        magic, version, kind, flags, *rest = _LAYOUT.unpack(data)
        if magic != MAGIC:
            raise ProtocolError(f"The frame begins with {magic:#010x} instead of {MAGIC:#010x}.")
        _require_version(version)
        chunk, lease, client, sequence, seen, rate, count, steps, payload_bytes, place = rest
        try:
            words = Kind(kind), Flag(flags & 0x0F), Encoding(flags >> 4)
        except ValueError as error:
            raise ProtocolError(f"The frame's header has an unknown word: {error}.") from None
        return cls(
            kind=words[0],
            flags=words[1],
            encoding=words[2],
            chunk=chunk,
            lease=lease,
            client=client,
            sequence=sequence,
            seen=seen,
            rate=rate,
            count=count,
            steps=steps,
            payload_bytes=payload_bytes,
            place=place,
        )


def _require_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"The peer speaks protocol version {version} and this side version "
            f"{PROTOCOL_VERSION}: install the same Manyhands on both.",
            refusal=Refusal.VERSION,
        )


def frame(kind: Kind, payload: bytes, **words: Any) -> bytes:
    """A whole frame with this payload."""
    return Header(kind=kind, payload_bytes=len(payload), **words).pack() + payload


def refused(refusal: Refusal | int, sentence: str, *, version: int = PROTOCOL_VERSION) -> bytes:
    """A REFUSED frame that says why, in one sentence.

    `version` is the peer's, when that is what it is refused for: it must be able to read this.
    """
    text = sentence.encode()[:MAX_SENTENCE_BYTES]
    return frame(Kind.REFUSED, text, count=int(refusal), version=version)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """What a client says first on a connection: who it is and what the connection is for."""

    token: str  # the run's secret, as hexadecimal digits
    client: int  # the same on every connection of one client: replays are recognised by it
    lane: int
    admin: bool = False  # may set and read whole arrays
    shared_bytes: int = 0  # size of the memory whose descriptor comes along; 0: none
    purpose: str = ""  # for logs
    peer: int = -1  # the number of the server that speaks; -1: a client
    target: str = ""  # of a peer: the incarnation of the server that it means to reach

    def encode(self) -> bytes:
        """The payload of a HELLO frame."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Hello:
        """The greeting in this payload; ProtocolError when anything about it is not right."""
        hello = cls(**_checked(cls, payload, MAX_HELLO_BYTES))
        _require(_is_hexadecimal(hello.token), "token", "hexadecimal digits")
        _require(0 <= hello.client < 2**64, "client", "a number of 64 bits")
        _require(0 <= hello.lane < 2**16, "lane", "a number of 16 bits")
        _require(0 <= hello.shared_bytes < 2**63, "shared_bytes", "a size")
        _require(len(hello.purpose) <= 200, "purpose", "at most 200 characters")
        _require(-1 <= hello.peer < 2**16, "peer", "a server's number or -1")
        _require(len(hello.target) <= 64, "target", "at most 64 characters")
        return hello


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """What a server answers: its layout, as far as this connection's client needs it."""

    lanes: int
    map_version: int
    memory_bytes: int = 0  # size of the server's memory whose descriptor comes along; 0: none
    places: tuple[tuple[int, int, int], ...] = ()  # chunk, offset of its weights, of its version

    def encode(self) -> bytes:
        """The payload of a WELCOME frame."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Welcome:
        """The greeting in this payload; ProtocolError when anything about it is not right."""
        found = _checked(cls, payload, MAX_WELCOME_BYTES)
        found["places"] = tuple(_place(place) for place in found["places"])
        welcome = cls(**found)
        _require(1 <= welcome.lanes < 2**16, "lanes", "a number of 16 bits, at least 1")
        _require(0 <= welcome.map_version < 2**63, "map_version", "a number >= 0")
        _require(0 <= welcome.memory_bytes < 2**63, "memory_bytes", "a size")
        return welcome


_Greeting = TypeVar("_Greeting", Hello, Welcome)
_JSON_TYPES = {"str": str, "int": int, "bool": bool}


def _checked(greeting: type[_Greeting], payload: bytes, limit_bytes: int) -> dict[str, Any]:
    """The members of a JSON object, exactly those of the greeting and each of its type."""
    name = greeting.__name__
    if len(payload) > limit_bytes:
        raise ProtocolError(
            f"A {name} has at most {limit_bytes} bytes; this one has {len(payload)}.",
            refusal=Refusal.TOO_LARGE,
        )
    try:
        found = json.loads(payload.decode())
    except (ValueError, RecursionError):
        raise ProtocolError(f"A {name} is a JSON object in UTF-8; this is not.") from None
    expected = {field.name: _JSON_TYPES.get(str(field.type), list) for field in fields(greeting)}
    if not isinstance(found, dict) or found.keys() != expected.keys():
        raise ProtocolError(f"A {name} has the members {', '.join(expected)}.")
    for member, kind in expected.items():
        _require(type(found[member]) is kind, member, f"of type {kind.__name__}")
    return found


def _place(value: object) -> tuple[int, int, int]:
    numbers = value if isinstance(value, list) else []
    right = len(numbers) == 3 and all(type(n) is int and 0 <= n < 2**63 for n in numbers)
    _require(right, "places", "a list of triples of numbers")
    return numbers[0], numbers[1], numbers[2]


def _is_hexadecimal(text: str) -> bool:
    return all(digit in "0123456789abcdef" for digit in text)


def _require(condition: bool, member: str, expected: str) -> None:
    if not condition:
        raise ProtocolError(f"A greeting's {member} is not {expected}.")
