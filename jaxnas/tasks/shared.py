"""What tasks share: data that have a name, and the classification of examples one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

import jax
import jax.numpy as jnp
import optax

from jaxnas.checks import check_counts, check_flags, check_numbers
from jaxnas.data.batches import Batches, evaluation_batches
from jaxnas.data.splits import Labeled
from jaxnas.tasks.task import Batch, Call, Metric, Predictions, Sums, Task, check_role

D = TypeVar("D", bound=Any)
L = TypeVar("L", bound=Labeled)

METRICS = (
    Metric("accuracy", "%", "max", lambda sums: sums["correct"] / sums["examples"]),
    Metric("loss", "nats", "min", lambda sums: sums["nats"] / sums["examples"]),
)


def loss_and_sums(nats: jax.Array, correct: jax.Array, weight: jax.Array) -> tuple[jax.Array, Sums]:
    """The mean loss of a batch of classified examples, and the sums for `METRICS`.

    Args:
      nats: cross-entropy of each example, float32 of any shape.
      correct: whether the likeliest class is the right one, bool of that shape.
      weight: of each example, float32 of that shape; 0 for padding.

    Returns:
      The mean of the nats, 0 without weights, and "nats", "correct" and "examples", float32 [] each.
    """
    sums = {
        "nats": jnp.sum(nats * weight),
        "correct": jnp.sum(correct.astype(jnp.float32) * weight),
        "examples": jnp.sum(weight),
    }
    return sums["nats"] / jnp.maximum(sums["examples"], 1), sums


@dataclasses.dataclass(frozen=True, kw_only=True)
class Named(Task, Generic[D]):
    """The part of a task whose data are given by a name, or as they are.

    Attributes:
      data: the name of a data set, or the data themselves, or a rule with a `name` that generates them. They
        have a method `whole()`, see `data.splits.Parts`.
    """

    data: Any

    kind: ClassVar[type]  # of the data themselves
    makers: ClassVar[str]  # functions that make them, for messages
    rules: ClassVar[tuple[type, ...]] = ()  # of objects that generate the data when they are loaded

    def __post_init__(self) -> None:
        if not isinstance(self.data, (str, self.kind, *self.rules)):
            raise ValueError(
                f"{type(self).__name__}: data is a {type(self.data).__name__}; expected a name, or what "
                f"{self.makers} returns."
            )
        flags = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type in (bool, "bool") or (field.type == "bool | None" and value is not None):
                flags[field.name] = value
        check_flags(type(self).__name__, **flags)

    @property
    def name(self) -> str:  # pyrefly: ignore[bad-override] # of the data, so it is not set
        """The name of the data."""
        return self.data if isinstance(self.data, str) else self.data.name

    @property
    def dataset(self) -> D:
        """The data themselves; raises a ValueError where they are not loaded yet."""
        if not isinstance(self.data, self.kind):
            raise ValueError(
                f"The {self.examples} of {self.name!r} are not loaded yet; call task.load() first."
            )
        return self.data

    @property
    def sizes(self) -> dict[str, int]:
        """The number of examples in each role."""
        return {role: len(split) for role, split in self.dataset.splits.items()}

    def load(self, data_dir: Any = None) -> Self:
        """The task with its data loaded; see the function of `jaxnas.data` that reads it."""
        if isinstance(self.data, self.kind):
            return self
        return dataclasses.replace(self, data=self.read(data_dir))

    def read(self, data_dir: Any) -> D:
        """The data of the name or the rule."""
        raise ValueError(f"{type(self).__name__}: {self.data!r} is no data; give what {self.makers} returns.")

    def whole(self) -> Self:
        """The task with nothing held out for a search, for a retraining; see `whole` of its data."""
        whole = self.dataset.whole()
        return self if whole is self.dataset else dataclasses.replace(self, data=whole)

    def preprocessing(self) -> Mapping[str, Any]:
        """With the name of each class and the word of each token, where the data have them."""
        words = getattr(getattr(self.dataset, "vocabulary", None), "words", None)
        known = {"classes": getattr(self.dataset, "classes", None), "words": words}
        return {**super().preprocessing(), **{name: x for name, x in known.items() if x is not None}}

    def part(self, parts: Mapping[str, Any], role: str, *, train: bool = False) -> Any:
        """The data of a role, of data by role, if it may be trained on, or evaluated."""
        use = "training" if train else "an evaluation"
        check_role(self.name, role, ("train", "search") if train else ("search", "validation", "test"), use)
        if role not in parts:
            raise ValueError(
                f"{self.name} has no {self.examples} of the role {role!r}, only of {', '.join(parts)}. Hold "
                "some out of training, as by search_fraction=0.2."
            )
        return parts[role]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(Named[L], Generic[L]):
    """Classification of examples one by one, by logits [B, classes].

    Attributes:
      label_smoothing: probability that is spread over all classes.
      evaluation_batch_size: examples at a time where networks are evaluated.
    """

    label_smoothing: float = 0.1
    evaluation_batch_size: int = 512

    metrics = METRICS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "label_smoothing", least=0, below=1)
        check_counts(self, "evaluation_batch_size")

    def details(self) -> Mapping[str, Any]:
        """The number of classes."""
        return {"num_classes": self.dataset.num_classes}

    def batches(self, role: str, batch_size: int, seed: int, shard: tuple[int, int] = (0, 1)) -> Batches:
        """Shuffled batches of the network's inputs by name, and "label" int32 [B]; see `Task.batches`."""
        split = self.part(self.dataset.splits, role, train=True)
        return Batches(split, batch_size, seed, shard)

    def evaluation(self, role: str, batch_size: int | None = None, limit: int | None = None) -> Batch:
        """All examples in order, or a random part; weights are 0 for padding."""
        split = self.part(self.dataset.splits, role)
        size = min(self.evaluation_batch_size, len(split)) if batch_size is None else batch_size
        return evaluation_batches(split, size, limit)

    def augmented(self, batch: Batch, key: jax.Array) -> tuple[Any, jax.Array]:
        """The network's inputs in training, and targets float32 [B, classes] before smoothing."""
        return self.preprocess(batch), self.targets(batch)

    def targets(self, batch: Batch) -> jax.Array:
        """The classes of a batch, float32 [B, classes], each row with a single 1."""
        return jax.nn.one_hot(batch["label"], self.dataset.num_classes, dtype=jnp.float32)

    def predict(self, call: Call) -> tuple[Predictions, Any]:
        """Logits [B, classes], mean cross-entropy in nats, and sums "correct", "nats" and "examples"."""
        batch = call.batch
        if call.key is not None:
            augment_key, net_key = jax.random.split(call.key)
            call = dataclasses.replace(call, key=net_key)
            inputs, targets = self.augmented(batch, augment_key)
            targets = optax.smooth_labels(targets, self.label_smoothing)
            weight = jnp.ones(targets.shape[:1], jnp.float32)
        else:
            inputs, targets = self.preprocess(batch), self.targets(batch)
            weight = batch["weight"]
        logits = call.apply(inputs).astype(jnp.float32)  # [B, classes]
        if logits.shape != targets.shape:
            raise ValueError(
                f"the network gives logits {list(logits.shape)} for a batch of {targets.shape[0]} of "
                f"{self.dataset.num_classes} classes; expected {list(targets.shape)}"
            )
        nats = optax.softmax_cross_entropy(logits, targets)  # [B]
        # Mixed examples have no label of their own: their likeliest one counts.
        correct = jnp.argmax(logits, axis=1) == jnp.argmax(targets, axis=1)
        loss, sums = loss_and_sums(nats, correct, weight)
        return Predictions(logits, weight, loss, sums), call.carry
