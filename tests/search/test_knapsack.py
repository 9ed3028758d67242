"""The exact choice among replacements of one place, against all combinations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals

from jaxnas import Choice, Space, search

SPACE = Space(
    block=Choice("skip", "keep").repeat(3),
    width=Choice(1, 2, 3).repeat(3).when("block", "keep"),
    head=Choice(4, 6),
)
NAMES = [(name, i) for name, choice in SPACE.decisions for i in range(choice.length or 1)]
PLACES = [*([("block", i), ("width", i)] for i in range(3)), [("head", 0)]]


@functools.cache
def cost_of(number):
    rng = np.random.default_rng(number)
    tables = {name: jnp.asarray(rng.integers(1, 50, (3, 3)), jnp.int32) for name in ("params", "bytes")}

    def cost(arch):
        each = {name: rows[jnp.arange(3), arch["width"]] for name, rows in tables.items()}
        return {name: (x * arch["block"]).sum() + 10 * arch["head"] for name, x in each.items()}

    return cost


def sums(replaced, scores, codes):
    """The change of each architecture, place by place."""
    found = np.zeros(len(codes))
    for place in PLACES:
        own = [NAMES.index(element) for element in place]
        changes = {tuple(code[own]): x for code, x in zip(replaced.codes, scores - scores[0], strict=True)}
        changes[tuple(replaced.codes[0][own])] = 0.0
        found += [changes[tuple(code[own])] for code in codes]
    return found


def test_the_choice_is_that_of_brute_force():
    """200 instances with two bounds and conditional places; what nothing keeps is refused with the range."""
    rng, codes = np.random.default_rng(0), np.asarray(SPACE.encode(SPACE.enumerate()))
    replaced, named = search.replacements(SPACE), search.replacements(SPACE, places=PLACES)
    assert {*map(tuple, replaced.codes)} == {*map(tuple, named.codes)}
    assert len(replaced.codes) == 1 + 3 * 3 + 1  # each block skipped, or narrower in two ways; the head
    assert jax.tree.leaves(replaced.archs)[0].shape[0] == len(replaced.codes)
    costs = [jax.vmap(lambda x, i=i: cost_of(i)(SPACE.decode(x)))(codes) for i in range(4)]
    refused = 0
    for instance in range(200):
        cost, every = cost_of(instance % 4), costs[instance % 4]
        scores = rng.normal(size=len(replaced.codes))
        most, least = int(rng.integers(0, 150)), int(rng.integers(0, 40))
        bounds = {"params": (None, most), "bytes": (least, None)}
        inside = np.asarray((every["params"] <= most) & (every["bytes"] >= least))
        if not inside.any():
            refused += 1
            with pytest.raises(ValueError, match="params.*bytes"):
                search.knapsack(replaced, scores, cost, bounds)
            continue
        arch = search.knapsack(replaced, scores, cost, bounds)
        code = np.asarray(SPACE.encode(arch))
        assert inside[[np.array_equal(code, one) for one in codes]].all()
        best = sums(replaced, scores, codes[inside]).max()
        np.testing.assert_allclose(sums(replaced, scores, code[None])[0], best, atol=1e-9)
        np.testing.assert_allclose(replaced.total(scores, arch), scores[0] + best, atol=1e-9)
    assert 0 < refused < 100


def test_costs_in_float32_add_up():
    """Each of many changes is rounded as the whole is."""
    space = Space(block=Choice(0, 1, 2).repeat(200))
    table = jnp.asarray(np.random.default_rng(0).uniform(1, 3, (200, 3)), jnp.float32)
    replaced = search.replacements(space)

    @jax.jit
    def cost(arch):
        return {"ms": table[jnp.arange(200), arch["block"]].sum() / 1e3}

    scores = np.random.default_rng(1).normal(size=len(replaced.codes))
    arch = search.knapsack(replaced, scores, cost, {"ms": (None, 0.38)})
    assert float(cost(arch)["ms"]) < 0.3801


def test_mistakes():
    replaced = search.replacements(SPACE)
    scores, cost = np.zeros(len(replaced.codes)), cost_of(0)
    wide = Space(width=Choice(*range(200)).repeat(2))

    def places(*names, given, space=SPACE):
        return lambda: search.replacements(space, places=given), ValueError, *names

    def pick(*names, scores=scores, cost=cost, **bounds):
        return lambda: search.knapsack(replaced, scores, cost, bounds), ValueError, *names

    alone = search.replacements(SPACE, places=[])

    def product(arch):
        return {"params": (1 + arch["width"]).prod() * (1 + arch["head"])}

    refusals.check(
        places("'head', 1", "block", given=[[("head", 1)]]),
        places("'head', 0", "two places", given=[[("head", 0)]] * 2),
        places("40000", given=[[("width", 0), ("width", 1)]], space=wide),
        pick("scores", "11", "(10,)", scores=scores[1:]),
        pick("scores", "finite", scores=scores * np.nan),
        pick("'macs'", "params", macs=(0, 1)),
        pick("params", "add up", "'width[1]'", "'width[2]'", cost=product, params=(10, 20)),
        (lambda: search.knapsack(alone, [0.0], cost_of(0), {}), ValueError, "one option"),
    )
