"""Batches of new feasible architectures, made of what a strategy suggests and filled up at random."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.search import bounds as bounds_lib
from jaxnas.search.neighbors import mutants
from jaxnas.search.strategy import State, Strategy, canonical, next_rows
from jaxnas.space import Arch, Space

_CANDIDATES = 1024  # Candidates made at a time, at most.
_ROUNDS = 20  # Attempts to fill a batch before it counts as exhausted.

Group = tuple[jax.Array, Any]  # Candidates, canonical codes int32 [n, L], and how many to take.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """New architectures being collected: codes int32 [P, L], of which the first `count` are set."""

    codes: jax.Array
    count: jax.Array

    def add(self, codes: jax.Array, new: jax.Array) -> "Batch":
        """The batch with those of the codes [n, L] that are new, bool [n]."""
        rows = next_rows(self.count, new, len(self.codes))
        count = self.count + jnp.sum(new, dtype=jnp.int32)
        return Batch(self.codes.at[rows].set(codes, mode="drop"), count)


def _want(strategy: Strategy, state: State) -> jax.Array:
    """How many architectures the next batch should have, int32 []."""
    left = jnp.int32(strategy.evaluations) - state.size - state.pending
    return jnp.minimum(left, strategy.batch)


def admit(strategy: Strategy, state: State, batch: Batch, groups: list[Group]) -> Batch:
    """Adds the candidates that are feasible and new: the first of each group, up to its quota.

    A candidate is new if it is neither in the history, nor in the batch, nor earlier in the groups that
    something is taken of.
    """
    space = strategy.space
    codes = canonical(strategy, jnp.concatenate([codes for codes, _ in groups]))
    packed, seen = _pack(space, codes), _pack(space, state.codes)
    used = jnp.arange(strategy.evaluations) < state.size + state.pending
    old = _any_equal(packed, seen, used[None, :])
    used = jnp.arange(strategy.batch) < batch.count
    old |= _any_equal(packed, _pack(space, batch.codes), used[None, :])
    place = jnp.arange(len(codes))
    taken = jnp.concatenate([jnp.full(len(codes), quota > 0) for codes, quota in groups])
    old |= _any_equal(packed, packed, (place[None, :] < place[:, None]) & taken[None, :])
    new = ~old & bounds_lib.feasible(space, strategy.cost, strategy.bounds, codes)
    parts = jnp.split(new, np.cumsum([len(codes) for codes, _ in groups])[:-1])
    quotas = [quota for _, quota in groups]
    new = jnp.concatenate(
        [x & (jnp.cumsum(x, dtype=jnp.int32) <= quota) for x, quota in zip(parts, quotas, strict=True)]
    )
    new &= jnp.cumsum(new, dtype=jnp.int32) <= _want(strategy, state) - batch.count
    return batch.add(codes, new)


def _pack(space: Space, codes: jax.Array) -> jax.Array:
    """Codes [n, L] in as few int32 as they fit in exactly, [n, W], which are quick to compare."""
    words, radix = [], 2**31
    for element, size in enumerate(space.sizes.tolist()):
        if radix * size >= 2**31:
            words.append(jnp.zeros(codes.shape[:1], jnp.int32))
            radix = 1
        words[-1] = words[-1] * size + codes[:, element]
        radix *= size
    return jnp.stack(words, axis=1)


def _any_equal(a: jax.Array, b: jax.Array, used: jax.Array) -> jax.Array:
    """Which rows of a [n, W] equal a row of b [m, W] where `used` [1 | n, m]; bool [n]."""
    same = used
    for word in range(a.shape[1]):
        same = same & (a[:, word, None] == b[None, :, word])
    return jnp.any(same, axis=1)


def propose(strategy: Strategy, state: State, key: jax.Array, groups: list[Group]) -> tuple[Arch, State]:
    """Returns a batch of new feasible architectures, and the state that awaits their scores.

    What the groups, candidates int32 [n, L] and a quota int32 [] each, leave open is filled at random; then
    by mutants of the feasible architectures that are known, since tight bounds refuse nearly all random ones;
    last, in a space small enough to be listed, by any that are left. Rows that stay open are not valid.
    """
    space, full = strategy.space, _want(strategy, state)

    def attempt(carry):
        key, batch, turn = carry
        key, sample_key, mutant_key = jax.random.split(key, 3)
        random = space.encode(space.sample(sample_key, _candidates(strategy)))
        relatives = _relatives(strategy, state, batch, mutant_key)
        return key, admit(strategy, state, batch, [(random, full), (relatives, full)]), turn + 1

    def unfinished(carry):
        return (carry[1].count < full) & (carry[2] < _ROUNDS)

    batch = Batch(jnp.full((strategy.batch, space.length), -1, jnp.int32), jnp.int32(0))
    # A few random ones are enough for most batches; many are made only where they are not.
    key, first_key = jax.random.split(key)
    few = space.encode(space.sample(first_key, 32 + 2 * strategy.batch))
    batch = admit(strategy, state, batch, [*groups, (few, full)])
    key, batch, _ = jax.lax.while_loop(unfinished, attempt, (key, batch, jnp.int32(0)))
    codes = listed(strategy)
    if codes is not None:
        # A loop of at most one round in place of a cond, both sides of which are computed under vmap. The key
        # is in the carry, since what does not change in a loop is computed before it, even for no round.
        def round_(carry):
            batch, _, key = carry
            key, order_key = jax.random.split(key)
            batch = _complete(state, batch, full, order_key, jnp.asarray(codes))
            return batch, jnp.ones((), bool), key

        batch, *_ = jax.lax.while_loop(
            lambda carry: (carry[0].count < full) & ~carry[1], round_, (batch, jnp.zeros((), bool), key)
        )
    valid = jnp.arange(strategy.batch) < batch.count
    first = jnp.where(batch.count > 0, batch.codes[0], state.seeds[0])
    codes = jnp.where(valid[:, None], batch.codes, first[None, :])
    state = dataclasses.replace(state, valid=valid, exhausted=batch.count < full)
    return space.decode(codes), state


def _complete(state: State, batch: Batch, full: jax.Array, key: jax.Array, codes: jax.Array) -> Batch:
    """Fills a batch, in random order, from all architectures [n, L] that are not evaluated yet."""
    known = jnp.concatenate([state.codes, batch.codes])  # free rows are -1, and equal none

    def row(code: jax.Array) -> jax.Array:
        same = jnp.all(codes == code[None, :], axis=1)
        return jnp.where(jnp.any(same), jnp.argmax(same), len(codes))

    # One after another: all at once would take memory in each of many searches, of which few come here.
    taken = jnp.zeros(codes.shape[:1], bool).at[jax.lax.map(row, known)].set(True, mode="drop")
    order = jax.random.permutation(key, len(codes))
    new = ~taken[order]
    new &= jnp.cumsum(new, dtype=jnp.int32) <= full - batch.count
    return batch.add(codes[order], new)


def listed(strategy: Strategy) -> np.ndarray | None:
    """Returns all feasible architectures of the pool or a small space, int32 [n, L]; None of a large one."""
    return _listed(strategy.space, strategy.cost, strategy.bounds, strategy.canonical, strategy.pool)


@functools.lru_cache(maxsize=32)
def _listed(space: Space, cost: Any, bounds: Any, function: Any, pool: Any) -> np.ndarray | None:
    with jax.ensure_compile_time_eval():
        codes = bounds_lib.catalog(space) if pool is None else np.asarray(pool.codes)
        if codes is None:
            return None
        if function is not None:
            codes = jax.jit(jax.vmap(lambda code: space.encode(function(space.decode(code)))))(codes)
        codes = np.unique(np.asarray(codes), axis=0)
        return codes[np.asarray(bounds_lib.feasible(space, cost, bounds, jnp.asarray(codes)))]


def _relatives(strategy: Strategy, state: State, batch: Batch, key: jax.Array) -> jax.Array:
    """Mutants of feasible architectures: of the seeds, the history and the batch; int32 [n, L]."""
    space = strategy.space
    pick_key, key = jax.random.split(key)
    known = jnp.concatenate([state.seeds, state.codes, batch.codes])
    evaluated, added = jnp.arange(strategy.evaluations) < state.size, jnp.arange(strategy.batch) < batch.count
    used = jnp.concatenate([jnp.ones(state.seeds.shape[:1], bool), evaluated, added])
    # Architectures that are known come first, in their order, whatever the capacity of the history is.
    known = known[jnp.argsort(~used, stable=True)]
    rows = jax.random.randint(pick_key, (_candidates(strategy),), 0, jnp.sum(used, dtype=jnp.int32))
    return mutants(space, key, known[rows], min(2 / space.length, 0.5))


def _candidates(strategy: Strategy) -> int:
    return min(_CANDIDATES, 128 + 16 * strategy.batch)
