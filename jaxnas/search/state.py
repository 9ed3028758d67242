"""What a search knows: one pytree, with the history of evaluated architectures in fixed arrays."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The state of a search. H = evaluations (the capacity), P = batch, L = space.length.

    Attributes:
      key: a typed key, [].
      codes: the evaluated architectures, encoded; -1 in free rows. int32 [H, L]
      scores: their scores; NaN where an evaluation failed, and in free rows. float32 [H], or
        [H, M] of a strategy with M objectives.
      born: the generation of each. int32 [H]
      size: the number of rows in use. int32 []
      generation: the number of generations told. int32 []
      skipped: how many evaluations failed: they are not repeated, and never are parents. int32 []
      valid: the rows of the batch last asked that are to be evaluated. bool [P]
      exhausted: no new feasible architecture was found for some row. bool []
      seeds: codes of some feasible architectures. int32 [S, L]
      memory: what the strategy itself keeps, a pytree; () if nothing.
      pending: how many architectures are being evaluated, asked one at a time: their codes are in the
        rows behind `size`; see `begin_evaluation`. int32 []
    """

    key: jax.Array
    codes: jax.Array
    scores: jax.Array
    born: jax.Array
    size: jax.Array
    generation: jax.Array
    skipped: jax.Array
    valid: jax.Array
    exhausted: jax.Array
    seeds: jax.Array
    memory: Any = ()
    pending: jax.Array | int = 0


def ranking(state: State) -> tuple[jax.Array, jax.Array]:
    """The rows of the history from the best score down, int32 [H], and how many of them count."""
    usable = ~jnp.isnan(state.scores)  # [H]
    order = jnp.lexsort((-jnp.where(usable, state.scores, 0), ~usable))
    return order.astype(jnp.int32), jnp.sum(usable, dtype=jnp.int32)


def next_rows(start: jax.Array, used: jax.Array, beyond: int) -> jax.Array:
    """Consecutive rows from `start` for what is used; the row `beyond` the end for the rest."""
    return jnp.where(used, start + jnp.cumsum(used, dtype=jnp.int32) - 1, beyond)
