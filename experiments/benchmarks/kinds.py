"""Hybrids against convolutions alone and Transformers alone, all with the weights of one supernet.

  python -m experiments.benchmarks.kinds --config=hybrid_digits --workdir=runs/hybrid --data_dir=DIR

The supernet in the workdir is one that `experiments.train_supernet` trained. From the space of each kind as
many random architectures are measured on the search role. Printed is, for each kind and quarter of the range
of products, the mean and the best, so that networks of about equal cost are compared.
"""

from __future__ import annotations

import json

import jax
import numpy as np
from absl import flags

from experiments import binary
from experiments.configs import CONFIGS
from jaxnas import training
from jaxnas.space import Arch, Space
from jaxnas.training.keys import stream


def kinds(space: Space) -> dict[str, Space]:
    """The parts of a hybrid space by kind of block; "hybrid" has both in its stages."""
    blocks = {name: choice.options for name, choice in space.decisions if name.startswith("block_")}
    convolutions = {
        name: tuple(option for option in options if option != "transformer")
        for name, options in blocks.items()
    }
    transformers = {
        name: ("transformer",) if "transformer" in options else options for name, options in blocks.items()
    }
    return {
        "hybrid": space,
        "convolutions alone": space.restrict(**convolutions),
        "Transformers alone": space.restrict(**transformers),
    }


def main() -> None:
    """Prints a line for each kind and quarter."""
    config, workdir = binary.read_config(CONFIGS, trains=False)
    session = binary.bring_to_life(config, workdir)
    space, variables = session.net.space, session.weights(workdir)
    limit = config.search.limit
    evaluate = training.make_evaluator(session.task, session.net, "search", mesh=session.mesh, limit=limit)
    costs, count = session.costs(workdir), flags.FLAGS.architectures
    rows, reach = {}, []
    for name, part in kinds(space).items():
        drawn = part.sample(stream(config.seed, "ranking"), count)
        archs = [space.from_dict(values) for values in part.to_dicts(drawn)]
        batch: Arch = jax.tree.map(lambda *x: np.stack(x), *archs)
        macs = np.asarray(jax.vmap(lambda arch: costs(arch)["macs"])(batch), np.float64)
        rows[name] = macs, evaluate.scores(variables, batch)
        reach += [macs.min(), macs.max()]
    edges = np.linspace(min(reach), max(reach), 5)
    for name, (macs, scores) in rows.items():
        for low, high in zip(edges[:-1], edges[1:], strict=True):
            within = scores[(macs >= low) & (macs <= high)]
            line = {"kind": name, "macs": [round(low), round(high)], "architectures": len(within)}
            if len(within):
                line |= {"mean": float(within.mean()), "best": float(within.max())}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    binary.define_flags(CONFIGS)
    flags.DEFINE_integer("architectures", 100, "Random architectures of each kind.", lower_bound=2)
    binary.run(main)
