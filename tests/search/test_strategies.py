"""Promises that every strategy keeps: one course however it is run, nothing twice, no hang, exact resume."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import scipy.stats
import threadpoolctl
import tiers
from small_searches import SMALL, SPACE, cost, evaluate, params

from jaxnas import search
from jaxnas.search.neighbors import mutate_one, neighbors
from jaxnas.space import Choice, Space


@dataclasses.dataclass(frozen=True)
class Mine(search.Strategy):
    """A strategy of one's own: mutants of the best so far, seven at a time."""

    batch: int = 7

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state):
        key, mutant_key, ask_key = jax.random.split(state.key, 3)
        order, _ = search.ranking(state)
        best = self.space.decode(jnp.maximum(state.codes[order[0]], 0))
        mutants = jax.vmap(lambda k: self.space.mutate(k, best, 0.2))(jax.random.split(mutant_key, 20))
        state = dataclasses.replace(state, key=key)
        quota = jnp.where(state.size > 0, self.batch, 0)
        return search.propose(self, state, ask_key, [(self.space.encode(mutants), quota)])


TRANSFORMER = search.TransformerPolicy(width=8, layers=1, heads=2)
COMMON = dict(space=SPACE, evaluations=60)
AGEING = dict(population=10, sample=4, **COMMON)
STRATEGIES = {
    "random": search.RandomSearch(batch=10, **COMMON),
    "evolution": search.Evolution(population=20, parents=5, mutations=10, crossovers=10, **COMMON),
    "local": search.LocalSearch(**COMMON),
    "ageing": search.RegularizedEvolution(**AGEING),
    "ageing, unique": search.RegularizedEvolution(unique=True, **AGEING),
    "ageing, in parallel": search.RegularizedEvolution(batch=4, **AGEING),
    "reinforce": search.Reinforce(learning_rate=0.3, queue=5, **COMMON),
    "ppo": search.PPO(policy=TRANSFORMER, learning_rate=0.01, **COMMON),
    "nsga2": search.NSGA2(population=20, **COMMON),
    "races": search.Hyperband(fidelities=3, first=9, batch=4, **COMMON),
    "own": Mine(**COMMON),
}
# The published form may evaluate an architecture again.
REPEATING = {"ageing", "ageing, in parallel"}
SEEDS = jax.random.split(jax.random.key(3), 8)
every_strategy = pytest.mark.parametrize(
    "name", tiers.cases(STRATEGIES, ("random", "ageing", "ageing, in parallel"))
)


def evaluation(strategy, scores=evaluate):
    """What a strategy calls: scores, and where it wants them those of a second objective, or seconds."""

    def of_two(archs):
        return jnp.stack([scores(archs), -params(archs).astype(jnp.float32)], axis=1)

    def at(archs, fidelity):
        found = scores(archs)
        return found + 0.1 * jnp.asarray(fidelity, jnp.float32), jnp.ones_like(found)

    return of_two if strategy.objectives else at if strategy.fidelities else scores


@functools.cache
def scanned(name):
    """The last states of eight searches that ran as one program."""
    strategy = STRATEGIES[name]
    return jax.jit(jax.vmap(functools.partial(search.scan, strategy, evaluation(strategy))))(SEEDS)


def check_different(name, state):
    """No architecture is there twice, but for those that were promoted from a lower fidelity."""
    codes = np.asarray(state.codes)
    codes = codes[np.asarray(state.memory.fidelity) == 0] if name == "races" else codes
    assert len(np.unique(codes, axis=0)) == len(codes) or name in REPEATING


@every_strategy
def test_one_program_and_the_host_loop_are_the_same_search_and_nothing_is_evaluated_twice(name, tmp_path):
    strategy, many, path = STRATEGIES[name], scanned(name), tmp_path / "history.jsonl"
    score = evaluation(strategy)

    def run():
        return search.run(strategy, score, SEEDS[1], batched=True, history_path=path)

    result = run()
    np.testing.assert_array_equal(many.codes[1], result.state.codes)
    np.testing.assert_array_equal(many.scores[1], result.state.scores)
    assert result.history[0]["strategy"] == strategy.name and len(result.history) == 60
    # As if killed in the middle of a generation: what is complete is not evaluated again.
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    path.write_text("".join(lines[:35]) + lines[35][:50])
    again = run()
    assert 35 - strategy.batch < again.resumed <= 35 and again.history == result.history
    assert path.read_text() == whole
    # All of the budget is spent, on different canonical architectures.
    assert np.all(np.asarray(many.size) == 60)
    for i in range(len(SEEDS)):
        state = jax.tree.map(lambda x, i=i: x[i], many)
        archs = SPACE.decode(state.codes)
        SPACE.check(archs)
        np.testing.assert_array_equal(SPACE.encode(SPACE.canonical(archs)), state.codes)
        check_different(name, state)


