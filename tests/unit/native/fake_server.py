"""A parameter server in a few lines: it shows what a link sends, and answers as a test wants."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from manyhands import _native
from manyhands.messages import PROTOCOL_VERSION

Floats = npt.NDArray[np.float32]

HEADER = struct.Struct("<IHBBIIQQQfIIIQ")
MAGIC, VERSION = 0x5350484D, PROTOCOL_VERSION
REFUSED, DELTA, FACTORS, ROWS, PULL, ACK, VALUES, SET, GET = range(3, 12)
PULL_ROWS, ROW_VALUES = 17, 18
BY_REFERENCE, WANT_VALUES = 1, 2
ENCODINGS = ("float32", "bfloat16", "int8", "topk")


@dataclass(frozen=True)
class Frame:
    kind: int
    chunk: int
    sequence: int
    flags: int = 0
    lease: int = 0
    client: int = 0
    seen: int = 0
    rate: float = 0.0
    count: int = 0
    steps: int = 0
    place: int = 0
    payload: bytes = b""
    payload_bytes: int = -1  # -1: the payload's
    magic: int = MAGIC

    def pack(self) -> bytes:
        size = len(self.payload) if self.payload_bytes < 0 else self.payload_bytes
        numbers = (self.chunk, self.lease, self.client, self.sequence, self.seen, self.rate)
        rest = (self.count, self.steps, size, self.place)
        head = HEADER.pack(self.magic, VERSION, self.kind, self.flags, *numbers, *rest)
        return head + self.payload

    @property
    def encoding(self) -> str:
        return ENCODINGS[self.flags >> 4]

    def floats(self, n: int) -> Floats:
        out = np.empty(n, np.float32)
        _native.decode(self.encoding, self.payload, n, out)
        return out


def read_exactly(sock: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        piece = sock.recv(size - len(content))
        if not piece:
            raise EOFError
        content += piece
    return bytes(content)


def read_frame(sock: socket.socket) -> Frame:
    magic, _, kind, flags, chunk, lease, client, sequence, seen, rate, count, steps, size, place = (
        HEADER.unpack(read_exactly(sock, HEADER.size))
    )
    payload = b"" if flags & BY_REFERENCE else read_exactly(sock, size)
    return Frame(
        kind, chunk, sequence, flags, lease, client, seen, rate, count, steps, place, payload, size,
        magic,
    )  # fmt: skip


@dataclass
class FakeServer:
    """Answers one connection in a thread; `answer` may be replaced by a test."""

    chunks: dict[int, Floats]
    versions: dict[int, int] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    refuse: dict[int, tuple[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.serve: Callable[[socket.socket], None] = self.answer_all
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FakeServer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ours.shutdown(socket.SHUT_RDWR)
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.ours.close()
        self.theirs.close()

    def fd(self) -> int:
        """The client's end, to be owned by a link."""
        return self.theirs.detach()

    def _run(self) -> None:
        try:
            self.serve(self.ours)
        except (EOFError, OSError):
            return

    def requests(self, sock: socket.socket) -> Iterator[Frame]:
        while True:
            frame = read_frame(sock)
            self.frames.append(frame)
            yield frame

    def answer_all(self, sock: socket.socket) -> None:
        for frame in self.requests(sock):
            sock.sendall(self.reply_to(frame).pack())

    def reply_to(self, frame: Frame) -> Frame:
        reply = Frame(ACK, frame.chunk, frame.sequence)
        if frame.chunk in self.refuse:
            code, sentence = self.refuse[frame.chunk]
            return replace(reply, kind=REFUSED, count=code, payload=sentence.encode())
        weights = self.chunks[frame.chunk]
        if frame.kind == DELTA and not frame.flags & BY_REFERENCE:
            weights -= np.float32(frame.rate) * frame.floats(len(weights))
        if frame.kind == SET:
            weights[:] = frame.floats(len(weights))
        if frame.kind in (DELTA, FACTORS, ROWS):
            self.versions[frame.chunk] = self.versions.get(frame.chunk, 0) + 1
        reply = replace(reply, seen=self.versions.get(frame.chunk, 0))
        if frame.kind in (PULL, GET) or frame.flags & WANT_VALUES:
            encoding = frame.encoding if frame.kind == PULL else "float32"
            flags = ENCODINGS.index(encoding) << 4
            content = _native.encode(encoding, weights)
            return replace(reply, kind=VALUES, flags=flags, payload=content)
        return reply
