"""LSHLinear: a wide linear layer that computes, while training, only the neurons that matter.

SLIDE (Chen et al., MLSys 2020): neurons lie in hash tables by their weights, an input is hashed the
same way, and the neurons that it meets in its buckets are likely to have the largest products with
it. docs/sparse.md tells the whole story.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from manyhands import kernels
from manyhands.errors import ConfigError, ModelError
from manyhands.sparse import search
from manyhands.sparse.active_outputs import ActiveOutputs
from manyhands.sparse.active_product import ActiveSet
from manyhands.sparse.choosing import choose_at_random, choose_by_index
from manyhands.sparse.csr import CSR
from manyhands.sparse.float32_only import Float32Only, whole_number
from manyhands.sparse.hash_families import DWTA, HashFamily
from manyhands.sparse.neuron_index import NeuronIndex
from manyhands.sparse.partial_outputs import plain
from manyhands.sparse.refresh import Refresh
from manyhands.sparse.sampling import Sampling

# Below this, a product with every neuron takes no longer than choosing some of them.
_FEWEST_HASHED = 1000

T = TypeVar("T")


class LSHLinear(Float32Only, nn.Module):
    """A linear layer for 10^4 to 10^6 outputs; parameters as `nn.Linear` has them.

    In `train()`, `forward` gives `ActiveOutputs`: hand them as they are to
    `mh.sparse.LSHSoftmaxLoss` or `LSHSigmoidLoss`, or go on computing with them, as after a hidden
    layer. The gradients of weight
    and bias are sparse: train with `mh.Trainer` or `mh.sparse.RowOptimizer`. In `eval()`, `forward`
    gives all outputs as a plain tensor, and `topk` the largest ones, exactly or through the tables.

    Without a `family` it is DWTA with as many hashes as suit the number of neurons.
    `share="batch"` chooses one set of active neurons for a batch, which makes dense products of the
    work; `share="sample"` one for each sample, as published. `bucket` is how many neurons a bucket
    holds, `filling` ("fifo" or "reservoir") which ones when there are more. So many `threads` hash
    and search; None means as many as PyTorch computes with.

    The tables are built at the second batch that is trained on: the first one, on a fresh copy
    often a trial, takes its labels and neurons at random. They are no part of the `state_dict`, of
    pickles and of copies, and are built anew when weights are loaded or moved to other memory.
    After another change of the weights from outside, call `rows_changed` or `forget_tables`. One
    thread at a time may use a layer; `rows_changed` may come from any.
    """

    sparse = True  # its gradients are

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        family: HashFamily | None = None,
        sampling: Sampling | None = None,
        refresh: Refresh | None = None,
        share: str = "batch",
        bucket: int = 128,
        filling: str = "fifo",
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features = whole_number("LSHLinear: in_features", in_features)
        self.out_features = out_features = whole_number("LSHLinear: out_features", out_features)
        self.family = _chosen("family", family, _usual_family(out_features), HashFamily)
        self.refresh = _chosen("refresh", refresh, Refresh(), Refresh)
        self.share = _one_of("share", share, ("batch", "sample"))
        self.bucket = whole_number("LSHLinear: bucket", bucket)
        self.filling = _one_of("filling", filling, ("fifo", "reservoir"))
        self.seed = whole_number("LSHLinear: seed", seed, least=0)
        self.threads = None if threads is None else whole_number("LSHLinear: threads", threads)
        wanted = _chosen("sampling", sampling, Sampling(), Sampling)
        self.sampling = wanted.resolved(out_features, share)
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()
        self._neurons = NeuronIndex(self._index_settings(), self.refresh)
        self.register_load_state_dict_post_hook(_forget_after_loading)  # type: ignore[no-untyped-call]
        if not self.hashes:
            warnings.warn(
                f"LSHLinear with {out_features} outputs computes all of them: nn.Linear is the "
                f"better choice where they are fewer than {_FEWEST_HASHED} or most are active.",
                UserWarning,
                stacklevel=2,
            )

    @classmethod
    def from_linear(cls, linear: nn.Linear, **settings: Any) -> LSHLinear:
        """A layer with a copy of these weights; settings as for the class."""
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None, **settings)
        layer.load_state_dict(linear.state_dict())
        return layer

    def reset_parameters(self) -> None:
        """Fresh weights, as those of `nn.Linear`."""
        bound = 1 / math.sqrt(self.in_features)
        for parameter in self.parameters(recurse=False):
            nn.init.uniform_(parameter, -bound, bound)

    @property
    def hashes(self) -> bool:
        """Whether neurons are chosen; False where they are so few that all are computed."""
        return self.out_features >= max(_FEWEST_HASHED, 2 * self.most_active)

    @property
    def most_active(self) -> int:
        """How many neurons are active at most, labels apart."""
        return max(self.sampling.limit or 0, self.sampling.floor or 0)

    def forward(self, x: torch.Tensor) -> ActiveOutputs | torch.Tensor:
        """While training outputs that are chosen when they are used; in `eval()` all of them."""
        x = self._checked(x)
        if self.training and self.hashes:
            return ActiveOutputs(self, x)
        return F.linear(x, self.weight, self.bias)

    def choose(self, x: torch.Tensor, labels: CSR | None, *, training: bool) -> ActiveSet:
        """The active neurons for `x` [batch, in_features]: the labels, and those that are found.

        `training` says that the weights are about to move.
        """
        x = x.detach().contiguous()
        moves = training and self.weight.requires_grad
        if moves:
            index = self._neurons.for_batch(self.weight, self.thread_count)
        else:
            index = self._neurons.current(self.weight)
        seed = self.next_seed()
        if index is None or not len(x):
            active = choose_at_random(self, len(x), labels, seed)
        else:
            if moves:
                index.see_inputs(x)
            active = choose_by_index(self, index, x, labels, seed)
        if moves:
            self._neurons.will_move(active.rows)
        return active

    @torch.no_grad()
    def topk(self, x: torch.Tensor, k: int, *, exact: bool = True) -> search.TopK:
        """The `k` largest outputs and their numbers, largest first: values and indices [batch, k].

        With `exact=False` only neurons that the tables find for `x` are compared, which is fast for
        many outputs and misses some (`recall` says how many).
        """
        search.check_k(self, k)
        x = self._checked(x)
        rows = x.reshape(-1, self.in_features).contiguous()
        find = search.exact_topk if exact or not self.hashes else search.approximate_topk
        values, indices = find(self, rows, k)
        return values.view(*x.shape[:-1], k), indices.view(*x.shape[:-1], k)

    def recall(self, x: torch.Tensor, k: int) -> float:
        """The share of the exact `k` largest outputs that `topk(..., exact=False)` finds."""
        exact, found = self.topk(x, k)[1], self.topk(x, k, exact=False)[1]
        return search.share_found(exact.view(-1, k), found.view(-1, k))

    @property
    def index(self) -> kernels.LshIndex:
        """The hash tables over the weights, built now if they aren't yet."""
        return self._neurons.ready(self.weight, self.thread_count)

    @property
    def thread_count(self) -> int:
        """How many threads hash and search."""
        return self.threads or torch.get_num_threads()

    def next_seed(self, count: int = 1) -> int:
        """The first of the next `count` numbers that fix what is random in a batch each.

        They follow from the layer's seed and PyTorch's, so that workers draw differently.
        """
        return self._neurons.next_seed(count)

    def count_steps(self, steps: int) -> None:
        """So many batches were trained on elsewhere: a refresh of the tables starts when due."""
        self._neurons.count_steps(steps, self.weight)

    def rows_changed(self, rows: Any) -> None:
        """These neurons' weights were changed from outside: the next refresh hashes them again.

        Their numbers, or a mask of all neurons.
        """
        numbers = torch.as_tensor(rows)
        if numbers.dtype == torch.bool:
            numbers = numbers.nonzero()
        self._neurons.mark(numbers.to(torch.int64).reshape(-1).contiguous())

    def forget_tables(self) -> None:
        """All weights were changed from outside: the tables are built anew at the next use."""
        self._neurons.forget()

    def wait_for_refreshes(self) -> None:
        """Training waits for refreshes from now on, as with `Refresh(beside=False)`: it repeats."""
        self._neurons.wait_for_refreshes()

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, "
            f"family={self.family}, sampling={self.sampling}, share={self.share!r}"
        )

    def _checked(self, x: torch.Tensor) -> torch.Tensor:
        x = plain(x.dense if isinstance(x, ActiveOutputs) else x)
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
            seen = x.layout if isinstance(x, torch.Tensor) else type(x).__name__
            raise ModelError(
                f"LSHLinear: the input is {seen}; expected a dense tensor (SparseLinear takes "
                "sparse input)."
            )
        if torch.is_autocast_enabled("cpu"):
            x = x.float()
        self._check_float32(x.dtype)
        if not x.dim() or x.shape[-1] != self.in_features:
            raise ModelError(
                f"LSHLinear: the input has shape {list(x.shape)}; expected "
                f"[batch, {self.in_features}]."
            )
        self._check_weight()
        return x

    def _check_weight(self) -> None:
        """Somebody may have put another weight in the place of the layer's own."""
        weight, shape = self.weight, (self.out_features, self.in_features)
        apart = self.in_features > 1 and weight.stride()[-1:] != (1,)
        if tuple(weight.shape) != shape or apart:
            raise ModelError(
                f"LSHLinear: the weight has shape {list(weight.shape)} and strides "
                f"{list(weight.stride())}; expected {list(shape)} with rows in contiguous memory."
            )
        if self.training and self.hashes and weight.grad_fn is not None:
            raise ModelError(
                "LSHLinear: the weight is computed from others (weight_norm, a parametrization), "
                "which can't take its sparse gradient: expected an nn.Parameter."
            )

    def _index_settings(self) -> dict[str, Any]:
        return {
            "neurons": self.out_features,
            "width": self.in_features,
            "bucket": self.bucket,
            "filling": self.filling,
            "seed": self.seed,
            **self.family.settings(),
        }


def _forget_after_loading(layer: nn.Module, incompatible: Any) -> None:
    del incompatible
    assert isinstance(layer, LSHLinear)
    layer.forget_tables()


def _usual_family(neurons: int) -> HashFamily:
    """Buckets for about 20 neurons each: more, and the tables find nobody; fewer, and anybody."""
    usual = DWTA()
    bits = math.log2(max(2, neurons / 20))
    return replace(usual, hashes=min(usual.hashes, max(1, round(bits / usual.digit_bits))))


def _chosen(name: str, value: T | None, usual: T, kind: type[T]) -> T:
    if value is None:
        return usual
    if not isinstance(value, kind):
        raise ConfigError(
            f"LSHLinear: {name} is {value!r:.80}; expected one of mh.sparse, such as {usual}."
        )
    return value


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ConfigError(
            f"LSHLinear: {name} is {value!r}; expected {' or '.join(map(repr, known))}."
        )
    return value
