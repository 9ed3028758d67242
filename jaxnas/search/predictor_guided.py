"""Search guided by a predictor that is refitted as results arrive (Bayesian optimization)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.checks import check_counts, check_methods, check_numbers
from jaxnas.search.neighbors import mutants
from jaxnas.search.proposals import listed, propose
from jaxnas.search.strategy import Pool, State, Strategy, begin_evaluation, canonical, check_pool, ranking
from jaxnas.space import Arch

ACQUISITIONS = ("expected_improvement", "upper_confidence", "thompson")


@dataclasses.dataclass(frozen=True)
class PredictorGuided(Strategy):
    """Evaluates what a predictor, fitted to all results so far, finds most promising.

    First `initial` random architectures; then, refitting before each choice, that of the largest acquisition
    among the candidates: the whole space where it can be listed (or a given pool), else mutants of the best
    and random ones. Nothing is evaluated twice. A failed evaluation counts as the worst score so far, so that
    its neighborhood is avoided; what is being evaluated meanwhile counts as a score in the middle, so that
    the next one is elsewhere (a constant liar: Ginsbourger et al. 2010). Use as `Strategy`.

    Attributes:
      predictor: with `fit(key, inputs, targets, mask)` and `predict(fitted, inputs)`; see
        `jaxnas.predictors`.
      features: from an architecture to the predictor's inputs, a pytree; traceable.
      acquisition: "expected_improvement" over the predicted means of what was evaluated, "upper_confidence"
        (mean and `confidence` standard deviations) or "thompson" (an independent draw for each candidate).
      initial: random architectures at the start, at least 2; more for other predictors than a Gaussian
        process.
      batch: how many to ask for at a time.
      pool: architectures to choose from, where only these can be evaluated.
      mutants: candidates made at a time, where the space can't be listed.

    Example:
      >>> space = Space(width=Choice(*range(6)).repeat(3))
      >>> process, features = predictors.GaussianProcess(), predictors.one_hot(space)
      >>> strategy = search.PredictorGuided(space, predictor=process, features=features, evaluations=12)
    """

    evaluations: int = 100
    predictor: Any = None
    features: Callable[[Arch], Any] | None = None
    acquisition: str = "expected_improvement"
    confidence: float = 1.0
    initial: int = 3
    batch: int = 1
    pool: Pool | None = None
    mutants: int = 512

    def __post_init__(self):
        super().__post_init__()
        check_methods(self, "predictor", ("fit", "predict"), "predictors.GaussianProcess()")
        if not callable(self.features):
            raise TypeError(
                f"PredictorGuided: features is {self.features!r}, expected a function from an architecture "
                "to the predictor's inputs, such as predictors.one_hot(space)."
            )
        if self.pool is not None:
            check_pool(self.pool, self.space, "PredictorGuided: pool")
        if self.acquisition not in ACQUISITIONS:
            raise ValueError(
                f"PredictorGuided: acquisition is {self.acquisition!r}, expected one "
                f"of {', '.join(ACQUISITIONS)}."
            )
        check_counts(self, "initial", least=2)  # a predictor needs two points
        check_counts(self, "mutants")
        check_numbers(self, "confidence", least=0)

    def init(self, key: jax.Array) -> State:
        """The first state; see `Strategy`. Raises ValueError for features that are NaN or infinite."""
        state = super().init(key)
        every = listed(self)
        if every is None:
            self._check_inputs(state.seeds, jax.vmap(self._inputs)(state.seeds))
            return state
        # Made once: a predictor's inputs may be costly, and are the same for all searches.
        codes = jnp.asarray(every)
        inputs = jax.lax.map(self._inputs, codes, batch_size=256)
        self._check_inputs(codes, inputs)
        taken = jnp.zeros(codes.shape[:1], bool)
        rows = jnp.zeros((self.evaluations,), jnp.int32)
        return dataclasses.replace(state, memory=(codes, inputs, taken, rows))

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """A batch of architectures and the next state; see `Strategy`."""
        if self.batch > 1:
            return self._ask_one_by_one(state)
        key, fit_key, choice_key, ask_key = jax.random.split(state.key, 4)
        state = dataclasses.replace(state, key=key)
        if not state.memory:
            return self._ask_mutants(state, fit_key, choice_key, ask_key)
        codes, inputs, taken, rows = state.memory
        asked = state.size + state.pending
        rows = _places(codes, rows, state)
        targets, known = _targets(state)
        fitted = self.predictor.fit(fit_key, jax.tree.map(lambda x: x[rows], inputs), targets, known)
        value = self._value(fitted, inputs, inputs, rows, ~jnp.isnan(state.scores), choice_key)
        random = jax.random.uniform(ask_key, value.shape)
        value = jnp.where(asked < self.initial, random, value)
        value, chosen = jax.lax.top_k(jnp.where(taken, -jnp.inf, value), 1)
        there, left = value > -jnp.inf, asked < self.evaluations
        valid = there & left
        taken = taken.at[jnp.where(valid, chosen, len(codes))].set(True, mode="drop")
        rows = rows.at[jnp.where(valid, asked, self.evaluations)].set(chosen, mode="drop")
        memory, exhausted = (codes, inputs, taken, rows), left & ~there[0]
        state = dataclasses.replace(state, memory=memory, valid=valid, exhausted=exhausted)
        return self.space.decode(codes[chosen]), state

    def _ask_one_by_one(self, state: State) -> tuple[Arch, State]:
        """A batch, each chosen as if those before it were being evaluated, so that they differ."""
        one = dataclasses.replace(self, batch=1)

        def choose(asked: State, _: None) -> tuple[State, tuple[Arch, jax.Array]]:
            archs, asked = one.ask(asked)
            return begin_evaluation(one, asked, archs), (jax.tree.map(lambda x: x[0], archs), asked.valid[0])

        first = dataclasses.replace(state, valid=jnp.zeros((1,), bool))
        asked, (archs, valid) = jax.lax.scan(choose, first, length=self.batch)
        return archs, dataclasses.replace(asked, codes=state.codes, pending=state.pending, valid=valid)

    def _inputs(self, code: jax.Array) -> Any:
        assert self.features is not None  # checked at the start
        return self.features(self.space.decode(code))

    def _check_inputs(self, codes: jax.Array, inputs: Any) -> None:
        """Checks that the inputs [n, ...] of architectures hold numbers, where they are known."""
        for leaf in jax.tree.leaves(inputs):
            if isinstance(leaf, jax.core.Tracer):
                continue
            wrong = ~np.isfinite(np.asarray(leaf, np.float32)).reshape(len(leaf), -1).all(axis=1)
            if wrong.any():
                arch = self.space.to_dict(self.space.decode(codes[int(np.argmax(wrong))]))
                raise ValueError(
                    f"PredictorGuided: features returns NaN or infinity for {wrong.sum()} of {len(leaf)} "
                    f"architectures, first for {arch}. A predictor needs finite numbers."
                )

    def _value(
        self, fitted: Any, inputs: Any, seen: Any, rows: jax.Array, known: jax.Array, key: jax.Array
    ) -> jax.Array:
        """The acquisition of candidates, float [n]; `seen[rows]` where `known` are evaluated already."""
        mean, std = self.predictor.predict(fitted, inputs)
        if self.acquisition == "upper_confidence":
            return mean + self.confidence * std
        if self.acquisition == "thompson":
            return mean + std * jax.random.normal(key, mean.shape)
        # The best predicted mean and not the best score: scores are noisy.
        old = mean if seen is inputs else self.predictor.predict(fitted, seen)[0]
        best = jnp.max(jnp.where(known, old[rows], -jnp.inf))
        z = (mean - best) / std
        return std * (z * jax.scipy.stats.norm.cdf(z) + jax.scipy.stats.norm.pdf(z))

    def _ask_mutants(
        self, state: State, fit_key: jax.Array, choice_key: jax.Array, ask_key: jax.Array
    ) -> tuple[Arch, State]:
        space = self.space
        mutant_key, random_key = jax.random.split(choice_key)
        value_key = jax.random.fold_in(choice_key, 2)
        order, usable = ranking(state)
        parents = state.codes[order[:10]]
        rows = jnp.arange(self.mutants) % jnp.clip(usable, 1, 10)
        made = mutants(space, mutant_key, parents[rows], min(2 / space.length, 0.5))
        fresh = space.encode(space.sample(random_key, self.mutants // 4))
        candidates = canonical(self, jnp.concatenate([made, fresh]))
        seen = jax.vmap(self._inputs)(jnp.maximum(state.codes, 0))
        targets, known = _targets(state)
        fitted = self.predictor.fit(fit_key, seen, targets, known)
        inputs, rows = jax.vmap(self._inputs)(candidates), jnp.arange(self.evaluations)
        value = self._value(fitted, inputs, seen, rows, ~jnp.isnan(state.scores), value_key)
        best_first = candidates[jnp.argsort(-value)]
        quota = jnp.where(state.size + state.pending < self.initial, 0, self.batch)
        return propose(self, state, ask_key, [(best_first, quota)])


def _targets(state: State) -> tuple[jax.Array, jax.Array]:
    """The target of each row for a predictor, float32 [H], and the rows that count, bool [H]."""
    row, scored = jnp.arange(state.scores.shape[0]), ~jnp.isnan(state.scores)
    worst = jnp.min(jnp.where(scored, state.scores, jnp.inf))
    middle = jnp.nanmedian(jnp.where(row < state.size, state.scores, jnp.nan))
    # Before there is a score all count alike.
    worst, middle = (jnp.where(jnp.any(scored), x, 0.0) for x in (worst, middle))
    unknown = jnp.where(row < state.size, worst, middle)
    return jnp.where(scored, state.scores, unknown), row < state.size + state.pending


def _places(codes: jax.Array, rows: jax.Array, state: State) -> jax.Array:
    """For each architecture of the history, its row among all codes [n, L], int32 [H].

    `rows` is the answer of before, wrong where evaluations have ended in another order than they began.
    """
    asked = jnp.arange(len(rows)) < state.size + state.pending

    def stale(rows: jax.Array) -> jax.Array:
        return jnp.any(asked[:, None] & (codes[rows] != state.codes))

    def found(code: jax.Array) -> jax.Array:
        return jnp.argmax(jnp.all(codes == code[None, :], axis=1)).astype(jnp.int32)

    # A loop of at most one round in place of a cond, both sides of which are computed under vmap.
    def look_up(rows: jax.Array) -> jax.Array:
        return jnp.where(asked, jax.lax.map(found, state.codes), rows)

    return jax.lax.while_loop(stale, look_up, rows)
