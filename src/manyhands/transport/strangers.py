"""Who was turned away at a listener: a count, and a log line that a flood can't multiply."""

from __future__ import annotations

import logging
import threading
import time

logger = logging.getLogger(__name__)

_BETWEEN_LINES_S = 1.0


class Strangers:
    """Counts strangers and logs each, in one line a second at most. Thread-safe."""

    def __init__(self) -> None:
        self.count = 0
        self._unlogged = 0
        self._next_line = 0.0
        self._lock = threading.Lock()

    def turned_away(self, peer: str, why: str) -> None:
        """Note one more."""
        with self._lock:
            self.count += 1
            now = time.monotonic()
            if now < self._next_line:
                self._unlogged += 1
                return
            self._next_line = now + _BETWEEN_LINES_S
            others, self._unlogged = self._unlogged, 0
        more = f" ({others} more before)" if others else ""
        logger.warning("Turned away a stranger at %s: %s%s", peer, why, more)
