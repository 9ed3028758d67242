"""Promises of a training step: P1 one program, P6 untouched weights, devices, several steps in a call."""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from refusals import check
from small_nets import difference
from small_tasks import perceptron, task_of

import jaxnas
from jaxnas import Choice, training
from jaxnas.recipes import Uniform
from jaxnas.training import Options, Training
from jaxnas.training.mesh import make_mesh, shard_batch
from jaxnas.training.step import prepare, several, update
from jaxnas.training.store import Course

TASK, WIDEST = task_of("images"), 32
NET = perceptron(2, range(1, WIDEST + 1))
SETTINGS = Training(steps=40, learning_rate=1e-2, warmup_steps=4)
SGD = optax.sgd(0.1), optax.constant_schedule(0.1)


@functools.cache
def made(devices=1, net=NET, sgd=False, **settings):
    """A compiled step, its first state (consumed by it: take a copy), and the batches by step."""
    given = dict(steps=1000, batch_size=16, learning_rate=1e-2, warmup_steps=4, devices=devices)
    options = Options(optimizer=SGD if sgd else None)
    return prepare(TASK, net, Training(**given, **settings), Uniform(), options=options)


def copy(state):
    return jax.tree.map(jnp.copy, state)


def weights_and_moments(state):
    """The bits of the parameters, and of the first and second moments of AdamW."""
    found = jax.tree.leaves(state.opt_state, is_leaf=lambda x: hasattr(x, "mu"))
    (adam,) = (leaf for leaf in found if hasattr(leaf, "mu"))
    return [np.asarray(leaf).view(np.uint32) for leaf in jax.tree.leaves((state.params, adam.mu, adam.nu))]


def used_by(arch, params):
    """Which parameters of the perceptron an architecture uses."""
    used = jax.tree.map(lambda x: np.ones(x.shape, bool), jax.device_get(params))
    for i, option in enumerate(np.asarray(arch["hidden"])):
        within = np.arange(WIDEST) <= int(option)  # option k has a width of k + 1
        used[f"in_{i}"]["kernel"][:] = within
        used[f"in_{i}"]["bias"][:] = within
        used[f"out_{i}"]["kernel"][:] = within[:, None]
    return used


def transformed():
    """A transformed network of Flax's own layers."""
    model = nn.Sequential([lambda x: x.reshape(x.shape[0], -1), nn.Dense(8), nn.relu, nn.Dense(2)])
    variables = model.init(jax.random.key(0), jnp.zeros(TASK.inputs.shape))
    analysis = jaxnas.analyze(model, variables, TASK.inputs)
    return jaxnas.supernet(analysis, {"layers_1/hidden": Choice(2, 4, 8)}, form="masked", verify=False)


def used_of_transformed(arch, params):
    """Which parameters it uses."""
    used = jax.tree.map(lambda x: np.ones(x.shape, bool), jax.device_get(params))
    within = np.arange(8) < (2, 4, 8)[int(arch["layers_1/hidden"])]
    used["layers_1"]["kernel"][:] = used["layers_1"]["bias"][:] = within
    used["layers_3"]["kernel"][:] = within[:, None]
    return used


@pytest.mark.parametrize(
    ("net", "used", "freeze"),
    [
        (lambda: NET, used_by, True),
        (transformed, used_of_transformed, True),
        (lambda: NET, used_by, False),  # as official code does
    ],
    ids=["elastic", "transformed", "all moved"],
)
def test_steps_leave_inactive_weights_and_moments_bit_identical_unless_asked_not_to(net, used, freeze):
    state, step, batch = made(net=net(), freeze_inactive=freeze)
    # Biases away from zero, so that an unwanted change shows.
    params = jax.tree.map(lambda x: x + 0.01, state.params)
    state, changed, moved = copy(state.replace(variables={"params": params})), 0, 0
    for number in range(8):
        before = weights_and_moments(state)
        state, metrics = step(state, batch(number))
        arch = jax.tree.map(lambda x: x[0], metrics["archs"])
        masks = 3 * jax.tree.leaves(used(arch, state.params))
        for old, new, mask in zip(before, weights_and_moments(state), masks, strict=True):
            changed += int((old[mask] != new[mask]).sum())
            moved += int((old[~mask] != new[~mask]).sum())
    assert changed > 1000 and (moved == 0 if freeze else moved > 100)


