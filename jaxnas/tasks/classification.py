"""Classification: roles, batches, loss and metrics of images, texts and rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import optax

from jaxnas.checks import check_counts, check_numbers
from jaxnas.data.batches import Batches, evaluation_batches
from jaxnas.data.splits import Labeled
from jaxnas.tasks.task import Batch, Call, Metric, Named, Predictions, Sums

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
