"""Checkpoints: complete, checked to the byte, and never a moment without one."""

from __future__ import annotations

import math
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from manyhands.errors import CheckpointError
from manyhands.run.checkpoint import Checkpoint, load_latest, save


def checkpoint(epoch: int, **changes: Any) -> Checkpoint:
    weight = torch.full((8, 4), float(epoch))
    fields: dict[str, Any] = {
        "epoch": epoch,
        "step": epoch * 100,
        "model": {"a.weight": weight, "b.weight": weight, "seen": torch.tensor(epoch)},
        "optimizer": {"a.weight.momentum": torch.full((8, 4), epoch + 0.5)},
        "extra": {"rng": b"\x00\xff", "history": [{"loss": math.inf, "accuracy": 0.5}]},
    }
    return Checkpoint(**{**fields, **changes})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_everything_comes_back(tmp_path: Path) -> None:
    saved = checkpoint(3, averaged={"a.weight": torch.ones(2)})
    path = save(tmp_path / "checkpoints", saved)
    restored = load_latest(tmp_path / "checkpoints")
    assert (restored.path, restored.refused) == (path, ())
    loaded = restored.checkpoint
    assert (loaded.epoch, loaded.step, loaded.extra) == (3, 300, saved.extra)
    assert loaded.averaged is not None
    for mine, theirs in [
        (saved.model, loaded.model),
        (saved.optimizer, loaded.optimizer),
        (saved.averaged or {}, loaded.averaged),
    ]:
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert loaded.model["a.weight"].data_ptr() == loaded.model["b.weight"].data_ptr()


def test_an_empty_optimizer_and_no_average_come_back(tmp_path: Path) -> None:
    save(tmp_path, checkpoint(1, optimizer={}, extra={}))
    loaded = load_latest(tmp_path).checkpoint
    assert (loaded.optimizer, loaded.averaged, loaded.extra) == ({}, None, {})


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for epoch in range(1, 6):
        save(tmp_path, checkpoint(epoch))
    assert names(tmp_path) == ["epoch-0004", "epoch-0005"]


@pytest.mark.parametrize("keep", [1, 2, 4, 9])
def test_keep_says_how_many(tmp_path: Path, keep: int) -> None:
    for epoch in range(1, 7):
        save(tmp_path, checkpoint(epoch), keep=keep)
    assert names(tmp_path) == [f"epoch-{n:04d}" for n in range(max(1, 7 - keep), 7)]


def test_an_epoch_saved_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, checkpoint(1))
    save(tmp_path, checkpoint(2))
    save(tmp_path, checkpoint(2, step=250))
    assert names(tmp_path) == ["epoch-0001", "epoch-0002.1"]
    assert load_latest(tmp_path).checkpoint.step == 250


def test_after_a_fallback_the_damaged_future_gives_way(tmp_path: Path) -> None:
    for epoch in (1, 2):
        save(tmp_path, checkpoint(epoch))
    (tmp_path / "epoch-0002" / "model.safetensors").unlink()
    save(tmp_path, checkpoint(2))
    assert names(tmp_path) == ["epoch-0001", "epoch-0002.1"]


def test_leftovers_of_a_killed_writer_go(tmp_path: Path) -> None:
    (tmp_path / ".epoch-0001.partial-0123").mkdir()
    (tmp_path / ".epoch-0001.partial-0123" / "model.safetensors").write_bytes(b"half")
    save(tmp_path, checkpoint(1))
    assert names(tmp_path) == ["epoch-0001"]


def test_a_value_that_cannot_be_stored_leaves_the_others_alone(tmp_path: Path) -> None:
    save(tmp_path, checkpoint(1))
    with pytest.raises(TypeError, match="can't hold"):
        save(tmp_path, checkpoint(2, extra={"what": object()}))
    with pytest.raises(CheckpointError, match="complex128"):
        save(tmp_path, checkpoint(2, model={"a": torch.ones(1, dtype=torch.complex128)}))
    assert names(tmp_path) == ["epoch-0001"]


def test_no_checkpoint_at_all_is_a_sentence(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            load_latest(folder)


FILES = ["model.safetensors", "optimizer.safetensors", "checkpoint.json", "SHA256SUMS"]


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_foreign(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" * 20)


def damage_missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [damage_cut, damage_empty, damage_foreign, damage_missing])
def test_damage_is_named_and_the_one_before_is_used(tmp_path: Path, file: str, damage: Any) -> None:
    save(tmp_path, checkpoint(1))
    save(tmp_path, checkpoint(2))
    damage(tmp_path / "epoch-0002" / file)
    if (file, damage) == ("SHA256SUMS", damage_cut):  # only its last newline: nothing is lost
        damage(tmp_path / "epoch-0002" / file)
    restored = load_latest(tmp_path)
    assert restored.checkpoint.epoch == 1
    assert len(restored.refused) == 1
    assert f"epoch-0002/{file}" in restored.refused[0]


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path, checkpoint(1))
    generator = random.Random(0)
    for file in FILES:
        whole = (path / file).read_bytes()
        for _ in range(60):
            flipped = bytearray(whole)
            flipped[generator.randrange(len(whole) - 1)] ^= 1 << generator.randrange(8)
            (path / file).write_bytes(flipped)
            with pytest.raises(CheckpointError, match="epoch-0001"):
                load_latest(tmp_path)
        (path / file).write_bytes(whole)
    assert load_latest(tmp_path).checkpoint.epoch == 1


