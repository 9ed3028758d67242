"""A layer that chooses among blocks: by an index only the chosen one runs, by weights they are mixed.

One module takes both, with nothing rebuilt in between: an int32 index is a `lax.switch`, whose forward
and backward pass compute one block; float weights give the weighted sum of all blocks, differentiable in
the weights to any order. One-hot weights with a soft gradient are a straight-through sample.

The backward pass of a hard choice computes its block once more, but for what the block names `KEPT`. Without
that the switch would keep the intermediate results of all blocks, as zeros where they did not run.

Under `vmap` over indices a switch computes every block and selects; that is exact. `lax.map` keeps one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.parameter import SPECS
from jaxnas.elastic.width import Decision

# What a block names so, by `jax.ad_checkpoint.checkpoint_name`, is kept for the backward pass.
KEPT = "kept"


class Mixture(nn.Module):
    """Chooses among blocks of equal interface.

    Blocks may be plain Flax modules or elastic ones, made anywhere: outside of a module, in `setup`, or in
    a `compact` method. Their parameters are stored where Linen puts them.

    Example, in the `compact` method of a network with `op=Choice("dense", "norm")`:

        blocks = {"dense": nn.Dense(64), "norm": nn.LayerNorm()}  # for x [..., 64]
        x = elastic.Mixture(blocks, name="op")(decisions["op"], x)

    Attributes:
      blocks: modules by the name of their option. Each is called with the same arguments, and all
        return arrays (or pytrees of them) of the same shapes and dtypes. Dropout keys and other
        random streams pass through.
    """

    blocks: Mapping[str, nn.Module]

    @nn.compact
    def __call__(self, choice: Decision, *args: Any, **kwargs: Any) -> Any:
        """Runs the chosen block, or mixes all of them.

        Args:
          choice: its options are names of blocks; its value is an int32 [] index into them or float
            [options] weights.
          *args, **kwargs: of the blocks; keyword arguments are static.

        Returns:
          What the block returns, or the weighted sum of what all return.

        Raises:
          ValueError: an option without a block, or blocks that return something different.
        """
        options = choice.options
        if missing := [name for name in options if name not in self.blocks]:
            raise ValueError(
                f"The options {missing} have no block; there are blocks for {list(self.blocks)}."
            )
        if self.is_initializing() or self.is_mutable_collection(SPECS):
            # Every block declares its parameters here, whichever runs later.
            outputs = [self.option(choice, name, *args, **kwargs) for name in options]
            _check_interfaces(options, outputs)
            return outputs[0] if self.is_initializing() else _pick(choice, outputs)
        if len(options) == 1:
            return self.blocks[options[0]](*args, **kwargs)
        hard = jnp.issubdtype(choice.value.dtype, jnp.integer)
        if hard and isinstance(choice.value, np.ndarray):  # static: the others stay out
            return self.blocks[options[int(choice.value)]](*args, **kwargs)
        if hard:
            # Linen binds what a branch touches to the branch, so blocks are taken from `module`. The backward
            # pass runs the chosen block again: a switch would keep what each block computed, as zeros.
            remat = functools.partial(
                nn.remat, policy=jax.checkpoint_policies.save_only_these_names(KEPT), prevent_cse=False
            )
            branches = [
                remat(lambda module, *args, name=name: module.blocks[name](*args, **kwargs))
                for name in options
            ]
            return nn.switch(choice.value, branches, self, *args)
        outputs = [self.blocks[name](*args, **kwargs) for name in options]
        _check_interfaces(options, outputs)
        return _mix(choice, outputs)

    def option(self, choice: Decision, name: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the block of one option: `jaxnas.annotations` counts what is called within for this alone."""
        return self.blocks[name](*args, **kwargs)


def _pick(choice: Decision, outputs: list[Any]) -> Any:
    """The result by outputs that are all there."""
    if not jnp.issubdtype(choice.value.dtype, jnp.integer):
        return _mix(choice, outputs)
    return jax.tree.map(lambda *leaves: jax.lax.select_n(choice.value, *leaves), *outputs)


def _mix(choice: Decision, outputs: list[Any]) -> Any:
    """The sum of the outputs, weighted."""
    weights = choice.value[: len(outputs)]  # positions may have fewer options than others

    def mix(*leaves: jax.Array) -> jax.Array:
        # In float32: the gradient of a weight is a sum over all of a leaf, which bfloat16 cannot hold.
        dtype = leaves[0].dtype if jnp.finfo(leaves[0].dtype).bits >= 32 else jnp.float32
        terms = [w.astype(dtype) * x.astype(dtype) for w, x in zip(weights, leaves, strict=True)]
        return functools.reduce(operator.add, terms).astype(leaves[0].dtype)

    return jax.tree.map(mix, *outputs)


def _check_interfaces(options: tuple[Any, ...], outputs: list[Any]) -> None:
    described = [jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", output) for output in outputs]
    for option, one in zip(options, described, strict=True):
        if one != described[0]:
            raise ValueError(
                f"The blocks of a mixture return arrays of the same shapes and dtypes; {options[0]!r} "
                f"returns {described[0]}, and {option!r} returns {one}."
            )
