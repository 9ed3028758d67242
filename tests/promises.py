"""What the tests of every network ask of it."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params
from test_cost import lower, xla_macs

import jaxnas
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


def poisoned(variables, masks, value):
    """P2 of transformed networks: variables with some value in entries that an architecture doesn't use.

    Args:
      variables: by collection.
      masks: of the used entries, by collection and path.
      value: NaN where nothing may be read; a number where derivatives may multiply it by zero.
    """
    found = flatten(variables)
    for path, x in found.items():
        if jnp.issubdtype(x.dtype, jnp.inexact):
            found[path] = jnp.where(jnp.asarray(masks[path]), x, jnp.asarray(value, x.dtype))
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
    """Every equation of a program, with those inside of its calls."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def largest_array(function, *inputs):
    """The number of elements of the largest array in a function's program."""
    program = jax.make_jaxpr(function)(*inputs).jaxpr
    return max((out.aval.size for one in equations(program) for out in one.outvars), default=0)
