"""What a client says to one group of chunks: push, pull, and both in one.

A group is what the shard map gives to one server, its *home*. It stays a group for ever and is used
by one thread, while each of its chunks is served by whichever server is the primary of its bucket
at present: each shard runs on its own clock (DistBelief's Downpour), and a chunk never has two
updates of a client under way. Flat arrays have the layout of the shard map; a method touches the
group's ranges of them alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from manyhands import kernels
from manyhands.parameter_server.client.delivery import Delivery
from manyhands.parameter_server.client.held_weights import HeldWeights, row_ranges
from manyhands.parameter_server.client.lane_link import Counters
from manyhands.parameter_server.client.links import Links
from manyhands.parameter_server.client.parts import (
    ChunkSet,
    Integers,
    Outcomes,
    Part,
    ranges_of,
    spans_by_parameter,
)
from manyhands.parameter_server.client.row_slices import RowCutter
from manyhands.parameter_server.shard_map import Chunk, Form, ShardMap, Span

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Compression:
    """How dense updates travel; `keep` is the share that "topk" sends."""

    encoding: str = "float32"
    keep: float = 0.01


class ServerLink:
    """One group of chunks, as one client sees it.

    Used by one thread at a time (`interrupt` by any); different groups of a client may be used by
    different threads. Every method blocks until every chunk was answered. Errors are those of
    `Delivery.carry_out`; after one some chunks of a push may be applied and others not.
    """

    def __init__(
        self,
        shards: ShardMap,
        home: int,
        links: Links,
        delivery: Delivery,
        compression: Compression,
    ) -> None:
        own = shards.chunks_of(home)
        form_of = {chunk: shards.parameters[chunk.parameter].form for chunk in own}
        deltas = [chunk for chunk in own if form_of[chunk] is Form.DELTA]
        by_rows = [chunk for chunk in own if form_of[chunk] is Form.ROWS]
        self.server = home
        self.ranges = ranges_of(deltas)  # what `push` sends
        self.all_ranges = ranges_of(own)  # what `pull` fetches
        self.staleness = 0.0  # updates by others that the last push did not know of, mean
        self._shards = shards
        self._links = links
        self._delivery = delivery
        self._compression = compression
        self._deltas = ChunkSet(shards, deltas)
        self._all = ChunkSet(shards, own)
        self._by_rows = ChunkSet(shards, by_rows)
        self._whole = ChunkSet(shards, [c for c in own if form_of[c] is not Form.ROWS])
        self._spans = spans_by_parameter(shards, home)
        self._row_cutter = RowCutter(shards, by_rows)
        self._row_ranges = row_ranges(by_rows)
        self._widths = np.array([chunk.row_floats for chunk in shards.chunks], np.int64)
        self._single = {
            chunk: ChunkSet(shards, [shards.chunks[chunk]])
            for spans in self._spans.values()
            for chunk in (span.chunks[0].number for span in spans)
        }
        # What this client knows: the versions pulled last, and its own updates since.
        self._known = np.zeros(len(shards.chunks), np.int64)
        self._sequence = 0

    @property
    def counters(self) -> Counters:
        """Bytes, waiting, reconnections and new routes so far. Any thread may ask."""
        return self._links.counters

    def push(self, values: Floats, *, rate: float, steps: int, sent: Floats | None = None) -> None:
        """Send the dense updates in `values`; each is applied with this rate.

        `sent` receives them as the server decodes them, which differs where they are compressed.
        """
        self._push(values, None, rate, steps, sent)

    def push_pull(
        self, values: Floats, out: Floats, *, rate: float, steps: int, sent: Floats | None = None
    ) -> None:
        """Push, and let each chunk's answer bring its new weights to `out`."""
        self._push(values, out, rate, steps, sent)

    def pull(self, out: Floats, *, deltas_only: bool = False) -> None:
        """Fetch the weights of every chunk, or of those alone that travel as deltas."""
        self._require_flat(out)
        self._pull(self._deltas if deltas_only else self._all, out)

    def fetch(self, held: HeldWeights) -> dict[int, Integers]:
        """Bring an array up to date: of parameters that travel as rows, only rows that changed.

        Says which those are, by the number of the parameter; all of a chunk where the server can't
        tell what changed since the array was last fetched into.
        """
        self._pull(self._whole, held.weights)

        def pull_part(link: kernels.Link, part: Part, outcomes: Outcomes) -> None:
            numbers = part.numbers
            versions, eras = held.versions[numbers], held.eras[numbers]
            try:
                link.pull_rows(
                    numbers,
                    *part.ranges,
                    held.weights,
                    widths=self._widths[numbers],
                    row_starts=held.row_starts[numbers],
                    changed=held.changed,
                    versions=versions,
                    eras=eras,
                    leases=part.leases,
                    outcomes=outcomes,
                )
            finally:
                held.versions[numbers], held.eras[numbers] = versions, eras
                done = outcomes == 1
                self._known[numbers[done]] = versions[done]

        self._delivery.carry_out(self._by_rows, pull_part)
        return held.take_changed(self._row_ranges)

    def _pull(self, chunks: ChunkSet, out: Floats) -> None:
        def pull_part(link: kernels.Link, part: Part, outcomes: Outcomes) -> None:
            versions = self._known[part.numbers]
            try:
                link.pull(
                    part.numbers,
                    *part.ranges,
                    out,
                    versions=versions,
                    leases=part.leases,
                    outcomes=outcomes,
                )
            finally:
                self._known[part.numbers] = versions

        self._delivery.carry_out(chunks, pull_part)

    def push_factors(
        self, parameter: int, a: Floats, d: Floats, *, rate: float, steps: int
    ) -> None:
        """Send the activations `a` [k, in] and errors `d` [k, out] of a linear layer's weight.

        The server forms the gradient d^T a. Does nothing where the parameter is in another group.
        """
        for span in self._spans.get(parameter, ()):
            errors = np.ascontiguousarray(d[:, span.first_row : span.first_row + span.rows])
            self._push_span(span, a, errors, rate, steps)

    def push_rows(
        self, updates: Mapping[int, tuple[Integers, Floats]], *, rate: float, steps: int
    ) -> None:
        """Send, of each parameter, numbers of rows, each once, and gradients [n, row_floats].

        Rows that are in another group are left out. Chunks without rows hear nothing.
        """
        cut = self._row_cutter.cut(updates)
        if not len(cut.rows):
            return
        fixed: dict[str, Any] = {"rate": rate, "steps": steps, "sequence": self._next_sequence()}
        lags: list[int] = []

        def push_part(link: kernels.Link, part: Part, outcomes: Outcomes) -> None:
            touched = np.flatnonzero(cut.counts[part.numbers])
            numbers, done = part.numbers[touched], np.zeros(len(touched), np.int8)
            versions = self._known[numbers]
            outcomes.fill(1)
            try:
                link.push_rows(
                    numbers,
                    cut.row_starts[numbers],
                    cut.counts[numbers],
                    cut.rows,
                    cut.values,
                    value_starts=cut.value_starts[numbers],
                    widths=self._widths[numbers],
                    versions=versions,
                    leases=part.leases[touched],
                    outcomes=done,
                    **fixed,
                )
            finally:
                outcomes[touched] = done
                applied = done == 1
                self._note_pushed(numbers[applied], versions[applied], False, lags)

        self._delivery.carry_out(self._by_rows, push_part)
        self.staleness = max(0.0, sum(lags) / np.count_nonzero(cut.counts))

    def set_array(self, array: int, values: Floats, updates: Integers | None = None) -> None:
        """Overwrite the weights (array 0) or a state of the rule (1, ...). For an admin only.

        `updates` says, by the number of a chunk, how many it is to go on counting from.
        """
        self._require_flat(values)
        sequence = self._next_sequence()

        def set_all(link: kernels.Link, part: Part, outcomes: Outcomes) -> None:
            for i, (start, count) in enumerate(zip(*part.ranges, strict=True)):
                link.set(
                    int(part.numbers[i]),
                    array,
                    values[start : start + count],
                    sequence=sequence,
                    updates=0 if updates is None else int(updates[part.numbers[i]]),
                    lease=int(part.leases[i]),
                )
                outcomes[i] = 1

        self._delivery.carry_out(self._all, set_all)

    def get_array(self, array: int, out: Floats, updates: Integers | None = None) -> None:
        """Read the weights (array 0) or a state of the rule (1, ...). For an admin only.

        `updates` receives how many each chunk counts, by its number.
        """
        self._require_flat(out)

        def get_all(link: kernels.Link, part: Part, outcomes: Outcomes) -> None:
            for i, (start, count) in enumerate(zip(*part.ranges, strict=True)):
                _, counted = link.get(
                    int(part.numbers[i]),
                    array,
                    out[start : start + count],
                    lease=int(part.leases[i]),
                )
                if updates is not None:
                    updates[part.numbers[i]] = counted
                outcomes[i] = 1

        self._delivery.carry_out(self._all, get_all)

    def connect(self) -> None:
        """Connect to every lane now rather than at the first call."""
        self._delivery.carry_out(self._all, lambda link, part, outcomes: outcomes.fill(1))

    def interrupt(self) -> None:
        """Cut the connections, so that a thread that waits on one hears of it at once."""
        self._links.cut()

    def close(self) -> None:
        """Hang up. No other thread may be in a call; see `interrupt`."""
        self._delivery.close()

    def _next_sequence(self) -> int:
        """The number of an update to any chunks of the group; see `delivery.py`."""
        self._sequence += 1
        return self._sequence

    def _push(
        self,
        values: Floats,
        out: Floats | None,
        rate: float,
        steps: int,
        sent: Floats | None,
    ) -> None:
        self._require_flat(values, out, sent)
        fixed: dict[str, Any] = {
            "rate": rate,
            "steps": steps,
            "sequence": self._next_sequence(),
            "encoding": self._compression.encoding,
            "keep": self._compression.keep,
            "sent": sent,
        }
        lags: list[int] = []

        def push_part(link: kernels.Link, part: Part, outcomes: Outcomes) -> None:
            versions = self._known[part.numbers]
            arrays = (part.numbers, *part.ranges, values)
            of_each = {"versions": versions, "leases": part.leases, "outcomes": outcomes}
            try:
                if out is None:
                    link.push(*arrays, **(fixed | of_each))
                else:
                    link.push_pull(*arrays, out, **(fixed | of_each))
            except BaseException:
                done = outcomes == 1  # some chunks, though the call has failed
                self._note_pushed(part.numbers[done], versions[done], out is not None, lags)
                raise
            self._note_pushed(part.numbers, versions, out is not None, lags)

        self._delivery.carry_out(self._deltas, push_part)
        if lags:
            self.staleness = max(0.0, sum(lags) / len(self._deltas.chunks))

    def _note_pushed(
        self, numbers: Integers, versions: Integers, is_pulled: bool, lags: list[int]
    ) -> None:
        """Updates were applied and left these chunks at these versions."""
        seen = self._known[numbers]
        lags.append(int(versions.sum() - seen.sum()) - len(numbers))
        self._known[numbers] = versions if is_pulled else seen + 1

    def _push_span(self, span: Span, a: Floats, d: Floats, rate: float, steps: int) -> None:
        chunk = span.chunks[0].number
        encoding = "float32" if self._compression.encoding == "float32" else "bfloat16"
        fixed: dict[str, Any] = {
            "rate": rate,
            "steps": steps,
            "sequence": self._next_sequence(),
            "seen": int(self._known[chunk]),
            "encoding": encoding,
        }

        def push(link: kernels.Link, part: Part, outcomes: Outcomes) -> None:
            version = link.push_factors(chunk, a, d, lease=int(part.leases[0]), **fixed)
            self._note_single(span.chunks, version)

        self._delivery.carry_out(self._single[chunk], push)

    def _note_single(self, chunks: Sequence[Chunk], version: int) -> None:
        """An update was applied to these chunks, the first of which is at this version now."""
        self.staleness = max(0.0, float(version - 1 - self._known[chunks[0].number]))
        self._known[[chunk.number for chunk in chunks]] += 1

    def _require_flat(self, *arrays: Floats | None) -> None:
        for array in arrays:
            if array is not None and len(array) != self._shards.floats:
                raise ValueError(
                    f"an array of {len(array)} floats; the map has {self._shards.floats}"
                )
