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

from jaxnas.elastic.adaptive_softmax import AdaptiveVocabulary, choose_cutoffs

VOCABULARY, WIDTH, ROWS = 40, 16, 13
MODULES = {
    "plain": AdaptiveVocabulary(VOCABULARY, WIDTH),
    "not projected": AdaptiveVocabulary(VOCABULARY, WIDTH, (7, 20), chunk=3),
}
# What PyTorch's module can hold too. Each setting is compiled once, for all tests.
AS_IN_PYTORCH = {
    "one row at a time": AdaptiveVocabulary(VOCABULARY, WIDTH, (7, 20, 39), 2, chunk=1),
    "head of one word": AdaptiveVocabulary(VOCABULARY, WIDTH, (1, 39), 2, chunk=4),
    "chunks in part": AdaptiveVocabulary(VOCABULARY, WIDTH, (7, 20), 4, tie_projections=True, chunk=5),
    "one chunk": AdaptiveVocabulary(VOCABULARY, WIDTH, (12,), 4, chunk=100),
}
MODULES |= AS_IN_PYTORCH


@functools.cache
def parameters(module):
    """Values that are nowhere zero, so that everything counts."""
    init = functools.partial(module.init, method="embed")
    shapes = jax.eval_shape(init, jax.random.key(0), jnp.zeros([1, 1], jnp.int32))
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda like: jnp.asarray(0.3 * random.normal(size=like.shape).astype(np.float32)),
        nn.meta.unbox(shapes)["params"],
    )


@functools.cache
def hidden_rows():
    return jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(np.float32))


@functools.partial(jax.jit, static_argnums=0)
def scores(module, params, hidden, targets):
    return module.apply({"params": params}, hidden, targets, method="log_probability")


@functools.partial(jax.jit, static_argnums=0)
def all_scores(module, params, hidden):
    return module.apply({"params": params}, hidden, method="log_probabilities")


@functools.partial(jax.jit, static_argnums=0)
def embed(module, params, tokens):
    return module.apply({"params": params}, tokens, method="embed")


@pytest.mark.parametrize("name", MODULES)
def test_a_token_that_is_not_in_the_vocabulary_gives_nan(name):
    module = MODULES[name]
    params, tokens = parameters(module), jnp.array([0, VOCABULARY - 1, VOCABULARY, -1, 10**6], jnp.int32)
    wrong = [False, False, True, True, True]
    assert np.isnan(embed(module, params, tokens)).all(axis=1).tolist() == wrong
    assert np.isnan(scores(module, params, hidden_rows()[:5], tokens)).tolist() == wrong


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(module, params, hidden, targets, weights):
    """Scores, and the gradients of their weighted sum."""

    def weighted(params, hidden):
        values = scores(module, params, hidden, targets)
        return jnp.vdot(weights, values), values

    gradients, values = jax.grad(weighted, argnums=(0, 1), has_aux=True)(params, hidden)
    return values, gradients


@functools.partial(jax.jit, static_argnums=0)
def with_gradients_of_all(module, params, hidden, targets, weights):
    """The same from the probabilities of every word, which are returned too."""

    def weighted(params, hidden):
        every = all_scores(module, params, hidden)
        return jnp.vdot(weights, every[jnp.arange(ROWS), targets]), every

    gradients, every = jax.grad(weighted, argnums=(0, 1), has_aux=True)(params, hidden)
    return every, gradients


def assert_close(ours, expected, tolerance=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), ours, expected
    )


# Scores


@pytest.mark.more
@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
@hypothesis.settings(max_examples=15)
@hypothesis.given(data=st.data())
def test_a_target_is_scored_as_among_all_words(module, data):
    """Whatever the targets and the chunks, the gradients too; and probabilities sum to one."""
    edges = sorted({0, VOCABULARY - 1, *module.cutoffs, *(cutoff - 1 for cutoff in module.cutoffs)})
    words = st.integers(0, VOCABULARY - 1) | st.sampled_from(edges)
    targets = data.draw(st.lists(words, min_size=ROWS, max_size=ROWS))
    arguments = (
        module,
        parameters(module),
        hidden_rows(),
        jnp.asarray(targets, jnp.int32),
        jnp.linspace(-1, 1, ROWS),
    )
    values, gradients = with_gradients(*arguments)
    every, expected = with_gradients_of_all(*arguments)
    assert every.shape == (ROWS, VOCABULARY) and values.dtype == every.dtype == jnp.float32
    assert_close(np.exp(np.asarray(every, np.float64)).sum(axis=1), np.ones(ROWS))
    assert_close(values, every[np.arange(ROWS), targets])
    assert_close(gradients, expected)


