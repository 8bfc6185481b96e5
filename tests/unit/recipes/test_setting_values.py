"""Text becomes a typed value and comes back unchanged."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.recipes.conversion import convert, expectation, is_convertible, plain, shown

FLOATS = st.floats(allow_nan=False)
WORDS = st.text(alphabet=st.characters(categories=["L", "N"]), min_size=1)


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "12", 12),
        (int, "-3", -3),
        (float, "0.1", 0.1),
        (float, "1e-4", 1e-4),
        (float, "2", 2.0),
        (bool, "true", True),
        (bool, "No", False),
        (bool, "on", True),
        (bool, "0", False),
        (str, "relu", "relu"),
        (tuple[int, ...], "256,128", (256, 128)),
        (tuple[int, ...], "(256, 128)", (256, 128)),
        (tuple[int, ...], "", ()),
        (tuple[float, int], "0.5,2", (0.5, 2)),
        (float | None, "none", None),
        (float | None, "None", None),
        (float | None, "0.9", 0.9),
        (int | str, "auto", "auto"),
        (tuple[int, int] | None, "3,4", (3, 4)),
        (Literal["relu", "tanh"], "tanh", "tanh"),
        (Literal[1, 2], "2", 2),
    ],
)
def test_text_becomes_the_type(hint: Any, text: str, value: Any) -> None:
    converted = convert(hint, text)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (int, "1.5"),
        (int, "ten"),
        (float, "fast"),
        (bool, "maybe"),
        (tuple[int, int], "1,2,3"),
        (tuple[int, ...], "1,x"),
        (float | None, "nothing"),
        (Literal["relu", "tanh"], "gelu"),
    ],
)
def test_text_of_another_type_is_refused(hint: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        convert(hint, text)


@pytest.mark.parametrize("hint", [dict, list[int], tuple, object, tuple[object, ...], Any])
def test_other_types_are_not_convertible(hint: Any) -> None:
    assert not is_convertible(hint)


@pytest.mark.parametrize("hint", [int, str, float | None, tuple[int, ...], tuple[bool, str] | None])
def test_these_types_are_convertible(hint: Any) -> None:
    assert is_convertible(hint)


@given(st.one_of(st.tuples(st.just(int), st.integers()), st.tuples(st.just(float), FLOATS),
                 st.tuples(st.just(bool), st.booleans()),
                 st.tuples(st.just(tuple[float, ...]), st.lists(FLOATS).map(tuple)),
                 st.tuples(st.just(float | None), st.none() | FLOATS)))  # fmt: skip
def test_text_comes_back_unchanged(pair: tuple[Any, Any]) -> None:
    hint, value = pair
    assert convert(hint, shown(value)) == value


@given(st.lists(st.text()).map(tuple))
def test_plain_values_come_back_unchanged_even_with_commas(value: tuple[str, ...]) -> None:
    assert convert(tuple[str, ...], plain(value)) == value


def test_expectations_are_words() -> None:
    assert expectation(int) == "a whole number"
    assert expectation(float | None) == "a number or none"
    assert expectation(tuple[int, int]).startswith("2 values with commas")
    assert expectation(Literal["relu", "tanh"]) == "relu or tanh"
