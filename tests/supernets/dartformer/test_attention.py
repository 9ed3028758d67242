"""Attention mechanisms: what all of them promise."""

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
from user_networks import Elastic

import jaxnas
from jaxnas import Choice, Space, elastic
from jaxnas.supernets import attention

BATCH, HEADS, LENGTH, DIM, WIDTH = 4, 2, 17, 4, 6
RNG = np.random.default_rng(0)
SIZES = dict(num_heads=HEADS, head_dim=DIM)
CASES = {
    "softmax": attention.Softmax(**SIZES),
    "local": attention.Local(**SIZES, block=5),
    "longformer": attention.Longformer(**SIZES, window=6),
    "longformer, global": attention.Longformer(**SIZES, window=5, num_global=3),
    "sparse": attention.SparseTransformer(**SIZES, block=4, summary=2),
    "bigbird": attention.BigBird(**SIZES, block=2, num_random=2),
    "linformer": attention.Linformer(**SIZES, max_length=20, num_projected=5),
    "linear": attention.Linear(**SIZES),
    "performer": attention.Performer(**SIZES),
    "performer, few": attention.Performer(**SIZES, num_features=7),
    "reformer": attention.Reformer(**SIZES, num_hashes=2, num_buckets=4, chunk=4),
    "sinkhorn": attention.Sinkhorn(**SIZES, max_length=20, block=4),
    "synthesizer, random": attention.Synthesizer(**SIZES, max_length=20, kind="random"),
    "synthesizer": attention.Synthesizer(**SIZES, max_length=20, rank=3),
    "synthesizer, dense": attention.Synthesizer(**SIZES, max_length=20, kind="dense"),
}
FAMILIES = ("softmax", "longformer, global", "linear", "reformer", "synthesizer")  # a case of each
FURTHER = tuple(name for name in CASES if name not in FAMILIES)
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


def close(actual, expected, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=tolerance, atol=tolerance)


SHORT = 1, 4, 12  # lengths below a block, a window, a chunk; and with all that is there of the second example
CLEAN, DIRTY = np.where(MASK[:, :, None], X, 0), np.where(MASK[:, :, None], X, np.nan)


@functools.cache
def probe(name):
    net, variables = CASES[name], variables_of(name)
    weights = RNG.normal(size=X.shape).astype(np.float32)

    def weighted(variables, x):
        y = net.apply(variables, x, MASK, train=True)
        return jnp.sum(y * weights), y

    def one(x, mask):
        return net.apply(variables, x[None], mask[None])[0]

    @jax.jit
    def run(variables, clean, dirty, x):
        found = {"batch": net.apply(variables, x, MASK), "each": jax.vmap(one)(x, jnp.asarray(MASK))}
        derive = jax.value_and_grad(weighted, (0, 1), has_aux=True)
        for kind, inputs in (("clean", clean), ("dirty", dirty)):
            (_, found[kind]), found[f"{kind} gradients"] = derive(variables, inputs)
        found["short"] = [net.apply(variables, x[:, :n], MASK[:, :n]) for n in SHORT]
        return found

    return jax.tree.map(np.asarray, run(variables, CLEAN, DIRTY, X))


@pytest.mark.parametrize("name", tiers.cases(CASES, FAMILIES))
def test_padding_changes_nothing_and_examples_are_apart(name):
    """Padding gets no gradient and may be cut off; an example without a token gives zeros."""
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
    if name != "bigbird":  # whose pattern follows its max_length: DARTFormer's test
        close(found["short"][-1][1], found["batch"][1, : SHORT[-1]])


@pytest.mark.parametrize("name", tiers.cases(CASES, ("bigbird", "reformer")))
def test_the_batch_may_be_symbolic(name):
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
    for net in (attention.Softmax(**SIZES), attention.Performer(**SIZES)):
        variables = nn.meta.unbox(jax.jit(net.init)(jax.random.key(0), x, mask))
        exact = np.asarray(jax.jit(net.apply)(variables, x, mask))
        half = jax.jit(net.clone(dtype=jnp.bfloat16).apply)(variables, x, mask)
        assert half.dtype == jnp.bfloat16
        difference = np.linalg.norm(np.asarray(half, np.float32) - exact) / np.linalg.norm(exact)
        assert 0 < difference < 0.02, type(net).__name__


