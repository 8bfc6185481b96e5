"""The front door: what it hands back, and how it answers mistakes before anything starts."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import manyhands as mh
from manyhands.errors import CheckpointError, ConfigError, DataError, ModelError
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
        ({"optimizer": "sgd"}, "optimizer is str"),
        ({"strategy": "hogwild"}, "strategy is 'hogwild'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"metrics": ("accurancy",)}, "Did you mean 'accuracy'"),
        ({"ema": 1.5}, "decay is 1.5"),
    ],
)
def test_mistakes_in_the_arguments(make_trainer, arguments, words):
    with pytest.raises(ConfigError, match=words):
        make_trainer(**arguments)


def test_a_torch_optimizer_is_refused_with_a_hint(make_trainer):
    with pytest.raises(ConfigError, match="holds its own parameters"):
        make_trainer(optimizer=torch.optim.SGD(small_net().parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="model is str"):
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
