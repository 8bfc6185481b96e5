"""Where a server's chunks could be written back to: our segments, and what else there is.

Each engine takes a round of records, the newest of many chunks, and returns when all are on the
disk to stay. TensorStore is a package that Manyhands doesn't need; it takes part where it is
installed: `pip install manyhands[bench]`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from benchmarks.harness.native_program import Unavailable
from manyhands.parameter_server.store.catalogue import live, records_of
from manyhands.parameter_server.store.chunk_snapshot import SnapshotHeader
from manyhands.parameter_server.store.folder import SEGMENT_BYTES, Store, segment_names
from manyhands.parameter_server.store.record_reader import RecordReader
from manyhands.parameter_server.store.segment_file import Cut, force_to_disk, read_segment

Round = Mapping[int, bytes]  # snapshots by the number of their chunk


class Engine(Protocol):
    """One way to keep chunks on a disk."""

    def write(self, records: Round) -> None: ...
    def read(self) -> Round: ...
    def close(self) -> None: ...


class Segments:
    """Ours: many records in a file, forced to the disk once, old files removed."""

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder)

    def write(self, records: Round) -> None:
        self._store.refresh()
        waiting = list(records.items())
        while waiting:
            with self._store.segment() as writer:
                while waiting and writer.size_bytes < SEGMENT_BYTES:
                    number, snapshot = waiting.pop()
                    floats = (len(snapshot) - 40) // 4
                    writer.add(Cut(f"p{number}", (floats,), "sgd", 0, floats, 1), snapshot)
            self._store.tidy()

    def read(self) -> Round:
        folder = self._store.directory
        found = live(records_of(read_segment(folder / name) for name in segment_names(folder)))
        with RecordReader(found) as reader:
            return {int(one.record.cut.parameter[1:]): reader.snapshot(one) for one in found}

    def close(self) -> None:
        pass


class Files:
    """A file for each chunk, written beside its old self and renamed over it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder

    def write(self, records: Round) -> None:
        for number, snapshot in records.items():
            fresh = self._folder / f"{number}.partial"
            with fresh.open("wb") as file:
                file.write(snapshot)
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(self._folder / str(number))
        force_to_disk(self._folder)

    def read(self) -> Round:
        return {int(path.name): path.read_bytes() for path in self._folder.iterdir()}

    def close(self) -> None:
        pass


class Sqlite:
    """A row for each chunk, a transaction for each round, in SQLite's write-ahead mode."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._database = sqlite3.connect(folder / "chunks.db", isolation_level=None)
        for setting in ("page_size=65536", "journal_mode=WAL", "synchronous=FULL"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute("CREATE TABLE chunks (number INTEGER PRIMARY KEY, snapshot BLOB)")

    def write(self, records: Round) -> None:
        self._database.execute("BEGIN")
        self._database.executemany("REPLACE INTO chunks VALUES (?, ?)", records.items())
        self._database.execute("COMMIT")

    def read(self) -> Round:
        return dict(self._database.execute("SELECT number, snapshot FROM chunks"))

    def close(self) -> None:
        self._database.close()


class TensorStoreOcdbt:
    """A key for each chunk in TensorStore's OCDBT, a transaction for each round."""

    def __init__(self, folder: Path) -> None:
        try:
            import tensorstore
        except ImportError:
            raise Unavailable(
                "tensorstore is not installed (pip install manyhands[bench])"
            ) from None
        self._module: Any = tensorstore
        base = {"driver": "file", "path": f"{folder}/"}
        spec = {"driver": "ocdbt", "base": base}
        self._values: Any = tensorstore.KvStore.open(spec).result()

    def write(self, records: Round) -> None:
        with self._module.Transaction() as transaction:
            values = self._values.with_transaction(transaction)
            for number, snapshot in records.items():
                values[str(number)] = snapshot

    def read(self) -> Round:
        keys = self._values.list().result()
        reads = [(key, self._values.read(key)) for key in keys]
        return {int(key): bytes(read.result().value) for key, read in reads}

    def close(self) -> None:
        del self._values


ENGINES = {
    "segments": Segments,
    "files": Files,
    "sqlite": Sqlite,
    "tensorstore": TensorStoreOcdbt,
}
TITLES = {
    "segments": "segments (ours)",
    "files": "a file each",
    "sqlite": "SQLite",
    "tensorstore": "TensorStore OCDBT",
}


def snapshot_of(floats: int, version: int, noise: bytes) -> bytes:
    """A record of a chunk that has just moved; `noise` is what its weights are cut from."""
    header = SnapshotHeader(version, version, 1, 1, floats, 0)
    return header.packed() + noise[: floats * 4]


def size_on_disk(folder: Path) -> int:
    """What the file system has given to everything in a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sum(path.stat().st_blocks * 512 for path in files)


def installed_mb(package: str) -> float:
    """What a package takes when it is installed; 0 where it isn't."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return 0.0
    return sum(file.size or 0 for file in files) / 1e6
