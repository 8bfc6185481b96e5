"""Mutual TLS 1.3 on a connected socket: both sides show a certificate of the run.

The cryptography is OpenSSL's, through `ssl`. It works on memory here rather than on the socket, so
that `tunnel.py` can move a quarter of a megabyte with one system call instead of 16 KB records.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from manyhands.errors import ConfigError, ProtocolError
from manyhands.transport.certificates import SERVER_NAME, Credentials

_HANDSHAKE_BYTES = 16 << 10


def server_context(credentials: Credentials | None, host: str) -> ssl.SSLContext:
    """How a server speaks TLS; ConfigError when it was given no credentials."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, credentials, host)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # nobody resumes: a connection lasts as long as its client
    return context


def client_context(credentials: Credentials | None, host: str) -> ssl.SSLContext:
    """How a client speaks TLS; ConfigError when it was given no credentials."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, credentials, host)


class TlsStream:
    """The two ends of TLS: bytes for the wire (`sock`) and the bytes they mean (`plain`).

    Not thread-safe. `sock` belongs to whoever has the stream.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        self.sock = sock
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.plain = context.wrap_bio(
            self.incoming,
            self.outgoing,
            server_side=server_side,
            server_hostname=None if server_side else SERVER_NAME,
        )

    def shake_hands(self, deadline: float) -> None:
        """Agree on keys. ProtocolError when the peer has no certificate of this run.

        OSError when it leaves and TimeoutError when it is silent. A client learns only with the
        first bytes it reads that a server did not like its certificate: TLS 1.3 has it so.
        """
        while True:
            try:
                self.plain.do_handshake()
            except ssl.SSLWantReadError:
                self._send_waiting(deadline)
                self._receive(deadline)
            except ssl.SSLError as error:
                with suppress(OSError):
                    self._send_waiting(deadline)  # the alert that tells the peer
                raise ProtocolError(
                    f"The peer has no certificate of this run ({error.reason or error})."
                ) from error
            else:
                return self._send_waiting(deadline)

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt at most one record; 0 after the peer's farewell, SSLWantReadError when what has
        come is not a whole record."""
        try:
            count: object = self.plain.read(len(buffer), buffer)
        except ssl.SSLZeroReturnError:
            return 0
        assert isinstance(count, int)
        return count

    def _send_waiting(self, deadline: float) -> None:
        self.sock.settimeout(_time_left_s(deadline))
        self.sock.sendall(self.outgoing.read())

    def _receive(self, deadline: float) -> None:
        self.sock.settimeout(_time_left_s(deadline))
        data = self.sock.recv(_HANDSHAKE_BYTES)
        if not data:
            raise ConnectionResetError("The peer left in the middle of the TLS handshake.")
        self.incoming.write(data)


def _context(protocol: int, credentials: Credentials | None, host: str) -> ssl.SSLContext:
    if credentials is None:
        raise ConfigError(
            f"{host} is not a loopback address, so connections are encrypted, and there are no "
            "credentials: make some with RunCertificates, or use 127.0.0.1."
        )
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=credentials.authority)
    with _as_file(credentials.certificate + credentials.key) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A path for `ssl`, which reads keys from files only: to memory, where the system can."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("manyhands-key", os.MFD_CLOEXEC)
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{fd}"
    else:
        with tempfile.NamedTemporaryFile("w") as named:  # readable by this user only
            named.write(text)
            named.flush()
            yield named.name


def _time_left_s(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("The peer took too long over the TLS handshake.")
    return left
