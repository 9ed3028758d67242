"""Networks compared by how far their predictions are from those of one of them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.recipes.distillation import kl
from jaxnas.space import Arch
from jaxnas.tasks import Metric, Task
from jaxnas.tasks.task import Batch, Call, Sums, check_predicts

METRIC = Metric("kl", "nats", "min", lambda sums: sums["kl"] / sums["predictions"])


@dataclasses.dataclass(frozen=True, eq=False)
class Imitation:
    """A task whose metric is KL(reference, network), the mean over predictions.

    It needs no labels, and a change of a network shows in it long before it shows in an accuracy. What is not
    defined here, such as data and inputs, is that of the task.

    Attributes:
      task: whose data and predictions they are.
      net, variables, arch: the reference network; `arch` is None if it has only one architecture.
    """

    task: Task
    net: Any
    variables: Any
    arch: Arch | None = None

    metrics = (METRIC,)

    def __post_init__(self) -> None:
        check_predicts(self.task)

    def __getattr__(self, name: str) -> Any:
        if name == "task":  # of an object that is only being made, as by `copy`
            raise AttributeError(name)
        return getattr(self.task, name)

    def evaluation(self, role: str, batch_size: int | None, limit: int | None) -> Batch:
        """The task's batches, each with the reference network's logits, float32 [batches, rows, ...]."""
        batches = self.task.evaluation(role, batch_size, limit)
        count, rows = jax.tree.leaves(batches)[0].shape[:2]
        carry, found = self.carry(self.net, rows), []
        for number in range(count):
            batch = jax.tree.map(lambda x, i=number: jnp.asarray(x[i]), batches)
            logits, carry = self._reference(self.variables, self.arch, batch, carry)
            found.append(np.asarray(logits))
        return {"batch": batches, "reference": np.stack(found)}

    @functools.cached_property
    def _reference(self) -> Any:
        def predict(variables: Any, arch: Any, batch: Any, carry: Any) -> tuple[jax.Array, Any]:
            made, carry = self.task.predict(Call(self.net, variables, arch, batch, carry))
            return made.logits, carry

        return jax.jit(predict)

    def preprocess(self, batch: Batch) -> Any:
        """See `Task`."""
        return self.task.preprocess(batch["batch"] if "reference" in batch else batch)

    def loss(self, call: Call) -> tuple[jax.Array, tuple[Any, Sums]]:
        """The mean divergence in nats; the sums hold "kl" and "predictions"."""
        made, carry = self.task.predict(dataclasses.replace(call, batch=call.batch["batch"]))
        total = jnp.sum(kl(call.batch["reference"], made.logits) * made.weight)
        count = jnp.sum(made.weight)
        return total / jnp.maximum(count, 1), (carry, {"kl": total, "predictions": count})
