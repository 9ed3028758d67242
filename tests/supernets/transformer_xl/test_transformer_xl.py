"""PAR Transformer-XL: against a plain reference, memory against one long pass, and the promises."""

import functools

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import promises
import pytest
import refusals
import tiers
from jax.sharding import NamedSharding, PartitionSpec
from small_nets import difference, jit, random_weights, take

from jaxnas import Choice, Space, spaces, supernets
from jaxnas.supernets.layers import sinusoids
from jaxnas.supernets.transformer_xl.adaptive_softmax import AdaptiveVocabulary
from jaxnas.supernets.transformer_xl.blocks import Context, causal_mask
from jaxnas.supernets.transformer_xl.network import OPTIONS, Memory
from jaxnas.training.mesh import make_mesh

pytestmark = pytest.mark.more  # a whole supernet

BLOCKS, WORDS, WIDTH, HEADS, DIM, LENGTH, MEMORY = 4, 23, 8, 2, 3, 6, 5
SPACE = spaces.par(BLOCKS)
SIZES = dict(vocabulary=WORDS, width=WIDTH, num_heads=HEADS, head_dim=DIM, hidden=12, memory_length=MEMORY)
NET = supernets.TransformerXL(SPACE, **SIZES, dropout=0.0, init_std=0.5, cutoffs=(5, 12), div_value=2)
SCANNED = NET.clone(scan_blocks=True)
FORMS = {
    "scanned": SCANNED,
    "pre-norm": NET.clone(pre_norm=True),
    "bfloat16": NET.clone(dtype=jnp.bfloat16, cutoffs=()),
}
RNG = np.random.default_rng(0)
TOKENS, TARGETS = (jnp.asarray(RNG.integers(0, WORDS, (3, LENGTH)), jnp.int32) for _ in range(2))
PAST = Memory(
    np.float32(RNG.normal(size=(BLOCKS, 3, MEMORY, WIDTH))),
    # The first row remembers nothing, the second has read less than the memory holds.
    np.int32([[-1] * 5, [-1, -1, 0, 0, 0], [0] * 5]),
)
ARCHS = {"block": np.int32([[2, 1, 0, 2], [2, 2, 2, 2], [0, 1, 1, 2], [1, 0, 2, 1]])}
MIXED, LARGEST = take(ARCHS, 0), take(ARCHS, 1)
SOFT = {"block": np.float32(RNG.dirichlet([2, 2, 2], BLOCKS))}


@functools.cache
def params_of(net):
    return random_weights(net, TOKENS)


@functools.cache
def probe():
    @jit
    def run(params, archs, soft, memories):
        def apply(net, arch, memory=PAST, params=params):
            inputs = {"tokens": TOKENS, "targets": TARGETS, "memory": memory}
            return net.apply({"params": params}, inputs, arch)

        def with_gradient(net, arch):
            def loss(params):
                scores, memory = apply(net, arch, params=params)
                return -jnp.mean(scores), (scores, memory)

            return jax.grad(loss, has_aux=True)(params)

        softened = jax.vmap(SPACE.soften)(archs)
        many = jax.vmap(lambda arch: apply(SCANNED, arch)[0])
        return {
            "unrolled": jax.lax.map(functools.partial(with_gradient, NET), archs),
            "scanned": jax.lax.map(functools.partial(with_gradient, SCANNED), archs),
            "soft": [apply(net, soft)[0] for net in (NET, SCANNED)],
            "softened": with_gradient(SCANNED, take(softened, 0)),
            "vmap": [many(archs), many(softened)],
            "memories": jax.lax.map(lambda memory: apply(SCANNED, LARGEST, memory)[0], memories),
        }

    kept = PAST, PAST.forget(np.array([True, True, False])), NET.empty_memory(3)
    memories = jax.tree.map(lambda *x: np.stack(x), *kept)
    return jax.tree.map(np.asarray, run(params_of(NET), ARCHS, SOFT, memories))


