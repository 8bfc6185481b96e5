"""Carries a TLS connection's bytes to and from a plain socket that the native side can own.

    native end <--> socketpair <--> outward: take plain bytes, encrypt, send    <--> TCP
                                    inward: receive, decrypt, pass plain bytes on

Each direction is a thread. They share OpenSSL's state, which is not thread-safe, under a lock that
is held while bytes are encrypted or decrypted and never while a socket blocks: so a full direction
can't stop the other one. Back-pressure passes through, because neither thread keeps more than one
buffer. The GIL is free in all of this but the few lines of Python themselves.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from contextlib import suppress

from manyhands.transport.tls import TlsStream

logger = logging.getLogger(__name__)

_BUFFER_BYTES = 256 << 10
_RECORD_BYTES = 16 << 10  # the most that one call decrypts
_LINGER_S = 2.0


def tunnel(stream: TlsStream) -> socket.socket:
    """The plain end of the connection; closing it, or the peer's leaving, ends the tunnel."""
    ours, theirs = socket.socketpair()
    _Tunnel(stream, ours).start()
    return theirs


class _Tunnel:
    """Two threads between a TLS stream and a plain socket; owns both."""

    def __init__(self, stream: TlsStream, plain: socket.socket) -> None:
        self._stream = stream
        self._wire = stream.sock
        self._plain = plain
        self._state = threading.Lock()
        self._inward = threading.Thread(target=self._carry_in, name="tunnel-in", daemon=True)
        self._outward = threading.Thread(target=self._carry_out, name="tunnel-out", daemon=True)

    def start(self) -> None:
        self._wire.settimeout(None)
        self._plain.settimeout(None)
        self._inward.start()
        self._outward.start()

    def _carry_out(self) -> None:
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        try:
            while count := self._take(buffer):
                self._wire.sendall(self._encrypted(buffer[:count]))
            self._wire.sendall(self._goodbye())
            self._wire.shutdown(socket.SHUT_WR)
        except OSError as error:
            logger.debug("tunnel outward: %s", error)
        self._finish()

    def _take(self, buffer: memoryview) -> int:
        try:
            return self._plain.recv_into(buffer)
        except ConnectionResetError:  # the native end left with something unread
            return 0

    def _finish(self) -> None:
        # Closed with unread bytes waiting, TCP would take back what was just sent: a refusal's
        # sentence. So the other thread reads on until the peer leaves, for a moment.
        self._inward.join(_LINGER_S)
        _shut(self._wire)
        self._inward.join()
        self._wire.close()
        self._plain.close()

    def _carry_in(self) -> None:
        received = memoryview(bytearray(_BUFFER_BYTES))
        decrypted = memoryview(bytearray(_BUFFER_BYTES))
        try:
            self._pass_on(decrypted)  # what came along with the end of the TLS handshake
            while count := self._wire.recv_into(received):
                with self._state:
                    self._stream.incoming.write(received[:count])
                self._pass_on(decrypted)
        except (BrokenPipeError, ConnectionResetError):
            self._drain(received)
        except (OSError, EOFError) as error:  # an SSLError is an OSError
            logger.debug("tunnel inward: %s", error)
        _shut(self._plain)  # the native end sees the end, and so does the other thread

    def _drain(self, buffer: memoryview) -> None:
        with suppress(OSError):
            while self._wire.recv_into(buffer):
                pass

    def _pass_on(self, buffer: memoryview) -> None:
        more = True
        while more:
            count, more = self._decrypt(buffer)
            self._plain.sendall(buffer[:count])

    def _decrypt(self, buffer: memoryview) -> tuple[int, bool]:
        """Bytes put into the buffer, and whether there may be more; EOFError at the farewell."""
        count = 0
        with self._state:
            while len(buffer) - count >= _RECORD_BYTES:
                try:
                    read = self._stream.read_into(buffer[count : count + _RECORD_BYTES])
                except ssl.SSLWantReadError:
                    return count, False
                if read == 0:
                    if count == 0:
                        raise EOFError("the peer said goodbye")
                    return count, True  # pass these on; the farewell is seen again
                count += read
                if not self._stream.incoming.pending:  # spares an exception at every message
                    return count, False
        return count, True

    def _encrypted(self, data: memoryview) -> bytes:
        with self._state:
            self._stream.plain.write(data)
            return self._stream.outgoing.read()

    def _goodbye(self) -> bytes:
        with self._state:
            try:
                self._stream.plain.unwrap()
            except ssl.SSLError:  # it wants the peer's farewell, which nobody waits for
                return self._stream.outgoing.read()
            return self._stream.outgoing.read()


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the peer was first
