"""How many updates the parameter servers have applied, in a checkpoint.

Adam corrects the bias of its averages by that number, so a run that goes on must go on counting.
Servers count by chunk; a checkpoint names parameters, because a later run may cut them otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from manyhands.parameter_server.shard_map import ShardMap

_ENDING = ".updates"


def tensors(shard_map: ShardMap, updates: npt.NDArray[np.int64]) -> dict[str, torch.Tensor]:
    """A number for each parameter: the least of its chunks', with which Adam steps carefully."""
    counts: dict[str, list[int]] = {spec.name: [] for spec in shard_map.parameters}
    for chunk in shard_map.chunks:
        counts[shard_map.parameters[chunk.parameter].name].append(int(updates[chunk.number]))
    return {f"{name}{_ENDING}": torch.tensor(min(c, default=0)) for name, c in counts.items()}


def by_chunk(shard_map: ShardMap, optimizer: Mapping[str, torch.Tensor]) -> npt.NDArray[np.int64]:
    """What each chunk goes on counting from; 0 where a checkpoint doesn't say."""
    names = [shard_map.parameters[chunk.parameter].name for chunk in shard_map.chunks]
    nothing = torch.tensor(0)
    counts = [int(optimizer.get(f"{name}{_ENDING}", nothing)) for name in names]
    return np.array(counts, np.int64)


def without(optimizer: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that every strategy has and must find again."""
    return {name: tensor for name, tensor in optimizer.items() if not name.endswith(_ENDING)}
