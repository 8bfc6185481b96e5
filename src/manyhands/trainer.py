"""Trainer: the front door. Brings a model, a loss, an optimizer and a strategy together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from manyhands import metrics as named_metrics
from manyhands import preflight
from manyhands.callbacks import Callback, EarlyStopping
from manyhands.config import describe
from manyhands.data import as_source
from manyhands.data.source import Source
from manyhands.errors import CheckpointError, ConfigError
from manyhands.evaluation import evaluate
from manyhands.metrics import MetricChoice
from manyhands.optim.rules import Outer, Rule
from manyhands.optim.schedules import Constant, RateFactor
from manyhands.replica.steps import LossFunction, LossStep, StepFunction
from manyhands.run import checkpoint as checkpoints
from manyhands.run.checkpoint import Restored
from manyhands.run.config_file import read_config
from manyhands.run.directory import RunDirectory
from manyhands.sparse import LSHSigmoidLoss, LSHSoftmaxLoss
from manyhands.strategies.strategy import EMA, Strategy, TrainingJob
from manyhands.strategies.synchronous import Synchronous
from manyhands.telemetry.curves import CurvePicture
from manyhands.telemetry.event_log import EventLog
from manyhands.telemetry.events import Event, Note, Sink
from manyhands.telemetry.progress import make_progress
from manyhands.telemetry.stream import EventStream
from manyhands.telemetry.tensorboard import TensorBoardEvents
from manyhands.training_run import TrainingRun, Watching


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a run hands back. `model` is the trained module, in ordinary memory."""

    model: nn.Module
    metrics: dict[str, float]
    history: list[dict[str, float]]
    run_dir: Path
    reason: str

    @property
    def accuracy(self) -> float:
        """The validation accuracy, 0 to 1."""
        if "accuracy" not in self.metrics:
            raise ConfigError(
                f"This run measured {', '.join(self.metrics) or 'nothing'}, not accuracy: pass "
                "validation data to fit and metrics=('accuracy',) to the Trainer."
            )
        return self.metrics["accuracy"]


