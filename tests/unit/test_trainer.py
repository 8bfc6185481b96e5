"""The front door: what it hands back, and how it answers mistakes before anything starts."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import manyhands as mh
from manyhands.errors import CheckpointError, ConfigError, DataError, ModelError, WorkerError
from manyhands.run.config_file import read_config
from tests.conftest import blobs, small_net


def test_a_run_hands_back_model_figures_and_files(make_trainer):
    model = small_net()
    result = make_trainer(model, metrics=("accuracy", "f1")).fit(
        blobs(), validation=blobs(128, seed=1), epochs=3
    )
    assert result.model is model
    assert result.accuracy == result.metrics["accuracy"] > 0.9
    assert set(result.metrics) == {"loss", "accuracy", "f1"}
    assert [record["epoch"] for record in result.history] == [0, 1, 2]
    names = {path.name for path in result.run_dir.iterdir()}
    assert names >= {
        "run.toml",
        "model.safetensors",
        "events.jsonl",
        "tensorboard",
        "curves.png",
        "checkpoints",
    }
    config = read_config(result.run_dir / "run.toml")
    assert config["optimizer"]["rule"] == "sgd"
    assert config["strategy"] == {"name": "synchronous", "workers": 1}


def test_the_average_is_what_is_validated_and_handed_back(make_trainer, tmp_path):
    from safetensors.torch import load_file

    trainer = make_trainer(ema=mh.EMA(0.9))
    result = trainer.fit(blobs(), validation=blobs(128, seed=1), epochs=2)
    saved = load_file(result.run_dir / "model.safetensors")
    averaged = load_file(next(result.run_dir.glob("checkpoints/epoch-0002*/averaged.safetensors")))
    raw = load_file(next(result.run_dir.glob("checkpoints/epoch-0002*/model.safetensors")))
    for name, tensor in averaged.items():
        assert torch.equal(saved[name], tensor)
        assert not torch.equal(raw[name], tensor)
    assert trainer.evaluate(blobs(128, seed=1)) == result.metrics


def test_early_stopping_hands_back_the_best(make_trainer):
    class Spoil(mh.Callback):
        def on_epoch_end(self, view):
            if view.epoch >= 1:
                with torch.no_grad():
                    view.model[2].weight.zero_()

    trainer = make_trainer(
        callbacks=[Spoil()], early_stopping=mh.EarlyStopping("accuracy", patience=2)
    )
    result = trainer.fit(blobs(), validation=blobs(128, seed=1), epochs=50)
    assert result.reason == "early-stopped"
    assert len(result.history) < 50
    assert result.accuracy == max(record["accuracy"] for record in result.history)
    assert trainer.evaluate(blobs(128, seed=1))["accuracy"] == result.accuracy


def test_callbacks_see_the_run_and_can_end_it(make_trainer):
    seen: list[tuple[str, int]] = []

    class Watch(mh.Callback):
        def on_run_start(self, view):
            seen.append(("start", view.epoch))

        def on_epoch_end(self, view):
            seen.append(("epoch", view.epoch))
            assert "train_loss" in view.record
            if view.epoch == 1:
                view.stop_reason = "seen enough"

        def on_run_end(self, view):
            seen.append(("end", view.epoch))

    result = make_trainer(callbacks=[Watch()]).fit(blobs(), epochs=9)
    assert result.reason == "seen enough"
    assert seen == [("start", 0), ("epoch", 0), ("epoch", 1), ("end", 1)]


def test_a_batch_of_any_form_with_a_step_of_ones_own(make_trainer):
    class Sentences(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, number):
            return {"x": torch.full((20,), number / 64), "y": torch.tensor([number / 64])}

    def step(model, batch):
        return (model(batch["x"]) - batch["y"]).square().mean()

    torch.manual_seed(0)
    rule = mh.optim.SGD(lr=0.01)
    trainer = make_trainer(nn.Linear(20, 1), loss=None, step=step, optimizer=rule)
    result = trainer.fit(Sentences(), validation=Sentences(), epochs=5)
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    with pytest.raises(ConfigError, match="not accuracy"):
        _ = result.accuracy


def test_parts_kept_in_evaluation_mode_stay_there(make_trainer):
    model = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    model[1].eval()
    before = model[1].running_mean.clone()
    make_trainer(model).fit(blobs(), validation=blobs(64), epochs=1)
    assert torch.equal(model[1].running_mean, before)
    assert model.training
    assert not model[1].training


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"loss": None}, "either loss= .* or step="),
        ({"step": lambda model, batch: None}, "not both"),
        ({"optimizer": "sgd"}, "optimizer is 'sgd'"),
        ({"strategy": "hogwild"}, "strategy is 'hogwild'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"metrics": ("accurancy",)}, "Did you mean 'accuracy'"),
        ({"ema": 1.5}, "decay is 1.5"),
        ({"ema": "0.9"}, "ema is '0.9'"),
        ({"schedule": "cosine"}, "schedule is 'cosine'"),
        ({"callbacks": mh.Callback()}, "callbacks is Callback"),
        ({"callbacks": [print]}, "callbacks is"),
        ({"seed": 1.5}, "seed is 1.5"),
    ],
)
def test_mistakes_in_the_arguments(make_trainer, arguments, words):
    with pytest.raises(ConfigError, match=words):
        make_trainer(**arguments)


def test_a_servers_rule_is_refused_with_a_hint(make_trainer):
    with pytest.raises(ConfigError, match=r"optimizer is Outer.*such as mh\.optim\.SGD"):
        make_trainer(optimizer=mh.optim.Outer())


def test_a_torch_optimizer_is_refused_with_a_hint(make_trainer):
    with pytest.raises(ConfigError, match="holds its own parameters"):
        make_trainer(optimizer=torch.optim.SGD(small_net().parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="model is 'model'"):
        mh.Trainer("model", loss=nn.MSELoss(), optimizer=mh.optim.SGD(lr=0.1))


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (lambda: (torch.randn(64, 7), torch.randint(4, (64,))), ConfigError, r"float32\[4, 7\]"),
        (lambda: (torch.randn(64, 20), torch.randint(4, (63,))), DataError, "63|64"),
        (lambda: (torch.randn(64, 20), torch.randn(64, 9)), ConfigError, "float32"),
        (lambda: (torch.randn(0, 20), torch.randint(4, (0,))), DataError, "at least one"),
        (lambda: (torch.full((64, 20), math.nan), torch.randint(4, (64,))), DataError, "NaN|nan"),
        (lambda: None, (ConfigError, DataError), "NoneType|None"),
    ],
)
def test_mistakes_in_the_data_leave_no_run_directory(make_trainer, data, error, words, tmp_path):
    with pytest.raises(error, match=words):
        make_trainer().fit(data(), epochs=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mh.optim.SGD(lr="0.1"), "lr is '0.1'"),
        (lambda: mh.Hogwild(workers="2"), "workers is '2'"),
        (lambda: mh.Synchronous(workers=0), "workers is 0"),
        (lambda: mh.EarlyStopping(patience=0), "patience is 0"),
    ],
)
def test_mistakes_in_the_parts(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize("epochs", [0, 2.5, "3", True])
def test_a_wrong_number_of_epochs(make_trainer, epochs):
    with pytest.raises(ConfigError, match="epochs is"):
        make_trainer().fit(blobs(64), epochs=epochs)


@pytest.mark.parametrize(
    ("arguments", "validation", "words"),
    [
        ({}, lambda: (torch.randn(8, 7), torch.randint(4, (8,))), r"validated .*float32\[4, 7\]"),
        ({"early_stopping": mh.EarlyStopping()}, lambda: None, "watches 'accuracy'"),
        ({"metrics": (lambda outputs, targets: 1 / 0,)}, lambda: blobs(8), "ZeroDivisionError"),
        (
            {"loss": None, "step": lambda m, b: m(b[0]).sum(), "metrics": ("mse",)},
            lambda: blobs(8),
            "Metrics need a loss",
        ),
    ],
)
def test_mistakes_about_validation_are_answered_before_training(
    make_trainer, tmp_path, arguments, validation, words
):
    with pytest.raises(ConfigError, match=words):
        make_trainer(**arguments).fit(blobs(64), validation=validation(), epochs=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (lambda step: 1.0, "can't be asked for"),
        (lambda step, steps: "x", "can't be asked for"),
        (lambda step, steps: math.nan, "gives nan"),
    ],
)
def test_a_wrong_schedule_is_answered_before_training(make_trainer, tmp_path, schedule, words):
    with pytest.raises(ConfigError, match=words):
        make_trainer(schedule=schedule).fit(blobs(64), epochs=1)
    assert not (tmp_path / "run").exists()


def test_a_loss_class_instead_of_a_loss_is_noticed(make_trainer):
    with pytest.raises(ConfigError, match=r"expected CrossEntropyLoss\(\)"):
        make_trainer(loss=nn.CrossEntropyLoss)


class Scaled(nn.Module):
    """A loss that learns how sure the outputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs * self.scale, targets)


