"""Search spaces: named choices, and architectures as pytrees of arrays.

An architecture is a dict from the name of a choice to an int32 array of option indices, `[]` for a
plain choice and `[n]` for a repeated one. A batch of architectures is the same dict with leading
axes. A *soft* architecture holds float weights over the options in an additional last axis.

An index that is no option's raises wherever its value is known. Where it is traced, networks and costs take
the nearest option, as JAX's own indexing does, and the operations here pass it on.
"""

import dataclasses
import functools
import graphlib
import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import counting, display, option_values
from jaxnas.choice import Choice, Option, check_parents, nearest, parents, plain_options

Arch = dict[str, Any]
_NO_OPTION = -1e9  # a logit; finite, since weight decay would make NaN of an infinite one


def _program(*archs: int, batched: bool = True, static: tuple[int, ...] = (0,)) -> Callable[..., Any]:
    """Makes a method of a space a program, compiled once for a space, and inlined under jit.

    Args:
      archs: which of the arguments are hard architectures, to check before.
      batched: whether these may have leading axes.
      static: see `jax.jit`.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        compiled = jax.jit(method, static_argnums=static, inline=True)

        @functools.wraps(method)
        def call(space: "Space", *args: Any) -> Any:
            given = [space._hard(x, batched) if i in archs else x for i, x in enumerate(args)]
            made = compiled(space, *given)
            return space._in_order(made) if isinstance(made, dict) else made

        return call

    return decorate


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Space:
    """A search space: named choices, in the order given. Frozen and hashable: static under jit.

    Attributes:
      decisions: the name and the choice of each decision, in order.

    Example:
      >>> space = Space(width=Choice(32, 64), op=Choice("conv", "attention").repeat(2))
      >>> space.to_dict(space.largest())
      {'width': 64, 'op': ['attention', 'attention']}
    """

    decisions: tuple[tuple[str, Choice], ...]

    def __init__(self, /, **choices: Choice):
        for name, choice in choices.items():
            if not isinstance(choice, Choice):
                raise TypeError(f"Space: {name!r} must be a Choice, got {choice!r}.")
        if not choices:
            raise ValueError("Space: no choices given.")
        object.__setattr__(self, "decisions", tuple(choices.items()))
        for name, choice in choices.items():
            check_parents(name, choice, choices)
        _ = self._order  # raises on a cycle

    @functools.cached_property
    def _by_name(self) -> dict[str, Choice]:
        return dict(self.decisions)

    @property
    def choices(self) -> dict[str, Choice]:
        """The choices by name, in order."""
        return dict(self.decisions)

    def __iter__(self) -> Iterator[str]:
        return iter(name for name, _ in self.decisions)

    def __len__(self) -> int:
        return len(self.decisions)

    def __contains__(self, name) -> bool:
        return any(name == n for n, _ in self.decisions)

    def __getitem__(self, name: str) -> Choice:
        if name not in self:
            raise KeyError(f"{name!r} is not a choice of the space{nearest(name, self)}")
        return self._by_name[name]

    def __repr__(self) -> str:
        return "Space(" + ", ".join(f"{name}={choice!r}" for name, choice in self.decisions) + ")"

    def _repr_html_(self) -> str:
        def row(name: str, choice: Choice) -> dict[str, Any]:
            options, by = choice.per_position or choice.options, choice.active or choice.condition
            return {"choice": name, "options": options, "positions": choice.length or 1, "active by": by}

        rows = [row(name, choice) for name, choice in self.decisions]
        return display.table(rows, f"{display.count(self.cardinality)} architectures", most=len(rows))

    @functools.cached_property
    def _order(self) -> tuple[str, ...]:
        """The names, each after those that it depends on."""
        try:
            graph = {name: parents(choice) for name, choice in self.decisions}
            return tuple(graphlib.TopologicalSorter(graph).static_order())
        except graphlib.CycleError as error:
            raise ValueError(
                f"Space: choices depend on each other in a cycle: {' -> '.join(error.args[1])}."
            ) from None

    @functools.cached_property
    def length(self) -> int:
        """The number of elements of an encoded architecture."""
        return sum(math.prod(choice.shape) for _, choice in self.decisions)

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """The number of options of each element of an encoded architecture, int32 [length]."""
        return np.concatenate([choice.sizes.reshape(-1) for _, choice in self.decisions])

    @functools.cached_property
    def elements(self) -> counting.Elements:
        """The elements, (name, position), parents first, each with what it takes for it to be active.

        These are its parents, each with the indices of the options that allow it. The position of a choice
        that is not repeated is 0.
        """
        return counting.elements_of(self._by_name, self._order)

    @functools.cached_property
    def cardinality(self) -> int:
        """The exact number of distinct networks: what inactive elements hold does not count."""
        return counting.cardinality(self._by_name, self.elements)

    # ---- Checks.

    def check_static(self, arch: Arch) -> None:
        """Checks names, shapes and dtypes of one architecture; works on traced arrays.

        Raises:
          TypeError, ValueError: what was given, and what is expected.
        """
        option_values.check_shapes(self._by_name, arch)

    def check(self, arch: Arch) -> None:
        """Checks an architecture, or a batch of them with leading axes, hard or soft; on the host.

        Raises:
          TypeError, ValueError: as `check_static`, for traced arrays, and for an index or weight out of
            range.
        """
        option_values.check_shapes(self._by_name, arch, batched=True)
        if any(isinstance(arch[name], jax.core.Tracer) for name in self):
            raise TypeError("check: needs concrete arrays; use check_static inside jit or vmap.")
        option_values.check_indices(self._by_name, arch)

    # ---- Per architecture: pure, under jit and vmap; leading batch axes are allowed.

    @_program(0)
    def active(self, arch: Arch) -> dict[str, jax.Array]:
        """Returns which elements of a hard architecture count, bool of the shapes of `arch`."""
        return self._active(arch, jnp)

    @_program(0)
    def canonical(self, arch: Arch) -> Arch:
        """Returns the architecture with inactive elements set to 0: equal networks become equal arrays."""
        return self._canonical(arch, jnp)

    @_program(0)
    def encode(self, arch: Arch) -> jax.Array:
        """Returns a hard architecture as one int32 array [..., space.length]."""
        first, choice = self.decisions[0]
        batch = arch[first].shape[: arch[first].ndim - len(choice.shape)]
        parts = [
            jnp.asarray(arch[name], jnp.int32).reshape((*batch, math.prod(c.shape)))
            for name, c in self.decisions
        ]
        return jnp.concatenate(parts, axis=-1)

    @_program()
    def decode(self, code) -> Arch:
        """Returns the architecture of a code, int [..., space.length]; the reverse of `encode`."""
        if np.shape(code)[-1:] != (self.length,):
            raise ValueError(f"decode: expected a last axis of {self.length}, got {np.shape(code)}.")
        code, arch, start = jnp.asarray(code, jnp.int32), {}, 0
        for name, choice in self.decisions:
            stop = start + math.prod(choice.shape)
            arch[name] = code[..., start] if choice.length is None else code[..., start:stop]
            start = stop
        return arch

    def active_code(self, arch: Arch) -> jax.Array:
        """Returns which elements of the code of one hard architecture count, bool [space.length]."""
        return jnp.concatenate([mask.reshape(-1) for mask in self.active(arch).values()])

    def sample(self, key: jax.Array, n: int | None = None) -> Arch:
        """Returns a random canonical architecture.

        Every decision is uniform over its options, so a depth is as likely as another although
        there are more deep networks (AutoFormer's sampling, arXiv 2107.00651, and its code).

        Args:
          key: a typed key.
          n: how many, as a batch with this leading axis; by default one, without the axis.
        """
        return self._sampled(key, n)

    @_program(static=(0, 2))
    def _sampled(self, key: jax.Array, n: int | None) -> Arch:
        if n is not None:
            return jax.vmap(lambda key: self._sampled(key, None))(jax.random.split(key, n))
        return self.canonical(self.decode(self._uniform(key)))

    def _uniform(self, key: jax.Array) -> jax.Array:
        # One draw for all elements: one for each choice takes several times longer to compile.
        return jax.random.randint(key, (self.length,), 0, jnp.asarray(self.sizes), jnp.int32)

    def mutate(self, key: jax.Array, arch: Arch, probability: float | jax.Array | Mapping[str, Any]) -> Arch:
        """Returns a canonical copy of one architecture with each element resampled with some probability.

        An element that was inactive and becomes active is always drawn anew.

        Args:
          key: a typed key.
          arch: a hard architecture, without batch axes.
          probability: of resampling an element; one for all, or one for each name.
        """
        if not isinstance(probability, Mapping):
            probability = dict.fromkeys(self, probability)
        for name in (*probability, *self):
            if name not in self or name not in probability:
                wrong = "missing." if name in self else f"unknown{nearest(name, self)}"
                raise ValueError(
                    f"mutate: probabilities are needed for {list(self)}, and given for {list(probability)}; "
                    f"{name!r} is {wrong}"
                )
            if isinstance(probability[name], numbers.Real) and not 0 <= probability[name] <= 1:
                raise ValueError(
                    f"mutate: the probability of {name!r} is {probability[name]}, expected one from 0 to 1."
                )
        return self._mutated(key, arch, dict(probability))

    @_program(1, batched=False)
    def _mutated(self, key: jax.Array, arch: Arch, probability: dict[str, Any]) -> Arch:
        given = (
            (jnp.asarray(probability[name], jnp.float32), choice.shape) for name, choice in self.decisions
        )
        rates = jnp.concatenate([jnp.broadcast_to(rate, shape).reshape(-1) for rate, shape in given])
        fresh_key, change_key = jax.random.split(key)
        inactive = ~self.active_code(arch)
        change = inactive | (jax.random.uniform(change_key, (self.length,)) < rates)
        code = jnp.where(change, self._uniform(fresh_key), self.encode(arch))
        return self.canonical(self.decode(code))

    @_program(1, 2, batched=False)
    def crossover(self, key: jax.Array, a: Arch, b: Arch) -> Arch:
        """Returns a canonical child, each element from either of two parents with equal probability.

        An element that is active in one parent only comes from that one, so parents may differ in depth.
        Parents are hard architectures, without batch axes.
        """
        in_a, in_b = self.active_code(a), self.active_code(b)
        code_a, code_b = (self.encode(self.canonical(x)) for x in (a, b))
        first = jnp.where(in_a & in_b, jax.random.bernoulli(key, 0.5, (self.length,)), in_a)
        return self.canonical(self.decode(jnp.where(first, code_a, code_b)))

    def _hard(self, arch: Arch, batched: bool = True) -> Arch:
        """Checks a hard architecture, or a batch of them, and orders its names."""
        option_values.check_shapes(self._by_name, arch, batched=batched, hard=True)
        option_values.check_indices(self._by_name, arch)
        return self._in_order(arch)

    def _in_order(self, arch: Mapping[str, Any]) -> Arch:
        """The same dict with its names in the order of the space; a program sorts them."""
        return {name: arch[name] for name in self}

    def _active(self, arch: Arch, lib: Any) -> dict[str, Any]:
        """Which elements count, by NumPy (`lib` is np) on the host or by JAX (jnp) in a program."""
        masks: dict[str, Any] = {}
        for name in self._order:
            choice = self._by_name[name]
            batch = np.shape(arch[name])[: np.ndim(arch[name]) - len(choice.shape)]
            shape = batch + choice.shape
            mask = lib.ones(shape, bool)
            if choice.active is not None:
                value = lib.asarray(self._by_name[choice.active].table)[arch[choice.active]]
                place = np.arange(shape[-1]).reshape((1,) * len(batch) + (-1,))
                mask = (place < value[..., None]) & masks[choice.active][..., None]
            if choice.condition is not None:
                parent, options = self._by_name[choice.condition[0]], choice.condition[1]
                index = lib.asarray(arch[choice.condition[0]])
                rows = [
                    [k < len(row) and row[k] in options for k in range(parent.width)]
                    for row in map(parent.options_at, range(max(parent.length or 1, 1)))
                ]
                table = np.asarray(rows[: parent.length] if parent.shape else rows[0], bool)
                table = table.reshape((1,) * len(batch) + parent.shape + (parent.width,))
                option = np.arange(parent.width).reshape((1,) * (table.ndim - 1) + (-1,))
                holds = ((index[..., None] == option) & table).any(axis=-1) & masks[choice.condition[0]]
                if choice.shape and not parent.shape:
                    holds = lib.broadcast_to(holds[..., None], shape)
                mask = mask & holds
            masks[name] = mask
        return self._in_order(masks)

    def _canonical(self, arch: Arch, lib: Any) -> Arch:
        masks = self._active(arch, lib)
        zero = np.zeros((), np.int32)
        return {name: lib.where(masks[name], lib.asarray(arch[name], np.int32), zero) for name in self}

    # ---- Soft architectures.

    def logits(self) -> Arch:
        """Returns architecture parameters with every option equally likely, float32 [..., width].

        Zeros; beyond the options of a position so negative that no weight is left for them.
        """
        there = {name: np.arange(one.width) < one.sizes[..., None] for name, one in self.decisions}
        return {name: jnp.asarray(np.where(x, 0, _NO_OPTION), jnp.float32) for name, x in there.items()}

    def harden(self, weights: Arch) -> Arch:
        """Returns the canonical hard architecture of the largest weights, or logits."""
        return self.canonical({name: jnp.argmax(weights[name], axis=-1).astype(jnp.int32) for name in self})

    def soften(self, arch: Arch) -> Arch:
        """Returns a hard architecture as one-hot weights, float32 [..., width]."""
        option_values.check_shapes(self._by_name, arch, batched=True, hard=True)
        return {
            name: jax.nn.one_hot(arch[name], one.width, dtype=jnp.float32) for name, one in self.decisions
        }

    # ---- Particular architectures; on the host.

    def _extreme(self, pick, position: int) -> Arch:
        def index(options):
            if any(isinstance(o, str) for o in options):
                return range(len(options))[position]
            return options.index(pick(options))

        picked = {name: [index(row) for row in rows] for name, rows in self._rows().items()}
        return self._host_canonical(
            {name: np.reshape(picked[name], choice.shape) for name, choice in self.decisions}
        )

    def _host_canonical(self, arch: Arch) -> Arch:
        """`canonical` without compiling anything."""
        arch = {name: np.asarray(arch[name], np.int32) for name in self}
        return {name: jnp.asarray(x) for name, x in self._canonical(arch, np).items()}

    def smallest(self) -> Arch:
        """The architecture of least values; of str options, the first."""
        return self._extreme(min, 0)

    def largest(self) -> Arch:
        """The architecture of greatest values; of str options, the last."""
        return self._extreme(max, -1)

    def enumerate(self, limit: int = 100_000) -> Arch:
        """Returns all distinct canonical architectures, at most `limit`, as one batch [cardinality, ...]."""
        if self.cardinality > limit:
            raise ValueError(
                f"enumerate: the space has {self.cardinality:,} architectures, the limit is {limit:,}. Raise "
                "it, sample, or restrict the space."
            )
        arrays = counting.enumerate_all(self._by_name, self.elements)
        return {name: jnp.asarray(arrays[name]) for name in self}

    # ---- Option values and files.

    def to_dict(self, arch: Arch) -> dict[str, Any]:
        """Returns the option values of one hard architecture, as plain Python values.

        A repeated choice is a list up to its last active position, None where inactive in between; what is
        not active at all is left out.
        """
        self.check(arch)
        arch = {name: np.asarray(x) for name, x in self._hard(arch, batched=False).items()}
        return option_values.to_dict(self._by_name, arch, self._active(arch, np))

    def to_dicts(self, archs: Arch) -> list[dict[str, Any]]:
        """Returns the option values of each of a batch of hard architectures, as by `to_dict`."""
        archs = {name: np.asarray(x) for name, x in archs.items()}  # slices of arrays of JAX are compiled
        count = len(next(iter(archs.values())))
        return [self.to_dict({name: x[i] for name, x in archs.items()}) for i in range(count)]

    def from_dict(self, values: Mapping[str, Any]) -> Arch:
        """Returns the canonical architecture with these option values; the reverse of `to_dict`.

        Args:
          values: option values by name; a list may end after the active positions or have the full length.

        Raises:
          TypeError, ValueError: a value that is unknown (the message has the nearest) or missing.
        """
        index, given = option_values.indices(self._by_name, values)
        arch = {name: np.asarray(index[name], np.int32) for name in self}
        option_values.check_complete(self._by_name, values, given, self._active(arch, np))
        return self._host_canonical(arch)

    def _narrow(self, rows: dict[str, list[tuple[Option, ...]]]) -> "Space":
        """The space with these options by position; repeats end where nothing is active."""
        new: dict[str, Choice] = {}
        for name in self._order:
            choice, kept = self._by_name[name], rows[name]
            for parent in parents(choice):
                limit = int(new[parent].table.max()) if parent == choice.active else new[parent].length
                if limit is not None and choice.length is not None:
                    kept = kept[:limit]
            choice = choice.keep(kept)
            if choice.condition is not None:
                parent, options = choice.condition
                left = tuple(o for o in options if o in new[parent].options)
                choice = choice.replace(condition=(parent, left))  # () if it can never hold
            new[name] = choice
        return Space(**{name: new[name] for name in self})

    def _rows(self) -> dict[str, list[tuple[Option, ...]]]:
        return {
            name: [one.options_at(p) for p in range(math.prod(one.shape))] for name, one in self.decisions
        }

    def fix(self, arch: Arch) -> "Space":
        """Returns the space of one hard architecture: one option for every element.

        A choice repeated up to the depth is cut to that depth. `smallest()` of the new space is the
        architecture in it.
        """
        self.check(arch)
        arch = self._host_canonical(self._hard(arch, batched=False))
        kept: dict[str, list[tuple[Option, ...]]] = {}
        for name, rows in self._rows().items():
            indices = np.asarray(arch[name]).reshape(-1)
            kept[name] = [(row[int(k)],) for row, k in zip(rows, indices, strict=True)]
        return self._narrow(kept)

    def restrict(self, **kept) -> "Space":
        """Returns the space with fewer options for some names, in their original order.

        A choice repeated up to the depth is cut to the greatest depth left. An architecture moves
        between the two spaces by `to_dict` and `from_dict`.

        Args:
          **kept: the options to keep, one or a tuple of them, by name.
        """
        rows = self._rows()
        for name, keep in kept.items():
            if name not in self:
                raise ValueError(f"restrict: {name!r} is not a choice of the space{nearest(name, self)}")
            keep, options = (
                plain_options(keep if isinstance(keep, tuple | list) else (keep,)),
                self[name].options,
            )
            for option in keep:
                if option not in options:
                    raise ValueError(
                        f"restrict: {option!r} is not one of the options of {name!r}, {options}"
                        f"{nearest(option, options)}"
                    )
            rows[name] = [tuple(o for o in row if o in keep) for row in rows[name]]
            if not all(rows[name]):
                place = rows[name].index(())
                has = self[name].options_at(place)
                raise ValueError(
                    f"restrict: {name!r} would have no option at position {place}, where it has {has}."
                )
        return self._narrow(rows)

    def to_json(self) -> dict[str, Any]:
        """Returns a plain dict, name -> choice, which `from_json` reads; its order counts."""
        return {name: choice.to_json() for name, choice in self.decisions}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Space":
        """Returns the space that `to_json` wrote."""
        if not isinstance(values, Mapping):
            raise TypeError(f"Space.from_json: expected a dict that to_json wrote, got {values!r}.")
        return Space(**{name: Choice.from_json(choice) for name, choice in values.items()})


def check_space(space: Any, what: str) -> None:
    """Raises TypeError for what is no search space; `what` is the start of the message: who needs it."""
    if not isinstance(space, Space):
        raise TypeError(
            f"{what}: the space is {space!r}, expected a jaxnas.Space, such as Space(depth=Choice(2, 3))."
        )
