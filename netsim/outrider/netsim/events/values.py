"""What a field of a line may hold, by its type and name: JSON values in, the schema's values out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from outrider.netsim.events.schema import KINDS

Convert = Callable[[Any], Any]


class Unfit(ValueError):
    """A value that cannot be; ``expected`` says what could, ``name`` names the field where it is known."""

    def __init__(self, expected: str, name: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.name = name


def _of(hint: Any, name: str) -> Convert:
    if get_origin(hint) is UnionType:
        inner = _of(next(arg for arg in get_args(hint) if arg is not type(None)), name)
        return lambda value: None if value is None else inner(value)
    if get_origin(hint) is tuple:
        inner = _of(get_args(hint)[0], name)
        return lambda value: tuple(inner(each) for each in _list(value))
    if get_origin(hint) is Mapping:
        return _texts if get_args(hint)[1] is str else _object
    if issubclass(hint, StrEnum):
        return lambda value: _choice(hint, value)
    return {bool: _flag, int: _count, float: _number, str: _text}[hint] if name != "seed" else _whole


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Unfit("a list")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unfit("an object")
    return value


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise Unfit("an object of texts")
    return value


def _choice(cls: type[StrEnum], value: Any) -> StrEnum:
    try:
        return cls(value)
    except ValueError:
        raise Unfit(f"one of {', '.join(cls)}") from None


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unfit("true or false")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unfit("a whole number")
    return value


def _count(value: Any) -> int:
    if _whole(value) < 0:
        raise Unfit("a whole number from 0 on")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unfit("a number")
    try:
        made = float(value)
    except OverflowError:
        made = math.inf
    if not (math.isfinite(made) and made >= 0):
        raise Unfit("a finite number from 0 on")
    return made


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unfit("a text")
    return value


CONVERTERS: dict[str, dict[str, Convert]] = {
    kind: {each.name: _of(get_type_hints(cls)[each.name], each.name) for each in fields(cls)}
    for kind, cls in KINDS.items()
}
"""Per kind of line and field, what checks and converts its JSON value; it raises `Unfit`."""
