"""ActiveOutputs: what an LSHLinear gives while training, before it is known which neurons compute.

The true labels are always among the active neurons, and only the loss knows the labels. So the
layer hands over its input, and the neurons are chosen when somebody uses the outputs: a loss of
`mh.sparse` chooses with the labels; any other function of PyTorch sees a dense tensor with zeros
for the neurons that were not chosen, as a hidden layer needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from manyhands.errors import ModelError
from manyhands.sparse.active_product import ActiveSet, active_product, spread_out
from manyhands.sparse.csr import CSR
from manyhands.sparse.partial_outputs import PartialOutputs, marked, refuse_over_all_outputs

if TYPE_CHECKING:
    from manyhands.sparse.lsh_linear import LSHLinear


class ActiveOutputs:
    """Outputs [*, out_features] of which a few are computed, when they are first used.

    Used as a tensor it becomes one, with zeros where neurons are inactive. Belongs to the thread
    and the batch that made it.
    """

    def __init__(self, layer: LSHLinear, x: torch.Tensor) -> None:
        self.layer = layer
        self.shape = torch.Size((*x.shape[:-1], layer.out_features))
        self.dtype = x.dtype
        self.device = x.device
        self.requires_grad = torch.is_grad_enabled() and (
            x.requires_grad or any(p.requires_grad for p in layer.parameters(recurse=False))
        )
        self._x = x
        self._version = x._version
        self._active: ActiveSet | None = None
        self._outputs: torch.Tensor | None = None
        self._dense: PartialOutputs | None = None

    @property
    def samples(self) -> int:
        """How many samples there are, whatever the shape of the batch."""
        return self.shape[:-1].numel()

    def choose(self, labels: CSR | None) -> tuple[ActiveSet, torch.Tensor]:
        """The neurons that are active, these labels among them, and their outputs.

        Without labels it stays with what was chosen before.
        """
        if self._active is None or self._outputs is None or labels is not None:
            self._compute(labels)
        assert self._active is not None
        assert self._outputs is not None
        return self._active, self._outputs

    @property
    def dense(self) -> PartialOutputs:
        """The outputs as a tensor, zeros where a neuron is not active."""
        if self._dense is None:
            active, outputs = self.choose(None)
            with torch.set_grad_enabled(self.requires_grad):
                flat = spread_out(outputs, active, self.samples, self.layer.out_features)
                self._dense = marked(flat.view(self.shape))
        return self._dense

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def size(self, dim: int | None = None) -> torch.Size | int:
        """The shape, or one of its numbers."""
        return self.shape if dim is None else self.shape[dim]

    def _compute(self, labels: CSR | None) -> None:
        if self._x._version != self._version:
            raise ModelError(
                "The input of an LSHLinear was changed in place before its outputs were used, and "
                "they are computed only then: use an operation that isn't in place."
            )
        x = self._x.reshape(-1, self.layer.in_features)
        # The outputs belong to the forward pass, wherever they are computed.
        with torch.set_grad_enabled(self.requires_grad), torch.autocast("cpu", enabled=False):
            self._active = self.layer.choose(x, labels, training=self.requires_grad)
            self._outputs = active_product(x, self.layer.weight, self.layer.bias, self._active)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        refuse_over_all_outputs(getattr(function, "__name__", ""))
        given = {name: _as_tensors(value) for name, value in (kwargs or {}).items()}
        return function(*_as_tensors(args), **given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'ActiveOutputs' object has no attribute '{name}'")
        refuse_over_all_outputs(name)
        return getattr(self.dense, name)

    def __repr__(self) -> str:
        return f"ActiveOutputs(shape={list(self.shape)}, layer={self.layer})"

    __hash__ = object.__hash__


def _as_tensors(value: Any) -> Any:
    if isinstance(value, ActiveOutputs):
        return value.dense
    if type(value) in (tuple, list):
        return type(value)(_as_tensors(item) for item in value)
    return value


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: ActiveOutputs, *others: Any) -> Any:
        return getattr(self.dense, name)(*_as_tensors(others))

    operate.__name__ = name
    return operate


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_OTHERS = ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "getitem", "len", "iter")
for _name in (*_ARITHMETIC, *(f"r{name}" for name in _ARITHMETIC), *_OTHERS):
    setattr(ActiveOutputs, f"__{_name}__", _operator(f"__{_name}__"))
