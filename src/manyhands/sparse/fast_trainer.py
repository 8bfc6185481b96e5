"""FastTrainer: the native trainer over a model's own weights, with its layer's hash tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from manyhands import kernels
from manyhands.errors import DataError
from manyhands.optim.native import native_rule
from manyhands.optim.rules import Rule
from manyhands.sparse.fast_path import FastPath
from manyhands.sparse.lsh_linear import LSHLinear
from manyhands.sparse.sparse_linear import SparseLinear
from manyhands.sparse.targets import labels_of

States = Mapping[str, Sequence[torch.Tensor]]
Rates = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CollectedRows:
    """The gradient of one parameter in the rows that a batch touched, which ascend."""

    name: str
    rows: torch.Tensor
    values: torch.Tensor


class FastTrainer:
    """Trains a model whose `FastPath` is known. Not thread-safe.

    Weights and states are used where they lie and must stay there; the rows of a matrix may lie
    apart, with those of its states between them (`row_matrices`). With `collect` rows take a plain
    step and their gradients are kept, for somebody who applies the rule elsewhere; states are then
    those of the dense parameters. With `narrow` the wide layer's weights are trained as bfloat16;
    the module's own are brought up to date before `train` returns.
    """

    def __init__(
        self,
        path: FastPath,
        model: nn.Module,
        rule: Rule,
        states: States,
        *,
        max_batch: int,
        threads: int,
        collect: bool = False,
        narrow: bool = False,
    ) -> None:
        output = model.get_submodule(path.output)
        assert isinstance(output, LSHLinear)
        self._layer = output
        self._path = path
        self._sparse_input = isinstance(model.get_submodule(path.hidden[0]), SparseLinear)
        self._index: kernels.LshIndex | None = None
        self._native = kernels.SparseTrainer(max_batch, threads)
        without = set(row_parameters(path, model)) if collect else set()
        kept = {name: tensors for name, tensors in states.items() if name not in without}
        for name in path.hidden:
            module = model.get_submodule(name)
            sparse = isinstance(module, SparseLinear)
            self._native.hidden(*_arrays(module, name, kept), sparse=sparse)
        self._native.output(*_arrays(output, path.output, kept))
        self._native.finish(
            native_rule(rule),
            share=output.share,
            loss=path.loss,
            collect=collect,
            narrow=narrow,
        )

    def train(
        self, inputs: Any, targets: Any, batch_size: int, rates: Rates, first_step: int
    ) -> Rates:
        """Train on consecutive batches; the loss of each batch done.

        Fewer losses than rates mean that the last loss was not finite; its update was not applied.
        """
        self._use_index()
        labels = labels_of(targets, len(inputs), self._layer.out_features)
        losses = np.full(len(rates), math.nan)
        try:
            done = self._native.train(
                **self._inputs(inputs),
                label_offsets=labels.offsets,
                labels=labels.columns,
                batch_size=batch_size,
                rates=rates,
                first_step=first_step,
                seed=self._layer.next_seed(len(rates)),
                losses=losses,
            )
        except ValueError as error:  # checked before the first batch: a feature out of range, say
            raise DataError(f"The fast path can't train on this batch: {error}") from error
        self._layer.count_steps(done)
        return losses[: min(done + 1, len(rates))]

    def catch_up(self) -> None:
        """Apply the weight decay that rows have missed since they were last touched, in every row.

        Before somebody looks at weights that decay; `train` does it for the rows that it touches.
        """
        self._native.catch_up()

    def figures(self) -> dict[str, float]:
        """Seconds by phase, rows and bytes so far (`kernels.SparseTrainer.figures`)."""
        return self._native.figures()

    def collected(self) -> list[CollectedRows]:
        """The gradients of the last batch's rows, of a trainer that collects them."""
        features, feature_grads, rows, grads, bias_grads = map(
            torch.from_numpy, self._native.collected()
        )
        found = [CollectedRows(f"{self._path.output}.weight", rows, grads)]
        if self._layer.bias is not None:
            found.append(CollectedRows(f"{self._path.output}.bias", rows, bias_grads))
        if self._sparse_input:
            name = f"{self._path.hidden[0]}.weight"
            found.append(CollectedRows(name, features, feature_grads))
        return found

    def _use_index(self) -> None:
        index = self._layer.index  # another one when weights were loaded meanwhile
        if index is self._index:
            return
        self._native.take_weight()
        sampling = self._layer.sampling
        assert sampling.limit is not None  # a layer has resolved all
        assert sampling.floor is not None
        assert sampling.hardest is not None
        self._native.choose_by(
            index,
            choice=sampling.choice,
            limit=sampling.limit,
            floor=sampling.floor,
            votes=sampling.votes,
            hardest=sampling.hardest,
        )
        self._index = index

    def _inputs(self, inputs: Any) -> dict[str, Any]:
        if not self._sparse_input:
            return {"dense": inputs.contiguous()}
        return {"offsets": inputs.offsets, "columns": inputs.columns, "values": inputs.values}


def row_parameters(path: FastPath, model: nn.Module) -> list[str]:
    """The parameters of which a batch touches some rows only."""
    names = [f"{path.output}.weight", f"{path.output}.bias"]
    if isinstance(model.get_submodule(path.hidden[0]), SparseLinear):
        names.append(f"{path.hidden[0]}.weight")
    return names


def row_matrices(path: FastPath, model: nn.Module) -> list[str]:
    """Those that are matrices: training is fastest where a row and its states lie side by side."""
    return [name for name in row_parameters(path, model) if model.get_parameter(name).dim() == 2]


def _arrays(module: nn.Module, name: str, states: States) -> tuple[Any, Any, Any, Any]:
    weight, bias = module.weight, module.bias
    assert isinstance(weight, torch.Tensor)
    return (
        weight.detach(),
        bias.detach() if isinstance(bias, torch.Tensor) else None,
        list(states.get(f"{name}.weight", [])),
        list(states.get(f"{name}.bias", [])),
    )
