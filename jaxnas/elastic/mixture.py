"""A layer that chooses among blocks: by an index only the chosen one runs, by weights they are mixed.

One module takes both, with nothing rebuilt in between: an int32 index is a `lax.switch`, whose forward
and backward pass compute one block; float weights give the weighted sum of all blocks, differentiable in
the weights to any order. One-hot weights with a soft gradient are a straight-through sample.

Under `vmap` over indices a switch computes every block and selects; that is exact. `lax.map` keeps one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.elastic.parameter import GATES, SPECS, StaticTable
from jaxnas.elastic.width import Decision, width


class Mixture(nn.Module):
    """Chooses among blocks of equal interface.

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
            # Every block is there with its parameters, whatever runs later; one costs nothing here.
            outputs = [self.blocks[name](*args, **kwargs) for name in options]
            _check_interfaces(options, outputs)
            self._record_gates(choice)
            return outputs[0]
        if len(options) == 1:
            return self.blocks[options[0]](*args, **kwargs)
        if jnp.issubdtype(choice.value.dtype, jnp.integer):
            # Linen binds what a branch touches to the branch, so blocks are taken from `module`.
            branches = [
                lambda module, *args, name=name: module.blocks[name](*args, **kwargs)
                for name in options
            ]
            return nn.switch(choice.value, branches, self, *args)
        outputs = [self.blocks[name](*args, **kwargs) for name in options]
        _check_interfaces(options, outputs)

        def mix(*leaves: jax.Array) -> jax.Array:
            total = choice.value[0].astype(leaves[0].dtype) * leaves[0]
            for weight, leaf in zip(choice.value[1:], leaves[1:], strict=True):
                total += weight.astype(leaf.dtype) * leaf
            return total

        return jax.tree.map(mix, *outputs)

    def _record_gates(self, choice: Decision) -> None:
        """Says of each block when it counts: its parameters and products are those of its option."""
        if self.is_initializing():
            return
        for name in choice.options:
            gate = width(lambda option, name=name: option == name, choice)
            self.sow(GATES, name, StaticTable(gate.table))


def _check_interfaces(options: tuple[Any, ...], outputs: list[Any]) -> None:
    def describe(output: Any) -> Any:
        return jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", output)

    described = [describe(output) for output in outputs]
    different = [i for i, one in enumerate(described) if one != described[0]]
    if different:
        i = different[0]
        raise ValueError(
            f"The blocks of a mixture return arrays of the same shapes and dtypes; {options[0]!r} "
            f"returns {described[0]}, and {options[i]!r} returns {described[i]}."
        )
