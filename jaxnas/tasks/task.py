"""The protocol of a task: data, loss and metrics."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from jaxnas.inputs import describe, mistaken
from jaxnas.network import check_contract, predictions
from jaxnas.space import Arch, Space

Batch = Any
Sums = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A measure of a network's quality.

    Attributes:
      name: as "accuracy".
      unit: as "nats per token"; "%" for a fraction that is shown as per cent.
      direction: "max" or "min", the better one.
      value: function from the sums of `Task.loss`, over all batches, to the metric, float32 [].
    """

    name: str
    unit: str
    direction: Literal["max", "min"]
    value: Callable[[Sums], jax.Array]

    def score(self, value: Any) -> Any:
        """The metric as a score, of which larger is better."""
        return value if self.direction == "max" else -value


@flax.struct.dataclass
class Predictions:
    """Predictions of a network for a batch, for distillation.

    Attributes:
      logits: float32 [..., classes], of log-probabilities up to a constant.
      weight: of each prediction, float32 [...].
      loss, sums: as of `Task.loss`.
    """

    logits: jax.Array
    weight: jax.Array
    loss: jax.Array
    sums: Sums


@flax.struct.dataclass
class Call:
    """A call of a network on a batch.

    Attributes:
      net, variables: the network.
      arch: its architecture, hard or soft; None if it has only one.
      batch: of `Task.batches` or `Task.evaluation`.
      carry: of the batch before; see `Task.carry`.
      key: of augmentation and dropout, consumed; None in an evaluation.
    """

    net: Any = flax.struct.field(pytree_node=False)
    variables: Any
    arch: Arch | None
    batch: Batch
    carry: Any = ()
    key: jax.Array | None = None

    @property
    def train(self) -> bool:
        """Whether the network runs as in training."""
        return self.key is not None

    def apply(self, inputs: Any) -> Any:
        """Calls the network on inputs made of the batch.

        In training, a network uses the statistics of the batch; updates of stored ones are dropped, since
        `jaxnas.calibrate` makes them for each architecture.
        """
        if self.key is None:
            return self.net.apply(self.variables, inputs, self.arch, train=False)
        stored = [name for name in self.variables if name != "params"]
        # A stream that is not named here is taken from "params", as Linen does.
        rngs = {"dropout": self.key, "params": jax.random.fold_in(self.key, 0)}
        return self.net.apply(self.variables, inputs, self.arch, train=True, rngs=rngs, mutable=stored)[0]


class Batches(Protocol):
    """The batches of a role, made in a thread ahead of their step, unless `training.prefetch` is 0."""

    def at(self, step: int) -> Batch:
        """Returns the batch of a step, a pytree of arrays with a leading batch axis; a pure function."""


class Task(Protocol):
    """Data, loss and metrics; a user-defined task inherits the defaults of the last methods.

    Attributes:
      name: of the data.
      examples: what an example is called, as "images".
      metrics: of an evaluation; architectures are compared by the first.
    """

    name: str
    examples: str
    metrics: tuple[Metric, ...]

    @property
    def inputs(self) -> Any:
        """The network's inputs: a pytree of `jax.ShapeDtypeStruct` with a leading batch axis of one."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of examples by role."""
        ...

    def batches(self, role: str, batch_size: int, seed: int, shard: tuple[int, int] = (0, 1)) -> Batches:
        """The batches of "train" or "search", to train on.

        Args:
          role: as above; others raise a ValueError.
          batch_size: rows of a batch.
          seed: of the order.
          shard: (index, count): of each batch the index-th of count equal parts, for several processes.
        """
        ...

    def evaluation(self, role: str, batch_size: int | None, limit: int | None) -> Batch:
        """All of a role in batches of one shape: a pytree of arrays [batches, rows, ...].

        Args:
          role: "search", "validation" or "test"; others raise a ValueError.
          batch_size: rows at a time; None for the task's default.
          limit: batches at most; None for all.
        """
        ...

    def preprocess(self, batch: Batch) -> Any:
        """The network's inputs of a batch, without augmentation; traceable."""
        ...

    def loss(self, call: Call) -> tuple[jax.Array, tuple[Any, Sums]]:
        """The loss of a network on a batch; traceable.

        Returns:
          The loss, float32 [], and the carry to the next batch with sums over the batch's examples for
          `Metric.value`, float32 [] each. By default those of `predict`.
        """
        predictions, carry = self.predict(call)
        return predictions.loss, (carry, predictions.sums)

    def predict(self, call: Call) -> tuple[Predictions, Any]:
        """Predictions, from which `loss` is computed, and the carry to the next batch; traceable.

        The same key augments a batch alike. A task without classes raises a ValueError.
        """
        raise ValueError(
            f"{type(self).__name__} has no method `predict`, which distillation needs, and so does a task "
            "without a `loss`: it returns tasks.Predictions(logits, weight, loss, sums), and what goes to "
            "the next batch."
        )

    def load(self, data_dir: Any = None) -> Task:
        """The task with its data loaded, from a folder of prepared data where they have a name."""
        return self

    def whole(self) -> Task:
        """The task with nothing held out for a search, for a retraining."""
        return self

    def check(self, net: nn.Module) -> None:
        """Raises a ValueError for a network that contradicts the data; `check_fits` compares shapes."""
        return  # A method with a body is a default, and not one that each task has to define.

    def evaluated(self, net: nn.Module) -> nn.Module:
        """The network for evaluations, where a language model may have a longer memory."""
        return net

    def rows(self, role: str) -> int:
        """Largest number of rows of a batch of a role; 0 for a role that the data do not have."""
        return self.sizes.get(role, 0)

    def carry(self, net: nn.Module, rows: int) -> Any:
        """The initial carry from batch to batch; () for none."""
        return ()

    def carry_axes(self, carry: Any) -> Any:
        """The batch axis of each leaf of a carry, along which it is sharded."""
        return jax.tree.map(lambda _: 0, carry)

    def preparation(self) -> str:
        """The preparation of the network's inputs, as the end of a sentence."""
        return "as `preprocess` of the task makes them"

    def details(self) -> Mapping[str, Any]:
        """Facts on the data for a report, beside name and sizes."""
        return {}

    def preprocessing(self) -> Mapping[str, Any]:
        """Plain values with which inputs can be prepared and outputs be read."""
        return {"inputs": describe(self.inputs), "preparation": self.preparation(), **self.details()}

    def linear_model(self, roles: tuple[str, ...]) -> Mapping[str, float]:
        """The first metric of a linear model by role; {} for none."""
        return {}


