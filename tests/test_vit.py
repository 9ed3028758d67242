"""The promises P1, P2, P3 and P5 of the ViT supernet, over random architectures."""

import functools
import re

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from small_nets import CLASSES, SETTINGS, SHAPE, difference, jit, normal, sample, setting, take

import jaxnas
from jaxnas import spaces
from jaxnas.cost import annotations
from jaxnas.elastic import loop, switch
from jaxnas.elastic.attention import AttentionOperation, skew, unskew
from jaxnas.elastic.empty import empty
from jaxnas.elastic.layers import DenseOperation, LayerNormOperation, MlpOperation, PreNorm
from jaxnas.elastic.loop import run_layer, run_layers
from jaxnas.elastic.switch import Sublayer, _keeping_branch, backward_from, forward_keeping
from jaxnas.elastic.width import Decision, fixed, width
from jaxnas.supernets import stack_layers, unstack_layers
from jaxnas.training.step import data_mesh

every_setting = pytest.mark.parametrize("name", SETTINGS)
seeds = st.integers(0, 2**31 - 1)


@functools.cache
def specs_of(name):
    return annotations(setting(name).net, SHAPE).specs


@functools.cache
def masks_of(name):
    """A function from an architecture to which elements of each parameter are active."""
    return jit(lambda arch: {path: spec.mask(arch) for path, spec in specs_of(name).items()})


def flatten(tree):
    """Leaves on the host by their paths."""
    return flax.traverse_util.flatten_dict(jax.tree.map(np.asarray, tree))


# ---- P1: one program.


def test_a_thousand_architectures_are_one_trace():
    """Forward and gradient; a new trace, for whatever reason, would append to `traces`."""
    case = setting("wide")
    batch = jax.tree.map(np.asarray, sample(case.space, 0, 1000))
    case(take(batch, 0))
    traced = len(case.traces)
    logits = [case(take(batch, i))[0] for i in range(1000)]
    assert len(case.traces) == traced == 1
    distinct = {tuple(row) for row in np.asarray(case.space.encode(batch)).tolist()}
    # Each network is another function: no two distinct architectures give the same logits.
    assert len({x.tobytes() for x in map(np.asarray, logits)}) == len(distinct) > 200


# ---- P2: zero tail.


# Modules of a block that only declare weights: one operation each computes attention and MLP.
DECLARING = ("attention_norm", "attention", "projection", "mlp_norm", "mlp_in", "mlp_out")


def active_width(values, path):
    """The width of a module's output from the option values, by the module's name."""
    dim = values["embed_dim"]
    return CLASSES if path == ("head",) else dim


@every_setting
@settings(max_examples=4)
@given(seed=seeds)
def test_tail_of_activations_is_zero(name, seed):
    case = setting(name)
    arch = sample(case.space, seed)
    values = case.space.to_dict(arch)
    skipped = tuple(f"block_{layer}" for layer in range(values["depth"], 2))
    _, outputs, _ = case(arch)
    checked = 0
    for path, (output,) in flatten(outputs).items():
        path = path[:-1]  # ends in "__call__"
        inside = len(path) > 1 and path[0].startswith("block_")
        if path and not (inside and (path[0] in skipped or path[-1] in DECLARING)):
            width = active_width(values, path)
            assert np.any(output[..., :width] != 0), path
            assert not np.any(output[..., width:] != 0), path
            checked += 1
    assert checked == 5 + 2  # outside of the blocks, and the blocks