def test_second_derivatives():
    module = AdaptiveVocabulary(VOCABULARY, WIDTH, (7,), 2, chunk=5)
    targets = jnp.asarray([0, 39, 3, 19, 20, 8, 25, 7, 6, 30, 39, 12, 1], jnp.int32)

    def through(loss):
        def change(params, hidden):
            gradients = jax.grad(loss, argnums=(0, 1))(params, hidden)
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(gradients))

        return jax.jit(jax.grad(change, argnums=(0, 1)))(parameters(module), hidden_rows())

    ours = through(lambda p, h: jnp.mean(scores(module, p, h, targets)))
    expected = through(lambda p, h: jnp.mean(all_scores(module, p, h)[jnp.arange(ROWS), targets]))
    assert max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(expected)) > 1e-2
    assert_close(ours, expected)


def test_vmap_and_no_rows():
    module = MODULES["chunks in part"]
    params = parameters(module)
    hidden = jnp.stack([hidden_rows(), -hidden_rows()])
    targets = jnp.asarray(np.random.default_rng(2).integers(0, VOCABULARY, (2, ROWS)), jnp.int32)
    ours = jax.jit(jax.vmap(functools.partial(scores, module, params)))(hidden, targets)
    for values, rows, words in zip(ours, hidden, targets, strict=True):
        every = np.asarray(all_scores(module, params, rows))
        assert_close(values, every[np.arange(ROWS), np.asarray(words)])
    assert scores(module, params, hidden[0, :0], targets[0, :0]).shape == (0,)


def test_products_in_bfloat16():
    """Of the products only: probabilities are float32 and near those of float32 throughout."""
    module = MODULES["chunks in part"]
    params, targets = parameters(module), jnp.arange(ROWS, dtype=jnp.int32) * 3
    low = module.copy(dtype=jnp.bfloat16)
    values = scores(low, params, hidden_rows().astype(jnp.bfloat16), targets)
    every = all_scores(low, params, hidden_rows())
    assert values.dtype == every.dtype == jnp.float32
    assert_close(values, scores(module, params, hidden_rows(), targets), 0.05)
    assert_close(every, all_scores(module, params, hidden_rows()), 0.05)
    tokens = targets.reshape(1, -1)
    embedded = embed(low, params, tokens)
    assert embedded.dtype == jnp.bfloat16
    assert_close(embedded.astype(jnp.float32), embed(module, params, tokens), 0.05)


# Against PyTorch


