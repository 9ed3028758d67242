"""Recipes: one architecture, or architecture parameters beside the weights, and what they refuse."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import refusals
from small_nets import difference, jit, random_params
from small_tasks import perceptron, recalling, task_of

import jaxnas
from jaxnas import Choice, Space, training
from jaxnas.elastic import Decisions, Mixture
from jaxnas.recipes import Fixed, Relaxed, Uniform, relaxations
from jaxnas.training import Options, Training
from jaxnas.training.step import prepare

TASK, NET = dataclasses.replace(task_of("images"), label_smoothing=0.0), perceptron(2, (1, 2, 4))
SPACE = NET.space
RATE = 0.3
SGD = optax.sgd(RATE), optax.constant_schedule(RATE)
COST = jaxnas.cost(NET, TASK.inputs)
TRAINING = Training(steps=40, batch_size=8, devices=1)


@functools.cache
def made(recipe=None, kind="images", **relaxed):
    """A compiled step of plain gradient descent, its first state, and its batches."""
    task, net = (TASK, NET) if kind == "images" else (task_of(kind), recalling())
    recipe = Relaxed(**relaxed) if recipe is None else recipe
    cost = COST if kind == "images" else None
    return prepare(task, net, TRAINING, recipe, options=Options(optimizer=SGD, cost=cost))


def run(steps, **settings):
    """The states before and after each step, and the metrics."""
    state, step, batch = made(**settings)
    states, metrics = [jax.tree.map(jnp.copy, state)], []
    for number in range(steps):
        copy = jax.tree.map(jnp.copy, states[-1])  # a step consumes its state
        state, found = step(copy, batch(number))
        states.append(state)
        metrics.append({name: float(value) for name, value in found.items()})
    return states, metrics


def moved(states, part):
    """Whether a part of the state has changed in each step."""
    leaves = [[np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(part(state))] for state in states]
    return [a != b for a, b in zip(leaves, leaves[1:], strict=False)]


# ---- Architecture parameters.

CONFIDENCE = {"temperature", "entropy", "confidence"}


def test_logits_and_the_search_memory_stay_until_their_start_and_between_updates():
    states, metrics = run(7, kind="language", start=2, every=3)
    due = [False, False, True, False, False, True, False]
    assert moved(states, lambda s: s.logits) == due
    assert moved(states, lambda s: s.recipe["search_loss"]) == due
    # The memory of the search text goes on with the updates, that of training in every step.
    assert moved(states, lambda s: s.carry["search"].inputs) == due
    assert moved(states, lambda s: s.carry["train"].inputs) == [True] * 7
    assert np.isnan(metrics[1]["search_loss"]) and np.isfinite(metrics[2]["search_loss"])
    assert states[-1].step == 7 and CONFIDENCE <= set(metrics[0])
    # Search batches are read without gaps.
    task, (_, _, batch) = task_of("language"), made(kind="language", start=2, every=3)
    for role, steps in (("search", (2, 5)), ("train", (0, 1, 2))):
        own = task.batches(role, 8, 0)
        for number, step in enumerate(steps):
            given = batch(step)[role]
            jax.tree.map(np.testing.assert_array_equal, given, {x: own.at(number)[x] for x in given})


def test_even_weights_have_no_temperature_to_log():
    state, step, batch = made(relaxation="average")
    _, metrics = jax.eval_shape(step, state, batch(0))
    assert {"loss", "search_loss"} <= set(metrics) and not CONFIDENCE & set(metrics)


@pytest.mark.parametrize("order", ["first", "second", "joint"])
def test_gradients_of_the_logits_are_exact(order):
    """Against differences of the loss itself, through the step of the weights where it is unrolled."""
    constant = dict(temperature="constant", start_temperature=2.0)
    recipe = Relaxed(order=order, relaxation="softmax", every=1, **constant)
    # Plain descent in place of Adam: the logits move by the gradient.
    object.__setattr__(recipe, "_optimizer", lambda: optax.sgd(1.0))
    weights = {"params": random_params(NET, TASK.inputs.shape)}  # far from 0, so that the logits matter
    options = Options(optimizer=SGD, variables=weights)
    state, step, batch = prepare(TASK, NET, TRAINING, recipe, options=options)
    params, logits, rows = *jax.device_get((state.params, state.logits)), batch(0)

    def loss(params, logits, role):
        arch = {name: jax.nn.softmax(x / 2) for name, x in logits.items()}
        pixels = (np.asarray(rows[role]["image"], np.float32) - TASK.dataset.mean) / TASK.dataset.std
        given = NET.apply({"params": params}, pixels, arch)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(given, rows[role]["label"]))

    @jit
    def total(logits):
        unrolled = params
        if order == "second":
            inner = jax.grad(loss)(params, logits, "train")
            unrolled = jax.tree.map(lambda p, g: p - RATE * g, params, inner)
        return loss(unrolled, logits, "train" if order == "joint" else "search")

    after, _ = step(state, rows)
    gradient = logits["hidden"] - np.asarray(after.logits["hidden"])
    assert np.abs(gradient).max() > 1e-3
    for place in ((0, 0), (0, 2), (1, 1)):
        shift = np.zeros((2, 3), np.float32)
        shift[place] = 0.05
        up, down = (float(total({"hidden": logits["hidden"] + s})) for s in (shift, -shift))
        assert gradient[place] == pytest.approx((up - down) / 0.1, rel=0.03, abs=1e-5)
    # Weights go down the gradient at the logits of after their update, or of before where both go at once.
    at = logits if order == "joint" else after.logits
    own = jit(jax.grad(lambda p: loss(p, at, "train")))(params)
    expected = jax.tree.map(lambda p, g: p - RATE * g, params, own)
    assert difference(after.params, expected) < 1e-5


def test_joint_search_learns_from_training_data_alone():
    states, _ = run(5, order="joint", start=3)
    assert set(made(order="joint", start=3)[2](0)) == set(states[0].carry) == {"train"}
    assert moved(states, lambda s: s.logits) == [False, False, False, True, True]
    assert moved(states, lambda s: s.params) == [True] * 5
    # Nothing is held out of its data.
    whole = TASK.whole()
    prepare(whole, NET, TRAINING, Relaxed(order="joint"))
    with pytest.raises(ValueError, match="'search'"):
        prepare(whole, NET, TRAINING, Relaxed(order="first"))


def test_a_cost_above_its_target_pushes_to_cheaper_options():
    common = dict(every=1, learning_rate=0.1, cost="params")
    free, plain = run(3, **common)
    dear, metrics = run(3, cost_weight=2.0, target=0.1, **common)
    costs = [m["expected_cost"] for m in metrics]
    assert costs[0] > costs[1] > costs[2] and costs[2] < plain[2]["expected_cost"]
    lead = [np.asarray(x[-1].logits["hidden"]) for x in (dear, free)]
    assert np.all((lead[0][:, 0] - lead[0][:, 2]) > (lead[1][:, 0] - lead[1][:, 2]))
    reached, _ = run(3, cost_weight=2.0, target=10.0, **common)
    assert difference(reached[-1].logits, free[-1].logits) < 1e-6
    # In units of the reference's, without what every network costs: 0 for the smallest, 1 for the largest.
    relative = Relaxed(cost="params").relative_cost(SPACE, COST)
    assert float(relative(SPACE.smallest())) == 0 and float(relative(SPACE.largest())) == 1
    even = relaxations.softmax(SPACE.logits())
    low, mean, high = (float(COST(x)["params"]) for x in (SPACE.smallest(), even, SPACE.largest()))
    assert float(relative(even)) == pytest.approx((mean - low) / (high - low))


# ---- One architecture.

FIXED = Fixed(SPACE.from_dict({"hidden": [2, 1]}))


def test_one_program_trains_any_fixed_architecture_and_keeps_it():
    """Its other weights stay: tests/training/test_several.py."""
    state, step, batch = made(recipe=FIXED)
    for row in range(9):
        arch = SPACE.decode(jnp.array([row // 3, row % 3], jnp.int32))
        after, _ = step(jax.tree.map(jnp.copy, state.replace(recipe={"arch": arch})), batch(0))
        np.testing.assert_array_equal(after.recipe["arch"]["hidden"], arch["hidden"])
    assert step._cache_size() == 1


def test_a_fixed_architecture_trains_as_the_extracted_network_does():
    """On the same weights and data, without the randomness of dropout."""
    state, step, batch = made(recipe=FIXED)
    small = jaxnas.extract(NET, state.variables, FIXED.arch, inputs=TASK.inputs)
    options = Options(variables=small.variables, optimizer=SGD)
    alone, own, _ = prepare(TASK, small.net, TRAINING, Fixed(), options=options)
    state = jax.tree.map(jnp.copy, state)
    for number in range(3):
        state, _ = step(state, batch(number))
        alone, _ = own(alone, batch(number))
    found = jaxnas.extract(NET, jax.device_get(state.variables), FIXED.arch, inputs=TASK.inputs)
    assert difference(found.variables["params"], alone.params) < 1e-5


# ---- Refusals.


class OneKind(nn.Module):
    """It reads its decision in a way that only soft, or only hard architectures can be read."""

    soft: bool
    space: Space = Space(op=Choice("narrow", "wide"))

    @nn.compact
    def __call__(self, images, arch=None, *, train=False):
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        value = decisions["op"].value
        scale = value[0] + value[1] if self.soft else jax.lax.switch(value, [lambda: 2.0, lambda: 2.0])
        x = scale * images.reshape(images.shape[0], -1)
        return Mixture({"narrow": nn.Dense(2), "wide": nn.Dense(2)}, name="op")(decisions["op"], x)


def test_what_cannot_be_right_is_refused():
    latency, late = Relaxed(cost="latency_ms"), Relaxed(start=2)
    same = Relaxed(cost="macs", reference={"hidden": [1, 1]})

    def case(name, **settings):
        return lambda: Relaxed(**settings), ValueError, name

    def fixed(name, **arch):
        return lambda: Fixed(arch and jax.tree.map(jnp.asarray, arch)).init(SPACE), ValueError, name

    def kind(name, soft, recipe):
        return lambda: training.fit(TASK, OneKind(soft), 2, recipe=recipe), ValueError, name

    refusals.check(
        case("'third'", order="third"),
        case("did you mean 'first'?", order="frist"),
        case("'gumbel_softmax'", relaxation="gumbel"),
        case("did you mean 'linear'?", temperature="linaer"),
        case("every is 0", every=0),
        case("start_temperature is 0.0", start_temperature=0.0),
        case("'macs'", cost_weight=1.0),
        case("target is 0.0", cost_weight=1.0, cost="macs", target=0.0),
        case("confidence is 1.5", confidence=1.5),
        case("'average'", confidence=0.5, relaxation="average"),
        (lambda: Relaxed(cost="mac").relative_cost(SPACE, COST), ValueError, "'macs'"),
        (lambda: Relaxed(cost="macs").relative_cost(SPACE, None), ValueError, "'macs'"),
        (lambda: same.relative_cost(SPACE, COST), ValueError, "no more than the smallest"),
        (lambda: Fixed().init(SPACE), ValueError, "network has 9"),
        fixed("'hidden'[1] is 3", hidden=[0, 3]),
        fixed("did you mean 'hidden'?", hiden=[0, 1]),
        (lambda: prepare(TASK, NET, TRAINING, latency), ValueError, "'latency_ms'"),
        (lambda: training.fit(TASK, NET, 2, recipe=late), ValueError, "recipe.start is 2"),
        # Before anything is trained.
        kind("OneKind fails with a soft", False, Relaxed()),
        kind("OneKind takes soft", True, Uniform()),
        kind("OneKind takes soft", True, Relaxed()),
    )