def test_scanned_blocks_are_the_unrolled_ones_and_vmap_over_architectures_is_the_loop():
    """P5, hard and soft, and P1: the program gets the architecture as an argument."""
    (gradient, outputs), (expected_gradient, expected) = probe()["scanned"], probe()["unrolled"]
    assert difference(outputs, expected) < 1e-5 and difference(gradient, expected_gradient) < 1e-4
    assert difference(*probe()["soft"]) < 1e-5
    # A soft architecture of certain choices is the hard one.
    gradient, outputs = probe()["softened"]
    assert difference(outputs, take(expected, 0)) < 1e-5
    assert difference(gradient, take(expected_gradient, 0)) < 1e-4
    for many in probe()["vmap"]:
        np.testing.assert_allclose(many, probe()["scanned"][1][0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["unrolled", "scanned"])
def test_gradients_reach_the_chosen_blocks_alone(form):
    """P2."""
    gradient, _ = probe()[form]
    for row, i in np.ndindex(len(ARCHS["block"]), BLOCKS):
        for name, tree in gradient[f"block_{i}"].items():
            reached = any(np.any(leaf[row]) for leaf in jax.tree.leaves(tree))
            assert reached == (name == f"blocks_{OPTIONS[ARCHS['block'][row, i]]}")


def reference_block(name, p, x, past, mask, positions):
    """One post-norm block on x [T, D] with its past [M, D], as the paper writes it, in float64."""

    def norm(x, p):
        x = x - x.mean(1, keepdims=True)
        return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]

    if name == "identity":
        return x
    if name == "feed_forward":
        y = np.maximum(x @ p["in_kernel"] + p["in_bias"], 0) @ p["out_kernel"] + p["out_bias"]
        return norm(x + y, p["norm"])
    both = np.concatenate([past, x])
    out = np.zeros((len(x), HEADS * DIM))
    for head in range(HEADS):
        part = slice(head * DIM, (head + 1) * DIM)
        q, k, v, r = (
            rows @ p[f"{kind}_kernel"][:, part]
            for rows, kind in ((x, "query"), (both, "key"), (both, "value"), (positions, "position"))
        )
        t, s = np.indices(mask.shape)
        place = np.minimum(len(x) - 1 - t + s, len(both) - 1)  # of the distance len(past) + t - s
        content = (q + p["content_bias"][part]) @ k.T
        scores = content + np.take_along_axis((q + p["position_bias"][part]) @ r.T, place, axis=1)
        weights = np.exp(np.where(mask, scores / np.sqrt(DIM), -np.inf))
        out[:, part] = weights / weights.sum(axis=1, keepdims=True) @ v
    return norm(x + out @ p["out_kernel"], p["norm"])


@pytest.mark.parametrize("row", range(3))
def test_hidden_states_are_those_of_the_paper(row):
    """Compared are the memories: the inputs of every block."""
    params = jax.tree.map(np.float64, params_of(NET))
    memory = probe()["unrolled"][1][1].inputs[0]
    mask = causal_mask(LENGTH, MEMORY) & (np.array([*PAST.documents[row], *[0] * LENGTH]) >= 0)[None, :]
    positions = np.float64(sinusoids(LENGTH + MEMORY, WIDTH))
    vocabulary = AdaptiveVocabulary(WORDS, WIDTH, (5, 12), 2)
    x = vocabulary.apply({"params": params_of(NET)["vocabulary_layer"]}, TOKENS[row], method="embed")
    x = np.float64(x)
    for i, name in enumerate(OPTIONS[option] for option in MIXED["block"]):
        past = np.float64(PAST.inputs[i, row])
        kept = np.concatenate([past, x])[-MEMORY:]
        np.testing.assert_allclose(memory[i, row], kept, rtol=2e-4, atol=2e-4)
        x = reference_block(name, params[f"block_{i}"].get(f"blocks_{name}"), x, past, mask, positions)


def test_segments_with_memory_equal_one_long_pass():
    net, whole = SCANNED.clone(memory_length=12), SCANNED.clone(memory_length=0)
    tokens = np.int32(RNG.integers(0, WORDS, (2, 18)))

    @jit
    def run(params, tokens, arch):
        def step(memory, part):
            scores, memory = net.apply({"params": params}, {"tokens": part, "memory": memory}, arch)
            return memory, scores

        _, scores = jax.lax.scan(step, net.empty_memory(2), tokens.reshape(2, 3, 6).transpose(1, 0, 2))
        long, _ = whole.apply({"params": params}, tokens, arch)
        return scores.transpose(1, 0, 2, 3).reshape(2, 18, WORDS), long

    for i in range(4):
        np.testing.assert_allclose(*run(params_of(NET), tokens, take(ARCHS, i)), rtol=1e-4, atol=1e-4)


