"""One-shot training: a compiled step that samples an architecture and trains its weights.

Single-path one-shot (Guo et al., ECCV 2020, section 3.3) as AutoFormer does it: every step draws one
architecture uniformly and updates the weights that it uses. The whole step is one program, traced
once, whatever is drawn. Data parallelism is a sharded batch: the same program on a mesh of any size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxnas.annotations import annotations
from jaxnas.supernets.stacking import STACKED, stack_layers
from jaxnas.training import optimizer as optimizer_lib

Batch = dict[str, jax.Array]
Arch = dict[str, jax.Array]
Preprocess = Callable[[jax.Array], jax.Array]
Augment = Callable[[Batch, jax.Array], tuple[jax.Array, jax.Array]]


@flax.struct.dataclass
class TrainState:
    """All that a training run needs to go on.

    Attributes:
      step: steps done, int32 [].
      params: maximal parameters, float32.
      opt_state: the optimizer's.
      key: typed key of the run; the randomness of step n comes from folding n into it.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    key: jax.Array


def data_mesh(devices: int | None = None) -> Mesh:
    """A one-axis mesh "data" over the first `devices` devices, by default all."""
    found = jax.devices()
    count = len(found) if devices is None else devices
    return jax.make_mesh((count,), ("data",), axis_types=(AxisType.Auto,), devices=found[:count])


def init_state(params: Any, optimizer: optax.GradientTransformation, key: jax.Array) -> TrainState:
    """The state before the first step."""
    return TrainState(jnp.int32(0), params, optimizer.init(params), key)


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Puts a tree on every device of a mesh."""
    return jax.device_put(tree, NamedSharding(mesh, P()))


def shard_batch(batch: Batch, mesh: Mesh, axis: int = 0) -> Batch:
    """Puts this process's rows of a batch on the mesh, split over "data" along `axis`.

    Raises:
      ValueError: a batch that does not divide by the devices.
    """

    def put(x: Any) -> jax.Array:
        size = x.shape[axis] * jax.process_count()
        if size % mesh.shape["data"]:
            raise ValueError(
                f"A batch of {size} does not divide by the mesh's {mesh.shape['data']} devices; "
                f"choose a multiple, or fewer devices."
            )
        sharding = NamedSharding(mesh, P(*[None] * axis, "data"))
        return jax.make_array_from_process_local_data(sharding, x)

    return jax.tree.map(put, batch)


def active_masks(net: nn.Module, input_shape: tuple[int, ...]) -> Callable[[Arch], Any]:
    """A function from an architecture to the tree of bool masks of the weights that it uses."""
    specs = annotations(net, input_shape).specs

    def masks(arch: Arch) -> Any:
        flat = {path: spec.mask(arch) for path, spec in specs.items()}
        return flax.traverse_util.unflatten_dict(flat)

    return masks


def make_train_step(
    net: nn.Module,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    augment: Augment,
    mesh: Mesh,
    input_shape: tuple[int, ...],
    *,
    freeze_inactive: bool = True,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
    """The compiled single-path training step.

    Args:
      net: a supernet with a `space`.
      optimizer: an optax transformation.
      schedule: its learning rate, for the metrics.
      augment: from (batch, key) to the network's input, float32 [B, ...], and targets, float32
        [B, classes] that sum to 1; traceable.
      mesh: with an axis "data".
      input_shape: of the network's input, with a batch dimension.
      freeze_inactive: leave unsampled weights untouched; False is the official AutoFormer behaviour,
        where decay and momentum move them.

    Returns:
      `step(state, batch) -> (state, metrics)` with batch {"image" [B, ...], "label" int32 [B]}, split
      over the mesh; metrics "loss", "accuracy", "learning_rate" are float32 []. The state is donated.
    """
    masks = active_masks(net, input_shape)
    space = net.space

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        keys = jax.random.split(jax.random.fold_in(state.key, state.step), 3)
        arch = space.sample(keys[0])
        images, targets = augment(batch, keys[1])

        def loss_fn(params: Any) -> tuple[jax.Array, jax.Array]:
            rngs = {"drop_path": keys[2]}
            logits = net.apply({"params": params}, images, arch, train=True, rngs=rngs)
            return optax.softmax_cross_entropy(logits, targets).mean(), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        active = masks(arch) if freeze_inactive else None
        if active is not None and STACKED in state.params:
            active = stack_layers(active)
        params, opt_state = optimizer_lib.update(optimizer, grads, state.opt_state, state.params, active)
        # Against the likeliest target: mixed images have no label of their own.
        correct = jnp.argmax(logits, axis=1) == jnp.argmax(targets, axis=1)
        metrics = {
            "loss": loss,
            "accuracy": jnp.mean(correct.astype(jnp.float32)),
            "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
        }
        state = TrainState(state.step + 1, params, opt_state, state.key)
        return state, metrics

    everywhere, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.jit(
        step,
        in_shardings=(everywhere, rows),
        out_shardings=(everywhere, everywhere),
        donate_argnums=0,
    )
