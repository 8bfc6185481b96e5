"""Weights in safetensors files: ties, dtypes, refusals, and what safetensors itself reads."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model, save_model
from torch import nn

from manyhands.errors import CheckpointError
from manyhands.run.weights import load_weights, save_weights


class Tied(nn.Module):
    """A decoder that shares its weight with the encoder, and a BatchNorm with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.decoder = nn.Linear(6, 6)
        self.decoder.weight = self.encoder.weight


def test_tied_weights_are_stored_once_and_tied_again(tmp_path: Path) -> None:
    weights = Tied().state_dict()
    save_weights(tmp_path / "model.safetensors", weights)
    assert "decoder.weight" not in load_file(tmp_path / "model.safetensors")

    loaded = load_weights(tmp_path / "model.safetensors")
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    assert loaded["encoder.weight"].data_ptr() == loaded["decoder.weight"].data_ptr()


def test_safetensors_loads_a_tied_model(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    save_weights(tmp_path / "model.safetensors", model.state_dict())
    load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(other.decoder.weight, model.encoder.weight)


def test_files_of_safetensors_save_model_are_read(tmp_path: Path) -> None:
    model = Tied()
    save_model(model, str(tmp_path / "theirs.safetensors"))
    Tied().load_state_dict(load_weights(tmp_path / "theirs.safetensors"))


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool],
)
def test_dtypes_scalars_and_empty_tensors_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = {
        "some": torch.tensor([0, 1, 3]).to(dtype),
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.empty(0, 3, dtype=dtype),
        "empty too": torch.empty(0, dtype=dtype),
    }
    save_weights(tmp_path / "w.safetensors", weights)
    loaded = load_weights(tmp_path / "w.safetensors")
    assert all(torch.equal(loaded[n], weights[n]) and loaded[n].dtype == dtype for n in weights)
    assert loaded.keys() == weights.keys()


def test_views_of_one_buffer_and_strided_tensors_come_back(tmp_path: Path) -> None:
    buffer = torch.arange(24.0)
    weights = {
        "first": buffer[:12].view(3, 4),
        "second": buffer[12:],
        "transposed": buffer[:12].view(3, 4).t(),
        "overlapping": buffer[6:18],
        "channels last": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }
    save_weights(tmp_path / "w.safetensors", weights)
    loaded = load_weights(tmp_path / "w.safetensors")
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)


def test_loaded_tensors_outlive_the_file(tmp_path: Path) -> None:
    save_weights(tmp_path / "w.safetensors", {"a": torch.ones(1000)})
    loaded = load_weights(tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(b"")
    loaded["a"].add_(1)
    assert loaded["a"].sum() == 2000


def test_the_file_is_readable_as_the_umask_says_and_nothing_else_is_left(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        save_weights(tmp_path / "w.safetensors", {"a": torch.ones(2)})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "w.safetensors").stat().st_mode) == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_a_failed_write_keeps_the_old_file_and_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(path, {"a": torch.ones(2)})
    with pytest.raises(CheckpointError, match="complex128"):
        save_weights(path, {"a": torch.ones(2, dtype=torch.complex128)})
    assert torch.equal(load_weights(path)["a"], torch.ones(2))
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".w.safetensors.partial-0123"
    leftover.mkdir()
    (leftover / "w.safetensors").write_bytes(b"half")
    save_weights(tmp_path / "w.safetensors", {"a": torch.ones(2)})
    assert not leftover.exists()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": 1}, "'extra' in the state dict is a dict"),
        (torch.eye(3).to_sparse(), "layout torch.sparse_coo"),
        (torch.ones(2, device="meta"), "device meta"),
    ],
)
def test_what_is_not_a_dense_tensor_is_refused(tmp_path: Path, value: object, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        save_weights(tmp_path / "w.safetensors", {"extra": value})  # type: ignore[dict-item]


def test_bad_targets_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere/w\.safetensors.*No such file"):
        save_weights(tmp_path / "nowhere" / "w.safetensors", {"a": torch.ones(2)})
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=r"folder.*Is a directory"):
        save_weights(tmp_path / "folder", {"a": torch.ones(2)})


def test_bad_sources_are_refused_by_name(tmp_path: Path) -> None:
    good = tmp_path / "good.safetensors"
    save_weights(good, {"a": torch.ones(100)})
    (tmp_path / "cut.safetensors").write_bytes(good.read_bytes()[:-7])
    (tmp_path / "empty.safetensors").write_bytes(b"")
    (tmp_path / "foreign.safetensors").write_bytes(b"\x89PNG\r\n" * 100)
    for name in ("cut", "empty", "foreign", "missing"):
        with pytest.raises(CheckpointError, match=rf"{name}\.safetensors"):
            load_weights(tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match="can't be read"):
        load_weights(tmp_path)