def check_role(task: str, role: str, allowed: tuple[str, ...], use: str) -> None:
    """Raises a ValueError for a role of the data that is not allowed for a use."""
    if role not in allowed:
        raise ValueError(
            f"{task}: the role {role!r} may not be used for {use}, only {' or '.join(map(repr, allowed))}. "
            "Networks are trained on 'train', compared in a search on 'search', monitored on 'validation', "
            "and only the chosen ones are measured on 'test'."
        )


def check_predicts(task: Task) -> None:
    """Raises a ValueError for a task whose loss is not computed from its predictions."""
    order = type(task).__mro__
    first = {
        name: next((i for i, cls in enumerate(order) if name in vars(cls)), len(order))
        for name in ("loss", "predict")
    }
    if first["loss"] < first["predict"] and order[first["predict"]] is not Task:
        raise ValueError(
            f"{order[first['loss']].__name__} defines `loss` and inherits `predict`, by which a distillation "
            "would train another loss; define `predict` in its place, and `loss` follows from it."
        )


def check_task(task: Any) -> None:
    """Raises a TypeError for an object that is no task, such as a data set."""
    lacks = [name for name in ("batches", "evaluation", "preprocess", "loss") if not hasattr(task, name)]
    if lacks:
        raise TypeError(
            f"A task is expected; got a {type(task).__name__}, which has no {', '.join(lacks)}. Make a task "
            "of data by tasks.Images(data=...), tasks.Table(data=...), tasks.Language(data=..., length=...), "
            "tasks.Text(data=...) or tasks.Graphs(data=...), or write one of your own as a subclass of "
            "tasks.Task."
        )


def check_fits(task: Task, net: nn.Module) -> None:
    """Checks by shape that a network takes a task's batches and gives what its loss needs."""
    check_task(task)
    check_contract(net)
    task.check(net)
    name, key = type(net).__name__, jax.random.key(0)
    arch = jax.eval_shape(net.space.smallest)

    def run(key: jax.Array, arch: Arch) -> Any:
        inputs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), task.inputs)
        variables = nn.meta.unbox(net.init(key, inputs, arch))
        return variables, net.apply(variables, inputs, arch, train=False)

    def loss(variables: Any, arch: Arch, key: jax.Array) -> Any:
        batch = jax.tree.map(jnp.asarray, task.batches("train", 1, 0).at(0))
        return task.loss(Call(net, variables, arch, batch, task.carry(net, 1), key))

    row = describe(task.inputs)
    try:
        variables, outputs = jax.eval_shape(run, key, arch)
    except Exception as error:
        if _takes_soft(functools.partial(jax.eval_shape, run, key), net.space):
            raise ValueError(
                f"{name} takes soft architectures alone, weights of the options of each decision. A network "
                "must take hard ones, an index for each, too: it is initialized and extracted with them. The "
                f"layers of jaxnas.elastic take both. It fails with {type(error).__name__}: {error}"
            ) from error
        raise ValueError(
            f"{name} does not take the batches of {task.name}, of which one row is {row}. It fails with "
            f"{type(error).__name__}: {error}{mistaken(error, task.inputs)}"
        ) from error
    try:
        jax.eval_shape(loss, variables, arch, key)
    except Exception as error:
        raise ValueError(
            f"{name} makes {describe(predictions(outputs))} of one row of {task.name}, {row}, and the task's "
            f"loss fails on it with {type(error).__name__}: {error}"
        ) from error


def _takes_soft(run: Callable[[Arch], Any], space: Space) -> bool:
    """Whether a network that fails with hard architectures runs with soft ones."""
    try:
        run(jax.eval_shape(space.logits))
    except Exception:  # the message of the hard one is told
        return False
    return True
