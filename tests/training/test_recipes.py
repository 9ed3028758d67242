"""Recipes: one architecture, or architecture parameters beside the weights, and what they refuse."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_nets import difference, jit, random_params
from small_tasks import net_of, perceptron, task_of

import jaxnas
from jaxnas import Choice, Space, tasks, training
from jaxnas.elastic import Decisions, Mixture
from jaxnas.training import Fixed, Relaxed, Training, Uniform, make_mesh, relaxations
from jaxnas.training.prepare import prepare

TASK, NET = task_of("images"), perceptron(2, (1, 2, 4))
SPACE = NET.space
RATE = 0.3
SGD = optax.sgd(RATE), optax.constant_schedule(RATE)
COST = jaxnas.cost(NET, TASK.inputs)


@functools.cache
def made(devices=1, recipe=None, kind="images", **relaxed):
    """A compiled step of plain gradient descent, its first state, and its batches."""
    task, net = (TASK, NET) if kind == "images" else (task_of(kind), net_of(kind, scan=True))
    recipe = Relaxed(**relaxed) if recipe is None else recipe
    training = Training(steps=40, batch_size=8)
    cost = COST if kind == "images" else None
    return prepare(task, net, training, recipe, make_mesh(devices), optimizer=SGD, cost=cost)


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
    pairs = zip(map(part, states), map(part, states[1:]), strict=False)
    return [
        any(
            not np.array_equal(x, y, equal_nan=True)
            for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        )
        for a, b in pairs
    ]


# ---- Architecture parameters.


def test_logits_and_the_search_memory_stay_until_their_start_and_between_updates():
    states, metrics = run(7, kind="language", start=2, every=3)
    due = [False, False, True, False, False, True, False]
    assert moved(states, lambda s: s.logits) == due
    assert moved(states, lambda s: s.recipe["search_loss"]) == due
    # The memory of the search text goes on with the updates, that of training in every step.
    assert moved(states, lambda s: s.carry["search"].inputs) == due
    assert moved(states, lambda s: s.carry["train"].inputs) == [True] * 7
    assert np.isnan(metrics[1]["search_loss"]) and np.isfinite(metrics[2]["search_loss"])
    assert states[-1].step == 7


@pytest.mark.parametrize("kind", ["images", "language"])
def test_search_batches_are_read_without_gaps(kind):
    _, _, batch = made(kind=kind, start=2, every=3)
    task = task_of(kind)
    for role, steps in (("search", (2, 5, 8)), ("train", (0, 1, 2))):
        own = task.batches(role, 8, 0)
        for number, step in enumerate(steps):
            for name, expected in own.at(number).items():
                np.testing.assert_array_equal(batch(step)[role][name], expected)


@pytest.mark.parametrize("relaxation, decided", [("softmax", True), ("average", False)])
def test_even_weights_have_no_temperature_to_log(relaxation, decided):
    state, step, batch = made(relaxation=relaxation)
    _, metrics = jax.eval_shape(step, state, batch(0))
    assert {"loss", "search_loss"} <= set(metrics)
    assert {"temperature", "entropy", "confidence"} & set(metrics) == (
        {"temperature", "entropy", "confidence"} if decided else set()
    )


class Plain(tasks.Images):
    """Images without anything random in their loss, as written out by hand below."""

    def loss(self, net, variables, arch, batch, carry, key, train):
        batch = {**batch, "weight": jnp.ones(batch["label"].shape, jnp.float32)}
        return super().loss(net, variables, arch, batch, carry, None, False)


@pytest.mark.parametrize("order", ["first", "second", "joint"])
def test_gradients_of_the_logits_are_exact(order):
    """Against differences of the loss itself, through the step of the weights where it is unrolled."""
    task = Plain(data=TASK.data)
    recipe = Relaxed(
        order=order, relaxation="softmax", every=1, temperature="constant", start_temperature=2.0
    )
    # Plain descent in place of Adam: the logits move by the gradient.
    object.__setattr__(recipe, "_optimizer", lambda: optax.sgd(1.0))
    training = Training(steps=40, batch_size=8)
    weights = {"params": random_params(NET, TASK.inputs.shape)}  # far from 0, so that the logits matter
    state, step, batch = prepare(task, NET, training, recipe, make_mesh(1), optimizer=SGD, variables=weights)
    params, logits, rows = *jax.device_get((state.params, state.logits)), batch(0)

    def loss(params, logits, role):
        arch = {name: jax.nn.softmax(x / 2) for name, x in logits.items()}
        pixels = (np.asarray(rows[role]["image"], np.float32) - task.dataset.mean) / task.dataset.std
        given = jax.nn.log_softmax(NET.apply({"params": params}, pixels, arch))
        return -jnp.mean(jnp.take_along_axis(given, rows[role]["label"][:, None], axis=1))

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
    recipe = Relaxed(order="joint")
    prepare(whole, NET, Training(steps=4, batch_size=8), recipe, make_mesh(1))
    with pytest.raises(ValueError, match="'search'"):
        prepare(whole, NET, Training(steps=4), Relaxed(order="first"), make_mesh(1))


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
    low, high = (float(COST(arch)["params"]) for arch in (SPACE.smallest(), SPACE.largest()))
    mean = float(COST(relaxations.softmax(SPACE.logits()))["params"])
    assert float(relative(relaxations.softmax(SPACE.logits()))) == pytest.approx((mean - low) / (high - low))


def test_a_sure_search_is_done_before_its_last_step():
    recipe = Relaxed(confidence=0.7)
    assert recipe.done({"confidence": 0.7}) and not recipe.done({"confidence": 0.69})
    assert not recipe.done({"step": 3}) and not Relaxed().done({"confidence": 1.0})


# ---- One architecture.


def test_one_program_trains_any_fixed_architecture_and_keeps_it():
    state, step, batch = made(recipe=Fixed(SPACE.smallest()))
    rows = batch(0)
    for row in range(9):
        arch = SPACE.decode(jnp.array([row // 3, row % 3], jnp.int32))
        one = jax.tree.map(jnp.copy, state.replace(recipe={"arch": arch}))
        before = jax.device_get(one.params)
        after, _ = step(one, rows)
        np.testing.assert_array_equal(after.recipe["arch"]["hidden"], arch["hidden"])
        for i, size in enumerate(SPACE.to_dict(arch)["hidden"]):
            changed = np.any(
                np.asarray(after.params[f"in_{i}"]["kernel"]) != before[f"in_{i}"]["kernel"], axis=0
            )
            np.testing.assert_array_equal(changed, np.arange(4) < size)
    assert step._cache_size() == 1


def test_a_fixed_architecture_trains_as_the_extracted_network_does():
    """On the same weights and data, without the randomness of dropout."""
    arch = SPACE.from_dict({"hidden": [2, 1]})
    state, step, batch = made(recipe=Fixed(arch))
    small = jaxnas.extract(NET, state.variables, arch, inputs=TASK.inputs)
    training = Training(steps=40, batch_size=8)
    alone, own, _ = prepare(
        TASK, small.net, training, Fixed(), make_mesh(1), variables=small.variables, optimizer=SGD
    )
    state = jax.tree.map(jnp.copy, state)
    for number in range(3):
        state, _ = step(state, batch(number))
        alone, _ = own(alone, batch(number))
    found = jaxnas.extract(NET, jax.device_get(state.variables), arch, inputs=TASK.inputs)
    assert difference(found.variables["params"], alone.params) < 1e-5


# ---- Refusals.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Relaxed(order="third"), "'third'"),
        (lambda: Relaxed(order="frist"), "did you mean 'first'?"),
        (lambda: Relaxed(relaxation="gumbel"), "'gumbel_softmax'"),
        (lambda: Relaxed(temperature="linaer"), "did you mean 'linear'?"),
        (lambda: Relaxed(every=0), "every is 0"),
        (lambda: Relaxed(start=-1), "start is -1"),
        (lambda: Relaxed(learning_rate=-0.1), "learning_rate is -0.1"),
        (lambda: Relaxed(weight_decay=float("nan")), "weight_decay is nan"),
        (lambda: Relaxed(start_temperature=0.0), "start_temperature is 0.0"),
        (lambda: Relaxed(end_temperature=float("nan")), "temperature is nan"),
        (lambda: Relaxed(cost_weight=1.0), "'macs'"),
        (lambda: Relaxed(cost_weight=1.0, cost="macs", target=0.0), "target is 0.0"),
        (lambda: Relaxed(cost_weight=-1.0, cost="macs"), "cost_weight is -1.0"),
        (lambda: Relaxed(confidence=1.5), "confidence is 1.5"),
        (lambda: Relaxed(confidence=0.5, relaxation="average"), "'average'"),
        (lambda: Relaxed(cost="mac").relative_cost(SPACE, COST), "'macs'"),
        (lambda: Relaxed(cost="macs").relative_cost(SPACE, None), "'macs'"),
        (
            lambda: Relaxed(cost="macs", reference={"hidden": [1, 1]}).relative_cost(SPACE, COST),
            "no more than the smallest",
        ),
        (lambda: Fixed().init(SPACE), "network has 9"),
        (lambda: Fixed({"hidden": jnp.array([0, 3])}).init(SPACE), "'hidden'[1] is 3"),
        (lambda: Fixed({"hiden": jnp.array([0, 1])}).init(SPACE), "did you mean 'hidden'?"),
        (
            lambda: prepare(TASK, NET, Training(steps=2), Relaxed(cost="latency_ms"), make_mesh(1)),
            "'latency_ms'",
        ),
        (lambda: training.fit(TASK, NET, 2, recipe=Relaxed(start=2)), "recipe.start is 2"),
    ],
)
def test_what_cannot_be_right_is_refused(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)


def test_recipes_say_what_is_watched():
    watched = {type(r).__name__: r.watches for r in (Uniform(), Fixed(), Relaxed())}
    assert watched == {"Uniform": "architectures", "Fixed": "network", "Relaxed": "probabilities"}


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


@pytest.mark.parametrize(
    ("soft", "recipe", "message"),
    [
        (False, Relaxed(), "OneKind fails with a soft"),
        (True, Uniform(), "OneKind takes soft"),
        (True, Relaxed(), "OneKind takes soft"),
    ],
)
def test_a_network_that_takes_one_kind_of_architectures_alone_is_told(soft, recipe, message):
    """Before anything is trained."""
    with pytest.raises(ValueError, match=message):
        training.fit(TASK, OneKind(soft), 2, recipe=recipe)
