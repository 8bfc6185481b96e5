"""When the disk that servers write back to is in trouble, and when it is well again: one line each.

All servers of a machine write to one disk, and each of them says so.
"""

from __future__ import annotations

from manyhands.telemetry.events import Note


class StoreWatch:
    """Knows which server is in which trouble. Not thread-safe."""

    def __init__(self) -> None:
        self._troubles: dict[int, str] = {}

    def look(self, server: int, trouble: str) -> list[Note]:
        """What is to be told now that a server says this; an empty string is no trouble."""
        known = set(self._troubles.values())
        if trouble:
            self._troubles[server] = trouble
        else:
            self._troubles.pop(server, None)
        if trouble and trouble not in known:
            message = (
                f"{trouble} Training goes on and it is tried again; should all servers be lost, "
                "so would be what was learned since."
            )
            return [Note(message=message, warning=True)]
        if known and not self._troubles:
            return [Note(message="The parameters are written back again.")]
        return []
