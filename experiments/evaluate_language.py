"""Measures a saved language model, of a search or of a retraining, on a text.

  python -m experiments.evaluate_language --config=wikitext2 --workdir=runs/par --network=subnet
  python -m experiments.evaluate_language --config=wikitext2 --workdir=runs/par \\
      --network=retrained/found-scratch-0/subnet --split=test --set evaluation.memory_length=256 \\
      --set evaluation.same_length=true

Prints one JSON object: the network, its costs, the split, nats per token, perplexity, bits per byte.
"""

from __future__ import annotations

import json
import pathlib

from absl import app, flags

import jaxnas
from experiments import config as config_lib
from experiments.language_configs import CONFIGS
from experiments.language_setup import build, figures
from experiments.setup import define_data_flags
from jaxnas import supernets


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}")
    config, path = config_lib.from_flags(CONFIGS)
    net, params = jaxnas.load_subnet(pathlib.Path(path) / flags.FLAGS.network)
    if not isinstance(net, supernets.TransformerXL):
        raise ValueError(f"--network={flags.FLAGS.network} is a {type(net).__name__}, no language model.")
    setup = build(config, config.retraining, flags.FLAGS.data_dir, flags.FLAGS.source_dir)
    if net.vocabulary != setup.corpus.vocabulary.size:
        raise ValueError(
            f"--network={flags.FLAGS.network} knows {net.vocabulary} tokens, and the text has "
            f"{setup.corpus.vocabulary.size}: give the --config and --set of its training."
        )
    role = flags.FLAGS.split
    stream = getattr(setup.corpus, role)
    nats = float(setup.evaluator(net, role)(params))
    arch = net.space.smallest()
    evaluated, length = setup.as_evaluated(net)
    costs = jaxnas.cost(evaluated, (1, length))(arch)
    print(
        json.dumps(
            {
                "architecture": net.space.to_dict(arch),
                **{name: int(value) for name, value in costs.items()},
                "length": length,
                "memory_length": evaluated.memory_length,
                "split": role,
                "tokens": len(stream),
                **figures(nats, stream),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    config_lib.define_flags(CONFIGS)
    define_data_flags()
    flags.DEFINE_string("network", "subnet", "Folder of the saved network, within the workdir.")
    flags.DEFINE_enum("split", "validation", ["validation", "test"], "What to evaluate on.")
    config_lib.run(main)
