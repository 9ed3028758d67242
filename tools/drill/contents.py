"""The files of a run without times, to compare two runs."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxnas import files
from jaxnas.training.checkpoint import checksums

NOT_COMPARED = (".lock", "times.json", "times.jsonl")


def weights(step: pathlib.Path) -> Any:
    """The checksums of a checkpoint's leaves: those of its record, if they are those of its files."""
    said = files.read_json(step / "record" / "metadata")["record"]["checksums"]
    try:
        found = sorted(checksums(arrays(step)).values())
    except ValueError:  # notes on shapes that only this reader needs: the run has read the arrays without
        return said
    return said if found == sorted(said.values()) else found


def arrays(step: pathlib.Path) -> Any:
    """The state that a checkpoint holds, as nested dictionaries and lists of NumPy arrays."""
    reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    tree: Any = reader.metadata(step / "state").item_metadata
    arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), getattr(tree, "tree", tree))
    return reader.restore(step / "state", restore_args=arguments)


def content(path: pathlib.Path) -> Any:
    """The contents of a file, without times."""
    if path.suffix == ".npz":
        arrays = files.read_arrays(path)
        return {name: (x.shape, x.tobytes()) for name, x in arrays.items() if name != "seconds"}
    times = {
        "comparison.json": rb'"seconds_per_search": [\d.e-]+',
        # Bars of times, cells of a column of times, and texts.
        "report.html": rb'"bars":\[(\{"s":"[^"]*","x":[\d.e-]+\},?)+\]|data-name="milliseconds">[^<]*|'
        rb"[\d.,]+(</?\w+>|\s|\xc2\xa0)*(ms|s|\w+ (per|a) second)\b",
    }
    return re.sub(times.get(path.name, b"$^"), b"", path.read_bytes())


def contents(workdir: pathlib.Path) -> dict[str, Any]:
    """All that a run leaves and that must be equal: the last weights, and each file that is no time."""
    found: dict[str, Any] = {}
    for path in workdir.rglob("*"):
        parts, name = path.relative_to(workdir).parts, str(path.relative_to(workdir))
        if path.name == "checkpoints":
            steps = [step for step in path.iterdir() if step.name.isdigit()]
            found[name] = weights(max(steps, key=lambda step: int(step.name)))
        elif path.is_file() and "checkpoints" not in parts and path.name not in NOT_COMPARED:
            if not any(files.is_leftover(pathlib.Path(part)) for part in parts):
                found[name] = content(path)
    return found


def differences(workdir: pathlib.Path, other: pathlib.Path) -> list[str]:
    """The names of what two workdirs do not have alike."""
    one, two = contents(workdir), contents(other)
    return sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