def test_a_loss_with_parameters_that_nobody_would_train_is_refused():
    sgd, loss = mh.optim.SGD(lr=0.1), Scaled()
    with pytest.raises(ConfigError, match=r"the loss has a parameter of its own, 'scale'"):
        mh.Trainer(nn.Linear(4, 2), loss=loss, optimizer=sgd)
    mh.Trainer(nn.Linear(4, 2), loss=Scaled().requires_grad_(False), optimizer=sgd)
    model = nn.Linear(4, 2)
    model.scale = loss.scale  # the model's as well, and so trained
    mh.Trainer(model, loss=loss, optimizer=sgd)


@pytest.mark.parametrize("strategy", [mh.Synchronous(), mh.Hogwild(workers=1)])
def test_a_mistake_in_a_later_sample_is_named_with_its_place(make_trainer, strategy):
    class Trap(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bool((x == 77).any()):
                raise ValueError("a sample that the model can't take")
            return self.layer(x)

    points, labels = blobs(128)
    points[100, 0] = 77
    with pytest.raises(WorkerError, match=r"can't take \(.*test_trainer.py:\d+\)"):
        make_trainer(Trap(), strategy=strategy).fit((points, labels), epochs=1)


def test_a_lazy_module_is_refused(make_trainer):
    for strategy in (mh.Synchronous(), mh.Hogwild(workers=1)):
        with pytest.raises(ModelError, match="lazy"):
            make_trainer(nn.LazyLinear(4), strategy=strategy).fit(blobs(64), epochs=1)


def test_a_refused_resume_leaves_the_record_as_it_was(make_trainer):
    result = make_trainer().fit(blobs(64), epochs=1)
    before = (result.run_dir / "run.toml").read_bytes()
    with pytest.raises(ConfigError, match="same optimizer"):
        make_trainer(optimizer=mh.optim.Adam(lr=0.1)).fit(
            blobs(64), epochs=2, resume=result.run_dir
        )
    assert (result.run_dir / "run.toml").read_bytes() == before


def test_early_stopping_starts_anew_with_every_run(make_trainer, tmp_path):
    early = mh.EarlyStopping("loss", patience=1)
    data = {"validation": blobs(64, seed=1), "epochs": 2}
    make_trainer(early_stopping=early, run_dir=tmp_path / "one").fit(blobs(64), **data)
    second = make_trainer(small_net(seed=5), early_stopping=early, run_dir=tmp_path / "two")
    result = second.fit(blobs(64), **data)
    assert len(result.history) == 2
    assert result.metrics["loss"] == pytest.approx(second.evaluate(blobs(64, seed=1))["loss"])


def test_a_run_that_stopped_early_is_not_resumed_by_accident(make_trainer):
    def trainer(patience: int) -> mh.Trainer:
        early = mh.EarlyStopping("loss", patience=patience, min_change=1e9)
        return make_trainer(early_stopping=early)

    data = {"validation": blobs(64, seed=1), "epochs": 9}
    first = trainer(1).fit(blobs(64), **data)
    assert first.reason == "early-stopped"
    with pytest.raises(ConfigError, match="stopped early"):
        trainer(1).fit(blobs(64), **data, resume=first.run_dir)
    assert len(trainer(3).fit(blobs(64), **data, resume=first.run_dir).history) > len(first.history)


def test_a_tensor_that_the_model_keeps_can_be_trained_with_later(make_trainer):
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 4)
            self.scale: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.scale is None or not self.training:
                self.scale = torch.ones(4)
            return self.layer(x) * self.scale

    result = make_trainer(Keeps()).fit(blobs(64), validation=blobs(64), epochs=2)
    assert result.reason == "finished"


