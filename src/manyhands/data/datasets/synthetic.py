"""A made-up extreme-label set with the statistics of Amazon-670K (its figures are in `SIZES`).

How a sample is made, in the words of a shop:

    a group of 64 products, popular ones more often        Zipf's law over the groups
    the products bought: each of the group by its share    about 5.4 labels
    words of the theme that 16 groups share                easy: what kind of thing it is
    words of the group                                     easy: which 64 products
    words of each product bought                           hard: which of the 64
    a few words of products of the group not bought        misleading, as titles are
    words of the language, common ones more often          noise

So every label has 63 others that look almost the same: telling a label from random other ones is
not enough, and a model's errors are with its neighbours. Word counts become values, and every row
has length 1. Labels are renumbered so that a group's are far apart, as in the real set.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Literal

import numpy as np
import numpy.typing as npt

from manyhands.data.datasets.hashed_draws import HashedDraws, events, falling_shares
from manyhands.data.sparse_source import SparseSource, packed
from manyhands.errors import ConfigError
from manyhands.sparse.csr import CSR

Split = Literal["train", "test"]
# How many entries each row has, their columns, and their values where they are not all 1.
Rows = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32] | None]

# Amazon-670K: Bhatia et al., the extreme classification repository.
SIZES = {"features": 135_909, "labels": 670_091, "train": 490_449, "test": 153_025}

MEMBERS = 64  # labels in a group
GROUPS_IN_THEME = 16
GROUP_OFFSET = 350  # Zipf's law begins at rank groups / 350: the largest group has 0.6% of samples
LABELS_A_SAMPLE, MEMBER_OFFSET = 5.43, 20  # members' shares fall as 1 / (rank + 20)
THEME_WORDS, GROUP_WORDS, OWN_WORDS = 16, 40, 8  # that there are
THEME_CHANCE, GROUP_CHANCE, OWN_CHANCE = 0.5, 0.65, 0.5  # that a sample has one of them
MISLEADING_WORDS, NOISE_WORDS = 6, 14  # in every sample
CHUNK = 16_384  # samples made at once


@dataclass(frozen=True, slots=True)
class Plan:
    """What all samples of a set have in common: who belongs together, and with which words."""

    features: int
    labels: int
    seed: int
    group_sums: npt.NDArray[np.int64]
    member_chances: npt.NDArray[np.int64]
    theme_words: npt.NDArray[np.int64]
    group_words: npt.NDArray[np.int64]
    own_words: npt.NDArray[np.int64]
    common_words: npt.NDArray[np.int64]
    label_step: int


def synthetic_670k(
    split: Split, *, scale: float = 1.0, samples: int | None = None, seed: int = 0
) -> SparseSource:
    """The training or test samples of a made-up set of Amazon-670K's size and shape.

    `scale` shrinks features, labels and samples alike; `samples` asks for the first few only. The
    same arguments give the same samples on every machine. All 490,449 training samples take about
    20 s to make and 300 MB to hold.
    """
    if split not in ("train", "test"):
        raise ConfigError(f"split is {split!r}: expected 'train' or 'test'.")
    if not 1e-3 <= scale <= 10.0:
        raise ConfigError(f"scale is {scale}: expected a number from 0.001 to 10.")
    sizes = {name: round(size * scale) for name, size in SIZES.items()}
    count = sizes[split] if samples is None else min(samples, sizes[split])
    if count < 1:
        raise ConfigError(f"samples is {samples}: expected 1 or more.")
    plan = _plan(sizes["features"], sizes["labels"], seed)
    first = 0 if split == "train" else sizes["train"]
    parts = [
        _samples(plan, start, min(CHUNK, first + count - start))
        for start in range(first, first + count, CHUNK)
    ]
    features = _joined([part[0] for part in parts], plan.features)
    labels = _joined([part[1] for part in parts], plan.labels)
    return SparseSource(features, labels)


def _plan(features: int, labels: int, seed: int) -> Plan:
    groups = -(-labels // MEMBERS)
    themes = -(-groups // GROUPS_IN_THEME)
    shares = np.diff(falling_shares(MEMBERS, offset=MEMBER_OFFSET), prepend=0)
    common = falling_shares(features, offset=8)
    quantiles = (np.arange(65536) * 2 + 1) * (int(common[-1]) // 131072)
    return Plan(
        features=features,
        labels=labels,
        seed=seed,
        group_sums=falling_shares(groups, offset=max(1, groups // GROUP_OFFSET)),
        member_chances=shares * _of_65536(LABELS_A_SAMPLE) // shares.sum(),
        theme_words=HashedDraws(seed, 1).below(0, themes, THEME_WORDS, features),
        group_words=HashedDraws(seed, 2).below(0, groups, GROUP_WORDS, features),
        own_words=HashedDraws(seed, 3).below(0, groups * MEMBERS, OWN_WORDS, features),
        common_words=np.searchsorted(common, quantiles, side="right"),
        label_step=_step_through(labels),
    )


def _samples(plan: Plan, first: int, count: int) -> tuple[Rows, Rows]:
    """The features and labels of samples first to first + count - 1."""
    groups = _chosen_groups(plan, first, count)
    rows, members = _chosen_members(plan, first, groups)
    positions = groups[rows] * MEMBERS + members
    keys = np.concatenate(
        [
            _words(plan, 12, first, plan.theme_words[groups // GROUPS_IN_THEME], THEME_CHANCE),
            _words(plan, 13, first, plan.group_words[groups], GROUP_CHANCE),
            _own_words(plan, first, rows, members, positions),
            _misleading_words(plan, first, groups),
            _noise_words(plan, first, count),
        ]
    )
    return _counted(plan, count, keys), _numbered(plan, count, rows, positions)


def _chosen_groups(plan: Plan, first: int, count: int) -> npt.NDArray[np.int64]:
    sums = plan.group_sums
    # The sums are below 2^46: the remainder of 64 random bits is as good as even.
    drawn = HashedDraws(plan.seed, 10).words(first, count)[:, 0] % np.uint64(sums[-1])
    return np.searchsorted(sums, drawn.astype(np.int64), side="right")


def _chosen_members(
    plan: Plan, first: int, groups: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows and members of all labels; each sample has one at least."""
    bought = HashedDraws(plan.seed, 11).happens(first, len(groups), MEMBERS, plan.member_chances)
    # The last group may have fewer labels than places.
    bought &= groups[:, None] * MEMBERS + np.arange(MEMBERS) < plan.labels
    bought[~bought.any(1), 0] = True
    rows, members = np.nonzero(bought)
    return rows, members


