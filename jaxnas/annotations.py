"""Records that a network makes when it is traced by shape: sizes of its arrays, and its products.

Elastic layers say by `parameter`, `annotate` and `record_macs` how large they are in each architecture. All
other products are counted in the traced program. What is called for an option of a `Mixture` counts for that
option alone; which calls these are is seen while they are made, so it doesn't matter where the
blocks of a mixture were made, and where Linen stores their parameters.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
from flax.core.scope import DenyList
from jax.interpreters import partial_eval

from jaxnas import products
from jaxnas.elastic.bank import BankSpec
from jaxnas.elastic.decisions import static
from jaxnas.elastic.mixture import Mixture
from jaxnas.elastic.parameter import ANNOTATIONS, CHOICES, ELASTIC_SCOPE, MACS, SPECS, ParameterSpec
from jaxnas.elastic.width import Table, combine, constant, width
from jaxnas.inputs import calling, one_example
from jaxnas.tensors import Path, flatten, without_sown

_LARGEST_TABLE = 1 << 18
_CALL = "jaxnas_call_"  # named scope of a call of a module's method, with its number


@dataclasses.dataclass(frozen=True)
class Annotations:
    """The records of a network, made when it is traced by shape.

    Attributes:
      variables: maximal ones as `jax.ShapeDtypeStruct`, by collection, in boxes with logical axis names.
      specs: what each parameter is made of, by its path: a `ParameterSpec`, or what has its methods.
      state: the same of each other array, by its collection and path.
      macs: tables of multiply-accumulates on one example.
      choices: tables of the decisions that are read, as which option of a mixture runs.
      half_precision: whether the network computes in bfloat16 or float16 somewhere.
      costs: tables of further costs, by name.
    """

    variables: Any
    specs: dict[Path, Any]
    state: dict[Path, Any]
    macs: tuple[Table, ...]
    choices: tuple[Table, ...]
    half_precision: bool
    costs: Mapping[str, tuple[Table, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class _Calls:
    """The calls of modules' methods in a trace: of each its module's path, and when it counts."""

    made: list[tuple[Path, Table]] = dataclasses.field(default_factory=list)
    gates: dict[Path, list[Table]] = dataclasses.field(default_factory=dict)
    within: list[Table] = dataclasses.field(default_factory=lambda: [constant(1)])
    macs: list[Table] = dataclasses.field(default_factory=list)
    recorded: dict[Path, int] = dataclasses.field(default_factory=dict)

    def intercept(self, call: Callable, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        """See `nn.intercept_methods`."""
        module = context.module
        if module.scope is None:
            return call(*args, **kwargs)
        gate, number = self.within[-1], len(self.made)
        if isinstance(module, Mixture) and context.method_name == "option":
            choice, name = args[:2]
            chosen = width(lambda option: option == name, choice).table
            gate = _product(gate, chosen)
        self.made.append((module.path, gate))
        self.gates.setdefault(module.path, []).append(gate)
        self.within.append(gate)
        with jax.named_scope(f"{_CALL}{number}"):
            outputs = call(*args, **kwargs)
        self.within.pop()
        recorded = module.get_variable(MACS, "macs", ())
        new = recorded[self.recorded.get(module.path, 0) :]
        self.macs += [_product(gate, entry.table) for entry in new]
        if new:
            self.recorded[module.path] = len(recorded)
        return outputs

    def gate(self, path: Path) -> Table:
        """When what is stored at a path is in use: when one of the calls of its module is made."""
        gates = list(dict.fromkeys(self.gates.get(path, ())))
        if constant(1) in gates or not path:
            return constant(1)
        if not gates:
            return self.gate(path[:-1])
        counts = {name: n for gate in gates for name, n in zip(gate.names, gate.counts, strict=True)}
        if math.prod(counts.values()) > _LARGEST_TABLE:
            raise ValueError(
                f"{'/'.join(path)} is shared by mixtures of {len(counts)} decisions: whether it is in use "
                f"would take a table of more than {_LARGEST_TABLE:,} entries. Give the mixtures blocks of "
                "their own, or call the shared module outside of them."
            )
        return functools.reduce(functools.partial(combine, max), gates)

    def plain_macs(self, jaxpr: Any, initializers: Any, name: str) -> list[Table]:
        """Tables of the products that no layer recorded, counted in the program without its initializers."""

        def group(scope: str) -> int | None:
            calls = re.findall(rf"{_CALL}(\d+)", scope)
            if ELASTIC_SCOPE in scope or not calls or self.made[int(calls[-1])][0] in self.recorded:
                return None
            return int(calls[-1])

        tables: dict[Table, int] = {}
        of_initializers = products.count(initializers, group)
        for number, (least, most) in products.count(jaxpr, group).items():
            path, gate = self.made[number]
            initial = of_initializers.get(number, products.NOTHING)
            least, most = least - initial.least, most - initial.most
            if least != most:
                unknown = ", ".join(sorted(products.opaque(jaxpr)))
                where = unknown if unknown and most == math.inf else "a lax.cond or a lax.while_loop"
                raise ValueError(
                    f"{'/'.join((name, *path))} has products in {where}, and the traced program does not say "
                    "how many of them run. Choose between blocks by jaxnas.elastic.Mixture, or say in that "
                    "module by jaxnas.elastic.record_macs how many multiply-accumulates it has."
                )
            tables[gate] = tables.get(gate, 0) + least
        return [combine(lambda on, macs=macs: on * macs, gate) for gate, macs in tables.items()]


def annotations(net: nn.Module, inputs: Any) -> Annotations:
    """Traces a network by shape, without computing anything; for `inputs` see `jaxnas.inputs.specification`.

    Raises:
      ValueError: inputs that the network cannot be called with; products that cannot be counted.
    """
    inputs, name = one_example(inputs), type(net).__name__
    if hasattr(net, "annotations"):
        return net.annotations(inputs)
    # Static: no branches are traced; the largest: nothing is cut. Tables are over all architectures.
    arch, key = static(net.space, largest=True), jax.eval_shape(lambda: jax.random.key(0))
    calls = _Calls()

    def apply(key: jax.Array, inputs: Any) -> Any:
        # Without variables, Flax makes them on the way: one trace declares, counts and gives all shapes.
        with nn.intercept_methods(calls.intercept):
            outputs, made = net.apply(
                {}, inputs, arch, train=False, mutable=DenyList("intermediates"), rngs={"params": key}
            )
        recorded = {name: made.pop(name) for name in ANNOTATIONS if name in made}
        return without_sown(made), outputs, recorded

    with calling(name, inputs):
        program, (variables, outputs, recorded) = jax.make_jaxpr(apply, return_shape=True)(key, inputs)
    if not jax.tree.leaves(outputs):
        raise ValueError(f"{name} returns no array; it returned {outputs!r}.")
    found = flatten(recorded.get(SPECS, {}), is_leaf=_is_spec)
    read = [one.table for sown in flatten(recorded.get(CHOICES, {})).values() for one in sown]
    specs = {}
    for (collection, *path), leaf in flatten(nn.meta.unbox(variables)).items():
        # An array that no elastic layer declared has one size.
        plain = ParameterSpec(tuple(map(constant, leaf.shape)), (None,) * leaf.ndim, constant(1))
        spec = found.get(tuple(path), plain)
        specs[collection, *path] = spec.gated(calls.gate(tuple(path[:-1])))
    return Annotations(
        variables,
        {path[1:]: spec for path, spec in specs.items() if path[0] == "params"},
        {path: spec for path, spec in specs.items() if path[0] != "params"},
        (*calls.macs, *calls.plain_macs(program.jaxpr, _needed_for(program.jaxpr, variables), name)),
        tuple(dict.fromkeys([*(gate for _, gate in calls.made), *read])),
        products.computes_in_half_precision(program.jaxpr),
    )


def _needed_for(jaxpr: Any, first: Any) -> Any:
    """The part of a program that computes the first of its outputs, a pytree."""
    count = len(jax.tree.leaves(first))
    return partial_eval.dce_jaxpr(jaxpr, [number < count for number in range(len(jaxpr.outvars))])[0]


def _product(*tables: Table) -> Table:
    return combine(operator.mul, *tables)


def _is_spec(_: Any, value: Any) -> bool:
    return isinstance(value, ParameterSpec | BankSpec)
