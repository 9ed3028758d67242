"""Algorithms of evosax as strategies of compiled searches."""

import functools

import jax
import jax.numpy as jnp
import pytest
import refusals

import jaxnas
from jaxnas import Choice, Space, search

evosax = pytest.importorskip("evosax", reason="it comes with the extra `evosax`")
SPACE = Space(depth=Choice(2, 4), width=Choice(*range(8)).repeat(4, active="depth"))
GOAL = SPACE.from_dict({"depth": 4, "width": [6, 1, 5, 3]})


def near(archs):
    """Higher is nearer to a goal, float32 [n]."""
    off = jnp.abs(SPACE.encode(archs) - SPACE.encode(GOAL)[None]).astype(jnp.float32)
    return -jnp.sum(off, axis=1)


def cost(arch):
    return {"wide": jnp.sum(jnp.asarray(arch["width"]), axis=-1)}


def test_evolution_strategies_search_in_one_program():
    """Better than random ones, nothing twice, within the bounds, and as step by step."""
    bounds = {"wide": (None, 16)}
    strategy = jaxnas.evosax.FromEvosax(SPACE, cost, bounds, evaluations=192, batch=16)
    random = search.RandomSearch(SPACE, cost, bounds, evaluations=192, batch=16)
    keys = jax.random.split(jax.random.key(0), 4)
    found, other = (
        jax.jit(jax.vmap(functools.partial(search.scan, one, near)))(keys) for one in (strategy, random)
    )
    codes = found.codes.reshape(-1, SPACE.length)
    assert float(jnp.max(jax.vmap(lambda x: cost(SPACE.decode(x))["wide"])(codes))) <= 16
    assert all(len({code.tobytes() for code in jax.device_get(one)}) == 192 for one in found.codes)
    assert float(jnp.mean(found.scores)) > float(jnp.mean(other.scores)) + 1
    assert float(jnp.mean(jnp.max(found.scores, axis=1))) >= float(jnp.mean(jnp.max(other.scores, axis=1)))
    stepped = search.run(strategy, near, keys[0], batched=True)
    assert jnp.array_equal(stepped.state.codes, found.codes[0])


def test_what_is_no_evolution_strategy_is_refused():
    genetic = evosax.algorithms.DifferentialEvolution
    refusals.check(
        (
            lambda: jaxnas.evosax.FromEvosax(SPACE, algorithm=genetic),
            TypeError,
            "DifferentialEvolution",
            "CMA_ES",
        ),
    )
