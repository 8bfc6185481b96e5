"""The shard map under hypothesis: every weight has one home, and the homes are evenly loaded."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.parameter_server.shard_map import (
    Form,
    ParameterSpec,
    ShardMap,
    make_shard_map,
)

SIDES = st.integers(0, 300)
VECTORS = st.lists(SIDES, max_size=1).map(tuple)
MATRICES = st.tuples(SIDES, SIDES) | st.tuples(SIDES, st.integers(0, 9), st.integers(0, 9))
SPECS = st.lists(
    st.one_of(
        st.tuples(VECTORS | MATRICES, st.just(Form.DELTA)),
        st.tuples(MATRICES, st.sampled_from(Form)),
    ),
    max_size=12,
).map(lambda drawn: [ParameterSpec(f"p{n}", shape, form) for n, (shape, form) in enumerate(drawn)])


@st.composite
def maps(draw: st.DrawFn) -> ShardMap:
    return make_shard_map(
        draw(SPECS),
        servers=draw(st.integers(1, 5)),
        lanes=draw(st.integers(1, 4)),
        chunk_bytes=draw(st.sampled_from([64, 1000, 4096, 1 << 20])),
    )


@given(maps())
def test_every_weight_lies_in_one_chunk(shards: ShardMap) -> None:
    covered = [0] * len(shards.parameters)
    for number, chunk in enumerate(shards.chunks):
        assert chunk.number == number
        assert chunk.rows > 0
        start = shards.starts[chunk.parameter] + covered[chunk.parameter]
        assert (
            chunk.start
            == start
            == shards.starts[chunk.parameter] + (chunk.first_row * chunk.row_floats)
        )
        covered[chunk.parameter] += chunk.floats
    assert covered == [spec.floats for spec in shards.parameters]


@given(maps())
def test_parameters_follow_each_other_in_the_flat_array(shards: ShardMap) -> None:
    end = 0
    for start, spec in zip(shards.starts, shards.parameters, strict=True):
        assert end <= start < end + 16
        assert start % 16 == 0
        end = start + spec.floats
    assert end <= shards.floats < end + 16


@given(maps())
def test_every_chunk_has_one_home(shards: ShardMap) -> None:
    homes = Counter(chunk for n in range(shards.servers) for chunk in shards.chunks_of(n))
    assert homes == Counter(shards.chunks)
    assert all(0 <= shards.lane_of(chunk) < shards.lanes for chunk in shards.chunks)


@given(SPECS, st.sampled_from([64, 1000, 4096]))
def test_chunks_keep_to_their_size_and_to_whole_rows(
    specs: list[ParameterSpec], chunk_bytes: int
) -> None:
    for chunk in make_shard_map(specs, servers=1, lanes=1, chunk_bytes=chunk_bytes).chunks:
        spec = specs[chunk.parameter]
        assert chunk.floats * 4 <= chunk_bytes or chunk.rows == 1
        if spec.form is not Form.DELTA or spec.row_floats * 4 <= chunk_bytes:
            assert chunk.row_floats == spec.row_floats
        else:
            assert chunk.floats * 4 <= chunk_bytes


@given(maps())
def test_no_server_holds_more_than_the_mean_and_a_bucket(shards: ShardMap) -> None:
    buckets: Counter[int] = Counter()
    for chunk in shards.chunks:
        buckets[chunk.bucket] += chunk.floats
    loads = [sum(chunk.floats for chunk in shards.chunks_of(n)) for n in range(shards.servers)]
    assert max(loads) <= sum(loads) / shards.servers + max(buckets.values(), default=0)


@given(maps())
def test_factors_stay_on_one_server_in_two_spans_at_most(shards: ShardMap) -> None:
    for number, spec in enumerate(shards.parameters):
        spans = shards.spans_of(number)
        row = 0
        for span in spans:
            assert span.first_row == row
            row += span.rows
        if spec.form is Form.FACTORS:
            assert len(spans) <= min(2, shards.lanes)
            assert len({span.server for span in spans}) <= 1
        if spec.floats and spec.form is not Form.DELTA:
            assert row == spec.rows


@given(SPECS, st.integers(1, 3), st.integers(1, 3))
def test_the_same_arguments_give_the_same_map(
    specs: list[ParameterSpec], servers: int, lanes: int
) -> None:
    first = make_shard_map(specs, servers=servers, lanes=lanes)
    assert first == make_shard_map(specs, servers=servers, lanes=lanes)


@pytest.mark.parametrize("servers", [2, 3, 5])
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_a_large_model_is_spread_evenly(servers: int, lanes: int) -> None:
    specs = [ParameterSpec(f"layer{n}", (2048, 1024)) for n in range(16)]
    specs += [ParameterSpec(f"bias{n}", (2048,)) for n in range(16)]
    shards = make_shard_map(specs, servers=servers, lanes=lanes)
    loads: Counter[tuple[int, int]] = Counter()
    for chunk in shards.chunks:
        loads[shards.server_of(chunk), shards.lane_of(chunk)] += chunk.floats
    even = sum(loads.values()) / (servers * lanes)
    for server in range(servers):
        load = sum(loads[server, lane] for lane in range(lanes))
        assert load == pytest.approx(even * lanes, rel=0.1)
    if servers * lanes <= 8:  # twelve and more lanes have too few chunks of 1 MB each
        assert all(load == pytest.approx(even, rel=0.2) for load in loads.values())


def test_a_small_model_uses_every_lane() -> None:
    sizes = [(10, 25), (20, 250), (400, 320), (400, 400), (10, 400)]  # Adam's net for MNIST
    specs = [ParameterSpec(f"p{n}", shape) for n, shape in enumerate(sizes)]
    shards = make_shard_map(specs, servers=2, lanes=2)
    loads: Counter[tuple[int, int]] = Counter()
    for chunk in shards.chunks:
        loads[shards.server_of(chunk), shards.lane_of(chunk)] += chunk.floats
    assert len(loads) == 4
    assert max(loads.values()) < 1.5 * min(loads.values())
