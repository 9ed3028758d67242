"""Measures a saved network, or any architecture of a trained supernet, on a role of the data.

  jaxnas evaluate --config=autoformer_digits --workdir=runs/digits
  jaxnas evaluate --config=autoformer_digits --workdir=runs/digits --architecture=largest

Prints one JSON object: the architecture, its costs, the role, how many examples it has, the metrics, and
where the time went. The workdir's evaluations.jsonl gets the same as a line, if it can be written.
"""

from __future__ import annotations

import json

import numpy as np
from absl import flags, logging

import jaxnas
from jaxnas import files, processes, training
from jaxnas.experiments import binary
from jaxnas.experiments.configs import CONFIGS
from jaxnas.hf.prunable import whole
from jaxnas.training.progress import Clock


def main() -> None:
    config, workdir = binary.read_config(CONFIGS, trains=False)
    if not workdir.is_dir():
        raise FileNotFoundError(f"There is no directory {workdir}.")
    clock, role = Clock(("input", "evaluation", "checkpoint")), flags.FLAGS.role
    with clock.part("input"):
        session = binary.bring_to_life(config, workdir)
        session.check_task(workdir)
        costs = session.costs(workdir)
    with clock.part("checkpoint"):
        if flags.FLAGS.architecture:
            net, arch = session.net, session.architecture(flags.FLAGS.architecture, workdir, costs)
            variables = session.weights(workdir)
        else:
            folder, arch = workdir / flags.FLAGS.network, None
            if config.pretrained:
                net, variables = whole(folder).load(session.task, session.mesh)
            else:
                net, variables = jaxnas.load_subnet(folder, module=session.net)
            costs = jaxnas.cost(net, session.task.inputs)
    shown = net.space.smallest() if arch is None else arch
    with clock.part("evaluation"):
        metrics = training.make_evaluator(session.task, net, role, mesh=session.mesh)(variables, arch)
        metrics = {name: float(value) for name, value in metrics.items()}
    record = {
        "architecture": net.space.to_dict(shown),
        **{name: np.asarray(value).item() for name, value in costs(shown).items()},
        "role": role,
        session.task.examples: session.task.sizes[role],
        **metrics,
        "times": clock.shares(),
    }
    print(json.dumps(record, indent=2))
    if processes.is_first():
        try:
            files.append_lines(workdir / "evaluations.jsonl", [record])
        except OSError as error:  # Whoever may only read a workdir may still evaluate what is in it.
            logging.warning("These figures are not kept in the workdir: %s", error)


if __name__ == "__main__":
    binary.define_flags(CONFIGS)
    flags.DEFINE_string("network", "subnet", "Folder of a saved network, within the workdir.")
    flags.DEFINE_string(
        "architecture",
        None,
        "Instead, an architecture with the supernet's weights: found, smallest, largest, a name of the "
        "config's, random:K, or option values as JSON.",
    )
    flags.DEFINE_enum("role", "test", ["search", "validation", "test"], "What to measure on.")
    binary.run(main)
