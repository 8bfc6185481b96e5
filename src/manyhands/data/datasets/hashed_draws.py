"""Random numbers that are the same on every machine and in every version of NumPy.

A draw is a hash of a seed, a stream and a position (splitmix64's finaliser), in whole numbers
alone: NumPy promises its own generators' sequences for no longer than a version, and a logarithm
may differ in its last bit from one processor to the next.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class HashedDraws:
    """Draws by position: the same position gives the same draw, in whatever order they are made."""

    def __init__(self, seed: int, stream: int) -> None:
        start = np.array([seed, stream], dtype=np.uint64)
        self._base = _finished(_finished(start[:1] * _STEP + _STEP) ^ start[1:] * _SECOND)

    def at(self, positions: npt.NDArray[np.int64]) -> Words:
        """64 random bits for each position, which is 0 or more."""
        words = positions.astype(np.uint64)
        words *= _STEP
        words += self._base
        return _finished(words)

    def words(self, first: int, count: int, width: int = 1) -> Words:
        """64 random bits for each of `width` draws of the positions first to first + count - 1."""
        positions = np.arange(first * width, (first + count) * width, dtype=np.int64)
        return self.at(positions).reshape(count, width)

    def below(self, first: int, count: int, width: int, limit: int) -> npt.NDArray[np.int64]:
        """Whole numbers from 0 to limit - 1, with a bias of at most limit in 2^32."""
        words = self.words(first, count, width)
        words >>= np.uint64(32)
        words *= np.uint64(limit)
        words >>= np.uint64(32)
        return words.astype(np.int64)

    def happens(
        self, first: int, count: int, width: int, chance: int | npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """`width` events, a multiple of 4, for each position; `chance` is out of 65,536."""
        return events(self.words(first, count, width // 4), chance)


def events(words: Words, chance: int | npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Four events out of the bits of each word [n, k]: [n, 4 k]."""
    bits = np.ascontiguousarray(words, dtype="<u8").view("<u2")
    happened: npt.NDArray[np.bool_] = bits < chance
    return happened


def _finished(words: Words) -> Words:
    words = words ^ (words >> np.uint64(30))
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


def falling_shares(count: int, offset: int) -> npt.NDArray[np.int64]:
    """Running sums of weights 1 / (rank + offset), Zipf's law, as whole numbers."""
    ranks = np.arange(offset, offset + count, dtype=np.int64)
    return np.cumsum((1 << 40) // ranks)
