"""Whom a server suspects: those who kept it waiting, not those who waited for it."""

from __future__ import annotations

from manyhands.parameter_server.suspicion import Suspicion


def test_a_peer_that_does_not_answer_is_suspected_in_time() -> None:
    suspicion = Suspicion(0.5, 0.0)
    looks = [suspicion.look({1: 0.05 * n, 2: 0.01}, 0.05 * n) for n in range(1, 21)]
    assert looks[8] == frozenset()  # after 0.45 s
    assert looks[10] == frozenset({1})
    assert looks[-1] == frozenset({1})


def test_an_answer_clears_it() -> None:
    suspicion = Suspicion(0.5, 0.0)
    for n in range(1, 21):
        suspicion.look({1: 0.05 * n}, 0.05 * n)
    assert suspicion.look({}, 1.05) == frozenset()
    assert suspicion.look({1: 0.02}, 1.10) == frozenset()


def test_the_time_in_which_we_were_stopped_ourselves_does_not_count() -> None:
    suspicion = Suspicion(0.5, 0.0)
    suspicion.look({1: 0.05}, 0.05)
    assert suspicion.look({1: 9.0}, 9.0) == frozenset()  # nine seconds of sleep
    assert suspicion.look({1: 9.2}, 9.2) == frozenset()
    assert suspicion.look({1: 9.4}, 9.4) == frozenset({1})
