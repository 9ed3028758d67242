"""Adaptive softmax and embedding: against their formulas, and the choice of cutoffs."""

import functools
import itertools

import flax.linen as nn
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import tiers

from jaxnas.supernets.transformer_xl.adaptive_softmax import AdaptiveVocabulary, choose_cutoffs

VOCABULARY, WIDTH, ROWS = 40, 16, 13
make = functools.partial(AdaptiveVocabulary, VOCABULARY, WIDTH)
MODULES = {
    "chunks in part": make((7, 20), 4, tie_projections=True, chunk=5),
    "one word first and last": make((1, 39), 2, chunk=1),
    "plain": make(),
    "not projected, one chunk": make((7, 20), chunk=100),
}
WORDS, STRANGE = np.random.default_rng(4).permutation(VOCABULARY), np.int32([VOCABULARY, -1, 10**6])
HIDDEN = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, WIDTH)), jnp.float32)
WEIGHTS = np.linspace(-1, 1, ROWS, dtype=np.float32)


def bound(method):
    return lambda module, params, *inputs: module.apply({"params": params}, *inputs, method=method)


scores, all_scores, embed = map(bound, ("log_probability", "log_probabilities", "embed"))


@functools.cache
def parameters(module):
    init = functools.partial(module.init, method="embed")
    shapes = nn.meta.unbox(jax.eval_shape(init, jax.random.key(0), jnp.asarray(STRANGE)))["params"]
    random = np.random.default_rng(0)
    return jax.tree.map(lambda like: np.float32(0.3 * random.normal(size=like.shape)), shapes)


def targets_of(module):
    """Rows of targets: some of each cluster in any order, all in one cluster, and the edges of clusters."""
    random, bounds = np.random.default_rng(3), [0, *module.cutoffs, VOCABULARY]
    edges = [*bounds[:-1], *(bound - 1 for bound in bounds[1:])]
    mixed = [random.permutation(VOCABULARY)[:ROWS] for _ in range(4)]
    for row in mixed:
        row[random.permutation(ROWS)[: len(edges)]] = edges
    alone = [random.integers(*pair, ROWS) for pair in itertools.pairwise(bounds)]
    return np.int32([*mixed, *alone, random.choice(edges, ROWS)])


def with_gradients(module, params, targets):
    def score(params, hidden):
        values = scores(module, params, hidden, targets)
        return jnp.vdot(WEIGHTS, values), values

    return jax.grad(score, (0, 1), has_aux=True)(params, HIDDEN)


def reference(module, params, hidden):
    """Log-probabilities of all words, as the paper writes them."""
    size, tail = len(params["embedding_0"]), range(1, len(module.cutoffs) + 1)
    vectors = [params["embedding_0"], *(params["cluster_vectors"] for _ in tail[:1])]
    biases = [params["bias_0"], *(params["cluster_bias"] for _ in tail[:1])]
    head = jax.nn.log_softmax(hidden @ jnp.concatenate(vectors).T + jnp.concatenate(biases)[None])
    parts = [head[:, :size]]
    for i in tail:
        rows = hidden
        if module.div_value > 1:
            tied = module.tie_projections
            rows = hidden @ (params[f"projection_{i}"].T if tied else params[f"output_projection_{i}"])
        scores = jax.nn.log_softmax(rows @ params[f"embedding_{i}"].T + params[f"bias_{i}"][None])
        parts.append(scores + head[:, size + i - 1 : size + i])
    return jnp.concatenate(parts, axis=1)


@functools.partial(jax.jit, static_argnums=0)
def everything(module, params, rows):
    def expected(targets):
        total = lambda *x: jnp.vdot(WEIGHTS, reference(module, *x)[jnp.arange(ROWS), targets])  # noqa: E731
        return jax.grad(total, (0, 1))(params, HIDDEN)

    strange = jnp.asarray(STRANGE)
    return (
        jax.lax.map(functools.partial(with_gradients, module, params), rows),
        (jax.lax.map(expected, rows), reference(module, params, HIDDEN)),
        all_scores(module, params, HIDDEN),
        embed(module, params, jnp.asarray([*WORDS, *STRANGE], jnp.int32)),
        scores(module, params, HIDDEN[: len(STRANGE)], strange),
    )


@functools.cache
def probe(module):
    return jax.tree.map(np.asarray, everything(module, parameters(module), targets_of(module)))


def assert_close(ours, expected, tolerance=1e-5):
    close = functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    jax.tree.map(close, ours, expected)


CASES = tiers.cases(MODULES.values(), (MODULES["chunks in part"],))


@pytest.mark.parametrize("module", CASES, ids=MODULES)
def test_a_target_is_scored_as_among_all_words_and_every_word_is_embedded(module):
    """As the paper's formula, with all gradients, and word by word in NumPy; what is no word gives NaN."""
    (gradients, values), (expected_gradients, expected), every, embedded, scored = probe(module)
    assert values.dtype == every.dtype == embedded.dtype == jnp.float32
    assert_close(every, expected)
    assert_close(values, every[np.arange(ROWS), targets_of(module)])
    assert_close(gradients, expected_gradients)
    params = parameters(module)
    for found, token in zip(embedded, WORDS, strict=False):
        cluster = sum(token >= cutoff for cutoff in module.cutoffs)
        vector = params[f"embedding_{cluster}"][token - (0, *module.cutoffs)[cluster]]
        if f"projection_{cluster}" in params:
            vector = vector.astype(np.float64) @ params[f"projection_{cluster}"]
        assert_close(found, 4.0 * vector)
    assert np.isnan(embedded[VOCABULARY:]).all() and np.isnan(scored).all()


