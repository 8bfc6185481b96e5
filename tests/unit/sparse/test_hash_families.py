"""Hash families as data: what they tell the index, and what they refuse."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from manyhands.errors import ConfigError
from manyhands.kernels import LshIndex
from manyhands.sparse.hash_families import DWTA, WTA, HashFamily, MinHash, SimHash


@pytest.mark.parametrize("kind", [SimHash, WTA, DWTA, MinHash])
def test_a_family_makes_an_index(kind: type[HashFamily]) -> None:
    family = kind(hashes=4, tables=7)
    tables = LshIndex(100, 32, bucket=30, **family.settings())
    assert tables.codes(torch.randn(3, 32)).shape == (3, 7)
    assert pickle.loads(pickle.dumps(family)) == family
    assert hash(family) == hash(kind(hashes=4, tables=7))


def test_settings_name_what_the_family_has() -> None:
    assert SimHash().settings() == {
        "family": "simhash",
        "hashes": 9,
        "tables": 50,
        "density": 1 / 3,
    }
    assert DWTA().settings() == {"family": "dwta", "hashes": 5, "tables": 50, "bin": 8}
    assert WTA(bin=4).settings() == {"family": "wta", "hashes": 5, "tables": 50, "bin": 4}
    assert MinHash().settings()["density"] == 1 / 4


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        (SimHash, {"hashes": 0}, "SimHash: hashes is 0; expected a whole number from 1 to 32."),
        (SimHash, {"hashes": 2.0}, "SimHash: hashes is 2.0; expected a whole number"),
        (SimHash, {"hashes": True}, "SimHash: hashes is True; expected a whole number"),
        (SimHash, {"density": 0}, "SimHash: density is 0; expected a number above 0 and up to 1."),
        (MinHash, {"density": 1.5}, "MinHash: density is 1.5; expected a number above 0"),
        (SimHash, {"density": float("nan")}, "SimHash: density is nan; expected a number"),
        (SimHash, {"density": "all"}, "SimHash: density is 'all'; expected a number"),
        (DWTA, {"tables": 5000}, "DWTA: tables is 5000; expected a whole number from 1 to 4096."),
        (WTA, {"bin": 1}, "WTA: bin is 1; expected a whole number from 2 to 64."),
        (DWTA, {"hashes": 11}, "DWTA: 11 hashes of 3 bits make codes of 33 bits; expected at most"),
        (MinHash, {"hashes": 9}, "MinHash: 9 hashes of 4 bits make codes of 36 bits; expected"),
    ],
)
def test_bad_settings_are_refused(
    kind: type[HashFamily], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        kind(**settings)
