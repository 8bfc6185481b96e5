"""Every form of update, under every rule, makes the same of every copy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from copies import Copies, FakeCopy, copies
from raw_client import Encoding, Floats, Kind, RawClient, eventually

from manyhands import _native

ROWS = (7, 12, 30)  # of chunks 0 to 2, which are one parameter's: a span
SENT, SHOWN = 40, 900  # numbers in a row: payloads of the wide are read from the primary's memory
RULES = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "adagrad": {},
    "adam": {},
    "adamw": {"weight_decay": 0.1},
    "outer": {"momentum": 0.9, "delay": 2},
}


def rule_of(name: str) -> _native.Rule:
    return _native.Rule("sgd" if name in ("momentum", "nesterov") else name, **RULES[name])


def numbers(random: np.random.Generator, size: int) -> Floats:
    return random.standard_normal(size).astype(np.float32)


def matrix(c: Copies, name: str, width: int) -> None:
    for chunk, rows in enumerate(ROWS):
        c.add(
            chunk, rows, width, rule=rule_of(name), parameter=0, first_row=sum(ROWS[:chunk]),
            start=0.1,
        )  # fmt: skip


def encoded(values: Floats, encoding: Encoding) -> tuple[bytes, int]:
    keep = values.size // 5 if encoding is Encoding.TOP_K else 0
    name = "topk" if encoding is Encoding.TOP_K else encoding.name.lower()
    return _native.encode(name, values, keep), keep


class Pusher:
    """A client that sends one update of some form after another."""

    def __init__(self, client: RawClient, seed: int, width: int) -> None:
        self.client, self.width = client, width
        self.random = np.random.default_rng(seed)
        self.sequence = 0

    def delta(self, encoding: Encoding = Encoding.FLOAT32) -> None:
        chunk = int(self.random.integers(3))
        payload, count = encoded(numbers(self.random, ROWS[chunk] * self.width), encoding)
        self.send(Kind.DELTA, payload, chunk=chunk, count=count, encoding=encoding)

    def factors(self, encoding: Encoding = Encoding.FLOAT32) -> None:
        samples = int(self.random.integers(1, 6))
        values = numbers(self.random, samples * (self.width + sum(ROWS)))
        payload, _ = encoded(values, encoding)
        self.send(Kind.FACTORS, payload, count=samples, encoding=encoding)

    def rows(self) -> None:
        chunk, count = int(self.random.integers(3)), int(self.random.integers(1, 5))
        which = self.random.integers(ROWS[chunk], size=count).astype(np.uint32)
        payload = which.tobytes() + numbers(self.random, count * self.width).tobytes()
        self.send(Kind.ROWS, payload, chunk=chunk, count=count)

    def set(self) -> None:
        chunk = int(self.random.integers(3))
        values = np.abs(numbers(self.random, ROWS[chunk] * self.width))
        self.send(Kind.SET, values.tobytes(), chunk=chunk)

    def any(self) -> None:
        forms = [
            *(lambda e=e: self.delta(e) for e in Encoding),
            self.factors, lambda: self.factors(Encoding.BFLOAT16), self.rows, self.set,
        ]  # fmt: skip
        forms[int(self.random.integers(len(forms)))]()

    def send(self, kind: Kind, payload: bytes, **fields: int) -> None:
        self.sequence += 1
        rate = float(self.random.uniform(0.001, 0.1))
        self.client.send(kind, payload, sequence=self.sequence, rate=rate, **fields)

    def take(self) -> None:
        reply = self.client.receive()
        assert reply.kind is Kind.ACK, reply.sentence


@pytest.mark.parametrize("width", [SENT, SHOWN])
@pytest.mark.parametrize("staleness", ["ignore", "scale"])
@pytest.mark.parametrize("name", RULES)
def test_updates_make_equal_copies(name: str, staleness: str, width: int) -> None:
    with copies(3, staleness=staleness) as c:
        matrix(c, name, width)
        c.serve()
        pusher = Pusher(c.connect(0, admin=True), 0, width)
        for _ in range(60):
            pusher.any()
            pusher.take()
        stats = c.servers[0].stats()
        assert (stats["snapshots_sent"], stats["replicated_updates"]) == (0, 120)
        c.assert_equal()


@pytest.mark.parametrize("width", [SENT, SHOWN])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_updates_that_come_together_make_equal_copies(name: str, width: int) -> None:
    """They are folded into snapshots where that is fewer bytes, and factors come between them."""
    with copies(3) as c:
        matrix(c, name, width)
        c.serve()
        pushers = [Pusher(c.connect(0, i, admin=True), i, width) for i in range(1, 9)]
        for _ in range(30):
            for pusher in pushers:
                for _ in range(4):
                    pusher.any()
            for pusher in pushers:
                for _ in range(4):
                    pusher.take()
        stats = c.servers[0].stats()
        assert stats["snapshots_sent"] > 0
        assert stats["replicated_updates"] > 0
        c.assert_equal()
        c.servers[0].stop()
        c.join(1, 2)
        c.hold(1, (2,), lease=2)
        moved = Pusher(c.connect(1, 1, admin=True), 99, width)
        moved.sequence = pushers[0].sequence
        for _ in range(20):
            moved.any()
            moved.take()
        c.assert_equal(1, 2)


def test_large_updates_make_equal_copies() -> None:
    """Too large for a socket's buffer: what it does not take is kept until it does."""
    size = 600_000
    with copies(3, refuse_nonfinite=False) as c:
        c.add(0, size, rule=_native.Rule("sgd", momentum=0.5))
        c.add(1, size, rule=_native.Rule("adam"))
        c.serve()
        clients = [c.connect(0, i) for i in range(1, 4)]
        random = np.random.default_rng(0)
        for sequence in range(1, 8):
            for client in clients:
                chunk = int(random.integers(2))
                client.send(
                    Kind.DELTA, numbers(random, size).tobytes(), chunk=chunk, sequence=sequence
                )
            for client in clients:
                assert client.receive().kind is Kind.ACK
        c.assert_equal()
        assert c.servers[0].stats()["waiting_bytes"] == 0


