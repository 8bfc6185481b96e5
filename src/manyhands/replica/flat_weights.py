"""A replica's weights as one line of floats, laid out as the parameter servers have them.

Parameters are views into the line, so what a worker changes is at once what a background thread
sends, and what is fetched is at once what the workers use (Adam, sections 3.2.2 and 3.2.3).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from manyhands.replica.shared_weights import trainable


class FlatLayout:
    """Where each trainable parameter of a model lies in the line, and in which order of memory.

    `starts` are offsets in floats, one for each trainable parameter in the model's order. With
    `channels_last` the kernels of convolutions lie that way round. Every process of a run uses the
    same layout.
    """

    def __init__(
        self, model: nn.Module, starts: Sequence[int], floats: int, *, channels_last: bool = False
    ) -> None:
        self.floats = floats
        self._shapes = {name: tuple(p.shape) for name, p in trainable(model).items()}
        self._starts = dict(zip(self._shapes, starts, strict=True))
        self._channels_last = channels_last

    @property
    def names(self) -> list[str]:
        """The parameters in their order."""
        return list(self._shapes)

    def view(self, line: torch.Tensor, name: str) -> torch.Tensor:
        """The parameter's place in a line of floats, with the parameter's shape."""
        shape, start = self._shapes[name], self._starts[name]
        count = int(torch.Size(shape).numel())
        part = line[start : start + count]
        if self._channels_last and len(shape) == 4:
            outputs, inputs, height, width = shape
            return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
        return part.view(shape)

    def views(self, line: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every parameter's place in the line."""
        return {name: self.view(line, name) for name in self._shapes}

    def write(self, values: dict[str, torch.Tensor], line: torch.Tensor) -> None:
        """Copy tensors, by the names of parameters, to their places."""
        for name, place in self.views(line).items():
            place.copy_(values[name])

    def attach(self, model: nn.Module, line: torch.Tensor) -> None:
        """Make the line the memory of the model's trainable parameters, in place.

        The line's values win. Each parameter gets a view that autograd counts changes of apart.
        """
        for name, parameter in trainable(model).items():
            parameter.data = self.view(line, name)


def copies_for_threads(model: nn.Module, count: int) -> list[nn.Module]:
    """The model and copies of it that share its memory: the same weights, gradients of their own.

    Threads that differentiate one module would add to one another's gradients. Buffers are shared
    as well: their races are those of the weights.
    """
    copies = [model]
    for _ in range(count - 1):
        twin = copy.deepcopy(model)
        ours = [*model.parameters(), *model.buffers()]
        theirs = [*twin.parameters(), *twin.buffers()]
        for tensor, twin_tensor in zip(ours, theirs, strict=True):
            twin_tensor.data = tensor.data
        copies.append(twin)
    return copies
