"""Texts of the command line as values: of annotated types, and search spaces.

The types are int, float, bool, str, None, Literal of texts, unions of these, and tuples of these.
"""

from __future__ import annotations

import ast
import inspect
import math
import types
import typing
from typing import Any

from jaxnas import spaces
from jaxnas.choice import nearest
from jaxnas.space import Space

_WORDS = {bool: {"true": True, "false": False}, type(None): {"none": None, "null": None}}
_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a text", type(None): "none"}
_EXAMPLES = {int: "1", float: "0.5", bool: "true", str: "a"}


def parse(text: str, hint: Any) -> Any:
    """Reads a text as a value of a type; ValueError for a text that is none."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        # Any text is a text, and a value alone is a list of one: these come last.
        for one in sorted(args, key=lambda one: (one is str, typing.get_origin(one) is tuple)):
            try:
                return parse(text, one)
            except ValueError:
                continue
    elif origin is typing.Literal and text in args or hint is str:
        return text
    elif origin is tuple:
        inner = text[1:-1] if text[:1] + text[-1:] in ("()", "[]") else text
        parts = [part.strip() for part in inner.removesuffix(",").split(",")] if inner else []
        kinds = args[:1] * len(parts) if args[-1] is Ellipsis else args
        return tuple(parse(part, kind) for part, kind in zip(parts, kinds, strict=True))
    elif hint in (int, float) and abs(value := hint(text)) < math.inf:
        return value  # JSON has no infinities: a config with them could not be read back
    elif text.lower() in (words := _WORDS.get(hint, {})):
        return words[text.lower()]
    raise ValueError(text)


def name(hint: Any) -> str:
    """How an error names a type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(name, args))
    if origin is typing.Literal:
        return "one of " + ", ".join(args)
    if origin is tuple and typing.get_origin(args[0]) is typing.Literal:
        return "a list, each " + name(args[0])
    if origin is tuple and {*args} <= {*_EXAMPLES, Ellipsis}:
        return "a list such as " + ",".join(_EXAMPLES.get(one) or _EXAMPLES[args[0]] for one in args)
    return _NAMES.get(hint, "an object, which a text cannot be; write a config file")


def space(text: str) -> Space:
    """The space that a call of a function of `jaxnas.spaces` gives, as `par(6)` or `autoformer("tiny")`.

    Nothing is evaluated: the text is parsed, the function is looked up by name, its arguments are literals.

    Raises:
      ValueError: another text, an unknown function, or arguments that it does not take.
    """
    known = {
        name: function
        for name, function in inspect.getmembers(spaces, inspect.isfunction)
        if not name.startswith("_") and inspect.signature(function).return_annotation in (Space, "Space")
    }
    example = f"expected a call such as {next(iter(known))}(...), of {', '.join(known)}"
    try:
        call = ast.parse(text, mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise ValueError("no call of a function")
        arguments = [ast.literal_eval(argument) for argument in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(example) from error
    if call.func.id not in known:
        near = nearest(call.func.id, known)
        raise ValueError(f"{call.func.id!r} is no space{near} {example.capitalize()}")
    try:
        return known[call.func.id](*arguments, **named)
    except TypeError as error:
        raise ValueError(str(error)) from error