def test_documents_see_themselves_only_and_no_gradient_flows_into_the_memory():
    """A row of two documents gives for the second what it gives alone."""
    documents = np.int32([[0, 0, 1, 1, 1, 1]] * 3)

    @jit
    def run(params, tokens, inputs):
        def apply(inputs):
            memory = Memory(inputs, np.zeros((3, MEMORY), np.int32))
            given = {"tokens": tokens, "memory": memory, "documents": documents}
            scores, new = SCANNED.apply({"params": params}, given, LARGEST)
            return jnp.sum(new.inputs), (scores, new.documents)

        return jax.grad(apply, has_aux=True)(inputs)

    other = np.concatenate([(TOKENS[:, :2] + 7) % WORDS, TOKENS[:, 2:]], axis=1)
    gradient, (together, new) = run(params_of(NET), TOKENS, PAST.inputs)
    _, (elsewhere, _) = run(params_of(NET), other, -PAST.inputs)
    np.testing.assert_array_equal(new, [[0, 1, 1, 1, 1]] * 3)
    np.testing.assert_allclose(together[:, 2:], elsewhere[:, 2:], rtol=1e-5)
    assert not np.allclose(together[:, :2], elsewhere[:, :2])
    assert not np.any(gradient)


def test_forgotten_rows_are_as_at_the_start():
    kept, forgotten, empty = probe()["memories"]
    np.testing.assert_array_equal(forgotten[:2], empty[:2])
    np.testing.assert_array_equal(forgotten[2], kept[2])


