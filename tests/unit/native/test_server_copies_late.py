"""Updates that a copy on the same machine has and has not applied, and whose memory they lie in.

A snapshot follows that contains them, or they are applied when the copy's contents are needed.
"""

from __future__ import annotations

import numpy as np
from copies import Copies, FakeCopy, FakePrimary, copies
from raw_client import Floats, Kind, RawClient

from manyhands import _native
from manyhands.messages import Flag, Refusal

SIZE = 150_000  # larger than a connection's buffer: every payload has a block of its own
MOST = 15  # updates of a chunk that may wait


def gradient(number: int) -> Floats:
    """Another one each time, so that a block that is used again too soon shows."""
    return np.random.default_rng(number).standard_normal(SIZE).astype(np.float32)


def push(client: RawClient, *numbers: int, chunk: int = 0) -> None:
    for number in numbers:
        assert client.push(chunk, gradient(number), sequence=number).kind is Kind.ACK


def late(c: Copies, server: int) -> int:
    for chunk in c.numbers:
        c.servers[server].collect(chunk)  # so that it has looked what was posted
    return int(c.servers[server].stats()["late_updates"])


def serve(c: Copies, rule: str = "adam", chunks: int = 1) -> RawClient:
    for chunk in range(chunks):
        c.add(chunk, SIZE, rule=_native.Rule(rule))
    c.serve()
    client = c.connect(0)
    push(client, 1)  # the first may go before it is known that the servers share a machine
    return client


def test_a_copy_acknowledges_what_it_has_not_applied_and_applies_it_when_asked() -> None:
    with copies(2) as c:
        client = serve(c)
        before = late(c, 1)
        push(client, *range(2, 8))
        assert late(c, 1) == before + 6
        c.assert_equal()


def test_a_snapshot_takes_the_place_of_many_updates() -> None:
    with copies(3) as c:
        client = serve(c)
        push(client, *range(2, 2 + 3 * (MOST + 1)))
        stats = c.servers[0].stats()
        assert stats["snapshots_sent"] == 2 * 3
        c.assert_equal()


def test_what_waits_survives_the_primary() -> None:
    """Its memory stays as long as a copy has it mapped."""
    with copies(3) as c:
        client = serve(c)
        push(client, *range(2, 10))
        expected = c.servers[0].collect(0)
        c.restart(0)
        c.hold(1, (2,), lease=2)
        c.join(1, 2)
        assert c.servers[1].collect(0) == expected
        moved = c.connect(1)
        push(moved, *range(9, 20))  # the first of them is known
        assert c.version(1) == 19
        c.assert_equal(1, 2)


def test_a_mirror_that_is_promoted_serves_what_it_has() -> None:
    with copies(3) as c:
        client = serve(c)
        push(client, *range(2, 10))
        expected = client.pull(0)
        c.servers[0].stop()
        c.hold(1, (2,), lease=2)
        assert np.array_equal(c.connect(1).pull(0), expected)


def test_blocks_are_not_used_again_while_a_copy_may_need_them() -> None:
    """The old primary goes on with another chunk while what it showed waits at a copy."""
    with copies(3) as c:
        client = serve(c, chunks=2)
        push(client, *range(2, 10))
        c.hold(1, (2,), lease=2, chunks=(0,), tell=(1,))
        push(client, *range(1, 60), chunk=1)
        c.join(1, 2)
        assert c.version(1) == 9
        c.assert_equal(1, 2)


def test_a_new_connection_finds_nothing_waiting() -> None:
    """What was shown over the old one is used again as soon as the new one is answered."""
    with copies(2) as c:
        client = serve(c)
        push(client, *range(2, 10))
        c.join(0, 1)
        push(client, *range(10, 60))
        c.assert_equal()


def test_what_waits_is_bounded() -> None:
    """64 MB at a copy: then it applies, and what comes next may wait again."""
    chunks, each = 9, 2 << 20  # a block of 8 MB each
    with copies(2) as c:
        for chunk in range(chunks):
            c.add(chunk, each)
        c.serve()
        client = c.connect(0)
        client.push(0, np.zeros(each, np.float32))
        for sequence in range(2, 5):
            for chunk in range(chunks):
                client.push(chunk, np.full(each, sequence, np.float32), sequence=sequence)
        stats = c.servers[0].stats()
        assert late(c, 1) < stats["replicated_updates"]
        c.assert_equal()


def test_a_copy_elsewhere_applies_before_it_answers() -> None:
    with copies(2) as c:
        c.add(0, SIZE)
        c.start()
        copy = FakeCopy(c, 0, peer=1)
        c.keep(copy)
        c.hold(0, (1,))
        copy.expect(Kind.ALIGN)
        copy.answer(count=1)
        client = c.connect(0)
        client.send(Kind.DELTA, gradient(1).tobytes(), sequence=1)
        assert np.array_equal(copy.receive().floats, gradient(1))
        copy.answer()
        assert client.receive().kind is Kind.ACK


def test_only_a_delta_of_a_server_that_is_shown_may_wait() -> None:
    with copies(2) as c:
        c.add(0, SIZE)
        c.serve()
        wanted = {"lease": 1, "sequence": 1, "client": 3, "count": 0}
        flags = Flag.REPLICATED | Flag.MAY_WAIT
        primary = FakePrimary(c, 1, peer=2)
        primary.send(Kind.DELTA, gradient(1).tobytes(), flags=flags, **wanted)
        assert primary.receive().count == Refusal.NOT_ALLOWED
        client = c.connect(0)
        client.send(Kind.DELTA, gradient(1).tobytes(), flags=Flag.MAY_WAIT, sequence=1)
        assert client.receive().count == Refusal.NOT_ALLOWED
        assert c.version(0) == 0