@pytest.mark.parametrize("module", AS_IN_PYTORCH.values(), ids=AS_IN_PYTORCH)
def test_scores_are_those_of_pytorch(module):
    """And all gradients. PyTorch has no biases within the tail: they are 0 here, and not compared."""
    torch = pytest.importorskip("torch", reason="PyTorch, for comparison, comes with the extra `torch`")
    params, cutoffs = parameters(module), module.cutoffs
    params = params | {f"bias_{i}": jnp.zeros_like(params[f"bias_{i}"]) for i in range(1, len(cutoffs) + 1)}
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(
        WIDTH, VOCABULARY, list(cutoffs), module.div_value, head_bias=True
    ).double()

    def to_torch(value):
        return torch.from_numpy(np.array(value, np.float64))

    def projection(values, i):
        """That of the output, [d, width]."""
        return values[f"projection_{i}"] if module.tie_projections else values[f"output_projection_{i}"].T

    state = {
        "head.weight": np.concatenate([params["embedding_0"], params["cluster_vectors"]]),
        "head.bias": np.concatenate([params["bias_0"], params["cluster_bias"]]),
    }
    for i in range(len(cutoffs)):
        state[f"tail.{i}.0.weight"] = projection(params, i + 1)
        state[f"tail.{i}.1.weight"] = params[f"embedding_{i + 1}"]
    theirs.load_state_dict({name: to_torch(value) for name, value in state.items()})

    targets = np.random.default_rng(3).permutation(VOCABULARY)[:ROWS]
    targets[:4] = 0, 39, 38, 39  # so that each cluster has some
    weights = np.linspace(-1, 1, ROWS)
    hidden = to_torch(hidden_rows()).requires_grad_()
    expected = theirs(hidden, torch.from_numpy(targets)).output
    (expected * torch.from_numpy(weights)).sum().backward()

    values, (ours, grad_hidden) = with_gradients(
        module, params, hidden_rows(), jnp.asarray(targets, jnp.int32), jnp.asarray(weights, jnp.float32)
    )
    assert_close(values, expected.detach().numpy())
    assert_close(all_scores(module, params, hidden_rows()), theirs.log_prob(hidden).detach().numpy())
    assert_close(grad_hidden, hidden.grad.numpy())
    grads = {name: value.grad.numpy() for name, value in theirs.named_parameters()}
    assert set(grads) == set(state)
    head = cutoffs[0]
    assert_close(ours["embedding_0"], grads["head.weight"][:head])
    assert_close(ours["cluster_vectors"], grads["head.weight"][head:])
    assert_close(ours["bias_0"], grads["head.bias"][:head])
    assert_close(ours["cluster_bias"], grads["head.bias"][head:])
    for i in range(len(cutoffs)):
        assert_close(projection(ours, i + 1), grads[f"tail.{i}.0.weight"])
        assert_close(ours[f"embedding_{i + 1}"], grads[f"tail.{i}.1.weight"])


def test_without_cutoffs_it_is_pytorchs_log_softmax():
    torch = pytest.importorskip("torch", reason="PyTorch, for comparison, comes with the extra `torch`")
    params = parameters(MODULES["plain"])
    hidden, table, bias = (
        torch.from_numpy(np.array(value))
        for value in (hidden_rows(), params["embedding_0"], params["bias_0"])
    )
    expected = torch.log_softmax(hidden @ table.T + bias, dim=1).numpy()
    assert_close(all_scores(MODULES["plain"], params, hidden_rows()), expected)
    targets = jnp.arange(ROWS, dtype=jnp.int32) * 3
    ours = scores(MODULES["plain"], params, hidden_rows(), targets)
    assert_close(ours, expected[np.arange(ROWS), np.asarray(targets)])


# Embedding


@pytest.mark.parametrize("name", ["plain", "not projected", "chunks in part", "head of one word"])
def test_embedding(name):
    """Word by word in NumPy; every word of the vocabulary."""
    module = MODULES[name]
    params = jax.tree.map(np.asarray, parameters(module))
    tokens = np.random.default_rng(4).permutation(VOCABULARY).reshape(4, 10)
    expected = np.zeros([4, 10, WIDTH])
    for at, token in np.ndenumerate(tokens):
        cluster = sum(token >= cutoff for cutoff in module.cutoffs)
        vector = params[f"embedding_{cluster}"][token - (0, *module.cutoffs)[cluster]]
        if f"projection_{cluster}" in params:
            vector = vector.astype(np.float64) @ params[f"projection_{cluster}"]
        expected[at] = 4.0 * vector
    ours = embed(module, params, jnp.asarray(tokens, jnp.int32))
    assert ours.dtype == jnp.float32
    assert_close(ours, expected)
    # A narrow unsigned type, in which differences of words would wrap around.
    assert_close(embed(module, params, jnp.asarray(tokens, jnp.uint8)), expected)


# Parameters


