"""Evaluates a saved network, or any architecture of a trained supernet, on a split.

  python -m experiments.evaluate --config=digits --workdir=runs/digits
  python -m experiments.evaluate --config=digits --workdir=runs/digits --architecture=largest
  python -m experiments.evaluate --config=digits --workdir=runs/digits --split=search \\
      --architecture='{"embed_dim": 32, "depth": 2, "num_heads": [1, 2], "mlp_ratio": [2.0, 3.0]}'

Prints one JSON object: architecture, params, macs, split, images, accuracy.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
from absl import app, flags

import jaxnas
from experiments import config as config_lib
from experiments.configs import CONFIGS
from experiments.search import evaluator, trained_params
from experiments.setup import Setup, build, define_data_flags


def pick(setup: Setup, text: str) -> Any:
    """An architecture from the command line: "smallest", "largest", or JSON of option values."""
    space = setup.net.space
    if text in ("smallest", "largest"):
        return getattr(space, text)()
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise app.UsageError(
            f"--architecture is {text!r}: expected 'saved', 'smallest', 'largest' or JSON such as "
            f"{json.dumps(space.to_dict(space.smallest()))}."
        ) from error
    return space.from_dict(values)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}")
    config, path = config_lib.from_flags(CONFIGS)
    workdir = pathlib.Path(path)
    if not workdir.is_dir():
        raise app.UsageError(f"There is no directory {path}.")
    setup = build(config, flags.FLAGS.data_dir, flags.FLAGS.source_dir)
    role, wanted = flags.FLAGS.split, flags.FLAGS.architecture
    if wanted == "saved":
        net, params = jaxnas.load_subnet(workdir / "subnet")
        arch = net.space.smallest()
    else:
        net, params, arch = setup.net, trained_params(setup, workdir), pick(setup, wanted)
    split = {"search": setup.dataset.search, "test": setup.dataset.test}[role]
    evaluate = evaluator(setup, net, role)
    cost = jaxnas.cost(net, setup.input_shape)(arch)
    print(
        json.dumps(
            {
                "architecture": net.space.to_dict(arch),
                **{name: int(value) for name, value in cost.items()},
                "split": role,
                "images": len(split),
                "accuracy": float(jax.device_get(evaluate(params, arch))),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    config_lib.define_flags(CONFIGS)
    define_data_flags()
    flags.DEFINE_string(
        "architecture", "saved", "saved (in workdir/subnet), smallest, largest, or option values as JSON."
    )
    flags.DEFINE_enum("split", "test", ["search", "test"], "What to evaluate on.")
    config_lib.run(main)
