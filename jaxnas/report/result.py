"""The result of a run, result.json: one schema with a version, for all kinds of data and search methods."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any

from jaxnas import display, files
from jaxnas.search.space_evolution import Shift

VERSION = 1
NAME = "result.json"
AGAIN = "Bring the file back, or delete it and run again what writes it."
# What a run calls its own networks.
OWN_NAMES = ("found", "best inherited", "random search", "smallest", "largest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricOf:
    """A metric of the task; see `jaxnas.tasks.Metric`. Values in "%" are fractions."""

    name: str
    unit: str
    direction: str  # "max" if more is better, else "min"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOf:
    """The task of a run. The first of its metrics is the one that architectures are searched by."""

    name: str
    examples: str  # what an example is called, as "images" or "tokens"
    sizes: Mapping[str, int]  # examples in each role
    metrics: tuple[MetricOf, ...]
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    inputs: str = ""  # what the network takes, as "float32 [batch, 8, 8, 1], normalized as in training"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpaceOf:
    """The search space: the number of its architectures in digits, and `Space.to_json()`."""

    cardinality: str
    choices: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A network that was measured: "found", "random search", "smallest", "largest", or of the config."""

    name: str
    architecture: Mapping[str, Any]  # option values by choice
    costs: Mapping[str, float]  # as {"params": ..., "macs": ...}
    metrics: Mapping[str, Mapping[str, float | None]]  # by role, then by name
    weights: str = "inherited"  # from the supernet, "fine-tuned" from it, or "from scratch"
    seed: int | None = None  # of a retraining, as the steps
    steps: int | None = None
    extraction_error: float | None = None  # largest relative difference to the supernet's outputs
    errors: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)  # standard errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOf:
    """One search by a strategy; search/history.jsonl has its evaluations under this name."""

    name: str
    evaluations: int
    bounds: Mapping[str, tuple[float | None, float | None]] = dataclasses.field(default_factory=dict)
    reachable: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)  # (least, most)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """An architecture among which a selection chose, with its metric."""

    architecture: Mapping[str, Any]
    explored: bool  # whether it was drawn anywhere in the space, and not by the probabilities
    supernet: float | None  # with inherited weights
    trials: tuple[float | None, ...] = ()  # after each rung of training alone, as far as it came


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionOf:
    """How an architecture was taken from a search with architecture parameters.

    Decisions are in the order made: of "perturbation" {"name", "position", "kept", "drops"}, of "pruning" and
    "strongest" the rounds, {"name", "blocks", "drops", "removed"} with blocks as [position, option].
    """

    method: str  # "argmax", "sampling", "trials", "perturbation", "pruning" or "strongest"
    steps: int
    probabilities: Mapping[str, Any]  # of options by choice, [options] or [positions][options]
    confidence: float  # the largest probability of the least decided decision
    candidates: tuple[Candidate, ...] = ()  # of "sampling" and "trials"
    trial_steps: tuple[int, ...] = ()  # of each rung
    kendall_tau: float | None = None  # between the supernet's metric and that of the first trials
    examples: int | None = None  # of the search role, on which options or candidates were compared
    decisions: tuple[Mapping[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budgeted:
    """The best combination of replacements within a budget."""

    share: float | None  # of the largest network's cost; None for the bounds of the run
    cost: float
    estimated: float  # what it changes by the sum of its replacements, in the unit of the record
    measured: float  # what it changes when it is evaluated


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacementsOf:
    """A search by replacing one place at a time; see `jaxnas.search.knapsack`. Less is better."""

    metric: str
    unit: str
    budget: str  # the cost that budgets bound
    evaluations: int
    found: Budgeted
    others: tuple[Budgeted, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankingOf:
    """How well a supernet ranks architectures, by the task's first metric; see `jaxnas.runs.rank`."""

    architectures: tuple[Mapping[str, Any], ...]
    inherited: tuple[float | None, ...]  # with the supernet's weights
    alone: tuple[float | None, ...]  # after training alone; None of a training that diverged
    kendall_tau: float | None  # tau-b; None where all values of one kind are equal
    interval: tuple[float | None, float | None]  # 95 % of its bootstrap distribution over architectures
    role: str
    steps: int  # of each training alone


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledSpaceOf:
    """One of the spaces that an evolution of the space went through."""

    name: str
    et_error: float  # half the mean error of its sample and half that of the best
    errors: tuple[float, ...]  # 1 - metric of a metric of which more is better, else the metric
    shifts: tuple[Shift, ...] = ()  # to the next space; none of the last one


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run."""

    task: TaskOf
    space: SpaceOf
    found: Network  # what the search brought out, or what a retraining trained
    networks: tuple[Network, ...] = ()  # to compare it with
    linear: Mapping[str, float] = dataclasses.field(default_factory=dict)  # a linear model's metric, by role
    searches: tuple[SearchOf, ...] = ()
    selection: SelectionOf | None = None
    replacements: ReplacementsOf | None = None
    ranking: RankingOf | None = None
    spaces: tuple[SampledSpaceOf, ...] = ()  # those that the space evolved from, in order, and itself
    subnet: str = "subnet"  # folder of the found network, within the workdir
    module: str = ""  # the class that `jaxnas.load_subnet` must be given; "" for ours
    loader: str = ""  # the class of transformers that loads a Hugging Face checkpoint; "" for others
    interrupted: str = ""  # how far a training that was stopped had come
    exported_batch: int | None = None  # the batch size that the exported program takes; None for any
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    device: str = ""
    version: int = VERSION

    def rows(self) -> list[dict[str, Any]]:
        """The networks as the rows of a table, the found one first: values by column.

        Columns are "network", "weights", the costs, metrics as "test accuracy", and "architecture".
        """
        return [
            {
                **{"network": one.name, "weights": one.weights, **one.costs},
                **{f"{role} {name}": x for role, of in one.metrics.items() for name, x in of.items()},
                "architecture": one.architecture,
            }
            for one in (self.found, *self.networks)
        ]

    def to_pandas(self) -> Any:
        """The `rows` as a pandas.DataFrame."""
        return display.frame(self.rows())

    def _repr_html_(self) -> str:
        count = display.count(int(self.space.cardinality))
        return display.table(self.rows(), f"{self.task.name}: {count} architectures")


def check_names(names: Collection[str], others: Collection[str] = ()) -> None:
    """Raises ValueError for a name that is also one of a network of a run, which would be lost."""
    taken = list(dict.fromkeys([*OWN_NAMES, *others]))
    for name in names:
        if name in taken or name.startswith("random:"):
            raise ValueError(
                f"An architecture to compare with is named {name!r}, which a run calls a network of its own. "
                f"{', '.join(taken)} and random:K are taken; choose another name."
            )


def write(workdir: str | os.PathLike, result: Result) -> pathlib.Path:
    """Writes result.json into a workdir and returns its path.

    Its "sha256" is of all the rest: a retraining goes by the architecture that it reads here.
    """
    path, values = files.as_path(workdir) / NAME, files.plain(dataclasses.asdict(result))
    files.write_json(path, {**values, "sha256": _digest(values)})
    return path


def read(workdir: str | os.PathLike) -> Result:
    """Reads result.json of a workdir.

    Raises:
      FileNotFoundError: there is none; the message says what to run first.
      ValueError: it is damaged or was changed, or is of another version; the message names it.
    """
    path = files.as_path(workdir) / NAME
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: first run a search in this workdir to its end.")
    values = files.read_json(path)
    version = values.get("version") if isinstance(values, dict) else None
    again = "Run the search or the retraining again in its workdir, which writes it anew."
    if version != VERSION:
        raise ValueError(f"{path} has version {version!r} of the result, not {VERSION} as here. {again}")
    if values.pop("sha256", None) != _digest(values):
        raise ValueError(f"{path} was changed after it was written. {again}")
    return parse(values, Result, path)


def _digest(values: Any) -> str:
    return files.digest(json.dumps(values, sort_keys=True).encode())


def parse(value: Any, kind: Any, path: str | pathlib.Path) -> Any:
    """A JSON value as a type, such as a dataclass, without fields of a later version, or a ValueError."""
    try:
        return _as(value, kind)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds something else than expected: {error}. {AGAIN}") from error


def _as(value: Any, kind: Any, where: str = "it") -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _as(value, args[0], where)
    expected: Any = list if origin is tuple else dict if dataclasses.is_dataclass(kind) else origin or kind
    accepted: Any = (int, float) if expected is float else expected
    if expected is not Any and not isinstance(value, accepted):
        raise TypeError(f"{where} is {value!r:.80}, not of the type {expected.__name__}")
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _as(x, hints[name], repr(name)) for name, x in value.items() if name in hints})
    if origin is tuple:
        kinds = args[:1] * len(value) if args[-1] is Ellipsis else args
        return tuple(_as(x, one, where) for x, one in zip(value, kinds, strict=True))
    return {name: _as(x, args[1], f"{where}[{name!r}]") for name, x in value.items()} if args else value
