"""Attention mechanisms: what all of them promise, and each against a plain reference of its definition."""

import functools
import math

import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import promises
import pytest
import refusals
import tiers
from test_cost import xla_macs

import jaxnas
from jaxnas import Choice, Space, elastic
from jaxnas.supernets import attention

BATCH, HEADS, LENGTH, DIM, WIDTH = 4, 2, 17, 4, 6
RNG = np.random.default_rng(0)
SIZES = dict(num_heads=HEADS, head_dim=DIM)
CASES = {
    "softmax": attention.Softmax(**SIZES),
    "softmax, causal": attention.Softmax(**SIZES, causal=True),
    "local": attention.Local(**SIZES, block=5),
    "local, causal": attention.Local(**SIZES, block=5, causal=True),
    "longformer": attention.Longformer(**SIZES, window=6),
    "longformer, global": attention.Longformer(**SIZES, window=5, num_global=3),
    "longformer, causal": attention.Longformer(**SIZES, window=6, num_global=2, causal=True),
    "sparse": attention.SparseTransformer(**SIZES, block=4, summary=2),
    "sparse, causal": attention.SparseTransformer(**SIZES, block=4, summary=2, causal=True),
    "bigbird": attention.BigBird(**SIZES, block=2, num_random=2),
    "linformer": attention.Linformer(**SIZES, max_length=20, num_projected=5),
    "linear": attention.Linear(**SIZES),
    "linear, causal": attention.Linear(**SIZES, causal=True),
    "performer": attention.Performer(**SIZES),
    "performer, causal": attention.Performer(**SIZES, num_features=7, causal=True),
    "performer, relu": attention.Performer(**SIZES, kernel="relu"),
    "reformer": attention.Reformer(**SIZES, num_hashes=2, num_buckets=4, chunk=4),
    "reformer, causal": attention.Reformer(**SIZES, num_hashes=2, num_buckets=4, chunk=4, causal=True),
    "sinkhorn": attention.Sinkhorn(**SIZES, max_length=20, block=4),
    "sinkhorn, causal": attention.Sinkhorn(**SIZES, max_length=20, block=4, causal=True),
    "synthesizer, random": attention.Synthesizer(**SIZES, max_length=20, kind="random"),
    "synthesizer": attention.Synthesizer(**SIZES, max_length=20, rank=3),
    "synthesizer, dense": attention.Synthesizer(**SIZES, max_length=20, kind="dense"),
    "synthesizer, causal": attention.Synthesizer(**SIZES, max_length=20, kind="dense", causal=True),
}

FAMILIES = ("softmax", "longformer, global", "linear", "reformer", "synthesizer")  # a case of each


def cases(*quick, only=""):
    """All cases, or those with a word in their name, of which the quick tier takes some."""
    return pytest.mark.parametrize("name", tiers.cases([name for name in CASES if only in name], quick))


every_mechanism = cases(*FAMILIES)

# All positions, the first ones, some, none.
MASK = np.ones((BATCH, LENGTH), bool)
MASK[1, 11:] = False
MASK[2] = RNG.random(LENGTH) < 0.6
MASK[3] = False
X = RNG.normal(size=(BATCH, LENGTH, WIDTH)).astype(np.float32)


@functools.cache
def variables_of(name):
    init = jax.jit(functools.partial(CASES[name].init, train=False))
    return nn.meta.unbox(init(jax.random.key(1), X, MASK))