def test_vmap_is_the_loop_and_bfloat16_near_float32():
    """In bfloat16 are the products only: probabilities are float32. And there may be no rows at all."""
    module = MODULES["chunks in part"]
    params, low = parameters(module), module.copy(dtype=jnp.bfloat16)
    (_, values), _, every, embedded, _ = probe(module)

    @jax.jit
    def run(rows):
        many = jax.vmap(functools.partial(scores, module, params, HIDDEN))(rows)
        half = scores(low, params, HIDDEN.astype(jnp.bfloat16), rows[0])
        # A narrow unsigned type, in which differences of words would wrap around.
        words = jnp.asarray(WORDS, jnp.uint8)
        return many, half, all_scores(low, params, HIDDEN), embed(low, params, words)

    many, half, half_every, half_embedded = run(targets_of(module))
    assert_close(many, values)
    assert half.dtype == half_every.dtype == jnp.float32 and half_embedded.dtype == jnp.bfloat16
    found = half, half_every, np.float32(half_embedded)
    assert_close(found, (values[0], every, embedded[:VOCABULARY]), 0.05)
    nothing = jax.eval_shape(lambda: scores(module, params, HIDDEN[:0], jnp.zeros(0, jnp.int32)))
    assert nothing.shape == (0,)


def test_initial_values_types_and_axes():
    """The same whatever is called first."""
    module = AdaptiveVocabulary(2000, 32, (500,), 2, init_std=0.1)
    key, tokens = jax.random.key(0, impl="unsafe_rbg"), jnp.zeros([1, 1], jnp.int32)
    variables = jax.jit(functools.partial(module.init, method="embed"))(key, tokens)
    other = functools.partial(module.init, method="log_probabilities")
    described = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), variables)
    assert jax.eval_shape(other, key, jnp.zeros([2, 32])) == described
    spec, axes = nn.get_partition_spec(variables)["params"], jax.sharding.PartitionSpec
    assert spec["embedding_1"] == axes("vocabulary", "embed") and spec["bias_1"] == axes("vocabulary")
    assert spec["projection_1"] == axes(None, "embed")
    for name, value in nn.meta.unbox(variables)["params"].items():
        if "bias" in name:
            assert not np.any(value)
        elif value.size > 500:
            assert np.std(value) == pytest.approx(0.1, rel=0.1)


def cost(counts, cutoffs, width, div_value, logit_cost):
    """Of one target, as documented, by going through the words."""
    bounds = [0, *cutoffs, len(counts)]
    total = (bounds[1] + len(cutoffs)) * (width + logit_cost)
    for i in range(1, len(cutoffs) + 1):
        words = range(bounds[i], bounds[i + 1])
        d = width // div_value**i
        each = len(words) * (d + logit_cost) + (width * d if div_value > 1 else 0)
        total += sum(counts[word] for word in words) / sum(counts) * each
    return total


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=9).filter(any),
    clusters=st.integers(0, 3),
    div_value=st.sampled_from([1, 2]),
    logit_cost=st.sampled_from([0, 3.5, 100]),
)
def test_cutoffs_are_the_best_of_all(counts, clusters, div_value, logit_cost):
    hypothesis.assume(clusters < len(counts))
    counts = sorted(counts, reverse=True)
    settings = dict(width=8, div_value=div_value, logit_cost=logit_cost)
    cutoffs = choose_cutoffs(np.asarray(counts), clusters, **settings)
    assert len(cutoffs) == clusters
    every = itertools.combinations(range(1, len(counts)), clusters)
    best = min(cost(counts, cutoffs, **settings) for cutoffs in every)
    assert cost(counts, cutoffs, **settings) == pytest.approx(best)


def test_cutoffs_of_a_large_vocabulary_are_near_the_best():
    counts = 10**6 // np.arange(1, 33_279)
    (cutoff,) = choose_cutoffs(counts, 1, width=128, div_value=2)
    sizes = np.arange(1, 33_278)
    share = 1 - np.cumsum(counts)[:-1] / counts.sum()
    costs = (sizes + 1) * 228 + share * ((33_278 - sizes) * 164 + 128 * 64)
    assert costs[cutoff - 1] < 1.001 * costs.min()
    many = choose_cutoffs(counts, 40, width=128)
    assert len(many) == 40 and list(many) == sorted({*many})


def test_vocabularies_and_counts_that_cannot_be_are_refused():
    def cutoffs(*counts, clusters=1, **settings):
        return choose_cutoffs(np.asarray(counts), clusters, **dict(width=16) | settings)

    refusals.check(
        (lambda: make((20, 7)), ValueError, "cutoffs", "(20, 7)"),
        (lambda: make((0, 7)), ValueError, "cutoffs", "(0, 7)"),
        (lambda: make((7, 40)), ValueError, "cutoffs", "40"),
        (lambda: make((7, 20), 5), ValueError, "cluster 2"),
        (lambda: make(chunk=0), ValueError, "chunk", "0"),
        (lambda: cutoffs(3, 1, 2), ValueError, "counts", "[3 1 2]"),
        (lambda: cutoffs(clusters=0), ValueError, "counts", "[]"),
        (lambda: cutoffs([3, 1], clusters=0), ValueError, "counts", "[[3 1]]"),
        (lambda: cutoffs(0, 0), ValueError, "counts", "[0 0]"),
        (lambda: cutoffs(1, -1), ValueError, "counts", "-1"),
        (lambda: cutoffs(3, 2, clusters=2), ValueError, "clusters", "2"),
        (lambda: cutoffs(3, 2, 1, clusters=2, div_value=5), ValueError, "16 // 5**2"),
    )
