"""Keeps the next batches ready: a background thread fetches while the consumer computes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType

from manyhands.data.source import Batch, Indices, Source
from manyhands.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Request:
    """What one fetch asks for."""

    indices: Indices
    seed: int


class Prefetcher:
    """Iterates over (request, batch) pairs in order, up to `depth` of them fetched ahead.

        requests --> thread: source.fetch --> ready, at most `depth` --> consumer

    For one consumer, once. Iterating starts the thread and ends it, also when the loop is left
    early; `close` waits for a fetch under way and drops what is ready. An exception from the
    requests or from a fetch reaches the consumer after the batches before it.
    """

    def __init__(self, source: Source, requests: Iterable[Request], *, depth: int = 2) -> None:
        if depth < 1:
            raise ConfigError(f"depth is {depth}: expected 1 or more batches to fetch ahead.")
        self._source = source
        self._requests = requests
        self._depth = depth
        self._ready: deque[tuple[Request, Batch]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._finished = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to fetch. Iterating does this by itself."""
        with self._changed:  # a close from another thread finds no thread or a running one
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends the thread and forgets what it fetched. Can be called twice, from any thread."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def __enter__(self) -> Prefetcher:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[Request, Batch]]:
        with self:
            while (pair := self._take()) is not None:
                yield pair

    def _take(self) -> tuple[Request, Batch] | None:
        """The next pair, None at the end, or the exception that ended the thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._finished or self._closed)
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            if self._error is not None and not self._closed:
                raise self._error
            return None

    def _run(self) -> None:
        try:
            requests = iter(self._requests)
            # A request is drawn only when there is room for its batch: drawing one may claim work.
            while self._await_room() and (request := next(requests, None)) is not None:
                self._put(request, self._source.fetch(request.indices, seed=request.seed))
        except BaseException as error:  # the thread's main loop: the consumer decides what it means
            self._error = error
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify_all()

    def _await_room(self) -> bool:
        """Waits until a fetch is wanted; False when the prefetcher was closed instead."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < self._depth or self._closed)
            return not self._closed

    def _put(self, request: Request, batch: Batch) -> None:
        with self._changed:
            if not self._closed:
                self._ready.append((request, batch))
                self._changed.notify_all()
