"""The gradients of one architecture, or of several in one step."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxnas.recipes.distillation import Distillation
from jaxnas.recipes.recipe import Gradients, Problem
from jaxnas.space import Arch

_LARGEST_NORM = 1.0  # of the gradient of the other networks, where it is projected


@dataclasses.dataclass(frozen=True)
class Given:
    """Inputs that all networks of a step share."""

    problem: Problem
    params: Any  # of the supernet
    batch: Any  # of the task
    carry: Any  # from the batch before
    key: jax.Array  # of augmentation and dropout
    recipe: Any = ()  # its own state, which stays
    taught: Any = None  # logits of a trained network that they learn from

    def inputs(self, arch: Arch | None) -> tuple[Any, ...]:
        """The arguments of the loss at an architecture."""
        return self.params, arch, self.batch, self.carry, self.key

    def loss(self, arch: Arch) -> jax.Array:
        """The loss of an architecture by the labels, float32 []."""
        return self.problem.loss(*self.inputs(arch))[0]


@flax.struct.dataclass
class _Total:
    """The sums over the networks of a step so far."""

    grads: Any  # the sum of their gradients; where they are joined by projection, without the first network's
    first: Any  # the gradient of the first network where they are joined by projection, else ()
    logits: Any  # of the teacher; empty without one
    carry: Any  # of the first network
    sums: Any


def train_alone(given: Given, arch: Arch | None, distill: Distillation | None = None) -> Gradients:
    """The gradients of one architecture, hard or soft; None for a network that has only one."""
    objective: Any = given.problem.loss
    if distill is not None:
        objective = functools.partial(_taught, given.problem, distill, given.taught, None)
    (loss, (carry, sums, *_)), grads = jax.value_and_grad(objective, has_aux=True)(*given.inputs(arch))
    hard = arch is not None and all(jnp.issubdtype(x.dtype, jnp.integer) for x in arch.values())
    archs = jax.tree.map(lambda x: x[None], arch) if hard else None
    return Gradients(grads, archs, {"train": carry}, loss, sums, recipe=given.recipe)


def train_together(
    given: Given,
    archs: Arch,
    *,
    distill: Distillation | None = None,
    lead: bool = False,
    project: jax.Array | None = None,
) -> tuple[Gradients, jax.Array]:
    """The mean of the gradients of some architectures on one batch, with the same augmentation for all.

    They run one after another in one compiled loop, so that the memory is that of one.

    Args:
      given: their inputs. The carry of the first network is kept for the next batch.
      archs: hard, a batch of n.
      distill: how networks learn from a teacher; None to learn from labels alone.
      lead: whether the first network is the teacher of the others. It learns from the labels itself, or from
        the trained network if there is one.
      project: whether the first one's gradient loses what conflicts with the others', bool []; see `join`.

    Returns:
      The gradients, and the losses of the networks, float32 [n], as they were trained.
    """
    problem, count, apart = given.problem, len(next(iter(archs.values()))), project is not None

    def add(total: _Total, own: tuple[Arch, jax.Array]) -> tuple[_Total, jax.Array]:
        arch, first = own
        objective: Any = problem.loss
        if distill is not None:
            by_labels = first if lead and given.taught is None else None
            objective = functools.partial(_taught, problem, distill, total.logits, by_labels)
        (loss, (carry, sums, *logits)), grads = jax.value_and_grad(objective, has_aux=True)(
            *given.inputs(arch)
        )
        added = jax.tree.map(jnp.add, (total.grads, total.sums), (grads, sums))
        return _Total(
            grads=optax.tree.where(first, total.grads, added[0]) if apart else added[0],
            first=optax.tree.where(first, grads, total.first) if apart else (),
            logits=optax.tree.where(first, logits[0], total.logits) if lead else total.logits,
            carry=optax.tree.where(first, carry, total.carry),
            sums=added[1],
        ), loss

    inputs = given.inputs(jax.tree.map(lambda x: x[0], archs))
    if distill is None:
        logits, (_, (_, sums)) = jnp.zeros(0), jax.eval_shape(problem.loss, *inputs)
    else:
        assert problem.predict is not None
        shapes, _ = jax.eval_shape(problem.predict, *inputs)
        logits, sums = (
            optax.tree.zeros_like(shapes.logits) if given.taught is None else given.taught,
            shapes.sums,
        )
    nothing = _Total(
        grads=optax.tree.zeros_like(given.params),
        first=optax.tree.zeros_like(given.params) if apart else (),
        logits=logits,
        carry=optax.tree.zeros_like(given.carry),
        sums=optax.tree.zeros_like(sums),
    )
    total, losses = lax.scan(add, nothing, (archs, jnp.arange(count) == 0))
    grads = join(total.first, total.grads, count, project)
    carry, loss = {"train": total.carry}, jnp.mean(losses)
    return Gradients(grads, archs, carry, loss, total.sums, recipe=given.recipe), losses


def _taught(
    problem: Problem, distill: Distillation, teacher: Any, by_labels: jax.Array | None, *inputs: Any
) -> tuple[jax.Array, tuple[Any, Any, Any]]:
    """The loss of a network that learns from logits, and its carry, sums and logits.

    It learns from the labels where `by_labels`, bool [], is True.
    """
    assert problem.predict is not None
    predictions, carry = problem.predict(*inputs)
    loss = distill.loss(predictions, teacher)
    if by_labels is not None:
        loss = jnp.where(by_labels, predictions.loss, loss)
    return loss, (carry, predictions.sums, predictions.logits)


def join(first: Any, others: Any, count: int, project: jax.Array | None) -> Any:
    """The mean gradient of `count` networks, from that of the first, () if it is in the sum of the others'.

    With `project`, not None, the others' sum is limited to a norm of 1, and where it is True, the part of
    each tensor of `first` that points against it is dropped (Gong et al., NASViT, ICLR 2022, section 3.2, and
    its code).
    """
    if project is None:
        return jax.tree.map(lambda x: x / count, others)
    clipped, _ = optax.clip_by_global_norm(_LARGEST_NORM).update(others, optax.EmptyState())

    def without_conflict(a: jax.Array, b: jax.Array) -> jax.Array:
        share = jnp.clip(-jnp.sum(a * b) / (jnp.sum(b * b) + 1e-6), 0, 2)
        return (a + b + jnp.where(project, share, 0) * b) / count

    return jax.tree.map(without_conflict, first, clipped)
