"""The Python words of the protocol are those of the native header, to the byte."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from manyhands import messages
from manyhands.messages import (
    MAGIC,
    PROTOCOL_VERSION,
    Encoding,
    Flag,
    Header,
    Kind,
    Refusal,
    frame,
    refused,
)

NATIVE = (Path(__file__).parents[2] / "native" / "wire" / "frame.h").read_text()


def native_words(enum: str) -> dict[str, int]:
    body = re.search(rf"enum (?:class )?{enum} [^{{]*{{(.*?)}};", NATIVE, re.DOTALL)
    assert body is not None
    return {name: int(number) for name, number in re.findall(r"k(\w+) = (\d+)", body[1])}


@pytest.mark.parametrize("enum", [Kind, Flag, Encoding, Refusal])
def test_words_have_the_native_numbers(enum):
    ours = {word.name.replace("_", ""): word.value for word in enum if word.value or enum != Flag}
    assert ours == {name.upper(): number for name, number in native_words(enum.__name__).items()}


def test_the_header_has_the_native_fields_in_the_native_order():
    body = re.search(r"struct Header {(.*?)};", NATIVE, re.DOTALL)
    assert body is not None
    sizes = {"std::uint8_t": "B", "std::uint16_t": "H", "std::uint32_t": "I"}
    sizes |= {"std::uint64_t": "Q", "float": "f"}
    fields = re.findall(r"^  (\S+) (\w+) = ", body[1], re.MULTILINE)
    layout = struct.Struct("<" + "".join(sizes[kind] for kind, _ in fields))
    header = Header(
        kind=Kind.DELTA,
        flags=Flag.WANT_VALUES,
        encoding=Encoding.INT8,
        chunk=2,
        lease=3,
        client=4,
        sequence=5,
        seen=6,
        rate=0.5,
        count=7,
        steps=8,
        payload_bytes=9,
        place=10,
    )
    read = dict(zip((name for _, name in fields), layout.unpack(header.pack()), strict=True))
    assert read.pop("magic") == MAGIC == int.from_bytes(b"MHPS", "little")
    assert read.pop("version") == PROTOCOL_VERSION
    assert read.pop("flags") == Flag.WANT_VALUES | Encoding.INT8 << 4
    assert read == {name: getattr(header, name) for name in read}


def test_the_versions_are_equal():
    assert f"kMagic = {MAGIC:#x};" in NATIVE
    assert f"kVersion = {PROTOCOL_VERSION};" in NATIVE


def test_a_refusal_is_a_frame_that_the_peer_can_read():
    data = refused(Refusal.VERSION, "Both are named.", version=7)
    assert data[4:6] == b"\x07\x00"
    header = Header.unpack(refused(Refusal.STRANGER, "é" * 10_000)[: messages.HEADER_BYTES])
    assert (header.kind, header.count) == (Kind.REFUSED, Refusal.STRANGER)
    assert header.payload_bytes == messages.MAX_SENTENCE_BYTES


def test_a_frame_says_how_long_its_payload_is():
    data = frame(Kind.SET, b"abcd", chunk=3, count=1)
    header = Header.unpack(data[: messages.HEADER_BYTES])
    assert (header.payload_bytes, header.chunk, header.count) == (4, 3, 1)
    assert data[messages.HEADER_BYTES :] == b"abcd"
