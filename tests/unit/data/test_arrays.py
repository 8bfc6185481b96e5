"""Arrays in memory: what comes out for what went in, and storage that processes can share."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from manyhands.data.arrays import ArraySource, arrays
from manyhands.errors import ConfigError

RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(0, 256, (10, 4, 5), dtype=np.uint8)
LABELS = np.arange(10)
SOME = np.array([7, 0, 7, 3])


def test_bytes_come_out_normalised_in_the_order_asked_for() -> None:
    source = arrays(BYTES, LABELS, mean=0.25, std=0.5)
    x, y = source.fetch(SOME, seed=0)
    assert x.dtype == torch.float32
    assert x.shape == (4, 1, 4, 5)
    expected = (torch.from_numpy(BYTES[SOME]).float() / 255 - 0.25) / 0.5
    torch.testing.assert_close(x[:, 0], expected)
    assert y.tolist() == [7, 0, 7, 3]
    assert y.dtype == torch.int64
    assert source.sliceable
    assert len(source) == 10


def test_without_statistics_bytes_lie_between_0_and_1() -> None:
    x, _ = arrays(np.array([[0, 255]], dtype=np.uint8), [0]).fetch(np.array([0]), seed=0)
    assert x.tolist() == [[0.0, 1.0]]


def test_channels_are_normalised_one_by_one() -> None:
    pixels = RANDOM.integers(0, 256, (3, 6, 6, 3), dtype=np.uint8)
    source = arrays(pixels, [0, 1, 2], mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0))
    x, _ = source.fetch(np.array([2]), seed=0)
    expected = (pixels[2] / 255 - np.array([0.1, 0.2, 0.3])) / np.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(x[0].permute(1, 2, 0).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_real_numbers_pass_unchanged_and_the_users_array_is_never_written_to() -> None:
    values = RANDOM.normal(size=(6, 3)).astype(np.float32)
    before = values.copy()
    x, _ = arrays(values, np.zeros(6), mean=1.0, std=2.0).fetch(np.arange(6), seed=0)
    np.testing.assert_allclose(x.numpy(), (before - 1.0) / 2.0, rtol=1e-6)
    plain = arrays(values, np.zeros(6)).fetch(np.arange(6), seed=0)[0]
    plain.zero_()
    assert (values == before).all()


def test_integers_stay_integers_for_embeddings() -> None:
    x, _ = arrays(np.array([[3, 70_000]], dtype=np.int32), [1]).fetch(np.array([0]), seed=0)
    assert x.dtype == torch.int64
    assert x.tolist() == [[3, 70_000]]
    with pytest.raises(ConfigError, match="integers"):
        arrays(np.array([[3, 4]]), [1], mean=0.5)


def test_statistics_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"mean is \(0.1, 0.2\): expected one number or 1"):
        arrays(BYTES, LABELS, mean=(0.1, 0.2))
    with pytest.raises(ConfigError, match=r"std is 0.0: expected numbers above 0"):
        arrays(BYTES, LABELS, std=0.0)
    with pytest.raises(ConfigError, match="mean is nan"):
        arrays(BYTES, LABELS, mean=float("nan"))


def test_storage_can_be_moved_and_the_settings_stay() -> None:
    source = arrays(BYTES, LABELS, mean=0.5, std=0.5)
    shared = [tensor.clone().share_memory_() for tensor in source.tensors()]
    moved = source.with_tensors(shared)
    assert [a.data_ptr() for a in moved.tensors()] == [b.data_ptr() for b in shared]
    assert torch.equal(moved.fetch(SOME, seed=0)[0], source.fetch(SOME, seed=0)[0])
    assert source.tensors()[0].data_ptr() != shared[0].data_ptr()


def test_storage_of_another_form_is_refused() -> None:
    source = arrays(BYTES, LABELS)
    pixels, labels = source.tensors()
    for wrong in ([pixels], [pixels.float(), labels], [pixels[:5], labels[:5]]):
        with pytest.raises(ValueError, match="differ"):
            source.with_tensors(wrong)


def test_survives_pickling() -> None:
    source = arrays(BYTES, LABELS, mean=0.5)
    copied = pickle.loads(pickle.dumps(source))
    assert torch.equal(copied.fetch(SOME, seed=0)[0], source.fetch(SOME, seed=0)[0])


def test_without_normalisation_any_number_of_tensors_is_gathered_as_it_is() -> None:
    source = ArraySource([torch.arange(4, dtype=torch.uint8), torch.ones(4, 2), torch.zeros(4)])
    first, second, third = source.fetch(np.array([3, 1]), seed=0)
    assert first.tolist() == [3, 1]
    assert first.dtype == torch.uint8
    assert second.shape == (2, 2)
    assert third.shape == (2,)