def operands(length, batch=2, seed=0):
    """Queries, keys, values [B, H, T, d], and a mask [B, T] that leaves out the end of the second example."""
    draw = np.random.default_rng(seed)
    query, key, value = draw.normal(size=(3, batch, HEADS, length, DIM)).astype(np.float32)
    mask = np.arange(length)[None] < np.linspace(length, length // 2 + 1, batch).astype(int)[:, None]
    return query, key, value, mask


def reference(scores, value, mask, seen=None):
    """Attention in float64: scores [B, H, T, T], values [B, H, T, d], mask [B, T], seen [T, T]."""
    allowed = mask[:, None, None, :] & (np.ones_like(scores, bool) if seen is None else seen[None, None])
    shifted = np.where(allowed, scores.astype(np.float64), -np.inf)
    largest = shifted.max(axis=-1, keepdims=True)
    weights = np.exp(shifted - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(axis=-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return np.where(mask[:, None, :, None], weights @ value, 0)


def products(query, key):
    return query.astype(np.float64) @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])


def close(actual, expected, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=tolerance, atol=tolerance)


SEEN, SHORT = 9, (1, 4)  # positions that a later one may not change; lengths below a block, a window, a chunk
CLEAN, DIRTY = np.where(MASK[:, :, None], X, 0), np.where(MASK[:, :, None], X, np.nan)


@functools.cache
def probe(name):
    """All that the promises ask of a mechanism, from one program; arrays of NumPy, by name."""
    net, variables = CASES[name], variables_of(name)
    weights = RNG.normal(size=X.shape).astype(np.float32)

    def weighted(variables, x):
        y = net.apply(variables, x, MASK, train=True)
        return jnp.sum(y * weights), y

    def one(x, mask):
        return net.apply(variables, x[None], mask[None])[0]

    def early(x):
        y = net.apply(variables, x, MASK)[:, :SEEN]
        return jnp.sum(y**2), y

    @jax.jit
    def run(variables, clean, dirty, x, later):
        found = {"batch": net.apply(variables, x, MASK), "each": jax.vmap(one)(x, jnp.asarray(MASK))}
        for kind, inputs in (("clean", clean), ("dirty", dirty)):
            (_, found[kind]), gradients = jax.value_and_grad(weighted, (0, 1), has_aux=True)(
                variables, inputs
            )
            found[f"{kind} gradients"] = gradients
        found["short"] = [net.apply(variables, x[:, :n], MASK[:, :n]) for n in SHORT]
        if "causal" in name:
            (_, found["early"]), found["early gradient"] = jax.value_and_grad(early, has_aux=True)(x)
            found["early, another end"] = early(later)[1]
        return found

    later = np.concatenate([X[:, :SEEN], 30 * X[:, SEEN:]], axis=1)
    return jax.tree.map(np.asarray, run(variables, CLEAN, DIRTY, X, later))


@every_mechanism
def test_padding_changes_nothing_and_examples_are_apart(name):
    """Padding gets no gradient; an example without a token gives zeros, and finite gradients."""
    found = probe(name)
    clean, gradients = found["clean"], found["clean gradients"]
    same = found["dirty"], found["dirty gradients"]
    jax.tree.map(np.testing.assert_array_equal, (clean, gradients), same)
    assert clean.shape == X.shape and clean.dtype == jnp.float32
    assert np.all(clean[~MASK] == 0) and np.all(gradients[1][~MASK] == 0)
    assert np.all(np.any(clean[MASK] != 0, axis=1))
    for leaf in jax.tree.leaves(gradients):
        assert np.all(np.isfinite(leaf)) and np.any(leaf != 0)
    close(found["each"], found["batch"])
    for length, y in zip(SHORT, found["short"], strict=True):
        assert y.shape == (BATCH, length, WIDTH) and np.all(np.isfinite(y))


@cases("softmax, causal", "linear, causal", only="causal")
def test_the_causal_form_sees_nothing_of_later_positions(name):
    """Its gradient is 0; and if nothing but the pattern may depend on what is later, values are the same."""
    found = probe(name)
    gradient = found["early gradient"]
    assert np.all(gradient[:, SEEN:] == 0) and np.any(gradient[:, :SEEN] != 0)
    if "reformer" not in name:
        close(found["early, another end"], found["early"])


@cases("bigbird", "reformer")
def test_the_batch_may_be_symbolic(name):
    """As in an exported network: one program for batches of any size."""
    net, variables = CASES[name], jax.eval_shape(lambda: variables_of(name))
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"batch, {LENGTH}, {WIDTH}"), jnp.float32)
    mask = jax.ShapeDtypeStruct(x.shape[:2], jnp.bool_)
    exported = jax.export.export(jax.jit(net.apply))(variables, x, mask)
    assert str(exported.out_avals[0].shape[0]) == "batch"


