"""Debian packages as an extreme-label set: the index's form, the split, the weights, our copy."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

import manyhands as mh
from manyhands.data.datasets import package_index
from manyhands.data.datasets.package_index import (
    Package,
    apt_packages,
    frozen_packages,
    packages_in,
    read_packages,
)
from manyhands.data.datasets.packages import PackageSet, is_tested, package_set, words_of
from manyhands.errors import ConfigError, DataError

INDEX = b"""Package: zeal
Version: 1:0.6
Depends: libc6 (>= 2.34), libqt5gui5 (>= 5.14) | libqt5gui5-gles, python3:any,
 libarchive13 | libarchive14
Pre-Depends: dpkg
Recommends: zeal, libc6
Description: Simple offline C++ documentation browser
 More words that don't count.

Package: abcm2ps
Depends: libc6
Description: Translates ABC music to PostScript

Package: abcm2ps
Description: an older version
"""


@pytest.fixture(scope="module")
def frozen() -> PackageSet:
    return package_set("frozen")


def test_packages_are_read_once_each_and_by_name() -> None:
    assert read_packages(INDEX.splitlines(keepends=True)) == [
        Package("abcm2ps", "Translates ABC music to PostScript", ("libc6",)),
        Package(
            "zeal",
            "Simple offline C++ documentation browser",
            ("dpkg", "libc6", "libqt5gui5", "python3", "libarchive13"),
        ),
    ]


def test_words_are_those_of_name_and_description() -> None:
    package = Package("zeal-dev", "Simple offline C++ browser, C# too", ())
    assert words_of(package) == ["zeal", "dev", "simple", "offline", "c++", "browser", "c#", "too"]


def test_our_copy_is_large_enough_to_learn_from(frozen: PackageSet) -> None:
    assert (len(frozen.train), len(frozen.test)) == (7165, 1547)
    assert (frozen.train.features.width, frozen.train.labels.width) == (11815, 12711)
    assert frozen.test.features.width == frozen.train.features.width
    assert frozen.test.labels.width == frozen.train.labels.width
    assert frozen.train.labels.nnz / len(frozen.train) > 4


def test_rows_say_what_the_packages_say(frozen: PackageSet) -> None:
    package = next(
        p for p in frozen_packages() if not is_tested(p.name) and len(p.dependencies) > 3
    )
    words = sorted(set(words_of(package)), key=frozen.words.index)
    rows = frozen.train.features
    wanted = [frozen.words.index(word) for word in words]
    matches = [i for i in range(200) if rows[i].columns.tolist() == wanted]
    labels = [frozen.labels[n] for n in frozen.train.labels[matches[0]].columns.tolist()]
    assert set(labels) <= set(package.dependencies)
    assert len(labels) > 1


def test_rare_words_weigh_more_and_rows_have_length_one(frozen: PackageSet) -> None:
    features = frozen.train.features
    for row in (features[i] for i in range(50)):
        assert row.values is not None
        assert float((row.values**2).sum()) == pytest.approx(1.0, abs=1e-5)
    counts = np.bincount(features.columns, minlength=features.width)
    assert (np.diff(counts) <= 0).all()  # numbered by how common they are
    row = features[0]
    assert row.values is not None
    common, rare = int(row.columns.argmin()), int(row.columns.argmax())
    assert row.values[common] < row.values[rare]


def test_no_label_is_every_answer(frozen: PackageSet) -> None:
    counts = np.bincount(frozen.train.labels.columns, minlength=frozen.train.labels.width)
    assert counts.max() < 0.05 * len(frozen.train)
    assert counts.min() >= 1
    assert "libc6" not in frozen.labels


def test_the_split_is_by_name() -> None:
    names = [f"package-{number}" for number in range(2000)]
    assert sum(map(is_tested, names)) == pytest.approx(400, abs=60)
    assert [name for name in names[:30] if is_tested(name)] == [
        "package-1",
        "package-3",
        "package-23",
        "package-24",
        "package-25",
        "package-27",
    ]


def test_the_parts_are_the_sources(frozen: PackageSet) -> None:
    assert mh.data.packages("train", index="frozen") is frozen.train
    assert mh.data.packages("test", index="frozen") is frozen.test
    with pytest.raises(ConfigError, match="split is 'all'"):
        mh.data.packages("all", index="frozen")  # type: ignore[arg-type]


def test_without_apt_our_copy_is_used_and_said_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    package_set.cache_clear()
    with caplog.at_level(logging.WARNING):
        found = package_set("auto")
    package_set.cache_clear()
    assert "small copy" in caplog.text
    assert found.origin == "the copy that ships with Manyhands"
    with pytest.raises(DataError, match="apt-get update"):
        package_set("apt")


def fake_apt(folder: Path, script: str) -> None:
    program = folder / "apt-cache"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_an_apt_without_an_index_counts_as_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_apt(tmp_path, "echo 'Package: only-one'")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert apt_packages() is None


def test_apt_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    index = "\n\n".join(f"Package: p{i}\nDepends: d{i % 7}" for i in range(1200))
    (tmp_path / "index").write_text(index)
    fake_apt(tmp_path, f'test "$1" = dumpavail && exec /bin/cat {tmp_path / "index"}')
    monkeypatch.setenv("PATH", str(tmp_path))
    found = apt_packages()
    assert found is not None
    assert len(found) == 1200
    fake_apt(tmp_path, f"/bin/cat {tmp_path / 'index'}; exit 3")
    assert apt_packages() is None


@pytest.mark.parametrize("zipped", [False, True])
def test_an_index_file(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "Packages"
    path.write_bytes(gzip.compress(INDEX) if zipped else INDEX)
    assert [package.name for package in packages_in(path)] == ["abcm2ps", "zeal"]


def test_an_index_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "Packages"
    with pytest.raises(DataError, match="can't be read"):
        packages_in(path)
    path.write_bytes(b"\x1f\x8b\x08broken")
    with pytest.raises(DataError, match="damaged gzip"):
        packages_in(path)
    path.write_bytes(b"\xff\x00 nothing: here\n")
    with pytest.raises(DataError, match="holds no packages"):
        packages_in(path)
    path.write_bytes(INDEX)
    with pytest.raises(DataError, match=r"too few to learn from|leaves no packages"):
        package_set(str(path))


def test_a_changed_copy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index, "FROZEN_SHA256", "0" * 64)
    with pytest.raises(DataError, match="the file was changed"):
        frozen_packages()


def test_the_same_numbers_each_time(frozen: PackageSet) -> None:
    package_set.cache_clear()
    again = package_set("frozen")
    assert again.labels == frozen.labels
    for first, second in zip(again.train.tensors(), frozen.train.tensors(), strict=True):
        assert torch.equal(first, second)
