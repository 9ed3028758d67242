"""Networks on citation networks over many seeds: mean and standard deviation on the test nodes.

  python -m benchmarks.graphs --data_dir=DIR --graphs=cora,citeseer --seeds=20
  python -m benchmarks.graphs --data_dir=DIR --graphs=cora --networks=found --workdir=runs/cora

Each network keeps its best step on the 500 validation nodes. The settings are those of the papers (Kipf and
Welling, ICLR 2017, section 5.2; Velickovic et al., ICLR 2018, section 3.3; Guan et al., ICML 2021, section
5.2). "found" is the network that a search with `--config=autoattend_<graph>` found, and "random search"
that of its random search. Both are trained from scratch; `--inherited` starts the found network from the
supernet's weights, as the paper does on graphs.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import flax.linen as nn
import jax
import optax
from absl import flags

from benchmarks import over_seeds
from benchmarks.graph_baselines import GAT, GCN
from jaxnas import files, load_subnet, tasks
from jaxnas.experiments import binary
from jaxnas.experiments import config as config_lib
from jaxnas.experiments.config import ConfigError
from jaxnas.experiments.configs import CONFIGS
from jaxnas.training import EarlyStopping, Options, Training, train_seeds

flags.adopt_module_key_flags(over_seeds)  # so that --help lists them
_DATA = flags.DEFINE_string(
    "data_dir", None, "Folder with cora.npz, or with planetoid/cora.npz.", required=True
)
_GRAPHS = flags.DEFINE_list("graphs", ["cora", "citeseer", "pubmed"], "Data sets.")
_NETWORKS = flags.DEFINE_list("networks", ["gcn", "gat"], "gcn, gat, found, random search.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Workdir of a search, for found and random search.")
_SET = flags.DEFINE_multi_string("set", [], "Fields of that search's config to replace, as network.width=64.")
_INHERITED = flags.DEFINE_boolean("inherited", False, "Start from the supernet's weights.")
_SEEDS = flags.DEFINE_integer("seeds", 20, "Number of seeds.")
_STEPS = flags.DEFINE_integer("steps", None, "Maximal steps; by default 200 for GCN and 1,000 for GAT.")
_PATIENCE = flags.DEFINE_integer("patience", 100, "Steps without improvement after which a seed ends.")
_METRIC = flags.DEFINE_enum("metric", "loss", ["accuracy", "loss"], "Metric of the best step.")
_NORMALIZE = flags.DEFINE_boolean("normalize", True, "Divide the features of each node by their sum.")
_DROPOUT = flags.DEFINE_float("dropout", None, "Dropout in place of the paper's.")
_OUT = flags.DEFINE_string("out", None, "JSON file to write.")


def decayed_adam(
    learning_rate: float, decay: float, *, first_alone: bool = False, biases: bool = True
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Adam on the loss with an L2 term: of all layers or the first alone, with biases or without."""

    def decays(path: tuple[Any, ...], _: Any) -> bool:
        names = [key.key for key in path]
        return (names[0] == "first" or not first_alone) and (biases or names[-1] != "bias")

    def mask(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(decays, params)

    adam = optax.chain(optax.add_decayed_weights(decay, mask), optax.adam(learning_rate))
    return adam, optax.constant_schedule(learning_rate)


def searched(name: str, graph: str) -> tuple[nn.Module, Any]:
    """The network of one architecture that a search came to, with the paper's dropout, and its first weights.

    The weights are None where training begins from scratch.
    """
    if _WORKDIR.value is None:
        raise ConfigError(f"--networks={name} needs --workdir, that of a search.")
    dropout = 0.6 if _DROPOUT.value is None else _DROPOUT.value
    if _INHERITED.value:
        net, variables = load_subnet(files.as_path(_WORKDIR.value) / "subnet")
        return net.clone(dropout=dropout), variables
    result = files.read_json(files.as_path(_WORKDIR.value) / "result.json")
    found = {one["name"]: one for one in (result["found"], *result["networks"])}[name]
    net = config_lib.override(config_lib.find(CONFIGS, f"autoattend_{graph}"), _SET.value).network
    return net.clone(space=net.space.fix(net.space.from_dict(found["architecture"])), dropout=dropout), None


def prepared(name: str, graph: str, classes: int) -> tuple[nn.Module, Any, Any, int]:
    """A network with its first weights or None, its optimizer and its number of steps."""
    if _INHERITED.value and name != "found":
        raise ConfigError(f"--inherited is for --networks=found, and no weights are stored of {name}.")
    options: dict[str, Any] = {} if _DROPOUT.value is None else {"dropout": _DROPOUT.value}
    if name in ("found", "random search"):
        return *searched(name, graph), decayed_adam(5e-3, 5e-4), 1000
    if name == "gcn":
        return GCN(classes, **options), None, decayed_adam(1e-2, 5e-4, first_alone=True), 200
    if graph == "pubmed":  # as the paper has it for this graph
        return GAT(classes, last_heads=8, **options), None, decayed_adam(1e-2, 1e-3, biases=False), 1000
    return GAT(classes, **options), None, decayed_adam(5e-3, 5e-4, biases=False), 1000


def main() -> None:
    """Prints a line for each network and graph."""
    # The random numbers for dropout are the largest part of a step on a CPU, and these are made faster.
    jax.config.update("jax_threefry_partitionable", False)
    lines = []
    for graph in _GRAPHS.value:
        task = config_lib.find(CONFIGS, f"autoattend_{graph}").task
        assert isinstance(task, tasks.Graphs)
        task = dataclasses.replace(task, normalize=_NORMALIZE.value).load(_DATA.value).whole()
        for name in _NETWORKS.value:
            net, variables, optimizer, steps = prepared(name, graph, task.dataset.num_classes)
            began = time.perf_counter()
            found = train_seeds(
                task,
                net,
                Training(steps=_STEPS.value or steps, evaluate_every=1),
                range(over_seeds.FIRST.value, over_seeds.FIRST.value + _SEEDS.value),
                stopping=EarlyStopping(metric=_METRIC.value, patience=_PATIENCE.value),
                options=Options(variables=variables, optimizer=optimizer, together=over_seeds.together()),
            )
            line = {
                "graph": graph,
                "network": name,
                "inherited": variables is not None,
                "seeds": _SEEDS.value,
                "parameters": sum(x[0].size for x in jax.tree.leaves(found.variables)),
                "seconds": round(time.perf_counter() - began, 1),
                "steps": found.steps,
                "mean_best_step": round(float(found.best_steps.mean()), 1),
            }
            line |= over_seeds.accuracies(found)
            lines.append(line)
            print(json.dumps(line), flush=True)
    if _OUT.value:
        files.write_json(files.as_path(_OUT.value), lines)


if __name__ == "__main__":
    binary.run(main)
