"""What the benchmarks of language models share: a batch that looks like text."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def random_batch(rows: int, length: int, vocabulary: int) -> dict[str, jax.Array]:
    """A batch of a training, of random tokens.

    Low numbers come more often, as frequent words do in texts: an adaptive softmax then has what to
    leave out.
    """
    largest = jnp.log(float(vocabulary))
    ranks = jax.random.uniform(jax.random.key(1), (rows, length), maxval=largest)
    tokens = jnp.exp(ranks).astype(jnp.int32) % vocabulary
    return {
        "tokens": tokens,
        "targets": jnp.roll(tokens, -1, axis=1),
        "first": jnp.zeros(rows, bool),
    }
