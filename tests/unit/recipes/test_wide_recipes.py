"""The recipes with very many labels: their nets, their settings, and a user's own file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import manyhands as mh
from manyhands.errors import ConfigError, DataError
from manyhands.recipes import Recipe
from manyhands.recipes.loading import load_recipe

BY_PATH = ("extreme", "amazon-670k", "delicious-200k")


def built(name: str, **settings: str) -> Recipe:
    module = load_recipe(name)
    return module.build(module.apply(settings))


@pytest.fixture
def data_file(tmp_path: Path) -> str:
    """A thousand samples of a rule that can be learnt: feature f means labels f and f + 1000."""
    generator = np.random.default_rng(0)
    lines = ["1000 1200 2400"]
    for feature in generator.integers(0, 1200, 1000):
        noise = " ".join(
            f"{n}:0.1" for n in sorted(set(generator.integers(0, 1200, 3)) - {feature})
        )
        lines.append(f"{feature},{feature + 1000} {noise} {feature}:1.0")
    path = tmp_path / "train.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_the_net_is_slides() -> None:
    recipe = built("synthetic-670k", scale="0.01", samples="50")
    first, middle, last = recipe.model
    assert isinstance(first, mh.sparse.SparseLinear)
    assert isinstance(middle, nn.ReLU)
    assert isinstance(last, mh.sparse.LSHLinear)
    assert (first.in_features, first.out_features) == (1359, 128)
    assert (last.in_features, last.out_features) == (128, 6701)
    assert isinstance(recipe.loss, mh.sparse.LSHSoftmaxLoss)
    assert tuple(recipe.metrics) == ("p@1", "p@3", "p@5")
    assert len(recipe.train) == 50


def test_few_labels_work_and_a_sentence_says_what_is_better(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ten.txt"
    path.write_text("".join(f"{i % 10} {i % 10}:1\n" for i in range(30)))
    recipe = built("extreme", train=str(path))
    assert recipe.model[2].out_features == 10
    assert "only 10 neurons and computes all of them: output=full is the better" in caplog.text


def test_settings_reach_the_layer() -> None:
    recipe = built(
        "synthetic-670k",
        scale="0.01",
        samples="50",
        family="simhash",
        hashes="7",
        tables="11",
        active="300",
        floor="400",
        share="sample",
        hidden="32",
        validation_samples="20",
    )
    layer = recipe.model[2]
    assert layer.family == mh.sparse.SimHash(hashes=7, tables=11)
    assert (layer.sampling.limit, layer.sampling.floor) == (300, 400)
    assert (layer.share, layer.in_features) == ("sample", 32)
    assert len(recipe.validation) == 20


def test_the_full_softmax_for_comparison() -> None:
    recipe = built("packages", index="frozen", output="full")
    assert type(recipe.model[2]) is nn.Linear
    assert recipe.model[2].out_features == mh.data.packages("train", index="frozen").labels.width


def test_validation_is_spread_over_the_test_data() -> None:
    some = built("packages", index="frozen", validation_samples="100").validation
    whole = mh.data.packages("test", index="frozen")
    first, _ = some.fetch(np.array([0, 99]), seed=0)
    ends, _ = whole.fetch(np.array([0, len(whole) - 1]), seed=0)
    assert len(some) == 100
    assert first.columns.tolist() == ends.columns.tolist()
    all_of_it = built("packages", index="frozen", validation_samples="none").validation
    assert len(all_of_it) == len(whole)
    with pytest.raises(ConfigError, match="validation_samples is 0"):
        built("packages", index="frozen", validation_samples="0")


@pytest.mark.parametrize("name", BY_PATH)
def test_a_recipe_by_path_says_what_it_needs(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"recipe {name} needs .*--set train=PATH"):
        built(name)
    with pytest.raises(DataError, match="no/such/file can't be read: No such file"):
        built(name, train="no/such/file")


def test_the_papers_settings() -> None:
    amazon = load_recipe("amazon-670k").apply({})
    assert (amazon.hidden, amazon.batch_size, amazon.lr) == (128, 256, 0.0001)
    assert (amazon.family, amazon.hashes, amazon.tables) == ("dwta", 8, 50)
    delicious = load_recipe("delicious-200k").apply({})
    assert (delicious.hidden, delicious.batch_size, delicious.lr) == (128, 128, 0.0001)
    assert (delicious.family, delicious.hashes, delicious.tables) == ("simhash", 9, 50)


@pytest.mark.parametrize("name", BY_PATH)
def test_sizes_come_from_the_file(name: str, data_file: str) -> None:
    recipe = built(name, train=data_file, hashes="3", tables="5", active="200", floor="200")
    assert recipe.model[0].in_features == 1200
    assert recipe.model[2].out_features == 2400
    assert (len(recipe.train), len(recipe.validation)) == (900, 100)  # a tenth is held out


def test_a_test_file_has_the_training_files_sizes(data_file: str, tmp_path: Path) -> None:
    test = tmp_path / "test.txt"
    test.write_text("5,2399 3:1\n7 9:0.5\n")
    recipe = built("extreme", train=data_file, test=str(test))
    assert (len(recipe.train), len(recipe.validation)) == (1000, 2)
    x, y = recipe.validation.fetch(np.arange(2), seed=0)
    assert (x.width, y.width) == (1200, 2400)
    test.write_text("5,2400 3:1\n7 9:0.5\n")
    with pytest.raises(DataError, match="label 2400 is out of range: expected 0 to 2399"):
        built("extreme", train=data_file, test=str(test))
    assert len(built("extreme", train=data_file, test=str(test), bad_lines="skip").validation) == 1


def test_a_test_file_may_know_more_than_a_training_file_without_header(tmp_path: Path) -> None:
    train, test = tmp_path / "train.txt", tmp_path / "test.txt"
    train.write_text("".join(f"{n} {n}:1\n" for n in range(1500)))
    test.write_text("1700,3 2000:1\n")
    recipe = built("extreme", train=str(train), test=str(test))
    assert (recipe.model[0].in_features, recipe.model[2].out_features) == (2001, 1701)
    for source in (recipe.train, recipe.validation):
        x, y = source.fetch(np.arange(1), seed=0)
        assert (x.width, y.width) == (2001, 1701)
    given = built("extreme", train=str(train), features="3000", labels="4000")
    assert (given.model[0].in_features, given.model[2].out_features) == (3000, 4000)


def test_one_damaged_number_does_not_widen_the_net(tmp_path: Path) -> None:
    train = tmp_path / "train.txt"
    train.write_text("".join(f"{n} {n}:1\n" for n in range(1500)) + "1 2000000000:1\n")
    with pytest.raises(DataError, match="line 1501: feature 2000000000 is far beyond the others"):
        built("extreme", train=str(train))
    recipe = built("extreme", train=str(train), bad_lines="skip")
    assert recipe.model[0].in_features == 1500


def test_a_users_file_is_learnt(data_file: str, tmp_path: Path) -> None:
    recipe = built("extreme", train=data_file, test=data_file, active="300", floor="300", lr="0.01")
    trainer = mh.Trainer(
        recipe.model,
        loss=recipe.loss,
        optimizer=recipe.optimizer,
        schedule=recipe.schedule,
        metrics=recipe.metrics,
        strategy=mh.Synchronous(),
        batch_size=50,
        run_dir=tmp_path / "run",
        progress=False,
    )
    result = trainer.fit(recipe.train, validation=recipe.validation, epochs=12)
    assert result.metrics["p@1"] > 0.5
    assert result.history[0]["p@1"] < result.metrics["p@1"]
