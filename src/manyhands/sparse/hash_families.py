"""Hash families: how a layer finds the neurons that answer an input strongly, as plain data.

A hash function here maps a vector (a neuron's weights, or an input) to a digit, and is drawn so
that similar vectors often get the same digit. `hashes` digits side by side number a bucket of a
hash table, so neurons in one bucket agree with the input on all of them; each of the `tables` has
functions of its own, and a neuron that many tables find is probably one that matters. More hashes
make buckets more selective, more tables find what one table missed.

SLIDE (Chen et al. 2020, section 3 and its appendix) describes all four. The functions themselves
are native (`native/sparse/hash_functions.h`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from manyhands.errors import ConfigError

_MOST_BITS = 32


@dataclass(frozen=True)
class HashFamily:
    """What all families share. Use one of `SimHash`, `WTA`, `DWTA` and `MinHash`."""

    hashes: int = 5
    """Digits of a bucket's number: how many hash functions must agree in a table."""
    tables: int = 50
    """Hash tables, each with hash functions of its own."""

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        _require_whole(self, "hashes", self.hashes, 1, 32)
        _require_whole(self, "tables", self.tables, 1, 4096)
        self._check()
        bits = self.hashes * self.digit_bits
        if bits > _MOST_BITS:
            raise ConfigError(
                f"{type(self).__name__}: {self.hashes} hashes of {self.digit_bits} bits make codes "
                f"of {bits} bits; expected at most {_MOST_BITS}: take fewer hashes."
            )

    def _check(self) -> None:
        """What only this family must check."""

    @property
    def digit_bits(self) -> int:
        """Bits of one hash function's answer."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """The keywords of `kernels.LshIndex` that this family decides."""
        return {"family": self.name, "hashes": self.hashes, "tables": self.tables}


@dataclass(frozen=True)
class SimHash(HashFamily):
    """The side of a random plane that a vector lies on: one bit.

    Two vectors agree with probability 1 - angle / pi: closeness of direction is all that counts.
    The plane's normal has entries -1, 0 and 1 only, `density` of them not 0: sums instead of
    products. Directions are taken from the mean of the inputs, and of the neurons' weights. It
    finds more of the largest outputs than the others, behind a ReLU too, and is slower to hash.
    """

    hashes: int = 9
    density: float = 1 / 3
    """The share of coordinates that a hash function looks at."""

    name: ClassVar[str] = "simhash"

    def _check(self) -> None:
        _require_share(self, "density", self.density)

    @property
    def digit_bits(self) -> int:
        return 1

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "density": self.density}


@dataclass(frozen=True)
class WTA(HashFamily):
    """Winner takes all: which of `bin` random coordinates is the largest.

    Only the order of coordinates counts, not their size, so that one large coordinate does not
    decide everything. Zeros compete like other numbers.
    """

    bin: int = 8
    """Coordinates that compete; a digit has log2(bin) bits."""

    name: ClassVar[str] = "wta"

    def _check(self) -> None:
        _require_whole(self, "bin", self.bin, 2, 64)

    @property
    def digit_bits(self) -> int:
        return (self.bin - 1).bit_length()

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "bin": self.bin}


@dataclass(frozen=True)
class DWTA(WTA):
    """Densified winner takes all: as `WTA`, but among coordinates that are not zero.

    Inputs behind a ReLU are zero in many places, and a bin of zeros would have the same winner for
    everybody. Such a bin borrows the digit of another bin instead, the same one for all vectors.
    The default: it serves inputs of any kind well.
    """

    name: ClassVar[str] = "dwta"


@dataclass(frozen=True)
class MinHash(WTA):
    """Densified minwise hashing of the set of a vector's largest positive coordinates.

    A digit is the first member of the set in a random order of `bin` coordinates. Two sets agree
    with about the probability |A and B| / |A or B|. For inputs where only *which* coordinates are
    large counts, such as bags of words.
    """

    hashes: int = 4
    bin: int = 16
    density: float = 1 / 4
    """The share of coordinates, the largest ones, that make the set."""

    name: ClassVar[str] = "minhash"

    def _check(self) -> None:
        super()._check()
        _require_share(self, "density", self.density)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "density": self.density}


def _require_whole(owner: object, name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(
            f"{type(owner).__name__}: {name} is {value!r}; expected a whole number from {least} to "
            f"{most}."
        )


def _require_share(owner: object, name: str, value: object) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 < value <= 1:  # type: ignore[arg-type, operator]
        raise ConfigError(
            f"{type(owner).__name__}: {name} is {value!r}; expected a number above 0 and up to 1."
        )
