"""AutoAttend's contexts: random architectures with the weights of supernets that tell contexts apart or not.

  python -m experiments.benchmarks.contexts --config=autoattend_cora --source_dir=DIR --seeds=3

One supernet is trained for each context and seed, and the same random architectures are measured with its
weights on the search role (Guan et al., ICML 2021, section 5.4.2 and table 7). Printed is their mean, over
seeds with its standard deviation. `--no_attention` leaves attention layers out of the space (table 6).
"""

from __future__ import annotations

import json

import jax
import numpy as np
from absl import flags

from experiments import binary
from experiments.configs import CONFIGS
from jaxnas import spaces, training
from jaxnas.training.keys import stream

_CONTEXTS = flags.DEFINE_list("contexts", ["none", "source", "target", "full"], "Which.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Supernets of each context.", lower_bound=1)
_ARCHITECTURES = flags.DEFINE_integer("architectures", 100, "How many are measured.", lower_bound=1)
_NO_ATTENTION = flags.DEFINE_boolean("no_attention", False, "Additions only.")


def main() -> None:
    """Prints a line for each context."""
    config = binary.chosen_config(CONFIGS)
    session = binary.bring_to_life(config)
    task, net, mesh = session.task, session.net, session.mesh
    if _NO_ATTENTION.value:
        operations, layers = net.space["second"].options, net.space["layer"].length
        net = net.clone(space=spaces.autoattend(layers, operations, attention=False))
    for context in _CONTEXTS.value:
        means, bests = [], []
        for seed in range(_SEEDS.value):
            own = net.clone(context=context)
            trained = training.fit(task, own, config.training, recipe=config.recipe, seed=seed, mesh=mesh)
            evaluate = training.make_evaluator(task, own, "search", mesh=mesh, limit=config.search.limit)
            # Other architectures for each seed, and the same ones for each context.
            archs = own.space.sample(stream(seed, "random"), _ARCHITECTURES.value)
            scores = np.asarray(evaluate.scores(trained.variables, archs))
            means.append(scores.mean())
            bests.append(scores.max())
        line = {
            "context": context,
            "parameters": sum(x.size for x in jax.tree.leaves(trained.variables)),
            "mean": float(np.mean(means)),
            "deviation_over_seeds": float(np.std(means, ddof=1)) if len(means) > 1 else None,
            "mean_best": float(np.mean(bests)),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    binary.define_config_flags(CONFIGS, "autoattend_cora")
    binary.run(main)