@pytest.mark.more
def test_bfloat16_is_near_float32():
    """Also where sums are long: totals are float32."""
    x = RNG.normal(size=(1, 300, WIDTH)).astype(np.float32)
    mask = np.ones((1, 300), bool)
    for net in (attention.Softmax(**SIZES), attention.Performer(**SIZES, causal=True)):
        variables = nn.meta.unbox(jax.jit(net.init)(jax.random.key(0), x, mask))
        exact = np.asarray(jax.jit(net.apply)(variables, x, mask))
        half = jax.jit(net.clone(dtype=jnp.bfloat16).apply)(variables, x, mask)
        assert half.dtype == jnp.bfloat16
        difference = np.linalg.norm(np.asarray(half, np.float32) - exact) / np.linalg.norm(exact)
        assert 0 < difference < 0.02, type(net).__name__


class Network(nn.Module):
    """One block, which is chosen."""

    space: Space

    @nn.compact
    def __call__(self, inputs, arch=None, *, train=False):
        decisions = elastic.Decisions(self.space, arch, initializing=self.is_initializing())
        block = elastic.Mixture(CASES, name="block")
        return block(decisions["block"], inputs["x"], inputs["mask"], train=train)


INPUTS = {
    "x": jax.ShapeDtypeStruct((1, LENGTH, WIDTH), jnp.float32),
    "mask": jax.ShapeDtypeStruct((1, LENGTH), jnp.bool_),
}


@pytest.mark.hlo
@pytest.mark.parametrize("names", [FAMILIES, *tiers.more((tuple(CASES),))])
def test_macs_of_a_choice_are_those_of_xla_and_parameters_have_axes(names):
    """For each mechanism, as an option of a mixture and as the network of this option alone."""
    assert set(attention.MECHANISMS.values()) == {type(net) for net in CASES.values()}
    others = {"out_kernel": ("heads", "embed"), "projection": (None, None)}
    net = Network(Space(block=Choice(*names)))
    costs = jaxnas.cost(net, INPUTS)({"block": np.arange(len(names), dtype=np.int32)})
    for index, name in enumerate(names):
        alone = net.clone(space=Space(block=Choice(name)))
        shapes = jax.eval_shape(alone.init, jax.random.key(0), INPUTS)
        counted = xla_macs(jax.jit(alone.apply).lower(nn.meta.unbox(shapes), INPUTS).as_text("hlo"))
        assert costs["macs"][index] == counted > 0, name
        assert costs["params"][index] == sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)), name
        boxed = shapes["params"]["block"][f"blocks_{name}"]
        assert {"value_kernel", "out_kernel"} <= boxed.keys()
        for key, box in boxed.items():
            axes = ("embed", "heads") if box.value.ndim == 2 else ("heads", None, None)
            assert box.names == others.get(key, axes), (name, key)


def window_pattern(i, j, window, num_global=0):
    """A window that is wider to the left if it is even, and global tokens in rows and columns."""
    offset = j - i + window // 2
    return (offset >= 0) & (offset < window) | (i < num_global) | (j < num_global)


