"""The protocol of a task: all that training, search and retraining ask of a kind of data.

A task knows its data, its loss and its metrics, and nothing of how architectures are chosen. Batches
are a function of the step, so there is no state of an input pipeline to save.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from jaxnas import data
from jaxnas.inputs import describe, mistaken
from jaxnas.network import check_contract, predictions
from jaxnas.space import Arch, Space

# Weights are trained on "train" and architectures compared on "search". Fixed networks are watched on
# "validation", and only those that were chosen are measured on "test".
ROLES = data.ROLES

Batch = Any
Sums = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number that says how good a network is.

    Attributes:
      name: as "accuracy".
      unit: as "nats per token"; "%" for a fraction that is shown as per cent.
      direction: "max" if more is better, else "min".
      value: from the sums of `Task.loss`, over all batches, to the metric, float32 [].
    """

    name: str
    unit: str
    direction: Literal["max", "min"]
    value: Callable[[Sums], jax.Array]

    def score(self, value: Any) -> Any:
        """The metric as a search's score, of which more is better."""
        return value if self.direction == "max" else -value


@flax.struct.dataclass
class Predictions:
    """What a network predicts for a batch, for another network to learn from.

    Attributes:
      logits: float32 [..., classes], of log-probabilities up to a constant.
      weight: how much each prediction counts, float32 [...].
      loss: as `Task.loss` gives it, float32 [].
      sums: for metrics, as `Task.loss` gives them.
    """

    logits: jax.Array
    weight: jax.Array
    loss: jax.Array
    sums: Sums


@flax.struct.dataclass
class Call:
    """A call of a network on a batch, which a task computes its loss from.

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
        """Calls the network on the inputs that the task made of the batch.

        In training, a network uses the statistics of the batch; what it would store of them is dropped,
        since `jaxnas.calibrate` makes them for each architecture.
        """
        if self.key is None:
            return self.net.apply(self.variables, inputs, self.arch, train=False)
        stored = [name for name in self.variables if name != "params"]
        # A stream that is not named here is taken from "params", as Linen does.
        rngs = {"dropout": self.key, "params": jax.random.fold_in(self.key, 0)}
        return self.net.apply(self.variables, inputs, self.arch, train=True, rngs=rngs, mutable=stored)[0]


class Batches(Protocol):
    """The batches of a role: `at(n)` is the n-th, a pytree of arrays with rows in front.

    They are made in a thread of their own, ahead of their step, while the main one trains and evaluates. With
    `training.prefetch=0` the main thread makes each when its step comes.
    """

    def at(self, step: int) -> Batch:
        """Returns a batch, which depends on nothing but its number."""


class Task(Protocol):
    """What a network is trained for. A user's own task inherits the defaults of the last methods.

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
        """What the network takes: a pytree of `jax.ShapeDtypeStruct`, with a batch of one in front."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """The number of examples in each role that there is."""
        ...

    def batches(self, role: str, batch_size: int, seed: int, shard: tuple[int, int] = (0, 1)) -> Batches:
        """The batches of one role, to train on.

        Args:
          role: "train" or "search".
          batch_size: rows of a batch.
          seed: of the order.
          shard: (index, count): of each batch the index-th of count equal parts, for several processes.

        Raises:
          ValueError: a role that nothing may be trained on, or that the data do not have.
        """
        ...

    def evaluation(self, role: str, batch_size: int | None, limit: int | None) -> Batch:
        """All of a role in batches of one shape: a pytree of arrays [batches, rows, ...].

        Args:
          role: "search", "validation" or "test".
          batch_size: rows at a time; None for the task's own choice.
          limit: batches at most; None for all.
        """
        ...

    def preprocess(self, batch: Batch) -> Any:
        """The network's inputs of a batch, without augmentation; traceable."""
        ...

    def loss(self, call: Call) -> tuple[jax.Array, tuple[Any, Sums]]:
        """The loss of a network on a batch; traceable.

        Returns:
          The loss, float32 [], and what goes to the next batch, with sums over the batch's examples
          for `Metric.value`, float32 [] each. By default those of `predict`.
        """
        predictions, carry = self.predict(call)
        return predictions.loss, (carry, predictions.sums)

    def predict(self, call: Call) -> tuple[Predictions, Any]:
        """What `loss` is computed from, and what goes to the next batch; for distillation; traceable.

        The same key augments a batch alike.

        Raises:
          ValueError: the task has no predictions of classes.
        """
        raise ValueError(
            f"{type(self).__name__} has no method `predict`, which distillation needs, and so does a task "
            "without a `loss`: it returns tasks.Predictions(logits, weight, loss, sums), and what goes to "
            "the next batch."
        )

    def load(self, data_dir: Any = None) -> Task:
        """The task with its data loaded; a task that has its data returns itself."""
        return self

    def whole(self) -> Task:
        """The task with nothing held out for a search, for a retraining."""
        return self

    def check(self, net: nn.Module) -> None:
        """Raises a ValueError for a network that contradicts the data; `check_fits` compares shapes."""
        return  # A method with a body is a default, and not one that each task has to define.

    def evaluated(self, net: nn.Module) -> nn.Module:
        """The network as it is evaluated; a language model may then have a longer memory."""
        return net

    def rows(self, role: str) -> int:
        """How many rows a batch of a role can have; 0 for a role that the data do not have."""
        return self.sizes.get(role, 0)

    def carry(self, net: nn.Module, rows: int) -> Any:
        """What the first batch starts with, and every batch hands to the next; () for none."""
        return ()

    def carry_axes(self, carry: Any) -> Any:
        """The axis of the rows in each leaf of a carry, so that devices can share it."""
        return jax.tree.map(lambda _: 0, carry)

    def preparation(self) -> str:
        """What was done to the data before the network gets them, as the end of a sentence."""
        return "as `preprocess` of the task makes them"

    def details(self) -> Mapping[str, Any]:
        """What a result page says of the data beside its name and sizes."""
        return {}

    def preprocessing(self) -> Mapping[str, Any]:
        """What one must know to give a network its inputs, and to read its outputs; plain values."""
        return {"inputs": describe(self.inputs), "preparation": self.preparation(), **self.details()}

    def linear_model(self, roles: tuple[str, ...]) -> Mapping[str, float]:
        """What a linear model reaches, by role, in the first metric; {} where the task has none."""
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
    """Refuses a distillation with a task whose loss is not computed from its predictions.

    Raises:
      ValueError: a class that defines `loss` below the one that defines `predict`.
    """
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
    """Refuses an object that is no task, such as a data set.

    Raises:
      TypeError: says how a task is made.
    """
    lacks = [name for name in ("batches", "evaluation", "preprocess", "loss") if not hasattr(task, name)]
    if lacks:
        raise TypeError(
            f"A task is expected; got a {type(task).__name__}, which has no {', '.join(lacks)}. Make a task "
            "of data by tasks.Images(data=...), tasks.Table(data=...), tasks.Language(data=..., length=...), "
            "tasks.Text(data=...) or tasks.Graphs(data=...), or write one of your own as a subclass of "
            "tasks.Task."
        )


def check_fits(task: Task, net: nn.Module) -> None:
    """Checks by shape that a network takes a task's batches and gives what its loss needs.

    Raises:
      TypeError: no task, or no network.
      ValueError: what the task's `check` refuses; a network that takes no hard architectures; otherwise the
        message has the shapes and dtypes of what the task gives and of what the network makes of it.
    """
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
