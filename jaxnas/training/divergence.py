"""What is said and kept of a step whose loss or gradient is not finite, and of the settings that mend it."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxnas import files
from jaxnas.processes import is_first, on_host
from jaxnas.space import Space
from jaxnas.training.metrics import JsonlWriter

DIVERGED, MENDED = "diverged.json", "mends.jsonl"
# The settings that may be changed after a training has diverged, of a supernet or of a network alone.
MENDS = tuple(
    f"{group}.{name}"
    for group in ("training", "retraining")
    for name in ("learning_rate", "clip", "warmup_steps")
)


class DivergedError(RuntimeError):
    """The loss or a gradient is no longer a number."""


def check_finite(
    space: Space,
    flags: list[tuple[range, Any, Any]],
    folder: pathlib.Path | None,
    seed: int,
    key: jax.Array,
) -> None:
    """Raises DivergedError for the first step whose loss or gradient was not finite.

    Args:
      space: of the network.
      flags: of each call, the numbers of its steps from 0, whether each was finite (bool, [steps] or []),
        and the architectures that they trained, or None.
      folder: where the step is written down; None for nowhere.
      seed, key: of the run.
    """
    for numbers, finite, archs in flags:
        finite = np.atleast_1d(finite)  # [steps of the call]
        if not np.all(finite):
            first = int(np.argmin(finite))
            archs = on_host(archs)
            own = archs if len(numbers) == 1 else jax.tree.map(lambda x, i=first: x[i], archs)
            raise diverged(numbers[first] + 1, folder, seed, key, space, own)


def diverged(
    step: int,
    folder: pathlib.Path | None,
    seed: int,
    key: jax.Array,
    space: Space | None = None,
    archs: Any = None,
) -> DivergedError:
    """The error of a step, counted from 1, which is written down in the folder.

    Args:
      step: its number, from 1.
      folder: where diverged.json goes; None for nowhere.
      seed, key: of the run.
      space, archs: the architectures that the step trained, a batch of them, if they are known and hard.
    """
    trained = [] if space is None or archs is None else space.to_dicts(archs)
    if folder is not None and is_first():
        record = {"step": step, "architectures": trained, "seed": seed, "key": key_of(key, step)}
        files.write_json(folder / DIVERGED, record)
    which = f" It trained {json.dumps(files.plain(trained[0]))}." if len(trained) == 1 else ""
    advice = (
        "What was saved before is good: start again with the same workdir and a smaller "
        "training.learning_rate, with training.clip=1, or with a longer training.warmup_steps, and the run "
        "goes on from the last checkpoint."
    )
    if step == 1:
        advice = (
            "These are the weights that training began with, so no rate mends it. Look for numbers in the "
            "data that are not finite or very large, and for tokens beyond the sizes of the network: Flax "
            "makes NaN of a token that an embedding has no row for."
        )
    return DivergedError(
        f"The loss or a gradient of step {step} is not finite.{which} {advice} `--replay` of "
        "experiments.train_supernet, or training.replay, shows what that step did."
    )


def key_of(key: jax.Array, step: int) -> list[int]:
    """The data of the key that a step, counted from 1, draws from; the key is the run's."""
    return np.asarray(jax.random.key_data(jax.random.fold_in(key, step - 1))).tolist()


def keep_mends(
    folder: pathlib.Path, start: int, before: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    """Records in mends.jsonl the settings with which a training that diverged goes on from a checkpoint.

    Settings that were tried from the same checkpoint before, and diverged again, have no part in the
    weights: their records are removed.

    Args:
      folder: of the training.
      start: the step of the checkpoint.
      before, config: the config of the checkpoint, and the one to go on with.
    """
    pairs = {name: (_field(before, name), _field(config, name)) for name in MENDS}
    changes = {name: {"before": old, "now": new} for name, (old, new) in pairs.items() if old != new}
    if changes or (folder / MENDED).exists():
        writer = JsonlWriter(folder / MENDED, resume=start - 1)
        if changes:
            found = folder / DIVERGED
            step = files.read_json(found)["step"] if found.exists() else None
            writer.write({"step": start, "diverged": step, "changes": changes})


def _field(config: Any, name: str) -> Any:
    """A value of nested dictionaries by its dotted name; None if there is none."""
    for part in name.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config
