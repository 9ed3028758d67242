"""Selection of the blocks of a mixture that stand side by side, such as the heads of an attention.

DARTFormer (Brown et al., arXiv 2210.00641, section 2): each position of a repeated decision has a block for
each option, and any of all these blocks may stay. As many stay as there are positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxnas.search.perturbation import falls, remove
from jaxnas.space import Arch, Space


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
      weights: a soft architecture, float [positions, options], mostly uniform.
      evaluate: from a batch of soft architectures to scores, float [n]; higher is better. It is called once
        in each round, with a row for each block that is left, and one.
      at_once: whether all blocks that go are chosen in the first round. Otherwise the weakest one goes in
        each round.
      tune: called with the soft architecture after each round but the last, to train the weights under it.
      renormalize: whether the weights of a position keep their sum when a block goes.

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
