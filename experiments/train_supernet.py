"""Trains a supernet by the recipe of a config.

  python -m experiments.train_supernet --config=autoformer_digits --workdir=runs/digits
  python -m experiments.train_supernet --config=examples/my_config.py:digits --workdir=runs/mine \\
      --set training.steps=300

Started again with the same workdir it goes on from the last checkpoint, to the same result.
Then: python -m experiments.search with the same --config, --set and --workdir.
"""

from __future__ import annotations

import dataclasses
import json

from absl import flags

from experiments import binary
from experiments.config import pretty
from experiments.configs import CONFIGS
from jaxnas import files, report, runs, training


def _number(count: int) -> str:
    return f"{count:,}" if count < 10**9 else f"{count:.2e}"


def main() -> int:
    config, path = binary.read_config(CONFIGS, trains=True)
    print(pretty(config), flush=True)
    with training.open_workdir(path) as workdir:
        session = binary.bring_to_life(config)
        print(
            f"{_number(session.net.space.cardinality)} architectures, {session.task.sizes['train']:,} "
            f"{session.task.examples} to train on, {session.mesh.size} device(s)",
            flush=True,
        )
        if flags.FLAGS.replay:
            session = session.evolved(workdir, measured=False)
            step = training.replay(
                session.task,
                session.net,
                config.training,
                workdir,
                recipe=config.recipe,
                cost=session.costs(workdir),
                seed=config.seed,
                config=session.deciding,
                mesh=session.mesh,
            )
            print(json.dumps(files.plain(dataclasses.asdict(step)), indent=2), flush=True)
            return 0
        binary.store(config, workdir, ran=False)
        start = None
        if config.evolution is not None:
            evolved = runs.evolve(
                session.task,
                session.net,
                config.training,
                config.recipe,
                config.evolution,
                workdir,
                seed=config.seed,
                mesh=session.mesh,
                config=session.deciding,
            )
            if evolved is None:
                print("stopped and saved; the same command goes on from here", flush=True)
                return binary.STOPPED
            session, start = dataclasses.replace(session, net=evolved[0]), evolved[1]
        page, steps = runs.LivePage(session.task, session.net.space, workdir), config.training.steps
        trained = training.fit(
            session.task,
            session.net,
            config.training,
            recipe=config.recipe,
            variables=start,
            cost=session.costs(workdir),
            seed=config.seed,
            workdir=workdir,
            config=session.deciding,
            mesh=session.mesh,
            progress=lambda done, _: page.update(f"The supernet is in training: step {done:,} of {steps:,}."),
        )
        if trained.complete and config.evolution is not None:
            settings, common = config.evolution, dict(seed=config.seed, mesh=session.mesh)
            runs.measure_last(session.task, session.net, trained.variables, settings, workdir, **common)
        if trained.complete:
            page.end("The supernet is trained, and experiments.search goes on from here.")
        binary.store(config, workdir, ran=True)
    print(report.times_line(trained.times), flush=True)
    if not trained.complete:
        print("stopped and saved; the same command goes on from here", flush=True)
        return binary.STOPPED
    print(f"trained: {int(trained.state.step)} steps, checkpoints in {path}/checkpoints", flush=True)
    return 0


if __name__ == "__main__":
    binary.define_flags(CONFIGS)
    flags.DEFINE_boolean("replay", False, "Instead, repeat the step that the training here diverged at.")
    binary.run(main)
