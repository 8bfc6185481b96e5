"""The registry of one machine: a SQLite file in WAL mode, nothing to install.

A change raises one counter, the revision. Deleted entries stay as tombstones (value NULL), so that
a watch sees them. A lease ends with its time or with the process that was granted it, whichever is
first: all of them run on this machine, where the death of a process can be seen at once.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from manyhands.controller.registry import Change, Entry, LeaseHandle
from manyhands.errors import RegistryUnavailable

_BUSY_S = 1.0
_LOOK_EVERY_S = 0.05
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY, value BLOB, revision INTEGER NOT NULL, lease INTEGER);
CREATE TABLE IF NOT EXISTS leases (
    number INTEGER PRIMARY KEY AUTOINCREMENT, ttl_s REAL NOT NULL, ends_s REAL NOT NULL,
    owner TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counter (revision INTEGER NOT NULL);
INSERT INTO counter SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM counter);
"""


class SqliteRegistry:
    """Entries in a file that the processes of this machine share. See `registry.Registry`.

    The file is opened by the first call, and again after an error: a registry that can't be opened
    now may be there later.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def get(self, key: str) -> Entry | None:
        with self._transaction() as db:
            return _entry(db, key)

    def put(
        self,
        key: str,
        value: bytes,
        *,
        expected: int | None = None,
        lease: LeaseHandle | None = None,
        guard: Entry | None = None,
    ) -> int | None:
        with self._transaction() as db:
            if not _is_at(db, key, expected):
                return None
            if guard is not None and not _is_at(db, guard.key, guard.revision):
                return None
            if lease is not None and not _is_granted(db, lease.number):
                return None
            return _write(db, key, value, None if lease is None else lease.number)

    def delete(self, key: str, *, expected: int | None = None) -> bool:
        with self._transaction() as db:
            if _entry(db, key) is None or not _is_at(db, key, expected):
                return False
            _write(db, key, None, None)
            return True

    def entries(self, prefix: str) -> list[Entry]:
        with self._transaction() as db:
            return [
                Entry(key, value, revision)
                for key, value, revision in _rows(db, prefix, after=0)
                if value is not None
            ]

    def grant(self, ttl_s: float) -> LeaseHandle:
        with self._transaction() as db:
            ends_s = time.monotonic() + ttl_s
            row = (ttl_s, ends_s, _owner_mark(os.getpid()))
            cursor = db.execute("INSERT INTO leases(ttl_s, ends_s, owner) VALUES (?, ?, ?)", row)
            assert cursor.lastrowid is not None
            return _SqliteLease(self, cursor.lastrowid, ttl_s)

    def watch(self, prefix: str, *, after: int, timeout_s: float) -> Iterator[Change]:
        deadline = time.monotonic() + timeout_s
        while True:
            with self._transaction() as db:
                rows = sorted(_rows(db, prefix, after=after), key=lambda row: row[2])
            for row in rows:
                yield Change(*row)
                after = row[2]
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(_LOOK_EVERY_S, left_s))

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def keep_alive(self, number: int) -> bool:
        """Of a lease: what its handle calls."""
        with self._transaction() as db:
            moved = "UPDATE leases SET ends_s = ttl_s + ? WHERE number = ?"
            return db.execute(moved, (time.monotonic(), number)).rowcount == 1

    def revoke(self, number: int) -> None:
        """Of a lease: what its handle calls."""
        with self._transaction() as db:
            _end_lease(db, number)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """The file, ours alone, without the entries of leases that have ended."""
        with self._lock:
            try:
                db = self._connection = self._connection or _open(self._path)
                db.execute("BEGIN IMMEDIATE")
                try:
                    _end_old_leases(db)
                    yield db
                except BaseException:
                    db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
            except sqlite3.Error as error:
                self._disconnect()
                raise RegistryUnavailable(
                    f"The registry {self._path} could not be used: {error}."
                ) from error

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


@dataclass(frozen=True, slots=True)
class _SqliteLease:
    _registry: SqliteRegistry
    number: int
    ttl_s: float

    def keep_alive(self) -> bool:
        return self._registry.keep_alive(self.number)

    def revoke(self) -> None:
        self._registry.revoke(self.number)


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    except BaseException:
        db.close()
        raise
    return db


def _entry(db: sqlite3.Connection, key: str) -> Entry | None:
    select = "SELECT value, revision FROM entries WHERE key = ? AND value IS NOT NULL"
    row = db.execute(select, (key,)).fetchone()
    return None if row is None else Entry(key, *row)


def _rows(db: sqlite3.Connection, prefix: str, *, after: int) -> list[tuple[str, bytes, int]]:
    select = (
        "SELECT key, value, revision FROM entries"
        " WHERE substr(key, 1, ?) = ? AND revision > ? ORDER BY key"
    )
    return db.execute(select, (len(prefix), prefix, after)).fetchall()


def _is_at(db: sqlite3.Connection, key: str, expected: int | None) -> bool:
    if expected is None:
        return True
    entry = _entry(db, key)
    return (0 if entry is None else entry.revision) == expected


def _write(db: sqlite3.Connection, key: str, value: bytes | None, lease: int | None) -> int:
    db.execute("UPDATE counter SET revision = revision + 1")
    revision = int(db.execute("SELECT revision FROM counter").fetchone()[0])
    row = (key, value, revision, lease)
    db.execute("INSERT OR REPLACE INTO entries(key, value, revision, lease) VALUES (?,?,?,?)", row)
    return revision


def _is_granted(db: sqlite3.Connection, lease: int) -> bool:
    return db.execute("SELECT 1 FROM leases WHERE number = ?", (lease,)).fetchone() is not None


def _end_lease(db: sqlite3.Connection, lease: int) -> None:
    held = "SELECT key FROM entries WHERE lease = ? AND value IS NOT NULL"
    for (key,) in db.execute(held, (lease,)).fetchall():
        _write(db, key, None, None)
    db.execute("DELETE FROM leases WHERE number = ?", (lease,))


def _end_old_leases(db: sqlite3.Connection) -> None:
    now = time.monotonic()  # the same for all processes of a machine
    for number, ends_s, owner in db.execute("SELECT number, ends_s, owner FROM leases").fetchall():
        if ends_s <= now or owner != _owner_mark(int(owner.partition(" ")[0])):
            _end_lease(db, number)


def _owner_mark(pid: int) -> str:
    """A process as nobody else will ever be: its number and when it began; "gone" when it is."""
    import psutil  # here: a controller on etcd starts without it

    try:
        return f"{pid} {psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return "gone"
