"""A port that is ours before anybody listens on it, and stays so while its listener is replaced.

The controller of a run is told its port, so that servers and clients need not wait for it to start
and find its successor where they found it.
"""

from __future__ import annotations

import socket
from types import TracebackType

from manyhands.errors import ConfigError


class ReservedPort:
    """A port of one address. Another process of this machine may listen on it meanwhile.

    It is bound here and never listened on: the system then gives it to nobody who asks for any
    port, and lets those in who name it.
    """

    def __init__(self, host: str) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, 0))
        except OSError as error:
            self._socket.close()
            raise ConfigError(
                f"No port can be had at {host!r} ({error.strerror}): name an address that this "
                "machine has."
            ) from error

    @property
    def number(self) -> int:
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Give the port back; may be called twice."""
        self._socket.close()

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
