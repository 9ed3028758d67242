"""Declared networks: a plain module for given sizes, and which of these the decisions of a space set.

With a space of one architecture a declared network is the plain module at these sizes. With more it is the
supernet that the transformation makes of the module at its largest sizes, when it is first called.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas import products
from jaxnas.annotations import Annotations
from jaxnas.axes.groups import analyze
from jaxnas.axes.models import arguments
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.parameter import ParameterSpec
from jaxnas.elastic.width import Decision, Table, constant
from jaxnas.inputs import specification, with_batch
from jaxnas.space import Arch, Space
from jaxnas.tensors import Path, flatten, unflatten
from jaxnas.transform.places import Place
from jaxnas.transform.supernet import Form, Supernet, in_form

Variables = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Declared:
    """A network that a subclass declares by `places` and `module`, with fields of its own.

    Attributes:
      space: the search space.
      form: of the supernet; see `jaxnas.supernet`.
    """

    space: Space
    form: Form = dataclasses.field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            forms = ", ".join(map(repr, get_args(Form)))
            raise ValueError(f"{type(self).__name__}: form is {self.form!r}, expected one of {forms}.")

    def places(self) -> Iterable[Place]:
        """Sizes by decisions, at an axis of a parameter as "mlp/kernel[1]", and modules that run."""
        raise NotImplementedError

    def module(self, sizes: Mapping[str, int]) -> nn.Module:
        """The plain module with these sizes, by the names of the places."""
        raise NotImplementedError

    def stacked(self) -> Mapping[Path, tuple[str, int]]:
        """Parameters that each option of a decision has for itself, in a leading axis, with that decision."""
        return {}

    def make(self, module: Callable[..., nn.Module], **sizes: Any) -> nn.Module:
        """A module with some sizes, and with the fields of this network that it has, too."""
        names = {field.name for field in dataclasses.fields(self)} & set(inspect.signature(module).parameters)
        return module(**sizes, **{name: getattr(self, name) for name in names})

    def clone(self, **fields: Any) -> Self:
        """The network with other values of some fields."""
        return dataclasses.replace(self, **fields)

    def init(self, key: jax.Array, inputs: Any, arch: Arch | None = None) -> Variables:
        """Initial variables at the largest sizes, whatever the architecture."""
        flat = flatten(_init(_module(self), key, inputs))
        for path, decision in self._stacked(None).items():
            flat[path] = jnp.broadcast_to(flat[path], (len(decision.options), *flat[path].shape))
        return unflatten(flat)

    def apply(
        self,
        variables: Variables,
        inputs: Any,
        arch: Arch | None = None,
        *,
        train: bool = False,
        mutable: Any = False,
        rngs: Any = None,
    ) -> Any:
        """Calls the network; see `jaxnas.transform.Supernet.apply`."""
        if self.space.cardinality == 1:
            module = _module(self)
            positional, named = arguments(module.__call__, inputs)
            return module.apply(variables, *positional, **named, train=train, mutable=mutable, rngs=rngs)
        net, flat = _supernet(self, inputs), flatten(variables)
        of_options = self._stacked(Decisions(self.space, arch))
        for path, decision in ((path, one) for path, one in of_options.items() if path in flat):
            row, rows = jnp.asarray(decision.value), jnp.asarray(flat[path])
            flat[path] = jnp.tensordot(row, rows, 1) if jnp.issubdtype(row.dtype, jnp.floating) else rows[row]
        return net.apply(unflatten(flat), inputs, arch, train=train, mutable=mutable, rngs=rngs)

    def annotations(self, inputs: Any) -> Annotations:
        """The sizes of the network's variables and its products, for `jaxnas.network`."""
        if self.space.cardinality == 1:
            return self._of_module(inputs)
        found = _supernet(self, inputs).annotations(inputs)
        # Without names of axes: a module that flattens its kernels would move heads between devices.
        specs, variables = dict(found.specs), flatten(nn.meta.unbox(found.variables))
        for path, decision in self._stacked(None).items():
            count, spec, x = len(decision.options), specs[path[1:]], variables[path]
            option = Table((decision.name,), (count,), tuple(range(count)))
            specs[path[1:]] = ParameterSpec(spec.axes, spec.names, spec.gate, option)
            variables[path] = jax.ShapeDtypeStruct((count, *x.shape), x.dtype)
        return dataclasses.replace(found, specs=specs, variables=unflatten(variables))

    def _of_module(self, inputs: Any) -> Annotations:
        variables = jax.eval_shape(self.init, jax.random.key(0), inputs)
        program = jax.make_jaxpr(self.apply)(variables, inputs).jaxpr
        specs = {
            path: ParameterSpec(tuple(map(constant, x.shape)), (None,) * x.ndim, constant(1))
            for path, x in flatten(variables).items()
        }
        return Annotations(
            variables,
            {path[1:]: spec for path, spec in specs.items() if path[0] == "params"},
            {path: spec for path, spec in specs.items() if path[0] != "params"},
            (constant(products.total(program).least),),
            (),
            products.computes_in_half_precision(program),
        )

    def _stacked(self, read: Decisions | None) -> dict[Path, Decision]:
        """The decisions of stacked parameters; of one option, there is nothing to stack."""
        read = Decisions(self.space, None, initializing=True) if read is None else read
        found = {path: read[key] for path, key in self.stacked().items()}
        return {path: decision for path, decision in found.items() if len(decision.options) > 1}


@functools.lru_cache(maxsize=256)
def _module(net: Declared) -> nn.Module:
    return net.module({place.name: place.table(net.space).maximum for place in net.places()})


def _supernet(net: Declared, inputs: Any) -> Supernet:
    leaves, structure = jax.tree.flatten(with_batch(specification(inputs), 2))
    return _by_inputs(net, structure, *leaves)


@functools.lru_cache(maxsize=128)
def _by_inputs(net: Declared, *inputs: Any) -> Supernet:
    groups = _analyzed(_module(net), *inputs)
    names = {f"{'/'.join(path[1:])}[{i}]": group.name for group in groups for path, i in group.places}
    places = tuple(
        dataclasses.replace(place, name=names.get(place.name, place.name))
        for place in net.places()
        if len(set(place.table(net.space).values)) > 1
    )
    return in_form(Supernet(groups, net.space, places, "masked"), net.form)


@functools.lru_cache(maxsize=64)
def _analyzed(module: nn.Module, structure: Any, *leaves: Any) -> Any:
    inputs = jax.tree.unflatten(structure, leaves)
    variables = jax.eval_shape(functools.partial(_init, module), jax.random.key(0), inputs)
    return analyze(module, variables, inputs)


def _init(module: nn.Module, key: jax.Array, inputs: Any) -> Variables:
    positional, named = arguments(module.__call__, inputs)
    return dict(module.init(key, *positional, **named))
