"""Filling new copies: within the budget, within what may be under way, each chunk once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from manyhands.parameter_server.filling import Fill, Filling

MB = 1 << 20


@given(
    st.lists(st.integers(1, 3 * MB), min_size=1, max_size=60),
    st.lists(st.floats(0, 0.3), min_size=1, max_size=60),
)
def test_no_more_is_begun_than_the_budget_allows(sizes: list[int], pauses: list[float]) -> None:
    rate, now, begun = 20e6, 0.0, 0
    filling = Filling(rate, now)
    for number, size in enumerate(sizes):
        filling.add(Fill(number, 1, 9, size))
    for pause in pauses:
        now += pause
        for fill in filling.take(now):
            begun += fill.size_bytes
            filling.done(fill.chunk, fill.peer, now)
    assert begun <= rate * now + max(sizes)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3 * MB)), max_size=60))
def test_everything_has_its_turn_once(wanted: list[tuple[int, int]]) -> None:
    filling = Filling(50e6, 0.0)
    for number, (peer, size) in enumerate(wanted):
        filling.add(Fill(number, peer, 9, size))
    now, begun = 0.0, []
    while len(filling):
        now += 0.05
        taken = filling.take(now)
        begun += [(fill.chunk, fill.peer) for fill in taken]
        for fill in taken:
            filling.done(fill.chunk, fill.peer, now)
        assert now < 60
    assert begun == [(number, peer) for number, (peer, _) in enumerate(wanted)]


def test_a_copy_that_takes_nothing_in_gets_no_more_and_others_do() -> None:
    filling = Filling(1e9, 0.0)
    for number in range(100):
        filling.add(Fill(number, number % 2, 9, MB))
    begun = [0, 0]
    for tick in range(1, 200):
        for fill in filling.take(0.05 * tick):
            begun[fill.peer] += 1
            if fill.peer == 1:
                filling.done(fill.chunk, 1, 0.05 * tick)
    assert begun == [16, 50]
    assert filling.stalled(60.0, 5.0) == {0}
    for number in range(0, 100, 2):
        filling.forget(number, 0)
    assert filling.stalled(60.0, 5.0) == set()
    assert len(filling) == 0


def test_what_is_under_way_is_not_begun_again() -> None:
    filling = Filling(1e9, 0.0)
    filling.add(Fill(0, 1, 9, MB))
    assert len(filling.take(1.0)) == 1
    filling.add(Fill(0, 1, 9, MB))
    assert filling.take(2.0) == []
