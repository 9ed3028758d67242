"""The data, network and devices of a config, for a binary or for a job on a worker."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from jaxnas import files, processes, search
from jaxnas.cost import Cost
from jaxnas.experiments import config as config_lib
from jaxnas.experiments.config import Config, ConfigError
from jaxnas.recipes.recipe import TrainState
from jaxnas.report import result
from jaxnas.runs.space_evolution import read_spaces
from jaxnas.runs.timing import costs_with_latency
from jaxnas.search.random_search import similar_cost
from jaxnas.space import Arch
from jaxnas.tasks import Task
from jaxnas.training.fit import restore
from jaxnas.training.keys import stream

_TRAIN = "first run jaxnas train_supernet to its end, with the same --config and --workdir."
# Settings that change no weights: a workdir may be resumed with others.
FREE = ("about", "search", "distill", "retraining", "architectures", "measure", "log", "network.remat")


@dataclasses.dataclass(frozen=True)
class Session:
    """The data, network and devices of a config; `pretrained` are variables that came with the supernet."""

    config: Config
    task: Task
    net: Any
    mesh: Mesh
    pretrained: Any = None

    def evolved(self, workdir: pathlib.Path) -> Session:
        """The session with the network of the last space, if the config lets its space evolve."""
        if self.config.evolution is None:
            return self
        spaces, turns = read_spaces(workdir), self.config.evolution.turns
        done = 0 if spaces is None else len(spaces.sampled)
        if spaces is None or done <= turns:
            raise FileNotFoundError(
                f"{workdir} has measured {done} of the {turns + 1} spaces of its evolution. First run "
                "jaxnas train_supernet to its end, with the same --config, --set and --workdir."
            )
        return dataclasses.replace(self, net=self.net.clone(space=spaces.space))

    def costs(self, workdir: pathlib.Path) -> Cost:
        """Parameters and products of an architecture and, where the config asks for it, its latency.

        Latency is measured once and kept in latency.json, so a resumed search uses the same table.
        """
        config = self.config
        return costs_with_latency(self.task, self.net, config.search.latency, workdir, config.measure)

    def trained(self, workdir: pathlib.Path) -> TrainState | None:
        """The state at the end of the supernet's training; None if it came with its weights, and has none."""
        config = self.config
        found = restore(self.task, self.net, config.training, config.recipe, workdir, seed=config.seed)
        if found is None and self.pretrained is not None:
            return None
        if found is None or not (found.complete or config.search.incomplete):
            step = "no checkpoint" if found is None else f"a checkpoint of step {int(found.state.step)}"
            raise FileNotFoundError(
                f"{workdir} has {step} of {config.training.steps} steps. First run "
                "jaxnas train_supernet to its end, with the same --config, --set and --workdir."
            )
        return found.state

    def weights(self, workdir: pathlib.Path) -> Any:
        """The variables of the supernet; see `trained`."""
        state = self.trained(workdir)
        return self.pretrained if state is None else state.evaluated()

    def check_task(self, workdir: pathlib.Path) -> None:
        """Refuses another task than that of the search in a workdir, whose page would show its figures.

        Only `evaluation_batch_size` may differ.
        """
        if not (workdir / result.NAME).is_file():
            return
        before = {"task": result.read(workdir).config.get("task")}
        lines = files.diff(before, {"task": deciding_of(self.config)["task"]}, ("the search", "now"))
        lines = [line for line in lines if not line.startswith("task.evaluation_batch_size:")]
        if lines:
            raise ConfigError(
                f"the search in {workdir} had another task:{files.indented(lines)}"
                "\nTake that task and its data, or another workdir with --architecture as option values; "
                "`jaxnas.load_subnet` loads the network for data of any kind"
            )

    def architecture(self, text: str, workdir: pathlib.Path, costs: Cost) -> Arch:
        """An architecture from the command line.

        It is "found" by the search in the workdir, "smallest", "largest", a name of the config's
        `architectures`, "random:K" (the K-th, from 0, of random architectures as dear as the found one by
        latency, where it is measured, else by products), or option values as JSON.
        """
        space = self.net.space
        if text in ("smallest", "largest"):
            return getattr(space, text)()
        if text in self.config.architectures:
            return space.from_dict(self.config.architectures[text])
        if text == "found" or text.startswith("random:"):
            found = space.from_dict(result.read(workdir).found.architecture)
            if text == "found":
                return found
            name = "latency_ms" if self.config.search.latency else "macs"
            fixed = search.reachable(space, costs)[name][0]
            alike = similar_cost(space, costs, name, found, stream(0, "patterns"), fixed=fixed)
            number, count = text.partition(":")[2], len(next(iter(alike.values())))
            if not number.isdecimal() or int(number) >= count:
                known = f"expected random:K with K from 0 to {count - 1}" if count else "the space has none"
                raise ConfigError(
                    f"--architecture is {text!r}, one of other architectures whose {name} are within 5 % of "
                    f"the found one's; {known}."
                )
            return jax.tree.map(lambda x: x[int(number)], alike)
        try:
            values = json.loads(text)
        except json.JSONDecodeError:
            values = None
        if not isinstance(values, dict):
            names = ["found", "smallest", "largest", *self.config.architectures, "random:0"]
            raise ConfigError(
                f"--architecture is {text!r}; expected {', '.join(names)}, or JSON such as "
                f"{json.dumps(space.to_dict(space.smallest()))}."
            )
        return space.from_dict(values)


def deciding_of(config: Config) -> dict[str, Any]:
    """The part of a config that decides the weights, as plain values."""
    plain = config_lib.to_dict(config) | {"training": config.training.deciding()}
    network = {name: part for name, part in plain["network"].items() if f"network.{name}" not in FREE}
    return {name: part for name, part in plain.items() if name not in FREE} | {"network": network}


def make_session(config: Config, data_dir: str | None) -> Session:
    """Loads the data of a config, and a network that comes with its weights."""
    network, mesh = config.network, config.training.mesh()
    processes.check_same(config_lib.to_dict(config))
    if not config.pretrained:
        return Session(config, config.task.load(data_dir), network, mesh)
    task = network.adapted(network.adapted(config.task).load(data_dir))
    print("reading the checkpoint and ordering its parts by importance", file=sys.stderr, flush=True)
    net, variables = network.load(task, mesh, config.seed)
    return Session(config, task, net, mesh, variables)


@dataclasses.dataclass(frozen=True)
class Asked:
    """The request of a command line, as plain values for jobs that run in any process."""

    config: str
    assignments: tuple[str, ...]
    workdir: str
    data_dir: str | None

    def session(self, registry: Mapping[str, Config]) -> Session:
        """The config with its data, and with the space that its training came to."""
        config = config_lib.override(config_lib.find(registry, self.config), self.assignments)
        return make_session(config, self.data_dir).evolved(files.as_path(self.workdir))
