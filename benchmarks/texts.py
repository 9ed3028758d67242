"""AutoAttend's networks compared with a Transformer and a BiGRU on texts, over seeds and data sets.

  python -m benchmarks.texts --workdir=runs/sst --seeds=5
  python -m benchmarks.texts --workdir=runs/sst --sets=trec,mr,subj,cr

"found" is the network that a search with `--config` found, and "random search" that of its random search.
"transformer" has the same depth and width. "bigru" is one bidirectional GRU between the same stem and head.
Names of the config's `architectures`, such as "published" of `autoattend_sst`, work too.
`--set network.tune_vectors=true` tunes the word vectors of all. Every network is trained from scratch by
the config's `retraining` and keeps its best step on the held-out texts (Guan et al., ICML 2021, section
5.1).
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import flax.linen as nn
import jax
from absl import flags

from benchmarks import over_seeds
from jaxnas import Choice, Space, files, spaces, supernets, tasks, training
from jaxnas.experiments import binary
from jaxnas.experiments.config import Config, ConfigError
from jaxnas.experiments.configs import CONFIGS

flags.adopt_module_key_flags(over_seeds)  # so that --help lists them
_WORKDIR = flags.DEFINE_string("workdir", None, "Workdir of the search, for found and random search.")
_SETS = flags.DEFINE_list(
    "sets", ["sst5"], "Names of data sets; the phrases of sst5 and sst2 are trained on."
)
_NETWORKS = flags.DEFINE_list("networks", ["found", "random search", "transformer", "bigru"], "Networks.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "Number of seeds.", lower_bound=1)


def text_task(config: Config, name: str) -> tasks.Text:
    """The config's task with another data set, of whose training texts a tenth is held out if need be."""
    task = config.task
    assert isinstance(task, tasks.Text)
    if name == task.data:
        return task
    phrases = task.phrases and name in ("sst5", "sst2")
    return dataclasses.replace(
        task, data=name, phrases=phrases, search_fraction=None if name == "sst2" else 0.1
    )


def network(config: Config, name: str, data: Any) -> nn.Module:
    """A network by its name, for a data set; see the text above."""
    net = config.network
    assert isinstance(net, supernets.AutoAttendText)
    net = net.clone(num_classes=data.num_classes, vocabulary=data.vocabulary.size)
    if name == "transformer":
        return supernets.DARTFormer(
            Space(mechanism=Choice("softmax")),
            num_classes=net.num_classes,
            vocabulary=data.vocabulary.size,
            tune_vectors=net.tune_vectors,
            max_length=data.length,
            width=net.width,
            num_heads=net.num_heads,
            hidden=2 * net.width,
            layers=net.space["layer"].length or 1,
            dropout=net.dropout,
            pool="mean",
        )
    if name == "bigru":
        space = spaces.autoattend(1)
        one = {"layer": ["addition"], "source": [0], "first": ["gru"], "second": ["zero"]}
        return net.clone(space=space.fix(space.from_dict({**one, "key": [None], "value": [None]})))
    if name in config.architectures:
        return net.clone(space=net.space.fix(net.space.from_dict(dict(config.architectures[name]))))
    if _WORKDIR.value is None:
        raise ConfigError(f"--networks={name} needs --workdir, that of a search.")
    result = files.read_json(files.as_path(_WORKDIR.value) / "result.json")
    found = {one["name"]: one for one in (result["found"], *result["networks"])}[name]
    return net.clone(space=net.space.fix(net.space.from_dict(found["architecture"])))


def main() -> None:
    """Prints a line for each data set and network."""
    config = binary.chosen_config(CONFIGS)
    seeds = range(over_seeds.FIRST.value, over_seeds.FIRST.value + _SEEDS.value)
    for name in _SETS.value:
        task = text_task(config, name).load(flags.FLAGS.data_dir)
        for label in _NETWORKS.value:
            began = time.perf_counter()
            net = network(config, label, task.dataset)
            found = training.train_seeds(
                *(task, net, config.alone, seeds),
                stopping=training.EarlyStopping(role="search"),
                options=training.Options(together=over_seeds.together()),
            )
            line = {
                "set": name,
                "network": label,
                "seeds": list(seeds),
                "parameters": sum(x[0].size for x in jax.tree.leaves(found.variables)),
                "seconds": round(time.perf_counter() - began),
                "mean_best_step": float(found.best_steps.mean()),
            }
            line |= over_seeds.accuracies(found)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    binary.define_config_flags(CONFIGS, "autoattend_sst_small")
    binary.run(main)
