"""The history file of a search: one JSON line for each evaluated architecture.

A line holds "index", "strategy" (the name of the search, since several may share a file), "generation",
"architecture" (option values), the costs, "score" (null where the evaluation failed) and, of a strategy with
fidelities, "fidelity" and "seconds"; the first line of a search also "settings". Its "digest" is that of the
line and of the digest before, so that a changed or lost line does not go unnoticed.
"""

import dataclasses
import dis
import functools
import inspect
import itertools
import json
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxnas import files, processes
from jaxnas.search.strategy import Strategy

Line = dict[str, Any]
_FIRST = b'{"index": '  # the start of each line


class History:
    """The lines of a search: those of its file are replayed, others are appended to it.

    Args:
      path: of the file; None for none.
      name: of the search.
      settings: what `settings_of` says, and the objective.
      evaluations: the budget.
    """

    def __init__(
        self, path: str | os.PathLike | None, name: str, settings: Mapping[str, Any], evaluations: int
    ) -> None:
        self.path, self.name, self.settings = path, name, settings
        self.recorded: list[Line] = [] if path is None else read(path, name)
        self.lines: list[Line] = []  # those that the search has made so far, in order
        self.resumed = 0  # how many of these were taken from the file
        processes.wait("the history is read")  # before the first of several processes writes to it
        _check_settings(self.recorded, settings, path)
        if len(self.recorded) > evaluations:
            raise ValueError(
                f"{path} holds {len(self.recorded)} evaluations of this search, more than "
                f"evaluations={evaluations}. Give at least {len(self.recorded)}."
            )

    def next(self, generation: int) -> list[Line]:
        """Returns the recorded lines that come next, as far as they are of a generation."""
        rest = self.recorded[len(self.lines) :]
        return list(itertools.takewhile(lambda line: line["generation"] == generation, rest))

    def add(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Compares the lines of a generation with the recorded ones, or appends them to the file."""
        first = {} if self.lines else {"settings": self.settings}
        new = seal([{**lines[0], **first}, *lines[1:]], self.lines)
        old, done = self.next(new[0]["generation"]), len(self.lines)
        self._compare(old, new)
        if len(old) == len(new):
            self.resumed += len(new)
        elif self.path is not None and processes.is_first():
            if self.recorded[done:]:  # A killed process, or a smaller budget, left a part of this generation.
                cut(self.path, self.name, keep=done)
            files.append_lines(self.path, new)
        self.recorded = self.recorded if len(old) == len(new) else []
        self.lines += new

    def _compare(self, old: list[Line], new: list[Line]) -> None:
        fault = ""
        more = len(self.recorded) > len(self.lines) + len(old)
        if len(old) > len(new) or (len(old) < len(new) and more):
            fault = f"{len(old)} architectures, now {len(new)}"
        for line, expected in zip(old, new, strict=False):
            for name in sorted({*line, *expected} - {"score", "seconds", "digest"}):
                if line.get(name) != expected.get(name):
                    fault = fault or f"{name} {line.get(name)}, now {expected.get(name)}"
        if fault:
            raise ValueError(
                f"{self.path} is not the history of this search: in generation {new[0]['generation']}, from "
                f"index {new[0]['index']}, it recorded {fault}. Use the supernet, cost function and version "
                "that wrote it, or another file."
            )


def read(path: str | os.PathLike, name: str) -> list[Line]:
    """Returns the lines of one search; [] if there is no file. A part of a line at the end is left out."""
    path = files.as_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.append_lines(path, [])  # Raises now what appending would raise after an expensive evaluation.
    rest = path.read_bytes().rpartition(b"\n")[2]
    if rest[: len(_FIRST)] != _FIRST[: len(rest)]:
        raise ValueError(
            f"{path} is not a history of a search; its end is {rest[:60]!r}. Choose another file."
        )
    found, digest = [], ""
    for number, line in enumerate(files.read_lines(path, ("index", "strategy", "digest")), start=1):
        if line["strategy"] != name:
            continue
        digest = _digest(line, digest)
        if line["digest"] != digest:
            raise ValueError(
                f"line {number} of {path} is not what the search {name!r} wrote there: it was changed, or "
                "a line before it was lost. Restore the file, or move it away to start anew."
            )
        found.append(line)
    return found


def cut(path: str | os.PathLike, name: str, keep: int) -> None:
    """Leaves the first `keep` lines of one search, the lines of the others, and no part of a line."""
    lines = files.as_path(path).read_bytes().splitlines(keepends=True)
    kept = []
    for line in lines:
        ours = line.endswith(b"\n") and json.loads(line)["strategy"] == name
        keep -= ours
        if line.endswith(b"\n") and not (ours and keep < 0):
            kept.append(line)
    if len(kept) < len(lines):
        files.write_bytes(path, b"".join(kept))


def seal(lines: Sequence[Mapping[str, Any]], before: Sequence[Line]) -> list[Line]:
    """Returns lines as they are written behind those `before`, each with its digest."""
    digest = before[-1]["digest"] if before else ""
    sealed = []
    for line in lines:
        plain = files.plain(line)
        digest = _digest(plain, digest)
        sealed.append({**plain, "digest": digest})
    return sealed


def _digest(line: Line, before: str) -> str:
    text = json.dumps({key: value for key, value in line.items() if key != "digest"})
    return files.digest((before + text).encode())


def settings_of(strategy: Strategy, key: jax.Array) -> dict[str, Any]:
    """Returns what decides the course of a search, but for costs and scores, as plain values.

    A search may resume with more `evaluations` or `budget`, unless its strategy plans by them.
    """
    plain: dict[str, Any] = {
        "strategy": type(strategy).__name__,
        "key": np.asarray(jax.random.key_data(key)).reshape(-1).tolist(),
    }
    for field in dataclasses.fields(strategy):
        if field.name not in ("space", "cost", "bounds", "evaluations", "budget", "canonical"):
            plain[field.name] = _plain(getattr(strategy, field.name))
    if strategy.plans_by_budget:
        plain["evaluations"] = strategy.evaluations
    bounds = {name: [low, high] for name, low, high in strategy.bounds}
    return files.plain({**plain, "bounds": bounds, "space": strategy.space.to_json()})


def _plain(value: Any) -> Any:
    """A value as numbers and text that are the same in every process."""
    if value is None or isinstance(value, int | float | str):
        return value
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return f"{type(value).__name__}({', '.join(f'{k}={_plain(v)!r}' for k, v in fields.items())})"
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    leaves = jax.tree.leaves(value)
    if leaves and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves):
        return f"sha256:{files.digest(value)}"
    return repr(value)


def _check_settings(recorded: list[Line], settings: Mapping[str, Any], path: Any) -> None:
    before = recorded[0].get("settings", {}) if recorded else settings
    changed = [
        f"{name} (recorded {json.dumps(before.get(name)):.120}, now {json.dumps(settings.get(name)):.120})"
        for name in sorted({*before, *settings})
        if before.get(name) != settings.get(name)
    ]
    if changed:
        raise ValueError(
            f"{path} holds a search with other settings: {'; '.join(changed)}. "
            "Restore them, or move the file away to search anew."
            + f" If another objective gives the same scores, pass objective={before.get('objective')!r}."
            * (before.get("objective") != settings.get("objective"))
        )


def digest_of(objective: Any) -> str:
    """Returns 16 hexadecimal digits that another objective does not have.

    Of a Python function these count: its name, code and defaults, the numbers and texts of outer scopes that
    it reads or its object holds, and the same of the functions of its module that it calls. Other modules,
    files and arrays do not. Another version of Python may give another digest.
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
    fields = tuple(_fields(value, module, seen))
    name = (name, *fields) if fields else name
    if code is None or code in seen or function.__module__ != module:
        return name
    seen.add(code)
    try:
        outer = inspect.getclosurevars(function)
    except ValueError:  # A variable that has no value yet.
        outer = inspect.ClosureVars({}, {}, {}, set())
    assigned = {step.argval for step in _steps(code) if step.opname in ("STORE_DEREF", "STORE_GLOBAL")}
    read = sorted((k, v) for k, v in ({**outer.globals, **outer.nonlocals}).items() if k not in assigned)
    defaults = (*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items()))
    documented = code.co_consts[:1] == (function.__doc__,)
    code = code.replace(co_consts=(None, *code.co_consts[1:])) if documented else code
    return name, *(_described(one, module, seen) for one in (code, defaults, tuple(read)))


def _fields(value: Any, module: str | None, seen: set[types.CodeType]) -> Iterator[Any]:
    """The numbers and texts of an object whose method is called, but for those that it assigns."""
    value = inspect.unwrap(value) if callable(value) else value
    owner, code = getattr(value, "__self__", value), getattr(_function(value), "__code__", None)
    if code is None or isinstance(owner, type | types.FunctionType | types.ModuleType):
        return
    assigned = {step.argval for step in _steps(code) if step.opname == "STORE_ATTR"}
    for name, one in sorted(getattr(owner, "__dict__", {}).items()):
        if isinstance(one, bool | int | float | complex | str | bytes | tuple) and name not in assigned:
            yield name, _described(one, module, seen)


def _steps(code: types.CodeType) -> Iterator[dis.Instruction]:
    """The instructions of a function and of those that it defines."""
    return itertools.chain.from_iterable(map(dis.get_instructions, _codes(code)))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of those that it defines."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)
