"""DARTFormer's searches compared with every attention mechanism trained alone, over several seeds.

  python -m benchmarks.mechanisms --config=dartformer_listops_small --seeds=3
  python -m benchmarks.mechanisms --config=dartformer_listops_small --seeds=3 --heads --alone=

The program trains each mechanism alone, or those of `--alone`. Then it trains a supernet for each search
method and seed and compares what the search finds: by how much the supernet loses without a mechanism
(Brown et al., arXiv 2210.00641, section 2), evolution over a supernet of random mechanisms, and
Gumbel-softmax. With `--heads` each head has its own mechanism, and the found network is trained alone with
the seed of its supernet. Networks are compared on the role "search" and measured on "test".
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Sequence
from typing import Any

from absl import flags
from scipy.stats import kendalltau

from benchmarks import over_seeds
from jaxnas import runs, search, spaces, tasks, training
from jaxnas.experiments import binary
from jaxnas.experiments.config import ConfigError
from jaxnas.experiments.configs import CONFIGS
from jaxnas.recipes import Relaxed, Uniform
from jaxnas.training.fit import Trained

flags.adopt_module_key_flags(over_seeds)  # so that --help lists them
_SEEDS = flags.DEFINE_integer("seeds", 3, "Supernets per search, and trainings alone.", lower_bound=1)
_HEADS = flags.DEFINE_boolean("heads", False, "Search a mechanism for each head.")
_ALONE = flags.DEFINE_list("alone", None, "Mechanisms to train alone; all by default.")
_METHODS = flags.DEFINE_list("methods", [], "Searches; all by default.")
_EVALUATIONS = flags.DEFINE_integer("evaluations", 200, "Evaluations of evolution by heads.", lower_bound=1)

_EVEN = Relaxed(order="joint", relaxation="average")


def searches(heads: bool, space: Any) -> dict[str, tuple[Any, runs.Search]]:
    """By name: the recipe of the supernet, and how the architecture is found."""
    removals: dict[str, runs.Search] = {"perturbation": runs.Search(runs.Perturbation())}
    if heads:
        removals = {
            "pruning": runs.Search(runs.Pruning(), limit=5),
            "strongest": runs.Search(runs.Pruning(at_once=True)),
        }
    found: dict[str, tuple[Any, runs.Search]] = {name: (_EVEN, one) for name, one in removals.items()}
    strategy: search.Strategy = search.RandomSearch(space, evaluations=space.cardinality)
    if heads:  # of more networks than can all be evaluated
        sizes = dict(population=20, parents=10, mutations=10, crossovers=10)
        strategy = search.Evolution(space, evaluations=_EVALUATIONS.value, **sizes)
    found["evolution"] = (Uniform(), runs.Search(runs.ByStrategy(strategy)))
    found["gumbel"] = (Relaxed(order="first", every=1, start_temperature=2.0), runs.Search(runs.Argmax()))
    return found


def alone(task: tasks.Task, net: Any, settings: training.Training, seeds: Sequence[int]) -> dict[str, Any]:
    """The accuracies of the only architecture of a network; see `over_seeds.accuracies`."""
    found = training.train_seeds(
        *(task, net, settings, seeds),
        stopping=training.EarlyStopping(role="search"),
        options=training.Options(together=over_seeds.together()),
    )
    return over_seeds.accuracies(found)


def main() -> None:
    """Prints a line for each mechanism alone, and for each search."""
    config = binary.chosen_config(CONFIGS)
    session = binary.bring_to_life(config)
    task, net, mesh = session.task, session.net, session.mesh
    names = net.space["mechanism"].options
    first = over_seeds.FIRST.value
    seeds = range(first, first + _SEEDS.value)
    chosen = names if _ALONE.value is None else tuple(_ALONE.value)
    if unknown := [name for name in chosen if name not in names]:
        raise ConfigError(f"--alone={','.join(unknown)}: the config has the mechanisms {', '.join(names)}.")
    truth = []
    for name in chosen:
        began = time.perf_counter()
        own = net.clone(space=net.space.fix(net.space.from_dict({"mechanism": name})))
        found = alone(task, own, config.alone, seeds)
        truth.append(found["search"][0])
        print(json.dumps({"alone": name, **found, "seconds": time.perf_counter() - began}), flush=True)
    if _HEADS.value:
        net = net.clone(space=spaces.dartformer(names, heads=net.num_heads))

    @functools.lru_cache(maxsize=1)  # Selections one after another take the same supernet.
    def supernet(recipe: Any, seed: int) -> Trained:
        return training.fit(task, net, config.training, recipe=recipe, seed=seed)

    methods = searches(_HEADS.value, net.space)
    for seed in seeds:
        for method in _METHODS.value or methods:
            recipe, settings = methods[method]
            began = time.perf_counter()
            trained = supernet(recipe, seed)
            line: dict[str, Any] = {"search": method, "seed": seed}
            lab = runs.Lab(seed=seed, mesh=mesh)
            if isinstance(settings.method, runs.ByStrategy):
                found = runs.search_space(task, net, trained.variables, settings, lab)
            else:
                found = runs.select(task, net, trained.state, settings, recipe, config.training, lab)
            line["found"] = net.space.to_dict(found.arch)["mechanism"]
            if method == "perturbation" and found.selection is not None:
                (decision,) = found.selection.decisions
                line["drops"] = dict(zip(names, decision["drops"], strict=True))
                if chosen == names:
                    line["kendall_tau"] = float(kendalltau(decision["drops"], truth).statistic)
            if _HEADS.value:
                others = {"found": found.arch, **found.others}
                for label, arch in others.items():
                    own = net.clone(space=net.space.fix(arch))
                    line[label] = net.space.to_dict(arch)["mechanism"]
                    line[f"{label} alone"] = alone(task, own, config.alone, [seed])
            line["seconds"] = time.perf_counter() - began
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    binary.define_config_flags(CONFIGS, "dartformer_listops_small")
    binary.run(main)
