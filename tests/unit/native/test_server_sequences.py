"""The chunk server applies an update once, whatever breaks on its way, and measures staleness."""

from __future__ import annotations

import numpy as np
import pytest
from raw_client import Floats, Kind, RawClient, eventually, frame, harness

from manyhands import _native

LARGE = 400_000  # floats: several pieces of 256 KB


def floats(size: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("refuse_nonfinite", [False, True])
def test_an_update_sent_again_is_acknowledged_but_not_applied(
    size: int, refuse_nonfinite: bool
) -> None:
    with harness(refuse_nonfinite=refuse_nonfinite) as h:
        h.add(0, size)
        h.server.start()
        first, again, other = h.connect(1), h.connect(1), h.connect(2)
        gradient = floats(size)
        assert first.push(0, gradient, sequence=5).seen == 1
        for client in (first, again):
            for sequence in (5, 4):
                reply = client.push(0, gradient, sequence=sequence)
                assert (reply.kind, reply.seen) == (Kind.ACK, 1)
        assert other.push(0, gradient, sequence=5).seen == 2  # another client's is another update
        assert first.push(0, gradient, sequence=6).seen == 3
        np.testing.assert_allclose(first.pull(0), -3 * gradient, rtol=1e-6)
        assert h.server.stats()["replays"] == 4
        assert h.server.stats()["updates"] == 3


def test_the_same_update_twice_in_one_round_is_applied_once() -> None:
    with harness() as h:
        h.add(0, 10)
        h.server.start()
        client = h.connect()
        client.sock.sendall(frame(Kind.DELTA, floats(10).tobytes(), sequence=1) * 50)
        assert {client.receive().seen for _ in range(50)} == {1}
        np.testing.assert_allclose(client.pull(0), -floats(10))


def test_setting_an_array_is_an_update_and_without_a_number_never_one_sent_again() -> None:
    with harness() as h:
        h.add(0, LARGE)
        h.server.start()
        admin = h.connect(admin=True)
        admin.push(0, floats(LARGE), sequence=9)
        for sequence, version, seed in ((0, 2, 1), (10, 3, 2), (10, 3, 2)):
            reply = admin.ask(Kind.SET, floats(LARGE, seed).tobytes(), sequence=sequence)
            assert (reply.kind, reply.seen) == (Kind.ACK, version)
            np.testing.assert_array_equal(admin.pull(0), floats(LARGE, seed))
        admin.push(0, floats(LARGE), sequence=11)
        admin.ask(Kind.SET, floats(LARGE, 2).tobytes(), sequence=10)  # late, from a lost connection
        np.testing.assert_allclose(admin.pull(0), floats(LARGE, 2) - floats(LARGE))


def send_part(client: RawClient, gradient: Floats, sequence: int, share: float) -> None:
    data = frame(Kind.DELTA, gradient.tobytes(), sequence=sequence, client=client.client)
    client.sock.sendall(data[: int(len(data) * share)])


@pytest.mark.parametrize("share", [0.1, 0.4, 0.9])
@pytest.mark.parametrize("refuse_nonfinite", [False, True])
def test_a_large_update_cut_off_goes_on_where_it_stopped(
    share: float, refuse_nonfinite: bool
) -> None:
    with harness(refuse_nonfinite=refuse_nonfinite) as h:
        h.add(0, LARGE, rule=_native.Rule("sgd", momentum=0.5))
        h.server.start()
        gradient = floats(LARGE)
        for _ in range(3):
            broken = h.connect(1)
            send_part(broken, gradient, 1, share)
            eventually(lambda: h.server.stats()["waiting_bytes"] > 0)
            broken.close()
            eventually(lambda: h.server.stats()["connections"] == 0)
        assert h.server.stats()["waiting_bytes"] == 0
        assert h.server.stats()["updates"] == 0
        client = h.connect(1)
        assert client.push(0, gradient, sequence=1).seen == 1
        np.testing.assert_allclose(client.pull(0), -gradient)
        assert client.push(0, gradient, sequence=2).seen == 2
        np.testing.assert_allclose(client.pull(0), -2.5 * gradient, rtol=1e-5)


def test_two_connections_that_send_the_same_large_update_apply_it_once() -> None:
    with harness(refuse_nonfinite=False) as h:
        h.add(0, LARGE)
        h.server.start()
        slow, fast = h.connect(1), h.connect(1)
        gradient = floats(LARGE)
        send_part(slow, gradient, 1, 0.5)
        eventually(lambda: h.server.stats()["waiting_bytes"] > 0)
        assert fast.push(0, gradient, sequence=1).seen == 1
        data = frame(Kind.DELTA, gradient.tobytes(), sequence=1)
        slow.sock.sendall(data[int(len(data) * 0.5) :])
        assert slow.receive().seen == 1
        np.testing.assert_allclose(fast.pull(0), -gradient)


def test_pieces_of_two_clients_may_mix() -> None:
    with harness(refuse_nonfinite=False) as h:
        h.add(0, LARGE)
        h.server.start()
        one, two = h.connect(1), h.connect(2)
        send_part(one, floats(LARGE, 1), 1, 0.6)
        eventually(lambda: h.server.stats()["waiting_bytes"] > 0)
        assert two.push(0, floats(LARGE, 2)).seen == 1
        data = frame(Kind.DELTA, floats(LARGE, 1).tobytes(), sequence=1)
        one.sock.sendall(data[int(len(data) * 0.6) :])
        assert one.receive().seen == 2
        np.testing.assert_allclose(
            two.pull(0), -(floats(LARGE, 1) + floats(LARGE, 2)), rtol=1e-4, atol=1e-6
        )


def test_a_chunk_forgets_the_client_that_was_silent_for_longest() -> None:
    with harness() as h:
        h.add(0, 1)
        h.server.start()
        gradient = np.ones(1, np.float32)
        clients = [h.connect(number) for number in range(300)]
        for client in clients:
            client.push(0, gradient)
        assert clients[-1].push(0, gradient, sequence=1).seen == 300  # remembered
        assert clients[0].push(0, gradient, sequence=1).seen == 301  # forgotten: applied again


def test_staleness_is_counted() -> None:
    with harness() as h:
        h.add(0, 3)
        h.server.start()
        client = h.connect()
        for _ in range(70):
            client.push(0, floats(3), seen=0)
        client.push(0, floats(3), seen=1000)  # a version that is not there yet: not stale
        histogram = h.server.stats()["staleness"]
        assert len(histogram) == 65
        assert histogram[:2] == [2, 1]
        assert histogram[63] == 1
        assert histogram[64] == 6
        assert sum(histogram) == 71


@pytest.mark.parametrize("staleness", ["ignore", "scale"])
def test_staleness_may_scale_the_rate(staleness: str) -> None:
    with harness(staleness=staleness) as h:
        h.add(0, 1)
        h.server.start()
        client = h.connect()
        moved = []
        for seen in (0, 0, 0, 0, 4):
            before = client.pull(0)[0]
            client.push(0, np.ones(1, np.float32), seen=seen)
            moved.append(float(before - client.pull(0)[0]))
        expected = [1, 1, 1 / 2, 1 / 3, 1] if staleness == "scale" else [1.0] * 5
        assert moved == pytest.approx(expected, rel=1e-5)
