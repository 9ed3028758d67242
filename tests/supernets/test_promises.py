"""The promises P1, P2, P3, P5, P6 and P7 of the supernets, over random architectures."""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import promises
import pytest
import small_attention
import tiers
from small_nets import CLASSES, SHAPE, difference, flatten, jit, normal, random_params, sample, setting, take

import jaxnas
from jaxnas import spaces, supernets
from jaxnas.elastic import Mixture
from jaxnas.network import annotated
from jaxnas.transform.declared import Declared

# A shifted block, windows as large as the map, and widths of queries apart from those of the stage.
SWIN = dict(depth=((1, 2), (1,)), embed_dim=((4, 6), (6, 8)), mlp_ratio=((1.0,), (1.0, 1.5)))
SWIN |= dict(window=((2, 4), (2,)), num_heads=((2,), (1, 2)), qkv_dim=((8,), (4, 8)))
# All kinds of blocks: mixed in one stage, or alone; NASViT's at two depths and widths of their stage.
STAGES = [
    dict(width=(4, 8), depth=(1,), block=("mbconv", "fused_mbconv"), kernel=(1, 3), expansion=(1, 2)),
    dict(width=(8, 12), depth=(1, 2), block=("mbconv", "transformer"))
    | dict(expansion=(2,), squeeze=(0, 0.25), heads=(1, 2), mlp_ratio=(1, 2)),
    dict(width=(4, 8), depth=(1, 2), first=("mbconv", "nasvit"), block=("nasvit",))
    | dict(expansion=(2,), mlp_ratio=(1,)),
]
SIZES = dict(strides=(1, 2, 1), stem_stride=1, shortcut="pooled", head_dim=2, largest_map=5, layer_scale=0.5)
AUTOATTEND = ("nodes", "text", "unframed")


class Case(NamedTuple):
    """A network with random weights, also where the initial ones are 0 or 1, and its inputs."""

    net: nn.Module
    variables: Any
    inputs: Any
    traces: list  # one entry for each time that `run` was traced
    tolerance: float = 1e-5
    train: bool = False

    def run(self, variables, arch, net=None):
        own = net or self.net
        self.traces.append(arch)
        options: dict[str, Any] = dict(train=self.train, mutable=["batch_stats", "intermediates"])
        if isinstance(own, nn.Module):
            capture = (lambda module, _: isinstance(module, Mixture)) if self.train else net is None
            options["capture_intermediates"] = capture

        def loss(params):
            given = {**variables, "params": params}
            y, new = own.apply(given, self.inputs, arch, **options)
            return jnp.sum(jnp.sin(y)), (y, new.get("intermediates", {}), new.get("batch_stats", {}))

        gradient, (y, outputs, statistics) = jax.grad(loss, has_aux=True)(variables["params"])
        return y, outputs, gradient, statistics


@functools.cache
def case_of(name):
    if name in AUTOATTEND:
        net, inputs = small_attention.autoattend(name), small_attention.inputs_of(name)
        return Case(net, small_attention.variables_of(name), inputs, [])
    if name == "swin":
        net = supernets.Swin(spaces.swin(**SWIN), 8, 2, CLASSES, drop_path_rate=0.2)
        return Case(net, {"params": random_params(net)}, normal(*SHAPE), [])
    if name == "hybrid":
        net, images = supernets.Hybrid(spaces.hybrid(STAGES, (4,), (6, 8)), 5, **SIZES), normal(4, 8, 8, 3)
        return Case(net, promises.positive_variables(net, images), images, [], train=True)
    one = setting(name)
    return Case(one.net, one.variables, one.images, [], one.tolerance)


@functools.cache
def compiled(name):
    return jit(case_of(name).run)


@functools.cache
def recorded(name):
    """The annotations of every array, by collection and path, and a function to which elements are active."""
    found = annotated(case_of(name).net, case_of(name).inputs)
    specs = {("params", *path): spec for path, spec in found.specs.items()} | found.state
    return specs, jit(lambda arch: {path: spec.mask(arch) for path, spec in specs.items()})


@functools.cache
def archs_of(name, n):
    batch = jax.tree.map(np.asarray, sample(case_of(name).net.space, 0, n))
    return [take(batch, i) for i in range(n)]


