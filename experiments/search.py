"""Finds an architecture with a trained supernet, and brings out that network alone.

  python -m experiments.search --config=autoformer_digits --workdir=runs/digits
  python -m experiments.search --config=autoformer_digits --workdir=runs/small --set search.most=50000

  python -m experiments.search --config=autoformer_imagenet_tiny --workdir=runs/t --supernet=supernet-tiny.pth

Each workdir is of a supernet that experiments.train_supernet has trained, with the same --config.
Architectures are compared on the search role of the data, which training did not see. The found one is
extracted as a network of exactly its size, verified against the supernet, measured once on the test role,
saved, exported, and described in report.html. With --supernet the weights are those of an official AutoFormer
supernet instead. Started again it goes on from search/history.jsonl.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from absl import flags

from experiments import binary
from experiments.config import ConfigError, to_dict
from experiments.configs import CONFIGS
from jaxnas import files, processes, report, runs, supernets, training
from jaxnas.supernets.convert import from_torch_autoformer, read_checkpoint


def converted(session: binary.Session, path: str, workdir: pathlib.Path) -> tuple[binary.Session, Any]:
    """The session and variables of an official AutoFormer supernet in place of a trained one.

    Raises:
      ConfigError: another network than a vision transformer, a search that needs more than weights, or a
        workdir of another supernet.
    """
    net, method = session.net, session.config.search.method
    if not isinstance(net, supernets.ViT):
        raise ConfigError(f"--supernet is for a ViT, and the network is a {type(net).__name__}.")
    if method not in (None, "strategy"):
        raise ConfigError(
            f"--supernet has weights and no architecture parameters, and search.method is {method!r}; "
            "set search.method=strategy."
        )
    # The official code's biases of queries, keys and values depend on the number of heads.
    net = net.clone(qkv_bias_by_heads=True)
    net, variables = from_torch_autoformer(read_checkpoint(path), net)
    digest, stored = files.sha256(pathlib.Path(path).read_bytes()), workdir / "supernet.sha256"
    if (workdir / "checkpoints").exists() or (stored.exists() and stored.read_text() != digest):
        raise ConfigError(f"{workdir} is of another supernet than {path}; take another workdir.")
    if processes.is_first():
        files.write_text(stored, digest)
    return dataclasses.replace(session, net=net), variables


def main() -> None:
    config, path = binary.read_config(CONFIGS)
    with training.open_workdir(path) as workdir:
        session = binary.bring_to_life(config, workdir)
        state = None if flags.FLAGS.supernet else session.trained(workdir)
        if state is None:
            session, variables = converted(session, flags.FLAGS.supernet, workdir)
        else:
            variables = state.evaluated()
        task, net, settings = session.task, session.net, config.search
        costs, mesh = session.costs(workdir), session.mesh
        common = dict(costs=costs, seed=config.seed, workdir=workdir, mesh=mesh)
        if (
            state is None
            or (settings.method or ("strategy" if state.logits == () else "argmax")) == "strategy"
        ):
            found = runs.search_space(task, net, variables, settings, training=config.alone, **common)
        else:
            recipe = config.recipe
            found = runs.select(task, net, state, settings, recipe=recipe, training=config.training, **common)
        spaces = runs.read_spaces(workdir)
        result = runs.finish(
            task,
            net,
            variables,
            found,
            workdir,
            costs=costs,
            config=to_dict(config),
            mesh=mesh,
            named={name: net.space.from_dict(x) for name, x in config.architectures.items()},
            spaces=() if spaces is None else spaces.sampled,
        )
        if settings.ranked:  # last, since it takes longest
            steps, seed = settings.ranked_steps, config.seed
            ranking = runs.rank(
                task, net, variables, config.alone, settings.ranked, steps=steps, seed=seed, mesh=mesh
            )
            result = runs.enter_ranking(result, ranking, workdir)
    print("\n".join(report.summary_lines(result, path)), flush=True)
    times = path / "search" / "times.json"
    if times.is_file():
        print(report.times_line(files.read_json(times)), flush=True)


if __name__ == "__main__":
    binary.define_flags(CONFIGS)
    flags.DEFINE_string("supernet", None, "File with the weights of an official AutoFormer supernet.")
    binary.run(main)