@pytest.mark.parametrize(
    "kwargs, expected",
    [
        ({}, dict(embedding_0=(40, 16), bias_0=(40,))),
        (
            dict(cutoffs=(7, 20)),
            dict(
                embedding_0=(7, 16),
                embedding_1=(13, 16),
                embedding_2=(20, 16),
                cluster_vectors=(2, 16),
                bias_0=(7,),
                bias_1=(13,),
                bias_2=(20,),
                cluster_bias=(2,),
            ),
        ),
        (
            dict(cutoffs=(7, 20), div_value=4),
            dict(
                embedding_0=(7, 16),
                embedding_1=(13, 4),
                embedding_2=(20, 1),
                cluster_vectors=(2, 16),
                projection_1=(4, 16),
                projection_2=(1, 16),
                output_projection_1=(16, 4),
                output_projection_2=(16, 1),
                bias_0=(7,),
                bias_1=(13,),
                bias_2=(20,),
                cluster_bias=(2,),
            ),
        ),
        (
            dict(cutoffs=(7,), div_value=4, tie_projections=True),
            dict(
                embedding_0=(7, 16),
                embedding_1=(33, 4),
                cluster_vectors=(1, 16),
                projection_1=(4, 16),
                bias_0=(7,),
                bias_1=(33,),
                cluster_bias=(1,),
            ),
        ),
    ],
)
def test_parameters(kwargs, expected):
    """Names and shapes, all float32, whatever is called first."""
    module = AdaptiveVocabulary(VOCABULARY, WIDTH, **kwargs)
    for method, argument in dict(
        embed=jnp.zeros([2, 3], jnp.int32), log_probabilities=jnp.zeros([2, WIDTH])
    ).items():
        init = functools.partial(module.init, method=method)
        shapes = nn.meta.unbox(jax.eval_shape(init, jax.random.key(0), argument))["params"]
        assert {name: leaf.shape for name, leaf in shapes.items()} == expected
        assert {leaf.dtype for leaf in shapes.values()} == {jnp.dtype(jnp.float32)}


def test_initial_values_and_axes():
    module = AdaptiveVocabulary(2000, 32, (500,), 2, init_std=0.1)
    init = jax.jit(functools.partial(module.init, method="embed"))
    variables = init(jax.random.key(0), jnp.zeros([1, 1], jnp.int32))
    spec = nn.get_partition_spec(variables)["params"]
    assert spec["embedding_1"] == jax.sharding.PartitionSpec("vocabulary", "embed")
    assert spec["bias_1"] == jax.sharding.PartitionSpec("vocabulary")
    assert spec["projection_1"] == jax.sharding.PartitionSpec(None, "embed")
    for name, value in nn.meta.unbox(variables)["params"].items():
        if "bias" in name:
            assert not value.any()
        elif value.size > 500:
            assert np.std(value) == pytest.approx(0.1, rel=0.1)


def test_tied_parameters_learn_from_both_uses():
    """Word vectors and tied projections have gradients of either use, which untied projections have apart."""
    settings = dict(vocabulary=VOCABULARY, width=WIDTH, cutoffs=(12,), div_value=2)
    tied = AdaptiveVocabulary(**settings, tie_projections=True)
    untied = AdaptiveVocabulary(**settings)
    tokens = jnp.asarray([0, 3, 39, 8, 21, 7, 3, 19, 20, 6, 30, 0, 12], jnp.int32)

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(module, params):
        """Of the parameters as those of the input, and as those of the output."""

        def loss(of_input, of_output):
            hidden = jnp.tanh(embed(module, of_input, tokens))
            return jnp.mean(scores(module, of_output, hidden, tokens[::-1]))

        return jax.grad(loss, argnums=(0, 1))(params, params)

    params = parameters(tied)
    copied = params | {"output_projection_1": params["projection_1"].T}
    assert set(copied) == set(parameters(untied))
    read, scored = gradients(tied, params)
    apart_read, apart_scored = gradients(untied, copied)
    for name in ("embedding_0", "embedding_1"):
        for one, other in ((read, apart_read), (scored, apart_scored)):
            assert jnp.any(one[name])
            assert_close(one[name], other[name])
    assert jnp.any(read["projection_1"]) and jnp.any(scored["projection_1"])
    assert_close(read["projection_1"], apart_read["projection_1"])
    assert_close(scored["projection_1"], apart_scored["output_projection_1"].T)
    assert not jnp.any(apart_scored["projection_1"]) and not jnp.any(apart_read["output_projection_1"])


# Expected cost and cutoffs


def test_expected_multiply_accumulates():
    counts = np.repeat([5, 2, 1], [10, 20, 10])  # 50 + 40 + 10 occurrences
    tied = AdaptiveVocabulary(40, 16, (10, 30), 2)
    head, embedding = 12 * 16, 16 * 8 + 16 * 4
    first, second = 16 * 8 + 20 * 8, 16 * 4 + 10 * 4
    expected = head + embedding + 0.4 * first + 0.1 * second
    assert tied.expected_macs(counts) == pytest.approx(expected)
    assert tied.expected_macs(counts / 100) == pytest.approx(expected)
    assert AdaptiveVocabulary(40, 16).expected_macs(counts) == 40 * 16
    equally_wide = AdaptiveVocabulary(40, 16, (10, 30))
    assert equally_wide.expected_macs(counts) == pytest.approx(head + (0.4 * 20 + 0.1 * 10) * 16)


