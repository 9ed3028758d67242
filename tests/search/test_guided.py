"""Searches that a predictor guides."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import tiers
from small_searches import OPS, pairs

from jaxnas import predictors, search
from jaxnas.space import Choice, Space

LARGE = Space(op=Choice(*range(6)).repeat(12))
PROCESS = predictors.GaussianProcess(steps=8)
FEATURES = {space: predictors.one_hot(space) for space in (OPS, LARGE)}
KEYS = jax.random.split(jax.random.key(0), 4)


def guided(space=OPS, **settings):
    settings = dict(evaluations=40, predictor=PROCESS, features=FEATURES.get(space), initial=8) | settings
    return search.PredictorGuided(space, **settings)


def scan(strategy, evaluate=pairs):
    return jax.jit(functools.partial(search.scan, strategy, evaluate))(KEYS[0])


def scans(strategy, evaluate=pairs):
    return jax.jit(jax.vmap(functools.partial(search.scan, strategy, evaluate)))(KEYS)


@pytest.mark.parametrize("acquisition", tiers.more("expected_improvement", "upper_confidence", "thompson"))
def test_finds_the_best_of_a_listed_space_in_few_evaluations(acquisition):
    state = scans(guided(acquisition=acquisition))
    # Random search would need 512 on average.
    assert np.all(np.nanmax(state.scores, axis=1) == 6)
    for codes in np.asarray(state.codes):
        assert len(np.unique(codes, axis=0)) == 40


@pytest.mark.parametrize("evaluations", tiers.more(48))
def test_mutants_guide_where_a_space_cannot_be_listed(evaluations):
    state = scan(guided(LARGE, batch=4, evaluations=evaluations, mutants=64))
    scores = np.asarray(state.scores)
    assert scores[-12:].mean() > scores[:8].mean() + 2
    assert len(np.unique(state.codes, axis=0)) == evaluations


def test_only_architectures_of_the_pool_and_within_bounds_are_asked_for():
    pool = np.asarray(OPS.encode(OPS.sample(jax.random.key(1), 40)))
    bounded = dict(cost=lambda arch: {"last": arch["op"][4]}, bounds={"last": (1, 2)})
    strategy = guided(pool=search.Pool(pool), evaluations=50, batch=5, **bounded)
    state = scan(strategy)
    allowed = {tuple(row) for row in pool.tolist() if 1 <= row[4] <= 2}
    asked = np.asarray(state.codes)[: int(state.size)].tolist()
    assert {tuple(row) for row in asked} == allowed and len(asked) == len(allowed)
    assert bool(strategy.finished(state))


def test_failures_are_counted_and_a_search_keeps_away_from_an_option_that_always_fails():
    def evaluate(archs):
        return jnp.where(archs["op"][:, 0] == 3, jnp.nan, pairs(archs))

    states = scans(guided(), evaluate)
    # A quarter of all fails: two of the eight at random, and hardly one of the 32 that are chosen.
    assert np.isnan(states.scores[:, 8:]).mean() < 0.05
    assert np.all(np.nanmax(states.scores, axis=1) == 6)
    np.testing.assert_array_equal(states.skipped, np.isnan(states.scores).sum(1))


def test_a_history_is_recognized_with_features_made_anew(tmp_path):
    """As in another process, where a function is at another place."""
    path, pool = tmp_path / "history.jsonl", np.asarray(OPS.encode(OPS.sample(KEYS[0], 100)))

    def made(pool):
        return guided(features=predictors.one_hot(OPS), pool=search.Pool(pool), evaluations=16)

    def searched(pool):
        return search.run(made(pool), pairs, KEYS[0], batched=True, history_path=path)

    first = searched(pool)
    # One program is the same search.
    np.testing.assert_array_equal(scan(made(pool)).codes, first.state.codes)
    again = searched(pool.copy())
    assert again.resumed == 16 and again.score == first.score
    refusals.check((lambda: searched(pool[:50]), ValueError, "pool"))


def test_a_batch_larger_than_the_space_asks_for_all_of_it():
    space = Space(op=Choice("a", "b").repeat(3))
    strategy = guided(space, features=predictors.one_hot(space), batch=10, initial=2)
    state = scan(strategy, lambda archs: jnp.sum(archs["op"], 1).astype(jnp.float32))
    assert int(state.size) == 8 and strategy.best(state)[1] == 3
