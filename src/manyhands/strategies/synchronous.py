"""Synchronous training: every step sees the weights that the step before left.

With one worker this is the loop of a PyTorch tutorial, bit for bit: same order, same `torch.optim`,
same threads; for layers of `mh.sparse`, whose gradients `torch.optim` can't follow, with
`RowOptimizer`. With several, every batch is shared out among processes (`shared_batch.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn

from manyhands.data.prefetch import Prefetcher, Request
from manyhands.errors import ConfigError, ModelError, WorkerError, in_a_sentence
from manyhands.optim.rules import Adam, Rule
from manyhands.replica.shared_weights import refuse_lazy, trainable
from manyhands.replica.steps import StepFunction
from manyhands.sparse import LSHLinear, RowOptimizer, has_sparse_layers
from manyhands.strategies.divergence import diverged
from manyhands.strategies.lockstep import BatchRequest, EpochAccount, batch_requests
from manyhands.strategies.shared_batch import (
    SharedBatchSession,
    refuse_what_cannot_be_added_up,
)
from manyhands.strategies.strategy import (
    EpochSummary,
    Session,
    Strategy,
    TrainingJob,
    checked_state,
)


@dataclass(frozen=True, slots=True)
class Synchronous(Strategy):
    """Step by step: with one worker plain PyTorch, with more each batch split among them."""

    workers: int = 1

    name: ClassVar[str] = "synchronous"

    def __post_init__(self) -> None:
        if not isinstance(self.workers, int) or self.workers < 1:
            raise ConfigError(f"Synchronous: workers is {self.workers!r}; expected at least 1.")

    @property
    def worker_count(self) -> int:
        return self.workers

    def check(self, model: nn.Module, rule: Rule) -> None:
        if self.workers > 1:
            refuse_what_cannot_be_added_up(model)
        elif not trainable(model):
            raise ModelError("The model has no trainable parameter: nothing requires a gradient.")
        else:
            refuse_lazy(model)
            if not has_sparse_layers(model):
                _refuse_sparse(model, rule)

    def sparse_refusal(
        self, model: nn.Module, step: StepFunction, rule: Rule, batch: Any
    ) -> str | None:
        del step, batch
        if self.workers == 1 and has_sparse_layers(model):
            return replace(rule, weight_decay=0.0).sparse_refusal()  # decay is made good later
        return rule.sparse_refusal()

    def start(self, job: TrainingJob) -> Session:
        for module in job.model.modules():
            if isinstance(module, LSHLinear):
                # A refresh beside the training would make no two runs alike.
                module.wait_for_refreshes()
        if self.workers == 1:
            return SingleSession(job)
        return SharedBatchSession(job, self.workers)


def _refuse_sparse(model: nn.Module, rule: Rule) -> None:
    """What `torch.optim` would answer with a stack trace."""
    sparse = [name for name, module in model.named_modules() if getattr(module, "sparse", False)]
    if not sparse:
        return
    if isinstance(rule, Adam):
        raise ModelError(
            f"'{sparse[0]}' has sparse gradients, which torch.optim.{type(rule).__name__} can't "
            "follow: use SGD, Adagrad, Hogwild or sparse=False."
        )
    if rule.clip_norm is not None:
        raise ModelError(
            f"'{sparse[0]}' has sparse gradients, which PyTorch can't clip: use Hogwild, "
            "sparse=False or no clip_norm."
        )


@contextmanager
def _fetched(job: TrainingJob, epoch: int) -> Iterator[Iterable[tuple[Request, Any]]]:
    """The epoch's batches, read ahead unless reading draws from PyTorch's own generator."""
    requests = batch_requests(job, epoch)
    if not job.source.seeded:  # a second thread would draw in an order that changes by chance
        yield ((r, job.source.fetch(r.indices, seed=r.seed)) for r in requests)
        return
    with Prefetcher(job.source, requests, depth=2) as batches:
        yield batches


class SingleSession(Session):
    """One worker: the driver itself, with `torch.optim` and PyTorch's own threads."""

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._parameters = trainable(job.model)
        self._optimizer = (
            RowOptimizer(self._parameters.values(), job.rule)
            if has_sparse_layers(job.model)
            else job.rule.torch_optimizer(self._parameters.values())
        )
        self._averaged = (
            {name: p.detach().clone() for name, p in self._parameters.items()} if job.ema else {}
        )

    def train_epoch(self, epoch: int) -> EpochSummary:
        job, account, rate = self._job, EpochAccount(self._job, epoch), 0.0
        with _fetched(job, epoch) as batches:
            for request, batch in batches:
                assert isinstance(request, BatchRequest)
                step = epoch * job.batches_per_epoch + request.batch
                rate = float(job.rates(step, 1)[0])
                try:
                    loss = self._train(batch, rate)
                except Exception as error:  # the user's model and loss may raise anything
                    raise WorkerError(
                        f"Training failed at step {step}: {in_a_sentence(error)}"
                    ) from error
                if not math.isfinite(loss):
                    raise diverged(epoch, request.batch, step, loss, request.indices.tolist())
                self._average(step)
                account.count(len(request.indices), loss, rate)
        self._catch_up()
        return account.summary(rate)

    def _train(self, batch: Any, rate: float) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad()
        loss = self._job.step(self._job.model, batch)
        value = float(loss.detach())
        if math.isfinite(value):
            loss.backward()  # type: ignore[no-untyped-call]
            clips = isinstance(self._optimizer, RowOptimizer)
            if self._job.rule.clip_norm is not None and not clips:
                torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._job.rule.clip_norm)
            self._optimizer.step()
        return value

    def _catch_up(self) -> None:
        """Somebody looks at all weights now: sparse rows make good the decay that they missed."""
        if isinstance(self._optimizer, RowOptimizer):
            self._optimizer.catch_up()

    def _average(self, step: int) -> None:
        ema = self._job.ema
        if ema is None or (step + 1) % ema.every:
            return
        self._catch_up()
        weight = 1 - ema.decay_over(step, ema.every)
        for name, average in self._averaged.items():
            average.lerp_(self._parameters[name].detach(), weight)

    def averaged(self) -> dict[str, torch.Tensor] | None:
        return dict(self._averaged) if self._job.ema else None

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        rule = self._job.rule
        return {
            f"{name}.{ours}": self._optimizer.state[parameter].get(
                theirs, torch.full_like(parameter, rule.state_start(ours))
            )
            for name, parameter in self._parameters.items()
            for ours, theirs in zip(rule.states, rule.torch_states, strict=False)
        }

    def load(
        self,
        optimizer: dict[str, torch.Tensor],
        averaged: dict[str, torch.Tensor] | None,
        step: int,
    ) -> None:
        rule = self._job.rule
        checked_state(self.optimizer_state(), optimizer, "optimizer state")
        for name, parameter in self._parameters.items():
            state = {
                theirs: optimizer[f"{name}.{ours}"].clone()
                for ours, theirs in zip(rule.states, rule.torch_states, strict=False)
            }
            if rule.torch_counts_steps:
                state["step"] = torch.tensor(float(step))
            self._optimizer.state[parameter] = state
        if self._job.ema:
            checked_state(self._averaged, averaged or {}, "average")
            for name, tensor in self._averaged.items():
                tensor.copy_((averaged or {})[name])

    def close(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None
