"""What a search knows, and the steps that all strategies share: pure functions on a state.

The state is one pytree: the history of evaluated architectures in arrays of fixed capacity, and the
key. Parents are ranked over the whole history, so nothing else has to be kept.
"""

import dataclasses
import functools
import hashlib
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.search import bounds as bounds_lib
from jaxnas.space import Arch, Space

_POOL = 1024  # Candidates made at a time, at most.
_ROUNDS = 20  # Attempts to fill a batch before it counts as exhausted.


class Settings(Protocol):
    """What the shared steps read of a strategy: a frozen, hashable dataclass.

    It may have more: `batch`, how many are asked for at a time (else `population`); `canonical`, a
    function from an architecture to the one that stands for all networks equal to it, as a table of
    cells has, so that no evaluation is spent twice on one network; `objectives`, the number of scores.
    """

    space: Space
    cost: bounds_lib.Cost | None
    bounds: bounds_lib.Bounds
    evaluations: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The state of a search. H = evaluations (the capacity), P = population, L = space.length.

    Attributes:
      key: a typed key, [].
      codes: the evaluated architectures, encoded; -1 in free rows. int32 [H, L]
      scores: their scores; NaN where the evaluation gave NaN, and in free rows. float32 [H], or
        [H, M] of a strategy with M objectives.
      born: the generation of each. int32 [H]
      size: the number of rows in use. int32 []
      generation: the number of generations told. int32 []
      skipped: how many scores were NaN: not evaluated again, and never a parent. int32 []
      valid: the rows of the batch last asked that are to be evaluated. bool [P]
      exhausted: no new feasible architecture was found for some row. bool []
      seeds: codes of some feasible architectures. int32 [S, L]
      memory: what the strategy itself keeps, a pytree; () if nothing.
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


def objectives(settings: Any) -> tuple[int, ...]:
    """Returns the shape of the scores of one architecture: () for one score, (M,) for M."""
    count = getattr(settings, "objectives", None)
    return () if count is None else (count,)


def batch_size(settings: Any) -> int:
    """Returns how many architectures are asked for at a time."""
    return settings.batch if hasattr(settings, "batch") else settings.population


def canonical(settings: Any, codes: jax.Array) -> jax.Array:
    """Returns the codes [n, L] of the architectures that stand for these, canonical in the space."""
    function = getattr(settings, "canonical", None)
    if function is None:
        return codes
    space = settings.space
    return jax.vmap(lambda code: space.encode(function(space.decode(code))))(codes)


def check_settings(settings: Settings) -> None:
    """Checks what strategies share, and stores the bounds in their hashable form."""
    object.__setattr__(settings, "bounds", bounds_lib.normalise(settings.bounds))
    for name in ("evaluations", "population", "batch"):
        if getattr(settings, name, 1) < 1:
            raise ValueError(
                f"{type(settings).__name__}: {name} is {getattr(settings, name)}, expected at least 1."
            )


def init(settings: Settings, key: jax.Array) -> State:
    """Returns the state before the first generation.

    Raises ValueError for bounds that no architecture keeps, with the reachable range.
    """
    seeds = bounds_lib.check_bounds(settings.space, settings.cost, settings.bounds)
    rows, zero = settings.evaluations, jnp.zeros((), jnp.int32)
    return State(
        key=key,
        codes=jnp.full((rows, settings.space.length), -1, jnp.int32),
        scores=jnp.full((rows, *objectives(settings)), jnp.nan, jnp.float32),
        born=jnp.full((rows,), -1, jnp.int32),
        size=zero,
        generation=zero,
        skipped=zero,
        seeds=jnp.asarray(seeds, jnp.int32),
        valid=jnp.zeros((batch_size(settings),), bool),
        exhausted=jnp.zeros((), bool),
    )