def cost(counts, cutoffs, width, div_value, logit_cost):
    """Of one target, as documented, by going through the words."""
    bounds = [0, *cutoffs, len(counts)]
    total = (bounds[1] + len(cutoffs)) * (width + logit_cost)
    for i in range(1, len(cutoffs) + 1):
        words = range(bounds[i], bounds[i + 1])
        d = width // div_value**i
        each = len(words) * (d + logit_cost) + (width * d if div_value > 1 else 0)
        share = sum(counts[word] for word in words) / sum(counts)
        total += share * each
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
    every = itertools.combinations(range(1, len(counts)), clusters)
    assert len(cutoffs) == clusters
    assert cost(counts, cutoffs, **settings) == pytest.approx(
        min(cost(counts, cutoffs, **settings) for cutoffs in every)
    )


def test_cutoffs_of_a_large_vocabulary():
    """Near the best of every single cutoff; with no cost of logits, the expected products' best."""
    counts = 10**6 // np.arange(1, 33_279)
    (cutoff,) = choose_cutoffs(counts, 1, width=128, div_value=2)
    sizes = np.arange(1, 33_278)
    share = 1 - np.cumsum(counts)[:-1] / counts.sum()
    costs = (sizes + 1) * 228 + share * ((33_278 - sizes) * 164 + 128 * 64)
    assert costs[cutoff - 1] < 1.001 * costs.min()

    products = choose_cutoffs(counts, 3, width=128, div_value=2, logit_cost=0)
    macs = {
        cutoffs: AdaptiveVocabulary(33_278, 128, cutoffs, 2).expected_macs(counts)
        for cutoffs in (
            products,
            choose_cutoffs(counts, 3, width=128, div_value=2),
            tuple(2 * cutoff for cutoff in products),
        )
    }
    assert min(macs, key=macs.get) == products
    many = choose_cutoffs(counts, 40, width=128)
    assert len(many) == 40 and list(many) == sorted({*many})


# Mistakes


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (dict(cutoffs=(20, 7)), "20 is followed"),
        (dict(cutoffs=(7, 7)), r"\(7, 7\) must increase"),
        (dict(cutoffs=(0, 7)), "cutoff 0"),
        (dict(cutoffs=(7, 40)), "cutoff 40"),
        (dict(cutoffs=(7, 20), div_value=5), "cluster 2"),
        (dict(width=0), "width is 0"),
        (dict(chunk=0), "chunk is 0"),
    ],
)
def test_mistakes_in_the_module(kwargs, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveVocabulary(**dict(vocabulary=40, width=16) | kwargs)


@pytest.mark.parametrize(
    "counts, clusters, kwargs, message",
    [
        ([3, 1, 2], 1, {}, "word 1"),
        ([], 0, {}, r"shape \(0,\), expected \[V\]"),
        ([[3, 1]], 0, {}, r"shape \(1, 2\)"),
        ([0, 0], 1, {}, "zero; got 0"),
        ([1, -1], 1, {}, "got 1 down to -1"),
        ([3, 2], 2, {}, "2 tail"),
        ([3, 2], -1, {}, "-1 tail clusters"),
        ([3, 2, 1], 2, dict(div_value=5), r"16 // 5\*\*2"),
        ([3, 2, 1], 2, dict(width=0), "width is 0"),
        ([3, 2, 1], 2, dict(logit_cost=-1), "logit_cost is -1"),
    ],
)
def test_mistakes_in_the_choice_of_cutoffs(counts, clusters, kwargs, message):
    with pytest.raises(ValueError, match=message):
        choose_cutoffs(np.asarray(counts), clusters, **dict(width=16) | kwargs)


@pytest.mark.parametrize(
    "frequencies, message",
    [(np.ones(39), "39"), (np.zeros(40), "not all zero"), (np.arange(-1, 39), "minimum of -1.0")],
)
def test_mistakes_in_frequencies(frequencies, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveVocabulary(40, 16).expected_macs(frequencies)
