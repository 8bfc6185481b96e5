"""The header and the greetings under hypothesis: what is written comes back, no more."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import ProtocolError
from manyhands.messages import (
    HEADER_BYTES,
    MAX_HELLO_BYTES,
    PROTOCOL_VERSION,
    Encoding,
    Flag,
    Header,
    Hello,
    Kind,
    Refusal,
    Welcome,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
HEADERS = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    flags=st.sampled_from([Flag(bits) for bits in range(8)]),
    encoding=st.sampled_from(Encoding),
    chunk=U32,
    lease=U32,
    client=U64,
    sequence=U64,
    seen=U64,
    rate=st.floats(width=32, allow_nan=False),
    count=U32,
    steps=U32,
    payload_bytes=U32,
    place=U64,
)
HELLOS = st.builds(
    Hello,
    token=st.text("0123456789abcdef", max_size=64),
    client=U64,
    lane=st.integers(0, 2**16 - 1),
    admin=st.booleans(),
    shared_bytes=st.integers(0, 2**63 - 1),
    purpose=st.text(max_size=200),
)
OFFSETS = st.integers(0, 2**63 - 1)
WELCOMES = st.builds(
    Welcome,
    lanes=st.integers(1, 2**16 - 1),
    map_version=OFFSETS,
    memory_bytes=OFFSETS,
    places=st.lists(st.tuples(U32, OFFSETS, OFFSETS)).map(tuple),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(HEADERS)
def test_a_header_comes_back(header: Header) -> None:
    packed = header.pack()
    assert len(packed) == HEADER_BYTES == 64
    assert Header.unpack(packed) == header


@given(st.binary(max_size=2 * HEADER_BYTES))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Header.unpack(data)


@given(HEADERS, st.integers(0, HEADER_BYTES - 1), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_is_another_header(
    header: Header, position: int, value: int
) -> None:
    packed = bytearray(header.pack())
    packed[position] = value
    try:
        read = Header.unpack(packed)
    except ProtocolError:
        assert position < 8  # magic, version, kind or flags
    else:
        assert read.pack() == bytes(packed) or math.isnan(read.rate)


@given(st.integers(0, 2**16 - 1).filter(lambda version: version != PROTOCOL_VERSION))
def test_another_version_is_named_beside_ours(version: int) -> None:
    packed = Header(kind=Kind.HELLO, version=version).pack()
    both = f"version {version} and this side version {PROTOCOL_VERSION}:"
    with pytest.raises(ProtocolError, match=both) as told:
        Header.unpack(packed)
    assert told.value.refusal is Refusal.VERSION


@given(HELLOS)
def test_a_hello_comes_back(hello: Hello) -> None:
    assert Hello.decode(hello.encode()) == hello


@given(WELCOMES)
def test_a_welcome_comes_back(welcome: Welcome) -> None:
    assert Welcome.decode(welcome.encode()) == welcome


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_anything_else_is_no_greeting(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        Hello.decode(payload)
    with pytest.raises(ProtocolError):
        Welcome.decode(payload)


@given(HELLOS, st.sampled_from(sorted(asdict(Hello(token="", client=0, lane=0)))), JSON)
def test_a_member_of_another_kind_is_refused(hello: Hello, member: str, value: object) -> None:
    members = asdict(hello)
    kind = type(members[member])
    members[member] = value
    if type(value) is kind:
        return
    with pytest.raises(ProtocolError, match=member):
        Hello.decode(json.dumps(members).encode())


def test_a_missing_or_a_strange_member_is_refused() -> None:
    members = asdict(Hello(token="ab", client=1, lane=0))
    for wrong in ({**members, "more": 1}, {k: v for k, v in members.items() if k != "lane"}):
        with pytest.raises(ProtocolError, match="members"):
            Hello.decode(json.dumps(wrong).encode())


def test_a_long_hello_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="at most") as told:
        Hello.decode(b" " * (MAX_HELLO_BYTES + 1))
    assert told.value.refusal is Refusal.TOO_LARGE


def test_deep_json_is_refused() -> None:
    with pytest.raises(ProtocolError, match="JSON object"):
        Hello.decode(b"[" * 60_000)
