"""A traced function as a flat list of operations, whose axes are tied by the rules.

Calls are inlined, since a function that is called twice has other axes in each call. `scan`, `while`, `cond`
and `checkpoint` keep their bodies, as programs of their own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jaxnas.axes import rules
from jaxnas.axes.ties import Axes, Axis, Layout, Ties

_CALLS = ("jit", "pjit", "closed_call", "core_call")
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_WRAPPED = re.compile(r"^\w+\((.*)\)$")
_NO_MODULE = re.compile(r"^eqx\.|->")  # the scopes of Equinox's classes and of jax.numpy.einsum
REMAT = ("checkpoint", "remat", "remat2")
CUSTOM = ("custom_jvp_call", "custom_vjp_call")  # functions with derivatives of their own
MOVES = tuple("convert_element_type reshape transpose squeeze expand_dims broadcast_in_dim copy".split())


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A scalar that is written in the program."""

    value: Any


Value = int | Constant  # the number of an array, or a scalar


@dataclasses.dataclass(eq=False)
class Operation:
    """One equation.

    Attributes:
      eqn: of JAX, with its parameters and the full shapes.
      scope: the modules around it, outermost first.
      ins: its operands.
      outs: the numbers of its results.
      bodies: of `scan`, `while`, `cond` and `checkpoint`; of a custom derivative the function itself.
    """

    eqn: Any
    scope: tuple[str, ...]
    ins: tuple[Value, ...]
    outs: tuple[int, ...]
    bodies: tuple[Program, ...] = ()

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return self.eqn.primitive.name

    @property
    def carried(self) -> slice:
        """The operands of a scan that are carried from turn to turn; those behind them are by turn."""
        start = self.eqn.params["num_consts"]
        return slice(start, start + self.eqn.params["num_carry"])

    def array(self, place: int) -> int:
        """The number of an operand that is an array."""
        number = self.ins[place]
        assert isinstance(number, int)
        return number

    def bind(self, values: Sequence[Any], parameters: dict[str, Any] | None = None) -> list[Any]:
        """The results of the primitive, also with other parameters."""
        primitive, parameters = self.eqn.primitive, self.eqn.params if parameters is None else parameters
        with self.eqn.ctx.manager:
            made = primitive.bind(*values, **primitive.get_bind_params(parameters))
        return list(made) if primitive.multiple_results else [made]

    def handed(self, number: int, known: Sequence[Any], carried: Any = None) -> list[Any]:
        """Known values of the operands, as inputs of a body; `carried` for those that iterations exchange."""
        if self.name == "scan":
            start, stop = self.carried.start, self.carried.stop
            return [*known[:start], *[carried] * (stop - start), *known[stop:]]
        if self.name == "while":
            first, second = self.eqn.params["cond_nconsts"], self.eqn.params["body_nconsts"]
            own = known[first : first + second] if number else known[:first]
            return [*own, *[carried] * (len(known) - first - second)]
        return list(known[1:] if self.name == "cond" else known)

    def nested(self) -> Iterator[Operation]:
        """The operation, and those of its bodies."""
        yield self
        for body in self.bodies:
            yield from body.nested()


@dataclasses.dataclass(eq=False)
class Program:
    """A function of arrays.

    Attributes:
      inputs: the numbers of its arguments.
      operations: in their order.
      outputs: its results.
    """

    inputs: tuple[int, ...]
    operations: list[Operation]
    outputs: tuple[Value, ...]

    def nested(self) -> Iterator[Operation]:
        """The operations, each before those of its bodies."""
        for op in self.operations:
            yield from op.nested()

    def arrays(self) -> Iterator[int]:
        """The numbers of all arrays, also of those within bodies."""
        yield from self.inputs
        for op in self.nested():
            yield from op.outs
            for body in op.bodies:
                yield from body.inputs