@pytest.mark.parametrize("pre_norm", [False, True])
def test_what_is_kept_for_the_backward_pass(pre_norm):
    """No scores, of which there are more than of anything else."""
    batch, length, hidden = 2, 64, 4 * WIDTH
    net = NET.clone(pre_norm=pre_norm, hidden=hidden, num_heads=HEADS, head_dim=WIDTH // HEADS)
    x = jnp.ones((batch, length, WIDTH))
    mask = np.broadcast_to(causal_mask(length, length), (batch, length, 2 * length))
    context = Context(x, mask, jnp.asarray(sinusoids(2 * length, WIDTH)))
    for option in OPTIONS:
        block = net.block(option)
        variables = jax.eval_shape(block.init, jax.random.key(0), x, context)
        call = functools.partial(lambda block, p, x: block.apply(p, x, context), block)
        backward = jax.eval_shape(lambda *given, call=call: jax.vjp(call, *given)[1], variables, x)
        kept = [leaf.size for leaf in jax.tree.leaves(backward) if leaf.dtype == jnp.float32]
        assert sum(kept) < batch * length * (hidden + 12 * WIDTH)
        assert max(kept, default=0) < batch * HEADS * length * 2 * length


@pytest.mark.hlo
@pytest.mark.eight_devices
def test_rows_on_several_devices_are_not_gathered():
    net = SCANNED.clone(cutoffs=(), num_heads=2, head_dim=WIDTH // 2, hidden=4 * WIDTH)
    mesh, memory = make_mesh(2), net.empty_memory(4)
    params = params_of(net)
    words = np.zeros((4, LENGTH), np.int32)
    batch = {"tokens": words, "targets": words}
    everywhere, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    where = Memory(NamedSharding(mesh, PartitionSpec(None, "data")), rows)

    def loss(params, arch, batch, memory):
        scores, memory = net.apply({"params": params}, batch | {"memory": memory}, arch)
        return -jnp.mean(scores), memory

    gradient = jax.jit(jax.grad(loss, has_aux=True), in_shardings=(everywhere, everywhere, rows, where))
    promises.check_only_sums(gradient.lower(params, LARGEST, batch, memory))


def test_masks_and_distances_at_evaluation():
    mask = causal_mask(4, 3, same_length=True)
    assert mask.sum(1).tolist() == [3] * 4  # every query sees as many keys, itself among them
    assert all(mask[t, 3 + t] and not mask[t, 4 + t :].any() for t in range(4))
    assert causal_mask(4, 3).sum(1).tolist() == [4, 5, 6, 7]
    clamped = sinusoids(6, 8, clamp=2)
    np.testing.assert_array_equal(clamped[:4], np.repeat(clamped[3:4], 4, axis=0))
    np.testing.assert_array_equal(clamped[3:], sinusoids(3, 8))
    long = NET.clone(memory_length=9, same_length=True, clamp_length=4)
    scores, memory = jax.eval_shape(long.apply, {"params": params_of(NET)}, TOKENS, LARGEST)
    assert scores.shape == (3, LENGTH, WORDS) and memory.inputs.shape[2] == 9


@pytest.mark.hlo
@pytest.mark.parametrize("form", ["scanned", "pre-norm", *tiers.nightly("bfloat16")])
def test_extracted_networks_give_the_same_at_exact_costs(form):
    """P3 and P7, with the chosen blocks alone."""
    net, variables = FORMS[form], {"params": params_of(FORMS[form])}
    tolerance = 1e-5 if form != "bfloat16" else 2e-2
    jax.eval_shape(net.apply, variables, TOKENS, SOFT)
    _, cut = promises.check_extracted(net, variables, MIXED, TOKENS[:2], tolerance)
    names = {path[1] for path in flax.traverse_util.flatten_dict(cut["params"]) if "block" in path[0]}
    assert names == {"blocks_attention", "blocks_feed_forward"}


def test_dropout_is_on_in_training_alone():
    """In bfloat16 too, of which the scores have nothing."""
    net = FORMS["bfloat16"].clone(scan_blocks=True, dropout=0.5, attention_dropout=0.5)
    variables, inputs = {"params": params_of(net)}, {"tokens": TOKENS, "targets": TARGETS}

    def scores(seed):
        return net.apply(variables, inputs, LARGEST, train=True, rngs={"dropout": jax.random.key(seed)})[0]

    first, other, again = np.asarray(jit(lambda seeds: jax.lax.map(scores, seeds))(np.int32([0, 1, 0])))
    assert np.any(first != other) and np.all(np.isfinite(first)) and first.dtype == np.float32
    np.testing.assert_array_equal(first, again)
    jax.eval_shape(net.apply, variables, inputs, LARGEST)  # without any random stream


def test_interleaved_and_the_par_rule():
    assert spaces.interleaved_blocks(8) == ["attention", "feed_forward"] * 4
    for blocks, attention in ((32, 6), (24, 5), (12, 2), (4, 1)):
        names = spaces.par_rule_blocks(blocks)
        where = [i for i, name in enumerate(names) if name == "attention"]
        assert len(where) == attention and where[0] == 0 and max(where) < 2 * blocks / 3
        assert names.count("feed_forward") == blocks - attention
    assert spaces.par(32).cardinality == 3**32
    assert NET.clone(cutoffs=[5, 12]) == NET


def test_mistakes_are_refused():
    stack = Choice("identity", "attention").repeat(2, active="depth")
    make = functools.partial(supernets.TransformerXL, vocabulary=5)

    def apply(tokens, arch=LARGEST, **inputs):
        return NET.apply({"params": params_of(NET)}, {"tokens": tokens, **inputs}, arch)

    refusals.check(
        (lambda: make(Space(depth=Choice(1, 2), block=stack)), ValueError, "'block'"),
        (lambda: NET.clone(clamp_length=-1), ValueError, "clamp_length", "-1"),
        (lambda: NET.clone(memory_length=0, same_length=True), ValueError, "memory_length", "0"),
        (lambda: apply(TOKENS[0]), ValueError, "tokens", "int32", "(6,)"),
        (lambda: apply(np.float32(TOKENS)), ValueError, "tokens", "float32", "(3, 6)"),
        (lambda: apply(TOKENS, target=TARGETS), ValueError, "'target'"),
        (lambda: apply(TOKENS, None), ValueError, "architecture"),
        (lambda: spaces.interleaved_blocks(5), ValueError, "5"),
        (lambda: spaces.par_rule_blocks(6, 0.5), ValueError, "ratio", "0.5"),
    )
