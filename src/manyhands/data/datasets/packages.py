"""Debian packages as an extreme-label set: from a package's name and description to what it needs.

Every Debian machine has it: tens of thousands of packages, a label for each package that others
depend on or recommend. A package is for testing when the hash of its name says so, so that the same
package is on the same side on every machine.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from manyhands.data.datasets.package_index import (
    Package,
    apt_packages,
    frozen_packages,
    packages_in,
)
from manyhands.data.sparse_source import SparseSource, packed
from manyhands.errors import ConfigError, DataError

Split = Literal["train", "test"]

TESTED = 5  # one package in five is for testing
TOO_COMMON = 0.03  # labels of more packages than this, such as libc6, would be every answer
WORD = re.compile(r"[a-z0-9]+(?:\+\+|#)?")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackageSet:
    """Both sides of the split, and what the columns mean: the word of each feature, the package of
    each label, commonest first."""

    train: SparseSource
    test: SparseSource
    words: tuple[str, ...]
    labels: tuple[str, ...]
    origin: str


def packages(split: Split, *, index: str = "auto") -> SparseSource:
    """Packages' words, weighted by how rare they are, with their dependencies as labels.

    `index` is where packages are listed: "apt" for `apt-cache dumpavail`, "frozen" for the small
    copy that ships with Manyhands, "auto" for apt's and, where there is none, the copy; or the path
    of an index file. With apt's index of Debian 12: about 42,000 training packages, 40,000 words
    and 20,000 labels.
    """
    if split not in ("train", "test"):
        raise ConfigError(f"split is {split!r}: expected 'train' or 'test'.")
    both = package_set(index)
    return both.train if split == "train" else both.test


@lru_cache(maxsize=2)
def package_set(index: str = "auto") -> PackageSet:
    """Both sides of the split, with the words and names behind the numbers."""
    found, origin = _listed(index)
    train = [package for package in found if not is_tested(package.name)]
    test = [package for package in found if is_tested(package.name)]
    names = _label_names(train)
    train = [package for package in train if not names.keys().isdisjoint(package.dependencies)]
    words = _by_frequency(word for package in train for word in sorted(set(words_of(package))))
    if not names or not words:
        raise DataError(
            f"{origin} lists {len(found)} packages, too few to learn from: expected hundreds, with "
            "descriptions and dependencies."
        )
    table = _Table(words, names, len(train))
    return PackageSet(
        train=table.source(train, origin),
        test=table.source(test, origin),
        words=tuple(words),
        labels=tuple(names),
        origin=origin,
    )


def words_of(package: Package) -> list[str]:
    """The words of its name and its line of description, in lower case."""
    return WORD.findall(f"{package.name} {package.description}".lower())


def is_tested(name: str) -> bool:
    """Whether a package is for testing, by the hash of its name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % TESTED == 0


def _listed(index: str) -> tuple[list[Package], str]:
    if index in ("auto", "apt"):
        found = apt_packages()
        if found is not None:
            return found, "apt-cache dumpavail"
        if index == "apt":
            raise DataError(
                "apt-cache dumpavail lists no packages here: run apt-get update, or pass "
                "index='frozen' for the small copy that ships with Manyhands."
            )
        logger.warning(
            "apt lists no packages here: using the small copy that ships with Manyhands."
        )
    if index in ("auto", "frozen"):
        return frozen_packages(), "the copy that ships with Manyhands"
    return packages_in(index), index


def _label_names(train: Sequence[Package]) -> dict[str, int]:
    counts = Counter(name for package in train for name in package.dependencies)
    most = TOO_COMMON * len(train)
    return _by_frequency(
        name for package in train for name in package.dependencies if counts[name] <= most
    )


def _by_frequency(names: Iterable[str]) -> dict[str, int]:
    """How often each name occurs, the commonest first and equals in the order of the alphabet."""
    counts = Counter(names)
    return {name: counts[name] for name in sorted(counts, key=lambda name: (-counts[name], name))}


class _Table:
    """Numbers for words and labels, and the weight of each word."""

    def __init__(self, words: dict[str, int], labels: dict[str, int], packages: int) -> None:
        self._word_numbers = {word: number for number, word in enumerate(words)}
        self._label_numbers = {label: number for number, label in enumerate(labels)}
        self._rarity = [math.log(1.0 + packages / count) for count in words.values()]

    def source(self, packages: Sequence[Package], origin: str) -> SparseSource:
        """The packages that have a known word and a known label."""
        pairs = [(self._features(package), self._labels(package)) for package in packages]
        kept = [(words, labels) for words, labels in pairs if words and labels]
        if not kept:
            raise DataError(f"{origin} leaves no packages on one side: expected hundreds.")
        features = packed(
            np.array([len(words) for words, _ in kept]),
            np.array([number for words, _ in kept for number, _ in words], dtype=np.int32),
            np.array([weight for words, _ in kept for _, weight in words], dtype=np.float32),
            len(self._word_numbers),
        )
        labels = packed(
            np.array([len(labels) for _, labels in kept]),
            np.array([number for _, labels in kept for number in labels], dtype=np.int32),
            None,
            len(self._label_numbers),
        )
        return SparseSource(features, labels)

    def _features(self, package: Package) -> list[tuple[int, float]]:
        """tf-idf, scaled so that the row has length 1."""
        counts = Counter(word for word in words_of(package) if word in self._word_numbers)
        numbers = sorted((self._word_numbers[word], count) for word, count in counts.items())
        weights = [count * self._rarity[number] for number, count in numbers]
        length = math.sqrt(sum(weight * weight for weight in weights))
        return [
            (number, weight / length) for (number, _), weight in zip(numbers, weights, strict=True)
        ]

    def _labels(self, package: Package) -> list[int]:
        known = (self._label_numbers.get(name) for name in package.dependencies)
        return sorted(number for number in known if number is not None)
