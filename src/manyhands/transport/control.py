"""A running run's ear: one JSON line in, one JSON line out, for the user who started it.

Commands such as adding a replica reach a run in another terminal this way. The socket has no file;
its name stands in one in the run's directory, readable by the user only, and is worth nothing to
anybody else: both ends check whose process the other is.

    request  {"command": ..., ...}
    answer   {"answer": ...}  or  {"error": one sentence}
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from manyhands.errors import ConfigError, ManyhandsError, ProtocolError, ServerUnavailable
from manyhands.transport.unix_socket import (
    AVAILABLE,
    connect_unix,
    listen_unix,
    require_same_user,
)

logger = logging.getLogger(__name__)

FILE_NAME = "control"
_DEADLINE_S = 5.0
_MOST_BYTES = 64 << 10
_MOST_WAITING = 16

Handler = Callable[[dict[str, Any]], Any]


class ControlServer:
    """Answers requests in a thread of its own, one at a time, through `handle`.

    What `handle` returns is the answer; a ManyhandsError that it raises is told to the asker. It is
    called in this thread, so it must be thread-safe. Does nothing where local sockets lack.
    """

    def __init__(self, directory: Path, handle: Handler) -> None:
        self._file = Path(directory) / FILE_NAME
        self._handle = handle
        self._door: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)

    def start(self) -> None:
        """Listen, and leave the name in the run's directory."""
        if not AVAILABLE:
            return
        self._door, name = listen_unix(_MOST_WAITING)
        self._file.unlink(missing_ok=True)  # of a run that was killed
        fd = os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(name)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; a request that is being answered is answered. May be called twice."""
        door, self._door = self._door, None
        if door is None:
            return
        self._file.unlink(missing_ok=True)
        with suppress(OSError):
            door.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._thread.join(_DEADLINE_S)
        door.close()

    def __enter__(self) -> ControlServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _serve(self) -> None:
        while (door := self._door) is not None:
            try:
                sock, _ = door.accept()
            except OSError:
                continue  # closed, or the asker has left
            with sock, suppress(OSError):
                self._answer_one(sock)

    def _answer_one(self, sock: socket.socket) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        try:
            require_same_user(sock)
            reply = self._reply(_read_line(sock, deadline))
        except ProtocolError as error:
            logger.warning("Turned away at the control socket: %s", error)
            reply = {"error": str(error)}
        sock.settimeout(_DEADLINE_S)
        sock.sendall(_line(reply))

    def _reply(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"answer": self._handle(request)}
        except ProtocolError:
            raise
        except ManyhandsError as error:
            return {"error": str(error)}
        except Exception as error:  # a role's main loop: the run must not end by a question
            logger.exception("The request %.200r failed", request)
            return {"error": f"The run failed to answer: {type(error).__name__}: {error}"}


def ask(directory: Path, request: dict[str, Any], *, timeout_s: float = 10.0) -> Any:
    """Put a request to the run that lives in this directory; its answer. Blocks for `timeout_s`.

    ConfigError with the run's own sentence when it declines; ServerUnavailable when no run
    listens there or it doesn't answer.
    """
    deadline = time.monotonic() + timeout_s
    try:
        name = (Path(directory) / FILE_NAME).read_text()
        with connect_unix(name, timeout_s) as sock:
            sock.sendall(_line(request))
            reply = _read_line(sock, deadline)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        raise ServerUnavailable(
            f"No run is going on in {directory}: it has ended, or the directory is another one's."
        ) from error
    except OSError as error:
        raise ServerUnavailable(
            f"The run in {directory} did not answer ({error or type(error).__name__}): try again, "
            "or see whether it still moves."
        ) from error
    if "error" in reply:
        raise ConfigError(str(reply["error"]))
    return reply.get("answer")


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _read_line(sock: socket.socket, deadline: float) -> dict[str, Any]:
    data = bytearray()
    while not data.endswith(b"\n"):
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        piece = sock.recv(_MOST_BYTES)
        if not piece:
            raise ConnectionResetError("the other side left in the middle of a line")
        data += piece
        if len(data) > _MOST_BYTES:
            raise ProtocolError(f"A line has at most {_MOST_BYTES} bytes.")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ProtocolError("A line holds a JSON object; this one does not.") from None
    if not isinstance(value, dict):
        raise ProtocolError("A line holds a JSON object; this one does not.")
    return value
