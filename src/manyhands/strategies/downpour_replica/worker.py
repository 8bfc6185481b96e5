"""One lock-free worker of a replica: takes pieces, trains on them, hands over what is to be sent.

Adam, sections 3.2.1 and 3.2.2. The workers of a replica are threads over one copy of the weights:
most of a step runs outside the interpreter's lock, in the native plan or in PyTorch's kernels.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from manyhands.data.prefetch import Prefetcher
from manyhands.data.source import Indices, epoch_order
from manyhands.optim.rules import Accumulate, Rule
from manyhands.parameter_server.shard_map import Form, ShardMap
from manyhands.replica import plan as native_plan
from manyhands.replica.factors import FactorCapture
from manyhands.replica.flat_weights import FlatLayout
from manyhands.replica.layout import channels_last
from manyhands.replica.shared_weights import States, trainable
from manyhands.replica.sparse_step import SparseStep
from manyhands.replica.steps import AutogradStep, PlanStep, RowsTaker, Step, as_it_is
from manyhands.sparse.fast_path import FastPath
from manyhands.sparse.fast_trainer import FastTrainer
from manyhands.sparse.lsh_linear import LSHLinear
from manyhands.strategies.divergence import Diverged
from manyhands.strategies.downpour_replica.exchange import (
    GradientOutbox,
    Line,
    StepClock,
    WeightOutbox,
)
from manyhands.strategies.downpour_replica.messages import GivenBack, PieceDone
from manyhands.strategies.leases import Lease
from manyhands.strategies.pieces import PieceRequest, first_batch, part_of, piece_request
from manyhands.strategies.strategy import TrainingJob


class Desk(Protocol):
    """The replica as its workers see it. Thread-safe."""

    @property
    def leaving(self) -> bool: ...

    def next_lease(self) -> Lease | None:
        """Another piece, when there is one; None when the replica leaves. Blocks."""
        ...

    def send(self, message: object) -> None:
        """Tell the driver."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the replica with this error."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerTools:
    """What the workers of a replica share."""

    job: TrainingJob
    shard_map: ShardMap
    layout: FlatLayout
    outbox: WeightOutbox | GradientOutbox
    clock: StepClock
    push_every: int
    plan: native_plan.PlanDescription | None
    fast_path: FastPath | None
    threads: int  # of the fast path
    channels_last: bool


