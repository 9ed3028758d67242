"""Selections: from the architecture parameters of a differentiable search to one architecture.

`argmax` takes the most probable options, `candidates` draws several to evaluate or to train alone, and
`perturbation` and `pruning` ask the trained supernet what each option contributes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.space import Arch, Space

_DRAWS = 64  # For each architecture asked for: many are equal, or cost too much.


class Candidates(NamedTuple):
    """Different architectures to select from."""

    archs: Arch  # a batch of hard architectures, leading axis n
    explored: np.ndarray  # which of them were drawn uniformly and not by the probabilities, bool [n]


def argmax(space: Space, logits: Arch) -> Arch:
    """Returns the hard architecture of the most probable options by logits, float [..., options] by name."""
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
      space, logits: as of `argmax`.
      key: of the draws by the probabilities.
      count: how many at most; there are fewer where too few different ones keep the bounds.
      explore: the share drawn uniformly over the options of each decision, from 0 to 1.
      explore_key: of those; by default made of `key`.
      cost, low, high: from an architecture to one number, traceable, and bounds of it; None for none.
      canonical: from an architecture to the one that stands for all that count as equal.

    Returns:
      At least one and at most `count` architectures, those drawn by the probabilities first.
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


def perturbation(
    space: Space,
    weights: Arch,
    evaluate: Callable[[Arch], Any],
    key: jax.Array,
    *,
    tune: Callable[[Arch], None] | None = None,
) -> tuple[Arch, list[dict[str, Any]]]:
    """Makes decisions one by one, in random order, each for the option whose removal hurts most.

    DARTS-PT (Wang et al., ICLR 2021, section 4). An option is removed by giving it no weight.

    Args:
      space: the search space.
      weights: a soft architecture, float [..., options] by name.
      evaluate: from a batch of soft architectures to scores, float [n]; higher is better. It is called
        once for each decision, with as many rows as the decision has options, and one.
      key: of the order.
      tune: called with the soft architecture after each decision, to train the weights under it.

    Returns:
      The canonical hard architecture, and for each decision, in the order made: the "name" of the choice, the
      "position" in it or None, the option that was "kept", and "drops": the score with all options less that
      without each.
    """
    elements = [
        (name, position)
        for name, choice in space.decisions
        for position in (range(choice.length) if choice.length is not None else [None])
    ]
    soft = {name: np.asarray(weights[name], np.float32).copy() for name in space}
    found = []
    for number, at in enumerate(np.asarray(jax.random.permutation(key, len(elements))).tolist()):
        name, position = elements[at]
        options = space[name].options_at(position or 0)
        place = () if position is None else (position,)
        rows = {key: np.repeat(x[None], len(options) + 1, axis=0) for key, x in soft.items()}
        for option in range(len(options)):
            rows[name][(option + 1, *place)][option] = 0
        drops = falls(evaluate, rows, f"{name!r}{'' if position is None else f' at {position}'}")
        best = int(np.argmax(drops))
        soft[name][place] = np.eye(soft[name].shape[-1], dtype=np.float32)[best]
        found.append({"name": name, "position": position, "kept": options[best], "drops": drops.tolist()})
        if tune is not None and number + 1 < len(elements):
            tune(jax.tree.map(jnp.asarray, soft))
    return space.harden(jax.tree.map(jnp.asarray, soft)), found


def falls(evaluate: Callable[[Arch], Any], rows: Arch, what: str) -> np.ndarray:
    """Returns the score of the first soft architecture less those of the others, float64 [n - 1]."""
    scores = np.asarray(evaluate(jax.tree.map(jnp.asarray, rows)), np.float64)
    if not np.isfinite(scores).all():
        raise ValueError(
            f"The scores of {what} without each option are {scores[1:].tolist()}, with all {scores[0]}; "
            "expected numbers."
        )
    return scores[0] - scores[1:]


def pruning(
    space: Space,
    weights: Arch,
    evaluate: Callable[[Arch], Any],
    *,
    at_once: bool = False,
    tune: Callable[[Arch], None] | None = None,
) -> tuple[Arch, list[dict[str, Any]]]:
    """Keeps the options of the strongest blocks, as many as there are positions.

    Blocks stand side by side, such as the heads of an attention, and any of them may stay (DARTFormer, Brown
    et al., arXiv 2210.00641, section 2).

    Args:
      space: with one decision, repeated, whose positions can be exchanged.
      weights, evaluate, tune: as of `perturbation`, but for rounds: in each there is a row
        for each block that is left, and one.
      at_once: whether all blocks that go are chosen in the first round, and not the weakest one in each.

    Returns:
      The hard architecture, and for each round: the "name" of the decision, its "position", which is None,
      the "blocks" that were there, [position, option] each, "drops", what the removal of each costs, and
      those "removed". Of two blocks that stay at one position the second moves to one that is empty.
    """
    name, choice = next(iter(space.choices.items()))
    if len(space) > 1 or choice.length is None or choice.per_position is not None:
        raise ValueError(
            "pruning takes a space with one decision that is repeated, with the same options everywhere, "
            f"such as the mechanism of each head; got {space}."
        )
    soft = np.asarray(weights[name], np.float32).copy()
    named = {(p, o): [p, option] for p in range(choice.length) for o, option in enumerate(choice.options)}
    blocks, rounds = list(named), []
    while len(blocks) > choice.length:
        rows = np.repeat(soft[None], len(blocks) + 1, axis=0)
        for row, (position, option) in enumerate(blocks, 1):
            rows[row, position, option] = 0
        drops = falls(evaluate, {name: rows}, f"{name!r}")
        count = len(blocks) - choice.length if at_once else 1
        removed = [blocks[i] for i in np.argsort(drops, kind="stable")[:count]]
        found = {"name": name, "position": None, "blocks": [named[block] for block in blocks]}
        rounds.append(found | {"drops": drops.tolist(), "removed": [named[block] for block in removed]})
        for position, option in removed:
            soft[position, option] = 0
        blocks = [block for block in blocks if block not in removed]
        if tune is not None and len(blocks) > choice.length:
            tune({name: jnp.asarray(soft)})
    # Each stays where it is; of two at one position the second goes to one that is empty.
    first = dict(reversed(blocks))
    others = iter(block[1] for block in blocks if first[block[0]] != block[1])
    kept = [first[p] if p in first else next(others) for p in range(choice.length)]
    return space.from_dict({name: [choice.options[option] for option in kept]}), rounds
