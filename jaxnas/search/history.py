"""The history file of a search: one JSON line for each evaluated architecture."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxnas.space import Space

Line = dict[str, Any]


def read(path: str | os.PathLike) -> list[Line]:
    """Returns the lines of a history, [] if there is no file.

    A last line that is cut off is left out. Raises ValueError for any other line that isn't JSON,
    or lacks a field.
    """
    path = Path(path)
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines = []
    for number, row in enumerate(text, 1):
        try:
            line = json.loads(row)
            missing = {"strategy", "index", "generation", "architecture", "score"} - set(line)
        except (ValueError, TypeError):
            if number == len(text):  # a writer was stopped here
                break
            raise ValueError(
                f"{path}, line {number} is not JSON: {row[:60]!r}. Restore the file, "
                "or move it away to start anew."
            ) from None
        if missing:
            raise ValueError(
                f"{path}, line {number} has no {sorted(missing)}: this is not a "
                "history of a search. Choose another file."
            )
        lines.append(line)
    return lines


def write(path: str | os.PathLike, lines: list[Line]) -> None:
    """Writes a history atomically: a reader sees the old file or the new one, never a part.

    Raises OSError if the folder can't be written.
    """
    path, partial = Path(path), _partial(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(partial, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def check_writable(path: str | os.PathLike) -> None:
    """Raises OSError if `write` would, before anything expensive is done."""
    partial = _partial(path)
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.touch()
    partial.unlink()


def _partial(path: str | os.PathLike) -> Path:
    return Path(path).with_name(Path(path).name + ".partial")


def score_to_json(score: Any) -> Any:
    """Returns a score as JSON can hold it: NaN as null, infinities as strings; a list of several."""
    if np.ndim(score):
        return [score_to_json(one) for one in score]
    score = float(score)
    if math.isnan(score):
        return None
    return str(score) if math.isinf(score) else score


def score_from_json(score: Any) -> Any:
    """Returns the score, or the list of scores, that `score_to_json` wrote."""
    if isinstance(score, list):
        return [score_from_json(one) for one in score]
    return math.nan if score is None else float(score)


def differences(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Returns a line for each setting in which a recorded search and the given one differ."""
    given = json.loads(json.dumps(given))
    return [
        f"{name} (recorded {_short(recorded.get(name))}, now {_short(given.get(name))})"
        for name in sorted({*recorded, *given})
        if recorded.get(name) != given.get(name)
    ]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."


def same_architecture(space: Space, recorded: Any, given: Mapping[str, Any]) -> bool:
    """Returns whether a recorded architecture is the given one, both as option values."""
    try:
        return space.to_dict(space.from_dict(recorded)) == given
    except (ValueError, TypeError, AttributeError):
        return False
