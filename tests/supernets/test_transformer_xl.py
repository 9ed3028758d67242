"""PAR Transformer-XL: against a plain reference, memory against one long pass, and the promises."""

import functools
import re

import flax.linen as nn
import flax.traverse_util
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from small_nets import difference, jit, take
from test_cost import xla_macs

import jaxnas
from jaxnas import Choice, Space, spaces, supernets
from jaxnas.elastic.mixture import Mixture
from jaxnas.elastic.recurrent import Context, causal_mask, shift, sinusoids
from jaxnas.elastic.width import Decision
from jaxnas.supernets.transformer_xl import Memory
from jaxnas.training import make_mesh

pytestmark = pytest.mark.more  # a whole supernet

BLOCKS, WORDS, WIDTH, HEADS, DIM, LENGTH, MEMORY = 4, 23, 8, 2, 3, 6, 5
SPACE = spaces.par(BLOCKS)
NET = supernets.TransformerXL(
    SPACE,
    vocabulary=WORDS,
    width=WIDTH,
    num_heads=HEADS,
    head_dim=DIM,
    hidden=12,
    memory_length=MEMORY,
    dropout=0.0,
    init_std=0.5,
    cutoffs=(5, 12),
    div_value=2,
)
FORMS = {
    "unrolled": NET,
    "scanned": NET.clone(scan_blocks=True),
    "pre-norm": NET.clone(pre_norm=True),
    "bfloat16": NET.clone(dtype=jnp.bfloat16, cutoffs=()),
}
every_form = pytest.mark.parametrize("form", tiers.cases(FORMS, ("scanned",)))
seeds = st.integers(0, 2**31 - 1)
RNG = np.random.default_rng(0)
TOKENS = jnp.asarray(RNG.integers(0, WORDS, (3, LENGTH)), jnp.int32)
TARGETS = jnp.asarray(RNG.integers(0, WORDS, (3, LENGTH)), jnp.int32)
PAST = Memory(
    jnp.asarray(RNG.normal(size=(BLOCKS, 3, MEMORY, WIDTH)), jnp.float32),
    # The first row remembers nothing, the second has read less than the memory holds.
    jnp.asarray([[-1] * 5, [-1, -1, 0, 0, 0], [0] * 5], jnp.int32),
)


@functools.cache
def params_of(form):
    net = FORMS[form]
    shapes = nn.meta.unbox(jax.eval_shape(net.init, jax.random.key(0), TOKENS)["params"])
    rng = np.random.default_rng(1)
    # Kept for all tests, and the first to ask may be within a trace.
    with jax.ensure_compile_time_eval():
        return jax.tree.map(lambda x: jnp.asarray(0.4 * rng.normal(size=x.shape), jnp.float32), shapes)


TRACES = {form: [] for form in FORMS}


@functools.cache
def compiled(form):
    """Scores, memory and the gradient of the loss, for any architecture: one program."""
    net = FORMS[form]

    def run(params, arch, memory, tokens, targets):
        TRACES[form].append(arch)

        def loss(params):
            inputs = {"tokens": tokens, "targets": targets, "memory": memory}
            scores, new = net.apply({"params": params}, inputs, arch)
            return -jnp.mean(scores), (scores, new)

        gradient, (scores, new) = jax.grad(loss, has_aux=True)(params)
        return scores, new, gradient

    return jit(run)


def past_of(form):
    return PAST.replace(inputs=PAST.inputs.astype(FORMS[form].dtype))


def run(form, arch, memory=None):
    memory = past_of(form) if memory is None else memory
    return compiled(form)(params_of(form), arch, memory, TOKENS, TARGETS)


def sample(seed):
    return SPACE.sample(jax.random.key(seed))


# ---- Against a plain implementation.


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
        for t in range(len(x)):
            seen = [s for s in range(len(both)) if mask[t, s]]
            scores = []
            for s in seen:
                distance = len(past) + t - s
                content = (q[t] + p["content_bias"][part]) @ k[s]
                place = (q[t] + p["position_bias"][part]) @ r[len(both) - 1 - distance]
                scores.append((content + place) / np.sqrt(DIM))
            weights = np.exp(scores - np.max(scores))
            out[t, part] = weights / weights.sum() @ v[seen]
    return norm(x + out @ p["out_kernel"], p["norm"])