def tell(settings: Settings, state: State, archs: Arch, scores: Any) -> State:
    """Returns the state with the scores of the batch last asked; see `RandomSearch.tell`."""
    scores = jnp.asarray(scores)
    expected = (batch_size(settings), *objectives(settings))
    if scores.shape != expected or not jnp.issubdtype(scores.dtype, jnp.floating):
        raise ValueError(
            f"tell: scores are {scores.dtype}{list(scores.shape)}, expected a float "
            f"for each row asked, {list(expected)}; rows where state.valid is False "
            "may hold anything."
        )
    scores, codes = scores.astype(jnp.float32), settings.space.encode(archs)
    if codes.shape[:-1] != expected[:1]:
        raise ValueError(
            f"tell: architectures have batch axes {codes.shape[:-1]}, expected "
            f"{expected[:1]}: pass the batch that ask returned."
        )
    # Infinite scores are failures as NaN is: neither may be the incumbent.
    failed = jnp.any(~jnp.isfinite(scores.reshape(len(scores), -1)), axis=1)
    scores = jnp.where(failed.reshape(-1, *[1] * (scores.ndim - 1)), jnp.nan, scores)
    rows = _rows(state.size, state.valid, settings.evaluations)
    return dataclasses.replace(
        state,
        codes=state.codes.at[rows].set(codes, mode="drop"),
        scores=state.scores.at[rows].set(scores, mode="drop"),
        born=state.born.at[rows].set(state.generation, mode="drop"),
        size=state.size + jnp.sum(state.valid, dtype=jnp.int32),
        generation=state.generation + 1,
        skipped=state.skipped + jnp.sum(state.valid & failed, dtype=jnp.int32),
        valid=jnp.zeros_like(state.valid),
    )


def finished(settings: Settings, state: State) -> jax.Array:
    """Returns whether all is evaluated that was asked for, or that there is; bool []."""
    return (state.size >= settings.evaluations) | (state.exhausted & ~jnp.any(state.valid))


def ranking(state: State) -> tuple[jax.Array, jax.Array]:
    """Returns the rows of the history from the best score down, int32 [H], and how many count."""
    usable = ~jnp.isnan(state.scores)  # [H]
    order = jnp.lexsort((-jnp.where(usable, state.scores, 0), ~usable))
    return order.astype(jnp.int32), jnp.sum(usable, dtype=jnp.int32)


def best(settings: Settings, state: State) -> tuple[Arch, jax.Array]:
    """Returns the architecture with the best score, and the score."""
    order, count = ranking(state)
    if not isinstance(count, jax.core.Tracer) and count == 0:
        raise ValueError(
            f"best: none of {int(state.size)} evaluations gave a number"
            f"{'.' if state.size == 0 else '; all scores are NaN or infinite.'}"
        )
    return settings.space.decode(state.codes[order[0]]), state.scores[order[0]]


# ---- Batches of new architectures.

Group = tuple[jax.Array, Any]  # Candidates, canonical codes int32 [n, L], and how many to take.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """New architectures being collected: codes int32 [P, L], of which the first `count` are set."""

    codes: jax.Array
    count: jax.Array


def _want(settings: Settings, state: State) -> jax.Array:
    """Returns how many architectures the next batch should have, int32 []."""
    left = jnp.int32(settings.evaluations) - state.size
    return jnp.minimum(left, batch_size(settings))


def admit(settings: Settings, state: State, batch: Batch, groups: list[Group]) -> Batch:
    """Adds the candidates that are feasible and new: the first of each group, up to its quota.

    New is what is neither in the history, nor in the batch, nor earlier among the candidates.
    """
    space = settings.space
    codes = canonical(settings, jnp.concatenate([codes for codes, _ in groups]))
    packed, seen = _pack(space, codes), _pack(space, state.codes)
    used = jnp.arange(settings.evaluations) < state.size
    old = _any_equal(packed, seen, used[None, :])
    used = jnp.arange(batch_size(settings)) < batch.count
    old |= _any_equal(packed, _pack(space, batch.codes), used[None, :])
    place = jnp.arange(len(codes))
    old |= _any_equal(packed, packed, place[None, :] < place[:, None])
    new = ~old & bounds_lib.feasible(space, settings.cost, settings.bounds, codes)
    parts = jnp.split(new, np.cumsum([len(codes) for codes, _ in groups])[:-1])
    new = jnp.concatenate(
        [
            part & (jnp.cumsum(part, dtype=jnp.int32) <= quota)
            for part, (_, quota) in zip(parts, groups, strict=True)
        ]
    )
    new &= jnp.cumsum(new, dtype=jnp.int32) <= _want(settings, state) - batch.count
    rows = _rows(batch.count, new, batch_size(settings))
    return Batch(batch.codes.at[rows].set(codes, mode="drop"), batch.count + jnp.sum(new, dtype=jnp.int32))


