"""Texts as values of annotated types.

The types are int, float, bool, str, None, Literal, unions of these, and tuples of these.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any


class WrongType(Exception):
    """A text is no value of the type; who catches it knows what to call the value."""


def parse(text: str, hint: Any) -> Any:
    """Reads a text as a value of a type, or raises WrongType."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _first(sorted(args, key=_vagueness), lambda arg: parse(text, arg))
    if origin is typing.Literal:
        return _first(args, lambda arg: _require(parse(text, type(arg)), lambda value: value == arg))
    if origin is tuple:
        parts = _split(text)
        return tuple(map(parse, parts, _items(args, len(parts))))
    if hint in (int, float):
        try:
            # JSON has no infinities, so that a config with them could not be read back.
            return _require(hint(text), lambda value: abs(value) < math.inf)
        except ValueError as error:
            raise WrongType from error
    words = {bool: {"true": True, "false": False}, type(None): {"none": None, "null": None}}
    value = words.get(hint, {}).get(text.lower(), text)
    return _require(value, lambda value: type(value) is hint)


def _require(value: Any, holds: Callable[[Any], bool]) -> Any:
    """The value if the condition holds of it."""
    if not holds(value):
        raise WrongType
    return value


def _vagueness(hint: Any) -> int:
    """A rank of the types of a union: any text is a text, and a value alone is a list of one."""
    return 2 if hint is str else 1 if typing.get_origin(hint) is tuple else 0


def _first(args: Iterable, attempt: Callable[[Any], Any]) -> Any:
    """The first attempt that succeeds."""
    for arg in args:
        try:
            return attempt(arg)
        except WrongType:
            continue
    raise WrongType


def _items(args: tuple, length: int) -> tuple:
    """The types of the items of a tuple of this length."""
    if args[-1:] == (Ellipsis,):
        return (args[0],) * length
    if len(args) != length:
        raise WrongType
    return args


def _split(text: str) -> list[str]:
    """Splits "1, 2", "(1, 2)" or "[1, 2]" at its commas."""
    inner = text[1:-1] if text[:1] + text[-1:] in ("()", "[]") else text
    parts = [part.strip() for part in inner.split(",")]
    return parts[:-1] if parts[-1] == "" else parts


def name(hint: Any) -> str:
    """How an error names a type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(name(arg) for arg in args)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is tuple and tuple not in map(typing.get_origin, args):
        shown = (args[0], args[0]) if args[-1] is Ellipsis else args
        examples = {int: "1", float: "0.5", bool: "true", str: "a"}
        return "a list such as " + ",".join(examples.get(one, str(one)) for one in shown)
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
    words = "an object, which a text cannot be; write a config file"
    return "none" if hint is type(None) else names.get(hint, words)
