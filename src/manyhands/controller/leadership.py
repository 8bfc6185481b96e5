"""Who of several controllers decides: the one whose name stands under the registry's leader key.

The name goes with a lease of the registry, so that it vanishes with its controller. Every write of
the leader is conditional on its own entry (the *guard*): one that was paused and replaced meanwhile
can't write, whatever it believes.
"""

from __future__ import annotations

import logging
import threading
import time

from manyhands.controller.registry import Entry, LeaseHandle, Registry
from manyhands.errors import RegistryUnavailable

logger = logging.getLogger(__name__)

LEADER_KEY = "leader"
_TRY_EVERY_S = 0.1


class Leadership:
    """Tries to lead and goes on leading, in a thread of its own.

    `name` must be this controller's alone. `guard`, `rival` and `trouble` may be read by any
    thread.
    """

    def __init__(self, registry: Registry, name: bytes, *, ttl_s: float) -> None:
        self._registry = registry
        self._name = name
        self._ttl_s = ttl_s
        self._lease: LeaseHandle | None = None
        self._entry: Entry | None = None
        self._valid_until_s = 0.0
        self._closed = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)
        self.rival: bytes | None = None  # who leads, when it is somebody else
        self.trouble = ""  # why the registry can't be asked who leads

    @property
    def guard(self) -> Entry | None:
        """Our entry while we lead, else None."""
        return self._entry if time.monotonic() < self._valid_until_s else None

    def start(self) -> None:
        """Begin to try."""
        self._thread.start()

    def doubt(self) -> None:
        """A guarded write failed: believe in our lead again only after the registry confirms it."""
        self._valid_until_s = 0.0
        self._woken.set()

    def close(self) -> None:
        """Resign, so that another needn't wait for the lease to end."""
        self._closed = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()
        lease, self._lease = self._lease, None
        self._valid_until_s = 0.0
        if lease is not None:
            try:
                lease.revoke()
            except RegistryUnavailable as error:
                logger.warning("The lead was not handed over: %s", error)

    def _run(self) -> None:
        while not self._closed:
            self._woken.clear()
            try:
                if not self._keep():
                    self._acquire()
                self.trouble = ""
            except RegistryUnavailable as error:
                if not self.trouble:
                    logger.warning("The registry is away, servers go on meanwhile: %s", error)
                self.trouble = str(error)
            except Exception:  # the thread must live as long as its controller
                logger.exception("The attempt to lead failed")
            if not self._closed:
                self._woken.wait(_TRY_EVERY_S if self.guard is None else self._ttl_s / 4)

    def _keep(self) -> bool:
        """Renew our lease, when we have one that the registry still knows."""
        if self._lease is None or self._entry is None:
            return False
        asked_s = time.monotonic()
        if not self._lease.keep_alive():
            self._lease = self._entry = None
            return False
        stored = self._registry.get(LEADER_KEY)
        if stored is None or stored.revision != self._entry.revision:
            self._lease = self._entry = None
            return False
        self._valid_until_s = asked_s + self._lease.ttl_s
        return True

    def _acquire(self) -> None:
        """Put our name under the key, when no name stands there."""
        stored = self._registry.get(LEADER_KEY)
        if stored is None:
            # Kept before the write: should its answer be lost, the name is found with the lease.
            self._lease = self._registry.grant(self._ttl_s)
            self._registry.put(LEADER_KEY, self._name, expected=0, lease=self._lease)
            stored = self._registry.get(LEADER_KEY)
        if stored is not None and stored.value == self._name:
            self.rival = None
            self._entry = stored
            self._keep()
        else:
            self.rival = None if stored is None else stored.value
