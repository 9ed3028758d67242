"""Training and measuring recurrent language models: segments in, memory from step to step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxnas.data import Stream, evaluation_streams
from jaxnas.space import Arch
from jaxnas.training.step import shard_batch

Batch = dict[str, jax.Array]
# From (params, arch, batch, memory, key) to the mean negative log-likelihood, and the next memory.
Loss = Callable[[Any, Any, Batch, Any, jax.Array], tuple[jax.Array, Any]]


@flax.struct.dataclass
class LanguageState:
    """All that the training of a recurrent network needs to go on.

    Attributes:
      step: steps done, int32 [].
      params: float32.
      opt_state: the optimizer's.
      memory: of the training stream, rows over the mesh.
      key: typed key of the run; the randomness of step n comes from folding n into it.
      arch: the architecture that is trained; None if the network has only one.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    memory: Any
    key: jax.Array
    arch: Any = None


def language_loss(net: nn.Module, *, by_document: bool = False) -> Loss:
    """The training loss of a recurrent language model, in nats per token.

    Args:
      net: as `supernets.TransformerXL`.
      by_document: whether tokens see only what is before them in their own document.
    """

    def loss(params: Any, arch: Any, batch: Batch, memory: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        scores, memory = net.apply(
            {"params": params},
            _inputs(batch, memory, by_document),
            arch,
            train=True,
            rngs={"dropout": key},
        )
        return -jnp.mean(scores), memory

    return loss


def _inputs(batch: Batch, memory: Any, by_document: bool) -> dict[str, Any]:
    inputs = {name: batch[name] for name in ("tokens", "targets")}
    if by_document:
        inputs["documents"] = batch["documents"]
    return {**inputs, "memory": memory.forget(batch["first"])}


def memory_sharding(mesh: Mesh, memory: Any) -> Any:
    """Where a `Memory` lies on a mesh: its rows are divided as those of a batch."""
    return memory.replace(
        inputs=NamedSharding(mesh, P(None, "data")), documents=NamedSharding(mesh, P("data"))
    )


def state_sharding(mesh: Mesh, state: Any) -> Any:
    """Where a training state lies on a mesh: everything everywhere, but for memories."""
    everywhere = NamedSharding(mesh, P())

    def place(leaf: Any) -> Any:
        return memory_sharding(mesh, leaf) if _is_memory(leaf) else everywhere

    return jax.tree.map(place, state, is_leaf=_is_memory)


def _is_memory(value: Any) -> bool:
    return hasattr(value, "forget")


def compile_step(step: Callable, mesh: Mesh, state: Any) -> Callable[[Any, Any], Any]:
    """Compiles (state, batches) -> (state, metrics) for a mesh; the state is donated.

    Every leaf of the batches has rows in front, divided over the mesh's axis "data".
    """
    rows, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    where = state_sharding(mesh, state)
    return jax.jit(step, in_shardings=(where, rows), out_shardings=(where, everywhere), donate_argnums=0)


def make_language_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    mesh: Mesh,
    state: LanguageState,
) -> Callable[[LanguageState, Batch], tuple[LanguageState, dict[str, jax.Array]]]:
    """The compiled training step of a network at one architecture: its own, or the state's.

    Args:
      loss: see `language_loss`.
      optimizer: an optax transformation.
      schedule: its learning rate, for the metrics.
      mesh: with an axis "data".
      state: the first one, for its structure.

    Returns:
      `step(state, batch) -> (state, metrics)` with a batch as of `data.ContiguousBatches`; metrics
      "loss" (nats per token) and "learning_rate" are float32 []. The state is donated.
    """

    def step(state: LanguageState, batch: Batch) -> tuple[LanguageState, dict[str, jax.Array]]:
        key = jax.random.fold_in(state.key, state.step)
        differentiate = jax.value_and_grad(loss, has_aux=True)
        (value, memory), grads = differentiate(state.params, state.arch, batch, state.memory, key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {
            "loss": value,
            "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
        }
        new = (params, opt_state, memory, state.key, state.arch)
        return LanguageState(state.step + 1, *new), metrics

    return compile_step(step, mesh, state)


def make_language_evaluator(
    net: nn.Module,
    stream: Stream,
    batch_size: int,
    length: int,
    mesh: Mesh,
    *,
    role: str,
    by_document: bool = False,
    segments: int | None = None,
) -> Callable[..., jax.Array]:
    """A function from parameters and architectures to the loss on a stream.

    Args:
      net: as `supernets.TransformerXL`; its memory, `same_length` and `clamp_length` are those of the
        evaluation.
      stream: what to evaluate on.
      batch_size: rows that are read side by side; rounded up to a multiple of the mesh's devices. What
        begins a row has no memory of what was before it, so fewer rows are more exact.
      length: tokens of a segment.
      mesh: with an axis "data".
      role: what the caller means to use; a stream of another role is refused.
      by_document: as in training.
      segments: evaluate on the first ones only; None for the whole stream.

    Returns:
      `evaluate(params, archs=None) -> float32`, the mean negative log-likelihood in nats per token:
      [n] for a batch of n architectures (hard or soft, leading axis), [] for a single one, or for None
      if the network has only one.
    """
    stream.require(role)
    devices = mesh.shape["data"]
    batch_size = -(-batch_size // devices) * devices
    batches = evaluation_streams(stream, batch_size, length)
    if segments is not None:
        batches = {name: x[:segments] for name, x in batches.items()}
    total = float(np.sum(batches["weight"], dtype=np.float64))
    batches = shard_batch(batches, mesh, axis=1)  # [m, B, T]

    def nats(params: Any, arch: Any, batches: Any) -> jax.Array:
        def segment(memory: Any, batch: Batch) -> tuple[Any, jax.Array]:
            scores, memory = net.apply({"params": params}, _inputs(batch, memory, by_document), arch)
            return memory, -jnp.sum(scores * batch["weight"])

        memory = net.empty_memory(batch_size)
        memory = lax.with_sharding_constraint(memory, memory_sharding(mesh, memory))
        return jnp.sum(lax.scan(segment, memory, batches)[1]) / total

    one = jax.jit(nats)

    @jax.jit
    def many(params: Any, archs: Any, batches: Any) -> jax.Array:
        return lax.map(lambda arch: nats(params, arch, batches), archs)

    def evaluate(params: Any, archs: Arch | None = None) -> jax.Array:
        single = archs is None or _is_single(net.space, archs)
        return (one if single else many)(params, archs, batches)

    return evaluate


def _is_single(space: Any, archs: Arch) -> bool:
    name, choice = space.decisions[0]
    value = archs[name]
    soft = jnp.issubdtype(value.dtype, jnp.floating)
    return value.ndim == len(choice.shape) + soft
