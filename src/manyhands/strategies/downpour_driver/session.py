"""The driver's side of a Downpour run: opens epochs, takes snapshots, tells how it goes.

What can be asked for is in `downpour.py`, with a picture of the whole; this is steps 1, 3, 6 and 7
of it (Adam, section 3.2.5). Who dies is replaced by the crews (`replica_crew.py`,
`server_crew.py`, `controller_keeper.py`), beside this.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from manyhands.data.source import epoch_order
from manyhands.errors import ServerUnavailable, TrainingDiverged
from manyhands.optim.rules import Rule
from manyhands.parameter_server.store.restoring import StoredModel
from manyhands.strategies import update_counts
from manyhands.strategies.divergence import diverged
from manyhands.strategies.downpour_driver.cluster import Cluster
from manyhands.strategies.downpour_driver.cluster_files import ClusterFiles
from manyhands.strategies.downpour_driver.cluster_report import ClusterReport
from manyhands.strategies.downpour_driver.commands import DownpourCommands
from manyhands.strategies.downpour_driver.controller_keeper import ControllerKeeper
from manyhands.strategies.downpour_driver.coordinator import Coordinator
from manyhands.strategies.downpour_driver.notices import Notices
from manyhands.strategies.downpour_driver.placement_story import PlacementStory
from manyhands.strategies.downpour_driver.plan import DownpourPlan
from manyhands.strategies.downpour_driver.replica_buffers import statistics_of
from manyhands.strategies.downpour_driver.replica_crew import DivergedReplica, ReplicaCrew
from manyhands.strategies.downpour_driver.server_crew import ServerCrew
from manyhands.strategies.downpour_driver.snapshots import MovingAverage, Snapshots
from manyhands.strategies.downpour_driver.victims import DownpourVictims
from manyhands.strategies.downpour_replica.exchange import Line
from manyhands.strategies.faults.injection import FaultInjector
from manyhands.strategies.strategy import (
    EpochSummary,
    Session,
    TrainingJob,
    checked_state,
)
from manyhands.telemetry.events import Note, Progress

if TYPE_CHECKING:
    from manyhands.strategies.downpour import Downpour

_LOOK_EVERY_S = 0.2
_REPORT_EVERY_S = 1.0
_FLUSH_WITHIN_S = 60.0
_LAST_WORDS_WITHIN_S = 2.0  # of an epoch that is over; what comes later counts all the same
_EXPLAIN_WITHIN_S = 2.0


class DownpourSession(Session):
    """The driver's side of a run: opens epochs, takes snapshots, tells how it goes."""

    def __init__(self, job: TrainingJob, strategy: Downpour) -> None:
        self._whole = job
        self._strategy = strategy
        self._plan = DownpourPlan(job, strategy)
        self._job = self._plan.job
        self._files = ClusterFiles(self._plan)
        self._ending = ExitStack()  # each in turn, the last first, whatever a Ctrl-C interrupts
        self._average: MovingAverage | None = None
        self._averaged: dict[str, torch.Tensor] | None = None
        self._has_begun = False
        self._steps_before = 0
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        for sentence in self._plan.in_words(secured=self._cluster.is_secured):
            self._job.emit(Note(message=sentence))

    # --- an epoch

    def train_epoch(self, epoch: int) -> EpochSummary:
        self._begin()
        is_last = epoch + 1 == self._job.epochs
        self._crew.open(epoch)
        if not is_last:
            self._crew.open(epoch + 1)  # for who finds nothing left of this one
        while not self._crew.is_over(epoch):
            self._wait(epoch)
        seconds = self._seconds(epoch)
        if not is_last:
            self._flush(epoch, _LAST_WORDS_WITHIN_S)
        elif not self._flush(epoch, _FLUSH_WITHIN_S):
            late = "Some replicas did not push all they trained in time; the weights lack that."
            self._job.emit(Note(message=late, warning=True))
        self._look(epoch)
        self._take_snapshot()
        return self._summary(epoch, seconds)

    def _begin(self) -> None:
        """Start the replicas, with the first epoch."""
        if not self._has_begun:
            self._has_begun = True
            if self._average is not None:
                self._average.start()
            self._crew.add(self._strategy.replicas)
            self._begin_faults()

    def _flush(self, epoch: int, timeout_s: float) -> bool:
        """Have replicas push what they trained; False when the time was too short for one."""
        deadline = time.monotonic() + timeout_s
        is_done = self._crew.ask_to_flush()
        while not (done := is_done()) and time.monotonic() < deadline:
            self._wait(epoch)
        return done

    def _wait(self, epoch: int) -> None:
        """Wait for something to change, then look."""
        with self._notices.changed:
            self._notices.changed.wait(_LOOK_EVERY_S)
        self._look(epoch)

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
        """How long ago the first piece of an epoch was given out."""
        began = self._crew.account(epoch).began
        return 1e-9 if began is None else max(time.monotonic() - began, 1e-9)

    def _take_snapshot(self) -> None:
        with self._explained():
            self._snapshots.into(self._job.model)
        buffers = dict(self._job.model.named_buffers())
        with torch.no_grad():
            for name, tensor in self._crew.buffers(statistics_of(self._job.model)).items():
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
        updates = np.zeros(len(self._plan.shard_map.chunks), np.int64)
        with self._explained():
            states = self._snapshots.states(len(self._rule.states), updates)
        tensors = {
            f"{name}.{state}": self._layout.view(torch.from_numpy(line), name).contiguous()
            for state, line in zip(self._rule.states, states, strict=True)
            for name in self._layout.names
        }
        return tensors | (update_counts.tensors(self._plan.shard_map, updates) if tensors else {})

    def load(
        self,
        optimizer: dict[str, torch.Tensor],
        averaged: dict[str, torch.Tensor] | None,
        step: int,
    ) -> None:
        checked_state(self.optimizer_state(), optimizer, "optimizer state")
        self._steps_before = step * self._job.batches_per_epoch // self._whole.batches_per_epoch
        if self._stored is None:
            lines = [self._line_of(optimizer, state) for state in self._rule.states]
            updates = update_counts.by_chunk(self._plan.shard_map, optimizer)
            self._snapshots.set_states(lines, updates)
        else:
            self._go_on_from(self._stored)
        if step:
            self._desk.skip_warm_start()
        if self._average is not None:
            checked_state(self._averaged or {}, averaged or {}, "average")
            line = torch.zeros(self._layout.floats)
            self._layout.write(averaged or {}, line)
            self._average.restart(line)
            self._averaged = averaged

    def _line_of(self, optimizer: dict[str, torch.Tensor], state: str) -> Line:
        line = torch.zeros(self._layout.floats)
        named = {name: optimizer[f"{name}.{state}"] for name in self._layout.names}
        self._layout.write(named, line)
        return line.numpy()

    def _go_on_from(self, stored: StoredModel) -> None:
        """Take the optimizer's state from the store too, as the weights were, and say so."""
        self._snapshots.set_states(stored.states[: len(self._rule.states)], stored.begun)
        newer_s = stored.written_at - (self._job.resumed_at or 0.0)
        message = (
            f"Going on from what the parameter servers wrote back {newer_s:,.1f} s after the last "
            "checkpoint; the epoch that was under way begins again."
        )
        self._job.emit(Note(message=message))

    @property
    def _rule(self) -> Rule:
        """The rule that servers apply."""
        return self._plan.server_rule

    # --- at the request of a person

    def command(self, request: dict[str, Any]) -> dict[str, Any]:
        """Show, add or remove replicas and servers while the run goes on."""
        if not self._has_begun:
            return {"ok": False, "message": "The run has not begun to train yet."}
        return self._commands.answer(request)

    # --- set-up and end

    def close(self) -> None:
        self._ending.close()

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        if exc_info[0] is None:  # complete, and so is its checkpoint
            self._files.discard_store()

    def _set_up(self) -> None:
        ending = self._ending
        ending.callback(self._files.close)
        self._stored, trouble = self._files.read_store()
        if trouble:
            self._job.emit(Note(message=trouble, warning=True))
        self._cluster = Cluster(self._plan, self._files)
        ending.callback(self._cluster.close)
        self._layout = self._cluster.layout
        self._make_crews()
        self._controller.start()
        self._servers.start(self._strategy.servers)
        self._coordinator.start()
        self._cluster.place_data()  # while they start
        self._controller.await_serving()
        self._servers.await_serving()
        self._connect()
        self._follow_placements()

    def _make_crews(self) -> None:
        cluster, ending = self._cluster, self._ending
        self._notices = notices = Notices()
        self._controller = ControllerKeeper(cluster.start_controller, cluster.caller(), notices)
        self._servers = ServerCrew(cluster.start_server, self._controller, notices, cluster.hang_up)
        self._desk = self._plan.make_desk()
        self._crew = ReplicaCrew(self._desk, cluster.start_replica, notices)
        crews = (self._controller, self._servers, self._crew)
        for crew in crews:
            ending.callback(crew.close)
        self._coordinator = Coordinator(notices, crews)
        ending.callback(self._coordinator.close)
        self._commands = DownpourCommands(self._crew, self._servers, self._controller)
        self._report = ClusterReport(
            self._crew, self._servers, every_s=_REPORT_EVERY_S, lanes=self._plan.lanes
        )

    def _connect(self) -> None:
        """Connect to the servers and give them the weights, the model's or those stored."""
        client, self._routes = self._cluster.connect()
        self._snapshots = Snapshots(client, self._layout)
        line = self._cluster.line_of_model()
        if self._stored is not None:
            line = self._stored.weights
        client.set_weights(line)
        if self._stored is not None:
            self._snapshots.into(self._job.model)
        if self._job.ema is not None:
            start = torch.from_numpy(line)
            self._average = MovingAverage(
                self._job.ema, self._snapshots, start, self._steps, self._notices.fail
            )
            self._ending.callback(self._average.close)
            self._ending.callback(self._cluster.hang_up)  # it must not wait for a server then
            self._averaged = {n: v.clone() for n, v in self._layout.views(start).items()}

    def _follow_placements(self) -> None:
        self._story = PlacementStory(self._plan.copies, self._strategy.write_back_s or 0.0)
        self._routes.listen(lambda table: self._note_placement())
        self._note_placement()

    def _note_placement(self) -> None:
        """Tell what changed; in the thread of the routes."""
        placement = self._routes.placement
        assert placement is not None
        with self._notices.changed:
            for event in self._story.go_on(placement, time.monotonic()):
                self._notices.tell(event)
            self._servers.note(placement)

    def _begin_faults(self) -> None:
        if self._strategy.faults:
            victims = DownpourVictims(
                self._crew,
                self._servers,
                self._controller,
                placement=lambda: self._routes.placement,
                chunks=len(self._plan.shard_map.chunks),
            )
            injector = FaultInjector(self._strategy.faults, victims, self._notices.tell)
            self._ending.callback(injector.close)
            injector.start()

    # --- telling

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