def _rows(start: jax.Array, used: jax.Array, beyond: int) -> jax.Array:
    """Returns consecutive rows for what is used; a row beyond the end, dropped, for the rest."""
    return jnp.where(used, start + jnp.cumsum(used, dtype=jnp.int32) - 1, beyond)


def _pack(space: Space, codes: jax.Array) -> jax.Array:
    """Returns codes [n, L] in as few int32 as they fit in exactly, [n, W]: quick to compare."""
    words, radix = [], 2**31
    for element, size in enumerate(space.sizes.tolist()):
        if radix * size >= 2**31:
            words.append(jnp.zeros(codes.shape[:1], jnp.int32))
            radix = 1
        words[-1] = words[-1] * size + codes[:, element]
        radix *= size
    return jnp.stack(words, axis=1)


def _any_equal(a: jax.Array, b: jax.Array, used: jax.Array) -> jax.Array:
    """Returns which rows of a [n, W] equal a row of b [m, W] where `used` [1 | n, m]; bool [n]."""
    same = used
    for word in range(a.shape[1]):
        same = same & (a[:, word, None] == b[None, :, word])
    return jnp.any(same, axis=1)


def propose(settings: Settings, state: State, key: jax.Array, groups: list[Group]) -> tuple[Arch, State]:
    """Returns a batch of new feasible architectures, and the state that awaits their scores.

    Args:
      settings, state: of the search.
      key: a typed key.
      groups: candidates of the strategy, each with its quota.

    What the groups leave open is filled at random. What that leaves open is filled by mutants of
    the feasible architectures that are known, since tight bounds refuse nearly all random ones;
    last, in a space small enough to be listed, by any that are left. Rows that stay open are not
    valid and repeat the first row.
    """
    space, full = settings.space, _want(settings, state)

    def attempt(carry):
        key, batch, turn = carry
        key, sample_key, mutant_key = jax.random.split(key, 3)
        batch = admit(
            settings,
            state,
            batch,
            [
                (space.encode(space.sample(sample_key, _pool(settings))), full),
                (_relatives(settings, state, batch, mutant_key), full),
            ],
        )
        return key, batch, turn + 1

    def unfinished(carry):
        return (carry[1].count < full) & (carry[2] < _ROUNDS)

    batch = Batch(jnp.full((batch_size(settings), space.length), -1, jnp.int32), jnp.int32(0))
    # A few random ones are enough for most batches; many are made only where they are not.
    key, first_key = jax.random.split(key)
    few = space.encode(space.sample(first_key, 32 + 2 * batch_size(settings)))
    batch = admit(settings, state, batch, [*groups, (few, full)])
    key, batch, _ = jax.lax.while_loop(unfinished, attempt, (key, batch, jnp.int32(0)))
    codes = listed(settings)
    if codes is not None:
        # A loop of at most one round and not a cond, which under vmap would always be computed. The
        # key is carried, since what doesn't change in a loop is computed before it, always.
        def round_(carry):
            batch, _, key = carry
            key, order_key = jax.random.split(key)
            batch = _complete(state, batch, full, order_key, jnp.asarray(codes))
            return batch, jnp.ones((), bool), key

        batch, *_ = jax.lax.while_loop(
            lambda carry: (carry[0].count < full) & ~carry[1], round_, (batch, jnp.zeros((), bool), key)
        )
    valid = jnp.arange(batch_size(settings)) < batch.count
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

    # One by one: all at once would take memory in every search, for what hardly one of them does.
    taken = jnp.zeros(codes.shape[:1], bool).at[jax.lax.map(row, known)].set(True, mode="drop")
    order = jax.random.permutation(key, len(codes))
    new = ~taken[order]
    new &= jnp.cumsum(new, dtype=jnp.int32) <= full - batch.count
    rows = _rows(batch.count, new, len(batch.codes))
    return Batch(
        batch.codes.at[rows].set(codes[order], mode="drop"), batch.count + jnp.sum(new, dtype=jnp.int32)
    )


