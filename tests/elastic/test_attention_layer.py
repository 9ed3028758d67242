"""Attention for any network: against a dense computation at each size."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_nets import difference, jit, normal
from test_cost import lower, xla_macs

import jaxnas
from jaxnas import Choice, Space
from jaxnas.elastic import Attention, Decision, Decisions, Dense, Embedding, fixed, width

torch = pytest.importorskip("torch")

EMBED, GROUPS, KV, DIM = (4, 6), (1, 3), (1, 2), (2, 4)
TOKENS = (2, 5)
PADDING = np.arange(5)[None] < np.array([[3], [5]])
PAIRS = np.random.default_rng(0).random((2, 5, 5)) < 0.6
PAIRS[0, 1] = False  # a token that sees none


def widths(arch):
    named = zip(("embed", "group", "kv", "dim"), (EMBED, GROUPS, KV, DIM), arch, strict=True)
    embed, group, kv, dim = (Decision((name, None), options, value) for name, options, value in named)
    heads = width(lambda kv, group: kv * group, kv, group)
    return width(int, embed), heads, width(int, kv), width(int, dim)


def both(mask, causal, arch, x, params):
    """The output and all gradients."""
    sizes = widths(arch)

    def layer(x, params):
        active, given = x * sizes[0].mask()[None, None], None if mask is None else jnp.asarray(mask)
        return Attention(causal=causal).apply({"params": params}, active, *sizes, given)

    y, vjp = jax.vjp(layer, x, params)
    return y, vjp(jnp.cos(y))


def operands():
    shapes = {"out_kernel": (6, 4, 6), "out_bias": (6,)}
    for name, number in (("query", 6), ("key", 2), ("value", 2)):
        shapes |= {f"{name}_kernel": (6, number, 4), f"{name}_bias": (number, 4)}
    return normal(*TOKENS, 6), {name: np.float32(0.5 * normal(*shape)) for name, shape in shapes.items()}


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


@pytest.mark.parametrize(
    "mask, causal", [(PAIRS, True), (PADDING, False), (None, True)], ids=["pairs", "padding", "none"]
)
def test_outputs_and_gradients_are_those_of_the_dense_computation(mask, causal):
    """At every size with one mask, with the others at one; zeros behind, exactly, in output and gradients."""
    x, params = operands()
    run = jit(functools.partial(both, mask, causal), static_argnums=() if mask is PAIRS else 0)
    for arch in np.ndindex(2, 2, 2, 2) if mask is PAIRS else [(0, 1, 1, 0)]:
        found = jax.tree.map(np.asarray, run(tuple(map(np.int32, arch)), x, params))
        expected = dense(arch, x, params, mask, causal)
        of_key = [one[1][1].pop("key_bias") for one in (found, expected)]  # 0, but for rounding
        assert np.max(np.abs(of_key[0] - of_key[1])) < 1e-5
        assert difference(found, expected) <= 2e-5
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[b == 0], 0), found, expected)


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
    "visible": jnp.asarray(PADDING),
}


@pytest.mark.hlo
def test_a_network_is_extracted_with_exact_costs():
    net = Texts()
    shapes = jax.eval_shape(lambda: jaxnas.init(net, jax.random.key(0), INPUTS))
    rng = np.random.default_rng(0)
    variables = jax.tree.map(lambda x: np.float32(rng.normal(size=x.shape)), shapes)
    cost, one = jaxnas.cost(net, INPUTS), jax.tree.map(lambda x: x[:1], INPUTS)
    arch = net.space.from_dict(dict(embed=4, kv=2, group=3, dim=2, depth=1))
    small, cut, error = jaxnas.extract(net, variables, arch, verify=INPUTS)
    assert error <= 1e-5
    assert cost(arch)["params"] == sum(leaf.size for leaf in jax.tree.leaves(cut))
    assert cost(arch)["macs"] == xla_macs(lower(small, cut, one).as_text("hlo"))


def test_embeddings_are_rows_of_the_table():
    """With the gradient of the rows that are used; a token beyond the vocabulary is not taken for another."""
    table, tokens = normal(4, 3), jnp.asarray([[1, 3, 1]], jnp.int32)
    layer, size = Embedding(vocabulary=4), width(int, Decision(("embed", None), (2, 3), np.int32(0)))

    @jit
    def run(table):
        apply = lambda table, tokens: layer.apply({"params": {"embedding": table}}, tokens, size)  # noqa: E731
        y, vjp = jax.vjp(lambda table: apply(table, tokens), table)
        return y, vjp(jnp.ones_like(y))[0], apply(table, tokens + 1)

    y, gradient, beyond = run(table)
    np.testing.assert_array_equal(y, np.asarray(table)[np.asarray(tokens)] * np.array([1, 1, 0], np.float32))
    np.testing.assert_array_equal(gradient, [[0, 0, 0], [2, 2, 0], [0, 0, 0], [1, 1, 0]])
    assert np.isnan(np.asarray(beyond)[0, 1, :2]).all()
