"""Servers with copies die, are cut off or believe in an old lease: nothing is lost or doubled."""

from __future__ import annotations

from contextlib import suppress

import pytest
from copies import (
    ONES,
    SIZE,
    FakePrimary,
    copies,
    one_chunk,
    push_in_vain,
    refused_as_stale,
    silent,
    total,
)
from raw_client import Flag, Kind, eventually

from manyhands.messages import Refusal


def test_the_primary_dies_and_a_mirror_goes_on_exactly_once() -> None:
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        for _ in range(5):
            client.push(0, ONES)
        c.servers[0].stop()
        c.join(1, 2)
        c.hold(1, (2,), lease=2)
        moved = c.connect(1)
        assert moved.push(0, ONES, sequence=5, lease=2).seen == 5  # its answer might have been lost
        assert moved.push(0, ONES, sequence=6, lease=2).seen == 6
        assert total(moved.pull(0)) == 6
        c.assert_equal(1, 2)
        assert c.servers[1].stats()["snapshots_sent"] == 0  # they were in step


@pytest.mark.parametrize("reached", [(), (1,), (2,), (1, 2)])
def test_the_primary_dies_between_its_copies(reached: tuple[int, ...]) -> None:
    """An update that was never acknowledged is there or not, and sent again counts once."""
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        for copy in (1, 2):
            if copy not in reached:
                c.servers[0].mute_peer(copy, True)
            else:  # it takes the update, and its answer is lost
                c.servers[copy].mute_peer(0, False)
        if set(reached) == {1, 2}:
            assert client.push(0, ONES, sequence=2).seen == 2
        else:
            push_in_vain(client, 2)
            eventually(lambda: all(c.version(copy) == 2 for copy in reached))
            assert silent(client)
        c.servers[0].stop()
        c.join(1, 2)
        c.hold(1, (2,), lease=2)
        moved = c.connect(1)
        assert moved.push(0, ONES, sequence=2).seen == 2
        assert moved.push(0, ONES, sequence=3).seen == 3
        assert total(moved.pull(0)) == 3
        c.assert_equal(1, 2)


def test_a_mirror_dies_and_the_reply_waits_for_the_placement() -> None:
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        c.servers[2].stop()
        assert ("peer_lost", 2, 0, 0) in c.servers[0].wait_events(20)
        push_in_vain(client, 2)
        eventually(lambda: c.version(1) == 2)
        assert silent(client)
        eventually(lambda: 2 in c.servers[0].lagging())
        c.hold(0, (1,))
        assert client.receive().seen == 2
        assert client.push(0, ONES, sequence=3).seen == 3


def test_both_mirrors_die() -> None:
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        c.servers[1].stop()
        c.servers[2].stop()
        push_in_vain(client, 1)
        assert silent(client)
        c.hold(0)
        assert client.receive().seen == 1


def test_primary_and_mirror_die() -> None:
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        c.servers[0].stop()
        c.servers[1].stop()
        c.hold(2, lease=2)
        last = c.connect(2)
        assert last.push(0, ONES, sequence=1).seen == 1
        assert last.push(0, ONES, sequence=2).seen == 2


# --- the fence


def test_an_old_primary_acknowledges_nothing_and_steps_down() -> None:
    with copies(3) as c:
        one_chunk(c)
        old = c.connect(0)
        old.push(0, ONES)
        c.join(1, 2)
        c.hold(1, (2,), lease=2, tell=(1, 2))  # server 0 was paused and knows nothing of it
        new = c.connect(1, 2)
        assert new.push(0, ONES, lease=2).seen == 2
        assert refused_as_stale(old.push(0, ONES, sequence=2))
        fenced = [event for event in c.servers[0].wait_events(20) if event[0] == "fenced"]
        assert fenced == [("fenced", 0, 2, 0)]
        assert refused_as_stale(old.ask(Kind.PULL))
        assert total(new.pull(0)) == 2
        c.hold(0, (1, 2), lease=1, tell=(0,))  # old news
        assert refused_as_stale(old.push(0, ONES, sequence=2))
        assert new.push(0, ONES, sequence=2).seen == 3
        c.assert_equal(1, 2)


def test_the_fence_does_not_need_a_new_update() -> None:
    """It is enough that the new primary has told its copies of itself."""
    with copies(3) as c:
        one_chunk(c)
        old = c.connect(0)
        old.push(0, ONES)
        c.join(1, 2)
        c.servers[1].hold([0], role="primary", lease=2, mirrors=[2])
        eventually(lambda: refused_as_stale(c.connect(2).ask(Kind.PULL)))
        assert refused_as_stale(old.push(0, ONES, sequence=2))


def test_a_primary_that_hears_of_a_later_one_refuses_who_waits() -> None:
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        c.servers[0].mute_peer(1, True)
        c.servers[0].mute_peer(2, True)
        push_in_vain(client, 2)
        eventually(lambda: c.servers[0].stats()["held_replies"] == 1)
        c.hold(1, (2,), lease=2, tell=(1, 2))
        c.servers[0].mute_peer(1, False)
        c.join(1, 0)
        c.servers[1].hold([0], role="primary", lease=2, mirrors=[2], joining=[(0, 7)])
        assert refused_as_stale(client.receive())
        c.join(1, 2)
        assert c.connect(1).push(0, ONES, sequence=2).seen == 2
        c.assert_equal(1, 2, 0)


