"""Promises that every strategy keeps: one course however it is run, nothing twice, no hang, clear errors."""

import collections
import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxnas import search
from jaxnas.search.bits import random_words
from jaxnas.search.neighbours import mutate_one, neighbours
from jaxnas.search.regularized_evolution import _distinct
from jaxnas.space import Choice, Space

# One worker for all: they share the searches.
pytestmark = pytest.mark.xdist_group("strategies")

SPACE = Space(width=Choice(1, 2, 4, 8), depth=Choice(3, 4, 5), op=Choice(0, 1, 2).repeat(5, active="depth"))
SMALL = Space(op=Choice("a", "b", "c").repeat(3))
TARGET = jnp.asarray([0, 2, 1, 1, 0])


def score(arch):
    """Each position prefers its own operation; wider is a little better."""
    match = SPACE.active(arch)["op"] & (arch["op"] == TARGET)
    return jnp.sum(match).astype(jnp.float32) + 0.1 * arch["width"].astype(jnp.float32)


@jax.jit
def evaluate(archs):
    return jax.vmap(score)(archs)


def cost(arch):
    width = jnp.asarray(SPACE["width"].table)[arch["width"]]
    return {"params": width * (1 + jnp.sum(jnp.where(SPACE.active(arch)["op"], arch["op"] + 1, 0)))}


TRANSFORMER = search.TransformerPolicy(width=8, layers=1, heads=2)
COMMON = dict(space=SPACE, evaluations=60)
STRATEGIES = {
    "random": search.RandomSearch(population=10, **COMMON),
    "local": search.LocalSearch(**COMMON),
    "ageing": search.RegularizedEvolution(population=10, sample=4, **COMMON),
    "ageing, unique": search.RegularizedEvolution(population=10, sample=4, unique=True, **COMMON),
    "ageing, in parallel": search.RegularizedEvolution(population=10, sample=4, batch=4, **COMMON),
    "reinforce": search.Reinforce(learning_rate=0.3, queue=5, **COMMON),
    "ppo": search.PPO(policy=TRANSFORMER, learning_rate=0.01, **COMMON),
}
# The published form may evaluate an architecture again.
REPEATING = {"ageing", "ageing, in parallel"}
every_strategy = pytest.mark.parametrize("name", STRATEGIES)


@functools.cache
def scanned(name):
    """The last states of eight searches that ran as one program."""
    many = jax.vmap(functools.partial(search.scan, STRATEGIES[name], evaluate))
    return jax.jit(many)(SEEDS)


SEEDS = jax.random.split(jax.random.key(3), 8)


@every_strategy
def test_one_program_and_the_host_loop_are_the_same_search(name, tmp_path):
    strategy, key, many = STRATEGIES[name], SEEDS[1], scanned(name)
    # A history file asks for the loop on the host.
    result = search.run(strategy, evaluate, key, history_path=tmp_path / "history.jsonl")
    np.testing.assert_array_equal(many.codes[1], result.state.codes)
    np.testing.assert_array_equal(many.scores[1], result.state.scores)
    again = search.run(strategy, evaluate, key, history_path=tmp_path / "history.jsonl")
    assert again.resumed == 60 and again.history == result.history


def test_run_compiles_what_can_be_traced_and_gives_the_same_history(tmp_path):
    strategy, key = STRATEGIES["random"], SEEDS[0]
    fast = search.run(strategy, evaluate, key)
    slow = search.run(strategy, lambda archs: np.asarray(evaluate(archs)), key)
    assert json.dumps(fast.history) == json.dumps(slow.history)
    assert fast.score == slow.score and fast.resumed == 0


@every_strategy
def test_the_budget_is_spent_on_different_canonical_architectures(name):
    state = scanned(name)
    assert np.all(np.asarray(state.size) == 60)
    for codes in np.asarray(state.codes):
        archs = SPACE.decode(codes)
        assert SPACE.contains(archs)
        np.testing.assert_array_equal(SPACE.encode(SPACE.canonical(archs)), codes)
        if name not in REPEATING:
            assert len(np.unique(codes, axis=0)) == 60


@pytest.mark.parametrize("name", [n for n in STRATEGIES if n != "random"])
def test_learns_more_than_random_search(name):
    """Mean of the scores of the last 20 evaluations."""
    last = {n: np.asarray(scanned(n).scores)[:, -20:].mean() for n in (name, "random")}
    assert last[name] > last["random"] + 0.3, last


@pytest.mark.parametrize("name", ["local", "ageing, unique", "reinforce"])
def test_bounds_and_canonical_hold(name):
    def mirrored(arch):
        """Networks are equal if they agree but for the first operation."""
        return {**arch, "op": arch["op"].at[0].set(0)}

    strategy = dataclasses.replace(
        STRATEGIES[name], cost=cost, bounds={"params": (10, 40)}, canonical=mirrored
    )
    codes = search.run(strategy, evaluate, jax.random.key(0)).state.codes
    archs = SPACE.decode(codes)
    params = np.asarray(jax.vmap(cost)(archs)["params"])
    assert np.all((params >= 10) & (params <= 40))
    assert not np.any(np.asarray(archs["op"])[:, 0])
    assert len(np.unique(codes, axis=0)) == 60


