"""PyTorch's peers of a wide sparse layer: the full softmax and a sampled softmax, by hand.

Both train the net that ours trains, features -> hidden -> ReLU -> labels, with Adam. The gradients
are written out, because autograd would keep several copies of [batch, labels] and of the weight's
gradient; what is left is the matrix products themselves, a softmax in place and Adam. The input
layer is touched only where a batch has features, as `nn.EmbeddingBag(sparse=True)` with
`SparseAdam` would, without their sorting of the same indices once for each tensor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import embedding_bag

from manyhands.sparse import CSR

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Targets(NamedTuple):
    """The labels of a batch: for each, its sample and its part of the sample's 1."""

    samples: torch.Tensor
    labels: torch.Tensor
    parts: torch.Tensor
    unlabelled: torch.Tensor  # samples without any

    @classmethod
    def of(cls, y: CSR) -> Targets:
        samples = y.row_of_entries()
        parts = (1.0 / y.counts.clamp(min=1)).index_select(0, samples)
        return cls(samples, y.columns.long(), parts, torch.nonzero(y.counts == 0).flatten())


class AdamRows:
    """Adam on those rows of a tensor that a batch touches; moments decay only then."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight
        self._mean = torch.zeros_like(weight)
        self._square = torch.zeros_like(weight)

    def update(self, rows: torch.Tensor, grad: torch.Tensor, rate: float, step: int) -> None:
        """Steps count from 1."""
        mean = self._mean.index_select(0, rows).lerp_(grad, 1 - BETA1)
        square = self._square.index_select(0, rows).mul_(BETA2)
        square.addcmul_(grad, grad, value=1 - BETA2)
        self._mean.index_copy_(0, rows, mean)
        self._square.index_copy_(0, rows, square)
        root = square.sqrt_().div_(math.sqrt(1 - BETA2**step)).add_(EPS)
        self.weight.index_add_(0, rows, mean.div_(root), alpha=-rate / (1 - BETA1**step))


class WideSoftmax(ABC):
    """The net, its input layer and Adam's count of steps. Not thread-safe.

    `parameters` are copied: weight and bias of the input layer, [features, hidden] and [hidden],
    then of the output layer, [labels, hidden] and [labels].
    """

    def __init__(self, parameters: Sequence[torch.Tensor], rate: float) -> None:
        copies = [parameter.detach().clone() for parameter in parameters]
        self._features, self._hidden_bias, self._weight, self._bias = copies
        self.rate = rate
        self._step = 0
        self._feature_rows = AdamRows(self._features)
        self._hidden_rows = AdamRows(self._hidden_bias)

    @property
    def parameters(self) -> list[torch.Tensor]:
        """As they are now, in the order of the constructor."""
        return [self._features, self._hidden_bias, self._weight, self._bias]

    @torch.no_grad()
    def step(self, x: CSR, y: CSR) -> None:
        """Train one batch."""
        self._step += 1
        hidden = hidden_of(self._features, self._hidden_bias, x)
        below = self._train_output(hidden, Targets.of(y))
        self._train_input(x, below.mul_(hidden > 0))

    def _train_input(self, x: CSR, errors: torch.Tensor) -> None:
        rows, places = torch.unique(x.columns.long(), return_inverse=True)
        parts = errors.index_select(0, x.row_of_entries()).mul_(x.values_or_ones()[:, None])
        grad = torch.zeros(len(rows), errors.shape[1]).index_add_(0, places, parts)
        self._feature_rows.update(rows, grad, self.rate, self._step)
        every = torch.arange(errors.shape[1])
        self._hidden_rows.update(every, errors.sum(0), self.rate, self._step)

    @abstractmethod
    def _train_output(self, hidden: torch.Tensor, targets: Targets) -> torch.Tensor:
        """Train the output layer; the gradient of the hidden layer."""


class FullSoftmax(WideSoftmax):
    """Every label of every sample: three matrix products and a fused Adam over all weights."""

    def __init__(self, parameters: Sequence[torch.Tensor], rate: float) -> None:
        super().__init__(parameters, rate)
        self._trained = [nn.Parameter(self._weight), nn.Parameter(self._bias)]
        self._grads = [torch.zeros_like(parameter) for parameter in self._trained]
        for parameter, grad in zip(self._trained, self._grads, strict=True):
            parameter.grad = grad
        self._adam = torch.optim.Adam(self._trained, lr=rate, fused=True)
        self._logits = torch.empty(0, len(self._weight))

    def _train_output(self, hidden: torch.Tensor, targets: Targets) -> torch.Tensor:
        if len(self._logits) < len(hidden):
            self._logits = torch.empty(len(hidden), len(self._weight))
        logits = self._logits[: len(hidden)]
        torch.addmm(self._bias, hidden, self._weight.t(), out=logits)
        errors = errors_of(logits, targets)
        below = errors @ self._weight
        weight_grad, bias_grad = self._grads
        torch.mm(errors.t(), hidden, out=weight_grad)
        torch.sum(errors, 0, out=bias_grad)
        self._adam.param_groups[0]["lr"] = self.rate
        self._adam.step()
        return below


class SampledSoftmax(WideSoftmax):
    """The batch's labels and others drawn at random, shared by the batch; Adam on these rows.

    `corrected` adds to the logit of a drawn label the logarithm of how many it stands for.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        rate: float,
        *,
        negatives: int,
        corrected: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(parameters, rate)
        self._negatives = negatives
        self._corrected = corrected
        self._weight_rows, self._bias_rows = AdamRows(self._weight), AdamRows(self._bias)
        self._generator = torch.Generator().manual_seed(seed)

    def _train_output(self, hidden: torch.Tensor, targets: Targets) -> torch.Tensor:
        drawn = torch.randint(len(self._weight), (self._negatives,), generator=self._generator)
        rows, places = torch.unique(torch.cat([targets.labels, drawn]), return_inverse=True)
        targets = targets._replace(labels=places[: len(targets.labels)])
        weight = self._weight.index_select(0, rows)
        logits = torch.addmm(self._bias.index_select(0, rows), hidden, weight.t())
        if self._corrected:
            logits += self._stand_for(len(rows), targets.labels)
        errors = errors_of(logits, targets)
        below = errors @ weight
        self._weight_rows.update(rows, errors.t() @ hidden, self.rate, self._step)
        self._bias_rows.update(rows, errors.sum(0), self.rate, self._step)
        return below

    def _stand_for(self, rows: int, labels: torch.Tensor) -> torch.Tensor:
        many = max(1.0, len(self._weight) / self._negatives)
        return torch.full((rows,), math.log(many)).index_fill_(0, labels, 0.0)


def hidden_of(features: torch.Tensor, bias: torch.Tensor, x: CSR) -> torch.Tensor:
    """The hidden layer of a batch."""
    sums = embedding_bag(
        x.columns.long(),
        features,
        x.offsets[:-1],
        mode="sum",
        per_sample_weights=x.values_or_ones(),
    )
    return sums.add_(bias).relu_()


def errors_of(logits: torch.Tensor, targets: Targets) -> torch.Tensor:
    """The gradient of the mean cross-entropy with respect to the logits, in their place."""
    torch.softmax(logits, 1, out=logits)
    logits.index_put_((targets.samples, targets.labels), -targets.parts, accumulate=True)
    logits.index_fill_(0, targets.unlabelled, 0.0)
    return logits.div_(len(logits))
