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

PROCESS = predictors.GaussianProcess(steps=8)
KEYS = jax.random.split(jax.random.key(0), 4)


def guided(space=OPS, **settings):
    features = predictors.one_hot(space)
    return search.PredictorGuided(space, predictor=PROCESS, **{"features": features, "initial": 8} | settings)


def scan(strategy, evaluate=pairs):
    return jax.jit(functools.partial(search.scan, strategy, evaluate))(KEYS[0])


@pytest.mark.parametrize("acquisition", tiers.more("expected_improvement", "upper_confidence", "thompson"))
def test_finds_the_best_in_few_evaluations_and_keeps_away_from_an_option_that_always_fails(acquisition):
    def evaluate(archs):
        return jnp.where(archs["op"][:, 0] == 3, jnp.nan, pairs(archs))

    strategy = guided(acquisition=acquisition, evaluations=40)
    states = jax.jit(jax.vmap(functools.partial(search.scan, strategy, evaluate)))(KEYS)
    # Random search would need 512 on average.
    assert np.all(np.nanmax(states.scores, axis=1) == 6)
    for codes in np.asarray(states.codes):
        assert len(np.unique(codes, axis=0)) == 40
    # A quarter of all fails: two of the eight at random, and hardly one of the 32 that are chosen; the other
    # acquisitions explore more.
    failed = np.isnan(states.scores)
    assert failed[:, 8:].mean() < 0.05 or acquisition != "expected_improvement"
    np.testing.assert_array_equal(states.skipped, failed.sum(axis=1))


@pytest.mark.more
def test_mutants_guide_where_a_space_cannot_be_listed():
    space = Space(op=Choice(*range(6)).repeat(6))
    state = scan(guided(space, evaluations=28, batch=4, mutants=64))
    scores = np.asarray(state.scores)
    assert scores[-8:].mean() > scores[:8].mean() + 2
    assert len(np.unique(state.codes, axis=0)) == 28


def test_only_architectures_of_the_pool_and_within_bounds_are_asked_for(tmp_path):
    """Also where a batch is larger than what there is, and in another process, that makes new functions."""
    path, pool = tmp_path / "history.jsonl", np.asarray(OPS.encode(OPS.sample(jax.random.key(1), 14)))
    bounded = dict(cost=lambda arch: {"last": arch["op"][4]}, bounds={"last": (1, 2)})
    settings = dict(initial=2, batch=10, evaluations=20)

    def searched(pool):
        strategy = guided(pool=search.Pool(pool), **bounded, **settings)
        return search.run(strategy, pairs, KEYS[0], batched=True, history_path=path)

    first = searched(pool)
    allowed = {tuple(row) for row in pool.tolist() if 1 <= row[4] <= 2}
    asked = np.asarray(first.state.codes)[: int(first.state.size)].tolist()
    assert {tuple(row) for row in asked} == allowed and len(asked) == len(allowed) < 10
    assert bool(first.state.exhausted) and first.score == np.nanmax(np.asarray(first.state.scores))
    one_program = scan(guided(pool=search.Pool(pool), **bounded, **settings))
    np.testing.assert_array_equal(one_program.codes, first.state.codes)
    again = searched(pool.copy())
    assert again.resumed == len(allowed) and again.score == first.score
    refusals.check((lambda: searched(pool[:7]), ValueError, "pool"))
