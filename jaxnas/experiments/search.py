"""Finds an architecture with a trained supernet, and brings out that network alone.

  jaxnas search --config=autoformer_digits --workdir=runs/digits
  jaxnas search --config=autoformer_digits --workdir=runs/digits \\
      --set search.method.strategy.evaluations=400

Each workdir is of a supernet that jaxnas train_supernet has trained, with the same --config.
Architectures are compared on the search role of the data, which training did not see. The found one is
extracted as a network of exactly its size, verified against the supernet, measured once on the test role,
saved, exported, and described in report.html. The last line says where the time of this search went;
search/times.json has that of the last one that evaluated something. With --supernet the weights are those of
an official AutoFormer supernet instead: --config=autoformer_imagenet_tiny --supernet=supernet-tiny.pth.
Started again it resumes from search/history.jsonl, and trainings alone from
search/alone.jsonl. What a search trains alone (trials, finalists, and what is ranked) is a job of its own for
each architecture, here in turn or on workers: --executor.
"""

from __future__ import annotations

import dataclasses
import pathlib
from concurrent.futures import Executor
from typing import Any

from absl import flags

from jaxnas import executors, files, processes, runs, supernets, trackers
from jaxnas.experiments import binary, jobs
from jaxnas.experiments.config import Config, ConfigError
from jaxnas.experiments.configs import CONFIGS
from jaxnas.experiments.session import Session
from jaxnas.report.page import summary_lines
from jaxnas.runs.methods import BY_BUDGET
from jaxnas.supernets.autoformer.convert import from_torch_autoformer, read_checkpoint
from jaxnas.training.plain import to_dict
from jaxnas.training.progress import times_line
from jaxnas.training.workdir import open_workdir


def converted(session: Session, path: str, workdir: pathlib.Path) -> tuple[Session, Any]:
    """The session and variables of an official AutoFormer supernet in place of a trained one."""
    net, method = session.net, session.config.search.method
    if not isinstance(net, supernets.ViT):
        raise ConfigError(f"--supernet is for a ViT, and the network is a {type(net).__name__}.")
    if not isinstance(method, (type(None), runs.ByStrategy)):
        raise ConfigError(
            f"--supernet has weights and no architecture parameters, and search.method is {method.name}; "
            "set search.method=strategy."
        )
    # The official code's biases of queries, keys and values depend on the number of heads.
    net = net.clone(qkv_bias_by_heads=True)
    net, variables = from_torch_autoformer(read_checkpoint(path), net)
    digest, stored = files.sha256(pathlib.Path(path)), workdir / "supernet.sha256"
    if (workdir / "checkpoints").exists() or (stored.exists() and stored.read_text() != digest):
        raise ConfigError(f"{workdir} is of another supernet than {path}; take another workdir.")
    if processes.is_first():
        files.write_text(stored, digest)
    return dataclasses.replace(session, net=net), variables


def on_workers(executor: Executor | None, config: Config) -> dict[str, executors.Calls]:
    """Trainings alone on the workers of an executor, by kind; {} without an executor."""
    values, search = flags.FLAGS, config.search
    if executor is None:
        return {}
    finalists = search.method.finalists if isinstance(search.method, runs.ByStrategy) else 0
    if not isinstance(search.method, runs.Trials) and not finalists and not search.ranked:
        raise ConfigError(
            f"--executor={values.executor} is for what a search trains alone, and this one trains nothing: "
            "search.method is not trials, has no finalists, and search.ranked is 0. Leave it out."
        )
    if values.supernet:
        raise ConfigError("--executor and --supernet do not go together: workers have the config's network.")
    job = binary.asked()
    kinds = {"trials": jobs.trial, "alone": jobs.alone}
    return {kind: executors.Calls(function, executor, job) for kind, function in kinds.items()}


def main() -> int:
    config, path = binary.read_config(CONFIGS, trains=False)
    with open_workdir(path) as workdir, binary.executor() as executor:
        workers = on_workers(executor, config)
        session = binary.bring_to_life(config, workdir)
        if config.pretrained:
            binary.store(config, workdir, ran=False)
        state = None if flags.FLAGS.supernet else session.trained(workdir)
        if flags.FLAGS.supernet:
            session, variables = converted(session, flags.FLAGS.supernet, workdir)
        else:
            variables = session.pretrained if state is None else state.evaluated()
        task, net, settings = session.task, session.net, config.search
        described = binary.described(config)
        if config.pretrained:  # its places, which the page draws
            described["network"] |= to_dict(net)
        lab = runs.Lab(
            *(workdir, config.seed, config.alone, session.mesh, session.costs(workdir)),
            workers=workers,
            config=described,
            log=trackers.of(config.log, workdir),
        )
        by_budget = isinstance(settings.method, BY_BUDGET)
        if settings.method is None:
            by_budget = state is None or state.logits == ()
        if state is None and settings.method is not None and not by_budget:
            raise ConfigError(
                f"search.method is {settings.method.name}, which needs a training of the supernet."
            )
        if state is None or by_budget:
            found = runs.search_space(task, net, variables, settings, lab)
        else:
            found = runs.select(task, net, state, settings, config.recipe, config.training, lab)
        named = {name: net.space.from_dict(values) for name, values in config.architectures.items()}
        runs.finish(task, net, variables, found, lab, settings=settings, named=named)
        if config.pretrained and config.distill is not None:
            print(f"distilling the found network: {config.alone.steps:,} steps", flush=True)
            if jobs.retrain(session, workdir, "found", "inherited") is None:
                print("stopped and saved; the same command resumes", flush=True)
                return binary.STOPPED
            if processes.is_first():
                runs.publish(path)
    print("\n".join(summary_lines(path)), flush=True)
    print(times_line(found.times), flush=True)
    return 0


if __name__ == "__main__":
    binary.define_flags(CONFIGS)
    binary.define_executor_flags()
    flags.DEFINE_string("supernet", None, "File with the weights of an official AutoFormer supernet.")
    binary.run(main)
