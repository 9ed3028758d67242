"""Trains a supernet by the recipe of a config.

  jaxnas train_supernet --config=autoformer_digits --workdir=runs/digits
  jaxnas train_supernet --config=examples/my_config.py:digits --workdir=runs/mine \\
      --set training.steps=300

Started again with the same workdir it resumes from the last checkpoint, with the same result.
Then: jaxnas search with the same --config and --workdir; each --set is kept there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from absl import flags

from jaxnas import display, runs, trackers, training
from jaxnas.experiments import binary
from jaxnas.experiments.config import one_line, pretty
from jaxnas.experiments.configs import CONFIGS
from jaxnas.runs.describe import LivePage
from jaxnas.runs.space_evolution import measure_last
from jaxnas.training.progress import times_line
from jaxnas.training.workdir import open_workdir


def main() -> int:
    try:
        train()
    except training.Stopped as stop:
        print(times_line(stop.trained.times), flush=True)
        print("stopped and saved; the same command resumes", flush=True)
        return binary.STOPPED
    return 0


def train() -> None:
    config, path = binary.read_config(CONFIGS, trains=True, begins=True)
    print(pretty(config) if flags.FLAGS.verbose else one_line(config, path), flush=True)
    with open_workdir(path) as workdir:
        session = binary.bring_to_life(config)
        task, settings = session.task, config.training
        print(
            f"{display.count(session.net.space.cardinality)} architectures, {task.sizes['train']:,} "
            f"{task.examples} to train on, {session.mesh.size} device(s)",
            flush=True,
        )
        binary.store(config, workdir, ran=False)
        log = trackers.of(config.log, workdir)
        lab = runs.Lab(workdir, config.seed, mesh=session.mesh, log=log)
        page = LivePage(task, session.net.space, workdir)
        page.begin("The network is being checked and compiled; the first figures appear here after that.")
        if config.evolution is not None:
            evolved = runs.evolve(task, session.net, settings, config.recipe, config.evolution, lab)
            session = dataclasses.replace(session, net=evolved)
            page = LivePage(task, session.net.space, workdir)
        steps = settings.steps

        def shown(done: int, _: Any) -> None:
            page.update(f"The supernet is in training: step {done:,} of {steps:,}.", done, steps)

        try:
            trained = training.fit(
                *(task, session.net, settings),
                recipe=config.recipe,
                workdir=workdir,
                seed=config.seed,
                options=training.Options(
                    variables=session.pretrained,
                    cost=session.costs(workdir),
                    log=[*log, shown],
                ),
            )
        except training.Stopped:
            binary.store(config, workdir, ran=True)
            raise
        if config.evolution is not None:
            measure_last(task, session.net, trained.variables, config.evolution, lab)
        page.end("The supernet is trained; jaxnas search is next.")
        binary.store(config, workdir, ran=True)
    print(times_line(trained.times), flush=True)
    print(f"trained: {int(trained.state.step)} steps, checkpoints in {path}/checkpoints", flush=True)


if __name__ == "__main__":
    binary.define_flags(CONFIGS)
    flags.DEFINE_boolean("verbose", False, "Print every setting, and not the config's name alone.")
    binary.run(main)