@pytest.mark.parametrize("strategy", [mh.Synchronous(workers=2), mh.Hogwild(workers=2)])
def test_data_that_cannot_be_sent_to_a_worker_is_named(make_trainer, strategy):
    import threading

    class Locked(Dataset):
        lock = None

        def __init__(self):
            self.lock = threading.Lock()

        def __len__(self):
            return 64

        def __getitem__(self, number):
            return torch.zeros(20), 1

    with pytest.raises(ConfigError, match="can't be sent to a worker"):
        make_trainer(strategy=strategy).fit(Locked(), epochs=1)


def test_batch_norm_with_a_short_last_batch_among_workers(make_trainer):
    model = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    trainer = make_trainer(model, strategy=mh.Synchronous(workers=2))
    assert trainer.fit(blobs(66), epochs=1).reason == "finished"


def test_samples_marked_to_be_left_out_are_left_out_with_a_plan(make_trainer):
    points, labels = blobs(256)
    labels = labels.clone()
    labels[100:110] = -100
    trainer = make_trainer(strategy=mh.Hogwild(workers=1))
    result = trainer.fit((points, labels), validation=blobs(64, seed=1), epochs=3)
    assert result.accuracy > 0.9


def test_random_data_sets_are_repeatable(make_trainer, tmp_path):
    class Noisy(Dataset):
        def __len__(self):
            return 96

        def __getitem__(self, number):
            return torch.rand(20), number % 4

    ends = []
    for name in ("one", "two"):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(20, 16), nn.Dropout(0.5), nn.Linear(16, 4))
        make_trainer(model, run_dir=tmp_path / name, batch_size=4).fit(Noisy(), epochs=2)
        ends.append(model[0].weight.detach().clone())
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    "rule", [mh.optim.Adam(lr=0.1), mh.optim.SGD(lr=0.1, clip_norm=1.0)], ids=["adam", "clipping"]
)
def test_sparse_gradients_that_torch_cannot_follow_are_refused(make_trainer, rule, tmp_path):
    words = torch.utils.data.TensorDataset(torch.randint(30, (64, 3)), torch.randint(4, (64,)))
    model = nn.Sequential(nn.EmbeddingBag(30, 4, sparse=True))
    with pytest.raises(ModelError, match="sparse gradients"):
        make_trainer(model, optimizer=rule).fit(words, epochs=1)
    assert not (tmp_path / "run").exists()
    hogwild = make_trainer(model, optimizer=rule, strategy=mh.Hogwild(workers=1))
    assert hogwild.fit(words, epochs=1).reason == "finished"


