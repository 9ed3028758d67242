"""Relaxations of architecture parameters, temperatures, and selection by perturbation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import check

from jaxnas.recipes import relaxations
from jaxnas.recipes.selections import perturbation, pruning
from jaxnas.space import Choice, Space

SPACE = Space(width=Choice(1, 2, 4), op=Choice("a", "b").repeat(3))
LOGITS = {"width": jnp.array([0.5, -1.0, 1.5]), "op": jnp.array([[0.0, 1.0], [2.0, -1.0], [0.3, 0.3]])}


def test_each_gives_a_soft_architecture_without_weight_beyond_the_options_of_a_position():
    narrow = Space(op=Choice("a", "b", "c").repeat(2))._narrow({"op": [("a", "b", "c"), ("a",)]})
    for name, relax in relaxations.RELAXATIONS.items():
        weights = relax(LOGITS, jax.random.key(0), 0.7)
        SPACE.check(weights)
        for leaf in weights.values():
            assert np.all(np.asarray(leaf) >= 0)
            np.testing.assert_allclose(np.sum(leaf, -1), 1, rtol=1e-6)
        weights = relax(narrow.logits(), jax.random.key(1), 1.0)["op"]
        np.testing.assert_array_equal(np.asarray(weights)[1], [1, 0, 0], err_msg=name)
        if name in ("softmax", "average"):
            np.testing.assert_allclose(weights[0], [1 / 3] * 3, rtol=1e-6)
    np.testing.assert_array_equal(narrow.harden(narrow.logits())["op"], [0, 0])


@pytest.mark.parametrize("relax", [relaxations.straight_through, relaxations.gumbel_softmax])
def test_samples_are_distributed_as_the_probabilities_say(relax):
    """By the largest weight, at any temperature (the Gumbel-max identity)."""
    keys = jax.random.split(jax.random.key(0), 8000)
    drawn = jax.vmap(lambda key: SPACE.harden(relax(LOGITS, key, 0.3)))(keys)
    probabilities = relaxations.softmax(LOGITS)
    for name in SPACE:
        options = probabilities[name].shape[-1]
        counts = np.mean(np.asarray(drawn[name])[..., None] == np.arange(options), axis=0)
        np.testing.assert_allclose(counts, probabilities[name], atol=0.02)


def test_samples_are_the_same_in_a_compiled_program():
    """Also where the names are not in order, as a dict that comes out of one has them."""
    given = {"z": LOGITS["width"], "a": LOGITS["op"]}, jax.random.key(7), 0.5
    eager, compiled = relaxations.gumbel_softmax(*given), jax.jit(relaxations.gumbel_softmax)(*given)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), eager, compiled)


def test_straight_through_is_hard_with_the_soft_gradient():
    key = jax.random.key(3)
    hard = relaxations.straight_through(LOGITS, key, 0.8)
    for leaf in hard.values():
        assert set(np.unique(leaf)) <= {0.0, 1.0}  # exactly

    def slope(relax):
        return jax.grad(lambda x: sum(jnp.sum(w[..., 0]) for w in relax(x, key, 0.8).values()))(LOGITS)

    expected = slope(relaxations.gumbel_softmax)
    jax.tree.map(np.testing.assert_array_equal, slope(relaxations.straight_through), expected)


def test_low_temperatures_are_hard_and_high_ones_even():
    cold, hot = (relaxations.gumbel_softmax(LOGITS, jax.random.key(0), t) for t in (1e-3, 1e4))
    assert float(relaxations.confidence(cold)) > 0.999
    assert float(relaxations.entropy(hot)) == pytest.approx((np.log(3) + 3 * np.log(2)) / 4, abs=1e-4)


def test_harden_takes_the_largest_and_soften_is_its_inverse():
    hard = SPACE.harden(LOGITS)
    assert SPACE.to_dict(hard) == {"width": 4, "op": ["b", "a", "a"]}
    assert all(map(np.array_equal, SPACE.harden(SPACE.soften(hard)).values(), hard.values()))


@settings(max_examples=20)
@given(
    start=st.floats(0.5, 10),
    end=st.floats(0.01, 0.5),
    steps=st.integers(1, 1000),
    kind=st.sampled_from(["exponential", "linear"]),
)
def test_temperatures_fall_from_start_to_end(start, end, steps, kind):
    schedule = relaxations.temperature_schedule(kind, start, end, steps)
    values = [float(schedule(step)) for step in (0, steps // 2, steps, 2 * steps)]
    assert values[0] == pytest.approx(start, rel=1e-5) and values[2] == pytest.approx(end, rel=1e-4)
    assert values == sorted(values, reverse=True) and values[3] == pytest.approx(end, rel=1e-4)


# ---- Selection by perturbation.


def value_of(arch):
    """The second option of `op` is worth more where the first is gone; `width` has a best option."""
    worth = jnp.array([[1.0, 3.0], [2.0, 0.5], [0.2, 0.1]])
    return jnp.sum(arch["op"] * worth) + 4 * arch["width"][1]


def perturbed(op, width):
    """What is found from weights, and the architectures that are evaluated on the way."""
    weights, seen = {"width": jnp.array(width), "op": jnp.array([op] * 3)}, []

    def evaluate(archs):
        seen.append(archs)
        return jax.vmap(value_of)(archs)

    tuned = []
    arch, found = perturbation(SPACE, weights, evaluate, jax.random.key(0), tune=tuned.append)
    assert len(tuned) == 3
    return arch, {(one["name"], one["position"]): one for one in found}, seen


def test_perturbation_keeps_what_hurts_most_when_removed():
    # By the size of the weights each decision would go the other way.
    arch, found, seen = perturbed([0.6, 0.4], [0.4, 0.35, 0.25])
    assert SPACE.to_dict(arch) == {"width": 2, "op": ["b", "a", "a"]}
    assert sorted(len(archs["width"]) for archs in seen) == [3, 3, 3, 4]
    np.testing.assert_allclose(found["op", 0]["drops"], [0.6, 1.2], rtol=1e-5)
    # Weights are not made to sum to one when an option is taken out: both others stay.
    assert found["width", None]["drops"] == pytest.approx([0, 1.4, 0])
    kept = {name: one["kept"] for name, one in found.items()}
    assert kept == {("width", None): 2, ("op", 0): "b", ("op", 1): "a", ("op", 2): "a"}
    names = [name for name, _ in found]
    assert names != sorted(names)  # in random order


HEADS = Space(mechanism=Choice("a", "b", "c").repeat(2))


@pytest.mark.parametrize("at_once, rounds, kept", [(False, 4, ["a", "b"]), (True, 1, ["a", "a"])])
def test_pruning_keeps_the_strongest_blocks(at_once, rounds, kept):
    """The blocks of "b" can stand for each other: without one of the two, nothing is lost."""

    def evaluate(archs):
        there = 3 * archs["mechanism"]  # [n, 2, 3], 1 for a block that is there
        a, b, c = there[:, :, 0], there[:, :, 1], there[:, :, 2]
        return 3 * b.max(-1) + a[:, 0] + 0.5 * a[:, 1] + 0.01 * c.sum(-1)

    weights, tuned = {"mechanism": jnp.full((2, 3), 1 / 3)}, []
    arch, found = pruning(HEADS, weights, evaluate, at_once=at_once, tune=tuned.append)
    assert HEADS.to_dict(arch) == {"mechanism": kept}
    assert [len(one["blocks"]) for one in found] == [6, 5, 4, 3][:rounds]
    assert found[0]["blocks"] == [[position, option] for position in range(2) for option in "abc"]
    assert found[0]["drops"] == pytest.approx([1, 0, 0.01, 0.5, 0, 0.01], abs=1e-6)
    assert len(tuned) == rounds - 1
    for one, soft in zip(found, tuned, strict=False):
        assert one["removed"] and all(
            soft["mechanism"][position, "abc".index(option)] == 0 for position, option in one["removed"]
        )


def test_blocks_that_stay_keep_their_position():
    worth = jnp.asarray([[0.0, 3.0, 2.0], [0.1, 0.0, 0.2], [4.0, 0.0, 0.0]])
    space = Space(mechanism=Choice("a", "b", "c").repeat(3))
    weights = {"mechanism": jnp.full((3, 3), 1 / 3)}
    arch, _ = pruning(space, weights, lambda archs: jnp.sum(archs["mechanism"] * worth[None], (1, 2)))
    # Two of the first position stay: the second of them goes to the one that has none.
    assert space.to_dict(arch) == {"mechanism": ["b", "c", "a"]}


def test_what_cannot_be_relaxed_or_selected_is_refused():
    by_position = Space(mechanism=Choice("a", "b").repeat(2).at_positions("a", ("a", "b")))
    key, soft = jax.random.key(0), relaxations.softmax(LOGITS)

    def relaxed(how, key, temperature, error, *names):
        return lambda: getattr(relaxations, how)(LOGITS, key, temperature), error, *names

    def pruned(space):
        return lambda: pruning(space, space.logits(), lambda archs: 0), ValueError, "that is repeated"

    check(
        relaxed("gumbel_softmax", None, 1.0, TypeError, "key", "None"),
        relaxed("straight_through", None, 1.0, TypeError, "key", "None"),
        *(relaxed("gumbel_softmax", key, wrong, ValueError) for wrong in (0.0, -1.0, np.nan, np.inf)),
        *map(pruned, (SPACE, by_position, Space(mechanism=Choice("a", "b")))),
        (
            lambda: perturbation(SPACE, soft, lambda archs: jnp.full(len(archs["op"]), jnp.nan), key),
            ValueError,
            "without each option are",
        ),
    )
