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
from jaxnas.search.reinforce import SoftmaxPolicy
from jaxnas.search.strategy import ranking
from jaxnas.space import Choice, Space


@dataclasses.dataclass(frozen=True)
class Mine(search.Strategy):
    """A strategy of one's own: mutants of the best so far, seven at a time."""

    batch: int = 7

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state):
        key, mutant_key, ask_key = jax.random.split(state.key, 3)
        order, _ = ranking(state)
        best = self.space.decode(jnp.maximum(state.codes[order[0]], 0))
        mutants = jax.vmap(lambda k: self.space.mutate(k, best, 0.2))(jax.random.split(mutant_key, 20))
        state = dataclasses.replace(state, key=key)
        quota = jnp.where(state.size > 0, self.batch, 0)
        return search.propose(self, state, ask_key, [(self.space.encode(mutants), quota)])


def mirrored(arch):
    """Networks are equal if they agree but for the first operation."""
    return {**arch, "op": arch["op"].at[0].set(0)}


def failing(archs):
    """A third of all architectures fail, by a NaN or an infinity."""
    wrong = jnp.where(archs["op"][:, 1] == 0, jnp.nan, jnp.inf)
    return jnp.where(archs["op"][:, 2] == 0, wrong, evaluate(archs))


@dataclasses.dataclass(frozen=True)
class OwnPolicy:
    """A policy of one's own, which may look at how much of the budget is spent."""

    init = SoftmaxPolicy().init
    sample = SoftmaxPolicy().sample
    evaluate = SoftmaxPolicy().evaluate


TRANSFORMER = search.TransformerPolicy(width=8, layers=1, heads=2)
COMMON = dict(space=SPACE, cost=cost, bounds={"params": (4, 60)}, evaluations=60, canonical=mirrored)
TIGHT = COMMON | {"bounds": {"params": (4, 8)}}  # the space is exhausted before the budget is spent
AGEING = dict(population=10, sample=4, **COMMON)
STRATEGIES = {
    "random": search.RandomSearch(batch=10, **COMMON),
    "evolution": search.Evolution(population=20, parents=5, mutations=10, crossovers=10, **COMMON),
    "local": search.LocalSearch(**COMMON),
    "ageing": search.RegularizedEvolution(**AGEING),
    "ageing, unique, in parallel": search.RegularizedEvolution(unique=True, batch=4, **AGEING),
    "reinforce": search.Reinforce(policy=OwnPolicy(), learning_rate=0.3, queue=5, **COMMON),
    "ppo": search.PPO(policy=TRANSFORMER, steps_per_batch=2, **TIGHT),
    "nsga2": search.NSGA2(population=20, objectives=3, **TIGHT),
    "races": search.Hyperband(fidelities=3, first=9, batch=4, **COMMON),
    "own": Mine(**COMMON),
}
SEEDS = jax.random.split(jax.random.key(3), 8)


def evaluation(strategy):
    """What a strategy calls: scores, and where it wants them those of more objectives, or seconds."""

    def of_three(archs):
        others = -params(archs).astype(jnp.float32), archs["depth"].astype(jnp.float32)
        return jnp.stack([failing(archs), *others], axis=1)

    def at(archs, fidelity):
        found = failing(archs)
        return found + 0.1 * jnp.asarray(fidelity, jnp.float32), jnp.ones_like(found)

    return of_three if strategy.objectives else at if strategy.fidelities else failing


@functools.cache
def scanned(name):
    """The last states of eight searches that ran as one program."""
    strategy = STRATEGIES[name]
    return jax.jit(jax.vmap(functools.partial(search.scan, strategy, evaluation(strategy))))(SEEDS)


@pytest.fixture(scope="module")
def parameters():
    """The parameters of each network of the space, by its code; equal ones are there once."""
    archs = jax.vmap(mirrored)(SPACE.enumerate())
    codes = np.asarray(SPACE.encode(archs)).tolist()
    return dict(zip(map(tuple, codes), np.asarray(params(archs)).tolist(), strict=True))


@pytest.mark.parametrize("name", tiers.cases(STRATEGIES, ("random", "ageing")))
def test_the_budget_or_the_space_is_used_up_within_bounds_and_nothing_is_evaluated_twice(name, parameters):
    strategy, states = STRATEGIES[name], jax.tree.map(np.asarray, dataclasses.replace(scanned(name), key=()))
    # The published form of regularized evolution evaluates an architecture again.
    repeats = isinstance(strategy, search.RegularizedEvolution) and not strategy.unique
    ((_, low, high),) = strategy.bounds
    networks = {code for code, count in parameters.items() if low <= count <= high}
    size = 60 if repeats else min(60, len(networks))
    assert (size < 60) == (name in ("ppo", "nsga2"))
    assert np.all(states.size == size) and np.all(states.exhausted == (size < 60))
    assert np.all(jax.vmap(strategy.finished)(states))
    scores = states.scores.reshape(len(SEEDS), 60, -1)[:, :size, 0]
    fidelity = states.memory.fidelity[:, :size] if strategy.fidelities else np.zeros_like(scores)
    for codes, level in zip(states.codes[:, :size].tolist(), fidelity, strict=True):
        asked = [tuple(code) for code, at in zip(codes, level, strict=True) if at == 0]  # others are promoted
        assert set(map(tuple, codes)) <= networks and (repeats or len(set(asked)) == len(asked))
    # Failures are counted and never are the best.
    np.testing.assert_array_equal(states.skipped, np.isnan(scores).sum(axis=1))
    assert np.all(states.skipped > 0)
    if isinstance(strategy, search.Reinforce):
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(states.memory))
    _, best = strategy.best(jax.tree.map(lambda x: x[0], states))
    highest = scores[0][fidelity[0] == np.max(fidelity)]
    assert np.max(np.reshape(best, (-1, strategy.objectives or 1))[:, 0]) == np.nanmax(highest)


@pytest.mark.parametrize("name", tiers.cases(("random", "reinforce", "own", "nsga2"), ("random",)))
def test_one_program_and_the_host_loop_are_the_same_search(name, tmp_path):
    """What all others have in common; each has its own file for what differs."""
    strategy, many, path = STRATEGIES[name], scanned(name), tmp_path / "history.jsonl"

    def run(strategy=strategy):
        return search.run(strategy, evaluation(strategy), SEEDS[1], batched=True, history_path=path)

    result = run()
    np.testing.assert_array_equal(many.codes[1], result.state.codes)
    np.testing.assert_array_equal(many.scores[1], result.state.scores)
    assert result.history[0]["strategy"] == strategy.name and len(result.history) == many.size[1]
    # As if killed in the middle of a generation: what is complete is not evaluated again.
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    path.write_text("".join(lines[:35]) + lines[35][:50])
    again = run()
    assert 35 - strategy.batch < again.resumed <= 35 and again.history == result.history
    assert path.read_text() == whole
    assert strategy.plans_by_budget == (name == "reinforce")
    if strategy.plans_by_budget:
        other = dataclasses.replace(strategy, evaluations=70)
        refusals.check((lambda: run(other), ValueError, "evaluations"))
        assert not dataclasses.replace(strategy, policy=SoftmaxPolicy()).plans_by_budget


LEARNING = ("ageing", "evolution", "local", "ageing, unique, in parallel", "reinforce", "own")


@pytest.mark.parametrize("name", tiers.cases(LEARNING, ("ageing",)))
def test_learns_more_than_random_search(name):
    """Mean of the scores of the last 20 evaluations."""
    last = {n: np.nanmean(np.asarray(scanned(n).scores)[:, -20:]) for n in (name, "random")}
    assert last[name] > last["random"] + 0.3, last


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
