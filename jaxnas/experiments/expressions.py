"""Spaces on the command line: `par(6)` or `autoformer("tiny")`, a call of a function of `jaxnas.spaces`.

Nothing is evaluated: the text is parsed, the function is looked up by name, and its arguments are literals.
"""

from __future__ import annotations

import ast
import inspect

from jaxnas import spaces
from jaxnas.choice import nearest
from jaxnas.space import Space


def space(text: str, assignment: str) -> Space:
    """The space that a text names.

    Args:
      text: such as "par(6)".
      assignment: what the user wrote, for messages.

    Raises:
      ValueError: another text, an unknown function, or arguments that it does not take.
    """
    known = {
        name: function
        for name, function in vars(spaces).items()
        if inspect.isfunction(function) and inspect.signature(function).return_annotation in (Space, "Space")
    }
    known = {name: function for name, function in known.items() if not name.startswith("_")}
    example = f"expected a call such as {next(iter(known))}(...), of {', '.join(known)}"
    try:
        call = ast.parse(text, mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise ValueError("no call of a function")
        arguments = [ast.literal_eval(argument) for argument in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"--set {assignment}: {example}") from error
    if call.func.id not in known:
        near = nearest(call.func.id, known) or "."
        raise ValueError(f"--set {assignment}: {call.func.id!r} is no space{near} {example.capitalize()}")
    try:
        return known[call.func.id](*arguments, **named)
    except TypeError as error:
        raise ValueError(f"--set {assignment}: {error}") from error