@pytest.mark.parametrize("kind", [search.LocalSearch, search.Reinforce, search.PPO])
def test_an_exhausted_space_ends_the_search(kind):
    strategy = kind(space=SMALL, evaluations=100)
    result = search.run(strategy, lambda a: jnp.sum(a["op"], 1).astype(jnp.float32), SEEDS[0])
    assert len(result.history) == 27 and bool(strategy.finished(result.state))
    assert bool(result.state.exhausted) and result.score == 6


@pytest.mark.parametrize("name", ["local", "ageing", "reinforce"])
def test_failed_evaluations_are_skipped_and_counted(name):
    def sometimes(archs):
        scores = evaluate(archs)
        return jnp.where(scores > 2, jnp.nan, jnp.where(scores < 0.5, jnp.inf, scores))

    strategy = STRATEGIES[name]
    state = jax.jit(functools.partial(search.scan, strategy, sometimes))(SEEDS[0])
    scores = np.asarray(state.scores)
    assert int(state.skipped) == np.sum(np.isnan(scores)) > 0
    assert 0.5 <= strategy.best(state)[1] <= 2
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(state.memory)) or name == "local"


def test_the_tournament_draws_different_ones_uniformly():
    bits = jax.random.bits(jax.random.key(0), (4000, 3), jnp.uint16)
    drawn = np.asarray(jax.vmap(lambda b: _distinct(b, jnp.int32(6)))(bits))
    assert drawn.min() == 0 and drawn.max() == 5
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    counts = collections.Counter(tuple(sorted(row)) for row in drawn.tolist())
    assert len(counts) == 20  # all subsets of 3 of 6, each expected 200 times
    assert sum((n - 200) ** 2 / 200 for n in counts.values()) < 43.8  # chi-squared, p = 0.001


def test_a_mutation_changes_one_active_decision_and_reaches_every_option():
    arch = SPACE.from_dict(dict(width=2, depth=4, op=[0, 1, 2, 0]))
    code = np.asarray(SPACE.encode(arch))
    words = random_words(jax.random.key(0), jnp.int32(0), (500, 2))
    mutants = np.asarray(jax.vmap(lambda pair: mutate_one(SPACE, pair, code))(words))
    around = {tuple(row) for row in np.asarray(neighbours(SPACE, code)).tolist()} - {tuple(code)}
    assert {tuple(row) for row in mutants.tolist()} == around


def test_the_transformer_policy_draws_by_the_probabilities_that_it_is_trained_by():
    """Also where an earlier decision makes others inactive."""
    space = Space(depth=Choice(1, 2), op=Choice("a", "b").repeat(2, active="depth"), last=Choice(0, 1))
    context = jnp.zeros((3,))
    params = TRANSFORMER.init(jax.random.key(0), space)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    params = jax.tree.unflatten(
        tree,
        [leaf + 0.3 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)],
    )
    draw = jax.jit(jax.vmap(lambda key: TRANSFORMER.sample(params, space, key, context)))
    drawn = np.asarray(draw(jax.random.split(jax.random.key(2), 20_000)))
    codes, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(codes) == space.cardinality == 12
    told = jax.vmap(lambda code: TRANSFORMER.evaluate(params, space, code, context)[0])(codes)
    expected = np.exp(np.asarray(told, np.float64))
    assert expected.sum() == pytest.approx(1, abs=1e-5)
    assert scipy.stats.chisquare(counts, 20_000 * expected / expected.sum()).pvalue > 1e-3


def test_a_policy_that_sees_the_budget_goes_on_with_the_same_one_only(tmp_path):
    def searched(policy, evaluations):
        strategy = search.Reinforce(SPACE, policy=policy, evaluations=evaluations)
        path = tmp_path / f"{type(policy).__name__}.jsonl"
        return search.run(strategy, evaluate, SEEDS[0], history_path=path)

    searched(search.SoftmaxPolicy(), 20)
    assert searched(search.SoftmaxPolicy(), 30).resumed == 20
    searched(TRANSFORMER, 20)
    with pytest.raises(ValueError, match="other settings: evaluations"):
        searched(TRANSFORMER, 30)


def test_clear_errors():
    with pytest.raises(ValueError, match="sample is 11, expected 1 to the population of 10"):
        search.RegularizedEvolution(SPACE, population=10, sample=11)
    with pytest.raises(ValueError, match="population is 40000, expected less than 32768"):
        search.RegularizedEvolution(SPACE, population=40_000)
    with pytest.raises(ValueError, match="baseline is 'none', expected 'average' or 'value'"):
        search.Reinforce(SPACE, baseline="none")
    with pytest.raises(ValueError, match="batch is 0"):
        search.LocalSearch(SPACE, batch=0)
    with pytest.raises(ValueError, match="this space reaches"):
        search.run(search.LocalSearch(SPACE, cost, {"params": (None, 1)}), evaluate, SEEDS[0])
    with pytest.raises(ValueError, match="all 60 scores so far are NaN or infinite"):
        search.run(STRATEGIES["ageing"], lambda a: jnp.full(1, jnp.nan), SEEDS[0])
