"""The contract of a registry, held to by both implementations: real files, a real etcd."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import pytest

from manyhands.controller.registry import Change, Entry, Registry
from manyhands.controller.registry_address import open_registry
from manyhands.errors import RegistryUnavailable
from tests.cluster.conftest import wait_until


@pytest.fixture
def registry(registry_address: str) -> Iterator[Registry]:
    opened = open_registry(registry_address)
    yield opened
    opened.close()


@pytest.fixture
def other(registry_address: str) -> Iterator[Registry]:
    """The same registry, as another process would open it."""
    opened = open_registry(registry_address)
    yield opened
    opened.close()


def test_what_is_written_is_read_by_all(registry: Registry, other: Registry) -> None:
    assert registry.get("a/x") is None
    first = registry.put("a/x", b"one")
    second = registry.put("a/y", b"")
    third = registry.put("b", bytes(range(256)))
    assert first is not None
    assert second is not None
    assert third is not None
    assert 0 < first < second < third
    assert other.get("a/x") == Entry("a/x", b"one", first)
    assert other.get("b") == Entry("b", bytes(range(256)), third)
    assert other.entries("a/") == [Entry("a/x", b"one", first), Entry("a/y", b"", second)]
    assert other.get("a") is None


def test_a_write_is_done_only_at_the_expected_revision(registry: Registry, other: Registry) -> None:
    assert registry.put("k", b"1", expected=7) is None
    created = registry.put("k", b"1", expected=0)
    assert created is not None
    assert other.put("k", b"2", expected=0) is None
    assert other.get("k") == Entry("k", b"1", created)
    changed = other.put("k", b"2", expected=created)
    assert changed is not None
    assert changed > created
    assert registry.put("k", b"3", expected=created) is None
    assert registry.get("k") == Entry("k", b"2", changed)


def test_a_guard_must_be_as_it_was(registry: Registry, other: Registry) -> None:
    revision = registry.put("leader", b"me")
    assert revision is not None
    guard = Entry("leader", b"me", revision)
    placed = registry.put("k", b"1", expected=0, guard=guard)
    assert placed is not None
    other.put("leader", b"you")
    assert registry.put("k", b"2", expected=placed, guard=guard) is None
    other.delete("leader")
    assert registry.put("k", b"2", expected=placed, guard=guard) is None
    assert registry.get("k") == Entry("k", b"1", placed)


def test_deleting(registry: Registry, other: Registry) -> None:
    assert not registry.delete("k")
    revision = registry.put("k", b"1")
    assert revision is not None
    assert not registry.delete("k", expected=revision + 1)
    assert other.get("k") is not None
    assert registry.delete("k", expected=revision)
    assert other.get("k") is None
    assert not registry.delete("k")
    again = registry.put("k", b"2", expected=0)
    assert again is not None
    assert again > revision


def test_one_of_many_writers_wins(registry_address: str, registry: Registry) -> None:
    """Counting by compare-and-swap: every success counts once."""

    def count(mine: Registry, successes: list[int]) -> None:
        while len(successes) < 10:
            with suppress(RegistryUnavailable):  # the file was busy: nothing was written
                entry = mine.get("n")
                value = b"1" if entry is None else str(int(entry.value) + 1).encode()
                if mine.put("n", value, expected=0 if entry is None else entry.revision):
                    successes.append(1)

    won: list[list[int]] = [[] for _ in range(4)]
    opened = [open_registry(registry_address) for _ in won]
    threads = [
        threading.Thread(target=count, args=(mine, successes))
        for mine, successes in zip(opened, won, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mine in opened:
        mine.close()
    entry = registry.get("n")
    assert entry is not None
    assert entry.value == b"40"


def test_a_lease_takes_its_entries_with_it(registry: Registry, other: Registry) -> None:
    lease = registry.grant(3.0)
    assert lease.ttl_s >= 3.0
    assert registry.put("mine", b"1", expected=0, lease=lease) is not None
    registry.put("ours", b"1")
    assert lease.keep_alive()
    assert other.get("mine") is not None
    wait_until(lambda: other.get("mine") is None, what="the lease has ended")
    assert other.get("ours") is not None
    assert not lease.keep_alive()
    assert registry.put("mine", b"2", lease=lease) is None
    assert other.put("mine", b"3", expected=0) is not None


def test_a_lease_that_is_kept_alive_lasts(registry: Registry, other: Registry) -> None:
    short, kept = registry.grant(3.0), registry.grant(3.0)
    registry.put("short", b"", lease=short)
    registry.put("kept", b"", lease=kept)
    wait_until(
        lambda: kept.keep_alive() and other.get("short") is None,
        what="only the other one has ended",
    )
    assert other.get("kept") is not None
    kept.revoke()
    assert other.get("kept") is None
    assert not kept.keep_alive()
    kept.revoke()


def test_a_watch_sees_what_came_after_in_its_order(registry: Registry, other: Registry) -> None:
    start = registry.put("w/old", b"0")
    assert start is not None
    a = registry.put("w/a", b"1")
    b = registry.put("w/b", b"2")
    registry.put("elsewhere", b"3")
    registry.delete("w/old")
    seen = list(islice(other.watch("w/", after=start, timeout_s=60.0), 3))
    assert seen[:2] == [Change("w/a", b"1", a), Change("w/b", b"2", b)]
    assert (seen[2].key, seen[2].value) == ("w/old", None)
    assert list(other.watch("w/", after=seen[-1].revision, timeout_s=0.2)) == []


def test_a_watch_sees_what_comes_and_what_ends_with_a_lease(
    registry: Registry, other: Registry
) -> None:
    start = registry.put("other", b"")
    assert start is not None
    seen: list[Change] = []

    def look() -> None:
        for change in other.watch("w/", after=start, timeout_s=60.0):
            seen.append(change)
            if change.value is None:
                return

    thread = threading.Thread(target=look)
    thread.start()
    lease = registry.grant(1.0)
    registry.put("w/x", b"1", lease=lease)
    wait_until(lambda: bool(seen), what="the watch saw the entry")
    thread.join(30)
    assert [(change.key, change.value) for change in seen] == [("w/x", b"1"), ("w/x", None)]
