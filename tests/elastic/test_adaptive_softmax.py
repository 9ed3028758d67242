"""Adaptive softmax and embedding: against PyTorch and NumPy, and the choice of cutoffs."""

import functools
import itertools

import flax.linen as nn
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers

from jaxnas.elastic.adaptive_softmax import AdaptiveVocabulary, choose_cutoffs

VOCABULARY, WIDTH, ROWS = 40, 16, 13
make = functools.partial(AdaptiveVocabulary, VOCABULARY, WIDTH)
# What PyTorch's module can hold too.
AS_IN_PYTORCH = {
    "chunks in part": make((7, 20), 4, tie_projections=True, chunk=5),
    "one word first and last": make((1, 39), 2, chunk=1),
}
MODULES = AS_IN_PYTORCH | {"plain": make(), "not projected, one chunk": make((7, 20), chunk=100)}
WORDS, STRANGE = np.random.default_rng(4).permutation(VOCABULARY), np.int32([VOCABULARY, -1, 10**6])
HIDDEN = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, WIDTH)), jnp.float32)
WEIGHTS = np.linspace(-1, 1, ROWS, dtype=np.float32)


def bound(method):
    return lambda module, params, *inputs: module.apply({"params": params}, *inputs, method=method)


scores, all_scores, embed = map(bound, ("log_probability", "log_probabilities", "embed"))


@functools.cache
def parameters(module):
    """Values that are nowhere zero, so that everything counts."""
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


def with_gradients(module, params, targets, hidden=HIDDEN):
    def score(params, hidden):
        values = scores(module, params, hidden, targets)
        return jnp.vdot(WEIGHTS, values), values

    return jax.grad(score, (0, 1), has_aux=True)(params, hidden)


def gradients_of_all(module, params, targets, hidden=HIDDEN):
    """The same gradients, through the probabilities of every word."""
    score = lambda *x: jnp.vdot(WEIGHTS, all_scores(module, *x)[jnp.arange(ROWS), targets])  # noqa: E731
    return jax.grad(score, (0, 1))(params, hidden)


@functools.partial(jax.jit, static_argnums=0)
def everything(module, params, rows):
    """Scores of targets with gradients, of all words and of what is no word, and embeddings: one program."""
    of_all = None
    if module.tie_projections or module.div_value == 1:  # others are compared with PyTorch alone
        of_all = jax.lax.map(functools.partial(gradients_of_all, module, params), rows)
    strange = jnp.asarray(STRANGE)
    return (
        jax.lax.map(functools.partial(with_gradients, module, params), rows),
        of_all,
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


every_module = pytest.mark.parametrize(
    "module", tiers.cases(MODULES.values(), (MODULES["chunks in part"],)), ids=MODULES
)


@every_module
def test_a_target_is_scored_as_among_all_words(module):
    """Whatever the targets and the chunks, the gradients too; and probabilities sum to one."""
    (gradients, values), expected, every, *_ = probe(module)
    assert every.shape == (ROWS, VOCABULARY) and values.dtype == every.dtype == jnp.float32
    assert_close(np.exp(np.float64(every)).sum(axis=1), np.ones(ROWS))
    assert_close(values, every[np.arange(ROWS), targets_of(module)])
    if expected is not None:
        assert_close(gradients, expected)
    if not module.cutoffs:
        logits = np.float64(HIDDEN) @ parameters(module)["embedding_0"].T + parameters(module)["bias_0"]
        assert_close(every, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


@every_module
def test_every_word_is_embedded_and_what_is_no_word_gives_nan(module):
    """Word by word in NumPy; NaN as its embedding and as its score."""
    params, (*_, embedded, scored) = parameters(module), probe(module)
    assert embedded.dtype == jnp.float32
    for found, token in zip(embedded, WORDS, strict=False):
        cluster = sum(token >= cutoff for cutoff in module.cutoffs)
        vector = params[f"embedding_{cluster}"][token - (0, *module.cutoffs)[cluster]]
        if f"projection_{cluster}" in params:
            vector = vector.astype(np.float64) @ params[f"projection_{cluster}"]
        assert_close(found, 4.0 * vector)
    assert np.isnan(embedded[VOCABULARY:]).all() and np.isnan(scored).all()


def test_second_derivatives_are_those_of_all_words():
    module = make((7,), 2, chunk=5)
    targets = jnp.asarray([0, 39, 3, 19, 20, 8, 25, 7, 6, 30, 39, 12, 1], jnp.int32)

    def through(gradients):
        change = lambda *x: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(gradients(*x)))  # noqa: E731
        return jax.grad(change, (0, 1))(parameters(module), HIDDEN)

    run = jax.jit(
        lambda: (
            through(lambda params, hidden: with_gradients(module, params, targets, hidden)[0]),
            through(lambda params, hidden: gradients_of_all(module, params, targets, hidden)),
        )
    )
    ours, expected = run()
    assert max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(expected)) > 1e-2
    assert_close(ours, expected)


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


