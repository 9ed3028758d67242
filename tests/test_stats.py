"""Rank correlations as SciPy has them; regret by its definition; bootstrap intervals that cover."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from jaxnas import stats

N = 30
DRAWS = given(st.integers(0, 2**31), st.sampled_from([2, 4, 100]))


def pair(seed, values, n=N):
    """Two lists that are related, with many equal values or few."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, values, n)
    y = np.where(rng.random(n) < 0.5, x, rng.integers(0, values, n))
    return x.astype(np.float32), rng.choice([-1, 1]) * y.astype(np.float32)


def varied(x, y):
    return len(np.unique(x)) > 1 and len(np.unique(y)) > 1


@DRAWS
def test_rank_correlations_equal_scipys(seed, values):
    x, y = pair(seed, values)
    np.testing.assert_array_equal(stats.ranks(x), scipy.stats.rankdata(x))
    if varied(x, y):
        tau = stats.kendall_tau(x, y)
        np.testing.assert_allclose(tau, scipy.stats.kendalltau(x, y).statistic, atol=1e-6)
        rho = stats.spearman(x, y)
        np.testing.assert_allclose(rho, scipy.stats.spearmanr(x, y).statistic, atol=2e-6)


@DRAWS
def test_properties_of_rank_correlations(seed, values):
    """Symmetric; blind to a rising function; of opposite sign for a falling one; 1 with itself."""
    x, y = pair(seed, values)
    if not varied(x, y):
        return
    for fn in (stats.kendall_tau, stats.spearman):
        value = float(fn(x, y))
        assert -1 <= value <= 1
        for other in (fn(y, x), fn(np.exp(x / 50), y), -fn(-x, y)):
            np.testing.assert_allclose(other, value, atol=1e-6)
        np.testing.assert_allclose(fn(x, x), 1, atol=1e-6)


@pytest.mark.parametrize("n", [2, 3, 64, 65, 3000])
def test_correlations_of_any_length(n):
    """Whole blocks of pairs and not."""
    x, y = pair(1, 200, n) if n > 3 else (np.arange(n) * 1.0, np.arange(n)[::-1] * 1.0)
    np.testing.assert_allclose(stats.kendall_tau(x, y), scipy.stats.kendalltau(x, y).statistic, atol=1e-6)
    np.testing.assert_allclose(stats.spearman(x, y), scipy.stats.spearmanr(x, y).statistic, atol=2e-6)


def test_memory_of_kendall_tau_is_linear():
    """Nothing of the size of all pairs: 1 GB for a table of 16,000."""
    x = jax.ShapeDtypeStruct((16_000,), jnp.float32)
    memory = stats.kendall_tau.lower(x, x).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 50e6
    with pytest.raises(ValueError, match="at most 46,340"):
        jax.eval_shape(stats.kendall_tau, *[jax.ShapeDtypeStruct((50_000,), jnp.float32)] * 2)


def test_vmap_equals_a_loop():
    xs, ys = np.stack([pair(seed, 6) for seed in range(7)], axis=1)
    for fn in (stats.kendall_tau, stats.spearman, lambda x, y: stats.top_k_regret(x, y, 3)):
        together = jax.jit(jax.vmap(fn))(xs, ys)
        np.testing.assert_allclose(together, [fn(x, y) for x, y in zip(xs, ys, strict=True)], rtol=1e-6)


@pytest.mark.parametrize("fn", [stats.kendall_tau, stats.spearman])
def test_nan_infinity_and_constants(fn):
    x, y = pair(0, 10)
    assert np.isnan(fn(np.full(N, 2.0), y)) and np.isnan(fn(x, np.zeros(N)))
    assert np.isnan(fn(np.where(x == x[3], np.nan, x), y))
    assert np.isnan(stats.ranks(np.where(x == x[3], np.nan, x))).all()
    far = np.where(x == x.max(), np.inf, np.where(x == x.min(), -np.inf, x))
    np.testing.assert_allclose(fn(far, y), fn(x, y), atol=1e-6)
    assert np.isnan(fn(np.ones(1), np.ones(1)))


@DRAWS
def test_top_k_regret(seed, values):
    predicted, true = pair(seed, values)
    for k in (1, 4, N):
        chosen = np.argsort(-predicted, kind="stable")[:k]
        assert float(stats.top_k_regret(predicted, true, k)) == true.max() - true[chosen].max()
    assert float(stats.top_k_regret(predicted, true, N)) == 0


