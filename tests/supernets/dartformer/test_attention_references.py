"""Each attention mechanism against a plain reference of its definition, in float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from test_attention import BATCH, CASES, DIM, HEADS, LENGTH, MASK, RNG, X, close, variables_of

from jaxnas.supernets.dartformer.attention import dense, sorting, sparse


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


def window_pattern(i, j, window, num_global=0):
    """A window that is wider to the left if it is even, and global tokens in rows and columns."""
    offset = j - i + window // 2
    return (offset >= 0) & (offset < window) | (i < num_global) | (j < num_global)


def bigbird_pattern(i, j, block, num_random, seed):
    count = -(-len(i) // block)
    blocks = np.eye(count, dtype=bool) | np.eye(count, k=1, dtype=bool) | np.eye(count, k=-1, dtype=bool)
    blocks[[0, -1]] = blocks[:, [0, -1]] = True
    drawn, used = sparse.random_blocks(count, num_random, seed)
    for row in range(count - 2):
        blocks[row + 1, drawn[row][used[row]]] = True
    return blocks[i // block, j // block]


def sparse_pattern(i, j, block, summary=0):
    return (i // block == j // block) | (j % block >= block - summary)


SUMMARIES = [dict(block=b, summary=c) for b, c in ((5, 3), (6, 6), (1, 1), (4, 1), (30, 2))]
BLOCKS = ((3, 1), (8, 2), (1, 2), (2, 0), (3, 9), (30, 1))
BIGBIRD = [dict(block=b, num_random=r, seed=5) for b, r in BLOCKS]
# A function, which pairs of places it sees, and settings.
PATTERNS = {
    "softmax": (dense.softmax, lambda i, j: i + j >= 0, [{}]),
    "local": (sparse.local, sparse_pattern, [dict(block=b) for b in (3, 50, 1, 8)]),
    "longformer": (sparse.longformer, window_pattern, [dict(window=w) for w in (6, 7, 1, 2, 3, 40)]),
    "sparse": (sparse.sparse_transformer, sparse_pattern, SUMMARIES),
    "bigbird": (sparse.bigbird, bigbird_pattern, BIGBIRD),
}


@pytest.mark.parametrize("length, chosen", [(23, slice(2)), *tiers.more((18, slice(1, None)))])
@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_softmax_attention_under_its_mask(name, length, chosen):
    run, pattern, every = PATTERNS[name]
    settings, (*operand, mask) = every[chosen], operands(length)
    found = jax.jit(lambda *given: [run(*given, **setting) for setting in settings])(*operand, mask)
    for setting, out in zip(settings, found, strict=True):
        seen = pattern(*np.ogrid[:length, :length], **setting)
        close(out, reference(products(*operand[:2]), operand[2], mask, seen))


def test_global_tokens_have_projections_of_their_own():
    length, count, window = 19, 3, 4
    query, key, value, mask = operands(length)
    own_query, own_key, own_value, _ = operands(length, seed=1)
    leading = own_query[:, :, :count], own_key, own_value
    run = functools.partial(sparse.longformer, window=window)
    out = jax.jit(run)(query, key, value, mask, leading=leading)
    seen = window_pattern(*np.ogrid[:length, :length], window, count)
    rest = reference(products(query, key), value, mask, seen)
    front = reference(products(own_query, own_key), own_value, mask, seen)
    close(out, np.concatenate([front[:, :, :count], rest[:, :, count:]], axis=2))


def test_random_blocks_are_others_and_follow_the_seed():
    indices, used = sparse.random_blocks(20, 3, 0)
    assert indices.shape == (18, 3) and used.all()
    for row, drawn in enumerate(indices.tolist()):
        assert len({*drawn}) == 3 and not {*drawn} & {0, row, row + 1, row + 2, 19}
    assert np.array_equal(indices, sparse.random_blocks(20, 3, 0)[0])
    assert not np.array_equal(indices, sparse.random_blocks(20, 3, 1)[0])
    _, used = sparse.random_blocks(6, 3, 0)  # blocks 1 to 4 have few left that they do not see already
    assert used.sum(axis=1).tolist() == [2, 1, 1, 2]


def test_linear_attention_weighs_as_its_quadratic_form_and_linformer_with_the_identity_is_softmax():
    query, key, value, mask = operands(150)
    weights = np.log(products(*(np.where(x > 0, x + 1, np.exp(x)) for x in (query, key))))
    close(jax.jit(dense.linear)(query, key, value, mask), reference(weights, value, mask))
    query, key, value, _ = operands(9)
    mask = np.ones((2, 9), bool)
    out = jax.jit(dense.linformer)(query, key, value, mask, np.eye(9, dtype=np.float32))
    close(out, reference(products(query, key), value, mask))


def test_performer_approaches_softmax():
    """The error falls as one over the root of the number of features."""
    query, key, value, mask = operands(70)
    query, key = query / 2, key / 2  # the error of a weight grows with exp(|q + k|^2)
    exact, run = np.asarray(dense.softmax(query, key, value, mask)), jax.jit(dense.performer)

    def error(count):
        draws = [dense.orthogonal_features(count, DIM, seed) for seed in range(8)]
        outs = [np.asarray(run(query, key, value, mask, directions=draw)) for draw in draws]
        return math.sqrt(np.mean((np.stack(outs) - exact[None]) ** 2))

    few, many = error(64), error(1024)
    assert many < 0.15 * math.sqrt(np.mean(exact**2)) and 3 < few / many < 5.3  # the root of 16 is 4


def test_performer_with_long_keys():
    """The exponentials of their features vanish, and those of padding must not overflow beside them."""
    query, key, value, mask = operands(9)
    key = np.where(mask[:, None, :, None], 40 * key, 0)
    directions = dense.orthogonal_features(8, DIM, 0)

    def total(*operands):
        return jnp.sum(dense.performer(*operands, mask, directions) ** 2)

    for leaf in jax.jit(jax.grad(total, argnums=(0, 1, 2)))(query, key, value):
        assert np.all(np.isfinite(leaf))


def shared_query_scores(query):
    """Products with keys of length 1; with the own key only for want of others."""
    unit = query / np.linalg.norm(query, axis=-1, keepdims=True)
    return products(query, unit) - 1e5 * np.eye(query.shape[2])


@pytest.mark.parametrize("rounds", [3, 1])
def test_reformer_sees_its_chunk_and_the_one_in_front(rounds):
    """By sorting in plain NumPy; a pair that meets in several rounds counts so often."""
    query, _, value, mask = operands(22)
    rotations = sorting.hash_rotations(rounds, DIM, 6, 3)
    out = jax.jit(functools.partial(sorting.reformer, chunk=5))(query, value, mask, rotations)
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
        close(out[example, head], reference(scores, one[1], one[2], met > 0)[0, 0])


def test_sinkhorn_with_a_soft_order_attends_to_weighted_sums_of_blocks():
    """Block by block in plain NumPy, with a padded end and weights that are no permutation."""
    query, key, value, _ = operands(11)
    mask = np.arange(11) < np.array([[11], [7]])
    logits = RNG.normal(size=(2, HEADS, 3, 3)).astype(np.float32)
    real = np.array([[True] * 3, [True, True, False]])
    order = np.asarray(jax.jit(sorting.sorting_matrix)(logits, real))
    out = jax.jit(functools.partial(sorting.sinkhorn, block=4))(query, key, value, mask, order)
    expected = np.zeros_like(value)
    for example, head in np.ndindex(2, HEADS):
        q, k, v = (np.pad(x[example, head], ((0, 1), (0, 0))) for x in (query, key, value))
        seen = np.pad(mask[example], (0, 1))
        k, v, blocks = k * seen[:, None], v * seen[:, None], seen.reshape(3, 4)
        for position in np.flatnonzero(seen):
            i = position // 4
            own = slice(4 * i, 4 * i + 4)
            weights = order[example, head, i]
            moved_k, moved_v = (np.tensordot(weights, x.reshape(3, 4, -1), 1) for x in (k, v))
            moved_seen = blocks.any(axis=0)
            for keys, values, there in ((k[own], v[own], seen[own]), (moved_k, moved_v, moved_seen)):
                if there.any():
                    shares = np.exp(keys[there] @ q[position] / np.sqrt(DIM))
                    expected[example, head, position] += shares @ values[there] / shares.sum()
    close(out, expected)


def test_sorting_matrices_are_doubly_stochastic():
    real = np.array([[True] * 5, [True, True, False, True, False]])
    kept = np.float32(real)[:, None].repeat(HEADS, axis=1)
    logits = RNG.normal(size=(2, HEADS, 5, 5)).astype(np.float32)
    settings = dict(iterations=8, temperature=2.0), dict(iterations=0, temperature=1.0)
    run = jax.jit(lambda logits: [sorting.sorting_matrix(logits, real, **one) for one in settings])
    ordered, softmax = run(logits)
    close(ordered.sum(axis=-1), kept)
    close(ordered.sum(axis=-2), kept, 1e-3)
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
    attended = reference(np.broadcast_to(logits, (BATCH, *logits.shape[1:])), value, MASK)
    expected = attended.transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, -1) @ stored["out_kernel"]
    close(jax.jit(net.apply)(variables, X, MASK), expected)