@pytest.mark.parametrize("module", AS_IN_PYTORCH.values(), ids=AS_IN_PYTORCH)
def test_scores_are_those_of_pytorch(module):
    """And all gradients. PyTorch has no biases within the tail: they are 0 here, and not compared."""
    torch = pytest.importorskip("torch", reason="PyTorch, for comparison, comes with the extra `torch`")
    tail = range(1, len(module.cutoffs) + 1)
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(
        WIDTH, VOCABULARY, list(module.cutoffs), module.div_value, head_bias=True
    ).double()

    def to_torch(value):
        return torch.from_numpy(np.array(value, np.float64))

    def by_their_names(values):
        named = {
            "head.weight": np.concatenate([values["embedding_0"], values["cluster_vectors"]]),
            "head.bias": np.concatenate([values["bias_0"], values["cluster_bias"]]),
        }
        for i in tail:
            tied = module.tie_projections
            projection = values[f"projection_{i}"] if tied else values[f"output_projection_{i}"].T
            named |= {
                f"tail.{i - 1}.0.weight": projection,
                f"tail.{i - 1}.1.weight": values[f"embedding_{i}"],
            }
        return named

    params, rows = parameters(module), targets_of(module)
    params = params | {f"bias_{i}": np.zeros_like(params[f"bias_{i}"]) for i in tail}
    theirs.load_state_dict({name: to_torch(value) for name, value in by_their_names(params).items()})
    found = jax.tree.map(np.asarray, everything(module, params, rows))
    for i in (0, 4, -1):
        (ours, of_hidden), values = jax.tree.map(lambda x, i=i: x[i], found[0])
        hidden = to_torch(HIDDEN).requires_grad_()
        expected = theirs(hidden, torch.from_numpy(np.int64(rows[i]))).output
        theirs.zero_grad()
        (expected * to_torch(WEIGHTS)).sum().backward()
        assert_close(values, expected.detach().numpy())
        assert_close(of_hidden, hidden.grad.numpy())
        grads = {name: 0 if x.grad is None else x.grad.numpy() for name, x in theirs.named_parameters()}
        assert_close(by_their_names(ours), grads)
    assert_close(found[2], theirs.log_prob(to_torch(HIDDEN)).detach().numpy())


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


def test_tied_parameters_learn_from_both_uses():
    """Word vectors and tied projections have gradients of either use, which untied projections have apart."""
    tied, untied = (make((12,), 2, tie_projections=tie) for tie in (True, False))
    tokens = jnp.asarray([0, 3, 39, 8, 21, 7, 3, 19, 20, 6, 30, 0, 12], jnp.int32)
    params = parameters(tied)
    copied = params | {"output_projection_1": params["projection_1"].T}
    assert set(copied) == set(parameters(untied))

    def gradients(module, params):
        """Of the parameters as those of the input, and as those of the output."""

        def loss(of_input, of_output):
            hidden = jnp.tanh(embed(module, of_input, tokens))
            return jnp.mean(scores(module, of_output, hidden, tokens[::-1]))

        return jax.grad(loss, (0, 1))(params, params)

    both = jax.jit(lambda: (gradients(tied, params), gradients(untied, copied)))()
    (read, scored), (apart_read, apart_scored) = jax.tree.map(np.asarray, both)
    assert not np.any(apart_scored.pop("projection_1")) and not np.any(apart_read.pop("output_projection_1"))
    apart_scored["projection_1"] = apart_scored.pop("output_projection_1").T
    for one, other in ((read, apart_read), (scored, apart_scored)):
        assert all(np.any(one[name]) for name in ("embedding_0", "embedding_1", "projection_1"))
        assert_close(one, other)


def test_expected_multiply_accumulates():
    counts = np.repeat([5, 2, 1], [10, 20, 10])  # 50 + 40 + 10 occurrences
    head, embedding = 12 * 16, 16 * 8 + 16 * 4
    expected = head + embedding + 0.4 * (16 * 8 + 20 * 8) + 0.1 * (16 * 4 + 10 * 4)
    assert make((10, 30), 2).expected_macs(counts) == pytest.approx(expected)
    assert make((10, 30), 2).expected_macs(counts / 100) == pytest.approx(expected)
    assert make().expected_macs(counts) == 40 * 16
    assert make((10, 30)).expected_macs(counts) == pytest.approx(head + (0.4 * 20 + 0.1 * 10) * 16)


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
    AdaptiveVocabulary(len(counts), 8, cutoffs, div_value)
    assert len(cutoffs) == clusters
    every = itertools.combinations(range(1, len(counts)), clusters)
    best = min(cost(counts, cutoffs, **settings) for cutoffs in every)
    assert cost(counts, cutoffs, **settings) == pytest.approx(best)


def test_cutoffs_of_a_large_vocabulary_are_near_the_best():
    """Of every single cutoff; with no cost of logits, the expected products' best."""
    counts = 10**6 // np.arange(1, 33_279)
    (cutoff,) = choose_cutoffs(counts, 1, width=128, div_value=2)
    sizes = np.arange(1, 33_278)
    share = 1 - np.cumsum(counts)[:-1] / counts.sum()
    costs = (sizes + 1) * 228 + share * ((33_278 - sizes) * 164 + 128 * 64)
    assert costs[cutoff - 1] < 1.001 * costs.min()

    products = choose_cutoffs(counts, 3, width=128, div_value=2, logit_cost=0)
    others = choose_cutoffs(counts, 3, width=128, div_value=2), tuple(2 * cutoff for cutoff in products)
    macs = {c: AdaptiveVocabulary(33_278, 128, c, 2).expected_macs(counts) for c in (products, *others)}
    assert min(macs, key=macs.get) == products
    many = choose_cutoffs(counts, 40, width=128)
    assert len(many) == 40 and list(many) == sorted({*many})