@pytest.mark.parametrize("strategy", [mh.Synchronous(), mh.Hogwild(workers=1)])
def test_models_that_cannot_learn_are_refused(make_trainer, strategy):
    frozen = small_net().requires_grad_(False)
    with pytest.raises(ModelError, match="trainable parameter"):
        make_trainer(frozen, strategy=strategy).fit(blobs(), epochs=1)
    sparse = nn.Sequential(nn.EmbeddingBag(30, 4, sparse=True))
    words = torch.randint(30, (64, 3)), torch.randint(4, (64,))
    trainer = make_trainer(sparse, strategy=strategy, optimizer=mh.optim.AdamW(lr=0.1))
    with pytest.raises(ModelError, match="sparse gradients"):
        trainer.fit(torch.utils.data.TensorDataset(*words), epochs=1)


def test_a_target_out_of_range_is_answered(make_trainer):
    points, labels = blobs(64)
    with pytest.raises((ConfigError, DataError)):
        make_trainer().fit((points, labels + 10), epochs=1)


def test_run_directories_are_never_overwritten(make_trainer):
    make_trainer().fit(blobs(64), epochs=1)
    with pytest.raises(ConfigError, match=r"empty|exists"):
        make_trainer().fit(blobs(64), epochs=1)


def test_resuming_what_does_not_fit_is_refused(make_trainer, tmp_path):
    result = make_trainer().fit(blobs(64), epochs=1)
    with pytest.raises(CheckpointError, match="another model"):
        make_trainer(nn.Linear(20, 4)).fit(blobs(64), epochs=2, resume=result.run_dir)
    with pytest.raises(ConfigError, match="same optimizer"):
        make_trainer(optimizer=mh.optim.Adam(lr=0.1)).fit(
            blobs(64), epochs=2, resume=result.run_dir
        )
    with pytest.raises(ConfigError, match="1 epochs behind it"):
        make_trainer().fit(blobs(64), epochs=1, resume=result.run_dir)
    with pytest.raises(CheckpointError, match="no run directory"):
        make_trainer().fit(blobs(64), epochs=2, resume=tmp_path / "nowhere")


def test_a_run_goes_on_with_another_strategy(make_trainer):
    rule = mh.optim.Adam(lr=0.01)
    first = make_trainer(optimizer=rule, strategy=mh.Hogwild(workers=1)).fit(blobs(256), epochs=1)
    model = small_net(seed=7)
    result = make_trainer(model, optimizer=rule).fit(
        blobs(256), validation=blobs(64, seed=1), epochs=3, resume=first.run_dir
    )
    assert [record["epoch"] for record in result.history] == [0, 1, 2]
    assert result.accuracy > 0.9


def test_a_disk_that_fills_costs_the_checkpoint_and_not_the_weights(make_trainer, monkeypatch):
    from manyhands import training_run
    from manyhands.telemetry.event_log import read_events

    save = training_run.checkpoints.save

    def full(directory, checkpoint):
        if checkpoint.epoch > 0:
            raise CheckpointError("No space left on device.")
        return save(directory, checkpoint)

    monkeypatch.setattr(training_run.checkpoints, "save", full)
    trainer = make_trainer()
    with pytest.raises(CheckpointError, match="No space"):
        trainer.fit(blobs(64), epochs=3)
    events = read_events(trainer.last_run / "events.jsonl")
    assert sum(event["event"] == "EpochEnded" for event in events) == 3
    assert sum(event.get("warning", False) for event in events) == 2
    assert events[-1]["reason"] == "failed"
    assert (trainer.last_run / "model.safetensors").exists()
