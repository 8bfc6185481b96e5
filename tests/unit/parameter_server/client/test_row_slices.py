"""Rows of sparse gradients reach the chunk that they lie in, and no other."""

from __future__ import annotations

import numpy as np
import pytest

from manyhands.parameter_server.client.held_weights import HeldWeights, RowRange, row_ranges
from manyhands.parameter_server.client.row_slices import RowCutter
from manyhands.parameter_server.shard_map import Form, ParameterSpec, ShardMap, make_shard_map


def shards(servers: int = 1) -> ShardMap:
    parameters = [
        ParameterSpec("words", (100, 8), Form.ROWS),
        ParameterSpec("dense", (10, 10)),
        ParameterSpec("bias", (300,), Form.ROWS),
    ]
    return make_shard_map(parameters, servers=servers, lanes=1, chunk_bytes=640)


@pytest.mark.parametrize("servers", [1, 3])
def test_every_row_goes_to_its_chunk_once(servers: int) -> None:
    made, random = shards(servers), np.random.default_rng(0)
    words, bias = random.permutation(100)[:37], random.permutation(300)[:50]
    gradients = random.random((37, 8), "f"), random.random(50, "f")
    sums = np.zeros(made.floats, np.float32)
    for server in range(servers):
        own = [c for c in made.chunks_of(server) if c.parameter != 1]
        cut = RowCutter(made, own).cut({0: (words, gradients[0]), 2: (bias, gradients[1])})
        assert cut.counts.sum() == len(cut.rows)
        for chunk in own:
            count, row = cut.counts[chunk.number], cut.row_starts[chunk.number]
            start = cut.value_starts[chunk.number]
            for i in range(count):
                at = chunk.start + int(cut.rows[row + i]) * chunk.row_floats
                values = cut.values[start + i * chunk.row_floats :][: chunk.row_floats]
                assert 0 <= cut.rows[row + i] < chunk.rows
                sums[at : at + chunk.row_floats] += values
    expected = np.zeros(made.floats, np.float32)
    expected[:800].reshape(100, 8)[words] = gradients[0]
    expected[made.starts[2] : made.starts[2] + 300][bias] = gradients[1]
    np.testing.assert_array_equal(sums, expected)


def test_parameters_of_other_groups_and_no_rows_give_nothing() -> None:
    made = shards()
    cutter = RowCutter(made, [c for c in made.chunks if c.parameter == 2])
    assert not len(cutter.cut({}).rows)
    assert not len(cutter.cut({0: (np.array([1]), np.ones((1, 8), np.float32))}).rows)
    nothing = np.zeros(0, np.int64), np.zeros((0, 1), np.float32)
    assert not len(cutter.cut({2: nothing}).rows)


def test_rows_that_came_are_told_once_and_by_group() -> None:
    made = shards(2)
    held = HeldWeights(made, np.zeros(made.floats, np.float32))
    groups = [[c for c in made.chunks_of(s) if c.parameter != 1] for s in (0, 1)]
    for group in groups:
        for chunk in group:
            held.changed[held.row_starts[chunk.number] + chunk.rows - 1] = 1
    for group in groups:
        came = held.take_changed(row_ranges(group))
        for parameter in (0, 2):
            last = sorted(c.first_row + c.rows - 1 for c in group if c.parameter == parameter)
            assert came.get(parameter, np.zeros(0)).tolist() == last
        assert held.take_changed(row_ranges(group)) == {}


def test_neighbouring_chunks_are_one_range() -> None:
    made = shards()
    by_rows = [c for c in made.chunks if c.parameter != 1]
    assert row_ranges(by_rows) == [RowRange(0, 0, 100), RowRange(2, 0, 300)]
    assert row_ranges([by_rows[0], by_rows[2]])[1].first == by_rows[2].first_row


def test_an_array_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="an array of 3 floats"):
        HeldWeights(shards(), np.zeros(3, np.float32))
