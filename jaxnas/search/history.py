"""The history file of a search: one JSON line for each evaluated architecture.

A line holds "index", "strategy" (the name of the search, since several may share a file), "generation",
"architecture" (option values), the costs, "score" (null where the evaluation failed) and, of a strategy
with fidelities, "fidelity" and "seconds"; the first line of a search also "settings". Its "digest" is of
the line and of all lines of the same search before it, so that a changed line does not go unnoticed.

Each generation is appended when it is told. What a killed process leaves of one is cut off when the
search goes on.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxnas import files
from jaxnas.search.strategy import Strategy

Line = dict[str, Any]
_FIRST = b'{"index": '  # What each line starts with.


def read(path: str | os.PathLike, name: str) -> list[Line]:
    """The lines of one search; [] if there is no file. A part of a line at the end is left out.

    Args:
      path: of the file.
      name: of the search.

    Raises:
      OSError: the file cannot be written, or its folder not be made.
      ValueError: the path is a folder, the file is no history, or a line of the search was changed.
    """
    path = files.as_path(path)
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder; give the path of a history file, such as {path}/history.jsonl."
        )
    if path.parent.is_file():
        raise NotADirectoryError(
            f"{path.parent} is a file, so that no history can be in it; choose a folder."
        )
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


def seal(lines: list[Line], before: list[Line]) -> list[Line]:
    """The lines as they are written and read, each with its digest; `before` are those that precede."""
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
    """All that decides the course of a search, but for costs and scores, as plain values.

    `evaluations` and `budget` are left out, since a search may go on with more of them, unless its
    strategy plans by them. Functions count by their names alone.

    Args:
      strategy: of the search.
      key: of the search.
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


def check_settings(recorded: list[Line], settings: Mapping[str, Any], path: Any) -> None:
    """Checks that recorded lines are of a search with these settings.

    Raises:
      ValueError: they are not; the message has what differs.
    """
    before = recorded[0].get("settings", {}) if recorded else settings
    changed = [
        f"{name} (recorded {_short(before.get(name))}, now {_short(settings.get(name))})"
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


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."