FLOAT = np.dtype(np.float32)
OPERATIONS = {
    "dense": (DenseOperation(FLOAT), (4, 3), ((5, 6), (6, 8), (8,))),
    "mlp": (MlpOperation(FLOAT), (4, 3), ((5, 6), (6, 8), (8,), (8, 6), (6,))),
    "attention": (
        AttentionOperation(7, (2, 3), FLOAT),
        (6, 3),
        ((14, 10), (10, 3, 5, 4), (3, 5, 4), (20, 10), (10,), (9, 4), (9, 4)),
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("normalised", [False, True])
def test_what_an_operation_keeps_gives_the_gradients_of_its_active_part(name, normalised):
    operation, sizes, full = OPERATIONS[name]
    if normalised:
        operation = PreNorm(operation, LayerNormOperation(1e-5, FLOAT))
        full = (full[0], full[0][1:], full[0][1:], *full[1:])
    operands = [normal(*shape) for shape in full]
    shapes = operation.shapes(sizes, *operands)
    active = [x[tuple(map(slice, shape))] for x, shape in zip(operands, shapes, strict=True)]
    assert active[0].shape == (full[0][0], sizes[0])
    outputs, kept = forward_keeping(operation, *active)
    expected, vjp = jax.vjp(operation.compute, *active)
    assert difference(outputs, expected) <= 1e-6
    cotangents = (normal(*outputs[0].shape),)
    gradients = backward_from(operation, tuple(active), kept, cotangents)
    assert [x.shape for x in gradients] == list(shapes)
    assert difference(tuple(gradients), vjp(cotangents)) <= 1e-5
    # As a switch stores them: of the maximal sizes, with a zero tail.
    stored = _keeping_branch(operation, sizes, *operands)
    largest = jax.eval_shape(functools.partial(forward_keeping, operation), *operands)
    for part, one, whole in zip(*map(jax.tree.leaves, (stored, (outputs, kept), largest)), strict=True):
        assert part.shape == whole.shape
        inside = np.zeros(part.shape, bool)
        inside[tuple(map(slice, one.shape))] = True
        assert np.all(np.asarray(part)[inside] != 0) and not np.any(np.asarray(part)[~inside])


def test_attention_weights_that_are_kept_sum_to_one():
    operation, _, shapes = OPERATIONS["attention"]
    _, (qkv, attended, weights, places) = operation.forward(*(normal(*shape) for shape in shapes))
    assert qkv.shape == (3, 2, 5, 7, 4) and attended.shape == (2, 5, 7, 4)
    assert weights.shape == (2, 5, 7, 7) and places.shape == (2, 5, 7, 2 + 3 + 1)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)


def test_offsets_and_places_are_transposes():
    operation, n = AttentionOperation(7, (2, 3), FLOAT), 2
    by_offset, by_place = normal(n * 7, 3 + 5 + 1), normal(n * 7, 2 + 3 + 1)
    there, back = operation._to_places(by_offset), operation._to_offsets(by_place)
    assert there.shape == by_place.shape and back.shape == by_offset.shape
    np.testing.assert_allclose(np.vdot(there, by_place), np.vdot(by_offset, back), rtol=1e-5)
    # Every key is at one offset of each query, in rows and in columns, or the class token.
    keys = operation._by_key(operation._to_places(jnp.ones((n * 7, 9)).at[:, 3:8].set(0)))
    np.testing.assert_array_equal(keys, np.ones((n, 7, 7)))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_skew_moves_offsets_to_places_and_unskew_is_its_transpose(size):
    x = normal(2, size, 3, 2 * size - 1)
    y = skew(x)
    for a in range(size):
        for place in range(size):
            np.testing.assert_array_equal(y[:, a, :, place], x[:, a, :, size - 1 + place - a])
    (transposed,) = jax.linear_transpose(skew, x)(y)
    np.testing.assert_array_equal(unskew(y), transposed)


@every_setting
@settings(max_examples=4)
@given(seed=seeds)
def test_gradient_outside_the_active_weights_is_zero(name, seed):
    case = setting(name)
    arch = sample(case.space, seed)
    gradient, masks = flatten(case(arch)[2]), masks_of(name)(arch)
    assert gradient.keys() == masks.keys()
    for path, mask in masks.items():
        mask = np.broadcast_to(mask, gradient[path].shape)
        assert not np.any(np.where(mask, 0, gradient[path])), path
        assert np.any(gradient[path]) == np.any(mask), path


# ---- P3: the same function.


@every_setting
@settings(max_examples=2)
@given(seed=seeds)
def test_extracted_is_the_same_function(name, seed):
    """Outputs and gradients; the weights are prefixes, as weight entanglement defines them."""
    case = setting(name)
    arch = sample(case.space, seed)
    small, params = jaxnas.extract(case.net, case.params, arch, input_shape=SHAPE)
    logits, _, gradient = case(arch)

    @jit
    def run(params):
        def loss(params):
            logits = small.apply({"params": params}, case.images)
            return jnp.sum(logits * case.weights), logits

        return jax.grad(loss, has_aux=True)(params)

    small_gradient, small_logits = run(params)
    assert difference(small_logits, logits) <= case.tolerance
    large, specs = flatten(case.params), specs_of(name)
    expected = {path: specs[path].active(leaf, arch) for path, leaf in flatten(gradient).items()}
    # Relative to the largest gradient: that of a key's bias is nothing but rounding.
    scale = max(np.max(np.abs(leaf), initial=0) for leaf in expected.values())
    for path, leaf in flatten(small_gradient).items():
        assert np.max(np.abs(leaf - expected[path])) <= case.tolerance * scale, path
    for path, leaf in flatten(params).items():
        if leaf.ndim == large[path].ndim:  # classic sharing stores one more axis
            prefix = tuple(slice(size) for size in leaf.shape)
            np.testing.assert_array_equal(leaf, large[path][prefix])


def test_extract_verifies():
    case = setting("wide")
    arch = sample(case.space, 5)
    *_, error = jaxnas.extract(case.net, case.params, arch, verify=case.images)
    assert 0 <= error <= 1e-5


def test_verification_fails_where_the_networks_differ(monkeypatch):
    case = setting("wide")
    monkeypatch.setattr(jaxnas.subnet, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="differs from the supernet by"):
        jaxnas.extract(case.net, case.params, case.space.smallest(), verify=case.images)


def primitives(jaxpr):
    """Every equation of a program, with those inside of its calls."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


@pytest.mark.parametrize("name", [*SETTINGS, "scanned"])
@settings(max_examples=4)
@given(seed=seeds)
def test_nothing_of_the_supernet_is_in_the_extracted_program(name, seed):
    case = setting(name)
    arch = sample(case.space, seed)
    small, params = jaxnas.extract(case.net, case.params, arch, input_shape=SHAPE)

    def loss(params):
        return jnp.sum(small.apply({"params": params}, case.images))

    forward = jax.make_jaxpr(loss)(params)
    assert {leaf.shape for leaf in forward.in_avals} == {x.shape for x in jax.tree.leaves(params)}
    for equation in primitives(forward.jaxpr):
        used = equation.primitive.name
        assert "switch" not in used and "custom" not in used
        assert used not in ("cond", "while", "scan", "iota") and "dynamic" not in used
        sizes = [v.aval for v in equation.outvars]
        if used == "select_n":  # of the table rows of relative positions
            assert all(aval.dtype == jnp.int32 for aval in sizes)
        if not case.net.max_relative_position:
            assert used not in ("select_n", "pad", "gather")
    # The largest network's program and this one differ in sizes only.
    backward = jax.make_jaxpr(jax.grad(loss))(params)
    assert "cond" not in {equation.primitive.name for equation in primitives(backward.jaxpr)}


# ---- P5: vmap = loop.


def check_vmapped(name, axes, images, archs):
    """Compares logits and gradients of a vmapped run with those of the loop over it."""
    case = setting(name)
    logits, _, gradients = jit(jax.vmap(case.run, axes))(case.params, images, archs)
    logits, gradients = np.asarray(logits), flatten(gradients)
    tolerance = 10 * case.tolerance
    for i in range(len(logits)):
        arch = archs if axes[2] is None else take(archs, i)
        one = case.compiled(case.params, images if axes[1] is None else images[i], arch)
        assert difference(logits[i], one[0]) <= tolerance
        expected, masks = flatten(one[2]), masks_of(name)(arch)
        scale = max(np.max(np.abs(leaf)) for leaf in expected.values())
        for path, leaf in expected.items():
            value, mask = gradients[path][i], np.broadcast_to(masks[path], leaf.shape)
            assert np.max(np.abs(value - leaf)) <= tolerance * scale, path
            assert not np.any(np.where(mask, 0, value)), path


@pytest.mark.parametrize("name", ["narrow", "classic", "scanned"])
def test_vmap_over_architectures_is_the_loop(name):
    case = setting(name)
    check_vmapped(name, (None, None, 0), case.images, sample(case.space, 3, 5))


@pytest.mark.parametrize(
    "name, axes",
    [("wide", (None, 0, None)), ("wide", (None, 0, 0)), ("scanned", (None, 0, None))],
    ids=["data", "both", "scanned"],
)
def test_vmap_over_data_is_the_loop(name, axes):
    archs = sample(setting(name).space, 4, 4 if axes[2] == 0 else None)
    check_vmapped(name, axes, normal(4, *SHAPE), archs)


# ---- Layers in a loop.


@settings(max_examples=4)
@given(seed=seeds)
def test_scanned_layers_are_the_unrolled_ones(seed):
    arch = sample(setting("scanned").space, seed)
    logits, _, gradient = setting("scanned")(arch)
    expected, _, expected_gradient = setting("narrow")(arch)
    assert difference(logits, expected) <= 1e-5
    scale = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(expected_gradient))
    masks, gradient = masks_of("scanned")(arch), flatten(gradient)
    for path, leaf in flatten(expected_gradient).items():
        assert np.max(np.abs(gradient[path] - leaf)) <= 1e-5 * scale, path
        assert not np.any(np.where(masks[path], 0, gradient[path])), path


def test_stacked_parameters_are_the_same_network():
    case = setting("scanned")
    stacked = stack_layers(case.params)
    assert "block_0" not in stacked and stack_layers(stacked) is stacked
    back = unstack_layers(stacked)
    jax.tree.map(np.testing.assert_array_equal, back, case.params)
    arch = sample(case.space, 0)
    (logits, _, gradient), (expected, _, expected_gradient) = case(arch, stacked), case(arch)
    np.testing.assert_array_equal(logits, expected)
    assert difference(unstack_layers(gradient), expected_gradient) <= 1e-6
    with pytest.raises(ValueError, match="unstack_layers"):
        setting("narrow")(arch, stacked)
    small = jaxnas.extract(case.net, stacked, arch, verify=case.images)[1]
    jax.tree.map(
        np.testing.assert_array_equal,
        small,
        jaxnas.extract(case.net, case.params, arch, input_shape=SHAPE)[1],
    )
    other = case.params | {"block_1": {"bias": jnp.zeros(3)}}
    with pytest.raises(ValueError, match="block_1 and block_0 differ in size"):
        stack_layers(other)


def test_layers_in_a_loop_with_64_bits():
    case = setting("scanned")
    arch = sample(case.space, 0)
    expected = case(arch)[0]
    with jax.enable_x64(True):
        apply = jit(lambda arch: case.net.apply({"params": case.params}, case.images, arch))
        assert difference(apply(arch), expected) <= 1e-5


@pytest.mark.parametrize("name", ["narrow", "scanned"])
def test_a_population_over_devices_is_the_loop(name):
    """One architecture after the other on each device: real branches, which `vmap` has not."""
    case, mesh = setting(name), data_mesh(4)
    archs, along = sample(case.space, 5, 8), PartitionSpec("data")

    def logits(arch):
        return case.net.apply({"params": case.params}, case.images, arch)

    population = jax.shard_map(
        lambda archs: jax.lax.map(logits, archs),
        mesh=mesh,
        in_specs=along,
        out_specs=along,
        check_vma=False,
    )
    for i, one in enumerate(jit(population)(archs)):
        assert difference(one, case(take(archs, i))[0]) <= 1e-5


MLP = (MlpOperation(FLOAT), [(6, 8), (8,), (8, 6), (6,)])
ATTENTION = (AttentionOperation(5, (2, 2), FLOAT), [(6, 3, 4, 3), (3, 4, 3), (12, 6), (6,), (7, 3), (7, 3)])


@pytest.mark.parametrize("small", [0, 8192], ids=["large", "small"])
@pytest.mark.parametrize("normalised", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize(
    "kind, options",
    [(MLP, (8,)), (MLP, (3, 8)), (ATTENTION, (4,)), (ATTENTION, (1, 4)), (ATTENTION, (2, 4))],
    ids=["mlp", "elastic mlp", "attention", "elastic attention", "pairs of heads"],
)
def test_layers_in_a_loop_are_one_after_another(kind, options, normalised, small, monkeypatch):
    """Also with factors of examples, where no size is chosen, and heads block by block."""
    monkeypatch.setattr(loop, "SMALL", small)
    operation, shapes = kind
    if normalised:
        operation, shapes = PreNorm(operation, LayerNormOperation(1e-5, FLOAT)), [(6,), (6,), *shapes]
    chosen = jnp.asarray([0, len(options) - 1, 0], jnp.int32)
    weights = [0.3 * normal(3, *shape) for shape in shapes]  # sharper attention magnifies rounding
    x, scales = normal(2, 5, 6), jnp.asarray([[1, 0], [2, 1], [0, 1]], jnp.float32)

    def sublayer(weights, size):
        size = width(lambda size: size, Decision(("size", None), options, size))
        return Sublayer(operation, (fixed(6), size), tuple(weights))

    def looped(x, weights):
        stacked = jax.vmap(sublayer)(weights, chosen)
        return run_layers(x, (stacked,), (scales,))

    def unrolled(x, weights):
        for layer in range(3):
            one = sublayer([w[layer] for w in weights], chosen[layer])
            x = run_layer(x, (one,), (scales[layer],))
        return x

    @functools.partial(jit, static_argnums=0)
    def value_and_gradients(fn, x, weights):
        value, vjp = jax.vjp(fn, x, weights)
        return value, vjp(jnp.cos(value))

    looped, unrolled = (value_and_gradients(fn, x, weights) for fn in (looped, unrolled))
    assert difference(looped, unrolled) <= 1e-6


def test_heads_are_turns_and_not_branches():
    """The gradient's program does not grow with the options for the number of heads."""

    def products(heads):
        space = spaces.vit((8, 12), (1, 2), heads, (1.0, 2.0))
        net = jaxnas.supernets.ViT(space, 8, 4, 3, 4, scan_layers=True)
        params = stack_layers(jaxnas.init(net, jax.random.key(0), (2, 8, 8, 3)))
        gradient = jax.grad(lambda params, arch: jnp.sum(net.apply({"params": params}, images, arch)))
        return str(jax.make_jaxpr(gradient)(params, space.largest())).count("dot_general")

    images = normal(2, 8, 8, 3)
    assert products((2, 8)) == products((2, 4, 6, 8))


def test_layers_in_a_loop_are_read_and_written_in_place(monkeypatch):
    """Neither weights nor what layers keep is copied as a whole, in a step or in a loop over steps."""
    monkeypatch.setattr(loop, "SMALL", 0)
    case = setting("scanned")
    params, arch = stack_layers(case.params), case.space.largest()
    gradient = jax.grad(lambda params, arch: jnp.sum(case.net.apply({"params": params}, case.images, arch)))

    def steps(params, arch):
        def step(_, params):
            return jax.tree.map(jnp.subtract, params, gradient(params, arch))

        return jax.lax.fori_loop(0, 2, step, params)

    def made(program, name):
        """Shapes that instructions of this name have, in the loops of a program and outside."""
        shapes = {"loops": set(), "entry": set()}
        for computation in re.split(r"\n(?=%|ENTRY)", program):
            if not computation.startswith(("%fused", "%wrapped")):
                where = "entry" if computation.startswith("ENTRY") else "loops"
                shapes[where] |= set(re.findall(rf"= \w+\[({layers},\d+,[\d,]+)\]\S* {name}\(", computation))
        return shapes

    layers = max(case.space.choices["depth"].options)
    program, of_steps = (jax.jit(fn).lower(params, arch).compile().as_text() for fn in (gradient, steps))
    stores, copies = made(program, "custom-call"), made(program, "copy")
    assert stores["entry"] and not stores["loops"] and not copies["loops"]
    assert not copies["entry"] & stores["entry"]  # one array for two stores of one shape
    # A store that XLA moved out of the loop over steps would be copied in each.
    in_steps, copies = made(of_steps, "custom-call"), made(of_steps, "copy")
    assert in_steps == {"loops": stores["entry"], "entry": set()}
    assert not (copies["loops"] | copies["entry"]) & stores["entry"]


@pytest.mark.parametrize("batched", [False, True], ids=["one", "several"])
@pytest.mark.parametrize(("name", "module"), [("scanned", loop), ("wide", switch)])
def test_what_layers_keep_is_written_before_it_is_read(name, module, batched, monkeypatch):
    """Memory that nobody has written may hold anything: here it holds no numbers."""
    case = setting(name)
    archs = sample(case.space, 3, 2) if batched else case.space.smallest()  # with a layer that does not run

    def gradient(params, archs):
        # A new function for each trace.
        one = jax.grad(lambda params, arch: jnp.sum(case.net.apply({"params": params}, case.images, arch)))
        return jax.vmap(one, (None, 0))(params, archs) if batched else one(params, archs)

    expected = jit(gradient)(case.params, archs)
    jax.clear_caches()  # what was traced has the memory as it is
    made = []

    def no_numbers(like, after):
        made.append(like)
        return jax.tree.map(lambda one: jnp.full(one.shape, jnp.nan, one.dtype), like)

    monkeypatch.setattr(module, "empty", no_numbers)
    found = jit(functools.partial(gradient))(case.params, archs)
    jax.clear_caches()
    assert made
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_an_empty_array_can_be_written():
    """In a program for one device, for several, and for several architectures."""

    def squares(x):
        def write(i, store):
            return jax.lax.dynamic_update_slice(store, jnp.square(x)[None] * i, (i, 0, 0))

        return jax.lax.fori_loop(0, 3, write, empty(jax.ShapeDtypeStruct((3, *x.shape), x.dtype), x))

    x = normal(4, 5)
    expected = jnp.stack([i * jnp.square(x) for i in range(3)])
    each = jit(jax.vmap(squares))(x[:, None])[:, :, 0]  # [4, 3, 5]
    rows = NamedSharding(data_mesh(4), PartitionSpec("data"))
    for found in (jit(squares)(x), each.swapaxes(0, 1), jit(squares, in_shardings=rows)(x)):
        assert difference(found, expected) <= 1e-6


# ---- Several devices.


@pytest.mark.parametrize("name", ["narrow", "scanned"])
def test_rows_on_several_devices_are_not_gathered(name):
    """Gradients are summed over the devices, and nothing else goes between them."""
    case, mesh = setting(name), data_mesh(2)
    params = stack_layers(case.params) if name == "scanned" else case.params

    def loss(params, images, arch):
        return jnp.mean(jnp.square(case.net.apply({"params": params}, images, arch)))

    everywhere, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    gradient = jit(jax.grad(loss), in_shardings=(everywhere, rows, everywhere), out_shardings=everywhere)
    program = gradient.lower(params, normal(4, *SHAPE[1:]), case.space.largest()).compile().as_text()
    found = set(re.findall(r"(all-gather|all-reduce|all-to-all|collective-permute)\(", program))
    assert found == {"all-reduce"}


# ---- Depth.


def test_inactive_layers_change_nothing():
    """Neither their weights nor what an architecture chooses for them."""
    case = setting("wide")
    values = dict(embed_dim=24, depth=1, num_heads=[2], mlp_ratio=[2.0])
    arch = case.space.from_dict(values)
    first = case(arch)
    other = dict(case.params, block_1=jax.tree.map(lambda x: 5 - x, case.params["block_1"]))
    np.testing.assert_array_equal(case(arch, other)[0], first[0])
    same = {key: x if x.ndim == 0 else x.at[1].set(2) for key, x in arch.items()}
    logits, outputs, gradient = case(same)
    np.testing.assert_array_equal(logits, first[0])
    assert difference(gradient, first[2]) == 0
    after, before = outputs["block_1"]["__call__"][0], outputs["block_0"]["__call__"][0]
    np.testing.assert_array_equal(after, before)
    assert np.any(case(arch | {"depth": jnp.int32(1)}, other)[0] != first[0])
