"""What a replica sends and fetches, on background threads, so that computing never waits.

One thread talks with one parameter server, on a clock of its own (DistBelief, section 4.1): it
waits until the workers have taken `push_every` steps, sends what came together since, and fetches
every `fetch_every` steps. What there is to send depends on the form of training:

    gradients   workers sum their gradients and take plain steps; the server applies the rule.
                Fetched weights land straight in the replica's; of parameters that travel as rows
                come those that somebody's push has changed. So a row that workers stepped keeps
                their plain steps until its gradient was pushed, and then comes back as the
                server's rule has it.
    weights     workers train by the rule themselves; what travels is how far the weights moved
                since the server's were last seen, and what others did in the meantime comes back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from manyhands import kernels
from manyhands.parameter_server.client.held_weights import HeldWeights
from manyhands.parameter_server.client.parts import Integers
from manyhands.parameter_server.client.server_link import ServerLink
from manyhands.parameter_server.shard_map import Form, ShardMap
from manyhands.replica.factors import FactorPair, joined

Line = npt.NDArray[np.float32]
_GAP_FLOATS = 16  # parameters begin at multiples of this


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps of training that one push stands for."""

    steps: int
    rate: float  # the mean of their learning rates


class StepClock:
    """Counts the replica's steps and wakes those who wait for them. Thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.steps = 0
        self.rates = 0.0
        self.urgent = 0  # steps that somebody waits to see pushed

    def hurry(self) -> None:
        """Make a push of everything until now due."""
        with self.changed:
            self.urgent = self.steps
            self.changed.notify_all()

    def advance(self, rates: npt.NDArray[np.float64]) -> None:
        """Count steps taken at these rates."""
        with self.changed:
            self.steps += len(rates)
            self.rates += float(rates.sum())
            self.changed.notify_all()

    def stretch_since(self, steps: int, rates: float) -> Stretch:
        """The steps from that point to now; for a caller that holds `changed`."""
        count = self.steps - steps
        return Stretch(count, (self.rates - rates) / count if count else 0.0)


class Outbox(Protocol):
    """What there is to send, and what becomes of what is fetched."""

    def exchange(self, server: ServerLink, stretch: Stretch, *, fetch: bool) -> None:
        """Push what came together for a server and, if asked, fetch; blocks on the network."""
        ...

    def fetch(self, server: ServerLink) -> None:
        """Fetch only."""
        ...


class WeightOutbox:
    """Sends how far the replica's weights moved; brings in what others did.

    `local` is changed by the workers all the while, without locks: an element that both change in
    the same nanosecond loses one change, which is noise that training tolerates (Adam, 3.2.2).
    What compression drops stays in the difference and travels with the next push.
    """

    def __init__(
        self,
        local: Line,
        base: Line,
        staged: Line,
        pulled: Line,
        sent: Line | None,
        *,
        rate: float,
    ) -> None:
        self._local = local
        self._base = base
        self._staged = staged
        self._pulled = pulled
        self._decoded = sent
        self._sent = staged if sent is None else sent  # what the server saw, after compression
        self._rate = rate

    def exchange(self, server: ServerLink, stretch: Stretch, *, fetch: bool) -> None:
        starts, counts = server.ranges
        kernels.difference(self._base, self._local, self._staged, starts, counts)
        rate, steps, sent = self._rate, stretch.steps, self._decoded
        if fetch:
            server.push_pull(self._staged, self._pulled, rate=rate, steps=steps, sent=sent)
            kernels.merge(self._local, self._base, self._sent, self._pulled, starts, counts)
        else:
            server.push(self._staged, rate=rate, steps=steps, sent=sent)
            kernels.difference(self._base, self._sent, self._base, starts, counts)

    def fetch(self, server: ServerLink) -> None:
        starts, counts = server.ranges
        server.pull(self._pulled)
        kernels.merge(self._local, self._base, None, self._pulled, starts, counts)


class GradientOutbox:
    """Sends summed gradients, factors and rows; fetched weights replace the replica's.

    `most_queued` bounds the factors that wait to be sent, in hand-overs, `most_rows` the sparse
    gradients of a parameter: a worker that is ahead of the network by more waits. `rows_came` hears
    the name of a parameter and which of its rows were fetched. Of the lines of floats, only what
    travels dense is ever touched.
    """

    def __init__(
        self,
        shard_map: ShardMap,
        local: HeldWeights,
        outgoing: Line,
        staged: Line,
        sent: Line | None,
        *,
        rate_of: Callable[[Stretch], float],
        most_queued: int,
        most_rows: int,
        rows_came: Callable[[str, Integers], None] = lambda name, rows: None,
    ) -> None:
        self._local = local
        self._rows_came = rows_came
        self._names = [spec.name for spec in shard_map.parameters]
        self._dense = dense_ranges(shard_map)
        self._outgoing = outgoing
        self._staged = staged
        self._sent = sent
        self._rate_of = rate_of
        self._most_queued = most_queued
        self._most_rows = most_rows
        self._summing = threading.Lock()
        self._queues = {
            (number, server): _Queue()
            for number, spec in enumerate(shard_map.parameters)
            if spec.form is not Form.DELTA
            for server in {span.server for span in shard_map.spans_of(number)}
        }
        self._numbers = {spec.name: number for number, spec in enumerate(shard_map.parameters)}
        self._has_room = threading.Condition()

    def add(self, accumulated: Line) -> None:
        """Add a worker's sums to what will be sent, and clear them."""
        with self._summing:
            for part in self._dense:
                kernels.add_and_clear(accumulated[part], self._outgoing[part])

    def add_factors(self, taken: dict[str, list[FactorPair]]) -> None:
        """Queue a worker's factors."""
        with self._has_room:
            for name, pairs in taken.items():
                for queue in self._queues_of(name):
                    queue.factors.extend(pairs)
                    queue.handed_over += 1

    def wait_for_room(self, clock: StepClock) -> None:
        """Wait while too much is on the way already, and make its push due."""
        if self._is_full():
            clock.hurry()
            with self._has_room:
                self._has_room.wait_for(lambda: not self._is_full())

    def _is_full(self) -> bool:
        return any(
            queue.handed_over >= self._most_queued or len(queue.rows) >= self._most_rows
            for queue in self._queues.values()
        )

    def add_rows(self, name: str, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Queue the rows of a sparse gradient, for every server that has some of them."""
        with self._has_room:
            for queue in self._queues_of(name):
                queue.rows.append((rows, values))

    def exchange(self, server: ServerLink, stretch: Stretch, *, fetch: bool) -> None:
        rate = self._rate_of(stretch)
        self._send_queued(server, rate, stretch.steps)
        starts, counts = server.ranges
        if len(starts):
            with self._summing:
                kernels.take(self._outgoing, self._staged, starts, counts)
            server.push(self._staged, rate=rate, steps=stretch.steps, sent=self._sent)
            self._keep_what_was_dropped(starts, counts)
        if fetch:
            self.fetch(server)

    def fetch(self, server: ServerLink) -> None:
        for number, rows in server.fetch(self._local).items():
            self._rows_came(self._names[number], rows)

    def _send_queued(self, server: ServerLink, rate: float, steps: int) -> None:
        sparse = {}
        for (number, at), queue in self._queues.items():
            if at != server.server:
                continue
            with self._has_room:
                pairs, rows = queue.take()
                self._has_room.notify_all()
            if pairs:
                both = joined(pairs)
                server.push_factors(number, both.a.numpy(), both.d.numpy(), rate=rate, steps=steps)
            if rows:
                numbers, values = summed_rows(rows)
                sparse[number] = numbers.numpy(), values.numpy()
        if sparse:
            server.push_rows(sparse, rate=rate, steps=steps)

    def _keep_what_was_dropped(
        self, starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
    ) -> None:
        """Error feedback: what compression left out is sent with the next sum."""
        if self._sent is None:
            return
        kernels.difference(self._staged, self._sent, self._staged, starts, counts)
        with self._summing:
            for start, count in zip(starts, counts, strict=True):
                part = slice(int(start), int(start + count))
                self._outgoing[part] += self._staged[part]

    def _queues_of(self, name: str) -> list[_Queue]:
        number = self._numbers[name]
        return [queue for (parameter, _), queue in self._queues.items() if parameter == number]


def dense_ranges(shard_map: ShardMap) -> list[slice]:
    """The parts of a flat array that travel as deltas, neighbours together."""
    ranges: list[slice] = []
    for spec, start in zip(shard_map.parameters, shard_map.starts, strict=True):
        end = start + spec.floats
        if spec.form is not Form.DELTA:
            continue
        if ranges and start - ranges[-1].stop < _GAP_FLOATS:
            ranges[-1] = slice(ranges[-1].start, end)
        else:
            ranges.append(slice(start, end))
    return ranges


@dataclass(slots=True)
class _Queue:
    """Factors and rows of one parameter that wait for one server."""

    factors: list[FactorPair] = field(default_factory=list)
    rows: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    handed_over: int = 0

    def take(self) -> tuple[list[FactorPair], list[tuple[torch.Tensor, torch.Tensor]]]:
        taken = self.factors, self.rows
        self.factors, self.rows, self.handed_over = [], [], 0
        return taken


def summed_rows(
    queued: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of several gradients, each once, its values added up."""
    if len(queued) == 1:
        return queued[0]
    rows, places = torch.unique(torch.cat([r for r, _ in queued]), return_inverse=True)
    values = torch.cat([v for _, v in queued])
    return rows, torch.zeros(len(rows), *values.shape[1:]).index_add_(0, places, values)


class Exchange(threading.Thread):
    """The thread that talks with one server; `flush` before `close` sends what is left."""

    def __init__(
        self,
        server: ServerLink,
        outbox: Outbox,
        clock: StepClock,
        *,
        push_every: int,
        fetch_every: int,
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name=f"exchange-{server.server}", daemon=True)
        self._server = server
        self._outbox = outbox
        self._clock = clock
        self._push_every = push_every
        self._fetch_every = fetch_every
        self._fail = fail
        self._pushed_steps = 0
        self._pushed_rates = 0.0
        self._fetched_steps = 0
        self._flush_wanted = 0
        self._flushed = 0
        self._closing = False

    def run(self) -> None:
        try:
            while self._wait_for_work():
                self._work()
        except BaseException as error:  # the thread's main loop: the replica decides
            self._fail(error)

    def flush(self, timeout_s: float) -> bool:
        """Send everything that the workers did until now; whether that was done in time."""
        with self._clock.changed:
            self._flush_wanted += 1
            wanted = self._flush_wanted
            self._clock.changed.notify_all()
            return self._clock.changed.wait_for(lambda: self._flushed >= wanted, timeout_s)

    def close(self) -> None:
        """End the thread once it is idle."""
        with self._clock.changed:
            self._closing = True
            self._clock.changed.notify_all()

    def _wait_for_work(self) -> bool:
        with self._clock.changed:
            self._clock.changed.wait_for(lambda: self._closing or self._is_due())
            return not self._closing

    def _is_due(self) -> bool:
        return self._push_due() or self._fetch_due() or self._flush_wanted > self._flushed

    def _push_due(self) -> bool:
        if self._pushed_steps < self._clock.urgent:
            return True
        return self._clock.steps - self._pushed_steps >= self._push_every

    def _fetch_due(self) -> bool:
        return self._clock.steps - self._fetched_steps >= self._fetch_every

    def _work(self) -> None:
        with self._clock.changed:
            flush, wanted = self._flush_wanted > self._flushed, self._flush_wanted
            push, fetch = self._push_due() or flush, self._fetch_due()
            steps, rates = self._clock.steps, self._clock.rates
            stretch = self._clock.stretch_since(self._pushed_steps, self._pushed_rates)
        if push and stretch.steps:
            self._outbox.exchange(self._server, stretch, fetch=fetch)
            self._pushed_steps, self._pushed_rates = steps, rates
        elif fetch:
            self._outbox.fetch(self._server)
        if fetch:
            self._fetched_steps = steps
        if flush:
            with self._clock.changed:
                self._flushed = wanted
                self._clock.changed.notify_all()
