"""What a Downpour run is made of, worked out before anything starts: forms, rules, roles.

Pure but for looking at the model: a job and a strategy go in, plain data comes out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands import kernels
from manyhands.optim.rules import SGD, Adagrad, Rule
from manyhands.parameter_server.forms import FormChoice
from manyhands.parameter_server.server import ServerSettings
from manyhands.parameter_server.shard_map import Form, ParameterSpec, ShardMap, make_shard_map
from manyhands.replica.layout import likes_channels_last
from manyhands.replica.plan import PlanDescription
from manyhands.replica.pool import usable_cores
from manyhands.replica.shared_weights import trainable
from manyhands.sparse.fast_path import FastPath
from manyhands.sparse.lsh_linear import LSHLinear
from manyhands.strategies.downpour_driver import update_forms
from manyhands.strategies.downpour_replica.replica import ReplicaSettings
from manyhands.strategies.leases import LeaseDesk
from manyhands.strategies.native_form import counted, fast_path, form_in_words, planned
from manyhands.strategies.pieces import piece_samples, pieces_per_epoch
from manyhands.strategies.strategy import TrainingJob
from manyhands.transport.endpoint import is_loopback

if TYPE_CHECKING:
    from manyhands.strategies.downpour import Downpour

_FAST_PIECE_SAMPLES = 1024  # the fast path trains a piece of the usual size in a moment
_MUCH_SMALLER = 8  # gradients are pushed where they are so many times smaller


class DownpourPlan:
    """The decisions of one run. Immutable after construction."""

    def __init__(self, whole: TrainingJob, strategy: Downpour) -> None:
        self.strategy = strategy
        self.fast_path, self._no_fast_path = _fast_path(whole, strategy)
        # Of the fast path of sparse layers, one worker whose threads share a batch.
        self.workers = 1 if self.fast_path else strategy.workers_per_replica
        self.threads = strategy.workers_per_replica if self.fast_path else 1
        self.job = _shared_out(whole, strategy, self.workers)
        if self.fast_path:
            self.job = replace(self.job, piece_samples=_FAST_PIECE_SAMPLES)
        self._whole = whole
        self.push, self.choices = self._choose()
        self.server_rule = self._rule_of_servers()
        self.native, self._reason = self._native_or_reason()
        self.channels_last = self.native is None and likes_channels_last(
            whole.model, whole.step, whole.sample
        )
        self.shard_map = self._make_shard_map()

    @property
    def lanes(self) -> int:
        return self.strategy.lanes or max(1, usable_cores() // self.strategy.servers)

    @property
    def copies(self) -> int:
        """How many servers hold each bucket."""
        return self.strategy.copies or min(3, self.strategy.servers)

    @property
    def same_machine(self) -> bool:
        """Whether replicas and servers share memory."""
        return self.strategy.transport == "auto" and is_loopback(self.strategy.host)

    @property
    def server_settings(self) -> ServerSettings:
        strategy = self.strategy
        return ServerSettings(
            host=strategy.host,
            replication_host=strategy.replication_host,
            admin_host=strategy.admin_host,
            refuse_nonfinite=strategy.refuse_nonfinite,
            staleness="scale" if strategy.staleness == "scale" else "ignore",
        )

    @property
    def replica_settings(self) -> ReplicaSettings:
        strategy = self.strategy
        return ReplicaSettings(
            workers=self.workers,
            threads=self.threads,
            push_every=strategy.push_every,
            fetch_every=strategy.fetch_every,
            sends_weights=self.push == "weights",
            weight_rate=self.server_rule.lr,
            compress=strategy.compress,
            keep=strategy.keep,
        )

    def make_desk(self) -> LeaseDesk:
        """A desk that hands out the pieces of this job."""
        job, strategy = self.job, self.strategy
        pieces = pieces_per_epoch(job)
        pushes_per_piece = max(1, piece_samples(job) // job.batch_size // strategy.push_every)
        bound = strategy.max_staleness // pushes_per_piece
        return LeaseDesk(
            pieces,
            share=strategy.epoch_share,
            warm_pieces=math.ceil(strategy.warm_start * pieces),
            bound=bound if strategy.staleness == "bound" else None,
        )

    def in_words(self, *, secured: bool) -> list[str]:
        """The decisions as a person should hear them."""
        strategy = self.strategy
        where = "shared memory" if self.same_machine else "TCP"
        copies = f" with {self.copies} copies of the weights" if self.copies > 1 else ""
        return [
            f"Downpour: {counted(strategy.replicas, 'replica')} of "
            f"{counted(strategy.workers_per_replica, 'thread' if self.fast_path else 'worker')}, "
            f"{counted(strategy.servers, 'server')}{copies} over {where}"
            f"{' with TLS' if secured else ''}, "
            f"pushing {self.push}, {self._form_in_words()}",
            *update_forms.in_words(self.choices),
        ]

    def _form_in_words(self) -> str:
        if self.fast_path:
            return f"native sparse layers ({kernels.simd()})"
        return form_in_words(self._no_fast_path or self._reason)

    def _make_shard_map(self) -> ShardMap:
        specs = [
            ParameterSpec(name, tuple(p.shape), self.choices[name].form)
            for name, p in trainable(self._whole.model).items()
        ]
        return make_shard_map(specs, servers=self.strategy.servers, lanes=self.lanes)

    def _rule_of_servers(self) -> Rule:
        """The optimizer, or what is done with moved weights: the outer rule, or their sum."""
        if self.push == "gradients":
            return self.job.rule
        return self.strategy.outer or SGD(lr=1.0)

    def _native_or_reason(self) -> tuple[PlanDescription | None, str]:
        if self.fast_path:
            return None, "which has a path of its own for sparse layers"
        return planned(self._whole)

    def _choose(self) -> tuple[str, dict[str, FormChoice]]:
        """What is pushed, and the form of each parameter's updates."""
        strategy, how = self.strategy, {"compress": self.strategy.compress}
        deltas = update_forms.all_deltas(self.job, keep=strategy.keep, **how)
        if strategy.push == "weights" or strategy.outer is not None:
            return "weights", deltas
        forms = update_forms.choose_forms(
            self.job,
            batches=strategy.push_every,
            keep=strategy.keep,
            wanted=strategy.forms or {},
            factors=self.fast_path is None,
            **how,
        )
        smaller = update_forms.total_bytes(forms) * _MUCH_SMALLER <= update_forms.total_bytes(
            deltas
        )
        asked = strategy.push == "gradients" or strategy.forms
        # Moved weights are dense, and so would be every copy of them.
        sparse = any(choice.form is Form.ROWS for choice in forms.values())
        if asked or smaller or sparse or isinstance(self.job.rule, Adagrad):
            return "gradients", forms
        return "weights", deltas


def _fast_path(job: TrainingJob, strategy: Downpour) -> tuple[FastPath | None, str]:
    """The fast path of a net with a wide sparse layer, where it gives what is to be pushed."""
    path, reason = fast_path(job.model, job.step, job.rule, job.sample)
    if path is None or strategy.push == "weights" or strategy.outer is not None:
        return path, reason
    if "factors" in (strategy.forms or {}).values():
        return None, "which gives the factors of linear layers"
    layer = job.model.get_submodule(path.output)
    if isinstance(layer, LSHLinear) and layer.share != "batch":
        return None, "gradients of a sample by itself are not kept"
    return path, ""


def _shared_out(job: TrainingJob, strategy: Downpour, workers: int) -> TrainingJob:
    """The job in steps of one worker's share of a batch.

    An outer rule averages what replicas did, so each of them takes whole batches for itself.
    """
    if not strategy.share_batch:
        return job
    sharing = workers * (1 if strategy.outer else strategy.replicas)
    return job.shared_out(sharing)