def test_what_a_slow_copy_does_not_take_is_kept_as_it_was() -> None:
    """Payloads lie in buffers that the next frame of the same client overwrites."""
    size, pushers = 25_000, range(1, 7)
    with copies(1) as c:
        for chunk in range(2):
            c.add(chunk, size, rule=_native.Rule("adam"))
        c.start()
        copy = FakeCopy(c, 0, peer=1)
        c.keep(copy)
        c.hold(0, (1,))
        clients = [c.connect(0, client) for client in pushers]
        for chunk in range(2):
            for client in clients:
                gradient = np.full(size, 10 * chunk + client.client, np.float32)
                client.send(Kind.DELTA, gradient.tobytes(), chunk=chunk, sequence=1 + chunk)
                updates = len(pushers) * chunk + client.client
                eventually(lambda u=updates: c.servers[0].stats()["updates"] == u)
        for _ in range(2):
            copy.expect(Kind.ALIGN)
        for _ in range(2 * len(pushers)):
            got = copy.receive()
            assert got.kind is Kind.DELTA
            assert np.unique(got.floats).tolist() == [10 * got.chunk + got.client]


def test_a_payload_that_was_shown_stays_as_long_as_the_copy_may_look_at_it() -> None:
    """The connection is gone, but what it brought lies unread at the copy."""
    size = 150_000  # larger than a connection's buffer: every payload has a block of its own
    ones = np.ones(size, np.float32)
    with copies(2) as c:
        c.add(0, size)
        c.serve()
        client = c.connect(0)
        client.push(0, ones)
        c.servers[1].mute_peer(0, True)
        c.servers[1].hold([0], role="mirror", lease=1)  # nothing can be posted until it reads again
        assert c.version(1) == 1
        client.send(Kind.DELTA, (2 * ones).tobytes(), sequence=2)
        eventually(lambda: c.version(0) == 2)
        c.servers[0].drop_peer(1)
        c.hold(0)
        assert client.receive().seen == 2
        assert c.version(1) == 1
        for sequence in range(3, 30):
            assert client.push(0, 100 * ones, sequence=sequence).seen == sequence
        c.servers[1].mute_peer(0, False)
        eventually(lambda: c.version(1) == 2)
        found = c.snapshot(1)
        assert found is not None
        assert np.unique(found.arrays).tolist() == [-3]
        c.join(0, 1)
        c.hold(0, (1,))
        assert client.push(0, ones, sequence=30).seen == 30
        c.assert_equal()


