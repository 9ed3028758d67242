"""A strategy of your own, compared with known ones over many seeds on a table.

    PYTHONPATH=examples jaxnas compare --benchmark=own_table:table --seeds=200 \
        --evaluations=40 --strategies=random,regularized_evolution,own_strategy:marginals --workdir=runs/own

The function of --strategies gets a table and a number of evaluations. This file runs that command itself:

    python examples/own_strategy.py --workdir=runs/own_strategy
"""

import argparse
import dataclasses
import functools
import runpy
import sys

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import search


@dataclasses.dataclass(frozen=True)
class Marginals(search.Strategy):
    """Draws each decision for itself, and moves its probabilities towards the better half of a batch.

    This is the univariate marginal distribution algorithm (Muehlenbein and Paass 1996).
    """

    batch: int = 8
    rate: float = 0.3  # how far the probabilities move

    def init(self, key):
        """The first state: each option is as probable as the others of its decision."""
        sizes = self.space.sizes[:, None]
        allowed = jnp.asarray(np.arange(sizes.max())[None, :] < sizes)  # [length, options]
        return dataclasses.replace(super().init(key), memory=allowed / sizes)

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state):
        """A batch of new architectures, and the next state."""
        key, draw_key, ask_key = jax.random.split(state.key, 3)
        draws = (4 * self.batch, self.space.length)
        codes = jax.random.categorical(draw_key, jnp.log(state.memory), shape=draws).astype(jnp.int32)
        # Of the draws those that are new are asked for, and random ones if there are too few.
        return search.propose(self, dataclasses.replace(state, key=key), ask_key, [(codes, self.batch)])

    @functools.partial(jax.jit, static_argnums=0)
    def tell(self, state, archs, scores):
        """The state that knows the scores of the batch."""
        good = state.valid & (scores >= jnp.nanmedian(jnp.where(state.valid, scores, jnp.nan)))  # [batch]
        options = jax.nn.one_hot(self.space.encode(archs), state.memory.shape[1])  # [batch, length, options]
        share = (options * good[:, None, None]).sum(0) / jnp.maximum(good.sum(), 1)
        moved = jnp.where(state.memory > 0, jnp.maximum(share, 0.02), 0)  # none is given up for good
        memory = (1 - self.rate) * state.memory + self.rate * moved / moved.sum(1, keepdims=True)
        return dataclasses.replace(super().tell(state, archs, scores), memory=memory)


def marginals(table, evaluations):
    """What --strategies names: the strategy for a table and a number of evaluations."""
    return Marginals(table.space, evaluations=evaluations, canonical=table.canonical)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workdir", default="runs/own_strategy")
    flags = ["--benchmark=own_table:table", "--seeds=200", "--evaluations=40"]
    flags += ["--strategies=random,regularized_evolution,own_strategy:marginals"]
    sys.argv[1:] = [*flags, f"--workdir={parser.parse_args().workdir}"]
    runpy.run_module("jaxnas.experiments.compare", run_name="__main__", alter_sys=True)