def listed(settings: Settings) -> np.ndarray | None:
    """Returns all feasible architectures of a small space, one for each network, int32 [n, L]; or None.

    Of a strategy with a `pool`, those of the pool.
    """
    pool, function = getattr(settings, "pool", None), getattr(settings, "canonical", None)
    return _listed(settings.space, settings.cost, settings.bounds, function, pool)


@functools.lru_cache(maxsize=32)
def _listed(space: Space, cost: Any, bounds: Any, function: Any, pool: Any) -> np.ndarray | None:
    with jax.ensure_compile_time_eval():
        codes = bounds_lib.catalogue(space) if pool is None else np.asarray(pool.codes)
        if codes is None:
            return None
        if function is not None:
            codes = jax.jit(jax.vmap(lambda code: space.encode(function(space.decode(code)))))(codes)
        codes = np.unique(np.asarray(codes), axis=0)
        return codes[np.asarray(bounds_lib.feasible(space, cost, bounds, jnp.asarray(codes)))]


def _relatives(settings: Settings, state: State, batch: Batch, key: jax.Array) -> jax.Array:
    """Returns mutants of feasible architectures: seeds, history and batch; int32 [n, L]."""
    space = settings.space
    pick_key, key = jax.random.split(key)
    known = jnp.concatenate([state.seeds, state.codes, batch.codes])
    used = jnp.concatenate(
        [
            jnp.ones(state.seeds.shape[:1], bool),
            jnp.arange(settings.evaluations) < state.size,
            jnp.arange(batch_size(settings)) < batch.count,
        ]
    )
    # Stable, so that the draw depends on what is known and not on the capacity.
    known = known[jnp.argsort(~used, stable=True)]
    rows = jax.random.randint(pick_key, (_pool(settings),), 0, jnp.sum(used, dtype=jnp.int32))
    rate = min(2 / space.length, 0.5)

    def mutant(key, code):
        return space.encode(space.mutate(key, space.decode(code), rate))

    return jax.vmap(mutant)(jax.random.split(key, len(rows)), known[rows])


def _pool(settings: Settings) -> int:
    return min(_POOL, 128 + 16 * batch_size(settings))


def as_text(settings: Settings, key: jax.Array) -> dict[str, Any]:
    """Returns all that decides the course of a search, but for costs and scores, as plain values.

    The budget is left out: a search may go on with a larger one, unless its strategy plans by it.
    Functions count by their names alone.
    """
    plain: dict[str, Any] = {
        "strategy": type(settings).__name__,
        "key": np.asarray(jax.random.key_data(key)).reshape(-1).tolist(),
    }
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        if field.name not in ("space", "cost", "bounds", "evaluations", "budget", "canonical"):
            plain[field.name] = _plain(getattr(settings, field.name))
    if getattr(settings, "plans_by_budget", False):
        plain["evaluations"] = settings.evaluations
    bounds = {name: [low, high] for name, low, high in settings.bounds}
    return {**plain, "bounds": bounds, "space": settings.space.to_json()}


def _plain(value: Any) -> Any:
    """Returns a value as numbers and text that are the same in every process."""
    if value is None or isinstance(value, int | float | str):
        return value
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return f"{type(value).__name__}({', '.join(f'{k}={_plain(v)!r}' for k, v in fields.items())})"
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    leaves = jax.tree.leaves(value)
    if leaves and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves):
        digest = hashlib.sha256(str(jax.tree.structure(value)).encode())
        for leaf in map(np.asarray, leaves):
            digest.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
        return f"sha256:{digest.hexdigest()[:16]}"
    return repr(value)
