"""Updates that a primary writes into a copy's memory: the copy has them before it looks."""

from __future__ import annotations

import numpy as np
from copies import Copies, copies, refused_as_stale
from raw_client import Floats, Kind, RawClient, eventually

from manyhands import _native

SIZE = 8_192  # large enough to be shown instead of sent
MOST = 15  # updates of a chunk that may wait


def gradient(number: int) -> Floats:
    return np.random.default_rng(number).standard_normal(SIZE).astype(np.float32)


def push(client: RawClient, *numbers: int, chunk: int = 0) -> None:
    for number in numbers:
        assert client.push(chunk, gradient(number), sequence=number).kind is Kind.ACK


def posted(c: Copies, server: int = 0) -> int:
    return int(c.servers[server].stats()["posted_updates"])


def serve(c: Copies, chunks: int = 1) -> RawClient:
    for chunk in range(chunks):
        c.add(chunk, SIZE, rule=_native.Rule("adam"))
    c.serve()
    client = c.connect(0)
    for chunk in range(chunks):
        push(client, 1, chunk=chunk)  # the first is sent: nobody knows yet that memory is shared
    return client


def deaf(c: Copies, server: int) -> None:
    """The server reads nothing that its primary sends, as if it were stopped."""
    c.servers[server].mute_peer(0, True)
    c.version(server)  # answered when the lane has done so


def test_what_is_posted_is_no_message() -> None:
    with copies(3) as c:
        client = serve(c)
        frames = [c.servers[copy].stats()["frames"] for copy in (1, 2)]
        before = posted(c)
        push(client, *range(2, 10))
        assert posted(c) == before + 2 * 8
        assert [c.servers[copy].stats()["frames"] for copy in (1, 2)] == frames
        c.assert_equal()


def test_a_copy_that_reads_nothing_has_what_was_acknowledged() -> None:
    with copies(3) as c:
        client = serve(c)
        deaf(c, 1)
        push(client, *range(2, 10))
        expected = c.servers[0].collect(0)
        c.servers[0].stop()
        c.hold(1, (2,), lease=2)
        c.join(1, 2)
        assert c.servers[1].collect(0) == expected
        moved = c.connect(1)
        push(moved, 9, 10)  # the first is known
        assert c.version(1) == 10
        c.assert_equal(1, 2)


def test_a_page_is_never_full() -> None:
    """What a copy that reads nothing has is bounded: then its answer is waited for."""
    with copies(2) as c:
        client = serve(c)
        deaf(c, 1)
        push(client, *range(2, 1 + MOST))
        for number in (98, 99):
            client.send(Kind.DELTA, gradient(number).tobytes(), sequence=number)
        eventually(lambda: c.servers[0].stats()["held_replies"] >= 1)
        c.servers[1].mute_peer(0, False)
        assert [client.receive().kind for _ in range(2)] == [Kind.ACK] * 2
        c.assert_equal()


def test_a_primary_can_not_post_where_another_was_promoted() -> None:
    with copies(3) as c:
        client = serve(c)
        push(client, 2, 3)
        c.hold(1, (2,), lease=2, tell=(1,))
        assert c.version(1) == 3
        before = posted(c)
        assert refused_as_stale(client.push(0, gradient(4), sequence=4))
        assert posted(c) <= before + 1  # to the one that has not heard of it
        c.join(1, 2)
        push(c.connect(1), 4)
        c.assert_equal(1, 2)


def test_a_primary_can_not_post_where_another_was_obeyed() -> None:
    """The new primary needs no more than its first frame to the copy."""
    with copies(3) as c:
        client = serve(c)
        push(client, 2, 3)
        c.join(1, 2)
        c.hold(1, (2,), lease=2, tell=(1,))
        push(c.connect(1, client=2), 1)
        assert refused_as_stale(client.push(0, gradient(4), sequence=4))
        assert c.version(1) == 4
        c.assert_equal(1, 2)


def test_pages_are_opened_again() -> None:
    """After a role that was given again, a new connection and a snapshot."""
    with copies(2) as c:
        client = serve(c, chunks=2)
        first = posted(c)
        push(client, 2, 3)
        c.hold(0, (1,))
        c.version(1)  # answered when the role was taken
        push(client, 4, 5, 6)
        assert posted(c) == first + 4
        c.join(0, 1)
        push(client, 7, 8, 9)
        assert posted(c) > first + 4
        push(client, *range(10, 10 + 2 * MOST))
        before = posted(c)
        push(client, *range(2, 8), chunk=1)
        assert posted(c) > before
        c.assert_equal()


def test_what_was_posted_is_stored() -> None:
    """Whoever reads the contents of a copy sees all of it, and reads no more than was asked for."""
    with copies(2) as c:
        client = serve(c)
        push(client, 2, 3)
        assert c.servers[1].collect(0, since=2) == c.servers[0].collect(0)
        assert c.servers[1].collect(0, since=3) is None
