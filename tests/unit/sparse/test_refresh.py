"""When tables are refreshed, and the thread that does it."""

from __future__ import annotations

import copy
import pickle
import threading
from itertools import islice
from typing import Any

import pytest
import torch

from manyhands.errors import ConfigError
from manyhands.kernels import LshIndex
from manyhands.sparse.refresh import Refresh, Refresher

WEIGHT = torch.zeros(10, 4)


class FakeIndex:
    """Records what it is asked for; holds every refresh until it is let go."""

    def __init__(self, *, hold: bool = False, error: Exception | None = None) -> None:
        self.asked: list[str] = []
        self.threads: list[int] = []
        self.let_go = threading.Event()
        self.began = threading.Event()
        self._error = error
        if not hold:
            self.let_go.set()

    def refresh(self, weight: torch.Tensor, threads: int) -> int:
        self._note("refresh")
        return 3

    def rebuild(self, weight: torch.Tensor, seed: int, threads: int) -> None:
        self._note(f"rebuild {seed}")

    def _note(self, what: str) -> None:
        self.asked.append(what)
        self.threads.append(threading.get_ident())
        self.began.set()
        assert self.let_go.wait(60)
        if self._error is not None:
            raise self._error


# --- the schedule


def test_intervals_grow() -> None:
    assert list(islice(Refresh(first=10, growth=0.0).steps(), 4)) == [10, 20, 30, 40]
    steps = list(islice(Refresh(first=50, growth=0.1).steps(), 40))
    intervals = [b - a for a, b in zip([0, *steps], steps, strict=False)]
    assert intervals[:3] == [50, 55, 61]
    assert intervals == sorted(intervals)
    assert all(step < 10**300 for step in islice(Refresh(first=9, growth=50.0).steps(), 1000))


def test_every_so_manyth_refresh_draws_functions() -> None:
    schedule = Refresh(new_functions_every=3)
    assert [i for i in range(1, 10) if schedule.draws_functions(i)] == [3, 6, 9]
    assert not any(Refresh(new_functions_every=None).draws_functions(i) for i in range(1, 99))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"first": 0}, "first is 0; expected a whole number >= 1."),
        ({"growth": -0.1}, "growth is -0.1; expected a number >= 0."),
        ({"growth": float("nan")}, "growth is nan; expected a number >= 0."),
        ({"new_functions_every": 0}, "new_functions_every is 0; expected a whole number >= 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Refresh(**settings)


# --- the refresher


def test_refreshes_come_when_they_are_due() -> None:
    index = FakeIndex()
    with Refresher(Refresh(first=5, growth=0.0, new_functions_every=3), seed=100) as refresher:
        begun = []
        for step in range(1, 21):
            if refresher.count_steps(1, index, WEIGHT):
                begun.append(step)
            refresher.wait()
    assert begun == [5, 10, 15, 20]
    assert index.asked == ["refresh", "refresh", "rebuild 103", "refresh"]
    assert refresher.refreshes == 4
    assert refresher.steps == 20
    assert refresher.rehashed == 3 * 3 + 10


def test_training_never_waits_and_one_refresh_runs_at_a_time() -> None:
    index = FakeIndex(hold=True)
    refresher = Refresher(Refresh(first=1, growth=0.0, new_functions_every=None))
    assert refresher.count_steps(1, index, WEIGHT)
    assert index.began.wait(60)
    for _ in range(10):
        assert not refresher.count_steps(1, index, WEIGHT)
    assert refresher.running
    assert index.asked == ["refresh"]
    index.let_go.set()
    refresher.wait()
    # What fell due meanwhile is one refresh.
    assert refresher.count_steps(1, index, WEIGHT)
    refresher.close()
    refresher.close()
    assert index.asked == ["refresh"] * 2
    assert threading.get_ident() not in index.threads


def test_closing_waits_for_the_thread() -> None:
    index = FakeIndex(hold=True)
    refresher = Refresher(Refresh(first=1))
    refresher.count_steps(1, index, WEIGHT)
    assert index.began.wait(60)
    threading.Timer(0.05, index.let_go.set).start()
    refresher.close()
    assert index.let_go.is_set()
    assert not refresher.running


def test_an_error_is_raised_at_the_next_step_and_once() -> None:
    index = FakeIndex(error=MemoryError("no room"))
    refresher = Refresher(Refresh(first=2, growth=0.0))
    assert refresher.count_steps(2, index, WEIGHT)
    refresher.wait()
    with pytest.raises(MemoryError, match="no room"):
        refresher.count_steps(1, index, WEIGHT)
    assert not refresher.count_steps(1, FakeIndex(), WEIGHT)
    assert refresher.count_steps(2, index, WEIGHT)
    with pytest.raises(MemoryError, match="no room"):
        refresher.close()
    refresher.close()


def test_in_the_calling_thread_where_runs_must_repeat() -> None:
    index = FakeIndex()
    refresher = Refresher(Refresh(first=2, beside=False))
    assert not refresher.count_steps(1, index, WEIGHT)
    assert refresher.count_steps(1, index, WEIGHT)
    assert index.threads == [threading.get_ident()]
    assert not refresher.running
    broken = FakeIndex(error=ValueError("bad weight"))
    with pytest.raises(ValueError, match="bad weight"):
        refresher.count_steps(9, broken, WEIGHT)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))])
def test_copies_go_on_counting_without_the_thread(copied: Any) -> None:
    index = FakeIndex(hold=True)
    refresher = Refresher(Refresh(first=4, growth=0.0), seed=5, threads=2)
    refresher.count_steps(5, index, WEIGHT)
    other = copied(refresher)
    assert not other.running
    assert (other.steps, other.refreshes) == (5, 1)
    free = FakeIndex()
    assert not other.count_steps(2, free, WEIGHT)
    assert other.count_steps(1, free, WEIGHT)
    other.close()
    index.let_go.set()
    refresher.close()


def test_a_real_index_is_refreshed() -> None:
    weight = torch.randn(300, 16, requires_grad=True)
    index = LshIndex(300, 16, hashes=3, tables=5, bucket=30)
    index.build(weight.detach())
    with Refresher(Refresh(first=1, growth=0.0, new_functions_every=2)) as refresher:
        index.mark_changed(torch.arange(10))
        assert refresher.count_steps(1, index, weight)
        refresher.wait()
        assert refresher.rehashed == 10
        assert index.changed == 0
        before = index.codes(weight.detach())
        assert refresher.count_steps(1, index, weight)
    assert (index.codes(weight.detach()) != before).any()
    assert refresher.busy_s > 0
