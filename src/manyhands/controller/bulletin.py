"""The placement that everybody may know, the last one committed, and waiting for a newer one."""

from __future__ import annotations

import json
import threading
import zlib
from typing import Any

from manyhands.errors import RegistryUnavailable
from manyhands.parameter_server.placement import Placement


class Bulletin:
    """Holds the published placement and wakes those who wait. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._placement: Placement | None = None
        self._json: Any = None
        self._closed = False

    @property
    def placement(self) -> Placement | None:
        return self._placement

    def publish(self, placement: Placement) -> None:
        """Show a placement, unless a newer one is shown."""
        shown = placement.to_json()
        with self._changed:
            if self._placement is None or placement.version > self._placement.version:
                self._placement, self._json = placement, shown
                self._changed.notify_all()

    def newer_than(self, version: int, wait_s: float = 0.0) -> Any:
        """The placement as JSON when it is newer than this version, or becomes so in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._version > version, wait_s)
            return self._json if self._version > version else None

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def _version(self) -> int:
        return -1 if self._placement is None else self._placement.version


def packed(placement: Placement) -> bytes:
    """A placement as the registry holds it: compressed, for etcd takes a megabyte and no more."""
    return zlib.compress(json.dumps(placement.to_json(), separators=(",", ":")).encode())


def unpacked(value: bytes) -> Placement:
    """The placement in a registry's value; RegistryUnavailable when it is none."""
    try:
        return Placement.from_json(json.loads(zlib.decompress(value)))
    except (zlib.error, ValueError) as error:
        raise RegistryUnavailable(
            f"The registry's placement can't be read ({error}): is it of another version?"
        ) from error
