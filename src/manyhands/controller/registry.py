"""Where a controller keeps what must outlive it: keys and values, changed by compare-and-swap.

Adam's controller is a Paxos cluster (section 3.3.3); here the agreement is the registry's affair.
Two implementations: `sqlite_registry.py` for the processes of one machine, `etcd_registry.py` for a
cluster. Both are off the path of updates: while a registry is away, servers go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value and the revision at which it was written; revisions only rise."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a key: its new value, or None when it was deleted or its lease ended."""

    key: str
    value: bytes | None
    revision: int


class LeaseHandle(Protocol):
    """A claim on time: entries written with it are deleted when it is not kept alive."""

    @property
    def number(self) -> int: ...

    @property
    def ttl_s(self) -> float:
        """How long it lasts; a registry may grant more than was asked for."""

    def keep_alive(self) -> bool:
        """Begin its time anew; False when it has ended, which can't be undone."""

    def revoke(self) -> None:
        """End it now, and its entries."""


class Registry(Protocol):
    """The contract of both implementations (tests/controller/test_registry_contract.py).

    Thread-safe. Every call may block for a second or two and raises RegistryUnavailable when the
    registry does not answer by then; whether a write was done is then not known, and reading tells.
    """

    def get(self, key: str) -> Entry | None:
        """The entry as of now, never an older one."""

    def put(
        self,
        key: str,
        value: bytes,
        *,
        expected: int | None = None,
        lease: LeaseHandle | None = None,
        guard: Entry | None = None,
    ) -> int | None:
        """Write; the new revision, or None when nothing was written because a condition fails.

        `expected` is the revision that the key must have, 0 that it must not exist. `guard` is
        another entry that must be as it is here. A lease that has ended is a condition that fails.
        """

    def delete(self, key: str, *, expected: int | None = None) -> bool:
        """Delete; False when it was not there, or not at the expected revision."""

    def entries(self, prefix: str) -> list[Entry]:
        """All entries whose keys begin so, in the order of the keys."""

    def grant(self, ttl_s: float) -> LeaseHandle:
        """A new lease."""

    def watch(self, prefix: str, *, after: int, timeout_s: float) -> Iterator[Change]:
        """Changes after this revision, in their order, as they come; ends after `timeout_s`.

        Of several changes of one key only the last is promised.
        """

    def close(self) -> None:
        """Let go of files and connections; entries and leases stay."""
