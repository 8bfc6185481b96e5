"""Prefetch: order, depth, errors, and an end without remains however the loop is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from manyhands.data.prefetch import Prefetcher, Request
from manyhands.data.source import Batch, Indices, Source
from manyhands.errors import ConfigError, DataError

DEADLINE_S = 30.0


class Counting(Source):
    """Gives the indices back, counts fetches, and can fail at one or wait in one."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.fetched: list[int] = []
        self.fail_at = fail_at
        self.gate = threading.Event()
        self.gate.set()

    def __len__(self) -> int:
        return 100

    def fetch(self, indices: Indices, *, seed: int) -> Batch:
        assert self.gate.wait(DEADLINE_S)
        if len(self.fetched) == self.fail_at:
            raise DataError("picture 7 is torn")
        self.fetched.append(seed)
        return indices + seed


def requests(count: int) -> list[Request]:
    return [Request(np.array([i]), seed=10 * i) for i in range(count)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    assert prefetch_threads() == []


def test_pairs_come_in_order_with_their_requests() -> None:
    pairs = list(Prefetcher(Counting(), requests(5), depth=2))
    assert [request.seed for request, _ in pairs] == [0, 10, 20, 30, 40]
    assert [int(batch[0]) for _, batch in pairs] == [0, 11, 22, 33, 44]


def test_no_requests_give_no_batches() -> None:
    assert list(Prefetcher(Counting(), [])) == []


def test_no_more_is_fetched_or_drawn_than_the_depth() -> None:
    source, drawn = Counting(), []

    def drawing() -> Iterator[Request]:
        for request in requests(20):
            drawn.append(request)
            yield request

    with Prefetcher(source, drawing(), depth=3) as prefetcher:
        wait_until(lambda: len(source.fetched) == 3)
        batches = iter(prefetcher)
        next(batches)
        wait_until(lambda: len(source.fetched) == 4)
        assert len(drawn) == 4
        batches.close()  # type: ignore[attr-defined]


def test_fetching_runs_while_the_consumer_is_busy() -> None:
    source = Counting()
    batches = iter(Prefetcher(source, requests(5), depth=2))
    next(batches)
    wait_until(lambda: len(source.fetched) == 3)
    assert len(list(batches)) == 4


def test_an_error_arrives_after_the_batches_before_it() -> None:
    batches = iter(Prefetcher(Counting(fail_at=2), requests(5), depth=4))
    assert [next(batches)[0].seed for _ in range(2)] == [0, 10]
    with pytest.raises(DataError, match="picture 7 is torn"):
        next(batches)


def test_an_error_in_the_requests_arrives_too() -> None:
    def broken() -> Iterator[Request]:
        yield from requests(1)
        raise RuntimeError("no more work to claim")

    with pytest.raises(RuntimeError, match="no more work to claim"):
        list(Prefetcher(Counting(), broken()))


def test_leaving_the_loop_ends_the_thread() -> None:
    for _ in Prefetcher(Counting(), requests(50), depth=2):
        break
    wait_until(lambda: not prefetch_threads())


def test_closing_a_full_queue_ends_the_thread() -> None:
    source = Counting()
    prefetcher = Prefetcher(source, requests(50), depth=2)
    prefetcher.start()
    wait_until(lambda: len(source.fetched) == 2)
    prefetcher.close()
    assert prefetch_threads() == []
    assert source.fetched == [0, 10]
    prefetcher.close()
    assert list(prefetcher) == []


def test_closing_waits_for_a_fetch_under_way_and_wakes_a_waiting_consumer() -> None:
    source = Counting()
    source.gate.clear()
    prefetcher = Prefetcher(source, requests(5))
    received: list[object] = []
    consumer = threading.Thread(target=lambda: received.extend(prefetcher))
    consumer.start()
    wait_until(lambda: len(prefetch_threads()) == 1)
    closer = threading.Thread(target=prefetcher.close)
    closer.start()
    wait_until(lambda: prefetcher._closed)
    source.gate.set()
    for thread in (closer, consumer):
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert len(received) < 5


def test_closing_from_another_thread_during_the_start_is_harmless() -> None:
    for _ in range(200):
        prefetcher = Prefetcher(Counting(), requests(1))
        starter = threading.Thread(target=prefetcher.start)
        starter.start()
        prefetcher.close()
        starter.join(DEADLINE_S)
        prefetcher.close()


def test_closing_before_the_start_is_harmless() -> None:
    prefetcher = Prefetcher(Counting(), requests(3))
    prefetcher.close()
    assert list(prefetcher) == []


def test_a_depth_below_1_is_refused() -> None:
    with pytest.raises(ConfigError, match="depth is 0"):
        Prefetcher(Counting(), [], depth=0)