class Trainer:
    """Trains a module. Reusable, not thread-safe; `fit` blocks until the run is over.

    Without `strategy`, training is plain PyTorch (`Synchronous()`); `Hogwild()` uses every core.

    `loss(outputs, targets)` serves data of (inputs, targets); for anything else give
    `step(model, batch) -> loss`. Without `metrics`, accuracy is measured where the loss is a
    classification loss. Mistakes in the arguments raise ConfigError before anything starts.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: LossFunction | None = None,
        optimizer: Rule,
        strategy: Strategy | None = None,
        schedule: RateFactor | None = None,
        metrics: Iterable[MetricChoice] | None = None,
        ema: EMA | float | None = None,
        early_stopping: EarlyStopping | None = None,
        callbacks: Sequence[Callback] = (),
        step: StepFunction | None = None,
        batch_size: int = 64,
        seed: int = 0,
        run_dir: str | Path | None = None,
        progress: bool = True,
        checkpoint_every: int = 1,
        recipe: Mapping[str, Any] | None = None,
    ) -> None:
        _check_arguments(model, optimizer, strategy, schedule, ema, early_stopping, callbacks)
        _check_whole_number("Trainer: batch_size", batch_size, least=1)
        _check_whole_number("Trainer: seed", seed, least=0)
        _check_whole_number("Trainer: checkpoint_every", checkpoint_every, least=1)
        self.model = model
        self.step = _checked_step(loss, step)
        _check_parameters_of_loss(model, loss)
        self.optimizer = optimizer
        self.strategy = strategy or Synchronous()
        self.schedule = schedule or Constant()
        self.metrics = named_metrics.check(_usual_metrics(loss) if metrics is None else metrics)
        self.ema = EMA(ema) if isinstance(ema, (int, float)) else ema
        self.early_stopping = early_stopping
        self.callbacks = tuple(callbacks)
        self.batch_size = batch_size
        self.seed = seed
        self.run_dir = run_dir
        self.progress = progress
        self.checkpoint_every = checkpoint_every
        self.recipe = recipe
        self.last_run: Path | None = None

    def fit(
        self,
        train: Any,
        *,
        validation: Any = None,
        epochs: int = 10,
        resume: str | Path | None = None,
        shuffle: bool = True,
    ) -> Result:
        """Train for `epochs` epochs, counting those that a resumed run has behind it.

        Ctrl-C leaves the last checkpoint in the run directory (`last_run`) and re-raises.
        """
        _check_whole_number("fit: epochs", epochs, least=1)
        source = as_source(train)
        if not self.model.training:
            self.model.train()
        preflight.check_schedule(self.schedule)
        sample = preflight.check_job(
            self.model, self.step, self.strategy, self.optimizer, source, self.batch_size
        )
        self.strategy.check(self.model, self.optimizer)
        watching = self._watching(validation)
        directory, restored = self._open(resume, epochs)
        self.last_run = directory.path
        with directory.in_use(), EventStream(self._sinks(directory)) as stream:
            job = replace(
                self._job(source, sample, epochs, shuffle, stream.handle),
                run_dir=directory.path,
                resumed_at=None if restored is None else restored.written_at,
            )
            if resume is not None:
                self._compare_data(directory, job)
            run = TrainingRun(job, self.strategy, directory, watching)
            self._run(run, job, restored)
        return Result(
            model=self.model,
            metrics=run.metrics,
            history=run.history,
            run_dir=directory.path,
            reason=run.reason,
        )

    def evaluate(self, data: Any) -> dict[str, float]:
        """The loss and the metrics of the model as it is, on this data."""
        source = as_source(data)
        preflight.check_validation(self.model, self.step, source, self.metrics)
        return evaluate(self.model, self.step, source, self.metrics, batch_size=self.batch_size)

    def _run(self, run: TrainingRun, job: TrainingJob, restored: Restored | None) -> None:
        try:
            torch.manual_seed(self.seed)
            if restored is not None:
                self._load_model(restored)
            with self.strategy.start(job) as session:
                run.run(session, restored, self._describe(job))
        except KeyboardInterrupt:
            run.fail("interrupted", "")
            raise
        except BaseException as error:
            run.fail("failed", str(error))
            raise

    def _job(
        self,
        source: Source,
        sample: Any,
        epochs: int,
        shuffle: bool,
        emit: Callable[[Event], None],
    ) -> TrainingJob:
        return TrainingJob(
            model=self.model,
            step=self.step,
            rule=self.optimizer,
            schedule=self.schedule,
            source=source,
            sample=sample,
            batch_size=self.batch_size,
            epochs=epochs,
            seed=self.seed,
            shuffle=shuffle,
            ema=self.ema,
            emit=emit,
        )

    def _watching(self, validation: Any) -> Watching:
        source = None if validation is None else as_source(validation)
        figures: dict[str, float] = {}
        if source is not None:
            figures = preflight.check_validation(self.model, self.step, source, self.metrics)
        if self.early_stopping is not None:
            self.early_stopping.check(["train_loss", *figures])
        return Watching(
            validation=source,
            metrics=self.metrics if source is not None else (),
            callbacks=self.callbacks,
            early_stopping=self.early_stopping,
            checkpoint_every=self.checkpoint_every,
        )

    def _open(self, resume: str | Path | None, epochs: int) -> tuple[RunDirectory, Restored | None]:
        if resume is not None:
            directory = RunDirectory.open(resume)
            restored = checkpoints.load_latest(directory.checkpoints)
            if restored.checkpoint.epoch >= epochs:
                raise ConfigError(
                    f"The run in {directory.path} has {restored.checkpoint.epoch} epochs behind it "
                    f"and epochs is {epochs}: pass a larger number to go on."
                )
            return directory, restored
        if self.run_dir is not None:
            return RunDirectory.create(self.run_dir), None
        name = self.recipe["name"] if self.recipe else type(self.model).__name__.lower()
        return RunDirectory.create("runs", Path(str(name)).stem), None

    def _compare_data(self, directory: RunDirectory, job: TrainingJob) -> None:
        earlier = read_config(directory.config_file).get("run", {})
        for name, now in (("samples", len(job.source)), ("seed", job.seed)):
            before = earlier.get(name, now)
            if before != now:
                job.emit(Note(message=f"The run had {name} {before}, now {now}.", warning=True))

    def _load_model(self, restored: Restored) -> None:
        try:
            self.model.load_state_dict(restored.checkpoint.model)
        except RuntimeError as error:
            lines = str(error).splitlines()
            raise CheckpointError(
                f"{restored.path} holds another model's weights than this "
                f"{type(self.model).__name__}: {lines[-1].strip()}"
            ) from error

    def _describe(self, job: TrainingJob) -> dict[str, Any]:
        return describe(job, self.strategy, self.metrics, self.early_stopping, self.recipe)

    def _sinks(self, directory: RunDirectory) -> list[Sink]:
        sinks: list[Sink] = [
            EventLog(directory.events_file),
            TensorBoardEvents(directory.tensorboard),
            CurvePicture(directory.curves_file),
        ]
        return [*sinks, make_progress()] if self.progress else sinks


def _checked_step(loss: LossFunction | None, step: StepFunction | None) -> StepFunction:
    if (loss is None) == (step is None):
        raise ConfigError(
            "Trainer needs either loss= (a function of outputs and targets) or step= (a function "
            "of model and batch), and not both."
        )
    if isinstance(loss, type):
        raise ConfigError(
            f"Trainer: loss is the class {loss.__name__}; expected {loss.__name__}()."
        )
    given = loss if step is None else step
    if not callable(given):
        raise ConfigError(f"Trainer: {given!r} is not callable; expected a loss or a step.")
    return LossStep(loss) if step is None and loss is not None else step or LossStep(given)


def _check_parameters_of_loss(model: nn.Module, loss: object) -> None:
    known = {id(parameter) for parameter in model.parameters()}
    if not isinstance(loss, nn.Module):
        return
    for name, parameter in loss.named_parameters():
        if parameter.requires_grad and id(parameter) not in known:
            raise ConfigError(
                f"Trainer: the loss has a parameter of its own, '{name}', and only the model's are "
                "trained: make the loss a part of the model and pass step=function(model, batch) "
                "-> loss, or call requires_grad_(False) on the loss."
            )


_CLASSIFICATION_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss)
_LABEL_SET_LOSSES = (LSHSoftmaxLoss, LSHSigmoidLoss)
_CLASSIFICATION_FUNCTIONS = (nn.functional.cross_entropy, nn.functional.nll_loss)


def _usual_metrics(loss: LossFunction | None) -> tuple[str, ...]:
    if isinstance(loss, _LABEL_SET_LOSSES):
        return ("p@1",)
    classifies = isinstance(loss, _CLASSIFICATION_LOSSES) or loss in _CLASSIFICATION_FUNCTIONS
    return ("accuracy",) if classifies else ()


def _check_arguments(
    model: object,
    optimizer: object,
    strategy: object,
    schedule: object,
    ema: object,
    early_stopping: object,
    callbacks: object,
) -> None:
    if isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"Trainer: optimizer is torch's {type(optimizer).__name__}, which holds its own "
            "parameters; expected one of mh.optim, such as mh.optim.SGD(lr=0.05)."
        )
    if isinstance(optimizer, Outer):
        raise ConfigError(
            "Trainer: optimizer is Outer, a parameter server's rule for the differences that "
            "replicas push; expected a rule for gradients, such as mh.optim.SGD(lr=0.05)."
        )
    if isinstance(callbacks, (str, bytes)) or not isinstance(callbacks, Iterable):
        raise ConfigError(
            f"Trainer: callbacks is {type(callbacks).__name__}; expected a list of mh.Callback."
        )
    for name, value, fits, expected in (
        ("model", model, isinstance(model, nn.Module), "a torch.nn.Module"),
        (
            "optimizer",
            optimizer,
            isinstance(optimizer, Rule),
            "one of mh.optim, such as SGD(lr=0.05)",
        ),
        ("strategy", strategy, isinstance(strategy, Strategy), "mh.Synchronous() or mh.Hogwild()"),
        (
            "schedule",
            schedule,
            callable(schedule),
            "one of mh.optim or a function of (step, steps)",
        ),
        ("ema", ema, isinstance(ema, (EMA, int, float)), "mh.EMA(...) or a decay"),
        (
            "early_stopping",
            early_stopping,
            isinstance(early_stopping, EarlyStopping),
            "mh.EarlyStopping(...)",
        ),
        *(
            ("callbacks", one, isinstance(one, Callback), "a list of mh.Callback")
            for one in callbacks
        ),
    ):
        optional = name not in ("model", "optimizer", "callbacks")
        if not fits and not (optional and value is None):
            raise ConfigError(f"Trainer: {name} is {value!r:.80}; expected {expected}.")


def _check_whole_number(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}; expected a whole number of at least {least}.")
