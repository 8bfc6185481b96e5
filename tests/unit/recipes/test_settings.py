"""A recipe's settings: what --set accepts, and what it answers when it doesn't."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest

from manyhands.errors import ConfigError
from manyhands.recipes.settings import (
    apply_settings,
    declared_settings,
    parse_pairs,
    settings_table,
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    lr: Annotated[float, "learning rate"] = 0.1
    epochs: int = 3
    augment: bool = True
    hidden: tuple[int, ...] = (8, 8)
    clip: float | None = 1.0
    name: str = "x"


def test_strings_are_converted() -> None:
    settings = apply_settings(
        Settings, {"lr": "0.5", "augment": "no", "hidden": "4", "clip": "none"}
    )
    assert settings == Settings(lr=0.5, augment=False, hidden=(4,), clip=None)


def test_description_comes_from_the_annotation() -> None:
    lr, epochs, *_ = declared_settings(Settings)
    assert (lr.name, lr.type, lr.default, lr.description) == ("lr", float, 0.1, "learning rate")
    assert epochs.description == ""


def test_unknown_key_is_answered_with_the_nearest_and_all_keys() -> None:
    with pytest.raises(ConfigError) as raised:
        apply_settings(Settings, {"epoch": "3"})
    assert str(raised.value) == (
        "No setting is called 'epoch'. Did you mean 'epochs'? "
        "The keys are: lr, epochs, augment, hidden, clip, name."
    )


def test_unknown_key_far_from_all_has_no_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"^No setting is called 'zzz'\. The keys are"):
        apply_settings(Settings, {"zzz": "3"})


def test_wrong_value_says_what_was_expected() -> None:
    with pytest.raises(ConfigError) as raised:
        apply_settings(Settings, {"epochs": "many"})
    assert str(raised.value) == (
        "Setting 'epochs' is 'many'; expected a whole number, for example epochs=3."
    )


def test_a_default_factory_is_a_default() -> None:
    @dataclass
    class Lazy:
        hidden: tuple[int, ...] = field(default_factory=lambda: (1, 2))

    assert declared_settings(Lazy)[0].default == (1, 2)
    assert apply_settings(Lazy, {}) == Lazy()


def test_table_restores_the_same_settings() -> None:
    settings = Settings(lr=1e-7, clip=None, hidden=(), name="a, b = c")
    table = settings_table(settings)
    assert table["hidden"] == []
    assert table["clip"] == "none"
    assert apply_settings(Settings, table) == settings


def test_settings_must_be_a_dataclass() -> None:
    class Plain:
        lr = 0.1

    with pytest.raises(ConfigError, match="not a dataclass; write @dataclass above it"):
        declared_settings(Plain)


def test_every_setting_needs_a_default() -> None:
    @dataclass
    class Bare:
        lr: float

    with pytest.raises(ConfigError, match=r"Settings\.lr has no default"):
        declared_settings(Bare)


def test_a_type_that_text_cannot_become_is_refused() -> None:
    @dataclass
    class Odd:
        table: dict = field(default_factory=dict)  # type: ignore[type-arg]

    with pytest.raises(ConfigError, match=r"Settings\.table has the type dict; a setting's type"):
        declared_settings(Odd)


def test_an_unknown_type_is_refused() -> None:
    @dataclass
    class Missing:
        lr: Flaot = 0.1  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match=r"type that its module doesn't know: .*Flaot"):
        declared_settings(Missing)


def test_the_recipes_own_check_becomes_a_sentence() -> None:
    @dataclass
    class Checked:
        share: float = 0.5

        def __post_init__(self) -> None:
            if self.share > 1:
                raise ValueError("share is above 1")

    with pytest.raises(ConfigError, match="Settings refuses these values: share is above 1"):
        apply_settings(Checked, {"share": "2"})


def test_pairs() -> None:
    assert parse_pairs(["lr=0.1", " name = a=b "]) == {"lr": "0.1", "name": "a=b"}


@pytest.mark.parametrize("pair", ["lr", "=3", ""])
def test_pair_without_key_or_equals_sign(pair: str) -> None:
    with pytest.raises(ConfigError, match=r"is not key=value; write for example --set lr=0\.1"):
        parse_pairs([pair])


def test_pair_given_twice() -> None:
    with pytest.raises(ConfigError, match="names 'lr' twice"):
        parse_pairs(["lr=1", "lr=2"])
