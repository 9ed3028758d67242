"""Classification of rows of a table, and regression."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas.data import tables
from jaxnas.tasks.shared import METRICS, Classification
from jaxnas.tasks.task import Batch, Call, Metric, Predictions, Sums


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table(Classification[tables.Table]):
    """Classification of rows of a table, or regression.

    A network takes standardized rows, float32 [B, F]. It gives logits [B, classes], or for a regression
    standardized targets [B, 1], which are trained by the squared error. The metrics "rmse" (root mean squared
    error) and "r2" (the share of the variance that is explained) are of targets in their own unit. Networks
    cannot be distilled from each other for a regression.

    Attributes:
      data: what `data.from_table` returns.
      label_smoothing: probability that is spread over all classes.
      evaluation_batch_size: rows at a time where networks are evaluated.

    Example:
      >>> x = np.random.default_rng(0).normal(size=(90, 4))
      >>> task = tasks.Table(data=data.from_table(x[:70], x[:70].sum(1), x[70:], x[70:].sum(1), name="sums"))
      >>> [metric.name for metric in task.metrics]
      ['rmse', 'r2']
    """

    data: tables.Table

    examples = "rows"
    kind = tables.Table
    makers = "data.from_table"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.data, str):
            raise ValueError(f"Table: data is {self.data!r}; expected what data.from_table returns.")

    @property
    def metrics(self) -> tuple[Metric, ...]:  # pyrefly: ignore[bad-override] # of the data, so it is not set
        """Those of classes, or of a regression."""
        if self.dataset.classes:
            return METRICS
        scale = self.dataset.target_std
        rmse = Metric("rmse", "", "min", lambda s: scale * jnp.sqrt(s["squares"] / s["examples"]))
        return rmse, Metric("r2", "", "max", _explained)

    @property
    def inputs(self) -> jax.ShapeDtypeStruct:
        """One row, float32 [1, F]."""
        return jax.ShapeDtypeStruct((1, len(self.dataset.mean)), jnp.float32)

    def preparation(self) -> str:
        """That columns are standardized."""
        return "standardized column by column by the rows to train on: (rows - mean) / std"

    def details(self) -> Mapping[str, Any]:
        """The number of columns, what they and targets are standardized by, and the number of classes."""
        data = self.dataset
        moments = {"columns": len(data.mean), "mean": data.mean, "std": data.std}
        if data.classes:
            return {**super().details(), **moments}
        return {**moments, "target_mean": data.target_mean, "target_std": data.target_std}

    def preprocess(self, batch: Batch) -> jax.Array:
        """Standardized rows, float32 [B, F]."""
        return batch["row"]

    def predict(self, call: Call) -> tuple[Predictions, Any]:
        """As of `Classification`; refused for a regression."""
        if not self.dataset.classes:
            raise ValueError(
                f"{self.name} is a regression, whose networks predict no classes, which distillation needs. "
                "Choose a recipe without one, as recipes.Uniform() or recipes.Sandwich(distill=None)."
            )
        return super().predict(call)

    def loss(self, call: Call) -> tuple[jax.Array, tuple[Any, Sums]]:
        """As of `Classification`; for a regression the mean squared error of standardized targets [B, 1]."""
        if self.dataset.classes:
            return super().loss(call)
        target = call.batch["label"]  # [B]
        weight = jnp.ones_like(target) if call.train else call.batch["weight"]
        outputs = call.apply(self.preprocess(call.batch)).astype(jnp.float32)
        if outputs.shape != (len(target), 1):
            raise ValueError(
                f"the network gives {list(outputs.shape)} for a batch of {len(target)} rows of a regression; "
                f"expected {[len(target), 1]}"
            )
        sums = {
            "squares": jnp.sum(jnp.square(outputs[:, 0] - target) * weight),
            "targets": jnp.sum(target * weight),
            "target_squares": jnp.sum(jnp.square(target) * weight),
            "examples": jnp.sum(weight),
        }
        return sums["squares"] / jnp.maximum(sums["examples"], 1), (call.carry, sums)


def _explained(sums: Sums) -> jax.Array:
    """The coefficient of determination; 0 where all targets are alike."""
    total = sums["target_squares"] - jnp.square(sums["targets"]) / sums["examples"]
    return jnp.where(total > 0, 1 - sums["squares"] / total, 0.0)
