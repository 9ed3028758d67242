"""One-shot training: a compiled step that samples an architecture and trains its weights.

Single-path one-shot (Guo et al., ECCV 2020, section 3.3) as AutoFormer does it: every step draws one
architecture uniformly and updates the weights that it uses. The whole step is one program, traced
once, whatever is drawn. Data parallelism is a sharded batch: the same program on a mesh of any size.
"""

from __future__ import annotations

import dataclasses
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

from jaxnas.cost import annotations
from jaxnas.training import optimizer as optimizer_lib

Batch = dict[str, jax.Array]
Arch = dict[str, jax.Array]
Preprocess = Callable[[jax.Array, jax.Array], jax.Array]


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


@dataclasses.dataclass(frozen=True)
class StepSettings:
    """What a step does beyond the network and the optimizer.

    Attributes:
      label_smoothing: weight of the uniform distribution in the targets, 0 to 1.
      freeze_inactive: leave unsampled weights untouched; False is the official AutoFormer behaviour,
        where decay and momentum move them.
    """

    label_smoothing: float = 0.1
    freeze_inactive: bool = True


def data_mesh(devices: int | None = None) -> Mesh:
    """A one-axis mesh "data" over the first `devices` devices, by default all."""
    found = jax.devices()
    count = len(found) if devices is None else devices
    return jax.make_mesh((count,), ("data",), axis_types=(AxisType.Auto,), devices=found[:count])


def init_state(
    params: Any, optimizer: optax.GradientTransformation, key: jax.Array
) -> TrainState:
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
    preprocess: Preprocess,
    settings: StepSettings,
    mesh: Mesh,
    input_shape: tuple[int, ...],
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
    """The compiled single-path training step.

    Args:
      net: a supernet with a `space`.
      optimizer: an optax transformation.
      schedule: its learning rate, for the metrics.
      preprocess: from (images as stored, key) to float32 images, traceable.
      settings: see `StepSettings`.
      mesh: with an axis "data".
      input_shape: of the network's input, with a batch dimension.

    Returns:
      `step(state, batch) -> (state, metrics)` with batch {"image" [B, ...], "label" int32 [B]}, split
      over the mesh; metrics "loss", "accuracy", "learning_rate" are float32 []. The state is donated.
    """
    masks = active_masks(net, input_shape)
    space = net.space

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        keys = jax.random.split(jax.random.fold_in(state.key, state.step), 3)
        arch = space.sample(keys[0])
        images = preprocess(batch["image"], keys[1])

        def loss_fn(params: Any) -> tuple[jax.Array, jax.Array]:
            rngs = {"drop_path": keys[2]}
            logits = net.apply({"params": params}, images, arch, train=True, rngs=rngs)
            targets = jax.nn.one_hot(batch["label"], logits.shape[1], dtype=jnp.float32)
            targets = optax.smooth_labels(targets, settings.label_smoothing)
            return optax.softmax_cross_entropy(logits, targets).mean(), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        active = masks(arch) if settings.freeze_inactive else None
        params, opt_state = optimizer_lib.update(
            optimizer, grads, state.opt_state, state.params, active
        )
        correct = jnp.argmax(logits, axis=1) == batch["label"]
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
