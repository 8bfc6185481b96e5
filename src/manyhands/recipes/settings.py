"""Settings of a recipe: from `key=value` on the command line to a typed dataclass, and to TOML.

A recipe declares them as an ordinary dataclass. The description of a field is the text in its
`Annotated` type: `lr: Annotated[float, "peak learning rate"] = 0.05`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from manyhands.errors import ConfigError
from manyhands.recipes.conversion import (
    convert,
    expectation,
    is_convertible,
    plain,
    shown,
    type_name,
)
from manyhands.recipes.nearest import did_you_mean, listed


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of `--set`: its type, its default and what it means."""

    name: str
    type: Any
    default: Any
    description: str


def declared_settings(settings_type: type) -> list[Setting]:
    """The keys that a `Settings` dataclass offers. `ConfigError` for one that can't be offered."""
    if not is_dataclass(settings_type):
        raise ConfigError("Settings is not a dataclass; write @dataclass above it.")
    try:
        hints = get_type_hints(settings_type, include_extras=True)
    except NameError as error:
        raise ConfigError(f"Settings uses a type that its module doesn't know: {error}.") from error
    return [_declared(field, hints[field.name]) for field in fields(settings_type) if field.init]


def _declared(field: Field[Any], hint: Any) -> Setting:
    bare, description = split_annotation(hint)
    if not is_convertible(bare):
        raise ConfigError(
            f"Settings.{field.name} has the type {type_name(bare)}; a setting's type is "
            "int, float, bool, str, a Literal, a tuple of those, or one of them or None."
        )
    return Setting(field.name, bare, _default(field), description)


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    if field.default is MISSING:
        raise ConfigError(
            f"Settings.{field.name} has no default; every setting needs one, "
            "so that the recipe runs without --set."
        )
    return field.default


def split_annotation(hint: Any) -> tuple[Any, str]:
    """A field's bare type, and the description that its `Annotated` type gives or nothing."""
    if get_origin(hint) is not Annotated:
        return hint, ""
    bare, *extras = get_args(hint)
    return bare, next((extra for extra in extras if isinstance(extra, str)), "")


def parse_pairs(
    pairs: Iterable[str], flag: str = "--set", example: str = "lr=0.1"
) -> dict[str, str]:
    """`["lr=0.1", "augment=no"]` as a dictionary of strings; `flag` is what they came with."""
    parsed: dict[str, str] = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise ConfigError(
                f"{flag} {pair!r} is not key=value; write for example {flag} {example}."
            )
        if key in parsed:
            raise ConfigError(f"{flag} names {key!r} twice; give it once.")
        parsed[key] = text
    return parsed


def apply_settings(settings_type: type, given: Mapping[str, Any]) -> Any:
    """A `Settings` object with these keys changed, each converted to its field's type.

    Values are text from the command line or plain values from TOML.
    """
    known = {setting.name: setting for setting in declared_settings(settings_type)}
    for key in given:
        if key not in known:
            hint = did_you_mean(key, known)
            raise ConfigError(f"No setting is called {key!r}.{hint} The keys are: {listed(known)}.")
    values = {key: converted(known[key], value) for key, value in given.items()}
    try:
        return settings_type(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Settings refuses these values: {error}.") from error


def settings_table(settings: Any) -> dict[str, Any]:
    """Every setting as a plain value for TOML, from which `apply_settings` restores it."""
    names = [setting.name for setting in declared_settings(type(settings))]
    return {name: plain(getattr(settings, name)) for name in names}


def converted(setting: Setting, value: Any, what: str = "Setting") -> Any:
    """`value` as the setting's type. `ConfigError`, which calls it `what`, when it is not one."""
    try:
        return convert(setting.type, value)
    except ValueError as error:
        raise ConfigError(
            f"{what} {setting.name!r} is {shown(value)!r}; expected {expectation(setting.type)}, "
            f"for example {setting.name}={shown(setting.default)}."
        ) from error