def bigbird_pattern(i, j, block, num_random, seed):
    count = -(-len(i) // block)
    blocks = np.eye(count, dtype=bool) | np.eye(count, k=1, dtype=bool) | np.eye(count, k=-1, dtype=bool)
    blocks[[0, -1]] = blocks[:, [0, -1]] = True
    drawn, used = attention.random_blocks(count, num_random, seed)
    for row in range(count - 2):
        blocks[row + 1, drawn[row][used[row]]] = True
    return blocks[i // block, j // block]


# A function, which pairs of places it sees, and settings.
PATTERNS = {
    "softmax": (attention.softmax, lambda i, j: i + j >= 0, [{}]),
    "local": (
        attention.local,
        lambda i, j, block: i // block == j // block,
        [dict(block=b) for b in (3, 50, 1, 8)],
    ),
    "longformer": (attention.longformer, window_pattern, [dict(window=w) for w in (6, 7, 1, 2, 3, 40)]),
    "sparse": (
        attention.sparse_transformer,
        lambda i, j, block, summary: (i // block == j // block) | (j % block >= block - summary),
        [dict(block=b, summary=c) for b, c in ((5, 3), (6, 6), (1, 1), (4, 1), (30, 2))],
    ),
    "bigbird": (
        attention.bigbird,
        bigbird_pattern,
        [dict(block=b, num_random=r, seed=5) for b, r in ((3, 1), (8, 2), (1, 2), (2, 0), (3, 9), (30, 1))],
    ),
}


@pytest.mark.parametrize("length, settings", [(23, 2), *tiers.more((18, None))])
@pytest.mark.parametrize(
    "name, causal", [(name, causal) for name in PATTERNS for causal in (False, True)][:-1]
)
def test_a_pattern_is_softmax_attention_under_its_mask(name, causal, length, settings):
    """In the first of its settings, or in all. BigBird, the last one, has no causal form."""
    run, pattern, each = PATTERNS[name]
    given = operands(length)
    for setting in each[:settings]:
        seen = pattern(*np.ogrid[:length, :length], **setting)
        setting = setting | ({"causal": True} if causal else {})
        if causal:
            seen = seen & np.tri(length, dtype=bool)
        out = jax.jit(functools.partial(run, **setting))(*given)
        close(out, reference(products(given[0], given[1]), given[2], given[3], seen))


@pytest.mark.parametrize("causal", [True, *tiers.more(False)])
def test_global_tokens_have_projections_of_their_own(causal):
    length, count, window = 19, 3, 4
    query, key, value, mask = operands(length)
    own_query, own_key, own_value, _ = operands(length, seed=1)
    leading = own_query[:, :, :count], own_key, own_value
    run = functools.partial(attention.longformer, window=window, causal=causal)
    out = jax.jit(run)(query, key, value, mask, leading=leading)
    seen = window_pattern(*np.ogrid[:length, :length], window, count) & (
        np.tri(length, dtype=bool) if causal else True
    )
    rest = reference(products(query, key), value, mask, seen)
    front = reference(products(own_query, own_key), own_value, mask, seen)
    close(out, np.concatenate([front[:, :, :count], rest[:, :, count:]], axis=2))


def test_random_blocks_are_others_and_follow_the_seed():
    indices, used = attention.random_blocks(20, 3, 0)
    assert indices.shape == (18, 3) and used.all()
    for row, drawn in enumerate(indices.tolist()):
        assert len({*drawn}) == 3 and not {*drawn} & {0, row, row + 1, row + 2, 19}
    assert np.array_equal(indices, attention.random_blocks(20, 3, 0)[0])
    assert not np.array_equal(indices, attention.random_blocks(20, 3, 1)[0])
    _, used = attention.random_blocks(6, 3, 0)  # blocks 1 to 4 have few left that they do not see already
    assert used.sum(axis=1).tolist() == [2, 1, 1, 2]


DIRECTIONS = attention.orthogonal_features(6, DIM, 0)
# Settings of the Performer, the tolerance, and the features by which it weighs keys.
KERNELS = {
    "linear": ({}, 2e-5, lambda x: np.where(x > 0, x + 1, np.exp(x))),
    "relu": (dict(directions=None), 1e-3, lambda x: np.maximum(x, 0) + 1e-3),
    "relu of directions": (
        dict(directions=DIRECTIONS),
        1e-3,
        lambda x: np.maximum(x @ DIRECTIONS.T / math.sqrt(6), 0) + 1e-3,
    ),
}


@pytest.mark.parametrize("name, causal", [("linear", True), *((name, False) for name in KERNELS)])
def test_features_weigh_as_their_quadratic_form(name, causal):
    settings, tolerance, features = KERNELS[name]
    relu = functools.partial(attention.performer, kernel="relu", **settings)
    run = attention.linear if name == "linear" else relu
    query, key, value, mask = operands(150)  # several chunks of the causal form
    out = jax.jit(functools.partial(run, causal=causal))(query, key, value, mask)
    weights = np.log(products(features(query), features(key)))
    close(out, reference(weights, value, mask, np.tri(150, dtype=bool) if causal else None), tolerance)


def test_linformer_with_the_identity_is_softmax():
    query, key, value, _ = operands(9)
    mask = np.ones((2, 9), bool)
    out = jax.jit(attention.linformer)(query, key, value, mask, np.eye(9, dtype=np.float32))
    close(out, reference(products(query, key), value, mask))


def test_performer_approaches_softmax():
    """The error falls as one over the root of the number of features."""
    query, key, value, mask = operands(70)
    query, key = query / 2, key / 2  # the error of a weight grows with exp(|q + k|^2)
    exact, run = np.asarray(attention.softmax(query, key, value, mask)), jax.jit(attention.performer)

    def error(count):
        draws = [attention.orthogonal_features(count, DIM, seed) for seed in range(8)]
        outs = [np.asarray(run(query, key, value, mask, directions=draw)) for draw in draws]
        return math.sqrt(np.mean((np.stack(outs) - exact[None]) ** 2))

    few, many = error(64), error(1024)
    assert many < 0.15 * math.sqrt(np.mean(exact**2)) and 3 < few / many < 5.3  # the root of 16 is 4


@pytest.mark.parametrize("size", [16, *tiers.more(160)])
def test_the_last_position_of_a_causal_performer_sees_what_all_see(size):
    """Also in wide heads, whose features have exponents far from 0, and over more than one chunk."""
    draw = np.random.default_rng(1)
    query, key, value = (jnp.asarray(draw.normal(size=(2, 1, 130, size)), jnp.float32) for _ in range(3))
    mask = jnp.asarray(draw.random((2, 130)) < 0.8).at[:, :3].set(False).at[:, -1].set(True)
    directions = attention.orthogonal_features(math.ceil(size * math.log(size)), size, 0)
    whole, causal = (
        jax.jit(functools.partial(attention.performer, causal=causal))(
            query, key, value, mask, directions=directions
        )[:, :, -1]
        for causal in (False, True)
    )
    assert np.linalg.norm(causal - whole) < 0.02 * np.linalg.norm(whole)


@pytest.mark.parametrize("causal", [True, *tiers.more(False)])
def test_performer_with_long_keys(causal):
    """The exponentials of their features vanish, and those of padding must not overflow beside them."""
    query, key, value, mask = operands(9)
    key = np.where(mask[:, None, :, None], 40 * key, 0)
    directions = attention.orthogonal_features(8, DIM, 0)

    def total(*operands):
        return jnp.sum(attention.performer(*operands, mask, directions=directions, causal=causal) ** 2)

    for leaf in jax.jit(jax.grad(total, argnums=(0, 1, 2)))(query, key, value):
        assert np.all(np.isfinite(leaf))


def test_directions_are_orthogonal_in_groups():
    directions = attention.orthogonal_features(10, DIM, 0)
    assert directions.shape == (10, DIM)
    for group in (directions[:4], directions[4:8], directions[8:]):
        gram = group @ group.T
        np.testing.assert_allclose(gram - np.diag(np.diag(gram)), 0, atol=1e-5)
    # Lengths are those of normal vectors: their squares have the mean d.
    lengths = np.sum(attention.orthogonal_features(4000, DIM, 0) ** 2, axis=1)
    assert abs(lengths.mean() - DIM) < 0.2


def shared_query_scores(query):
    """Products with keys of length 1; with the own key only for want of others."""
    unit = query / np.linalg.norm(query, axis=-1, keepdims=True)
    return products(query, unit) - 1e5 * np.eye(query.shape[2])


@pytest.mark.parametrize("rounds, causal", [(3, False), (1, True)])
def test_reformer_sees_its_chunk_and_the_one_in_front(rounds, causal):
    """By sorting in plain NumPy; a pair that meets in several rounds counts so often."""
    query, _, value, mask = operands(22)
    rotations = attention.hash_rotations(rounds, DIM, 6, 3)
    run = jax.jit(functools.partial(attention.reformer, chunk=5, causal=causal))
    out = run(query, value, mask, rotations)
    for example, head in np.ndindex(2, HEADS):
        met = np.zeros((22, 22))
        for one in rotations:
            turned = query[example, head] @ one
            buckets = np.argmax(np.concatenate([turned, -turned], axis=1), axis=1)
            buckets[~mask[example]] = 6
            place = np.empty(22, int)
            place[np.lexsort((np.arange(22), buckets))] = np.arange(22)
            chunk = place // 5
            met += (chunk[:, None] == chunk[None]) | (chunk[:, None] == chunk[None] + 1)
        one = query[example, head][None, None], value[example, head][None, None], mask[example][None]
        scores = shared_query_scores(one[0]) + np.log(np.maximum(met, 1))
        seen = (met > 0) & (np.tri(22, dtype=bool) if causal else True)
        close(out[example, head], reference(scores, one[1], one[2], seen)[0, 0])


@pytest.mark.parametrize("causal", [True, *tiers.more(False)])
def test_sinkhorn_with_a_soft_order_attends_to_weighted_sums_of_blocks(causal):
    """Block by block in plain NumPy, with a padded end and weights that are no permutation."""
    query, key, value, _ = operands(11)
    mask = np.arange(11) < np.array([[11], [7]])
    logits = RNG.normal(size=(2, HEADS, 3, 3)).astype(np.float32)
    real = np.array([[True] * 3, [True, True, False]])
    order = np.asarray(jax.jit(functools.partial(attention.sorting_matrix, causal=causal))(logits, real))
    run = jax.jit(functools.partial(attention.sinkhorn, block=4, causal=causal))
    out = run(query, key, value, mask, order)
    expected = np.zeros_like(value)
    for example, head in np.ndindex(2, HEADS):
        q, k, v = (np.pad(x[example, head], ((0, 1), (0, 0))) for x in (query, key, value))
        seen = np.pad(mask[example], (0, 1))
        k, v, blocks = k * seen[:, None], v * seen[:, None], seen.reshape(3, 4)
        for position in np.flatnonzero(seen):
            i = position // 4
            own = slice(4 * i, position + 1 if causal else 4 * i + 4)
            weights = order[example, head, i]
            moved_k, moved_v = (np.tensordot(weights, x.reshape(3, 4, -1), 1) for x in (k, v))
            moved_seen = blocks[: i if causal else 3].any(axis=0)
            for keys, values, there in ((k[own], v[own], seen[own]), (moved_k, moved_v, moved_seen)):
                if there.any():
                    shares = np.exp(keys[there] @ q[position] / np.sqrt(DIM))
                    expected[example, head, position] += shares @ values[there] / shares.sum()
    close(out, expected)


REAL = np.array([[True] * 5, [True, True, False, True, False]])
KEPT = np.float32(REAL)[:, None].repeat(HEADS, axis=1)


def test_causal_sorting_depends_on_no_later_row_or_block():
    logits = RNG.normal(size=(2, HEADS, 5, 5)).astype(np.float32)
    run = jax.jit(functools.partial(attention.sorting_matrix, causal=True), static_argnames=("iterations",))
    weights = np.asarray(run(logits, REAL))
    assert np.all(weights[..., np.triu_indices(5)[0], np.triu_indices(5)[1]] == 0)
    close(weights.sum(axis=-1), KEPT * (np.arange(5) > 0))  # nothing is before the first block
    assert np.max(np.abs(weights - np.asarray(run(logits, REAL, iterations=0)))) > 1e-2
    for row in range(1, 5):
        changed = logits.copy()
        changed[..., row:, :] = RNG.normal(size=changed[..., row:, :].shape)
        close(np.asarray(run(changed, REAL))[..., :row, :], weights[..., :row, :])


def test_sorting_matrices_are_doubly_stochastic():
    logits = RNG.normal(size=(2, HEADS, 5, 5)).astype(np.float32)
    run = jax.jit(attention.sorting_matrix, static_argnames=("iterations", "temperature"))
    weights = np.asarray(run(logits, REAL, iterations=8, temperature=2.0))
    close(weights.sum(axis=-1), KEPT)
    close(weights.sum(axis=-2), KEPT, 1e-3)
    softmax = run(logits, REAL, iterations=0, temperature=1.0)
    exponentials = np.exp(logits[0])
    close(softmax[0], exponentials / exponentials.sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("name", [name for name in CASES if "synthesizer" in name])
def test_synthesizer_is_softmax_of_its_logits(name):
    net, variables = CASES[name], variables_of(name)
    stored = {name: np.asarray(x, np.float64) for name, x in variables["params"].items()}
    x = np.where(MASK[:, :, None], X, 0)
    if net.kind == "random":
        logits = stored["logits"][None, :, :LENGTH, :LENGTH]
    elif net.kind == "factorized_random":
        logits = np.einsum("htk,hsk->hts", stored["left_factor"], stored["right_factor"])
        logits = logits[None, :, :LENGTH, :LENGTH]
    else:
        hidden = np.maximum(x @ stored["hidden_kernel"], 0).reshape(BATCH, LENGTH, HEADS, DIM)
        logits = np.einsum("bthd,hds->bhts", hidden, stored["logits_kernel"])[..., :LENGTH]
    value = (x @ stored["value_kernel"]).reshape(BATCH, LENGTH, HEADS, DIM).transpose(0, 2, 1, 3)
    seen = np.tri(LENGTH, dtype=bool) if net.causal else None
    attended = reference(np.broadcast_to(logits, (BATCH, *logits.shape[1:])), value, MASK, seen)
    expected = attended.transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, -1) @ stored["out_kernel"]
    close(jax.jit(net.apply)(variables, X, MASK), expected)


LONG = set(attention.MECHANISMS.values()) - {attention.Softmax, attention.Synthesizer}


@pytest.mark.parametrize("mechanism", sorted(LONG, key=str))
def test_no_array_is_as_large_as_all_pairs(mechanism):
    """Nor a tenth of it, in the forward and the backward pass of 4,096 positions; by the traced program."""
    length, fields = 4096, mechanism.__dataclass_fields__
    given = dict(max_length=length, causal=True, num_global=2, block=48, window=32, summary=2, chunk=32)
    net = mechanism(**SIZES, **{name: value for name, value in given.items() if name in fields})
    x = jax.ShapeDtypeStruct((1, length, WIDTH), jnp.float32)
    mask = jax.ShapeDtypeStruct((1, length), jnp.bool_)
    variables = nn.meta.unbox(jax.eval_shape(net.init, jax.random.key(0), x, mask))

    def total(variables, x, mask):
        return jnp.sum(net.apply(variables, x, mask) ** 2)

    largest = promises.largest_array(jax.grad(total, argnums=(0, 1)), variables, x, mask)
    assert 0 < largest <= HEADS * length**2 / 10


def test_mechanisms_that_cannot_be_and_inputs_that_do_not_fit_are_refused():
    def case(net, error, *names, x=X, mask=MASK):
        return lambda: jax.eval_shape(net.init, jax.random.key(0), x, mask), error, *names

    def make(mechanism, *names, **settings):
        return case(mechanism(**SIZES | settings), ValueError, *names)

    softmax, local, sinkhorn = attention.Softmax, attention.Local, attention.Sinkhorn
    refusals.check(
        (lambda: attention.performer(*operands(6)), ValueError, "directions"),
        *(
            make(kind, "max_length", "8", "17", max_length=8)
            for kind in (attention.Linformer, attention.Synthesizer, sinkhorn)
        ),
        make(softmax, "6 channels", "4 heads", num_heads=4, head_dim=None),
        make(softmax, "Softmax", "num_heads", "0", num_heads=0),
        make(softmax, "Softmax", "head_dim", "0", head_dim=0),
        make(local, "local", "block", "0", block=0),
        make(attention.Longformer, "longformer", "window", "0", window=0),
        make(attention.Longformer, "longformer", "num_global", "-1", num_global=-1),
        make(attention.SparseTransformer, "5", "4", block=4, summary=5),
        make(attention.BigBird, "num_random", "-1", num_random=-1),
        make(attention.Reformer, "5", num_buckets=5),
        make(attention.Reformer, "reformer", "chunk", "0", chunk=0),
        make(attention.Performer, "cosine", kernel="cosine"),
        make(attention.Performer, "performer", "num_features", "0", num_features=0),
        make(attention.Synthesizer, "kind", "fast", max_length=20, kind="fast"),
        make(sinkhorn, "temperature", "0.0", max_length=20, temperature=0.0),
        case(softmax(**SIZES), ValueError, "(17, 6)", x=X[0]),
        case(local(**SIZES), ValueError, "positions", "0", x=X[:, :0], mask=MASK[:, :0]),
        case(softmax(**SIZES), TypeError, "bool", "float32", mask=np.float32(MASK)),
        case(softmax(**SIZES), ValueError, "(4, 17)", "(4, 5)", mask=MASK[:, :5]),
    )