def reference_embedding(p, tokens):
    rows = []
    for token in tokens:
        for i, (first, last) in enumerate(((0, 5), (5, 12), (12, WORDS))):
            if first <= token < last:
                row = p[f"embedding_{i}"][token - first]
                rows.append(row if i == 0 else row @ p[f"projection_{i}"])
    return np.sqrt(WIDTH) * np.asarray(rows)


@pytest.mark.parametrize("row", range(3))
def test_hidden_states_are_those_of_the_paper(row):
    """Compared are the memories: the inputs of every block."""
    arch = SPACE.from_dict({"block": ["attention", "feed_forward", "identity", "attention"]})
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params_of("unrolled"))
    _, memory, _ = run("unrolled", arch)
    mask = (
        causal_mask(LENGTH, MEMORY)
        & (np.asarray([*PAST.documents[row].tolist(), *[0] * LENGTH]) >= 0)[None, :]
    )
    positions = np.float64(sinusoids(LENGTH + MEMORY, WIDTH))
    x = reference_embedding(params["vocabulary_layer"], TOKENS[row].tolist())
    for i, name in enumerate(SPACE.to_dict(arch)["block"]):
        past = np.float64(PAST.inputs[i, row])
        kept = np.concatenate([past, x])[-MEMORY:]
        np.testing.assert_allclose(memory.inputs[i, row], kept, rtol=2e-4, atol=2e-4)
        p = params[f"block_{i}"].get(f"blocks_{name}")
        x = reference_block(name, p, x, past, mask, positions)


def test_shift_turns_distances_into_keys():
    queries, keys = 4, 7
    scores = RNG.normal(size=(2, queries, 1 + keys))
    shifted = np.asarray(shift(jnp.asarray(scores)))
    for t in range(queries):
        for s in range(keys - queries + t + 1):
            distance = keys - queries + t - s
            np.testing.assert_array_equal(shifted[:, t, s], np.float32(scores[:, t, keys - distance]))


# ---- Memory.


@settings(max_examples=8)
@given(seed=seeds, length=st.sampled_from([3, 6]))
def test_segments_with_memory_equal_one_long_pass(seed, length):
    net, params = NET.clone(memory_length=18 - length), params_of("unrolled")
    tokens = jax.random.randint(jax.random.key(seed), (2, 18), 0, WORDS)
    arch = sample(seed)
    whole, _ = long_pass()(params, tokens, arch)
    memory, step = net.empty_memory(2), segment_pass(18 - length)
    for start in range(0, 18, length):
        part, memory = step(params, tokens[:, start : start + length], arch, memory)
        np.testing.assert_allclose(part, whole[:, start : start + length], rtol=1e-4, atol=1e-4)


@functools.cache
def long_pass():
    return jit(lambda params, *args: NET.clone(memory_length=0).apply({"params": params}, *args))


@functools.cache
def segment_pass(memory_length):
    net = NET.clone(memory_length=memory_length)
    return jit(lambda p, x, arch, memory: net.apply({"params": p}, {"tokens": x, "memory": memory}, arch))


def kept_sizes(call, *inputs):
    """Elements of each float32 array that is kept for the backward pass."""
    _, backward = jax.vjp(call, *inputs)
    return [leaf.size for leaf in jax.tree.leaves(backward) if leaf.dtype == jnp.float32]