def with_other_inactive(space, arch):
    """The same network: other options in the layers that it has not."""
    most = {key: np.int32(np.broadcast_to(choice.sizes, choice.shape) - 1) for key, choice in space.decisions}
    full = {key: x if not x.ndim or "block" in key else most[key] for key, x in arch.items()}
    active = {key: np.asarray(x) == full[key] for key, x in space.canonical(full).items()}
    return {key: np.where(active[key], x, full[key]) for key, x in arch.items()}


VISION = ("narrow", *tiers.more("switch", "swin", "hybrid"), *tiers.nightly("wide", "bfloat16"))


@pytest.mark.parametrize(
    "name", ["narrow", *tiers.more("swin", "hybrid", *AUTOATTEND), *tiers.nightly("wide")]
)
def test_all_architectures_are_one_trace(name):
    """P1, forward and gradient; a new trace, for whatever reason, would append to `traces`."""
    count = {"hybrid": 60, **dict.fromkeys(AUTOATTEND, 12)}.get(name, 300)
    case, run, archs = case_of(name), compiled(name), archs_of(name, count)
    run(case.variables, archs[0])
    traced = len(case.traces)
    logits = {np.asarray(run(case.variables, arch)[0]).tobytes() for arch in archs}
    assert len(case.traces) == traced
    if name in AUTOATTEND:  # where an operation may lead nowhere
        assert len(logits) > 9
        return
    # Each network is another function: no two distinct architectures give the same logits.
    codes = np.asarray(case.net.space.encode(jax.tree.map(lambda *x: np.stack(x), *archs)))
    distinct = len(np.unique(codes, axis=0))
    assert len(logits) == distinct >= {"narrow": 55, "hybrid": 50}.get(name, 130)


def active_outputs(name, values, outputs):
    """The output of modules, and how many of its channels an architecture uses."""
    for path, (output,) in flatten(outputs).items():
        *inner, method = path
        module = inner.pop(0) if inner else ""
        if name == "hybrid":
            if method == "__call__":
                yield path, output, values[f"width_{module[6]}"]
        elif name == "swin":
            if not inner and module.startswith(("stage", "merge")):
                output = output[..., 0, :] if module.startswith("merge") else output
                yield path, output, values[f"embed_dim_{module.split('_')[1]}"]


@pytest.mark.parametrize("name", [*VISION, *tiers.more("nodes", "text"), *tiers.nightly("unframed")])
def test_what_an_architecture_does_not_use_is_zero_in_activations_and_gradients(name):
    """P2 and P6; new batch statistics, too, are only of what is used.

    Neither other weights matter nor what an architecture chooses for layers that it has not.
    """
    case, old = case_of(name), flatten(case_of(name).variables.get("batch_stats", {}))
    changed = 0
    for arch in archs_of(name, 8):
        values = case.net.space.to_dict(arch)
        expected, outputs, gradient, statistics = compiled(name)(case.variables, arch)
        active = list(active_outputs(name, values, outputs))
        for path, output, width in active:
            assert np.any(output[..., :width]) and not np.any(output[..., width:]), path
        assert len(active) == {"swin": 4, "hybrid": 5}.get(name, 0)
        masks, gradient = recorded(name)[1](arch), flatten(gradient)
        assert {("params", *path) for path in gradient} == {path for path in masks if path[0] == "params"}
        for path, leaf in gradient.items():
            mask = np.broadcast_to(masks["params", *path], leaf.shape)
            assert not np.any(leaf[~mask]), path
            may_vanish = name in AUTOATTEND or name == "hybrid" and path[-1].endswith("bias")
            assert np.any(leaf[mask]) or not mask.any() or may_vanish, path
        if name not in AUTOATTEND:
            other = with_other_inactive(case.net.space, arch)
            changed += sum(np.sum(other[key] != arch[key]) for key in arch)
            y, _, same, _ = compiled(name)(promises.poisoned(case.variables, masks, 1e3), other)
            assert np.array_equal(y, expected)
            jax.tree.map(np.testing.assert_array_equal, flatten(same), gradient)
        if isinstance(case.net, Declared):  # its parameters are cut, and not its activations
            y = compiled(name)(promises.poisoned(case.variables, masks, np.nan), arch)[0]
            assert np.array_equal(y, expected)
        for path, leaf in flatten(statistics).items():
            mask = np.broadcast_to(masks["batch_stats", *path], leaf.shape)
            np.testing.assert_array_equal(leaf[~mask], old[path][~mask])
            assert not mask.any() or not np.array_equal(leaf[mask], old[path][mask])
    assert changed or name in AUTOATTEND