class ReplicaWorker(threading.Thread):
    """Trains until the replica leaves. `model` is this worker's own view of the shared weights."""

    def __init__(self, number: int, model: nn.Module, tools: WorkerTools, desk: Desk) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self._number = number
        self._model = model
        self._tools = tools
        self._job = tools.job
        self._desk = desk
        self._accumulated: Line | None = None
        self._factors: list[str] = []  # weights that travel so
        self._capture: FactorCapture | None = None
        self._order: tuple[int, Indices] | None = None
        self._steps = 0
        self._step = self._make_step()

    def run(self) -> None:
        torch.set_num_threads(1)
        # Held by name, so that an error is told before the prefetcher closes: closing waits for
        # its thread, which may wait for a piece that never comes.
        pieces = iter(Prefetcher(self._job.source, self._requests(), depth=1))
        try:
            for request, batches in pieces:
                assert isinstance(request, PieceRequest)
                if not self._take(request, batches):
                    return
        except BaseException as error:  # the thread's main loop: the replica reports it
            self._desk.fail(error)

    def _requests(self) -> Iterator[PieceRequest]:
        while (lease := self._desk.next_lease()) is not None:
            yield piece_request(self._job, self._order_of(lease.epoch), lease.epoch, lease.piece)

    def _order_of(self, epoch: int) -> Indices:
        if self._order is None or self._order[0] != epoch:
            job = self._job
            order = epoch_order(len(job.source), epoch=epoch, seed=job.seed, shuffle=job.shuffle)
            self._order = (epoch, order)
        return self._order[1]

    def _take(self, request: PieceRequest, batches: Any) -> bool:
        """Train on a fetched piece and say so; False when there is no going on."""
        lease = Lease(request.epoch, request.piece)
        if self._desk.leaving:
            self._desk.send(GivenBack(lease))
            return True
        outcome = self._train(request, batches)
        if isinstance(outcome, Diverged):
            self._desk.send(outcome)
            return False
        self._desk.send(PieceDone(lease, len(request.indices), outcome))
        return True

    def _train(self, request: PieceRequest, batches: Any) -> float | Diverged:
        """Train on a piece, handing over every few batches; its mean loss."""
        job, size = self._job, self._job.batch_size
        samples = len(request.indices)
        count, total = -(-samples // size), 0.0
        stride = min(self._tools.push_every, count)
        for offset in range(0, count, stride):
            number = first_batch(job, request.piece) + offset
            part = part_of(batches, offset * size, (offset + stride) * size, whole=stride == count)
            first_step = request.epoch * job.batches_per_epoch + number
            rates = job.rates(first_step, min(stride, count - offset))
            # Counted from this worker's own first step: its states began with it.
            losses = self._step.train(part, size, rates, self._steps + 1)
            if not math.isfinite(losses[-1]):
                return Diverged(request.epoch, number + len(losses) - 1, float(losses[-1]))
            self._steps += len(losses)
            self._hand_over(rates)
            done = min((offset + stride) * size, samples) - offset * size
            total += float(losses.mean()) * done
        return total / samples

    def _hand_over(self, rates: npt.NDArray[np.float64]) -> None:
        """Add what these steps gave to what is sent; pushed weights are sent as they are."""
        outbox, clock = self._tools.outbox, self._tools.clock
        if isinstance(outbox, GradientOutbox):
            if self._capture is not None:
                outbox.add_factors(self._capture.take())
            if self._accumulated is not None:
                outbox.add(self._accumulated)
        clock.advance(rates)
        if isinstance(outbox, GradientOutbox):
            outbox.wait_for_room(clock)

    # --- how a step is made

    def _make_step(self) -> Step:
        tools, job = self._tools, self._job
        rule, states, take_rows = self._local_rule()
        if tools.fast_path is not None:
            return self._fast_step(tools.fast_path, rule, states, take_rows)
        arrange = channels_last if tools.channels_last else as_it_is
        autograd = AutogradStep(
            self._model, job.step, rule, states, arrange=arrange, take_rows=take_rows
        )
        if tools.plan is None:
            return autograd
        plan = native_plan.build(
            tools.plan,
            self._model,
            rule,
            states,
            max_batch=job.batch_size,
            seed=job.worker_seed(self._number),
            factors=self._factors,
        )
        if self._capture is None:
            return PlanStep(plan, autograd)
        shapes = {name: p.shape for name, p in self._model.named_parameters()}
        factored = native_plan.factored(tools.plan, self._model, self._factors)
        return PlanStep(
            plan,
            autograd,
            factored={name: shapes[name] for name in factored},
            take_factors=self._capture.put,
        )

    def _fast_step(
        self, path: FastPath, rule: Rule, states: States, take_rows: RowsTaker | None
    ) -> Step:
        threads = self._tools.threads
        layer = self._model.get_submodule(path.output)
        assert isinstance(layer, LSHLinear)
        layer.threads = layer.threads or threads
        trainer = FastTrainer(
            path,
            self._model,
            rule,
            states,
            max_batch=self._job.batch_size,
            threads=threads,
            collect=take_rows is not None,
        )
        return SparseStep(trainer, take_rows=take_rows)

    def _local_rule(self) -> tuple[Rule, States, RowsTaker | None]:
        """The rule that moves the local weights, its states, and who takes sparse gradients."""
        if isinstance(self._tools.outbox, GradientOutbox):
            return self._accumulating(self._tools.outbox)
        rule = self._job.rule
        states = {
            name: [torch.full_like(p.data, rule.state_start(state)) for state in rule.states]
            for name, p in trainable(self._model).items()
        }
        return rule, states, None

    def _accumulating(self, outbox: GradientOutbox) -> tuple[Rule, States, RowsTaker]:
        forms = {spec.name: spec.form for spec in self._tools.shard_map.parameters}
        line = torch.zeros(self._tools.layout.floats)
        sums = self._tools.layout.views(line)
        self._accumulated = line.numpy()
        self._factors = [name for name, form in forms.items() if form is Form.FACTORS]
        if self._factors:
            self._capture = FactorCapture(self._model, self._factors)

        def take_rows(name: str, rows: torch.Tensor, values: torch.Tensor) -> None:
            if forms[name] is Form.ROWS:
                outbox.add_rows(name, rows, values)
            else:
                sums[name].index_add_(0, rows, values)

        rule = Accumulate(lr=self._job.rule.lr, clip_norm=self._job.rule.clip_norm)
        return rule, {name: [view] for name, view in sums.items()}, take_rows