@pytest.mark.parametrize("pre_norm", [False, True])
def test_what_is_kept_for_the_backward_pass(pre_norm):
    """No scores, of which there are more than of anything else; and blocks of a switch share one store."""
    batch, length, hidden = 2, 64, 4 * WIDTH
    net = NET.clone(pre_norm=pre_norm, hidden=hidden, num_heads=HEADS, head_dim=WIDTH // HEADS)
    x = jnp.ones((batch, length, WIDTH))
    context = Context(
        x,
        np.broadcast_to(causal_mask(length, length), (batch, length, 2 * length)),
        jnp.asarray(sinusoids(2 * length, WIDTH)),
    )
    params, alone = {}, {}
    for option in supernets.transformer_xl.OPTIONS:
        block = net.block(option)
        variables = block.init(jax.random.key(0), x, context)
        params[f"blocks_{option}"] = variables.get("params", {})
        kept = kept_sizes(lambda p, x, block=block: block.apply(p, x, context), variables, x)
        assert sum(kept) < batch * length * (hidden + 12 * WIDTH)
        assert max(kept, default=0) < batch * HEADS * length * 2 * length
        alone[option] = sum(kept)
    options = supernets.transformer_xl.OPTIONS
    mixture = Mixture({name: net.block(name) for name in options})

    def switched(params, x, index):
        choice = Decision(("block", None), options, index)
        return mixture.apply({"params": params}, choice, x, context)

    index = jnp.int32(1)
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    together = sum(kept_sizes(lambda p, x: switched(p, x, index), params, x))
    assert together < max(alone.values()) + weights + 0.2 * alone["feed_forward"]


@pytest.mark.hlo
@pytest.mark.eight_devices
def test_rows_on_several_devices_are_not_gathered():
    """Gradients are summed over the devices, and nothing else goes between them."""
    net = FORMS["scanned"].clone(cutoffs=(), num_heads=2, head_dim=WIDTH // 2, hidden=4 * WIDTH)
    mesh, memory = make_mesh(2), net.empty_memory(4)
    params = jaxnas.elastic.stack_layers(jaxnas.init(net, jax.random.key(0), TOKENS)["params"])
    words = jnp.zeros((4, LENGTH), jnp.int32)
    batch = {"tokens": words, "targets": words, "first": jnp.zeros(4, bool)}
    everywhere, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    where = Memory(NamedSharding(mesh, PartitionSpec(None, "data")), rows)

    def loss(params, arch, batch, memory):
        inputs = {"tokens": batch["tokens"], "targets": batch["targets"], "memory": memory}
        scores, memory = net.apply({"params": params}, inputs, arch)
        return -jnp.mean(scores), memory

    gradient = jax.jit(jax.grad(loss, has_aux=True), in_shardings=(everywhere, everywhere, rows, where))
    program = gradient.lower(params, SPACE.largest(), batch, memory).compile().as_text()
    found = set(re.findall(r"(all-gather|all-reduce|all-to-all|collective-permute)\(", program))
    assert found == {"all-reduce"}


def test_no_gradient_flows_into_the_memory():
    def loss(inputs):
        memory = PAST.replace(inputs=inputs)
        given = {"tokens": TOKENS, "memory": memory}
        scores, new = NET.apply({"params": params_of("unrolled")}, given, SPACE.largest())
        return jnp.sum(new.inputs), jnp.sum(scores)

    through_memory, _ = jax.jit(lambda x: jax.vjp(loss, x)[1]((1.0, 0.0)))(PAST.inputs)[0], None
    assert not np.any(np.asarray(through_memory))


def test_documents_see_themselves_only():
    """A row of two documents gives for the second what it gives alone."""
    params, arch = params_of("unrolled"), SPACE.largest()
    documents = jnp.asarray([[0, 0, 1, 1, 1, 1]] * 3, jnp.int32)

    @jit
    def apply(tokens, documents, memory):
        given = {"tokens": tokens, "memory": memory, "documents": documents}
        return NET.apply({"params": params}, given, arch)

    memory = PAST.replace(documents=jnp.zeros((3, MEMORY), jnp.int32))
    together, new = apply(TOKENS, documents, memory)
    np.testing.assert_array_equal(new.documents, [[0, 1, 1, 1, 1][-MEMORY:]] * 3)
    other = jnp.concatenate([(TOKENS[:, :2] + 7) % WORDS, TOKENS[:, 2:]], axis=1)
    elsewhere, _ = apply(other, documents, memory.replace(inputs=-memory.inputs))
    np.testing.assert_allclose(together[:, 2:], elsewhere[:, 2:], rtol=1e-5)
    assert not np.allclose(together[:, :2], elsewhere[:, :2])


def test_forgotten_rows_are_as_at_the_start():
    arch = SPACE.largest()
    forgotten, _, _ = run("unrolled", arch, past_of("unrolled").forget(jnp.array([True, True, False])))
    empty, _, _ = run("unrolled", arch, NET.empty_memory(3))
    kept, _, _ = run("unrolled", arch)
    np.testing.assert_array_equal(forgotten[:2], empty[:2])
    np.testing.assert_array_equal(forgotten[2], kept[2])


def test_masks_and_distances_at_evaluation():
    mask = causal_mask(4, 3, same_length=True)
    assert mask.sum(1).tolist() == [3] * 4  # every query sees as many keys, itself among them
    assert all(mask[t, 3 + t] and not mask[t, 4 + t :].any() for t in range(4))
    assert causal_mask(4, 3).sum(1).tolist() == [4, 5, 6, 7]
    clamped = sinusoids(6, 8, clamp=2)
    np.testing.assert_array_equal(clamped[:4], np.repeat(clamped[3:4], 4, axis=0))
    np.testing.assert_array_equal(clamped[3:], sinusoids(3, 8))
    params = params_of("unrolled")
    long = NET.clone(memory_length=9, same_length=True, clamp_length=4)
    scores, memory = jit(lambda: long.apply({"params": params}, TOKENS, SPACE.largest()))()
    assert scores.shape == (3, LENGTH, WORDS) and memory.inputs.shape[2] == 9


# ---- The promises.


@every_form
@settings(max_examples=3)
@given(seed=seeds)
def test_extracted_networks_give_the_same(form, seed):
    """P3, and P7: as many parameters, exactly, and XLA's own count of products."""
    net, variables, arch = FORMS[form], {"params": params_of(form)}, sample(seed)
    small, small_variables, error = jaxnas.extract(net, variables, arch, verify=TOKENS[:2])
    small_params = small_variables["params"]
    assert error < (1e-5 if form != "bfloat16" else 2e-2)
    cost = jaxnas.cost(net, TOKENS)(arch)
    sizes = [leaf.size for leaf in jax.tree.leaves(small_params)]
    assert cost["params"] == sum(sizes)
    names = {path[1] for path in flax.traverse_util.flatten_dict(small_params) if "block" in path[0]}
    chosen = {f"blocks_{name}" for name in SPACE.to_dict(arch)["block"]} - {"blocks_identity"}
    assert names == chosen


@pytest.mark.hlo
@pytest.mark.parametrize("form", ["unrolled", "pre-norm"])
def test_products_are_those_that_xla_counts(form):
    arch = SPACE.from_dict({"block": ["attention", "feed_forward", "identity", "attention"]})
    variables = {"params": params_of(form)}
    net, variables, _ = jaxnas.extract(FORMS[form], variables, arch, verify=TOKENS[:1])
    forward = jax.jit(lambda variables, tokens: net.apply(variables, tokens)[0])
    text = forward.lower(variables, TOKENS[:1]).as_text("hlo")
    assert xla_macs(text) == jaxnas.cost(FORMS[form], TOKENS)(arch)["macs"]


@settings(max_examples=10)
@given(seed=seeds)
def test_scanned_blocks_are_the_unrolled_ones(seed):
    arch = sample(seed)
    stacked = jaxnas.elastic.stack_layers(params_of("scanned"))
    for soft in (False, True):
        given_arch = SPACE.soften(arch) if soft else arch
        one, two = run("unrolled", given_arch), run("scanned", given_arch)
        assert difference(two[:2], one[:2]) < 1e-5 and difference(two[2], one[2]) < 1e-4
        three = compiled("scanned")(stacked, given_arch, past_of("scanned"), TOKENS, TARGETS)
        assert difference(three[0], two[0]) < 1e-6


@every_form
def test_one_program_for_every_architecture(form):
    """P1; hard and soft are two programs."""
    before = len(TRACES[form])
    for seed in range(20):
        run(form, sample(seed))
    assert len(TRACES[form]) - before <= 1
    weights = jax.nn.softmax(jax.random.normal(jax.random.key(0), (BLOCKS, 3)))
    for scale in (1.0, 0.5):
        run(form, {"block": weights * scale})
    assert len(TRACES[form]) - before <= 2


@pytest.mark.parametrize("form", [*tiers.more("unrolled"), "scanned"])
def test_vmap_over_architectures_is_the_loop(form):
    """P5, hard and soft."""
    archs = SPACE.sample(jax.random.key(4), 3)
    for batch in (archs, jax.vmap(SPACE.soften)(archs)):
        inputs = {"tokens": TOKENS, "targets": TARGETS, "memory": past_of(form)}
        variables = {"params": params_of(form)}
        many, _ = jit(jax.vmap(FORMS[form].apply, (None, None, 0)))(variables, inputs, batch)
        for i in range(3):
            np.testing.assert_allclose(many[i], run(form, take(batch, i))[0], rtol=1e-4, atol=1e-5)


@settings(max_examples=5)
@given(seed=seeds)
def test_soft_costs_are_expected_costs(seed):
    cost = jaxnas.cost(NET, TOKENS)
    weights = jax.nn.softmax(jax.random.normal(jax.random.key(seed), (BLOCKS, 3)))
    every = SPACE.enumerate()
    probability = np.prod(np.asarray(weights)[np.arange(BLOCKS), np.asarray(every["block"])], axis=1)
    for name, exact in cost(every).items():
        expected = cost({"block": weights})[name]
        np.testing.assert_allclose(expected, np.sum(probability * exact), rtol=1e-4)


def test_dropout_is_on_in_training_alone():
    net = NET.clone(dropout=0.5, attention_dropout=0.5, scan_blocks=True)

    def scores(train, seed):
        return jit(
            lambda key: net.apply(
                {"params": params_of("unrolled")},
                {"tokens": TOKENS, "targets": TARGETS},
                SPACE.largest(),
                train=train,
                rngs={"dropout": key},
            )[0]
        )(jax.random.key(seed))

    np.testing.assert_array_equal(scores(False, 0), scores(False, 1))
    assert np.any(np.asarray(scores(True, 0)) != np.asarray(scores(True, 1)))
    np.testing.assert_array_equal(scores(True, 0), scores(True, 0))


def test_saved_networks_come_back(tmp_path):
    arch = SPACE.from_dict({"block": spaces.par_rule_blocks(BLOCKS)})
    small, variables, _ = jaxnas.extract(NET, {"params": params_of("unrolled")}, arch, inputs=TOKENS)
    jaxnas.save_subnet(tmp_path / "subnet", small, variables, TOKENS)
    loaded, same = jaxnas.load_subnet(tmp_path / "subnet")
    assert loaded == small
    jax.tree.map(np.testing.assert_array_equal, same, variables)
    path = jaxnas.export_subnet(tmp_path / "subnet", small, variables, TOKENS)
    program = jax.export.deserialize(path.read_bytes())
    scores, _ = jit(small.apply)(variables, TOKENS)
    np.testing.assert_allclose(program.call(TOKENS), scores, rtol=1e-4, atol=1e-5)


# ---- Known architectures, and errors.


def test_interleaved_and_the_par_rule():
    assert spaces.interleaved_blocks(8) == ["attention", "feed_forward"] * 4
    for blocks, attention in ((32, 6), (24, 5), (12, 2), (4, 1)):
        names = spaces.par_rule_blocks(blocks)
        where = [i for i, name in enumerate(names) if name == "attention"]
        assert len(where) == attention and where[0] == 0 and max(where) < 2 * blocks / 3
        assert names.count("feed_forward") == blocks - attention
    assert spaces.par(32).cardinality == 3**32


def test_clear_errors():
    stack = Choice("identity", "attention").repeat(2, active="depth")
    by_depth = Space(depth=Choice(1, 2), block=stack)
    for space in (spaces.digits(), by_depth):
        with pytest.raises(ValueError, match="'block'"):
            supernets.TransformerXL(space, vocabulary=5)
    with pytest.raises(TypeError, match="space is None"):
        supernets.TransformerXL(None, vocabulary=5)
    numbers = (("num_heads", 0), ("hidden", 0), ("clamp_length", -1))
    for name, wrong in (*numbers, ("dropout", 1.5), ("attention_dropout", -0.1)):
        with pytest.raises(ValueError, match=f"TransformerXL: {name} is {wrong}, expected"):
            NET.clone(**{name: wrong})
    assert NET.clone(cutoffs=[5, 12]) == NET
    apply = functools.partial(NET.apply, {"params": params_of("unrolled")})
    with pytest.raises(ValueError, match="memory_length is 0"):
        NET.clone(memory_length=0, same_length=True)
    with pytest.raises(ValueError, match="4, 3"):
        apply({"tokens": TOKENS, "memory": NET.empty_memory(2)}, SPACE.largest())
    with pytest.raises(ValueError, match=r"integer tokens \[B, T\], got int32 of shape \(6,\)"):
        apply(TOKENS[0], SPACE.largest())
    with pytest.raises(ValueError, match="3, 6"):
        apply(TOKENS.astype(jnp.float32), SPACE.largest())
    with pytest.raises(ValueError, match="'target'"):
        apply({"tokens": TOKENS, "target": TARGETS}, SPACE.largest())
    with pytest.raises(ValueError, match="more than one architecture"):
        apply(TOKENS)
    with pytest.raises(ValueError, match="pairs; got 5"):
        spaces.interleaved_blocks(5)
    with pytest.raises(ValueError, match="ratio is 0.5"):
        spaces.par_rule_blocks(6, 0.5)
