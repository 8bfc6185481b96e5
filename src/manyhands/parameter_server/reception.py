"""A door of a server and the thread that answers it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from manyhands.errors import ManyhandsError
from manyhands.transport.endpoint import Endpoint
from manyhands.transport.listener import Arrival, Listener

logger = logging.getLogger(__name__)


class Reception:
    """Hands every authenticated arrival at a listener to `admit`, one after another.

    `admit` welcomes or refuses it. One that can't be let in costs a warning.
    """

    def __init__(self, listener: Listener, admit: Callable[[Arrival], None], name: str) -> None:
        self._listener = listener
        self._admit = admit
        self._name = name
        self._thread = threading.Thread(target=self._receive, name=name, daemon=True)

    @property
    def endpoint(self) -> Endpoint:
        """Where to knock."""
        return self._listener.endpoint

    @property
    def strangers(self) -> int:
        """How many were turned away before anybody heard of them."""
        return self._listener.strangers

    def start(self) -> None:
        self._listener.start()
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more; those who are in stay."""
        self._listener.close()
        if self._thread.is_alive():
            self._thread.join()

    def _receive(self) -> None:
        for arrival in self._listener.arrivals():
            try:
                self._admit(arrival)
            except (OSError, ValueError, RuntimeError, ManyhandsError) as error:
                logger.warning("%s at %s was not let in: %s", self._name, arrival.peer, error)