LEARNING = ("ageing", "evolution", "local", "ageing, unique", "ageing, in parallel", "reinforce", "own")


@pytest.mark.parametrize("name", tiers.cases(LEARNING, ("ageing", "evolution")))
def test_learns_more_than_random_search(name):
    """Mean of the scores of the last 20 evaluations."""
    last = {n: np.asarray(scanned(n).scores)[:, -20:].mean() for n in (name, "random")}
    assert last[name] > last["random"] + 0.3, last


@pytest.mark.parametrize("name", tiers.cases([n for n in STRATEGIES if n != "ppo"], ("ageing", "evolution")))
def test_bounds_and_canonical_hold_and_failures_are_skipped_and_counted(name):
    def mirrored(arch):
        """Networks are equal if they agree but for the first operation."""
        return {**arch, "op": arch["op"].at[0].set(0)}

    def sometimes(archs):
        scores = evaluate(archs)
        return jnp.where(scores > 2, jnp.nan, jnp.where(scores < 0.5, jnp.inf, scores))

    bounds = {"params": (10, 40)}
    strategy = dataclasses.replace(STRATEGIES[name], cost=cost, bounds=bounds, canonical=mirrored)
    state = jax.jit(functools.partial(search.scan, strategy, evaluation(strategy, sometimes)))(SEEDS[0])
    archs, scores = SPACE.decode(state.codes), np.asarray(state.scores).reshape(60, -1)[:, 0]
    assert np.all((params(archs) >= 10) & (params(archs) <= 40)) and not np.any(archs["op"][:, 0])
    check_different(name, state)
    assert int(state.skipped) == np.sum(np.isnan(scores)) > 0
    best = np.asarray(strategy.best(state)[1]).reshape(-1, strategy.objectives or 1)[:, 0]
    assert np.all((best >= 0.5) & (best <= 2.2))  # which is 2 at the highest fidelity
    finite = all(np.all(np.isfinite(x)) for x in jax.tree.leaves(state.memory))
    assert finite or name in ("local", "nsga2")


@pytest.mark.parametrize("kind", [search.LocalSearch, *tiers.more(search.Reinforce, search.PPO)])
def test_an_exhausted_space_ends_the_search(kind):
    strategy = kind(space=SMALL, evaluations=100)

    def count(archs):
        return jnp.sum(archs["op"], 1).astype(jnp.float32)

    state = jax.jit(functools.partial(search.scan, strategy, count))(SEEDS[0])
    assert int(state.size) == 27 and bool(strategy.finished(state))
    assert bool(state.exhausted) and strategy.best(state)[1] == 6


def test_an_evaluation_is_traced_by_a_scan_alone():
    """What NumPy draws is drawn anew in each generation of the loop on the host."""
    random = np.random.default_rng(0)

    def noisy(archs):
        return np.float32(random.normal()) + 0 * archs["width"].astype(jnp.float32)

    strategy = search.RandomSearch(SPACE, evaluations=20, batch=1)
    scores = [line["score"] for line in search.run(strategy, noisy, SEEDS[0], batched=True).history]
    assert len(set(scores)) == 20
    frozen = jax.jit(functools.partial(search.scan, strategy, noisy))(SEEDS[0])
    assert len(np.unique(frozen.scores)) == 1