def test_one_program_trains_a_thousand_architectures():
    traces = []

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Counted(type(TASK)):
        def loss(self, call):
            traces.append(1)
            return super().loss(call)

    given = {field.name: getattr(TASK, field.name) for field in dataclasses.fields(TASK)}
    training = Training(steps=1000, batch_size=16, warmup_steps=4, devices=1)
    state, step, batch = prepare(Counted(**given), NET, training, Uniform())
    rows, seen, before, first = batch(0), set(), len(traces), state
    for _ in range(1000):
        state, metrics = step(state, rows)
        seen.add(np.asarray(metrics["archs"]["hidden"]).tobytes())
    assert len(seen) > 500  # of 1,024
    assert len(traces) == before + 1 and step._cache_size() == 1
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first.params))  # a step consumes its state


@pytest.mark.eight_devices
def test_several_steps_in_one_call_are_one_after_another_on_one_device_and_on_eight():
    results = []
    for devices in (1, 8):
        # Not Adam: where a gradient is nothing but rounding, it makes a whole step of it.
        state, step, batch = made(devices, perceptron(1), sgd=True)
        state, together = copy(state), copy(state)
        batches, each = tuple(batch(number) for number in range(3)), []
        assert batches[0]["train"]["label"].sharding.num_devices == devices
        for one in batches:
            state, metrics = step(state, one)
            each.append({name: metrics.pop(name) for name in ("finite", "archs")})
        together, last = several(step)(together, batches)
        assert int(together.step) == 3 and last.pop("losses").shape == (3,)
        stacked = {name: last.pop(name) for name in ("finite", "archs")}
        jax.tree.map(np.testing.assert_array_equal, stacked, jax.tree.map(lambda *x: np.stack(x), *each))
        assert metrics.keys() == last.keys()
        assert difference(last, metrics) < 1e-5 and difference(together.params, state.params) < 1e-5
        for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(together.params), strict=True):
            assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
        results.append((state.params, {name: metrics[name] for name in ("loss", "accuracy")}))
    assert difference(*results) < 1e-5


@pytest.mark.parametrize(
    ("losses", "since"),
    [
        ([2.3, 2.0, 1.5, 300.0, 1.4, 1.3], None),  # a hard batch
        ([2.3, 1.0, 0.5, 9.0, 9.0, 9.0, 9.0], None),
        ([0.0, 1e-3, 0.5, 2.0, 2.0, 2.0], None),  # from a perfect start
        ([-1.0, -5.0, -5.0, 0.5, 0.5, 0.5], None),
        ([2.3, math.nan, 2.2, math.nan, 2.1], None),  # skipped steps
        ([900.0, 700.0, 1700.0, 1700.0, 800.0], None),
        ([2.3, 2.0, 50.0, 1e3, 1e15, 1e19], 3),
        ([2.3, 2.0, 1e15, 2.0, 25.0, 1e15, 1e15, 1e15], 5),
        ([900.0] + 3 * [1e5], 2),
        ([-1.0, -2.0] + 3 * [1e9], 3),
    ],
)
def test_the_course_of_a_loss_says_whether_it_diverged(losses, since):
    course = Course()
    for step, loss in enumerate(losses, start=1):
        course = course.after(step, loss)
        if course.ruined:
            break
    assert (course.since if course.ruined else None) == since


def test_settings_and_seeds_out_of_range_are_named():
    """Beside what tests/test_settings.py tries on every class."""

    def case(name, value):
        return lambda: Training(**{"steps": 10, name: value}).optimizer(), ValueError, f"{name} is {value}"

    counts = ("steps", "batch_size", "log_every", "checkpoint_every", "steps_per_call", "devices")
    check(
        *(case(name, 0) for name in counts),
        *map(case, ("clip", "average", "warmup_steps"), (0.0, 1.0, 10)),
        *(
            (lambda seed=seed: training.fit(TASK, NET, 2, seed=seed), ValueError, f"seed is {seed!r}, expect")
            for seed in (2.5, -1, "x", True)
        ),
    )


