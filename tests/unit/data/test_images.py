"""Folders of images: classes, sizes, unreadable files, and the cache of decoded pictures."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from manyhands.data import image_files
from manyhands.data.images import images
from manyhands.errors import ConfigError, DataError

SOLID = {"ant": (255, 0, 0), "bee": (0, 255, 0), "cat": (0, 0, 255)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of two pictures, each in one colour, and things that are to be passed over."""
    for name, colour in SOLID.items():
        (tmp_path / name).mkdir()
        for number, suffix in enumerate(("png", "bmp")):
            Image.new("RGB", (8, 6), colour).save(tmp_path / name / f"{number}.{suffix}")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "notes.txt").write_text("not a class")
    (tmp_path / "ant" / ".0.png").write_bytes(b"a hidden file")
    (tmp_path / "ant" / "readme.md").write_text("not a picture")
    return tmp_path


def everything(source: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return source.fetch(np.arange(len(source)), seed=0)


def test_classes_are_sorted_and_pictures_labelled(folder: Path) -> None:
    source = images(folder)
    assert source.classes == ("ant", "bee", "cat")
    assert len(source) == 6
    assert source.sliceable
    x, y = everything(source)
    assert x.shape == (6, 3, 6, 8)
    assert y.tolist() == [0, 0, 1, 1, 2, 2]
    assert x[:, :, 3, 3].tolist() == [[1, 0, 0]] * 2 + [[0, 1, 0]] * 2 + [[0, 0, 1]] * 2


def test_pictures_are_normalised_by_channel(folder: Path) -> None:
    x, _ = everything(images(folder, mean=(0.5, 0.0, 0.0), std=(0.5, 1.0, 1.0)))
    assert x[0, :, 0, 0].tolist() == [1.0, 0.0, 0.0]
    assert x[2, :, 0, 0].tolist() == [-1.0, 1.0, 0.0]


def test_resizing_covers_the_size_and_crops_at_the_centre(tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir()
    pixels = np.zeros((10, 30, 3), dtype=np.uint8)
    pixels[:, 10:20] = 255  # only the middle third is white
    Image.fromarray(pixels).save(tmp_path / "wide" / "0.png")
    x, _ = everything(images(tmp_path, size=10))
    assert x.shape == (1, 3, 10, 10)
    assert (x == 1.0).all()
    assert everything(images(tmp_path, size=(4, 12)))[0].shape == (1, 3, 4, 12)


def test_grey_and_sixteen_bit_pictures(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    deep = np.full((4, 4), 0x8000, dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep" / "0.png")
    x, _ = everything(images(tmp_path, grey=True))
    assert x.shape == (1, 1, 4, 4)
    assert x[0, 0, 0, 0] == pytest.approx(128 / 255)
    assert everything(images(tmp_path))[0].shape == (1, 3, 4, 4)


def test_palettes_and_transparency_become_rgb(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGBA", (4, 4), (255, 0, 0, 128)).save(tmp_path / "a" / "0.png")
    Image.new("P", (4, 4)).save(tmp_path / "a" / "1.gif")
    assert everything(images(tmp_path))[0].shape == (2, 3, 4, 4)


def test_pictures_in_folders_within_a_class_are_found(folder: Path) -> None:
    (folder / "bee" / "more").mkdir()
    Image.new("RGB", (8, 6)).save(folder / "bee" / "more" / "9.jpg")
    assert everything(images(folder))[1].tolist() == [0, 0, 1, 1, 1, 2, 2]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow's, before it gives up on a tif
@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "tif", "webp"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_an_unreadable_picture_is_named(folder: Path, suffix: str, share: float) -> None:
    broken = folder / "bee" / f"2.{suffix}"
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(broken)
    whole = broken.read_bytes()
    broken.write_bytes(whole[: int(share * len(whole))])
    source = images(folder)
    with pytest.raises(DataError, match=rf"2.{suffix} can't be read as an image .*replace it"):
        everything(source)
    assert len(source.fetch(np.array([0, 5]), seed=0)[0]) == 2


def test_a_picture_that_vanished_is_named(folder: Path) -> None:
    source = images(folder)
    (folder / "cat" / "1.bmp").unlink()
    with pytest.raises(DataError, match=r"cat/1.bmp can't be read"):
        everything(source)


def test_pictures_of_different_sizes_need_a_size(folder: Path) -> None:
    Image.new("RGB", (9, 9)).save(folder / "cat" / "2.png")
    with pytest.raises(DataError, match=r"cat/2.png is 9 x 9 .* first image 6 x 8: pass size="):
        everything(images(folder))
    assert everything(images(folder, size=5))[0].shape == (7, 3, 5, 5)


def test_folders_that_hold_no_classes_or_no_pictures_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="nowhere is not a folder"):
        images(folder / "nowhere")
    with pytest.raises(DataError, match="ant has no sub-folders: expected one per class"):
        images(folder / "ant")
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no images .*remove the folder"):
        images(folder)


@pytest.mark.parametrize("size", [0, -3, (4,), (4, 0), (4, 4, 4), (4.5, 4)])
def test_wrong_sizes_are_refused(folder: Path, size: Any) -> None:
    with pytest.raises(ConfigError, match="size is"):
        images(folder, size=size)


def test_wrong_budgets_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="cache_bytes is -1"):
        images(folder, cache_bytes=-1)
    with pytest.raises(ConfigError, match="threads is 0"):
        images(folder, threads=0)


def count_decodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []
    original = image_files._open

    def counting(path: str, *, grey: bool) -> Image.Image:
        opened.append(path)
        return original(path, grey=grey)

    monkeypatch.setattr(image_files, "_open", counting)
    return opened


def test_the_cache_decodes_once_and_gives_the_same_pixels(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = images(folder)
    opened = count_decodes(monkeypatch)
    first = source.fetch(np.array([5, 0, 3]), seed=0)[0]
    again = source.fetch(np.array([0, 5, 1, 3]), seed=0)[0]
    assert len(opened) == 4
    assert torch.equal(again[[1, 0, 3]], first)
    assert again[2].tolist() == first[1].tolist()  # both are of the first class, in one colour


def test_the_cache_keeps_to_its_budget(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = images(folder, cache_bytes=2 * 6 * 8 * 3 + 5)
    assert source.tensors()[0].numel() == 2 * 6 * 8 * 3
    opened = count_decodes(monkeypatch)
    for _ in range(3):
        everything(source)
    assert len(opened) == 6 + 4 + 4
    uncached = images(folder, cache_bytes=0)
    assert torch.equal(everything(uncached)[0], everything(source)[0])


def test_processes_can_share_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = images(folder)
    shared = [tensor.share_memory_() for tensor in source.tensors()]
    one, other = source.with_tensors(shared), source.with_tensors(shared)
    everything(one)
    opened = count_decodes(monkeypatch)
    everything(other)
    assert opened == []


def test_a_source_in_use_can_be_pickled(folder: Path) -> None:
    source = images(folder)
    x, _ = everything(source)
    copied = pickle.loads(pickle.dumps(source))
    assert torch.equal(everything(copied)[0], x)


def fetch_in_child(source: Any, answer: Any) -> None:
    torch.set_num_threads(1)
    answer.put(everything(source)[1].tolist())


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")  # which is what is tested
def test_a_forked_process_gets_threads_of_its_own(folder: Path) -> None:
    source = images(folder, cache_bytes=0, threads=1)
    everything(source)
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    child = context.Process(target=fetch_in_child, args=(source, answer))
    child.start()
    child.join(timeout=60)
    alive = child.is_alive()
    child.kill()
    child.join()
    assert not alive
    assert answer.get() == [0, 0, 1, 1, 2, 2]