def test_a_role_that_ends_refuses_who_waits() -> None:
    with copies(2) as c:
        one_chunk(c)
        client = c.connect(0)
        c.servers[0].mute_peer(1, True)
        push_in_vain(client, 1)
        eventually(lambda: c.servers[0].stats()["held_replies"] == 1)
        c.servers[0].hold([0], role="mirror", lease=2)
        assert refused_as_stale(client.receive())


# --- copies that are elsewhere


def test_a_copy_that_is_ahead_is_brought_back() -> None:
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        c.servers[0].mute_peer(1, True)
        push_in_vain(client, 2)
        eventually(lambda: c.version(2) == 2)  # and nobody was told
        c.servers[0].stop()
        c.join(1, 2)
        c.hold(1, (2,), lease=2)
        eventually(lambda: c.version(2) == 1)
        moved = c.connect(1)
        assert moved.push(0, ONES, sequence=3).seen == 2
        assert c.servers[1].stats()["snapshots_sent"] == 1
        c.assert_equal(1, 2)


def test_a_copy_that_is_ahead_is_not_mistaken_when_the_primary_moves_on() -> None:
    """Both come to version 2, with different updates."""
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        c.servers[0].mute_peer(1, True)
        push_in_vain(client, 2)
        eventually(lambda: c.version(2) == 2)
        c.servers[0].stop()
        c.hold(1, lease=2)
        moved = c.connect(1, 9)
        assert moved.push(0, 5 * ONES).seen == 2
        c.join(1, 2)
        c.hold(1, (2,), lease=2)
        assert moved.push(0, ONES).seen == 3
        c.assert_equal(1, 2)
        assert total(moved.pull(0)) == 7


def test_a_connection_that_breaks_with_unanswered_updates_is_made_good() -> None:
    with copies(2) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        for sequence in range(2, 30):
            c.servers[1].mute_peer(0, sequence % 2 == 0)  # they arrive, or lie unread
            push_in_vain(client, sequence)
            eventually(lambda s=sequence: c.version(0) == s)
            if sequence % 3 == 0:
                c.servers[0].drop_peer(1)
            c.servers[1].mute_peer(0, False)
            c.join(0, 1)
            assert client.receive().sequence == sequence
        assert total(client.pull(0)) == 29
        c.assert_equal()


def test_an_older_connection_of_a_server_is_closed() -> None:
    with copies(2) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        snapshot = c.servers[0].collect(0)
        assert snapshot is not None
        older = FakePrimary(c, 1, peer=0)
        c.join(0, 1)
        for sequence in (2, 3):
            assert client.push(0, ONES, sequence=sequence).seen == sequence
        with suppress(BrokenPipeError):
            older.send(Kind.SNAPSHOT, snapshot, lease=1, count=1)
        assert older.is_closed()
        assert client.push(0, ONES, sequence=4).seen == 4
        c.assert_equal()


def test_a_snapshot_that_was_overtaken_is_refused() -> None:
    with copies(2) as c:
        c.add(0, SIZE)
        c.start()
        c.hold(0)
        client = c.connect(0)
        primary = FakePrimary(c, 1, peer=5)
        taken = []
        for version in (1, 2):
            client.push(0, ONES)
            taken.append(c.servers[0].collect(0))
            assert primary.ask(Kind.SNAPSHOT, taken[-1], lease=1, count=1).seen == version
        reply = primary.ask(Kind.SNAPSHOT, taken[0], lease=1, count=1)
        assert (reply.kind, reply.count) == (Kind.REFUSED, Refusal.OUT_OF_STEP)
        assert c.version(1) == 2
        # a later primary may never have had the second update
        assert primary.ask(Kind.SNAPSHOT, taken[0], lease=2, count=1).seen == 1
        assert c.version(1) == 1


def test_an_update_for_the_same_version_of_another_history_is_refused() -> None:
    with copies(2) as c:
        c.add(0, SIZE)
        c.start()
        c.hold(0)
        c.connect(0).push(0, ONES)
        snapshot = c.servers[0].collect(0)
        assert snapshot is not None
        primary = FakePrimary(c, 1, peer=5)
        assert primary.ask(Kind.SNAPSHOT, snapshot, lease=1, count=1).seen == 1
        assert primary.ask(Kind.ALIGN, lease=2, seen=1, place=2).count == 0  # it stands at (1, 1)
        update = {"lease": 2, "seen": 1, "sequence": 9, "client": 3, "flags": Flag.REPLICATED}
        reply = primary.ask(Kind.DELTA, ONES.tobytes(), place=2, **update)
        assert (reply.kind, reply.count) == (Kind.REFUSED, Refusal.OUT_OF_STEP)
        for _ in range(2):  # and one for its own place only once
            reply = primary.ask(Kind.DELTA, ONES.tobytes(), place=1, **update)
        assert (reply.kind, reply.count, c.version(1)) == (Kind.REFUSED, Refusal.OUT_OF_STEP, 2)
        assert refused_as_stale(primary.ask(Kind.ALIGN, lease=1, seen=2, place=2))
