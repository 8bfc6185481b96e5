"""From text to a typed value and back, for the few types that a setting may have.

Those are int, float, bool, str, `Literal`, tuples of them, and any of them or None.
"""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_NONE = "none"
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def is_convertible(hint: Any) -> bool:
    """Whether `convert` knows this type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _WORDS:
        return True
    if _is_union(origin) or (origin is tuple and arguments):
        return all(a in (type(None), Ellipsis) or is_convertible(a) for a in arguments)
    return origin is Literal


def convert(hint: Any, value: Any) -> Any:
    """`value`, text or a plain value from TOML, as this type; ValueError when it is not one."""
    origin, arguments = get_origin(hint), get_args(hint)
    if _is_union(origin):
        return _convert_union(arguments, value)
    if origin is tuple:
        return _convert_tuple(arguments, value)
    text = shown(value)
    if origin is Literal:
        return _convert_literal(arguments, text)
    if hint is bool:
        return _convert_bool(text)
    return hint(text)


def shown(value: Any) -> str:
    """A value as one writes it after `--set key=`."""
    if isinstance(value, tuple | list):
        return ",".join(shown(item) for item in value)
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return str(value)


def plain(value: Any) -> Any:
    """A value as TOML can hold it; `convert` takes it back."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return _NONE if value is None else value


def type_name(hint: Any) -> str:
    """A type for a person: `float`, `tuple[int, int]`, `float or none`."""
    if hint is type(None):
        return _NONE
    if _is_union(get_origin(hint)):
        return " or ".join(type_name(choice) for choice in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(shown(choice) for choice in get_args(hint))
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def expectation(hint: Any) -> str:
    """What a value of this type looks like, to end the sentence "expected ..."."""
    origin, arguments = get_origin(hint), get_args(hint)
    if _is_union(origin):
        return " or ".join(_NONE if a is type(None) else expectation(a) for a in arguments)
    if origin is tuple:
        count = "" if Ellipsis in arguments else f"{len(arguments)} "
        return f"{count}values with commas between them, as {type_name(hint)}"
    return _WORDS.get(hint, type_name(hint))


def _is_union(origin: Any) -> bool:
    return origin in (Union, types.UnionType)


def _convert_bool(text: str) -> bool:
    lowered = text.lower()
    if lowered not in _TRUE | _FALSE:
        raise ValueError(text)
    return lowered in _TRUE


def _convert_union(choices: tuple[Any, ...], value: Any) -> Any:
    if type(None) in choices and shown(value).lower() == _NONE:
        return None
    for choice in choices:
        if choice is not type(None):
            try:
                return convert(choice, value)
            except ValueError:
                continue
    raise ValueError(value)


def _convert_tuple(items: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    parts = value if isinstance(value, tuple | list) else _split(str(value))
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(convert(items[0], part) for part in parts)
    if len(parts) != len(items):
        raise ValueError(value)
    return tuple(convert(item, part) for item, part in zip(items, parts, strict=True))


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.strip("()[] ").split(",") if part.strip()]


def _convert_literal(choices: tuple[Any, ...], text: str) -> Any:
    for choice in choices:
        if shown(choice) == text:
            return choice
    raise ValueError(text)