EXTRACTED = {"wide": 2, "swin": 2, "hybrid": 24}  # which of the random architectures


@pytest.mark.hlo
@pytest.mark.parametrize("name", VISION)
def test_extracted_is_the_same_function(name):
    """P3 and P7: outputs, gradients, new statistics and costs."""
    case, arch = case_of(name), archs_of(name, 60)[EXTRACTED.get(name, 4)]
    given = case.net, case.variables, arch, case.inputs
    small, cut = promises.check_extracted(*given, 1e-4 if case.train else case.tolerance)
    y, _, *found = jit(lambda cut: case.run(cut, None, small))(cut)
    expected_y, _, *expected = compiled(name)(case.variables, arch)
    assert difference(y, expected_y) <= case.tolerance
    # A convolution in front of a normalization with little variance amplifies rounding.
    tolerances = (2e-3, 1e-4) if name == "hybrid" else (case.tolerance, 0)
    specs, parts = recorded(name)[0], zip(("params", "batch_stats"), found, expected, tolerances, strict=True)
    for collection, one, whole, tolerance in parts:
        whole = flatten(whole).items()
        active = {path: specs[collection, *path].active(leaf, arch) for path, leaf in whole}
        # Relative to the largest: the gradient of a key's bias is nothing but rounding.
        largest = max((np.max(np.abs(leaf), initial=0) for leaf in active.values()), default=0)
        for path, leaf in flatten(one).items():
            assert np.max(np.abs(leaf - active[path])) <= tolerance * largest, path
    if name == "hybrid":  # one-hot is hard, in evaluation
        assert len({*case.net.space.to_dict(arch)["block_2"], *case.net.space.to_dict(arch)["block_3"]}) == 3
        apply = jit(lambda arch: case.net.apply(case.variables, case.inputs, arch))
        evaluated = jit(small.apply)(cut, case.inputs)
        assert difference(apply(case.net.space.soften(arch)), evaluated) <= 1e-4


@pytest.mark.parametrize("name", ["narrow", *tiers.more("switch", "swin"), *tiers.nightly("wide")])
def test_an_extracted_network_has_nothing_of_the_supernet(name):
    """Its weights are prefixes, as weight entanglement defines them."""
    case, arch = case_of(name), archs_of(name, 8)[EXTRACTED.get(name, 4)]
    small, variables, _ = jaxnas.extract(case.net, case.variables, arch, inputs=SHAPE)
    params, large = variables["params"], flatten(case.variables["params"])
    for path, leaf in flatten(params).items():
        # A bias by heads has one more axis, and a smaller window has the center of a table.
        if leaf.ndim == large[path].ndim and path[-1] != "relative_bias":
            np.testing.assert_array_equal(leaf, large[path][tuple(map(slice, leaf.shape))])

    def loss(params):
        return jnp.sum(small.apply({"params": params}, case.inputs))

    program = jax.make_jaxpr(jax.value_and_grad(loss))(params)
    assert {leaf.shape for leaf in program.in_avals} == {x.shape for x in jax.tree.leaves(params)}
    used = {equation.primitive.name for equation in promises.equations(program.jaxpr)}
    assert not used & {"cond", "while", "scan"} and not any("custom_vmap" in name for name in used)


# Parts of spaces with less to compile.
PART = dict(block_1="fused_mbconv", width_1=8, width_2=12, depth_2=1, block_3="nasvit")