def test_a_file_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    save(tmp_path, checkpoint(1))
    save(tmp_path, checkpoint(2))
    (tmp_path / "epoch-0001" / "optimizer.safetensors").replace(
        tmp_path / "epoch-0002" / "optimizer.safetensors"
    )
    with pytest.raises(
        CheckpointError, match=r"epoch-0002/optimizer\.safetensors is damaged or not"
    ):
        load_latest(tmp_path)


def test_another_version_is_refused_by_name(tmp_path: Path) -> None:
    path = save(tmp_path, checkpoint(1))
    state = path / "checkpoint.json"
    state.write_text(state.read_text().replace("checkpoint 1", "checkpoint 9"))
    subprocess.run("sha256sum *.* > SHA256SUMS", shell=True, cwd=path, check=True)
    with pytest.raises(CheckpointError, match="'manyhands checkpoint 9'"):
        load_latest(tmp_path)


def test_sha256sum_agrees(tmp_path: Path) -> None:
    path = save(tmp_path, checkpoint(1))
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=path, check=True
    )


SAVE_TOO_MUCH = """
import resource, sys
import torch
from manyhands.errors import CheckpointError
from manyhands.run.checkpoint import Checkpoint, save
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    save(sys.argv[1], Checkpoint(epoch=2, step=2, model={"a": torch.ones(500_000)}, optimizer={}))
except CheckpointError as error:
    print(error)
"""


def save_too_much(folder: Path, how: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SAVE_TOO_MUCH, str(folder), how],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_write_that_fails_keeps_the_one_before(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    save(tmp_path, checkpoint(1))
    message = save_too_much(tmp_path, "limit")
    assert "epoch-0002 could not be written: File too large. The one before, epoch-0001" in message
    assert load_latest(tmp_path).checkpoint.epoch == 1
    assert names(tmp_path) == ["epoch-0001"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root; the limit on file size is tested anyway")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_keeps_the_one_before(small_disk: Path) -> None:
    save(small_disk, checkpoint(1))
    message = save_too_much(small_disk, "full disk")
    assert "could not be written: No space left on device." in message
    assert load_latest(small_disk).checkpoint.epoch == 1
    save(small_disk, checkpoint(2))
    assert names(small_disk) == ["epoch-0001", "epoch-0002"]


KILL_WRITERS = """
import os, random, signal, sys, time
import torch
from manyhands.run.checkpoint import Checkpoint, load_latest, save

def save_forever(folder, epoch, reports):
    while True:
        tensors = {f"layer{i}": torch.full((4000,), float(epoch)) for i in range(4)}
        save(folder, Checkpoint(epoch=epoch, step=epoch, model=tensors, optimizer=tensors))
        os.write(reports, b"%d\\n" % epoch)
        epoch += 1

torch.set_num_threads(1)
folder, last = sys.argv[1], 0
for _ in range(20):
    incoming, reports = os.pipe()
    writer = os.fork()
    if writer == 0:
        save_forever(folder, last + 1, reports)
    os.close(reports)
    with os.fdopen(incoming) as lines:
        reported = int(lines.readline())
        time.sleep(random.uniform(0, 0.03))  # to strike anywhere within the next few saves
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        reported = max([reported, *map(int, lines)])
    restored = load_latest(folder)
    last = restored.checkpoint.epoch
    assert restored.refused == (), restored.refused
    assert last >= reported, (last, reported)
    for tensors in (restored.checkpoint.model, restored.checkpoint.optimizer):
        assert len(tensors) == 4
        assert all(torch.equal(t, torch.full((4000,), float(last))) for t in tensors.values())
"""


def test_a_writer_killed_at_any_moment_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILL_WRITERS, str(tmp_path)], check=True)
    save(tmp_path, checkpoint(1_000_000))
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_the_average_is_handed_over_under_every_name_of_a_tied_weight(tmp_path):
    tied, other = torch.zeros(3), torch.ones(2)
    averaged = {"a.weight": torch.full((3,), 5.0)}
    model = {"a.weight": tied, "b.weight": tied, "bias": other}
    save(tmp_path, Checkpoint(epoch=1, step=1, model=model, optimizer={}, averaged=averaged))
    weights = load_latest(tmp_path).checkpoint.best_weights
    assert torch.equal(weights["a.weight"], averaged["a.weight"])
    assert torch.equal(weights["b.weight"], averaged["a.weight"])
    assert torch.equal(weights["bias"], other)
