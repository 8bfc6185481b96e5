"""Servers that refuse, lie, fall silent and die, as a link reports them."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fake_server import ACK, MAGIC, REFUSED, VALUES, FakeServer, Frame

from manyhands import _native, kernels

CHUNKS = np.arange(4)
STARTS = np.arange(0, 64, 16)
COUNTS = np.full(4, 16)


def server_of_four() -> FakeServer:
    return FakeServer({chunk: np.full(16, float(chunk), np.float32) for chunk in range(4)})


def link_to(server: FakeServer, **settings: Any) -> _native.Link:
    return _native.Link(server.fd(), client=1, **settings)


def pull(link: _native.Link) -> npt.NDArray[np.float32]:
    out = np.full(64, -1.0, np.float32)
    link.pull(CHUNKS, STARTS, COUNTS, out, versions=np.zeros(4, np.int64))
    return out


def push(link: _native.Link, sequence: int) -> npt.NDArray[np.int64]:
    versions = np.zeros(4, np.int64)
    values = np.ones(64, np.float32)
    link.push(
        CHUNKS, STARTS, COUNTS, values, rate=1.0, steps=1, sequence=sequence,
        versions=versions,
    )  # fmt: skip
    return versions


def test_a_refusal_leaves_the_others_applied_and_the_link_usable() -> None:
    with server_of_four() as server:
        server.refuse = {1: (3, "Chunk 1 got a NaN."), 2: (1, "No chunk 2.")}
        link = link_to(server, window=2)
        with pytest.raises(kernels.Refused, match=r"^Chunk 1 got a NaN\.$") as caught:
            push(link, 1)
        assert (caught.value.code, caught.value.chunk) == (3, 1)
        assert server.versions == {0: 1, 3: 1}
        server.refuse = {}
        assert push(link, 5).tolist() == [2, 1, 1, 2]
        link.close()


def test_outcomes_say_what_is_left_to_do() -> None:
    """One acknowledged, one moved, one not finite; then the connection breaks."""
    server = server_of_four()

    def serve(sock: socket.socket) -> None:
        requests = server.requests(sock)
        for _ in range(3):
            sock.sendall(server.reply_to(next(requests)).pack())
        next(requests)
        sock.shutdown(socket.SHUT_RDWR)

    server.serve = serve
    server.refuse = {1: (4, "Chunk 1 has moved."), 2: (3, "Chunk 2 got a NaN.")}
    outcomes, versions = np.full(4, 9, np.int8), np.zeros(4, np.int64)
    with server:
        link = link_to(server, window=1)
        with pytest.raises(kernels.Refused, match="NaN"):  # says more than that one has moved
            link.push(
                CHUNKS, STARTS, COUNTS, np.ones(64, np.float32), rate=1.0, steps=1, sequence=1,
                versions=versions, outcomes=outcomes,
            )  # fmt: skip
        link.close()
    assert outcomes.tolist() == [1, -4, -3, 0]
    assert versions.tolist() == [1, 0, 0, 0]


def test_a_refusal_that_closes_is_reported_as_such() -> None:
    server = server_of_four()

    def serve(sock: socket.socket) -> None:
        next(server.requests(sock))
        refusal = Frame(REFUSED, 0, 0, count=6, payload=b"This is no frame.")
        sock.sendall(refusal.pack())
        sock.shutdown(socket.SHUT_RDWR)

    server.serve = serve
    with server:
        link = link_to(server)
        with pytest.raises(kernels.Refused, match=r"This is no frame\.") as caught:
            push(link, 100)
        assert caught.value.code == 6
        with pytest.raises(ConnectionError, match="make a new one"):
            pull(link)
        link.close()


def answers_with(**changes: Any) -> FakeServer:
    """A server that answers the second request with an altered frame."""
    server = server_of_four()

    def serve(sock: socket.socket) -> None:
        for i, frame in enumerate(server.requests(sock)):
            reply = server.reply_to(frame)
            sock.sendall((replace(reply, **changes) if i == 1 else reply).pack())

    server.serve = serve
    return server


@pytest.mark.parametrize(
    "changes",
    [
        {"magic": MAGIC + 1},
        {"sequence": 999},
        {"chunk": 3},
        {"kind": ACK, "payload": b""},
        {"kind": 200},
        {"payload_bytes": 68},
        {"payload_bytes": 2**32 - 1},
        {"payload": b"", "payload_bytes": 0},
        {"kind": REFUSED, "payload_bytes": 2**31},
        {"flags": 3 << 4},
        {"flags": 9 << 4},
    ],
    ids=str,
)
def test_an_answer_that_makes_no_sense_breaks_the_link(changes: dict[str, Any]) -> None:
    with answers_with(**changes) as server:
        link = link_to(server, window=1)
        with pytest.raises(ConnectionError, match="the server sent a frame of kind"):
            pull(link)
        with pytest.raises(ConnectionError, match="make a new one"):
            pull(link)
        link.close()


def test_values_that_nobody_asked_for_break_the_link() -> None:
    with answers_with(kind=VALUES, payload=bytes(64)) as server:
        link = link_to(server)
        with pytest.raises(ConnectionError, match="does not fit the request"):
            push(link, 1)
        link.close()


@pytest.mark.parametrize("cut", [0, 30, 64, 100])
def test_a_server_that_dies_within_an_answer(cut: int) -> None:
    server = server_of_four()

    def serve(sock: socket.socket) -> None:
        frame = next(server.requests(sock))
        sock.sendall(server.reply_to(frame).pack()[:cut])
        sock.shutdown(socket.SHUT_RDWR)

    server.serve = serve
    with server:
        link = link_to(server, timeout_s=20.0)
        with pytest.raises(ConnectionError, match="4 requests unanswered"):
            pull(link)
        link.close()


def test_a_server_that_dies_while_a_large_update_is_sent() -> None:
    server = server_of_four()

    def serve(sock: socket.socket) -> None:
        sock.recv(1000)
        sock.shutdown(socket.SHUT_RDWR)

    server.serve = serve
    with server:
        link = link_to(server, timeout_s=20.0)
        values = np.ones(4_000_000, np.float32)
        with pytest.raises(ConnectionError):
            link.set(0, 0, values, sequence=1)
        link.close()


def test_a_lost_call_is_replayed_with_the_same_sequences() -> None:
    versions: dict[int, int] = {}
    first, second = server_of_four(), server_of_four()
    first.versions = second.versions = versions

    def serve(sock: socket.socket) -> None:
        requests = first.requests(sock)
        for _ in range(2):
            sock.sendall(first.reply_to(next(requests)).pack())
        next(requests)
        sock.shutdown(socket.SHUT_RDWR)

    first.serve = serve
    with first, second:
        link = link_to(first)
        with pytest.raises(ConnectionError, match="2 requests unanswered"):
            push(link, 7)
        link.close()
        again = link_to(second)
        push(again, 7)
        again.close()
    assert [f.sequence for f in first.frames] == [7] * 3
    assert [f.sequence for f in second.frames] == [7] * 4


def silent_server() -> FakeServer:
    server = server_of_four()

    def serve(sock: socket.socket) -> None:
        for _ in server.requests(sock):
            pass

    server.serve = serve
    return server


def wait_for_a_call(server: FakeServer) -> None:
    deadline = time.monotonic() + 30
    while not server.frames:
        assert time.monotonic() < deadline, "nobody calls"
        time.sleep(0.001)


def test_a_silent_server_is_given_up_after_the_timeout() -> None:
    with silent_server() as server:
        link = link_to(server, timeout_s=0.05)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="neither sent nor took a byte for 0"):
            pull(link)
        assert time.monotonic() - began >= 0.05
        with pytest.raises(ConnectionError):
            pull(link)
        link.close()


def test_waiting_for_long_costs_little_processor_time() -> None:
    with silent_server() as server:
        link = link_to(server, timeout_s=1.0)
        began = time.thread_time()
        with pytest.raises(TimeoutError):
            pull(link)
        assert time.thread_time() - began < 0.5
        link.close()


def test_a_slow_server_is_borne_while_something_moves() -> None:
    server = server_of_four()

    def serve(sock: socket.socket) -> None:
        for frame in server.requests(sock):
            content = server.reply_to(frame).pack()
            for first in range(0, len(content), 8):
                time.sleep(0.05)
                sock.sendall(content[first : first + 8])

    server.serve = serve
    with server:
        link = link_to(server, timeout_s=1.5)  # the call takes longer
        np.testing.assert_array_equal(pull(link), np.repeat(np.arange(4.0), 16))
        link.close()


def test_ctrl_c_ends_a_call() -> None:
    with silent_server() as server:
        link = link_to(server, timeout_s=60.0)

        def press() -> None:
            wait_for_a_call(server)
            os.kill(os.getpid(), signal.SIGINT)

        pressing = threading.Thread(target=press)
        pressing.start()
        with pytest.raises(KeyboardInterrupt):
            pull(link)
        pressing.join()
        with pytest.raises(ConnectionError):
            pull(link)
        link.close()


def test_closing_ends_a_call_in_another_thread() -> None:
    with silent_server() as server:
        link = link_to(server, timeout_s=60.0)
        errors: list[Exception] = []

        def call() -> None:
            try:
                pull(link)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        wait_for_a_call(server)
        with pytest.raises(RuntimeError, match="Another thread"):
            pull(link)
        link.close()
        thread.join(10)
        assert isinstance(errors[0], ConnectionError)
        with pytest.raises(ConnectionError, match="closed"):
            pull(link)
        assert link.pulled_bytes == 0


def test_close_gives_the_descriptor_back() -> None:
    with server_of_four() as server:
        fd = server.fd()
        link = _native.Link(fd, client=1)
        link.close()
        link.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
