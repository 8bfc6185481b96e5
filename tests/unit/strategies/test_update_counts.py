"""Counts of updates: from chunks to parameters, and back to chunks that are cut otherwise."""

from __future__ import annotations

import numpy as np
import torch

from manyhands.parameter_server.shard_map import ParameterSpec, make_shard_map
from manyhands.strategies import update_counts

SPECS = [ParameterSpec("wide", (64, 64)), ParameterSpec("bias", (3,)), ParameterSpec("none", (0,))]


def test_a_parameter_has_the_least_count_of_its_chunks() -> None:
    shards = make_shard_map(SPECS, servers=1, lanes=1, chunk_bytes=4096)
    assert len(shards.chunks) == 5
    tensors = update_counts.tensors(shards, np.array([7, 5, 9, 8, 2]))
    assert {name: int(t) for name, t in tensors.items()} == {
        "wide.updates": 5,
        "bias.updates": 2,
        "none.updates": 0,
    }
    assert int(update_counts.tensors(shards, np.array([7, 0, 9, 8, 2]))["wide.updates"]) == 0


def test_chunks_of_another_cut_go_on_from_it() -> None:
    shards = make_shard_map(SPECS, servers=3, lanes=2, chunk_bytes=1024)
    counts = update_counts.by_chunk(shards, {"wide.updates": torch.tensor(5)})
    names = [shards.parameters[chunk.parameter].name for chunk in shards.chunks]
    assert counts.tolist() == [5 if name == "wide" else 0 for name in names]


def test_other_strategies_see_the_states_alone() -> None:
    states = {"wide.mean": torch.zeros(3), "wide.updates": torch.tensor(5)}
    assert list(update_counts.without(states)) == ["wide.mean"]
