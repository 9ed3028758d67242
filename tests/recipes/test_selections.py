"""Selections of a differentiable search: what is drawn, and within which cost."""

import jax
import jax.numpy as jnp
import numpy as np
import refusals
import scipy.stats

from jaxnas.recipes import selections
from jaxnas.search.random_search import similar_cost
from jaxnas.space import Choice, Space

SPACE = Space(depth=Choice(2, 4), op=Choice("none", "a", "b").repeat(4, active="depth"))
KEY = jax.random.key(0)
BEST = {"depth": 4, "op": ["a"] * 4}


def cost(arch):
    """How many positions do something."""
    return jnp.sum(SPACE.active(arch)["op"] & (arch["op"] > 0), axis=-1)


def canonical(arch):
    """It does not matter where the positions are that do nothing."""
    order = jnp.argsort(arch["op"] == 0, stable=True)
    return {**arch, "op": arch["op"][order]}


def peaked(strength):
    """Depth 4 and "a" everywhere are the most probable."""
    logits = SPACE.logits()
    return {"depth": logits["depth"].at[1].add(strength), "op": logits["op"].at[:, 1].add(strength)}


def candidates(strength, count, **settings):
    return selections.candidates(SPACE, peaked(strength), KEY, count, **settings)


def codes_of(found):
    return np.asarray(SPACE.encode(found.archs))


def test_candidates_are_different_ones_by_the_probabilities():
    assert SPACE.to_dict(selections.argmax(SPACE, peaked(4.0))) == BEST
    found = candidates(4.0, 10)
    SPACE.check(found.archs)
    assert len(np.unique(codes_of(found), axis=0)) == 10
    np.testing.assert_array_equal(SPACE.encode(SPACE.canonical(found.archs)), codes_of(found))
    assert not found.explored.any()
    assert BEST in SPACE.to_dicts(found.archs)
    assert np.mean(np.asarray(found.archs["op"])[:, :2] == 1) > 0.6
    np.testing.assert_array_equal(codes_of(candidates(4.0, 10)), codes_of(found))


def test_the_draws_have_the_probabilities_of_the_softmax():
    space = Space(op=Choice(0, 1, 2).repeat(2))
    logits = {"op": jnp.asarray([[0.0, 1.0, -1.0], [2.0, 0.0, 0.0]])}
    drawn = selections._draws(space, logits, KEY, 9000)
    for position in range(2):
        expected = 9000 * np.asarray(jax.nn.softmax(logits["op"][position]), np.float64)
        counts = np.bincount(drawn[:, position], minlength=3)
        assert scipy.stats.chisquare(counts, expected * 9000 / expected.sum()).pvalue > 1e-3


def test_a_share_is_explored_and_more_where_the_probabilities_give_too_few():
    found = candidates(2.0, 8, explore=0.25)
    assert found.explored.tolist() == [False] * 6 + [True] * 2
    sure = candidates(100.0, 8, explore=0.25)
    assert sure.explored.tolist() == [False] + [True] * 7
    assert len(np.unique(codes_of(sure), axis=0)) == 8
    assert SPACE.to_dicts(candidates(100.0, 8).archs) == [BEST]
    other = candidates(2.0, 8, explore=0.25, explore_key=jax.random.key(7))
    np.testing.assert_array_equal(codes_of(found)[:6], codes_of(other)[:6])
    assert not np.array_equal(codes_of(found)[6:], codes_of(other)[6:])


def test_candidates_keep_the_bounds_and_equal_ones_count_once():
    found = candidates(0.0, 20, cost=cost, low=2, high=3, canonical=canonical)
    assert set(np.asarray(jax.vmap(cost)(found.archs)).tolist()) == {2, 3}
    alike = np.asarray(SPACE.encode(jax.vmap(canonical)(found.archs)))
    assert len(np.unique(alike, axis=0)) == len(alike) == 16  # 4 at depth 2; 4 and 8 at depth 4


def test_architectures_of_similar_cost():
    space = Space(width=Choice(*range(10, 30)).repeat(4))

    def named(arch):
        return {"params": 1000 + jnp.sum(arch["width"] + 10)}

    arch = space.from_dict({"width": [20, 20, 20, 20]})
    for fixed, most in ((0, 54), (1000, 4)):
        found = similar_cost(space, named, "params", arch, KEY, count=40, fixed=fixed)
        params, widths = np.asarray(jax.vmap(named)(found)["params"]), np.asarray(found["width"])
        assert len(params) == 40 and np.abs(params - 1080).max() <= most
        assert len(np.unique(widths, axis=0)) == 40 and not np.any(np.all(widths == 10, axis=1))


def test_selections_that_cannot_be_made_are_refused():
    def case(*names, count=20, **settings):
        return (lambda: candidates(0.0, count, **settings)), ValueError, *names

    def similar(name, fixed=0):
        named = lambda arch: {"params": 1080 + 0 * arch["depth"]}  # noqa: E731
        return lambda: similar_cost(SPACE, named, name, SPACE.largest(), KEY, fixed=fixed)

    refusals.check(
        (lambda: selections.argmax(SPACE, {"depth": jnp.zeros(2)}), ValueError, "'op'"),
        case("5", "0 to 4", cost=cost, low=5),
        case("high=5", high=5),
        case("explore", "1.5", explore=1.5),
        case("count", "0", count=0),
        (similar("macs"), ValueError, "'macs'"),
        (similar("params", 1081), ValueError, "1,081", "1,080"),
    )