class Network(Elastic):
    def body(self, inputs, decisions, train):
        block = elastic.Mixture(CASES, name="block")
        return block(decisions["block"], inputs["x"], inputs["mask"], train=train)


INPUTS = {
    "x": jax.ShapeDtypeStruct((1, LENGTH, WIDTH), jnp.float32),
    "mask": jax.ShapeDtypeStruct((1, LENGTH), jnp.bool_),
}


@pytest.mark.hlo
@pytest.mark.parametrize("names", [FAMILIES, *tiers.more((FURTHER,))])
def test_macs_of_a_choice_are_those_of_xla_and_parameters_have_axes(names):
    """For each mechanism, as an option of a mixture and as the network of this option alone."""
    assert set(attention.MECHANISMS.values()) == {type(net) for net in CASES.values()}
    others = {"out_kernel": ("heads", "embed"), "projection": (None, None)}
    net = Network(Space(block=Choice(*names)))
    costs = jaxnas.cost(net, INPUTS)(net.space.enumerate())
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


LONG = set(attention.MECHANISMS.values()) - {attention.Softmax, attention.Synthesizer}


@pytest.mark.parametrize("mechanism", sorted(LONG, key=str))
def test_no_array_is_as_large_as_all_pairs(mechanism):
    """Nor a tenth of it, in the forward and the backward pass of 4,096 positions; by the traced program."""
    length, fields = 4096, mechanism.__dataclass_fields__
    given = dict(max_length=length, num_global=2, block=48, window=32, summary=2, chunk=32)
    net = mechanism(**SIZES, **{name: value for name, value in given.items() if name in fields})
    x = jax.ShapeDtypeStruct((1, length, WIDTH), jnp.float32)
    mask = jax.ShapeDtypeStruct((1, length), jnp.bool_)
    variables = nn.meta.unbox(jax.eval_shape(net.init, jax.random.key(0), x, mask))

    def total(variables, x, mask):
        return jnp.sum(net.apply(variables, x, mask) ** 2)

    largest = promises.largest_array(jax.grad(total, argnums=(0, 1)), variables, x, mask)
    assert 0 < largest <= HEADS * length**2 / 10


def test_mechanisms_that_cannot_be_and_inputs_that_do_not_fit_are_refused():
    def case(net, *names, x=X, mask=MASK, error=ValueError):
        return lambda: jax.eval_shape(net.init, jax.random.key(0), x, mask), error, *names

    def make(mechanism, *names, **settings):
        return case(mechanism(**SIZES | settings), *names)

    softmax, local, sinkhorn = attention.Softmax, attention.Local, attention.Sinkhorn
    sizes = [(softmax, "num_heads", 0), (softmax, "head_dim", 0), (local, "block", 0)]
    sizes += [(attention.Longformer, "window", 0), (attention.Longformer, "num_global", -1)]
    sizes += [(attention.Reformer, "chunk", 0), (attention.Performer, "num_features", 0)]
    sizes += [(attention.BigBird, "num_random", -1)]
    short = attention.Linformer, attention.Synthesizer, sinkhorn
    refusals.check(
        *(make(kind, name, str(value), **{name: value}) for kind, name, value in sizes),
        *(make(kind, "max_length", "8", "17", max_length=8) for kind in short),
        make(softmax, "6 channels", "4 heads", num_heads=4, head_dim=None),
        make(attention.SparseTransformer, "5", "4", block=4, summary=5),
        make(attention.Reformer, "5", num_buckets=5),
        make(attention.Synthesizer, "kind", "fast", max_length=20, kind="fast"),
        make(sinkhorn, "temperature", "0.0", max_length=20, temperature=0.0),
        case(softmax(**SIZES), "(17, 6)", x=X[0]),
        case(local(**SIZES), "positions", "0", x=X[:, :0], mask=MASK[:, :0]),
        case(softmax(**SIZES), "bool", "float32", mask=np.float32(MASK), error=TypeError),
        case(softmax(**SIZES), "(4, 17)", "(4, 5)", mask=MASK[:, :5]),
    )
