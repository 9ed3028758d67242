"""Trains one architecture alone, on all training data, and measures it.

  python -m experiments.retrain --config=digits --workdir=runs/digits --architecture=found
  python -m experiments.retrain --config=digits --workdir=runs/digits --weights=inherited

Goes into workdir/retrained/<architecture>-<weights>-<seed>, goes on there, and is entered in the page of the
search, if there is one. Nothing is held out of this training, so it sees the search role too.
"""

from __future__ import annotations

import re

from absl import flags

from experiments import binary
from experiments.configs import CONFIGS
from jaxnas import files, processes, report, runs, training
from jaxnas.report.result import NAME


def label_of(text: str, weights: str, seed: int) -> str:
    """The folder of a retraining: what was trained, from which weights, with which seed."""
    name = text.replace(":", "_")
    if not re.fullmatch(r"\w{1,40}", name):
        name = "given_" + files.sha256(text.encode())[:12]
    return f"{name}-{weights}-{seed}"


def main() -> int:
    config, root = binary.read_config(CONFIGS)
    text, weights = flags.FLAGS.architecture, flags.FLAGS.weights
    path = root / "retrained" / label_of(text, weights, config.seed)
    with training.open_workdir(path) as workdir:
        session = binary.bring_to_life(config)
        costs = session.costs(root)
        arch = session.architecture(text, root, costs)
        variables = session.trained(root).evaluated() if weights == "inherited" else None
        described = session.net.space.to_dict(arch)
        print(f"{text}: {described}", flush=True)
        # The settings of the supernet's training count only where its weights do.
        own = {name: part for name, part in session.deciding.items() if name not in ("training", "recipe")}
        result = runs.retrain(
            session.task,
            session.net,
            arch,
            config.alone,
            workdir,
            name=text,
            variables=variables,
            costs=costs,
            seed=config.seed,
            config={**own, "retraining": config.alone.deciding(), "architecture": described},
            mesh=session.mesh,
        )
    if result is None:
        print("stopped and saved; the same command goes on from here", flush=True)
        return binary.STOPPED
    if (root / NAME).is_file() and processes.is_first():
        report.write(root)
    for role, metrics in result.found.metrics.items():
        print(f"{role}: {', '.join(f'{name} {value:.4g}' for name, value in metrics.items())}", flush=True)
    print(report.times_line(files.read_json(path / "times.json")), flush=True)
    return 0


if __name__ == "__main__":
    binary.define_flags(CONFIGS)
    flags.DEFINE_string(
        "architecture",
        "found",
        "found, smallest, largest, a name of the config's, random:K, or option values as JSON.",
    )
    flags.DEFINE_enum("weights", "scratch", ["scratch", "inherited"], "What to start from.")
    binary.run(main)
