"""The driver's side of a Downpour run: opens epochs, takes snapshots, tells how it goes.

What can be asked for is in `downpour.py`, with a picture of the whole; this is steps 1, 3, 6 and 7
of it (Adam, section 3.2.5).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from manyhands.data.source import epoch_order
from manyhands.errors import ServerUnavailable, TrainingDiverged
from manyhands.optim.rules import SGD, Adagrad, Rule
from manyhands.parameter_server.forms import FormChoice
from manyhands.parameter_server.server import ServerSettings
from manyhands.parameter_server.shard_map import Form, ParameterSpec, make_shard_map
from manyhands.replica.layout import likes_channels_last
from manyhands.replica.plan import PlanDescription
from manyhands.replica.pool import usable_cores
from manyhands.replica.shared_weights import trainable
from manyhands.strategies import update_forms
from manyhands.strategies.cluster import Cluster, ClusterPlan
from manyhands.strategies.cluster_report import ClusterReport
from manyhands.strategies.coordinator import Coordinator
from manyhands.strategies.divergence import diverged
from manyhands.strategies.downpour_replica import ReplicaSettings
from manyhands.strategies.leases import LeaseDesk
from manyhands.strategies.native_form import counted, form_in_words, planned
from manyhands.strategies.notices import Notices
from manyhands.strategies.pieces import piece_samples, pieces_per_epoch
from manyhands.strategies.replica_crew import DivergedReplica, ReplicaCrew
from manyhands.strategies.server_crew import ServerCrew
from manyhands.strategies.snapshots import MovingAverage, Snapshots
from manyhands.strategies.strategy import (
    EpochSummary,
    Session,
    TrainingJob,
    checked_state,
)
from manyhands.telemetry.events import Note, Progress
from manyhands.transport.endpoint import is_loopback

if TYPE_CHECKING:
    from manyhands.strategies.downpour import Downpour

_LOOK_EVERY_S = 0.2
_REPORT_EVERY_S = 1.0
_FLUSH_WITHIN_S = 60.0
_LAST_WORDS_WITHIN_S = 2.0  # of an epoch that is over; what comes later counts all the same
_EXPLAIN_WITHIN_S = 2.0
_MUCH_SMALLER = 8  # gradients are pushed where they are so many times smaller


class DownpourSession(Session):
    """The driver's side of a run: opens epochs, takes snapshots, tells how it goes."""

    def __init__(self, job: TrainingJob, strategy: Downpour) -> None:
        self._whole = job
        self._strategy = strategy
        self._job = _shared_out(job, strategy)
        self._push, self._choices = self._choose()
        self._server_rule = self._rule_of_servers()
        plan, reason = self._plan_or_reason()
        self._cluster = Cluster(self._job, self._cluster_plan(plan))
        self._notices = Notices()
        self._desk = self._make_desk()
        self._crew = ReplicaCrew(self._desk, self._cluster.start_replica, self._notices)
        self._servers = ServerCrew(self._cluster, self._notices)
        self._coordinator = Coordinator(self._notices, [self._crew, self._servers])
        self._report = ClusterReport(
            self._crew, self._servers, every_s=_REPORT_EVERY_S, lanes=self._lanes
        )
        self._average: MovingAverage | None = None
        self._averaged: dict[str, torch.Tensor] | None = None
        self._steps_before = 0
        self._opened: dict[int, float] = {}
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        self._tell(reason)

    # --- an epoch

    def train_epoch(self, epoch: int) -> EpochSummary:
        self._begin()
        self._open(epoch)
        while not self._crew.is_over(epoch):
            with self._notices.changed:
                self._notices.changed.wait(_LOOK_EVERY_S)
            self._look(epoch)
        seconds = self._seconds(epoch)
        if epoch + 1 < self._job.epochs:
            self._open(epoch + 1)  # replicas go on while this one is validated
            self._crew.flush(_LAST_WORDS_WITHIN_S)
        elif not self._crew.flush(_FLUSH_WITHIN_S):
            late = "Some replicas did not push all they trained in time; the weights lack that."
            self._job.emit(Note(message=late, warning=True))
        self._look(epoch)
        self._take_snapshot()
        return self._summary(epoch, seconds)

    def _begin(self) -> None:
        """Start the replicas, with the first epoch."""
        if not self._coordinator.is_alive():
            if self._average is not None:
                self._average.start()
            self._coordinator.start()
            self._crew.add(self._strategy.replicas)

    def _open(self, epoch: int) -> None:
        self._opened.setdefault(epoch, time.monotonic())
        self._crew.open(epoch)

    def _look(self, epoch: int) -> None:
        """Raise what ends the run, and tell what happened."""
        try:
            self._notices.check()
        except DivergedReplica as error:
            raise self._divergence(error) from None
        for event in self._notices.take():
            self._job.emit(event)
        self._show(epoch)

    def _seconds(self, epoch: int) -> float:
        """How long an epoch has been open to a replica that could train on it."""
        now = time.monotonic()
        return max(now - max(self._opened[epoch], self._crew.began or now), 1e-9)

    def _take_snapshot(self) -> None:
        with self._explained():
            self._snapshots.into(self._job.model)
        buffers = dict(self._job.model.named_buffers())
        with torch.no_grad():
            for name, tensor in self._crew.buffers().items():
                if name in buffers:  # one that forward makes up has no place here
                    buffers[name].data = tensor.clone()
        if self._average is not None:
            with self._explained():
                self._average.catch_up()
            views = self._layout.views(self._average.line)
            self._averaged = {name: view.clone().contiguous() for name, view in views.items()}

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What the driver asks of a server that is gone fails; the coordinator hears why."""
        try:
            yield
        except ServerUnavailable:
            notices = self._notices
            with notices.changed:
                notices.changed.wait_for(lambda: notices.has_failed, _EXPLAIN_WITHIN_S)
            notices.check()
            raise

    # --- what a checkpoint holds

    def averaged(self) -> dict[str, torch.Tensor] | None:
        return self._averaged

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        with self._explained():
            states = self._snapshots.states(len(self._server_rule.states))
        return {
            f"{name}.{state}": self._layout.view(torch.from_numpy(line), name).contiguous()
            for state, line in zip(self._server_rule.states, states, strict=True)
            for name in self._layout.names
        }

    def load(
        self,
        optimizer: dict[str, torch.Tensor],
        averaged: dict[str, torch.Tensor] | None,
        step: int,
    ) -> None:
        checked_state(self.optimizer_state(), optimizer, "optimizer state")
        lines = []
        for state in self._server_rule.states:
            line = torch.zeros(self._layout.floats)
            named = {name: optimizer[f"{name}.{state}"] for name in self._layout.names}
            self._layout.write(named, line)
            lines.append(line.numpy())
        self._snapshots.set_states(lines)
        if step:
            self._desk.skip_warm_start()
        self._steps_before = step * self._job.batches_per_epoch // self._whole.batches_per_epoch
        if self._average is not None:
            checked_state(self._averaged or {}, averaged or {}, "average")
            line = torch.zeros(self._layout.floats)
            self._layout.write(averaged or {}, line)
            self._average.restart(line)
            self._averaged = averaged

    # --- at the request of a person

    def command(self, request: dict[str, Any]) -> dict[str, Any]:
        """Show, add or remove replicas while the run goes on."""
        if not self._coordinator.is_alive():
            return {"ok": False, "message": "The run has not begun to train yet."}
        name, count = request.get("command"), request.get("count", 0)
        if name not in ("replicas", "add", "remove"):
            return {"ok": False, "message": f"No command is called {name!r}."}
        if name != "replicas" and (not isinstance(count, int) or not 1 <= count <= 64):
            return {"ok": False, "message": f"count is {count!r}; expected 1 to 64."}
        message = ""
        if name == "add":
            self._crew.add(count)
            message = f"{counted(count, 'replica')} will join."
        elif name == "remove":
            gone = self._crew.remove(count)
            message = f"{counted(len(gone), 'replica')} will leave; one always stays."
        return {"ok": True, "message": message, "replicas": self._replica_table()}

    def _replica_table(self) -> list[dict[str, Any]]:
        return [
            {
                "replica": place.number,
                "pid": place.role.pid,
                "samples_per_s": place.samples_per_s,
            }
            for place in self._crew.places
        ]

    # --- set-up and end

    def close(self) -> None:
        with ExitStack() as ending:  # each in turn, whatever another Ctrl-C interrupts
            ending.callback(self._cluster.close)
            ending.callback(self._crew.close)
            ending.callback(self._coordinator.close)
            if self._average is not None:
                ending.callback(self._average.close)

    def _set_up(self) -> None:
        line = self._cluster.start()
        assert self._cluster.client is not None
        self._layout = self._cluster.layout
        self._snapshots = Snapshots(self._cluster.client, self._layout)
        if self._job.ema is not None:
            self._average = MovingAverage(
                self._job.ema, self._snapshots, line, self._steps, self._notices.fail
            )
            self._averaged = {n: v.clone() for n, v in self._layout.views(line).items()}

    def _make_desk(self) -> LeaseDesk:
        job, strategy = self._job, self._strategy
        pieces = pieces_per_epoch(job)
        pushes_per_piece = max(1, piece_samples(job) // job.batch_size // strategy.push_every)
        bound = strategy.max_staleness // pushes_per_piece
        return LeaseDesk(
            pieces,
            share=strategy.epoch_share,
            warm_pieces=math.ceil(strategy.warm_start * pieces),
            bound=bound if strategy.staleness == "bound" else None,
        )

    def _cluster_plan(self, plan: PlanDescription | None) -> ClusterPlan:
        job, strategy = self._whole, self._strategy
        specs = [
            ParameterSpec(name, tuple(p.shape), self._choices[name].form)
            for name, p in trainable(job.model).items()
        ]
        return ClusterPlan(
            shard_map=make_shard_map(specs, servers=strategy.servers, lanes=self._lanes),
            rule=self._server_rule,
            settings=ServerSettings(
                host=strategy.host,
                refuse_nonfinite=strategy.refuse_nonfinite,
                staleness="scale" if strategy.staleness == "scale" else "ignore",
            ),
            plan=plan,
            channels_last=plan is None and likes_channels_last(job.model, job.step, job.sample),
            same_machine=self._same_machine,
            replica=ReplicaSettings(
                workers=strategy.workers_per_replica,
                push_every=strategy.push_every,
                fetch_every=strategy.fetch_every,
                sends_weights=self._push == "weights",
                weight_rate=self._server_rule.lr,
                compress=strategy.compress,
                keep=strategy.keep,
            ),
            prefixes=strategy.prefixes,
        )

    @property
    def _lanes(self) -> int:
        return self._strategy.lanes or max(1, usable_cores() // self._strategy.servers)

    @property
    def _same_machine(self) -> bool:
        return self._strategy.transport == "auto" and is_loopback(self._strategy.host)

    def _rule_of_servers(self) -> Rule:
        """The optimizer, or what is done with moved weights: the outer rule, or their sum."""
        if self._push == "gradients":
            return self._job.rule
        return self._strategy.outer or SGD(lr=1.0)

    def _plan_or_reason(self) -> tuple[PlanDescription | None, str]:
        if any(choice.form is Form.FACTORS for choice in self._choices.values()):
            return None, "which gives the factors of linear layers"
        return planned(self._whole)

    def _choose(self) -> tuple[str, dict[str, FormChoice]]:
        """What is pushed, and the form of each parameter's updates."""
        strategy, how = self._strategy, {"compress": self._strategy.compress}
        deltas = update_forms.all_deltas(self._job, keep=strategy.keep, **how)
        if strategy.push == "weights" or strategy.outer is not None:
            return "weights", deltas
        forms = update_forms.choose_forms(
            self._job,
            batches=strategy.push_every,
            keep=strategy.keep,
            wanted=strategy.forms or {},
            **how,
        )
        smaller = update_forms.total_bytes(forms) * _MUCH_SMALLER <= update_forms.total_bytes(
            deltas
        )
        asked = strategy.push == "gradients" or strategy.forms
        if asked or smaller or isinstance(self._job.rule, Adagrad):
            return "gradients", forms
        return "weights", deltas

    # --- telling

    def _tell(self, reason: str) -> None:
        strategy = self._strategy
        where = "shared memory" if self._same_machine else "TCP"
        secured = " with TLS" if self._cluster.is_secured else ""
        self._job.emit(
            Note(
                message=f"Downpour: {counted(strategy.replicas, 'replica')} of "
                f"{counted(strategy.workers_per_replica, 'worker')}, "
                f"{counted(strategy.servers, 'server')} over {where}{secured}, "
                f"pushing {self._push}, "
                f"{form_in_words(reason)}"
            )
        )
        for message in update_forms.in_words(self._choices):
            self._job.emit(Note(message=message))

    def _show(self, epoch: int) -> None:
        job, account = self._job, self._crew.account(epoch)
        if not account.samples:
            return
        seconds = self._seconds(epoch)
        step = epoch * job.batches_per_epoch + account.samples // job.batch_size
        job.emit(
            Progress(
                epoch=epoch,
                samples_done=min(account.samples, job.samples_per_epoch),
                samples_total=job.samples_per_epoch,
                samples_per_s=account.samples / seconds,
                loss=account.loss,
                lr=self._rate(step),
            )
        )
        if self._report.is_due:
            seen = epoch * job.samples_per_epoch + account.samples
            job.emit(self._report.take(epoch, seen))

    def _summary(self, epoch: int, seconds: float) -> EpochSummary:
        account = self._crew.account(epoch)
        step = (epoch + 1) * self._job.batches_per_epoch
        return EpochSummary(
            samples=account.samples,
            seconds=seconds,
            loss=account.loss,
            step=(epoch + 1) * self._whole.batches_per_epoch,
            lr=self._rate(step - 1),
        )

    def _rate(self, step: int) -> float:
        """The rate of a step as the user counts it, for a whole batch."""
        scale = self._job.rule.lr / self._whole.rule.lr if self._whole.rule.lr else 1.0
        return float(self._job.rates(step, 1)[0]) / scale

    def _steps(self) -> int:
        """Steps of all replicas, those before a resume included."""
        return self._steps_before + self._crew.samples // self._job.batch_size

    def _divergence(self, error: DivergedReplica) -> TrainingDiverged:
        job, message, size = self._job, error.message, self._job.batch_size
        order = epoch_order(
            len(job.source), epoch=message.epoch, seed=job.seed, shuffle=job.shuffle
        )
        indices = order[message.batch * size : (message.batch + 1) * size].tolist()
        whole = message.batch * size // self._whole.batch_size  # the batch as the user counts them
        step = message.epoch * self._whole.batches_per_epoch + whole
        return diverged(message.epoch, whole, step, message.loss, indices)


def _shared_out(job: TrainingJob, strategy: Downpour) -> TrainingJob:
    """The job in steps of one worker's share of a batch.

    An outer rule averages what replicas did, so each of them takes whole batches for itself.
    """
    if not strategy.share_batch:
        return job
    sharing = strategy.workers_per_replica * (1 if strategy.outer else strategy.replicas)
    return job.shared_out(sharing)