def test_top_k_regret_with_failures():
    predicted = np.asarray([np.nan, 3.0, 2.0, 1.0])
    true = np.asarray([9.0, np.nan, 5.0, 7.0])
    assert [float(stats.top_k_regret(predicted, true, k)) for k in (1, 2, 3, 4)] == [np.inf, 4, 2, 0]
    assert np.isnan(stats.top_k_regret(predicted, np.full(4, np.nan), 2))


@DRAWS
def test_simple_regret(seed, values):
    x = np.stack([pair(seed + i, values)[0] for i in range(3)])
    best = x.max(axis=1)
    regret = np.asarray(stats.simple_regret(x, best))
    np.testing.assert_array_equal(regret, best[:, None] - np.maximum.accumulate(x, axis=1))
    np.testing.assert_array_equal(regret[1], stats.simple_regret(x[1], best[1]))
    assert np.all(np.diff(regret, axis=1) <= 0) and np.all(regret[:, -1] == 0)


def test_simple_regret_with_failures():
    values = np.asarray([np.nan, 1.0, np.nan, 0.0, 3.0])
    assert np.asarray(stats.simple_regret(values, 4.0)).tolist() == [np.inf, 3, 3, 3, 1]


@pytest.mark.parametrize("statistic, theirs", [(jnp.mean, np.mean), (jnp.median, np.median)])
def test_bootstrap_interval_equals_scipys(key, statistic, theirs):
    """To the error of 4,000 resamples."""
    x = np.random.default_rng(0).gamma(2.0, size=60).astype(np.float32)
    for level in (0.8, 0.95):
        ours = stats.bootstrap_interval(key, x, statistic, level, 4000)
        expected = scipy.stats.bootstrap(
            (x,),
            theirs,
            n_resamples=4000,
            confidence_level=level,
            method="percentile",
            rng=np.random.default_rng(1),
        ).confidence_interval
        np.testing.assert_allclose(ours, expected, atol=0.06 * (expected.high - expected.low))


@pytest.mark.slow
def test_bootstrap_interval_covers_under_vmap():
    """19 of 20 intervals of the mean of 50 normal values hold it; the same key, the same ends."""
    keys = jax.random.split(jax.random.key(1), 400)
    x = jax.random.normal(jax.random.key(2), (400, 50))
    low, high = jax.jit(jax.vmap(lambda key, x: stats.bootstrap_interval(key, x, samples=300)))(keys, x)
    assert 0.90 < np.mean((low < 0) & (high > 0)) < 0.98
    np.testing.assert_allclose(low[7], stats.bootstrap_interval(keys[7], x[7], samples=300)[0], rtol=1e-5)


def column_means(x):
    return jnp.mean(x, axis=0)


def test_bootstrap_interval_of_rows(key):
    x = np.random.default_rng(0).normal([0, 5, 9], size=(40, 3))
    low, high = stats.bootstrap_interval(key, x, column_means, samples=200)
    assert low.shape == (3,) and np.all(low < x.mean(0)) and np.all(x.mean(0) < high)
    np.testing.assert_array_equal(stats.bootstrap_interval(key, np.full(5, 2.0), samples=10), [2, 2])
    assert np.isnan(stats.bootstrap_interval(key, np.asarray([1.0, np.nan]), samples=10)).all()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda key: stats.kendall_tau(np.zeros(3), np.zeros(4)), r"kendall_tau: .*\[3\] and \[4\]"),
        (lambda key: stats.spearman(np.zeros((3, 2)), np.zeros((3, 2))), "vmap over more axes"),
        (lambda key: stats.spearman(np.zeros(0), np.zeros(0)), r"expected twice \[n\]"),
        (lambda key: stats.top_k_regret(np.zeros(3), np.zeros(3), 4), "k is 4, expected 1 to n = 3"),
        (lambda key: stats.simple_regret(np.zeros((3, 2)), np.zeros(2)), "the leading axes"),
        (lambda key: stats.bootstrap_interval(key, np.zeros(0)), "n of at least 1"),
        (lambda key: stats.bootstrap_interval(key, np.zeros(3), level=95), "level is 95"),
        (lambda key: stats.bootstrap_interval(key, np.zeros(3), samples=0), "samples is 0"),
    ],
)
def test_clear_errors(key, call, message):
    with pytest.raises(ValueError, match=message):
        call(key)
