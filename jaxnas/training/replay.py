"""A step that diverged, once more: what it trained, and where the first numbers were lost."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from jaxnas import files
from jaxnas.cost import Cost
from jaxnas.processes import on_host
from jaxnas.tasks import Task
from jaxnas.tensors import flatten
from jaxnas.training.checkpoint import Checkpointer
from jaxnas.training.deciding import compared_with, deciding
from jaxnas.training.divergence import DIVERGED, MENDS, key_of
from jaxnas.training.prepare import prepare
from jaxnas.training.recipe import Recipe
from jaxnas.training.recipes import usual_recipe
from jaxnas.training.settings import Training
from jaxnas.training.step import differentiate


@dataclasses.dataclass(frozen=True)
class Replay:
    """What a step did.

    Attributes:
      step: its number, from 1.
      architectures: that it trained, as option values; () where they were soft.
      loss: of the step.
      largest: the largest absolute parameter before the step.
      not_finite: inputs and gradients that hold a NaN or an infinity, by name.
      norms: of the gradients of the others, by name.
    """

    step: int
    architectures: tuple[dict[str, Any], ...]
    loss: float
    largest: float
    not_finite: tuple[str, ...]
    norms: Mapping[str, float]


def replay(
    task: Task,
    net: nn.Module,
    training: Training,
    workdir: str | os.PathLike,
    *,
    recipe: Recipe | None = None,
    cost: Cost | None = None,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    mesh: Mesh | None = None,
) -> Replay:
    """Repeats the step that a training in a workdir diverged at; nothing is written.

    It goes from the last checkpoint to that step, with the batches and the randomness of the training.

    Args:
      task, net, training, recipe, cost, seed, config, mesh: as given to `fit`.
      workdir: of the training.

    Raises:
      FileNotFoundError: no training diverged there.
      ConfigMismatch: another training than these arguments are of.
      ValueError: the step had another key, as that of another seed.
    """
    folder = files.as_path(workdir)
    if not (folder / DIVERGED).is_file():
        raise FileNotFoundError(f"{folder} has no {DIVERGED}: no training diverged there, or it was mended.")
    diverged = files.read_json(folder / DIVERGED)
    last = diverged["step"] - 1
    recipe = usual_recipe(net.space) if recipe is None else recipe
    mesh = training.mesh() if mesh is None else mesh
    state, step, batch = prepare(task, net, training, recipe, mesh, cost=cost, seed=seed)
    config = training.recorded(seed) if config is None else config
    start = 0
    if (folder / "checkpoints").is_dir():
        with Checkpointer(folder / "checkpoints") as checkpointer:
            differ = compared_with({**deciding(task, net, training, recipe), "seed": seed})
            if (restored := checkpointer.restore(state, config, MENDS, differ=differ)) is not None:
                start, state, _ = restored
    key = key_of(state.key, last + 1)
    if key != diverged.get("key", key):  # Records of before have none.
        raise ValueError(
            f"the step of {folder / DIVERGED} had the key {diverged['key']}, of the seed {diverged['seed']}; "
            f"here the key of step {last + 1} is {key}. Give the seed of that training."
        )
    for number in range(start, last):
        state, _ = step(state, batch(number))
    rows, schedule = batch(last), training.optimizer()[1]

    def gradients(state: Any, rows: Any) -> Any:
        common = dict(steps=training.steps, cost=cost)
        return differentiate(task, net, recipe, schedule, mesh, state, rows, **common)[1]

    found, rows = on_host(jax.jit(gradients)(state, rows)), flatten(on_host(rows))
    named = {f"batch/{'/'.join(path)}": x for path, x in rows.items() if x.dtype.kind == "f"}
    gradient = {f"gradient/{'/'.join(path)}": x for path, x in flatten(found.params).items()}
    lost = tuple(name for name, x in (named | gradient).items() if not np.all(np.isfinite(x)))
    return Replay(
        last + 1,
        () if found.archs is None else tuple(net.space.to_dicts(found.archs)),
        float(found.loss),
        max(float(np.max(np.abs(x))) for x in jax.tree.leaves(on_host(state.params))),
        lost,
        {name: float(np.linalg.norm(x)) for name, x in gradient.items() if name not in lost},
    )
