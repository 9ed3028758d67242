"""Random bits by counter: JAX's own hash, and numbers that are uniform."""

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from scipy import stats

from jaxnas.search.bits import below, random_words, threefry

KEY = jax.random.key(7)


def test_the_hash_is_that_of_jax():
    counters = np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint32)
    a, b = jax.random.key_data(KEY)
    ours = jnp.concatenate(threefry((a, b), (jnp.asarray(counters[:32]), jnp.asarray(counters[32:]))))
    theirs = jax.extend.random.threefry_2x32(jax.random.key_data(KEY), jnp.asarray(counters))
    np.testing.assert_array_equal(ours, theirs)


def test_words_depend_on_the_number_and_not_on_what_else_is_drawn():
    alone = random_words(KEY, jnp.int32(5), (2, 7))
    assert alone.shape == (2, 7) and alone.dtype == jnp.int32
    many = jax.jit(jax.vmap(lambda n: random_words(KEY, n, (2, 7))))(jnp.arange(200))
    np.testing.assert_array_equal(many[5], alone)
    assert not np.array_equal(random_words(jax.random.key(8), jnp.int32(5), (2, 7)), alone)
    # Over two hundred generations no word follows another.
    columns = np.asarray(many).reshape(200, -1)
    assert np.abs(np.corrcoef(columns.T) - np.eye(14)).max() < 0.35


def test_numbers_below_are_uniform():
    words = jax.vmap(lambda n: random_words(KEY, n, (1, 8)))(jnp.arange(5000)).reshape(-1)
    assert 0 <= int(words.min()) and int(words.max()) < 2**16
    for n in (2, 5, 50):
        counts = np.bincount(below(words, n), minlength=n)
        assert len(counts) == n and stats.chisquare(counts).pvalue > 0.001
