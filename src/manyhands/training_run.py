"""One run under way: epoch by epoch, train, validate, record, save.

Owns the order of things and the checkpoint's contents; how training is done is the session's
affair, where things are written the run directory's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from manyhands.callbacks import Callback, EarlyStopping, RunView
from manyhands.config import parameter_count
from manyhands.data.source import Source
from manyhands.errors import (
    CheckpointError,
    ConfigError,
    ManyhandsError,
    WorkerError,
    in_a_sentence,
)
from manyhands.evaluation import evaluate, weights_of
from manyhands.metrics import RESERVED, MetricChoice
from manyhands.run import checkpoint as checkpoints
from manyhands.run.checkpoint import Checkpoint, Restored
from manyhands.run.config_file import write_config
from manyhands.run.directory import RunDirectory
from manyhands.run.weights import load_weights, save_weights
from manyhands.strategies.strategy import EpochSummary, Session, Strategy, TrainingJob
from manyhands.telemetry.events import CheckpointWritten, EpochEnded, Note, RunEnded, RunStarted
from manyhands.transport.control import ControlServer

_BEST = "best.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class Watching:
    """What is done with the weights besides training them."""

    validation: Source | None
    metrics: Sequence[MetricChoice]
    callbacks: Sequence[Callback]
    early_stopping: EarlyStopping | None
    checkpoint_every: int


class TrainingRun:
    """Runs a job to its end. Use once; the session is the caller's to close."""

    def __init__(
        self, job: TrainingJob, strategy: Strategy, directory: RunDirectory, watching: Watching
    ) -> None:
        self._job = job
        self._strategy = strategy
        self._directory = directory
        self._watching = watching
        self._started = time.monotonic()
        self._epochs_done = 0
        self._last_step = 0
        self.history: list[dict[str, float]] = []
        self.reason = "finished"

    def run(self, session: Session, restored: Restored | None, config: dict[str, Any]) -> None:
        """Train every epoch that is left, then leave the final weights in the job's model.

        `config` is written once a checkpoint to go on from has been found to fit.
        """
        if self._watching.early_stopping is not None:
            self._watching.early_stopping.reset()
        if restored is not None:
            self._restore(session, restored)
        write_config(self._directory.config_file, config)
        self._announce()
        if restored is None:  # a run killed in its first epoch can be resumed as well
            self._write_checkpoint(session, step=0)
        view = self._view({})
        for callback in self._watching.callbacks:
            callback.on_run_start(view)
        with self._listening(session):
            for epoch in range(self._epochs_done, self._job.epochs):
                if self._train_and_record(session, epoch):
                    break
        self._finish(session)

    def fail(self, reason: str, message: str) -> None:
        """Record that the run ended otherwise: interrupted or failed."""
        self.reason = reason
        self._emit_end(message)

    @contextmanager
    def _listening(self, session: Session) -> Iterator[None]:
        """Let the session answer commands of `manyhands replicas` while the block runs."""
        control = ControlServer(self._directory.path, session.command)
        with ExitStack() as open_now:
            try:
                open_now.enter_context(control)
            except OSError as error:  # a run that nobody can ask is still a run
                message = f"The run can't be asked for its replicas: {in_a_sentence(error)}"
                self._job.emit(Note(message=message, warning=True))
            yield

    def _train_and_record(self, session: Session, epoch: int) -> bool:
        """One epoch; True when the run is to stop after it."""
        summary = session.train_epoch(epoch)
        with weights_of(self._job.model, session.averaged()):
            figures = self._validate()
            record = self._record(epoch, summary, figures)
            stop = self._consult(record)
        self._epochs_done = epoch + 1
        self._last_step = summary.step
        last = stop or self._epochs_done == self._job.epochs
        if not last and self._epochs_done % self._watching.checkpoint_every == 0:
            self._save(session)
        return stop

    def _validate(self) -> dict[str, float]:
        watching = self._watching
        if watching.validation is None:
            return {}
        job = self._job
        try:
            return evaluate(
                job.model,
                job.step,
                watching.validation,
                watching.metrics,
                batch_size=job.batch_size,
            )
        except ManyhandsError:
            raise
        except Exception as error:  # the user's model, loss and metrics may raise anything
            raise WorkerError(f"Validation failed: {in_a_sentence(error)}") from error

    def _record(
        self, epoch: int, summary: EpochSummary, figures: dict[str, float]
    ) -> dict[str, float]:
        record = {
            "epoch": epoch,
            "train_loss": summary.loss,
            "samples_per_s": summary.samples / summary.seconds,
            "seconds": summary.seconds,
            "lr": summary.lr,
            **figures,
        }
        self.history.append(record)
        self._job.emit(
            EpochEnded(
                epoch=epoch,
                step=summary.step,
                samples=summary.samples,
                seconds=summary.seconds,
                train_loss=summary.loss,
                lr=summary.lr,
                metrics=figures,
            )
        )
        return record

    def _consult(self, record: dict[str, float]) -> bool:
        """Early stopping and callbacks, while the model holds the validated weights."""
        early = self._watching.early_stopping
        view = self._view(record)
        if early is not None and early.improved(record) and early.restore_best:
            save_weights(self._directory.path / _BEST, self._job.model.state_dict())
        for callback in self._watching.callbacks:
            callback.on_epoch_end(view)
        if early is not None and early.exhausted:
            view.stop_reason = view.stop_reason or "early-stopped"
        if view.stop_reason is not None:
            self.reason = view.stop_reason
        return view.stop_reason is not None

    def _finish(self, session: Session) -> None:
        checkpoint_error: CheckpointError | None = None
        try:
            self._write_checkpoint(session, self._last_step)
        except CheckpointError as error:
            checkpoint_error = error  # first the weights: they are what the user came for
        self._hand_over(session)
        if checkpoint_error is not None:
            raise checkpoint_error
        self._emit_end("")

    def _hand_over(self, session: Session) -> None:
        model = self._job.model
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                averaged = (session.averaged() or {}).get(name)
                if averaged is not None:
                    parameter.copy_(averaged)
        early, best = self._watching.early_stopping, self._directory.path / _BEST
        if early is not None and early.restore_best and best.exists():
            model.load_state_dict(load_weights(best))
        save_weights(self._directory.model_file, model.state_dict())
        view = self._view(self.history[-1] if self.history else {})
        view.stop_reason = self.reason
        for callback in self._watching.callbacks:
            callback.on_run_end(view)

    @property
    def metrics(self) -> dict[str, float]:
        """The validation figures of the weights that the run hands back."""
        early = self._watching.early_stopping
        record = self.history[-1] if self.history else {}
        if early is not None and early.restore_best and early.best_record:
            record = early.best_record
        return {name: value for name, value in record.items() if name not in RESERVED}

    def _save(self, session: Session) -> None:
        try:
            self._write_checkpoint(session, self._last_step)
        except CheckpointError as error:  # training goes on: the next checkpoint may succeed
            self._job.emit(Note(message=str(error), warning=True))

    def _write_checkpoint(self, session: Session, step: int) -> None:
        early = self._watching.early_stopping
        checkpoint = Checkpoint(
            epoch=self._epochs_done,
            step=step,
            model=self._job.model.state_dict(),
            optimizer=session.optimizer_state(),
            averaged=session.averaged(),
            extra={
                "history": self.history,
                "written_at": time.time(),
                "random": torch.get_rng_state().numpy().tobytes(),
                "early_stopping": early.state() if early else None,
            },
        )
        path = checkpoints.save(self._directory.checkpoints, checkpoint)
        self._job.emit(CheckpointWritten(path=path, epoch=self._epochs_done))

    def _restore(self, session: Session, restored: Restored) -> None:
        checkpoint = restored.checkpoint
        for refusal in restored.refused:
            self._job.emit(Note(message=refusal, warning=True))
        if restored.refused:
            self._job.emit(Note(message=f"Going on from {restored.path.name} instead."))
        session.load(checkpoint.optimizer, checkpoint.averaged, checkpoint.step)
        self._epochs_done = checkpoint.epoch
        self.history = [dict(record) for record in checkpoint.extra["history"]]
        state = torch.frombuffer(bytearray(checkpoint.extra["random"]), dtype=torch.uint8)
        torch.set_rng_state(state)
        early = self._watching.early_stopping
        if early is not None and checkpoint.extra.get("early_stopping"):
            early.load(checkpoint.extra["early_stopping"])
            if early.exhausted:
                raise ConfigError(
                    f"The run in {self._directory.path} stopped early: {early.metric} has not "
                    f"improved for {early.patience} epochs. Resume with more patience to go on."
                )

    def _announce(self) -> None:
        job = self._job
        job.emit(
            RunStarted(
                run_dir=self._directory.path,
                model=type(job.model).__name__,
                parameters=parameter_count(job.model),
                strategy=self._strategy.name,
                workers=self._strategy.worker_count,
                replicas=self._strategy.replica_count,
                servers=self._strategy.server_count,
                first_epoch=self._epochs_done,
                epochs=job.epochs,
                samples_per_epoch=job.samples_per_epoch,
                sample_name="images" if _is_of_images(job.sample) else "samples",
            )
        )

    def _view(self, record: dict[str, float]) -> RunView:
        return RunView(
            model=self._job.model,
            run_dir=self._directory.path,
            epoch=int(record.get("epoch", self._epochs_done)),
            epochs=self._job.epochs,
            record=record,
            history=self.history,
        )

    def _emit_end(self, message: str) -> None:
        self._job.emit(
            RunEnded(
                reason=self.reason,
                epochs_done=self._epochs_done,
                seconds=time.monotonic() - self._started,
                metrics=self.metrics,
                message=message,
            )
        )


def _is_of_images(batch: Any) -> bool:
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else None
    return isinstance(first, torch.Tensor) and first.dim() == 4
