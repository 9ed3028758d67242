"""Attention for any network: against a dense computation at each size."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import difference, jit, normal
from test_cost import lower, xla_macs

import jaxnas
from jaxnas import Choice, Space
from jaxnas.elastic import Attention, Decision, Decisions, Dense, Embedding, fixed, width

torch = pytest.importorskip("torch")

EMBED, GROUPS, KV, DIM = (4, 6), (1, 3), (1, 2), (2, 4)
TOKENS = (2, 5)
MASKS = {
    "none": None,
    "padding": np.arange(5)[None] < np.array([[3], [5]]),
    "pairs": np.random.default_rng(0).random((2, 5, 5)) < 0.6,
}
MASKS["pairs"][0, 1] = False  # a token that sees none
every_mask = pytest.mark.parametrize("mask, causal", [("none", True), ("padding", False), ("pairs", True)])


def widths(arch):
    embed, group, kv, dim = (
        Decision((name, None), options, value)
        for name, options, value in zip(
            ("embed", "group", "kv", "dim"), (EMBED, GROUPS, KV, DIM), arch, strict=True
        )
    )
    return (
        width(int, embed),
        width(lambda kv, group: kv * group, kv, group),
        width(int, kv),
        width(int, dim),
    )


@functools.cache
def compiled(mask, causal, max_branches):
    def both(arch, x, params):
        sizes = widths(arch)

        def layer(x, params):
            active = x * sizes[0].mask()[None, None]
            given = None if MASKS[mask] is None else jnp.asarray(MASKS[mask])
            module = Attention(causal=causal)
            return module.apply({"params": params}, active, *sizes, given, max_branches=max_branches)

        y, vjp = jax.vjp(layer, x, params)
        return y, vjp(jnp.cos(y))

    return jit(both)


@functools.cache
def operands():
    shapes = {
        f"{name}_{kind}": (6, number, 4)[kind == "bias" :]
        for name, number in (("query", 6), ("key", 2), ("value", 2))
        for kind in ("kernel", "bias")
    }
    shapes |= {"out_kernel": (6, 4, 6), "out_bias": (6,)}
    return normal(*TOKENS, 6), {name: 0.5 * normal(*shape) for name, shape in shapes.items()}


def dense(arch, x, params, mask, causal):
    """The same by PyTorch with repeated heads, of the active part alone, with gradients; in float64."""
    embed, group, kv, dim = (options[i] for options, i in zip((EMBED, GROUPS, KV, DIM), arch, strict=True))
    leaf = lambda x: torch.tensor(np.asarray(x, np.float64), requires_grad=True)  # noqa: E731
    whole, params = leaf(x), {name: leaf(value) for name, value in params.items()}
    active = whole[..., :embed]
    of = {"query": kv * group, "key": kv, "value": kv}
    q, k, v = (
        torch.einsum("bte,ehd->bhtd", active, params[f"{name}_kernel"][:embed, :number, :dim])
        + params[f"{name}_bias"][:number, None, :dim]
        for name, number in of.items()
    )
    k, v = (torch.repeat_interleave(one, group, dim=1) for one in (k, v))
    seen = np.ones((2, 1, 5, 5), bool) if mask is None else np.asarray(mask).reshape(2, 1, -1, 5)
    if causal:
        seen = seen & np.tri(5, dtype=bool)
    none = torch.tensor(~seen.any(axis=-1, keepdims=True))
    # PyTorch gives NaN where nothing may be seen.
    heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, torch.tensor(seen) | none)
    heads = heads * ~none
    y = torch.einsum("bhtd,hde->bte", heads, params["out_kernel"][: kv * group, :dim, :embed])
    y = torch.nn.functional.pad(y + params["out_bias"][:embed], (0, 6 - embed))
    y.backward(torch.cos(y).detach())
    return y.detach().numpy(), (whole.grad.numpy(), {name: one.grad.numpy() for name, one in params.items()})


@every_mask
@settings(max_examples=8)
@given(arch=st.tuples(*[st.integers(0, 1)] * 4))
def test_outputs_and_gradients_are_those_of_the_dense_computation(mask, causal, arch):
    """At every size; zeros behind, exactly, in the output and in every gradient."""
    x, params = operands()
    found = compiled(mask, causal, 8)(tuple(map(jnp.int32, arch)), x, params)
    expected = dense(arch, x, params, MASKS[mask], causal)
    of_key = [one[1][1].pop("key_bias") for one in (found, expected)]  # 0, but for rounding
    assert np.max(np.abs(of_key[0] - of_key[1])) < 1e-5
    assert difference(found, expected) <= 2e-5
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(np.asarray(a)[np.asarray(b) == 0], 0), found, expected
    )


class Texts(nn.Module):
    """A classifier of texts with padding, whose sizes are all elastic."""

    space: Space = Space(
        embed=Choice(4, 6), kv=Choice(1, 2), group=Choice(1, 3), dim=Choice(2, 4), depth=Choice(1, 2)
    )

    @nn.compact
    def __call__(self, inputs, arch=None, *, train=False):
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        embed, kv, dim = (width(int, decisions[name]) for name in ("embed", "kv", "dim"))
        heads = width(lambda kv, group: kv * group, decisions["kv"], decisions["group"])
        x = Embedding(vocabulary=9)(inputs["tokens"], embed)
        for i in range(max(self.space.choices["depth"].options)):
            gate = width(lambda depth, i=i: int(i < depth), decisions["depth"])
            attention = Attention(causal=True, name=f"attention_{i}")
            x = x + attention(x, embed, heads, kv, dim, inputs["visible"], gate=gate)
        return Dense(name="head")(jnp.mean(x, axis=1), embed, fixed(3), rows=1)


INPUTS = {
    "tokens": jnp.asarray(np.random.default_rng(0).integers(0, 9, TOKENS), jnp.int32),
    "visible": jnp.asarray(MASKS["padding"]),
}


@pytest.mark.more
@pytest.mark.hlo
def test_a_network_is_extracted_with_exact_costs():
    net = Texts()
    variables = jax.tree.map(lambda x: 5 * x + 0.1, jaxnas.init(net, jax.random.key(0), INPUTS))
    cost, one = jaxnas.cost(net, INPUTS), jax.tree.map(lambda x: x[:1], INPUTS)
    for seed in range(3):
        arch = net.space.sample(jax.random.key(seed))
        small, cut, error = jaxnas.extract(net, variables, arch, verify=INPUTS)
        assert error <= 1e-5
        assert cost(arch)["params"] == sum(leaf.size for leaf in jax.tree.leaves(cut))
        assert cost(arch)["macs"] == xla_macs(lower(small, cut, one).as_text("hlo"))


def test_embeddings_are_rows_of_the_table():
    """With the gradient of the rows that are used; a token beyond the vocabulary is not taken for another."""
    table, tokens = normal(4, 3), jnp.asarray([[1, 3, 1]], jnp.int32)
    layer, size = Embedding(vocabulary=4), width(int, Decision(("embed", None), (2, 3), jnp.int32(0)))
    apply = lambda table, tokens: layer.apply({"params": {"embedding": table}}, tokens, size)  # noqa: E731
    y, vjp = jax.vjp(lambda table: apply(table, tokens), table)
    np.testing.assert_array_equal(y, np.asarray(table)[np.asarray(tokens)] * np.array([1, 1, 0], np.float32))
    expected = np.zeros((4, 3))
    expected[1, :2], expected[3, :2] = 2, 1
    np.testing.assert_array_equal(vjp(jnp.ones_like(y))[0], expected)
    assert np.isnan(apply(table, tokens + 1)[0, 1, :2]).all()


def sized(heads, kv_heads, mask=None):
    module, x = Attention(name="attention"), jnp.zeros((2, 5, 6))
    both = Decision(("heads", None), heads, jnp.int32(0)), Decision(("kv", None), kv_heads, jnp.int32(0))
    sizes = (fixed(6), width(int, both[0]), width(int, both[1]), fixed(4))
    return jax.eval_shape(module.init, jax.random.key(0), x, *sizes, mask)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: sized((2, 4), (1, 4)), ValueError, "there is one"),
        (lambda: sized((2,), (2,), jnp.ones((2, 5))), TypeError, "mask is boolean"),
        (lambda: sized((2,), (2,), jnp.ones((5, 5), bool)), ValueError, "2, 5"),
        (
            lambda: Embedding(4).init(jax.random.key(0), jnp.zeros((2, 5)), fixed(3)),
            TypeError,
            "Embedding: tokens are",
        ),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
