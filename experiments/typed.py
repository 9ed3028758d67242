"""Texts and JSON values as values of annotated types.

The types are int, float, bool, str, None, Literal, unions of these, and tuples of all of these.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any


class WrongType(Exception):
    """A value is not of the type; who catches it knows what to call the value."""


def parse(text: str, hint: Any) -> Any:
    """Reads a text as a value of a type, or raises WrongType."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _first(sorted(args, key=_vagueness), lambda arg: parse(text, arg))
    if origin is typing.Literal:
        return _first(args, lambda arg: check(parse(text, type(arg)), hint))
    if origin is tuple:
        parts = _split(text)
        return tuple(map(parse, parts, _items(args, len(parts))))
    if hint in (int, float):
        try:
            return check(hint(text), hint)
        except ValueError as error:
            raise WrongType from error
    words = {bool: {"true": True, "false": False}, type(None): {"none": None, "null": None}}
    return check(words.get(hint, {}).get(text.lower(), text), hint)


def check(value: Any, hint: Any) -> Any:
    """Returns a value as its type (a list as a tuple, an int as a float), or raises WrongType."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _first(args, lambda arg: check(value, arg))
    if origin is typing.Literal and any(type(value) is type(a) and value == a for a in args):
        return value
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(map(check, value, _items(args, len(value))))
    # JSON has no infinities, so that a config with them could not be read back.
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if hint in (int, bool, str, type(None)) and type(value) is hint:
        return value
    raise WrongType


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
    """Splits "1, 2", "(1, 2)" or "[[1, 2], [3, 4]]" at its outermost commas."""
    if text[:1] + text[-1:] in ("()", "[]"):
        inner, depth = text[1:-1], 0
        for character in inner:
            depth += (character in "([") - (character in ")]")
            if depth < 0:
                break  # "(1,2),(3,4)": the outer brackets are not one pair.
        else:
            text = inner
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    parts = [part.strip() for part in parts]
    return parts[:-1] if parts[-1] == "" else parts


def name(hint: Any) -> str:
    """How an error names a type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(name(arg) for arg in args)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is tuple:
        if args[-1] is Ellipsis:
            return f"a list such as {_example(args[0])},{_example(args[0])}"
        return "a list such as " + ",".join(map(_example, args))
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
    words = "an object, which a text cannot be; write a config file"
    return "none" if hint is type(None) else names.get(hint, words)


def _example(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return "(" + name(hint).removeprefix("a list such as ") + ")"
    return {int: "1", float: "0.5", bool: "true", str: "a"}.get(hint, str(hint))
