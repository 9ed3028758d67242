"""Dominance, fronts, crowding and hypervolume as pymoo has them; NSGA-II finds a known front."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_searches import SPACE, cost, evaluate, params

from jaxnas import search
from jaxnas.search import pareto

N = 24  # One shape for all examples, the rest masked: one compilation.


@pytest.fixture(scope="module")
def pymoo():
    """The parts of pymoo that are compared, imported without their warnings."""
    pytest.importorskip("pymoo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pymoo.indicators.hv import HV
        from pymoo.operators.survival.rank_and_crowding.metrics import get_crowding_function
        from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting
    return HV, get_crowding_function("cd"), NonDominatedSorting


def points(seed, m, ties):
    """Scores [N, M], of few values with many equal ones or of continuous ones; and a mask [N]."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(-3, 3, (N, m)) if ties else rng.normal(size=(N, m))
    return scores.astype(np.float32), rng.random(N) < rng.choice([0.1, 0.5, 0.9, 1.0])


def brute_beats(scores):
    return np.array([[all(a >= b) and any(a > b) for b in scores] for a in scores])


def brute_ranks(beats, valid):
    """Fronts by definition, from who dominates whom, bool [N, N]."""
    rank, left, level = np.full(len(valid), len(valid)), valid.copy(), 0
    while left.any():
        front = left & ~np.any(beats & left[:, None], axis=0)
        rank[front], left[front], level = level, False, level + 1
    return rank


@pytest.mark.parametrize("m", [2, 3])
def test_rank_crowding_and_hypervolume_equal_pymoos(pymoo, m):
    volume, crowding, sorting = pymoo
    close, reference = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), np.full(m, -1.5)
    for seed in range(12):
        scores, valid = points(seed, m, ties=seed % 2)
        valid[0] = True
        expected = volume(ref_point=-reference)(-scores[valid].astype(float))
        close(pareto.hypervolume(scores, reference.astype(np.float32), valid), expected)
        rank = np.asarray(pareto.non_dominated_rank(scores, valid))
        distance = np.asarray(pareto.crowding_distance(scores, rank, valid))
        fronts, expected = sorting().do(-scores[valid].astype(float), return_rank=True)
        np.testing.assert_array_equal(rank[valid], expected)
        assert np.all(rank[~valid] == N) and np.all(distance[~valid] == 0)
        for rows in (np.flatnonzero(valid)[front] for front in fronts):
            close(distance[rows], crowding.do(-scores[rows]))


@given(st.integers(0, 2**31), st.sampled_from([2, 3]), st.booleans())
def test_ranks_are_those_of_the_definition_and_order_and_scale_do_not_matter(seed, m, ties):
    scores, valid = points(seed, m, ties)
    beats, rank = brute_beats(scores), np.asarray(pareto.non_dominated_rank(scores, valid))
    np.testing.assert_array_equal(rank, brute_ranks(beats, valid))
    np.testing.assert_array_equal(pareto.pareto_front(scores, valid), rank == 0)
    np.testing.assert_array_equal(pareto.dominates(jnp.asarray(scores)[:, None], scores[None]), beats)
    rng = np.random.default_rng(seed)
    order, scale = rng.permutation(N), 2.0 ** rng.integers(-3, 4, m).astype(np.float32)
    moved, kept = (scores * scale)[order], valid[order]
    np.testing.assert_array_equal(pareto.non_dominated_rank(moved, kept), rank[order])
    if not ties:  # of equal scores the first row has the lower place
        distance = pareto.crowding_distance(scores, rank, valid)[order]
        np.testing.assert_allclose(pareto.crowding_distance(moved, rank[order], kept), distance, rtol=1e-4)


def test_vmap_nan_and_infinity():
    scores = np.stack([points(seed, 3, True)[0] for seed in range(5)])
    scores[:, 3, 1], scores[:, 4, 0], scores[:, 5, 2] = np.nan, np.inf, -np.inf
    volume = functools.partial(pareto.hypervolume, reference=np.full(3, -3, np.float32))

    def everything(x):
        rank = pareto.non_dominated_rank(x)
        return rank, pareto.crowding_distance(x, rank), pareto.pareto_front(x), volume(x)

    together = jax.jit(jax.vmap(everything))(scores)
    one = jax.jit(everything)
    for i, x in enumerate(scores):
        for a, b in zip(together, one(x), strict=True):
            np.testing.assert_array_equal(a[i], b)
    rank, distance, front, _ = (np.asarray(x) for x in together)
    assert np.all(rank[:, 3] == N) and not front[:, 3].any() and not np.isnan(distance).any()
    assert np.all(rank[:, [0, 1, 2]] < N)


def test_many_points_in_blocks():
    scores = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    front = np.asarray(pareto.pareto_front(scores))
    np.testing.assert_array_equal(front, pareto.non_dominated_rank(scores) == 0)
    assert 1 < front.sum() < 50


# ---- NSGA-II, of which tests/search/test_strategies.py has what all strategies promise.

STRATEGY = search.NSGA2(SPACE, cost, {"params": (4, 40)}, evaluations=200, population=20)


def scores_of(archs):
    return jnp.stack([evaluate(archs), -params(archs).astype(jnp.float32)], axis=1)


def test_nsga2_finds_the_front():
    """With less than a quarter of the space evaluated, nearly all of it; random search less."""
    keys = jax.random.split(jax.random.key(0), 4)
    states = jax.jit(jax.vmap(functools.partial(search.scan, STRATEGY, scores_of)))(keys)
    scores = np.asarray(scores_of(SPACE.enumerate()))
    scores = scores[(scores[:, 1] <= -4) & (scores[:, 1] >= -40)]
    assert 5 < np.sum(~brute_beats(scores).any(0)) < 200 < len(scores) / 4

    def volume(scores):
        return float(pareto.hypervolume(scores, np.asarray([-0.1, -40.1], np.float32)))

    found = np.mean([volume(told) for told in states.scores]) / volume(scores)
    rng = np.random.default_rng(0)
    random = np.mean([volume(rng.permutation(scores)[:200]) for _ in range(8)]) / volume(scores)
    assert found > 0.99 and 1 - found < 0.5 * (1 - random)

    archs, best = STRATEGY.best(jax.tree.map(lambda x: x[0], states))
    np.testing.assert_array_equal(scores_of(archs), best)
    np.testing.assert_array_equal(np.sort(best[:, 0])[::-1], best[:, 0])
    told = np.asarray(states.scores[0])
    expected = told[~brute_beats(told).any(0)]
    assert sorted(map(tuple, expected.tolist())) == sorted(map(tuple, np.asarray(best).tolist()))


def test_the_survivors_are_the_better_half():
    """By front, then by crowding, of the last survivors and their children."""
    state = STRATEGY.init(jax.random.key(5))
    for _ in range(3):
        archs, asked = STRATEGY.ask(state)
        before, state = state, STRATEGY.tell(asked, archs, scores_of(archs))
    rows = np.concatenate([before.memory.rows, np.arange(40, 60)])
    scores = np.asarray(state.scores)[rows]
    rank = np.asarray(pareto.non_dominated_rank(scores))
    crowding = np.asarray(pareto.crowding_distance(scores, rank))
    best = sorted(range(40), key=lambda i: (rank[i], -crowding[i]))[:20]
    np.testing.assert_array_equal(state.memory.rows, rows[best])
    np.testing.assert_array_equal(state.memory.rank, rank[best])
    assert np.all(np.diff(state.memory.rank) >= 0)
