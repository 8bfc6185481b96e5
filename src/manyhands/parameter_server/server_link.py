"""What a client says to one server: push, pull, and both in one.

Every method walks the server's lanes, at the same time where there are several: a lane is a thread
over there and knows only its own chunks. Flat arrays have the layout of the shard map; a method
touches this server's ranges of them alone, so that every server may be driven at its own pace
(DistBelief's Downpour: each shard on its own clock).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from manyhands import kernels
from manyhands.parameter_server.lane_link import Counters, LaneLink
from manyhands.parameter_server.parts import (
    Integers,
    Part,
    parts_by_lane,
    ranges_of,
    rows_by_parameter,
    spans_by_parameter,
)
from manyhands.parameter_server.shard_map import Chunk, Form, ShardMap, Span

Floats = npt.NDArray[np.float32]
_Answer = TypeVar("_Answer")
_WORTH_A_THREAD_BYTES = 1 << 20  # of a lane's part: less is sent before a thread has woken up


@dataclass(frozen=True, slots=True)
class Compression:
    """How dense updates and pulled values travel; `keep` is the share that "topk" sends."""

    push: str = "float32"
    pull: str = "float32"
    keep: float = 0.01


class ServerLink:
    """One server, as one client sees it.

    Used by one thread at a time (`interrupt` by any); different servers of a client may be used by
    different threads. Every method blocks until the server has answered. Errors are those of
    `LaneLink.call`; after a refusal some chunks of a push may be applied and others not.
    """

    def __init__(
        self, shards: ShardMap, server: int, lanes: Sequence[LaneLink], compression: Compression
    ) -> None:
        own = shards.chunks_of(server)
        deltas = [c for c in own if shards.parameters[c.parameter].form is Form.DELTA]
        self.server = server
        self.ranges = ranges_of(deltas)  # what `push` sends
        self.all_ranges = ranges_of(own)  # what `pull` fetches
        self.staleness = 0.0  # updates by others that the last push did not know of, mean
        self._floats = shards.floats
        self._lanes = lanes
        self._compression = compression
        self._deltas = parts_by_lane(shards, deltas, lanes)
        self._all = parts_by_lane(shards, own, lanes)
        self._spans = spans_by_parameter(shards, server)
        self._rows = rows_by_parameter(shards, own, lanes)
        # What this client knows: the versions pulled last, and its own updates since.
        self._known = np.zeros(len(shards.chunks), np.int64)
        self._threads = ThreadPoolExecutor(len(lanes), f"server{server}-lane")

    @property
    def counters(self) -> Counters:
        """Bytes, waiting and reconnections of all lanes so far. Any thread may ask."""
        return reduce(add, (lane.counters for lane in self._lanes), Counters())

    def push(self, values: Floats, *, rate: float, steps: int, sent: Floats | None = None) -> None:
        """Send the dense updates in `values`; each is applied with this rate.

        `sent` receives them as the server decodes them, which differs where they are compressed.
        """
        self._push(self._deltas, values, None, rate, steps, sent)

    def push_pull(
        self, values: Floats, out: Floats, *, rate: float, steps: int, sent: Floats | None = None
    ) -> None:
        """Push, and let each chunk's answer bring its new weights to `out`."""
        self._push(self._deltas, values, out, rate, steps, sent)

    def pull(self, out: Floats, *, deltas_only: bool = False) -> None:
        """Fetch the weights of every chunk, or of those alone that travel as deltas."""
        self._require_flat(out)

        def pull_part(part: Part) -> None:
            versions = self._known[part.numbers]
            encoding = self._compression.pull
            part.lane.call(
                lambda link: link.pull(
                    part.numbers, *part.ranges, out, versions=versions, encoding=encoding
                )
            )
            self._known[part.numbers] = versions

        self._on_every_lane(self._deltas if deltas_only else self._all, pull_part)

    def push_factors(
        self, parameter: int, a: Floats, d: Floats, *, rate: float, steps: int
    ) -> None:
        """Send the activations `a` [k, in] and errors `d` [k, out] of a linear layer's weight.

        The server forms the gradient d^T a. Does nothing where the parameter is on another server.
        """
        for span in self._spans.get(parameter, ()):
            errors = np.ascontiguousarray(d[:, span.first_row : span.first_row + span.rows])
            self._push_span(span, a, errors, rate, steps)

    def push_rows(
        self, parameter: int, rows: Integers, values: Floats, *, rate: float, steps: int
    ) -> None:
        """Send gradients `values` [n, row_floats] of these rows; each row once.

        Rows that are on another server are left out.
        """
        order = np.argsort(rows, kind="stable")
        rows, values = rows[order], values[order]
        for lane, chunk in self._rows.get(parameter, ()):
            ends = (chunk.first_row, chunk.first_row + chunk.rows)
            first, last = np.searchsorted(rows, ends)
            if last > first:
                mine = (rows[first:last] - chunk.first_row).astype(np.uint32)
                self._push_rows(lane, chunk, mine, values[first:last], rate, steps)

    def set_array(self, array: int, values: Floats) -> None:
        """Overwrite the weights (array 0) or a state of the rule (1, ...). For an admin only."""
        self._require_flat(values)

        def set_all(part: Part, link: kernels.Link) -> None:
            for number, start, count in zip(part.numbers, *part.ranges, strict=True):
                link.set(int(number), array, values[start : start + count])

        self._on_every_lane(self._all, lambda part: part.lane.call(lambda li: set_all(part, li)))

    def get_array(self, array: int, out: Floats) -> None:
        """Read the weights (array 0) or a state of the rule (1, ...). For an admin only."""
        self._require_flat(out)

        def get_all(part: Part, link: kernels.Link) -> None:
            for number, start, count in zip(part.numbers, *part.ranges, strict=True):
                link.get(int(number), array, out[start : start + count])

        self._on_every_lane(self._all, lambda part: part.lane.call(lambda li: get_all(part, li)))

    def connect(self) -> None:
        """Connect to every lane now rather than at the first call."""
        for lane in self._lanes:
            if lane.is_needed:
                lane.connect()

    def interrupt(self) -> None:
        """Cut the connections, so that a thread that waits on one hears of it at once."""
        for lane in self._lanes:
            lane.interrupt()

    def close(self) -> None:
        """Hang up. No other thread may be in a call; see `interrupt`."""
        self._threads.shutdown()
        for lane in self._lanes:
            lane.close()

    def _push(
        self,
        parts: Sequence[Part],
        values: Floats,
        out: Floats | None,
        rate: float,
        steps: int,
        sent: Floats | None,
    ) -> None:
        self._require_flat(values, out, sent)
        lags = self._on_every_lane(
            parts, lambda part: self._push_part(part, values, out, rate, steps, sent)
        )
        if lags:
            self.staleness = sum(lags) / sum(len(part.numbers) for part in parts)

    def _push_part(
        self,
        part: Part,
        values: Floats,
        out: Floats | None,
        rate: float,
        steps: int,
        sent: Floats | None,
    ) -> int:
        """Push a part; how many updates by others it did not know of, over all its chunks."""
        seen = self._known[part.numbers]
        first = part.lane.take_sequences(len(part.numbers))
        arrays = (part.numbers, *part.ranges, values)

        def work(link: kernels.Link) -> Integers:
            versions = seen.copy()  # a call that is made again says the same
            options: dict[str, Any] = {
                "rate": rate,
                "steps": steps,
                "first_sequence": first,
                "versions": versions,
                "encoding": self._compression.push,
                "keep": self._compression.keep,
                "sent": sent,
            }
            if out is None:
                link.push(*arrays, **options)
            else:
                link.push_pull(*arrays, out, **options)
            return versions

        versions = part.lane.call(work)
        self._known[part.numbers] = seen + 1 if out is None else versions
        return int((versions - seen).sum()) - len(seen)

    def _push_span(self, span: Span, a: Floats, d: Floats, rate: float, steps: int) -> None:
        lane = self._lanes[span.lane]
        chunk = span.chunks[0].number
        seen = int(self._known[chunk])
        sequence = lane.take_sequences(1)
        encoding = "float32" if self._compression.push == "float32" else "bfloat16"
        version = lane.call(
            lambda link: link.push_factors(
                chunk,
                a,
                d,
                rate=rate,
                steps=steps,
                sequence=sequence,
                seen=seen,
                encoding=encoding,
            )
        )
        self._known[[chunk.number for chunk in span.chunks]] += 1
        self.staleness = float(version - 1 - seen)

    def _push_rows(
        self,
        lane: LaneLink,
        chunk: Chunk,
        rows: npt.NDArray[np.uint32],
        values: Floats,
        rate: float,
        steps: int,
    ) -> None:
        seen = int(self._known[chunk.number])
        sequence = lane.take_sequences(1)
        version = lane.call(
            lambda link: link.push_rows(
                chunk.number, rows, values, rate=rate, steps=steps, sequence=sequence, seen=seen
            )
        )
        self._known[chunk.number] += 1
        self.staleness = float(version - 1 - seen)

    def _on_every_lane(
        self, parts: Sequence[Part], work: Callable[[Part], _Answer]
    ) -> list[_Answer]:
        """What the work gives for each part, after all have ended, one way or the other."""
        if len(parts) <= 1 or max(part.size_bytes for part in parts) < _WORTH_A_THREAD_BYTES:
            return [work(part) for part in parts]
        others = [self._threads.submit(work, part) for part in parts[1:]]
        try:
            first = work(parts[0])
        finally:
            wait(others)
        return [first, *(future.result() for future in others)]

    def _require_flat(self, *arrays: Floats | None) -> None:
        for array in arrays:
            if array is not None and len(array) != self._floats:
                raise ValueError(f"an array of {len(array)} floats; the map has {self._floats}")
