"""Selections: from the architecture parameters of a differentiable search to one architecture.

The most probable options are `argmax`, several draws to evaluate are `candidates`, and candidates that are
trained alone run as a race:

    drawn = search.candidates(space, logits, key, 8, explore=0.25)
    race = search.SuccessiveHalving(space, given=search.Pool(space.encode(drawn.archs)), batch=1)
    result = search.run(race, train_alone, key, history_path=path)  # (values, fidelity) -> score
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.search.bounds import Cost
from jaxnas.search.random_search import RandomSearch
from jaxnas.space import Arch, Space, nearest

_DRAWS = 64  # For each architecture asked for: many are equal, or cost too much.
_SLACK = 0.05  # of a cost, by which networks of equal cost may differ


class Candidates(NamedTuple):
    """Different architectures to select from."""

    archs: Arch  # a batch of hard architectures, leading axis n
    explored: np.ndarray  # which of them were drawn uniformly and not by the probabilities, bool [n]


def argmax(space: Space, logits: Arch) -> Arch:
    """Returns the hard architecture of the most probable options.

    Args:
      space: the search space.
      logits: architecture parameters, float [..., options] by name, as `space.logits()` shapes them.
    """
    space.check_static(logits)
    return space.harden(logits)


def candidates(
    space: Space,
    logits: Arch,
    key: jax.Array,
    count: int,
    *,
    explore: float = 0.0,
    explore_key: jax.Array | None = None,
    cost: Callable[[Arch], Any] | None = None,
    low: float | None = None,
    high: float | None = None,
    canonical: Callable[[Arch], Arch] | None = None,
) -> Candidates:
    """Draws different architectures by the probabilities, and a share of them uniformly.

    Where the probabilities give too few, more are drawn uniformly, if any are.

    Args:
      space: the search space.
      logits: architecture parameters, float [..., options] by name.
      key: of the draws by the probabilities.
      count: how many at most; there are fewer where too few different ones keep the bounds.
      explore: the share drawn uniformly over the options of each decision, from 0 to 1.
      explore_key: of those; by default made of `key`.
      cost: from an architecture to one number, traceable; needed for bounds.
      low, high: bounds of the cost; None for no bound.
      canonical: from an architecture to the one that stands for all that count as equal.

    Returns:
      At least one and at most `count` architectures, those drawn by the probabilities first.

    Raises:
      ValueError: no draw keeps the bounds (the message has what they cost).
    """
    if count < 1 or not 0 <= explore <= 1:
        raise ValueError(
            f"candidates: count is {count}, expected at least 1, and explore is {explore}, expected 0 to 1."
        )
    if cost is None and (low is not None or high is not None):
        raise ValueError(f"candidates: there are bounds, low={low} and high={high}, but no cost.")
    space.check_static(logits)
    low, high = -np.inf if low is None else low, np.inf if high is None else high
    costs: list[np.ndarray] = []

    def draw(weights: Arch, key: jax.Array, most: int) -> np.ndarray:
        codes = _draws(space, weights, key, _DRAWS * count)
        if cost is not None:
            costs.append(np.asarray(jax.vmap(cost)(space.decode(codes)), np.float64))
            codes = codes[(costs[-1] >= low) & (costs[-1] <= high)]
        return codes[_first(space, codes, canonical)][:most]

    anywhere = round(explore * count)
    searched = codes = draw(logits, key, count - anywhere)
    if anywhere:
        explore_key = jax.random.fold_in(key, 1) if explore_key is None else explore_key
        codes = np.concatenate([searched, draw(space.logits(), explore_key, count)])
    if not len(codes):
        every = np.concatenate(costs)
        raise ValueError(
            f"candidates: none of {len(every)} draws costs {low} to {high}; they cost {every.min():.6g} to "
            f"{every.max():.6g}. Change the bounds, explore more, or search with the cost in the loss."
        )
    keep = _first(space, codes, canonical)[:count]
    return Candidates(space.decode(codes[keep]), keep >= len(searched))


def _draws(space: Space, logits: Arch, key: jax.Array, count: int) -> np.ndarray:
    """Canonical codes of draws by the probabilities of the options, int32 [count, L]."""
    keys = jax.random.split(key, len(space))
    archs = {
        name: jax.random.categorical(one, logits[name], axis=-1, shape=(count, *space[name].shape))
        for name, one in zip(space, keys, strict=True)
    }
    return np.asarray(space.encode(space.canonical(archs)))


def _first(space: Space, codes: np.ndarray, canonical: Callable[[Arch], Arch] | None) -> np.ndarray:
    """Where each architecture, or the one that stands for it, is for the first time; in order."""
    if canonical is not None and len(codes):
        codes = np.asarray(space.encode(jax.vmap(canonical)(space.decode(codes))))
    return np.sort(np.unique(codes, axis=0, return_index=True)[1])


def similar_cost(
    space: Space, cost: Cost, name: str, arch: Arch, key: jax.Array, *, count: int = 64, fixed: float = 0.0
) -> Arch:
    """Draws different random architectures as dear as a given one: a baseline of equal cost.

    Costs of that name, less the part `fixed` that every network has, may differ by 5 %.

    Returns:
      A batch of architectures, leading axis of at most `count`; it is less where the space has no more.
    """
    costs = cost(arch)
    if name not in costs:
        raise ValueError(f"similar_cost: {name!r} is not a cost{nearest(name, costs)}")
    dear = np.asarray(costs[name]).item()
    if fixed > dear:
        raise ValueError(f"similar_cost: fixed is {fixed:,}, and the architecture has {name} of {dear:,}.")
    slack = _SLACK * (dear - fixed)
    bounds = {name: (dear - slack, dear + slack)}
    strategy = RandomSearch(space, cost, bounds, evaluations=count, batch=count)
    archs, state = strategy.ask(strategy.init(key))
    same = jnp.all(space.encode(archs) == space.encode(space.canonical(arch))[None], axis=1)
    rows = np.flatnonzero(state.valid & ~same)
    return jax.tree.map(lambda x: x[rows], archs)
