"""Tells one objective from another by its code, so that a history is not taken for another objective's."""

import dis
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from jaxnas import files


def digest_of(objective: Any) -> str:
    """Returns 16 hexadecimal digits that another objective does not have.

    Of a Python function these count: its name, its code with all constants, its defaults, the numbers and
    texts of outer scopes that it reads, and the same of the functions of its module that it calls, also
    within a decorator or `functools.partial`. These do not: other modules, files, arrays and other objects,
    and what the function itself assigns. Another version of Python may give another digest.
    """
    inner = _function(objective)
    return files.digest(_described(objective, getattr(inner, "__module__", None), set()))


def _function(value: Any) -> Any:
    """The function that a callable runs, where it is written in Python."""
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(value)
    value = getattr(value, "__func__", value)  # of a method
    return value if hasattr(value, "__code__") or isinstance(value, type) else type(value).__call__


def _described(value: Any, module: str | None, seen: set[types.CodeType]) -> Any:
    """A value as nested tuples of numbers and texts, the same in every process."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if isinstance(value, tuple):
        return tuple(_described(one, module, seen) for one in value)
    if isinstance(value, frozenset):
        return tuple(sorted(repr(one) for one in value))
    if isinstance(value, types.CodeType):
        consts = tuple(_described(one, module, seen) for one in value.co_consts)
        return value.co_name, value.co_code, value.co_names, consts
    if isinstance(value, functools.partial):
        given = (*value.args, *sorted(value.keywords.items()))
        return _described(value.func, module, seen), _described(given, module, seen)
    function = _function(value) if callable(value) else value
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(value).__qualname__)
    if code is None or code in seen or function.__module__ != module:
        return name
    seen.add(code)
    try:
        outer = inspect.getclosurevars(function)
    except ValueError:  # A variable that has no value yet.
        outer = inspect.ClosureVars({}, {}, {}, set())
    assigned = {
        step.argval
        for one in _codes(code)
        for step in dis.get_instructions(one)
        if step.opname in ("STORE_DEREF", "STORE_GLOBAL")
    }
    read = sorted((k, v) for k, v in ({**outer.globals, **outer.nonlocals}).items() if k not in assigned)
    defaults = (*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items()))
    documented = code.co_consts[:1] == (function.__doc__,)
    code = code.replace(co_consts=(None, *code.co_consts[1:])) if documented else code
    return name, *(_described(one, module, seen) for one in (code, defaults, tuple(read)))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of those that it defines."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)
