"""Searches that a predictor guides."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import tiers

from jaxnas import predictors, search
from jaxnas.space import Choice, Space

SPACE = Space(op=Choice("a", "b", "c", "d").repeat(5))  # 1,024 architectures
LARGE = Space(op=Choice(*range(6)).repeat(12))
PROCESS = predictors.GaussianProcess(steps=8)
FEATURES, LARGE_FEATURES = predictors.one_hot(SPACE), predictors.one_hot(LARGE)
KEYS = jax.random.split(jax.random.key(0), 4)


def evaluate(archs):
    """Distance to one architecture, with pairs that matter together."""
    match = (archs["op"] == 2).astype(jnp.float32)
    return jnp.sum(match, axis=1) + match[:, 0] * match[:, 1]


def guided(space=SPACE, features=FEATURES, **settings):
    settings = dict(evaluations=40, predictor=PROCESS, features=features, initial=8) | settings
    return search.PredictorGuided(space, **settings)


@functools.cache
def scanned(strategy):
    return jax.jit(jax.vmap(functools.partial(search.scan, strategy, evaluate)))(KEYS)


@pytest.mark.parametrize("acquisition", tiers.more("expected_improvement", "upper_confidence", "thompson"))
def test_finds_the_best_of_a_listed_space_in_few_evaluations(acquisition):
    state = scanned(guided(acquisition=acquisition))
    # Random search would need 512 on average.
    assert np.all(np.nanmax(state.scores, axis=1) == 6)
    for codes in np.asarray(state.codes):
        assert len(np.unique(codes, axis=0)) == 40


def test_one_program_and_the_host_loop_are_the_same_search(tmp_path):
    strategy = guided(evaluations=16)
    state = jax.jit(functools.partial(search.scan, strategy, evaluate))(KEYS[0])
    result = search.run(strategy, evaluate, KEYS[0], batched=True, history_path=tmp_path / "history.jsonl")
    np.testing.assert_array_equal(state.codes, result.state.codes)


@pytest.mark.parametrize("evaluations", tiers.more(48))
def test_mutants_guide_where_a_space_cannot_be_listed(evaluations):
    strategy = guided(LARGE, LARGE_FEATURES, batch=4, evaluations=evaluations, mutants=64)
    state = jax.jit(functools.partial(search.scan, strategy, evaluate))(KEYS[0])
    scores = np.asarray(state.scores)
    assert scores[-12:].mean() > scores[:8].mean() + 2
    assert len(np.unique(state.codes, axis=0)) == evaluations


def test_only_architectures_of_the_pool_and_within_bounds_are_asked_for():
    pool = SPACE.encode(SPACE.sample(jax.random.key(1), 40))
    strategy = guided(
        pool=search.Pool(np.asarray(pool)),
        cost=lambda arch: {"last": arch["op"][4]},
        bounds={"last": (1, 2)},
        evaluations=50,
        batch=5,
    )
    state = jax.jit(functools.partial(search.scan, strategy, evaluate))(KEYS[0])
    allowed = {tuple(row) for row in np.asarray(pool).tolist() if 1 <= row[4] <= 2}
    asked = np.asarray(state.codes)[: int(state.size)].tolist()
    assert {tuple(row) for row in asked} == allowed and len(asked) == len(allowed)
    assert bool(strategy.finished(state))


def test_failed_evaluations_are_counted_and_are_never_the_best():
    def sometimes(archs):
        scores = evaluate(archs)
        return jnp.where(scores == 1, jnp.nan, scores)

    strategy = guided()
    state = jax.jit(functools.partial(search.scan, strategy, sometimes))(KEYS[0])
    assert int(state.skipped) == np.sum(np.isnan(state.scores)) > 0
    assert strategy.best(state)[1] == 6


def test_a_history_is_recognised_with_features_made_anew(tmp_path):
    """As in another process, where a function is at another place."""
    path, pool = tmp_path / "history.jsonl", np.asarray(SPACE.encode(SPACE.sample(KEYS[0], 100)))

    def searched(pool):
        strategy = guided(features=predictors.one_hot(SPACE), pool=search.Pool(pool), evaluations=10)
        return search.run(strategy, evaluate, KEYS[0], batched=True, history_path=path)

    first = searched(pool)
    again = searched(pool.copy())
    assert again.resumed == 10 and again.score == first.score
    refusals.check((lambda: searched(pool[:50]), ValueError, "pool"))


def test_a_batch_larger_than_the_space_asks_for_all_of_it():
    space = Space(op=Choice("a", "b").repeat(3))
    strategy = guided(space, predictors.one_hot(space), batch=10, initial=2)

    def count(archs):
        return jnp.sum(archs["op"], 1).astype(jnp.float32)

    state = jax.jit(functools.partial(search.scan, strategy, count))(KEYS[0])
    assert int(state.size) == 8 and strategy.best(state)[1] == 3
