"""Selection from a trained supernet by what its options contribute, not by their logits.

Decision by decision, the option is kept whose removal hurts most (Rethinking Architecture Selection in
Differentiable NAS, Wang et al., ICLR 2021, section 4, DARTS-PT). Of blocks that stand side by side, such as
the heads of an attention, as many stay as there are positions, any of all that there are (DARTFormer, Brown
et al., arXiv 2210.00641, section 2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.space import Arch, Space


def perturbation(
    space: Space,
    weights: Arch,
    evaluate: Callable[[Arch], Any],
    key: jax.Array,
    *,
    tune: Callable[[Arch], None] | None = None,
    renormalize: bool = False,
) -> tuple[Arch, list[dict[str, Any]]]:
    """Makes decisions one by one, in random order, each for the option whose removal hurts most.

    An option is removed by giving it no weight, so options may be operations, mechanisms of attention
    (DARTFormer, arXiv 2210.00641, section 2), or sizes.

    Args:
      space: the search space.
      weights: a soft architecture, float [..., options] by name; uniform weights after a training with
        fixed ones, too.
      evaluate: from a batch of soft architectures to scores, float [n]; higher is better. It is called
        once for each decision, with as many rows as the decision has options, and one.
      key: of the order.
      tune: called with the soft architecture after each decision, to train the weights under it.
      renormalize: whether the weights of the other options are scaled to sum to one again, as they do not in
        the authors' code.

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
            remove(rows[name][(option + 1, *place)], option, renormalize)
        drops = falls(evaluate, rows, f"{name!r}{'' if position is None else f' at {position}'}")
        best = int(np.argmax(drops))
        soft[name][place] = np.eye(soft[name].shape[-1], dtype=np.float32)[best]
        found.append({"name": name, "position": position, "kept": options[best], "drops": drops.tolist()})
        if tune is not None and number + 1 < len(elements):
            tune(jax.tree.map(jnp.asarray, soft))
    return space.harden(jax.tree.map(jnp.asarray, soft)), found


def remove(weights: np.ndarray, option: int, renormalize: bool) -> None:
    """Takes the weight of an option from weights [options], in place."""
    whole = weights.sum()
    weights[option] = 0
    if renormalize and weights.sum() > 0:
        weights *= whole / weights.sum()


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
    renormalize: bool = False,
) -> tuple[Arch, list[dict[str, Any]]]:
    """Keeps the options of the strongest blocks, as many as there are positions.

    Args:
      space: with one decision, repeated, whose positions can be exchanged.
      weights, evaluate, tune, renormalize: as of `perturbation`, but for rounds: in each there is a row
        for each block that is left, and one.
      at_once: whether all blocks that go are chosen in the first round, and not the weakest one in each.

    Returns:
      The hard architecture, and for each round: the "name" of the decision, its "position", which is None,
      the "blocks" that were there, [position, option] each, "drops", what the removal of each costs, and
      those "removed". Of two blocks that stay at one position the second moves to one that is empty: there
      the weights of a supernet are those of another block.
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
            remove(rows[row, position], option, renormalize)
        drops = falls(evaluate, {name: rows}, f"{name!r}")
        count = len(blocks) - choice.length if at_once else 1
        removed = [blocks[i] for i in np.argsort(drops, kind="stable")[:count]]
        found = {"name": name, "position": None, "blocks": [named[block] for block in blocks]}
        rounds.append(found | {"drops": drops.tolist(), "removed": [named[block] for block in removed]})
        for position, option in removed:
            remove(soft[position], option, renormalize)
        blocks = [block for block in blocks if block not in removed]
        if tune is not None and len(blocks) > choice.length:
            tune({name: jnp.asarray(soft)})
    # Each stays where it is; of two at one position the second goes to one that is empty.
    first = dict(reversed(blocks))
    others = iter(block[1] for block in blocks if first[block[0]] != block[1])
    kept = [first[p] if p in first else next(others) for p in range(choice.length)]
    return space.from_dict({name: [choice.options[option] for option in kept]}), rounds