def test_a_span_whose_chunks_have_a_push_in_part_takes_the_rest_of_it() -> None:
    """Chunk 0 was copied after the push and chunk 1 before it; then the primary died."""
    with copies(3) as c:
        for chunk in range(2):
            c.add(chunk, 5, 4, parameter=0, first_row=5 * chunk)
        c.start()
        c.hold(0)
        factors = np.ones(2 * (4 + 10), np.float32)
        client = c.connect(0)
        client.ask(Kind.FACTORS, factors.tobytes(), count=2, sequence=1)
        before = c.servers[0].collect(1)
        client.ask(Kind.FACTORS, factors.tobytes(), count=2, sequence=2)
        after = c.servers[0].collect(0)
        assert before is not None
        assert after is not None
        c.servers[1].restore(0, after, 2)
        c.servers[1].restore(1, before, 2)
        c.join(1, 2)
        c.hold(1, (2,), lease=2)
        moved = c.connect(1)
        for sequence in (1, 2, 2, 3):
            reply = moved.ask(Kind.FACTORS, factors.tobytes(), count=2, sequence=sequence)
            assert reply.kind is Kind.ACK
        client.ask(Kind.FACTORS, factors.tobytes(), count=2, sequence=3)
        for chunk in range(2):
            np.testing.assert_array_equal(moved.pull(chunk), client.pull(chunk))
        assert c.servers[1].stats()["replays"] == 2
        c.assert_equal(1, 2)


def test_factors_for_a_span_with_several_primaries_are_refused() -> None:
    with copies(1) as c:
        for chunk in range(2):
            c.add(chunk, 5, 4, parameter=0, first_row=5 * chunk)
        c.start()
        c.hold(0, chunks=[0])
        factors = np.ones(14, np.float32).tobytes()
        assert c.connect(0).ask(Kind.FACTORS, factors, count=1, sequence=1).kind is Kind.REFUSED
        assert c.version(0, 0) == 0


def test_factors_reach_a_copy_that_has_only_some_of_the_span() -> None:
    with copies(2) as c:
        for chunk in range(3):
            c.add(chunk, 5, 4, parameter=0, first_row=5 * chunk)
        c.start()
        c.join(0, 1)
        c.hold(0, (1,))
        client = c.connect(0)
        ones = np.ones(20, np.float32)
        client.push(0, ones)
        c.servers[1].mute_peer(0, True)
        client.send(Kind.DELTA, ones.tobytes(), chunk=1, sequence=2)
        eventually(lambda: c.version(0, 1) == 1)
        c.servers[0].drop_peer(1)  # chunk 1 there is behind, chunk 0 is not
        c.servers[1].mute_peer(0, False)
        factors = np.ones(19, np.float32).tobytes()
        client.send(Kind.FACTORS, factors, count=1, sequence=3)
        c.join(0, 1)
        client.send(Kind.FACTORS, factors, count=1, sequence=4)
        assert sorted(client.receive().sequence for _ in range(3)) == [2, 3, 4]
        c.assert_equal()
