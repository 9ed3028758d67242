"""Weight-entangled parameters: stored once at their maximal size, annotated once with their axes.

The annotation of a parameter is the widths of its axes. It says which prefix is active (slicing,
optimizer masks), how large the extracted parameter is (extraction, exact counts) and what the axes are
called (sharding over a mesh). It is recorded as static data when the network is traced by shape, so
that costs and masks are table look-ups and nothing of the network is computed for them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import errors
from jax import lax

from jaxnas.elastic.width import Decision, Joint, Table, Width, combine, constant, joint, width

SPECS = "parameter_specs"
MACS = "multiply_accumulates"
CHOICES = "choices"
ANNOTATIONS = (SPECS, MACS, CHOICES)  # collections that a network is recorded in
ELASTIC_SCOPE = "elastic_run"  # named scope of operations whose products are recorded by their layer


class StoredSpec:
    """Base of annotations of stored arrays: `axes` are tables of their sizes, `gate` is 1 where in use."""

    @functools.cached_property
    def sizes(self: Any) -> tuple[Table, ...]:
        """Tables whose sum is the number of active elements."""
        return (combine(lambda gate, *sizes: gate * math.prod(sizes), self.gate, *self.axes),)

    @property
    def tables(self: Any) -> tuple[Table, ...]:
        """All that depends on decisions."""
        return (*self.axes, self.gate, *(() if self.option is None else (self.option,)))

    def gated(self: Any, gate: Table) -> Any:
        """The annotation of an array that is in use only where `gate` is 1, too."""
        return dataclasses.replace(self, gate=combine(operator.mul, gate, self.gate))

    def inner_sizes(self, axis: int) -> tuple[int, ...] | None:
        """Full sizes of the inner factors of an axis; None where no prefix of it is a smaller axis."""
        return ()

    def shape(self: Any, arch: dict[str, Any]) -> tuple[int, ...] | None:
        """The active shape for a concrete hard architecture; None where the array is not in use."""
        return tuple(table.at_host(arch) for table in self.axes) if self.gate.at_host(arch) else None


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class ParameterSpec(StoredSpec):
    """The axes, initializer and options of a stored parameter.

    Attributes:
      axes: active size of each axis (without the axis of options).
      names: logical name of each axis, or None.
      gate: 1 where the parameter is used at all (a layer within the depth), else 0.
      option: which entry of a leading axis is in use, where each option has its own; or None.
      centered: positions of the axes whose active part is their center; that of all others is a prefix.
    """

    axes: tuple[Table, ...]
    names: tuple[str | None, ...]
    gate: Table
    option: Table | None = None
    centered: tuple[int, ...] = ()

    def mask(self, arch: dict[str, jax.Array]) -> jax.Array:
        """Which stored elements are active for a hard architecture: bool, broadcastable to the shape."""
        shape = [table.maximum for table in self.axes]
        mask = jnp.broadcast_to(self.gate.at(arch) > 0, [1] * len(shape))
        for axis, table in enumerate(self.axes):
            if len(set(table.values)) > 1:
                size = table.at(arch)
                places = jnp.arange(table.maximum) - self._start(axis, size)
                active = (places >= 0) & (places < size)
                mask = mask & active.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        if self.option is not None:
            used = jnp.arange(self.option.maximum + 1) == self.option.at(arch)
            mask = mask[None] & used.reshape([-1] + [1] * len(shape))
        return mask

    def active(self, value: Any, arch: dict[str, Any]) -> Any:
        """The active part of a stored parameter that a concrete hard architecture uses."""
        if self.option is not None:
            value = value[self.option.at_host(arch)]
        sizes = [table.at_host(arch) for table in self.axes]
        starts = [self._start(axis, size) for axis, size in enumerate(sizes)]
        return value[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]

    def _start(self, axis: int, size: Any) -> Any:
        """Where the active part of an axis begins."""
        return (self.axes[axis].maximum - size) // 2 if axis in self.centered else 0


def parameter(
    module: nn.Module,
    name: str,
    init: Callable[..., jax.Array],
    widths: tuple[Width, ...],
    *,
    gate: Width | None = None,
    options: tuple[Width, ...] | None = None,
    centered: tuple[int, ...] = (),
) -> jax.Array:
    """Declares a parameter of a module at its maximal size, float32, and records its annotation.

    Args:
      module: the Linen module in whose `compact` method this is called.
      name: of the parameter.
      init: Flax initializer.
      widths: one for each axis.
      gate: 0 or 1, whether the parameter is in use.
      options: if given, the parameter has its own values for each distinct
        combination of these widths, and the ones in use are returned.
      centered: positions of the axes whose active part is their center, as the taps of a convolution; that of
        all others is a prefix.

    Returns:
      The parameter, shape `[w.maximum for w in widths]`; zeros that are no parameter, if `gate` is always 0.
    """
    shape = tuple(w.maximum for w in widths)
    if gate is not None and not gate.maximum:  # no architecture of the space uses it
        return jnp.zeros(shape)
    names = tuple(w.axis for w in widths)
    choice, option = joint(*options or ()), None
    stored_shape, stored_names, stored_init = shape, names, init
    if len(choice.rows) > 1:
        option = Table(choice.names, choice.counts, tuple(choice.lookup.tolist()))
        stored_shape, stored_names = (len(choice.rows), *shape), (None, *names)

        def stored_init(key: jax.Array, shape: tuple[int, ...], *args: Any) -> jax.Array:
            keys = jax.random.split(key, shape[0])
            return jax.vmap(lambda k: init(k, shape[1:], *args))(keys)

    value: jax.Array
    if module.has_variable("params", name):  # `Module.param` would trace the initializer for its shape
        value = nn.meta.unbox(module.get_variable("params", name))
        if value.shape != stored_shape:
            raise errors.ScopeParamShapeError(name, "/".join(module.path), value.shape, stored_shape)
    else:
        if _declares(module):  # `jaxnas.annotations` asks for the shape alone
            stored_init = nn.initializers.zeros
        boxed = nn.with_logical_partitioning(stored_init, stored_names)
        value = module.param(name, boxed, stored_shape)  # pyrefly: ignore[bad-assignment] # it unboxes
    annotate(module, name, widths, gate=gate, option=option, centered=centered)
    return value if option is None else _pick_option(choice, widths, value)


def annotate(
    module: nn.Module,
    name: str,
    widths: tuple[Width, ...],
    *,
    gate: Width | None = None,
    option: Table | None = None,
    centered: tuple[int, ...] = (),
) -> None:
    """Says how large a stored array of a module is in each architecture, so that extraction can cut it.

    `parameter` does this for parameters. Call it for a variable of another collection, as the running
    mean of a batch normalization.

    Args:
      module: the Linen module that holds the array.
      name: of the array.
      widths: one for each axis.
      gate: 0 or 1, whether the array is in use.
      option: which entry of a leading axis is in use, if there is one more axis in front.
      centered: positions of the axes whose active part is their center.
    """
    if not _declares(module):
        return
    gate_table = constant(1) if gate is None else gate.table
    tables, names = tuple(w.table for w in widths), tuple(w.axis for w in widths)
    spec = ParameterSpec(tables, names, gate_table, option, centered)
    module.sow(SPECS, name, spec, init_fn=lambda: spec, reduce_fn=lambda _, new: new)


def _declares(module: nn.Module) -> bool:
    """Whether the module is traced to read its annotations."""
    return module.is_mutable_collection(SPECS) and not module.is_initializing()


def _pick_option(choice: Joint, widths: tuple[Width, ...], value: jax.Array) -> jax.Array:
    if not choice.is_soft:
        return lax.dynamic_index_in_dim(value, choice.index(), keepdims=False)
    # A soft choice mixes the options, each cut to its own size.
    columns = [np.broadcast_to(one.table.array(choice.names), choice.counts).ravel() for one in widths]
    cut = []
    for row in range(len(choice.rows)):
        mask, first = jnp.ones(value.shape[1:], value.dtype), int(np.argmax(choice.lookup == row))
        for axis, column in enumerate(columns):
            active = (jnp.arange(value.shape[axis + 1]) < int(column[first])).astype(value.dtype)
            mask = mask * active.reshape([-1 if i == axis else 1 for i in range(mask.ndim)])
        cut.append(value[row] * mask)
    return jnp.tensordot(choice.weights(value.dtype), jnp.stack(cut), axes=1)


def record_macs(module: nn.Module, macs: Table) -> None:
    """Records the multiply-accumulates of one operation on one example (products only).

    They stand for all products that the module's own methods compute outside of elastic operations. Those
    of a module that records nothing, as of plain Flax layers, are counted from the traced program.

    Args:
      module: the Linen module whose methods compute the products.
      macs: their number for each combination of options, as `width(fn, *decisions).table` makes it.
    """
    if not module.is_initializing():
        module.sow(MACS, "macs", StaticTable(macs))


def record_choice(module: nn.Module, *decisions: Decision) -> None:
    """Records that a module reads decisions which may change no parameter and no product.

    A choice between two poolings, made by hand, is one. A decision of which nothing is recorded is refused,
    since it is usually one that has been forgotten. A `Mixture` and the layers of `elastic` record their own.
    By hand, take the value as an index into `decision.options`, of which an extracted network has one alone.

    Args:
      module: the Linen module whose methods read them.
      *decisions: of `Decisions`.
    """
    if not module.is_initializing():
        for decision in decisions:
            chosen = width(lambda option, all=decision.options: all.index(option), decision)
            module.sow(CHOICES, "choices", StaticTable(chosen.table))


def gated_macs(gate: Width | None, macs: Callable[..., int], *widths: Width) -> Table:
    """For `record_macs`, a function of the sizes of some widths, where the gate of the layer is 1."""
    tables = constant(1) if gate is None else gate.table, *(one.table for one in widths)
    return combine(lambda on, *sizes: on * macs(*sizes), *tables)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class StaticTable:
    """A table as a pytree without leaves, so that it passes through `jax.eval_shape`."""

    table: Table
