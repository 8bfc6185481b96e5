"""A strategy from its name and its options: text from the command line, plain values from a record.

The options are the fields of the strategy's dataclass. A field that is itself a dataclass lends its
own: `outer_momentum` is the `momentum` of the strategy's `outer`. Fields of other types than a
command line can carry are Python's alone, as are those that such a part inherits.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import get_annotations
from typing import Any, Union, get_args, get_origin, get_type_hints

from manyhands.errors import ConfigError
from manyhands.recipes.conversion import is_convertible, plain
from manyhands.recipes.nearest import did_you_mean, listed
from manyhands.recipes.settings import Setting, converted, parse_pairs, split_annotation
from manyhands.strategies.catalogue import STRATEGIES
from manyhands.strategies.strategy import Strategy

FLAG = "--strategy-set"


def requested_options(given: Mapping[str, int | None], pairs: Iterable[str]) -> dict[str, Any]:
    """The options that have a flag of their own (None when not given), joined by the pairs."""
    options: dict[str, Any] = dict(parse_pairs(pairs, FLAG, "push_every=5"))
    for name, value in given.items():
        if value is not None and name in options:
            raise ConfigError(
                f"{name} is given twice: --{name} {value} and {FLAG} {name}={options[name]}; "
                "give one of them."
            )
        if value is not None:
            options[name] = value
    return options


def make_strategy(name: str, options: Mapping[str, Any]) -> Strategy:
    """The strategy with this name; options that are not given keep their defaults."""
    strategy_type = _known(name)
    values = _typed(name, options)
    try:
        strategy: Strategy = _built(strategy_type, values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The strategy {name} refuses these options: {error}.") from error
    return strategy


def recorded(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as plain values for a run's record, from which `make_strategy` rebuilds it."""
    return {key: plain(value) for key, value in _typed(name, options).items()}


def offered_options(strategy_type: type, prefix: str = "") -> dict[str, Setting]:
    """What a command line can set, by name."""
    found: dict[str, Setting] = {}
    for field, hint, description in _annotated_fields(strategy_type):
        if prefix and field.name not in get_annotations(strategy_type):
            continue
        name, part = f"{prefix}{field.name}", _part(hint)
        if part is not None:
            found |= offered_options(part, f"{name}_")
        elif is_convertible(hint):
            found[name] = Setting(name, hint, _default(field), description)
    return found


def _known(name: str) -> type[Strategy]:
    if name not in STRATEGIES:
        hint = did_you_mean(name, STRATEGIES)
        raise ConfigError(
            f"No strategy is called {name!r}.{hint} The strategies are: {listed(STRATEGIES)}."
        )
    return STRATEGIES[name]


def _typed(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    offered = offered_options(_known(name))
    for key in options:
        if key not in offered:
            raise ConfigError(
                f"The strategy {name} has no option {key!r}.{_hint(key, offered)} "
                f"The options of {name} are: {listed(offered)}."
            )
    return {key: converted(offered[key], value, "Option") for key, value in options.items()}


def _hint(key: str, offered: Mapping[str, Setting]) -> str:
    owners = [name for name, owner in STRATEGIES.items() if key in offered_options(owner)]
    if owners:
        return f" It belongs to {listed(owners)}; choose --strategy {owners[0]} for it."
    return did_you_mean(key, offered)


def _built(kind: type, values: Mapping[str, Any], prefix: str = "") -> Any:
    """An object of this dataclass; parts of which nothing is given keep their defaults."""
    arguments = {}
    for field, hint, _ in _annotated_fields(kind):
        name, part = f"{prefix}{field.name}", _part(hint)
        if part is not None and any(key.startswith(f"{name}_") for key in values):
            arguments[field.name] = _built(part, values, f"{name}_")
        elif part is None and name in values:
            arguments[field.name] = values[name]
    return kind(**arguments)


def _annotated_fields(kind: type) -> Iterator[tuple[Field[Any], Any, str]]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if field.init:
            yield field, *split_annotation(hints[field.name])


def _part(hint: Any) -> type | None:
    """The dataclass that this type is, or is when it is not None."""
    is_union = get_origin(hint) in (Union, types.UnionType)
    choices = [choice for choice in get_args(hint) if choice is not type(None)]
    kind = choices[0] if is_union and len(choices) == 1 else hint
    return kind if isinstance(kind, type) and is_dataclass(kind) else None


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default