@pytest.mark.eight_devices
def test_a_batch_that_the_devices_cannot_share_is_refused():
    def case(size, name):
        training = Training(steps=2, batch_size=size, devices=8)
        return lambda: prepare(TASK, NET, training, Uniform()), ValueError, name

    check(
        (lambda: shard_batch({"x": np.zeros((12, 3))}, make_mesh(8)), ValueError, "12 does"),
        case(12, "12, which"),
        case(72, "at most 64"),
    )


@pytest.mark.parametrize("l2", [False, True])
def test_adamw_and_adam_with_l2_are_those_of_pytorch(l2):
    """After six steps of random gradients, with masks of all elements and without masks."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    first = {"kernel": random.normal(size=(3, 2)), "bias": random.normal(size=(2,))}
    params = {name: jnp.asarray(x, jnp.float32) for name, x in first.items()}
    ours = {name: torch.nn.Parameter(torch.tensor(x)) for name, x in first.items()}
    everything = jax.tree.map(lambda x: jnp.ones(x.shape, bool), params)
    training, masks = SETTINGS, (everything,)
    decayed = [{"params": [ours["kernel"]], "weight_decay": 0.05}, {"params": [ours["bias"]]}]
    theirs = torch.optim.AdamW(decayed, weight_decay=0.0)
    if l2:
        training, masks = dataclasses.replace(SETTINGS, weight_decay=0.0, l2=0.3, clip=1.0), ()
        theirs = torch.optim.Adam(ours.values(), weight_decay=0.3)
    optimizer, schedule = training.optimizer()
    state = optimizer.init(params)
    for number in range(6):
        grads = {name: random.normal(size=x.shape) for name, x in first.items()}
        tree = {name: jnp.asarray(grad, jnp.float32) for name, grad in grads.items()}
        params, state = update(optimizer, tree, state, params, *masks)
        for group in theirs.param_groups:
            group["lr"] = float(schedule(number))
        for name, parameter in ours.items():
            parameter.grad = torch.tensor(grads[name])
        if l2:
            torch.nn.utils.clip_grad_norm_(ours.values(), 1.0)
        theirs.step()
    for name, parameter in ours.items():
        np.testing.assert_allclose(params[name], parameter.detach().numpy(), rtol=1e-5)


def test_schedule_rises_then_falls_to_its_end_and_gradients_are_clipped_to_the_norm_asked_for():
    _, schedule = SETTINGS.optimizer()
    rates = np.array([schedule(n) for n in range(41)])
    assert rates[0] == pytest.approx(1e-6, rel=1e-3)
    assert rates.argmax() == 4 and rates.max() == pytest.approx(1e-2)
    assert (np.diff(rates[4:]) < 0).all() and rates[-1] == pytest.approx(1e-5, rel=1e-3)

    params = {"kernel": jnp.ones((2, 2))}
    (clipped, _), (plain, _) = (dataclasses.replace(SETTINGS, clip=x).optimizer() for x in (0.5, None))
    large, unit = ({"kernel": jnp.full((2, 2), x)} for x in (100.0, 0.25))  # of norm 200 and 0.5
    a, _ = clipped.update(large, clipped.init(params), params)
    b, _ = plain.update(unit, plain.init(params), params)
    assert difference(a, b) < 1e-6
    # One structure of the state, so that a training may go on with a limit that it did not have.
    assert jax.tree.structure(clipped.init(params)) == jax.tree.structure(plain.init(params))


def test_a_shortened_training_has_a_short_warm_up_and_one_of_the_same_length_is_as_it_was():
    given = Training(steps=100, warmup_steps=50)
    assert given.shortened(None) == given.shortened(100) == given
    assert given.shortened(40) == Training(steps=40, warmup_steps=4)
