"""Bounds on costs: the values that are reachable, which are checked before a search starts."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.search.neighbors import neighbors
from jaxnas.space import Arch, Space, nearest

Cost = Callable[[Arch], Mapping[str, Any]]
Bounds = tuple[tuple[str, float | None, float | None], ...]

_ENUMERATED = 20_000  # Spaces up to this many architectures are listed, which makes answers exact.
_ATTEMPTS = 100  # Rounds of the walk towards bounds, of 1,024 architectures each.


def normalize(bounds: Any) -> Bounds:
    """Returns bounds {name: (min | None, max | None)} as a hashable tuple of (name, min, max)."""
    if isinstance(bounds, Mapping):
        bounds = [
            (name, *pair) if isinstance(pair, tuple | list) else (name, pair) for name, pair in bounds.items()
        ]
    items = () if bounds is None else bounds
    if not isinstance(items, tuple | list) or not all(isinstance(x, tuple) and x for x in items):
        raise TypeError(
            f"bounds: got {bounds!r}, expected {{name of a cost: (min, max)}}, such as "
            "{'params': (None, 1_000_000)}."
        )
    for name, *limits in items:
        numbers = all(isinstance(x, int | float | np.number | None) and not x != x for x in limits)
        if not numbers or len(limits) != 2:
            raise ValueError(
                f"bounds: {name!r} is {tuple(limits)}, expected (min, max), each a number or None."
            )
        if None not in limits and limits[0] > limits[1]:
            raise ValueError(
                f"bounds: {name!r} has its minimum {_text(limits[0])} above its maximum {_text(limits[1])}."
            )
    return tuple((name, low, high) for name, low, high in items)


def within(bounds: Bounds, costs: Mapping[str, jax.Array]) -> jax.Array:
    """Returns whether costs keep all bounds, bool of their shape; for use under jit and vmap."""
    inside = jnp.ones(next(iter(costs.values())).shape if costs else (), bool)
    for name, low, high in bounds:
        value = costs[name]
        if low is not None:
            inside &= value >= _as(value, low, math.ceil)
        if high is not None:
            inside &= value <= _as(value, high, math.floor)
    return inside


def _as(value: jax.Array, bound: float, rounding: Callable[[float], int]) -> jax.Array:
    # Integer costs are compared as integers: float32 counts exactly only to 2**24.
    if jnp.issubdtype(value.dtype, jnp.integer):
        info = jnp.iinfo(value.dtype)
        bound = rounding(bound) if math.isfinite(bound) else (info.max if bound > 0 else info.min)
        bound = min(max(bound, info.min), info.max)
    return jnp.asarray(bound, value.dtype)


@functools.partial(jax.jit, static_argnums=(0, 1))
def costs_of(space: Space, cost: Cost, codes: jax.Array) -> dict[str, jax.Array]:
    """Returns the costs of encoded architectures [n, space.length] as arrays [n]."""
    return dict(jax.vmap(lambda code: check_costs(cost(space.decode(code))))(codes))


def check_costs(costs: Any) -> Mapping[str, Any]:
    """Returns what a cost function gave for one architecture; raises TypeError for no numbers by name."""
    kinds = int | float | np.number | np.ndarray | jax.Array
    if not isinstance(costs, Mapping) or not all(
        isinstance(name, str) and isinstance(x, kinds) and not np.shape(x) for name, x in costs.items()
    ):
        raise TypeError(
            f"cost: the function returned {costs!r} for an architecture, expected numbers by name, "
            "such as {'params': 1_000_000}."
        )
    return costs


def feasible(space: Space, cost: Cost | None, bounds: Bounds, codes: jax.Array) -> jax.Array:
    """Returns which of the encoded architectures [n, space.length] keep the bounds, bool [n]."""
    if not bounds:
        return jnp.ones(codes.shape[:1], bool)
    return within(bounds, costs_of(space, cost, codes))


@functools.lru_cache(maxsize=32)
def catalog(space: Space) -> np.ndarray | None:
    """Returns the codes of all architectures of a small space, int32 [n, length]; None of a large one."""
    if space.cardinality > _ENUMERATED:
        return None
    with jax.ensure_compile_time_eval():
        return np.asarray(space.encode(space.enumerate()))


@functools.partial(jax.jit, static_argnums=0)
def _samples(space: Space, key: jax.Array) -> jax.Array:
    return space.encode(space.sample(key, 1024))


@functools.partial(jax.jit, static_argnums=0)
def _mutants(space: Space, key: jax.Array, codes: jax.Array) -> jax.Array:
    def mutant(key, code):
        rate_key, key = jax.random.split(key)
        rate = jax.random.uniform(rate_key, minval=1 / space.length, maxval=0.5)
        return space.encode(space.mutate(key, space.decode(code), rate))

    rows = jnp.arange(1024) % codes.shape[0]
    return jax.vmap(mutant)(jax.random.split(key, 1024), codes[rows])


_neighbors = jax.jit(neighbors, static_argnums=0)


def reachable(space: Space, cost: Cost) -> dict[str, tuple]:
    """Returns the least and the greatest value of each cost over the space, {name: (min, max)}.

    Exact for spaces of up to 20,000 architectures. In larger ones the element that helps most is changed
    until none helps, from the best of 1,026 architectures: exact for a cost that rises with each decision
    whatever the others (params, macs), or is a sum over decisions; for others the true range may be wider.

    Example:
      >>> space = Space(width=Choice(8, 16).repeat(3))
      >>> ranges = search.reachable(space, lambda arch: {"units": 8 * (1 + arch["width"]).sum()})
      >>> tuple(int(x) for x in ranges["units"])
      (24, 48)
    """
    with jax.ensure_compile_time_eval():
        codes = catalog(space)
        if codes is not None:
            costs = _host(costs_of(space, cost, jnp.asarray(codes)))
            return {name: (x.min().item(), x.max().item()) for name, x in costs.items()}
        ends = jnp.stack([space.encode(space.smallest()), space.encode(space.largest())])
        starts = jnp.concatenate([ends, _samples(space, jax.random.key(0))])
        costs = _host(costs_of(space, cost, starts))

        def end(name: str, sign: int) -> int | float:
            return _climb(space, cost, name, starts[int(np.argmax(sign * costs[name]))], sign)

        return {name: (end(name, -1), end(name, 1)) for name in costs}


def _host(costs: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
    # Integers become int64, so that signs and differences can't overflow.
    arrays = {name: np.asarray(x) for name, x in costs.items()}
    return {name: x.astype(np.int64 if x.dtype.kind in "iu" else np.float64) for name, x in arrays.items()}


def _climb(space: Space, cost: Cost, name: str, code: jax.Array, sign: int) -> int | float:
    best = _host(costs_of(space, cost, code[None]))[name][0]
    while True:  # ends: each round improves strictly, and a space is finite
        around = _neighbors(space, code)
        values = _host(costs_of(space, cost, around))[name]
        row = int(np.argmax(sign * values))
        if not sign * values[row] > sign * best:
            return best.item()
        code, best = around[row], values[row]


def check_bounds(space: Space, cost: Cost | None, bounds: Any) -> np.ndarray:
    """Returns codes of some architectures within the bounds, int32 [n, length] with n from 1 to 64.

    Raises:
      ValueError: there is no cost of that name, a bound lies outside the reachable range (which the message
        has), or nothing was found between the bounds.
    """
    with jax.ensure_compile_time_eval():
        return _find(space, cost, normalize(bounds))


@functools.lru_cache(maxsize=32)
def _find(space: Space, cost: Cost | None, bounds: Bounds) -> np.ndarray:
    if not bounds:
        return np.asarray(space.encode(space.smallest()))[None]
    if cost is None:
        raise ValueError(
            f"bounds: given for {[name for name, *_ in bounds]}, but no cost "
            "function; pass cost=jaxnas.cost(net, input_shape)."
        )
    ranges = reachable(space, cost)
    for name, low, high in bounds:
        if name not in ranges:
            raise ValueError(
                f"bounds: {name!r} is not a cost{nearest(name, ranges)} The costs are {list(ranges)}."
            )
        least, most = ranges[name]
        below, above = high is not None and high < least, low is not None and low > most
        if below or above:
            asked = f"at most {_text(high or 0)}" if below else f"at least {_text(low or 0)}"
            # Of a space that is too large to be listed, the range is what a climb found.
            found = "no architecture has" if catalog(space) is not None else "no architecture was found with"
            raise ValueError(
                f"bounds: {found} {name} of {asked}; the space reaches {_text(least)} to {_text(most)}. "
                "Change the bound or the space."
            )
    codes, tried = catalog(space), space.cardinality
    if codes is not None:
        found = codes[np.asarray(feasible(space, cost, bounds, jnp.asarray(codes)))][:64]
        costs = _host(costs_of(space, cost, jnp.asarray(codes)))
    else:
        found, costs, tried = _walk(space, cost, bounds, ranges)
    if len(found):
        return found
    order = np.argsort(_distance(bounds, costs, ranges), kind="stable")[:200]
    seen = [", ".join(f"{name} {_text(costs[name][row].item())}" for name, *_ in bounds) for row in order]
    close = "; ".join(list(dict.fromkeys(seen))[:3])

    def spans(*given: tuple[str, float | None, float | None]) -> str:
        lows = {name: ranges[name][0] if low is None else low for name, low, _ in given}
        highs = {name: ranges[name][1] if high is None else high for name, _, high in given}
        return ", ".join(f"{name} from {_text(low)} to {_text(highs[name])}" for name, low in lows.items())

    how = "The space has none" if codes is not None else f"None found in {tried:,} attempts"
    raise ValueError(
        f"bounds: no architecture with {spans(*bounds)}. {how}; the nearest have: {close}. The space reaches "
        f"{spans(*((name, None, None) for name, *_ in bounds))}. Widen the bounds."
    )


def _walk(space: Space, cost: Cost, bounds: Bounds, ranges: dict):
    """Looks for architectures within bounds: random ones, then mutants of those least far away."""
    key = jax.random.key(0)
    ends = jnp.stack([space.encode(space.smallest()), space.encode(space.largest())])
    codes = jnp.concatenate([ends, _samples(space, jax.random.fold_in(key, 0))])
    tried = len(codes)
    for attempt in range(1, _ATTEMPTS + 1):
        inside = np.asarray(feasible(space, cost, bounds, codes))
        costs = _host(costs_of(space, cost, codes))
        if inside.any() or attempt == _ATTEMPTS:
            break
        _, first = np.unique(np.asarray(codes), axis=0, return_index=True)
        distance = _distance(bounds, costs, ranges)[first]
        codes = codes[np.resize(first[np.argsort(distance, kind="stable")], 64)]
        key = jax.random.fold_in(key, attempt)
        codes = jnp.concatenate([codes, _mutants(space, key, codes), _samples(space, key)])
        tried += 2048
    return np.unique(np.asarray(codes)[inside], axis=0)[:64], costs, tried


def _distance(bounds: Bounds, costs: Mapping[str, np.ndarray], ranges: dict) -> np.ndarray:
    """How far costs are from the bounds, in units of the reachable range; float64 [n]."""
    total = np.zeros(len(next(iter(costs.values()))))
    for name, low, high in bounds:
        span = max(ranges[name][1] - ranges[name][0], 1e-30)
        below = 0 if low is None else np.maximum(low - costs[name], 0)
        above = 0 if high is None else np.maximum(costs[name] - high, 0)
        total = total + (below + above) / span
    return total


def _text(value: float) -> str:
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
