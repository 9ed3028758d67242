"""Trains a supernet: every step trains one random architecture, all share one set of weights.

  python -m experiments.train_supernet --config=digits --workdir=runs/digits
  python -m experiments.train_supernet --config=fashion_mnist --workdir=runs/fashion \\
      --source_dir=/path/to/idx/files --set training.steps=3000 --set seed=1

Started again with the same workdir it goes on from the last checkpoint, to the same result.
Then: python -m experiments.search with the same --config, --set and --workdir.
"""

from __future__ import annotations

from absl import app, flags

from experiments import config as config_lib
from experiments.configs import CONFIGS
from experiments.setup import build, define_data_flags
from jaxnas.data import Batches
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.loop import LoopSettings, fit, monitored, watch_record
from jaxnas.training.step import make_train_step
from jaxnas.training.workdir import open_workdir


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}")
    config, path = config_lib.from_flags(CONFIGS)
    print(config_lib.pretty(config), flush=True)
    with open_workdir(path) as workdir:
        setup = build(config, flags.FLAGS.data_dir, flags.FLAGS.source_dir)
        settings = config.training
        space = setup.net.space
        print(
            f"{space.cardinality:.3e} architectures, {len(setup.dataset.train)} training images, "
            f"{setup.mesh.size} device(s)",
            flush=True,
        )
        config_lib.store(config, workdir, ran=False)
        optimizer, schedule = setup.optimizer()
        step = make_train_step(
            setup.net,
            optimizer,
            schedule,
            setup.augment,
            setup.mesh,
            setup.input_shape,
            freeze_inactive=settings.freeze_inactive,
        )
        evaluate = make_evaluator(
            setup.net,
            setup.dataset.search,
            config.search.batch_size,
            setup.standardize,
            setup.mesh,
            role="search",
        )
        archs = monitored(space, setup.key("monitor"))
        _, complete = fit(
            setup.initial_state(),
            step,
            Batches(setup.dataset.train.require("train"), settings.batch_size, config.seed),
            workdir,
            LoopSettings(
                settings.steps,
                settings.log_every,
                settings.evaluate_every,
                settings.checkpoint_every,
                settings.steps_per_call,
            ),
            mesh=setup.mesh,
            watch=lambda state: watch_record(evaluate(state.params, archs)),
            config=config_lib.to_dict(config),
        )
        config_lib.store(config, workdir, ran=True)
        if complete:
            print(f"trained: {settings.steps} steps, checkpoints in {path}/checkpoints", flush=True)
        else:
            print("stopped and saved; the same command goes on from here", flush=True)


if __name__ == "__main__":
    config_lib.define_flags(CONFIGS)
    define_data_flags()
    config_lib.run(main)
