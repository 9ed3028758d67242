"""What the tests of every network ask of it."""

import dataclasses
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params
from test_cost import lower, xla_macs

import jaxnas
from jaxnas import network, testing
from jaxnas.inputs import one_example
from jaxnas.tensors import flatten, unflatten


def check_extracted(net, variables, arch, inputs, tolerance=1e-5, macs=True):
    """P3 and P7: the extracted network gives the same outputs at exactly the costs that were counted."""
    small, cut, error = jaxnas.extract(net, variables, arch, verify=inputs)
    assert error <= tolerance
    cost = jaxnas.cost(net, inputs)(arch)
    assert cost["params"] == sum(leaf.size for leaf in jax.tree.leaves(cut["params"]))
    one = jax.tree.map(lambda x: x[:1], inputs)
    assert not macs or cost["macs"] == xla_macs(lower(small, cut, one).as_text("hlo"))
    return small, cut


def check_zero_tail(found, expected):
    """P2: what is 0 in the active part alone is 0 exactly."""
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[b == 0], 0), found, expected)


def close(found, expected, rtol=1e-5):
    """Within so much of each value, or of the largest one."""
    scale = np.max(np.abs(expected), initial=0)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * scale)


def check_transformed(net, variables, inputs, samples=8):
    """P1, P2, P3 and P7 of a transformed network in training, also of its statistics and gradients.

    What an architecture does not use changes nothing: NaN in outputs, and numbers in gradients.
    """
    traces, others = [], {name: tree for name, tree in variables.items() if name != "params"}

    def loss(params, others, arch, net):
        traces.append(net)
        given = {**others, "params": params}
        outputs, updates = net.apply(given, inputs, arch, train=True, mutable=True, rngs=jax.random.key(0))
        return jnp.mean(outputs.astype(jnp.float32) ** 2), (outputs, updates)

    run = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=3)
    recorded = network.annotated(net, inputs)
    specs = {("params", *path): spec for path, spec in recorded.specs.items()} | recorded.state
    masks_of = jax.jit(lambda arch: {path: spec.mask(arch) for path, spec in specs.items()})
    archs = [net.space.smallest(), *(net.space.sample(jax.random.key(i)) for i in range(samples))]
    every = [run(variables["params"], others, arch, net) for arch in archs]
    assert len(traces) == 1
    for arch, ((_, (outputs, updates)), gradients) in zip(archs[:2], every, strict=False):
        host = net.space.canonical(arch)
        part = unflatten(testing.cut(flatten(variables), recorded, host))
        (_, (expected, kept)), own = run(part.pop("params"), part, None, net.clone(space=net.space.fix(arch)))
        close(outputs, expected)
        gradients, own = flatten({"params": gradients}), flatten({"params": own})
        cut = testing.cut({**flatten(variables), **gradients}, recorded, host)
        scale = max(np.max(np.abs(x)) for x in own.values())
        for path, value in own.items():
            np.testing.assert_allclose(cut[path], value, rtol=1e-4, atol=2e-5 * scale, err_msg=str(path))
        new = testing.cut(flatten({**variables, **updates}), recorded, host)
        for path, value in flatten(kept).items():
            np.testing.assert_allclose(new[path], value, rtol=1e-4, atol=1e-5)
        masks = jax.tree.map(np.asarray, masks_of(host))
        testing.check_counts(net, one_example(inputs), recorded, host)
        assert jaxnas.cost(net, inputs)(arch)["params"] == sum(x.size for x in own.values())
        for path, value in gradients.items():
            assert not np.any(np.where(masks[path], 0, value)), path
        for value in (jnp.nan, 1e3):
            given = poisoned(variables, masks, value)
            (_, (again, _)), same = run(given.pop("params"), given, arch, net)
            assert np.array_equal(again, outputs)
            if net.form == "masked" or value == 1e3:
                jax.tree.map(np.testing.assert_array_equal, flatten({"params": same}), gradients)


def check_forms(net, variables, inputs):
    """P3 and P5 of a transformed network in evaluation: forms, vmap and one-hot decisions agree."""
    masked, switch = (dataclasses.replace(net, form=form) for form in ("masked", "switch"))
    archs = net.space.sample(jax.random.key(0), 3)
    arch = net.space.canonical(jax.tree.map(lambda x: x[0], archs))
    small, recorded = net.clone(space=net.space.fix(arch)), network.annotated(net, inputs)
    part = unflatten(testing.cut(flatten(variables), recorded, arch))

    @jax.jit
    def run(variables, part, archs, soft):
        def each(net, archs):
            return jax.lax.map(lambda arch: net.apply(variables, inputs, arch), archs)

        many = jax.vmap(lambda arch: switch.apply(variables, inputs, arch))(archs)
        others = each(switch, archs), each(masked, archs), each(masked, soft)
        return many, others, small.apply(part, inputs)

    many, others, expected = run(variables, part, archs, jax.vmap(net.space.soften)(archs))
    close(many[0], expected)
    for other in others:
        jax.tree.map(close, list(other), list(many))


def poisoned(variables, masks, value):
    """P2: variables with some value in the entries that masks, by collection and path, call unused.

    NaN where nothing may be read; a number where derivatives may multiply it by zero.
    """
    found = flatten(variables)
    for path, x in found.items():
        if jnp.issubdtype(x.dtype, jnp.inexact):
            found[path] = np.where(np.asarray(masks[path]), np.asarray(x), np.asarray(value, x.dtype))
    return unflatten(found)


def positive_variables(module, *inputs, **options):
    """Random everywhere, also where the initial values are 0 or 1; variances are positive."""
    draw = np.random.default_rng(0)

    def leaf(path, like):
        low = 0.2 if path[-1].key == "var" else -0.4
        return jnp.asarray(draw.uniform(low, 0.8, like.shape), like.dtype)

    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs, **options))
    return jax.tree_util.tree_map_with_path(leaf, nn.meta.unbox(shapes))


def check_only_sums(lowered):
    """Gradients are summed over the devices, and nothing else goes between them."""
    program = lowered.compile().as_text()
    found = set(re.findall(r"(all-gather|all-reduce|all-to-all|collective-permute)\(", program))
    assert found == {"all-reduce"}


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def largest_array(function, *inputs):
    """The number of elements of the largest array in a function's program."""
    program = jax.make_jaxpr(function)(*inputs).jaxpr
    return max((out.aval.size for one in equations(program) for out in one.outvars), default=0)
