"""The MLP for tables beside NumPy, as a supernet and as extracted networks."""

import jax
import numpy as np
import refusals
import scipy.special
from small_nets import TABLE, flatten, jit, random_params, take

import jaxnas
from jaxnas import Choice, Space, spaces, supernets

NET = TABLE
ROWS = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
WEIGHTS = random_params(NET, ROWS.shape)


def reference(width, depth, hidden):
    """What float64 makes of the first channels of the weights."""
    w = {"/".join(path): np.asarray(leaf, np.float64) for path, leaf in flatten(WEIGHTS).items()}

    def dense(x, name, size):
        return x @ w[f"{name}/kernel"][: x.shape[1], :size] + w[f"{name}/bias"][:size]

    def norm(x, name):
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        return x * w[f"{name}/scale"][:width] + w[f"{name}/bias"][:width]

    x = dense(ROWS.astype(np.float64), "in", width)
    for i in range(depth):
        y = dense(norm(x, f"norm_{i}"), f"block_{i}/in", hidden[i])
        x = x + dense(y * scipy.special.ndtr(y), f"block_{i}/out", width)
    return dense(norm(x, "norm"), "out", 3)


def test_each_network_is_numpys_and_costs_what_it_has():
    apply, cost = jit(NET.apply), jaxnas.cost(NET, ROWS.shape)
    draws = NET.space.sample(jax.random.key(0), 6)
    archs = [NET.space.smallest(), NET.space.largest(), *(take(draws, i) for i in range(6))]
    assert len({NET.space.to_dict(arch)["width"] for arch in archs}) == 2
    for arch in archs:
        expected = reference(**NET.space.to_dict(arch))
        np.testing.assert_allclose(apply({"params": WEIGHTS}, ROWS, arch), expected, rtol=1e-4, atol=1e-4)
    for arch in archs[:3]:
        small, variables, error = jaxnas.extract(NET, {"params": WEIGHTS}, arch, verify=ROWS)
        assert error < 1e-5
        assert int(cost(arch)["params"]) == sum(leaf.size for leaf in jax.tree.leaves(variables))
    assert apply._cache_size() == 1


def test_dropout_is_for_training_alone():
    arch = NET.space.largest()
    net = NET.clone(space=NET.space.fix(arch), dropout=0.5)
    first, second = (
        net.apply({"params": WEIGHTS}, ROWS, train=True, rngs={"dropout": jax.random.key(seed)})
        for seed in range(2)
    )
    assert not np.allclose(first, second)
    expected = reference(**NET.space.to_dict(arch))
    np.testing.assert_allclose(net.apply({"params": WEIGHTS}, ROWS), expected, rtol=1e-4, atol=1e-4)


def test_spaces_that_are_none_of_an_mlp_are_refused():
    space = NET.space
    once = Space(**{**space.choices, "hidden": Choice(2, 4)})
    refusals.check(
        (lambda: supernets.TableMlp(spaces.digits(), 3), ValueError, "'width'"),
        (lambda: supernets.TableMlp("mlp", 3), TypeError, "'mlp'"),
        (lambda: supernets.TableMlp(once, 3), ValueError, "'hidden'", "repeat(2"),
        (lambda: supernets.TableMlp(spaces.mlp((0, 4)), 3), ValueError, "'width'", "(0, 4)"),
        (lambda: supernets.TableMlp(spaces.mlp((4, 4.5)), 3), ValueError, "'width'", "4.5"),
        (lambda: supernets.TableMlp(space, 3, dropout=1.0), ValueError, "dropout is 1.0"),
    )
