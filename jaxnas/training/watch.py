"""The evaluations during a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.recipes import relaxations
from jaxnas.recipes.recipe import TrainState
from jaxnas.space import Arch, Space
from jaxnas.tasks import Task
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.keys import stream
from jaxnas.training.setup import Setup


def monitored(space: Space, key: jax.Array, count: int = 8) -> Arch:
    """The architectures watched during training: smallest, largest and `count` random ones."""
    ends = jax.tree.map(lambda *leaves: jnp.stack(leaves), space.smallest(), space.largest())
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), ends, space.sample(key, count))


def make_watch(setup: Setup) -> Callable[[TrainState], dict[str, Any]]:
    """A function from a state to a record for the metrics file.

    It has the first metric of some architectures of a supernet on "search", the probabilities of a recipe
    with architecture parameters, or the metrics of a fixed network on "validation". It is empty for a task
    without the role.
    """
    task, net, recipe = setup.task, setup.net, setup.recipe
    if recipe.watches == "probabilities":
        return _watch_probabilities
    role = "validation" if recipe.watches == "network" else "search"
    if role not in task.sizes:
        return lambda state: {}
    evaluate = make_evaluator(task, net, role, mesh=setup.mesh)
    if recipe.watches == "network":

        def network(state: TrainState) -> dict[str, Any]:
            arch = state.recipe.get("arch") if state.recipe else None
            metrics = evaluate(state.evaluated(), arch)
            return {"split": role, **{name: float(value) for name, value in metrics.items()}}

        return network
    archs, metric = monitored(net.space, stream(setup.seed, "monitor")), task.metrics[0].name

    def sampled(state: TrainState) -> dict[str, Any]:
        smallest, largest, *random = np.asarray(evaluate(state.evaluated(), archs)[metric]).tolist()
        return {
            "split": role,
            f"smallest_{metric}": smallest,
            f"largest_{metric}": largest,
            f"random_{metric}_mean": sum(random) / len(random),
            f"random_{metric}_min": min(random),
            f"random_{metric}_max": max(random),
        }

    return sampled


def score_of(task: Task, watched: Mapping[str, Any]) -> float | None:
    """The score of a state by its record, higher is better; None if nothing was measured.

    It is the first metric of a network, or the mean of the random architectures of a supernet.
    """
    metric = task.metrics[0]
    known = (watched.get(name) for name in (metric.name, f"random_{metric.name}_mean"))
    value = next((value for value in known if value is not None), None)
    return None if value is None or not np.isfinite(value) else metric.score(value)


def _watch_probabilities(state: TrainState) -> dict[str, Any]:
    probabilities = relaxations.softmax(state.logits)
    return {
        "split": "architecture",
        "confidence": float(relaxations.confidence(probabilities)),
        "probabilities": {
            name: np.asarray(x, np.float64).round(6).tolist() for name, x in probabilities.items()
        },
    }
