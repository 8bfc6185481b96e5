"""Numbers out of all proportion: one damaged digit must not make a layer a thousand times wider.

Where neither a header nor the caller says how many features or labels there are, the largest number
decides. A few numbers that stand far beyond all others are then damage, not features.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

HARMLESS = 1_000_000  # a layer so wide is affordable: nothing below this is called stray
FEW, SHARE = 10, 1000  # stray are at most ten numbers, or one in a thousand
FACTOR = 10


def stray_limit(numbers: npt.NDArray[np.int32]) -> int | None:
    """The smallest number that would be stray, or None when none of these is.

    Stray is ten times what all but a few stay below, and ten times the number of entries: a file
    of hashed words, whose numbers spread evenly, has none.
    """
    count = len(numbers)
    if not count or int(numbers.max()) < HARMLESS:
        return None
    few = max(FEW, count // SHARE)
    usual = int(np.partition(numbers, count - 1 - few)[count - 1 - few]) if count > few else 0
    limit = max(FACTOR * usual, FACTOR * count, HARMLESS)
    return limit if int(numbers.max()) >= limit else None
