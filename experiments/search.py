"""Searches a trained supernet under a budget, and brings out the best network alone.

  python -m experiments.search --config=digits --workdir=runs/digits
  python -m experiments.search --config=digits --workdir=runs/digits --set search.max_params=50000

Evolution and, beside it, random search with as many evaluations score architectures on the search
split, which training did not see. The best is extracted as a network of exactly its size, verified
against the supernet, tested once on the test split, saved, exported, and described in report.html.
Started again it goes on from search/history.jsonl.
"""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jaxnas
from experiments import config as config_lib
from experiments.configs import CONFIGS, Config
from experiments.setup import Setup, build, define_data_flags, describe_data, versions
from jaxnas import report
from jaxnas.search import Evolution, RandomSearch, Result, check_bounds, reachable, run
from jaxnas.training.checkpoint import Checkpointer
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.progress import Progress
from jaxnas.training.workdir import open_workdir, write_json_atomic


def trained_params(setup: Setup, workdir: pathlib.Path) -> Any:
    """The supernet's weights at the end of training.

    Raises:
      FileNotFoundError: nothing was trained here, or not to the end.
      ConfigMismatch: it was trained with another config (search settings may differ).
    """
    config = config_lib.to_dict(setup.config)
    steps = setup.config.training.steps
    may_differ = tuple(f"search.{name}" for name in config["search"])
    # The directory is only opened when it is there: asking must not create it.
    found = None
    if (workdir / "checkpoints").is_dir():
        with Checkpointer(workdir / "checkpoints") as checkpointer:
            found = checkpointer.restore_latest(setup.initial_state(), config, may_differ)
    if found is None or found[0] < steps:
        at = "no checkpoint" if found is None else f"a checkpoint of step {found[0]} of {steps}"
        raise FileNotFoundError(
            f"{workdir} has {at}. First run experiments.train_supernet to its end, with the same "
            "--config, --set and --workdir."
        )
    return found[1].params


def search_bounds(config: Config, cost: Any, space: Any) -> dict[str, tuple[int | None, int | None]]:
    """The budget on parameters that a config asks for."""
    largest = int(cost(space.largest())["params"])
    limit = config.search.max_params
    if limit is None:
        limit = int(config.search.max_params_fraction * largest)
    return {"params": (config.search.min_params, limit)}


def evaluator(setup: Setup, net: Any, role: str) -> Any:
    """From parameters and architectures of a network to accuracies on the search or test split."""
    split = {"search": setup.dataset.search, "test": setup.dataset.test}[role]
    size = setup.config.search.batch_size
    return make_evaluator(net, split, size, setup.standardize, setup.mesh, role=role)


def searches(setup: Setup, params: Any, cost: Any, accuracy: Any, workdir: pathlib.Path) -> dict[str, Result]:
    """Runs both searches, scored by the accuracy on the search split."""
    config, space = setup.config, setup.net.space
    settings = config.search
    bounds = search_bounds(config, cost, space)
    check_bounds(space, cost, bounds)  # before anything is compiled or read
    common = dict(
        space=space,
        cost=cost,
        bounds=bounds,
        evaluations=settings.evaluations,
        population=settings.population,
    )
    evolution = Evolution(
        parents=settings.parents,
        mutations=settings.mutations,
        crossovers=settings.crossovers,
        network_probability=settings.network_probability,
        layer_probability=settings.layer_probability,
        **common,
    )

    def evaluate(archs: Any) -> np.ndarray:
        # Filled up to one size, so that a shorter last generation compiles nothing new.
        count = len(next(iter(archs.values())))
        rows = jnp.arange(settings.population) % count
        return np.asarray(accuracy(params, jax.tree.map(lambda x: x[rows], archs)))[:count]

    history = workdir / "search" / "history.jsonl"
    history.parent.mkdir(exist_ok=True)
    results = {}
    for name, strategy, stream in (
        ("evolution", evolution, "evolution"),
        ("random", RandomSearch(**common), "random_search"),
    ):
        with Progress(settings.evaluations, label=f"{name} search") as progress:
            results[name] = run(
                strategy,
                evaluate,
                setup.key(stream),
                history_path=history,
                name=name,
                progress=lambda done, _, best, show=progress: show.update(done, {"best": best}),
            )
    return results


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}")
    config, path = config_lib.from_flags(CONFIGS)
    with open_workdir(path) as workdir:
        setup = build(config, flags.FLAGS.data_dir, flags.FLAGS.source_dir)
        params = trained_params(setup, workdir)
        cost = jaxnas.cost(setup.net, setup.input_shape)
        accuracy = evaluator(setup, setup.net, "search")
        results = searches(setup, params, cost, accuracy, workdir)
        result = finish(setup, params, cost, accuracy, results, workdir)
        report.write(workdir)
    print("\n".join(report.summary_lines(result, path)), flush=True)


def finish(
    setup: Setup,
    params: Any,
    cost: Any,
    accuracy: Any,
    results: dict[str, Result],
    workdir: pathlib.Path,
) -> dict[str, Any]:
    """Extracts, verifies, tests and saves the best network; writes and returns result.json."""
    config, space = setup.config, setup.net.space
    evaluators = {"search": accuracy, "test": evaluator(setup, setup.net, "test")}

    def describe(arch: Any) -> dict[str, Any]:
        return {
            "architecture": space.to_dict(arch),
            **{name: int(value) for name, value in cost(arch).items()},
            **{f"{role}_accuracy": float(evaluate(params, arch)) for role, evaluate in evaluators.items()},
        }

    best = results["evolution"].arch
    images, _ = setup.dataset.search.take(np.arange(min(64, len(setup.dataset.search))))
    batch = setup.standardize(jnp.asarray(images))
    small, variables, error = jaxnas.extract(setup.net, {"params": params}, best, verify=batch)
    test = evaluator(setup, small, "test")
    found = describe(best)
    # Reported is the small network's own accuracy, not the supernet's.
    found["test_accuracy"] = float(test(variables["params"], small.space.smallest()))
    found["extraction_error"] = error
    jaxnas.save_subnet(
        workdir / "subnet",
        small,
        variables,
        setup.input_shape,
        extra={"mean": setup.dataset.mean.tolist(), "std": setup.dataset.std.tolist()},
    )
    jaxnas.export_subnet(workdir / "subnet", small, variables, setup.input_shape)

    bounds = search_bounds(config, cost, space)
    result = {
        "config": config_lib.to_dict(config),
        "data": describe_data(setup.dataset),
        "space": {
            "cardinality": str(space.cardinality),
            "choices": {name: list(choice.options) for name, choice in space.choices.items()},
        },
        "search": {
            "evaluations": len(results["evolution"].history),
            "generations": int(results["evolution"].state.generation),
            "bounds": {name: list(pair) for name, pair in bounds.items()},
            "reachable": {name: list(pair) for name, pair in reachable(space, cost).items()},
        },
        "best": found,
        "random_search": {
            **describe(results["random"].arch),
            "evaluations": len(results["random"].history),
        },
        "smallest": describe(space.smallest()),
        "largest": describe(space.largest()),
        "subnet": "subnet",
        "versions": versions(),
        "device": jax.devices()[0].device_kind,
    }
    write_json_atomic(workdir / "result.json", result)
    return result


if __name__ == "__main__":
    config_lib.define_flags(CONFIGS)
    define_data_flags()
    config_lib.run(main)
