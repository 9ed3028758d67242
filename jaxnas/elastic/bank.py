"""Banks: many copies of a block's parameters, of which each use takes one by a traced index.

A bank is for a block that may be used at many places and has parameters of its own for each place or
context, as the operations of AutoAttend have. All places then share one compiled program, which gathers the
copies that an architecture uses. Extraction keeps these alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.parameter import SPECS, StoredSpec
from jaxnas.elastic.width import Table, combine, constant


class Uses(Protocol):
    """Which copies a network uses; a static, hashable object. U is the number of places."""

    @property
    def copies(self) -> int:
        """How many copies are stored."""
        ...

    @property
    def distinct(self) -> tuple[Table, ...]:
        """Tables whose sum is the number of different copies in use."""
        ...

    def __call__(self, arch: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
        """The copy that each place takes, int32 [U], and whether it is in use there, bool [U]."""
        ...


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class BankSpec(StoredSpec):
    """The sizes and options of a stored bank, with the methods of `ParameterSpec`.

    Attributes:
      uses: which copies are in use.
      copy_shape: the shape of one copy.
      gate: 1 where the bank is used at all, else 0.
    """

    uses: Uses
    copy_shape: tuple[int, ...]
    gate: Table = constant(1)

    @property
    def sizes(self) -> tuple[Table, ...]:
        """Tables whose sum is the number of active elements."""
        size = math.prod(self.copy_shape)
        return tuple(
            combine(lambda new, gate: new * gate * size, new, self.gate) for new in self.uses.distinct
        )

    @property
    def tables(self) -> tuple[Table, ...]:
        """All that depends on decisions."""
        return (*self.uses.distinct, self.gate)

    def shape(self, arch: dict[str, Any]) -> tuple[int, ...] | None:
        """The active shape for a concrete hard architecture; None where no copy is in use."""
        kept = used_copies(self.uses, arch) if self.gate.at_host(arch) else ()
        return (len(kept), *self.copy_shape) if len(kept) else None

    def mask(self, arch: dict[str, jax.Array]) -> jax.Array:
        """Which copies are active for a hard architecture: bool, broadcastable to the shape."""
        index, used = self.uses(arch)
        used = used & (self.gate.at(arch) > 0)
        mask = jnp.zeros(self.uses.copies, bool).at[index].max(used)
        return mask.reshape(-1, *[1] * len(self.copy_shape))

    def active(self, value: Any, arch: dict[str, Any]) -> Any:
        """The copies that a concrete hard architecture uses, in their order."""
        return value[used_copies(self.uses, arch)]


def used_copies(uses: Uses, arch: dict[str, Any]) -> np.ndarray:
    """The numbers of the copies that a concrete architecture uses, each once and in order."""
    index, used = _on_host(uses, arch)
    return np.unique(index[used])


def _on_host(uses: Uses, arch: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """The copies that a concrete architecture uses, outside of any traced program."""
    with jax.ensure_compile_time_eval():
        return tuple(map(np.asarray, uses(arch)))


def bank(
    module: nn.Module, name: str, init: Callable[[jax.Array], Any], uses: Uses, arch: dict[str, Any]
) -> Any:
    """Declares a bank of a module, and gathers the copies that an architecture uses.

    Args:
      module: the Linen module with a `space`, in whose `compact` method this is called.
      name: of the bank.
      init: from a key to the parameters of one copy, a nested dict of arrays.
      uses: which copies are used. It reads the options of the module's space.
      arch: a hard architecture of that space. If the space has only one, the module stores nothing but the
        copies that it uses.

    Returns:
      The copy of each place, leaves [U, ...], of any value where the place does not use the bank; None if
      the module's only architecture uses no copy.
    """
    single = module.space.cardinality == 1  # pyrefly: ignore[missing-attribute]
    kept = used_copies(uses, arch) if single else np.arange(uses.copies)
    if not len(kept):
        return None
    shapes = jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))
    if not jax.tree.leaves(shapes):
        return {}
    stored = module.param(name, lambda key: jax.vmap(init)(jax.random.split(key, len(kept))))
    if not module.is_initializing():
        specs = jax.tree.map(lambda leaf: BankSpec(uses, leaf.shape), shapes)
        module.sow(SPECS, name, specs, init_fn=lambda: specs, reduce_fn=lambda _, new: new)
    if single:
        index = np.clip(np.searchsorted(kept, _on_host(uses, arch)[0]), 0, len(kept) - 1)
    else:
        index, _ = uses(arch)
    return jax.tree.map(lambda leaf: leaf[index], stored)