@pytest.mark.parametrize(
    "name, over, fixed",
    [
        ("narrow", "archs", {}),
        *tiers.more(
            ("swin", "archs", {"depth_1": 1}), ("switch", "both", {}), ("switch", "data", {"depth": 1})
        ),
        *tiers.more(("hybrid", "archs", PART), ("nodes", "archs", {}), ("text", "archs", {})),
    ],
)
def test_vmap_over_architectures_or_data_or_both_is_the_loop(name, over, fixed):
    """P5, logits and gradients."""
    case, n = case_of(name), 3
    part = case._replace(net=case.net.clone(space=case.net.space.restrict(**fixed)))
    space, several = part.net.space, None
    if over != "archs":  # the examples in another order, which changes no gradient
        several = np.stack([np.roll(case.inputs, i, axis=0) for i in range(n)])
    archs = jax.tree.map(np.asarray, sample(space, 3, None if over == "data" else n))

    def run(images, arch):
        return (part if images is None else part._replace(inputs=images)).run(case.variables, arch)[::2]

    axes = (None if over == "archs" else 0, None if over == "data" else 0)
    logits, gradients = jax.tree.map(np.asarray, jit(jax.vmap(run, axes))(several, archs))
    gradients, tolerance = flatten(gradients), 10 * case.tolerance
    for i in range(n):
        own = archs if over == "data" else take(archs, i)
        arch = case.net.space.from_dict(space.to_dict(own))
        y, gradient = compiled(name)(case.variables, arch)[::2]
        assert difference(logits[i], y if several is None else np.roll(y, i, axis=0)) <= tolerance
        expected, masks = flatten(gradient), recorded(name)[1](arch)
        scale = max(np.max(np.abs(leaf)) for leaf in expected.values())
        for path, leaf in expected.items():
            assert np.max(np.abs(gradients[path][i] - leaf)) <= tolerance * scale, path
            assert not np.any(np.where(masks["params", *path], 0, gradients[path][i])), path


@pytest.mark.parametrize("name", ["narrow", *tiers.more("switch", "swin"), *tiers.nightly("wide")])
def test_one_hot_is_hard_and_nearly_one_hot_is_nearly_hard(name):
    """Nothing jumps where a weight becomes zero: what is annealed ends at the network that is hardened."""
    case = case_of(name)
    apply = jit(lambda arch: case.net.apply(case.variables, case.inputs, arch))
    for arch in archs_of(name, 8)[:4]:
        expected = compiled(name)(case.variables, arch)[0]
        certain = jax.tree.map(np.asarray, case.net.space.soften(arch))
        assert difference(apply(certain), expected) <= 1e-5
    for decision, x in certain.items():
        near = certain | {decision: np.float32(0.99999 * x + 0.00001 / x.shape[-1])}
        assert difference(apply(near), expected) <= 1e-3, decision


def remat_case(name):
    if name == "DARTFormer":
        net, texts = small_attention.dartformer(layers=2), small_attention.TEXTS
        return net, promises.positive_variables(net, texts), texts, net.space.soften(sample(net.space, 0))
    case = case_of(name)
    depth = "depth" if name == "narrow" else "depth_1"
    net = case.net.clone(space=case.net.space.restrict(**{depth: 1}), drop_path_rate=0.3)
    return net, case.variables, case.inputs, sample(net.space, 0)


def derivatives(name, remat):
    net, variables, inputs, arch = remat_case(name)

    def loss(params, arch):
        given, rngs = {**variables, "params": params}, {"dropout": jax.random.key(1)}
        return jnp.sum(net.clone(remat=remat).apply(given, inputs, arch, train=True, rngs=rngs) ** 2)

    return jax.grad(loss, (0, 1), allow_int=True), (variables["params"], arch)


@pytest.mark.more
@pytest.mark.parametrize("name", ["DARTFormer", "swin", "hybrid", "narrow"])
def test_layers_are_computed_again_where_that_is_asked(name):
    """And what a network declares of itself does not change."""
    found = [derivatives(name, remat) for remat in (False, True)]
    assert ["prevent_cse=True" in str(jax.make_jaxpr(one)(*given)) for one, given in found] == [False, True]
    net, _, inputs, _ = remat_case(name)
    costs = [jaxnas.cost(net.clone(remat=remat), inputs)(net.space.largest()) for remat in (False, True)]
    assert costs[0] == costs[1]


@pytest.mark.more
@pytest.mark.parametrize("name", ["DARTFormer", *tiers.nightly("swin", "hybrid", "narrow")])
def test_computed_again_gives_the_gradients_of_computed_once(name):
    """Of weights and of a soft architecture, with random streams and batch statistics."""
    found = [jit(one)(*given) for one, given in (derivatives(name, remat) for remat in (False, True))]
    once, again = ([x for x in jax.tree.leaves(tree) if x.dtype == jnp.float32] for tree in found)
    assert difference(again, once) <= 1e-6
