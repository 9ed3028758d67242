"""Distillation: learning from the predictions of another network.

A divergence is a function of the teacher's and the student's logits [..., classes] that gives nats [...].
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxnas.checks import check_numbers
from jaxnas.tasks import Call, Predictions, Task

Divergence = Callable[[jax.Array, jax.Array], jax.Array]
_CLIP = 5.0  # of the ratio of probabilities, to the power of alpha
_ALPHAS = (-1.0, 1.0)


def soft_cross_entropy(teacher: jax.Array, student: jax.Array) -> jax.Array:
    """The cross-entropy with the teacher's probabilities as targets (BigNAS, arXiv 2003.11142, section 3)."""
    return -jnp.sum(jax.nn.softmax(teacher) * jax.nn.log_softmax(student), axis=-1)


def kl(teacher: jax.Array, student: jax.Array) -> jax.Array:
    """The Kullback-Leibler divergence of the student from the teacher.

    It is the soft cross-entropy less the teacher's entropy: its gradient is the same, and its least value 0.
    """
    log_teacher = jax.nn.log_softmax(teacher)
    return jnp.sum(jnp.exp(log_teacher) * (log_teacher - jax.nn.log_softmax(student)), axis=-1)


def adaptive_alpha(teacher: jax.Array, student: jax.Array) -> jax.Array:
    """The larger one of two clipped alpha-divergences (AlphaNet, arXiv 2102.07954, section 3.2).

    One penalizes a student that is more certain than the teacher, the other one a student that misses modes
    of the teacher. The importance weights are clipped, in the value and in the gradient, against classes of
    next to no probability. Gradients are still large: in a `Sandwich`, `project_after` limits them.
    """
    values, gradients = zip(*(_alpha(teacher, student, alpha) for alpha in _ALPHAS), strict=True)
    surrogate = jnp.where(values[0] > values[1], gradients[0], gradients[1])
    # The value is the divergence, and the gradient that of the surrogate.
    return lax.stop_gradient(jnp.maximum(values[0], values[1]) - surrogate) + surrogate


def _alpha(teacher: jax.Array, student: jax.Array, alpha: float) -> tuple[jax.Array, jax.Array]:
    """A clipped alpha-divergence, without a gradient, and a function of the student with its gradient."""
    log_p, log_q = jax.nn.log_softmax(teacher), jax.nn.log_softmax(student)
    p, q, ratio = jnp.exp(log_p), lax.stop_gradient(jnp.exp(log_q)), lax.stop_gradient(log_p - log_q)
    if alpha == 1:  # The limit, which is the Kullback-Leibler divergence; it needs no clipping.
        return jnp.sum(p * ratio, axis=-1), -jnp.sum(lax.stop_gradient(p) * log_q, axis=-1)
    weight = jnp.minimum(jnp.exp(alpha * ratio), _CLIP)
    value = jnp.sum(q * (weight - 1), axis=-1) / (alpha * (alpha - 1))
    return value, -jnp.sum(q * weight / alpha * log_q, axis=-1)


DIVERGENCES: dict[str, Divergence] = {
    "soft_cross_entropy": soft_cross_entropy,
    "kl": kl,
    "adaptive_alpha": adaptive_alpha,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
    """A trained network of one architecture, as `extract` and `load_subnet` return it, and its variables."""

    net: Any
    variables: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation:
    """How networks learn from a teacher.

    Attributes:
      divergence: "soft_cross_entropy", "kl" or "adaptive_alpha".
      temperature: by which both logits are divided; the divergence is multiplied by its square, so that
        gradients keep their size (Hinton et al., arXiv 1503.02531, section 2).
      label_weight: of the loss on the labels, which is added.
      teacher: a trained network, or the folder that `save_subnet` wrote one to, which is read when a training
        begins; `Teacher(*load_subnet(folder, module=...))` for a user-defined class. None where the largest
        network of each step is the teacher of the others.
    """

    divergence: str = "soft_cross_entropy"
    temperature: float = 1.0
    label_weight: float = 0.0
    teacher: Teacher | str | None = None

    def __post_init__(self) -> None:
        if self.divergence not in DIVERGENCES:
            raise ValueError(f"Distillation: divergence is {self.divergence!r}, not of {[*DIVERGENCES]}.")
        check_numbers(self, "temperature", above=0)
        check_numbers(self, "label_weight", least=0)

    def loaded(self, read: Callable[[str], tuple[Any, Any]]) -> Distillation:
        """The distillation with its teacher read from the folder, if it names one."""
        if not isinstance(self.teacher, str):
            return self
        return dataclasses.replace(self, teacher=Teacher(*read(self.teacher)))

    def loss(self, predictions: Predictions, teacher: jax.Array) -> jax.Array:
        """The loss of a student, float32 [], by its predictions and a teacher's logits on the same batch."""
        if teacher.shape != predictions.logits.shape:
            raise ValueError(
                f"the teacher's predictions are {list(teacher.shape)} and the network's "
                f"{list(predictions.logits.shape)}; expected as many."
            )
        divergence, weight = DIVERGENCES[self.divergence], predictions.weight
        pair = lax.stop_gradient(teacher) / self.temperature, predictions.logits / self.temperature
        soft = jnp.sum(divergence(*pair) * weight) / jnp.maximum(jnp.sum(weight), 1)
        return self.temperature**2 * soft + self.label_weight * predictions.loss


def teacher_logits(task: Task, net: Any, variables: Any, batch: Any, carry: Any, key: jax.Array) -> jax.Array:
    """The logits of a trained network for a batch as the key augments it, without dropout."""
    if jax.tree.leaves(carry):
        raise ValueError(
            f"{task.name} hands a memory from batch to batch, and a trained teacher has none here. The "
            "largest network of each step can be the teacher: Sandwich(distill=Distillation())."
        )
    if net.space.cardinality > 1:
        raise ValueError(
            f"the teacher, a {type(net).__name__}, has {net.space.cardinality:,} architectures; give the "
            "extracted network of one."
        )

    def apply(variables: Any, inputs: Any, arch: Any = None, *, train: bool, **options: Any) -> Any:
        return net.apply(variables, inputs, train=False, **options)  # also where a task says `train=True`

    evaluated: Any = types.SimpleNamespace(apply=apply)
    try:
        predictions, _ = task.predict(Call(evaluated, variables, None, batch, carry, key))
    except ValueError as error:
        raise ValueError(
            f"the teacher, a {type(net).__name__}, does not fit {task.name}: {error}. A teacher takes the "
            "same inputs and knows the same classes, in the same order."
        ) from error
    return lax.stop_gradient(predictions.logits)