@dataclasses.dataclass
class Trace:
    """Programs that are analyzed together.

    Attributes:
      root: the outermost named scope, if the library sets one that is no module of the network.
      ties: of all their axes.
      axes: of each array, by its number.
      shapes: the full shape of each array.
      constants: the values of arrays that the functions close over.
      origin: the variable that an array is, but for its shape and type.
      uses: what products and look-ups do with axes: (use, axis, the variable that has it or None).
    """

    root: str = ""
    ties: Ties = dataclasses.field(default_factory=Ties)
    axes: dict[int, Axes] = dataclasses.field(default_factory=dict)
    shapes: dict[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    constants: dict[int, Any] = dataclasses.field(default_factory=dict)
    origin: dict[int, int] = dataclasses.field(default_factory=dict)
    uses: list[tuple[str, Axis, int | None]] = dataclasses.field(default_factory=list)

    def array(self, axes: Axes, shape: Sequence[int]) -> int:
        """The number of a new array."""
        number = len(self.axes)
        self.axes[number], self.shapes[number] = axes, tuple(shape)
        return number

    def program(self, closed: Any, inputs: Sequence[Value], scope: str = "") -> Program:
        """The program of a closed jaxpr, tied to the arrays that it is called with."""
        operations: list[Operation] = []
        outputs = self._inline(closed, inputs, scope, operations)
        return Program(tuple(i for i in inputs if isinstance(i, int)), operations, tuple(outputs))

    def _inline(
        self, closed: Any, inputs: Sequence[Value], scope: str, operations: list[Operation]
    ) -> list[Value]:
        jaxpr, consts = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
        known: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
        known |= zip(jaxpr.constvars, map(self._constant, consts), strict=True)

        def read(atom: Any) -> Value:
            return self._constant(atom.val) if isinstance(atom, core.Literal) else known[atom]

        for eqn in jaxpr.eqns:
            ins = tuple(map(read, eqn.invars))
            inner = f"{scope}/{eqn.source_info.name_stack}".strip("/")
            if eqn.primitive.name in _CALLS:
                outs: Sequence[Value] = self._inline(_function(eqn), ins, inner, operations)
            else:
                operation = self._operation(eqn, inner, ins)
                operations.append(operation)
                outs = operation.outs
            known.update(zip(eqn.outvars, outs, strict=True))
        return list(map(read, jaxpr.outvars))

    def _constant(self, value: Any) -> Value:
        if np.ndim(value) == 0 and not is_key(value):
            return Constant(value)
        number = self.array(self.ties.axes(np.shape(value)), np.shape(value))
        self.constants[number] = value
        return number

    def _operation(self, eqn: Any, scope: str, ins: tuple[Value, ...]) -> Operation:
        name, bodies = eqn.primitive.name, ()
        axes = [self.axes[one] if isinstance(one, int) else [] for one in ins]
        if name == "scan":
            bodies, results = self._scan(eqn, scope, axes)
        elif name == "while":
            bodies, results = self._while(eqn, scope, axes)
        elif name == "cond":
            bodies, results = self._cond(eqn, scope, axes, ins[1:])
        elif name in (*REMAT, *CUSTOM):
            body = self._body(_function(eqn), axes, scope, ins if name in REMAT else ())
            bodies, results = (body,), self._results(body)
        else:
            results = rules.RULES.get(name, rules.unknown)(self.ties, eqn, axes)
            origins = [self.origin.get(one) if isinstance(one, int) else None for one in ins]
            self._note_uses(name, eqn, axes, origins)
        outs = tuple(
            self.array(result, out.aval.shape) for result, out in zip(results, eqn.outvars, strict=True)
        )
        if name in MOVES and isinstance(ins[0], int) and ins[0] in self.origin:
            self.origin[outs[0]] = self.origin[ins[0]]
        return Operation(eqn, self._modules(scope), ins, outs, bodies)

    def _modules(self, scope: str) -> tuple[str, ...]:
        """The modules of a named scope, without the names of transformations."""
        parts = []
        for part in scope.split("/"):
            while match := _WRAPPED.match(part):
                part = match[1]
            parts.append(part)
        parts = parts[parts[0] == self.root :]
        return tuple(part for part in parts if part and not _NO_MODULE.search(part))

    def _note_uses(self, name: str, eqn: Any, axes: list[Axes], origins: list[int | None]) -> None:
        """Notes what groups are called after."""
        if name in ("add", "add_any") and len({v.aval.shape for v in eqn.invars}) == 1:
            self.uses += [("added", axis, None) for axis in axes[0][1:]]
        elif name == "dot_general":
            contracted, batch = eqn.params["dimension_numbers"]
            plain = origins == [None, None]
            for one, origin, reduced, batched in zip(axes, origins, contracted, batch, strict=True):
                for place, axis in enumerate(one):
                    if place in reduced:
                        self.uses.append(("compared" if plain else "read", axis, origin))
                    elif place in batched:
                        use = ("batched" if reduced else "scaled") if plain else "expert"
                        self.uses.append((use, axis, origin))
                    elif origin is not None:
                        self.uses.append(("made", axis, origin))
        elif name == "conv_general_dilated" and origins[1] is not None:
            numbers = eqn.params["dimension_numbers"]
            self.uses.append(("channels", axes[1][numbers.rhs_spec[0]], origins[1]))
            self.uses.append(("read", axes[1][numbers.rhs_spec[1]], origins[1]))
        elif name == "gather" and origins[0] is not None:
            self.uses += [("made", axis, origins[0]) for axis in axes[0]]

    def _body(self, closed: Any, axes: Sequence[Axes], scope: str, ins: Sequence[Value] = ()) -> Program:
        """A program within another one; `ins` are its operands where they are handed on as they are."""
        variables = getattr(closed, "jaxpr", closed).invars
        inputs = [self.array(list(one), x.aval.shape) for one, x in zip(axes, variables, strict=True)]
        self.origin |= {x: self.origin[y] for x, y in zip(inputs, ins, strict=False) if y in self.origin}
        return self.program(closed, inputs, scope)

    def _results(self, body: Program) -> list[Axes]:
        return [self.axes[out] if isinstance(out, int) else [] for out in body.outputs]

    def _same(self, one: Sequence[Axes], other: Sequence[Axes]) -> None:
        for x, y in zip(one, other, strict=True):
            for a, b in zip(x, y, strict=True):
                self.ties.tie(a, b)

    def _scan(self, eqn: Any, scope: str, axes: list[Axes]) -> tuple[tuple[Program, ...], list[Axes]]:
        consts, carries = eqn.params["num_consts"], eqn.params["num_carry"]
        kept, scanned = axes[: consts + carries], axes[consts + carries :]
        turns = self.ties.axes([eqn.params["length"]], "turns of a scan")
        for one in scanned:
            self.ties.tie(one[0], turns[0])
        body = self._body(eqn.params["jaxpr"], [*kept, *(one[1:] for one in scanned)], scope)
        made = self._results(body)
        self._same(kept[consts:], made[:carries])
        return (body,), [*kept[consts:], *([*turns, *one] for one in made[carries:])]

    def _while(self, eqn: Any, scope: str, axes: list[Axes]) -> tuple[tuple[Program, ...], list[Axes]]:
        first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        carry = axes[first + second :]
        test = self._body(eqn.params["cond_jaxpr"], [*axes[:first], *carry], scope)
        body = self._body(eqn.params["body_jaxpr"], [*axes[first : first + second], *carry], scope)
        self._same(carry, self._results(body))
        return (test, body), carry

    def _cond(
        self, eqn: Any, scope: str, axes: list[Axes], ins: Sequence[Value]
    ) -> tuple[tuple[Program, ...], list[Axes]]:
        bodies = tuple(self._body(branch, axes[1:], scope, ins) for branch in eqn.params["branches"])
        first = zip(self._results(bodies[0]), bodies[0].outputs, eqn.outvars, strict=True)
        results = [
            one if isinstance(out, int) else self.ties.axes(variable.aval.shape)
            for one, out, variable in first
        ]
        for body in bodies[1:]:
            pairs = [(x, y) for x, y in zip(results, self._results(body), strict=True) if x and y]
            self._same([x for x, _ in pairs], [y for _, y in pairs])
        return bodies, results

    def layouts(self) -> dict[int, tuple[Layout, ...]]:
        """The factors of the axes of all arrays, when everything is tied."""
        return {n: tuple(self.ties.layout(axis) for axis in axes) for n, axes in self.axes.items()}


def _function(eqn: Any) -> Any:
    """The function of a call."""
    return next(eqn.params[key] for key in _BODIES if key in eqn.params)


def is_key(value: Any) -> bool:
    """Whether a value is a typed random key."""
    return jax.dtypes.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key)
