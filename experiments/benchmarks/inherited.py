"""What networks are worth with the weights of a trained supernet: the smallest, the largest and random ones.

  python -m experiments.benchmarks.inherited --config=autoformer_fashion_mnist --workdir=runs/entangled

Prints a line, and keeps all scores in inherited.json of the workdir, which `claims` draws. The random
architectures depend on `--draw` alone and not on the config's seed, so that the supernets of several runs are
asked for the same ones. All figures are of the search role.
"""

from __future__ import annotations

import json

import jax
import numpy as np
from absl import flags

from experiments import binary
from experiments.configs import CONFIGS
from jaxnas import files, training
from jaxnas.training.keys import stream


def main() -> None:
    """Prints the figures of one supernet."""
    config, workdir = binary.read_config(CONFIGS, trains=False)
    session = binary.bring_to_life(config, workdir)
    space, variables = session.net.space, session.weights(workdir)
    drawn = space.sample(stream(flags.FLAGS.draw, "ranking"), flags.FLAGS.architectures)
    ends = jax.tree.map(lambda *x: np.stack(x), space.smallest(), space.largest())
    limit = config.search.limit
    evaluate = training.make_evaluator(session.task, session.net, "search", mesh=session.mesh, limit=limit)
    smallest, largest = evaluate.scores(variables, ends)
    scores = np.asarray(evaluate.scores(variables, drawn), np.float64)
    line = {
        "workdir": str(workdir),
        "smallest": float(smallest),
        "largest": float(largest),
        "architectures": len(scores),
        "mean": scores.mean(),
        "deviation": scores.std(ddof=1),
        "worst": scores.min(),
        "best": scores.max(),
    }
    print(json.dumps(line), flush=True)
    files.write_json(workdir / "inherited.json", scores.tolist())


if __name__ == "__main__":
    binary.define_flags(CONFIGS)
    flags.DEFINE_integer("architectures", 50, "Random architectures.", lower_bound=2)
    flags.DEFINE_integer("draw", 0, "Which random architectures.")
    binary.run(main)