def _words(
    plan: Plan, stream: int, first: int, words: npt.NDArray[np.int64], chance: float
) -> npt.NDArray[np.int64]:
    """Some of the words [n, k] of each sample, as keys."""
    count, width = words.shape
    said = HashedDraws(plan.seed, stream).happens(first, count, width, _of_65536(chance))
    keys = words + (np.arange(count) * plan.features)[:, None]
    return keys[said]


def _own_words(
    plan: Plan,
    first: int,
    rows: npt.NDArray[np.int64],
    members: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    draws, labels = HashedDraws(plan.seed, 14), ((first + rows) * MEMBERS + members)
    words = draws.at(labels[:, None] * (OWN_WORDS // 4) + np.arange(OWN_WORDS // 4))
    keys = plan.own_words[positions] + (rows * plan.features)[:, None]
    return keys[events(words, _of_65536(OWN_CHANCE))]


def _misleading_words(
    plan: Plan, first: int, groups: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    count, places = len(groups), MEMBERS * OWN_WORDS
    which = HashedDraws(plan.seed, 15).below(first, count, MISLEADING_WORDS, places)
    words = plan.own_words.reshape(-1, places)[groups[:, None], which]
    return (words + (np.arange(count) * plan.features)[:, None]).reshape(-1)


def _noise_words(plan: Plan, first: int, count: int) -> npt.NDArray[np.int64]:
    which = HashedDraws(plan.seed, 16).below(first, count, NOISE_WORDS, len(plan.common_words))
    words = plan.common_words[which]
    return (words + (np.arange(count) * plan.features)[:, None]).reshape(-1)


def _counted(plan: Plan, count: int, keys: npt.NDArray[np.int64]) -> Rows:
    """Words with their counts as rows of length 1. Whole numbers, one root and one division: the
    same floats everywhere."""
    keys.sort()
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    counts = np.diff(starts, append=len(keys))
    rows, columns = np.divmod(keys[starts], plan.features)
    squares = np.bincount(rows, weights=counts * counts, minlength=count)
    values = counts / np.sqrt(squares)[rows]
    return np.bincount(rows, minlength=count), columns.astype(np.int32), values.astype(np.float32)


def _numbered(
    plan: Plan, count: int, rows: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> Rows:
    """Labels of samples, renumbered and ascending."""
    keys = rows * plan.labels + positions * plan.label_step % plan.labels
    keys.sort()
    counts = np.bincount(rows, minlength=count)
    return counts, (keys % plan.labels).astype(np.int32), None


def _step_through(labels: int) -> int:
    """A step that visits every label once before it comes back: neighbours end up far apart."""
    step = int(labels * 0.6180339887) | 1
    while gcd(step, labels) != 1:
        step += 2
    return step


def _joined(parts: list[Rows], width: int) -> CSR:
    counts = np.concatenate([counts for counts, _, _ in parts])
    columns = np.concatenate([columns for _, columns, _ in parts])
    values = [values for _, _, values in parts if values is not None]
    return packed(counts, columns, np.concatenate(values) if values else None, width)


def _of_65536(chance: float) -> int:
    return round(chance * 65536)
