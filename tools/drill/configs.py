"""Runs so small that a hundred of them can be killed, of a supernet on digits."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax

from jaxnas import Choice, Space, elastic, runs, search, tasks
from jaxnas.experiments import Config
from jaxnas.recipes import Relaxed, Uniform
from jaxnas.training import Training


class Mlp(nn.Module):
    """Hidden layers of searched widths."""

    space: Space

    @nn.compact
    def __call__(self, images: jax.Array, arch: Any = None, *, train: bool = False) -> Any:
        decisions = elastic.Decisions(self.space, arch, initializing=self.is_initializing())
        x, width = images.reshape(images.shape[0], -1), elastic.fixed(64)
        for i in range(2):
            hidden = elastic.width(int, decisions["hidden", i], axis="mlp")
            x, width = nn.relu(elastic.Dense(name=f"hidden_{i}")(x, width, hidden)), hidden
        return elastic.Dense(name="out")(x, width, elastic.fixed(10))


def _config(name: str, recipe: Any, settings: runs.Search, evolution: Any = None) -> Config:
    return Config(
        name=name,
        task=tasks.Images(data="digits"),
        network=Mlp(SPACE),
        training=Training(steps=60, batch_size=32, log_every=2, evaluate_every=30, checkpoint_every=5),
        recipe=recipe,
        search=settings,
        evolution=evolution,
    )


SPACE = Space(hidden=Choice(8, 16, 32).repeat(2))
_EVOLUTION = search.Evolution(SPACE, evaluations=48, population=8, parents=3, mutations=4, crossovers=3)
_RELAXED = Relaxed(start=10, every=2, learning_rate=0.05, cost="params", cost_weight=0.5, target=0.5)
_MOVING = runs.SpaceEvolution(turns=1, sample=24, top=6, rules={"hidden": search.ShiftRule(threshold=0.03)})
_TRIALS = runs.Search(runs.Trials(samples=6, steps=(2, 4), eta=2), limit=2)
CONFIGS = {
    config.name: config
    for config in (
        _config("one_shot", Uniform(), runs.Search(runs.ByStrategy(_EVOLUTION), most_share=0.8)),
        _config("relaxed", _RELAXED, _TRIALS),
        _config("evolving", Uniform(), runs.Search(runs.ByStrategy(_EVOLUTION), most_share=0.8), _MOVING),
    )
}
