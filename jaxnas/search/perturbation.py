"""Selection from a trained supernet by what its options contribute, not by their logits.

Rethinking Architecture Selection in Differentiable NAS (Wang et al., ICLR 2021, section 4, DARTS-PT):
decision by decision, the option is kept whose removal hurts the supernet most.
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