def test_the_tournament_draws_different_ones_uniformly():
    """Of six with scores 0 to 5, the winner of three different ones is 2 in one case of 20, 5 in ten."""
    space = Space(op=Choice(*range(6)))
    strategy = search.RegularizedEvolution(space, evaluations=7, population=6, sample=3)
    state = dataclasses.replace(
        strategy.init(SEEDS[0]),
        codes=jnp.asarray([*range(6), -1], jnp.int32)[:, None],
        scores=jnp.asarray([*range(6), np.nan], jnp.float32),
        size=jnp.int32(6),
    )
    keys = jax.random.split(jax.random.key(0), 8000)
    mutants = np.asarray(jax.jit(strategy._mutants)(keys, state))[:, 0]
    # A mutant is any option but the winner's own.
    expected = 8000 * (1 - np.asarray([0, 0, 1, 3, 6, 10]) / 20) / 5
    assert scipy.stats.chisquare(np.bincount(mutants, minlength=6), expected).pvalue > 1e-3


def test_a_mutation_changes_one_active_decision_and_reaches_every_option():
    code = SPACE.encode(SPACE.from_dict(dict(width=2, depth=4, op=[0, 1, 2, 0])))
    keys = jax.random.split(jax.random.key(0), 6000)
    mutants = np.asarray(jax.jit(jax.vmap(lambda key: mutate_one(SPACE, key, code)))(keys))
    around = {tuple(row) for row in np.asarray(neighbors(SPACE, code)).tolist()} - {tuple(code.tolist())}
    assert {tuple(row) for row in mutants.tolist()} == around
    # Six decisions count, each as often as another, and so does each of a decision's other options.
    widths, depths = (np.bincount(mutants[:, k])[:4] for k in (0, 1))
    both = [*np.delete(widths, code[0]), *np.delete(depths, code[1])]
    expected = [6000 / 6 / 3] * 3 + [6000 / 6 / 2] * 2
    rest = 6000 - sum(both), 6000 - sum(expected)
    assert scipy.stats.chisquare([*both, rest[0]], [*expected, rest[1]]).pvalue > 1e-3


@pytest.mark.more
def test_the_transformer_policy_draws_by_the_probabilities_that_it_is_trained_by():
    """Also where an earlier decision makes others inactive."""
    space = Space(depth=Choice(1, 2), op=Choice("a", "b").repeat(2, active="depth"), last=Choice(0, 1))
    context, random = jnp.zeros((3,)), np.random.default_rng(1)
    params = TRANSFORMER.init(jax.random.key(0), space)
    params = jax.tree.map(lambda x: x + 0.3 * random.normal(size=x.shape).astype(np.float32), params)
    draw = jax.jit(jax.vmap(lambda key: TRANSFORMER.sample(params, space, key, context)))
    drawn = np.asarray(draw(jax.random.split(jax.random.key(2), 20_000)))
    codes, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(codes) == space.cardinality == 12
    told = jax.vmap(lambda code: TRANSFORMER.evaluate(params, space, code, context)[0])(codes)
    expected = np.exp(np.asarray(told, np.float64))
    assert expected.sum() == pytest.approx(1, abs=1e-5)
    assert scipy.stats.chisquare(counts, 20_000 * expected / expected.sum()).pvalue > 1e-3


@pytest.mark.more
def test_a_policy_that_sees_the_budget_goes_on_with_the_same_one_only(tmp_path):
    def searched(policy, evaluations):
        strategy = search.Reinforce(SPACE, policy=policy, evaluations=evaluations)
        path = tmp_path / f"{type(policy).__name__}.jsonl"
        return search.run(strategy, evaluate, SEEDS[0], batched=True, history_path=path)

    searched(search.SoftmaxPolicy(), 20)
    assert searched(search.SoftmaxPolicy(), 30).resumed == 20
    searched(TRANSFORMER, 20)
    refusals.check((lambda: searched(TRANSFORMER, 30), ValueError, "evaluations"))


def test_a_strategy_asks_by_one_thread_of_the_blas_and_evaluations_have_theirs():
    def threads():
        return [one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]

    class Nosy(search.RandomSearch):
        def ask(self, state):
            asking.append(threads())
            return super().ask(state)

    def noted(archs):
        evaluating.append(threads())
        return np.ones(len(archs["op"]), np.float32)

    if not threads():
        pytest.skip("the BLAS here is one whose threads cannot be set")
    asking, evaluating = [], []
    with threadpoolctl.threadpool_limits(2, "blas"):
        search.run(Nosy(SMALL, evaluations=6, batch=3), noted, SEEDS[0], batched=True)
        before = threads()
    assert len(asking) == len(evaluating) == 2
    assert all(set(found) == {1} for found in asking) and all(found == before for found in evaluating)
