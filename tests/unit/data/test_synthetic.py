"""The made-up extreme-label set: its statistics, the same everywhere, and with a structure."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

import manyhands as mh
from manyhands.data.datasets.hashed_draws import HashedDraws
from manyhands.data.datasets.synthetic import MEMBERS, SIZES
from manyhands.data.sparse_source import SparseSource
from manyhands.errors import ConfigError
from manyhands.sparse.csr import CSR


def digest(source: SparseSource) -> str:
    parts = [tensor.numpy().tobytes() for tensor in source.tensors()]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


@pytest.fixture(scope="module")
def train() -> SparseSource:
    return mh.data.synthetic_670k("train", scale=0.05)


def test_sizes_follow_the_scale(train: SparseSource) -> None:
    assert len(train) == round(SIZES["train"] * 0.05)
    assert train.features.width == round(SIZES["features"] * 0.05)
    assert train.labels.width == round(SIZES["labels"] * 0.05)
    assert len(mh.data.synthetic_670k("test", scale=0.01)) == round(SIZES["test"] * 0.01)


def test_the_statistics_of_amazon_670k() -> None:
    few = mh.data.synthetic_670k("train", samples=3_000)
    assert (few.features.width, few.labels.width) == (135_909, 670_091)
    assert few.features.nnz / len(few) == pytest.approx(75.7, abs=0.7)
    assert few.labels.nnz / len(few) == pytest.approx(5.45, abs=0.15)
    assert int(few.labels.counts.min()) >= 1


def test_few_labels_are_common_and_most_are_rare(train: SparseSource) -> None:
    counts = np.sort(np.bincount(train.labels.columns, minlength=train.labels.width))[::-1]
    assert counts[0] < 0.03 * len(train)
    tenth = counts[: len(counts) // 10].sum() / counts.sum()
    assert 0.5 < tenth < 0.9
    assert np.median(counts) <= 2


def test_rows_are_of_length_one_ascending_and_without_doubles(train: SparseSource) -> None:
    few = train.features[:500]
    lengths = (few.to_dense() ** 2).sum(1)
    assert torch.allclose(lengths, torch.ones(500), atol=1e-5)
    for rows in (train.features[:500], train.labels[:500]):
        assert ascending(rows)


def ascending(rows: CSR) -> bool:
    return all(bool((row.columns.diff() > 0).all()) for row in (rows[i] for i in range(len(rows))))


def test_the_same_samples_on_every_machine() -> None:
    # From whole numbers alone, so that these sums hold for any processor and version of NumPy.
    assert digest(mh.data.synthetic_670k("train", scale=0.01, samples=500)) == "b2790691546ee848"
    assert (
        digest(mh.data.synthetic_670k("test", scale=0.01, samples=500, seed=3))
        == "ce5d5e1f99d1bbae"
    )


def test_the_first_samples_are_those_of_the_whole_set(train: SparseSource) -> None:
    # More than one chunk of samples apart, so that chunks don't matter either.
    few = mh.data.synthetic_670k("train", scale=0.05, samples=20_000)
    assert torch.equal(few.features.columns, train.features[:20_000].columns)
    assert torch.equal(few.labels.columns, train.labels[:20_000].columns)
    assert torch.equal(few.features.values, train.features[:20_000].values)


def test_training_and_test_samples_differ_but_have_one_world(train: SparseSource) -> None:
    test = mh.data.synthetic_670k("test", scale=0.05)
    first = {tuple(train.features[i].columns.tolist()) for i in range(1000)}
    assert not any(tuple(test.features[i].columns.tolist()) in first for i in range(1000))
    correlation = np.corrcoef(
        np.bincount(train.labels.columns, minlength=train.labels.width),
        np.bincount(test.labels.columns, minlength=test.labels.width),
    )
    assert correlation[0, 1] > 0.9


def test_labels_come_in_groups_of_neighbours(train: SparseSource) -> None:
    """Labels that share a sample with one label are few: those of its group."""
    together: dict[int, set[int]] = {}
    for row in range(len(train)):
        labels = train.labels[row].columns.tolist()
        for label in labels:
            together.setdefault(label, set()).update(labels)
    assert max(len(labels) for labels in together.values()) <= MEMBERS
    largest = max(together.values(), key=len)
    assert max(largest) - min(largest) > train.labels.width / 2  # spread over all numbers


def test_shared_words_point_to_shared_labels(train: SparseSource) -> None:
    features, labels = train.features[:300].to_dense(), train.labels[:300].to_dense()
    alike = features @ features.T
    alike.fill_diagonal_(0)
    nearest = alike.argmax(1)
    shared = (labels * labels[nearest]).sum(1) > 0
    strangers = (labels * labels.roll(1, 0)).sum(1) > 0
    assert shared.float().mean() > 0.3 > 10 * strangers.float().mean() + 0.1


def test_draws_depend_on_their_place_alone() -> None:
    draws = HashedDraws(5, 1)
    assert np.array_equal(draws.words(10, 5, 2), draws.words(0, 20, 2)[10:15])
    assert not np.array_equal(draws.words(0, 5), HashedDraws(5, 2).words(0, 5))
    assert not np.array_equal(draws.words(0, 5), HashedDraws(6, 1).words(0, 5))
    below = draws.below(0, 1000, 10, 7)
    assert np.bincount(below.reshape(-1)).min() > 1200
    assert np.bincount(below.reshape(-1)).max() < 1700
    assert draws.happens(0, 1000, 8, 16384).mean() == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "validation"}, "split is 'validation'"),
        ({"split": "train", "scale": 0.0}, "scale is 0.0"),
        ({"split": "train", "samples": 0}, "samples is 0"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mh.data.synthetic_670k(**arguments)  # type: ignore[arg-type]
