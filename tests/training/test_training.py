"""Promises of a training step: P1 one program, P6 untouched weights, devices, several steps in a call."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_nets import difference
from small_tasks import net_of, perceptron, task_of

from jaxnas import training
from jaxnas.elastic import stack_layers
from jaxnas.training import Training, Uniform, make_mesh
from jaxnas.training import optimizer as optimizer_lib
from jaxnas.training.calls import several, steps_of_call
from jaxnas.training.divergence import Course
from jaxnas.training.mesh import shard_batch
from jaxnas.training.prepare import prepare
from jaxnas.training.step import active_masks

TASK, NET = task_of("images"), perceptron(5, (1, 2, 3, 4))
WIDEST = 4
SETTINGS = Training(steps=40, learning_rate=1e-2, warmup_steps=4)
OPTIMIZER, SCHEDULE = SETTINGS.optimizer()
SGD = optax.sgd(0.1), optax.constant_schedule(0.1)


class Shown(Uniform):
    """Uniform paths that say which architecture they have trained."""

    def gradients(self, problem, state, batches, key):
        found = super().gradients(problem, state, batches, key)
        return found.replace(metrics={f"arch/{name}": x[0] for name, x in found.archs.items()})


def trained_by(metrics):
    return {name[5:]: x for name, x in metrics.items() if name.startswith("arch/")}


@functools.cache
def made(devices=1, net=NET, sgd=False, **settings):
    """A compiled step, its first state (consumed by it: take a copy), and the batches by step."""
    training = Training(steps=1000, batch_size=16, learning_rate=1e-2, warmup_steps=4, **settings)
    optimizer = SGD if sgd else None
    return prepare(TASK, net, training, Shown(), make_mesh(devices), optimizer=optimizer)


def copy(state):
    return jax.tree.map(jnp.copy, state)


def moments(state):
    """The first and second moments of AdamW, each a tree as the parameters."""
    adam = [
        leaf
        for leaf in jax.tree.leaves(state.opt_state, is_leaf=lambda x: hasattr(x, "mu"))
        if hasattr(leaf, "mu")
    ]
    return adam[0].mu, adam[0].nu


def bits(tree):
    return [np.asarray(leaf).view(np.uint32) for leaf in jax.tree.leaves(tree)]


def used_by(arch, params):
    """Which parameters of the perceptron an architecture uses, written out."""
    used = jax.tree.map(lambda x: np.ones(x.shape, bool), jax.device_get(params))
    for i, option in enumerate(np.asarray(arch["hidden"])):
        within = np.arange(WIDEST) <= int(option)  # option k has a width of k + 1
        used[f"in_{i}"]["kernel"][:] = within
        used[f"in_{i}"]["bias"][:] = within
        used[f"out_{i}"]["kernel"][:] = within[:, None]
    return used


def check_untouched(step, state, batch, used, steps):
    """Checks some steps, and returns how many used values have changed."""
    changed = 0
    for number in range(steps):
        before = bits((state.params, *moments(state)))
        state, metrics = step(state, batch(number))
        masks = 3 * jax.tree.leaves(used(trained_by(metrics), state.params))
        for old, new, mask in zip(before, bits((state.params, *moments(state))), masks, strict=True):
            np.testing.assert_array_equal(old[~mask], new[~mask])
            changed += int((old[mask] != new[mask]).sum())
    return changed


def test_steps_leave_inactive_weights_and_moments_bit_identical():
    state, step, batch = made()
    # Biases away from zero, so that an unwanted change shows.
    params = jax.tree.map(lambda x: x + 0.01, state.params)
    state = copy(state.replace(variables={"params": params}))
    assert check_untouched(step, state, batch, used_by, 12) > 1000


def test_steps_of_scanned_layers_leave_inactive_weights_and_moments_bit_identical():
    net = net_of("images", scan=True)
    state, step, batch = made(net=net)
    masks = jax.jit(active_masks(net, TASK.inputs))

    def used(arch, params):
        active = stack_layers(masks(arch))
        return jax.tree.map(lambda mask, leaf: np.broadcast_to(mask, leaf.shape), active, params)

    assert check_untouched(step, copy(state), batch, used, 8) > 1000


def test_the_official_behaviour_moves_inactive_weights():
    state, step, batch = made(freeze_inactive=False)
    state, moved = copy(state), 0
    for number in range(4):
        before = bits(state.params)
        state, metrics = step(state, batch(number))
        masks = jax.tree.leaves(used_by(trained_by(metrics), state.params))
        moved += sum(
            int((old[~mask] != new[~mask]).sum())
            for old, new, mask in zip(before, bits(state.params), masks, strict=True)
        )
    assert moved > 100


def test_one_program_trains_a_thousand_architectures():
    traces = []

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Counted(type(TASK)):
        def loss(self, *arguments):
            traces.append(1)
            return super().loss(*arguments)

    given = {field.name: getattr(TASK, field.name) for field in dataclasses.fields(TASK)}
    training = Training(steps=1000, batch_size=16, warmup_steps=4)
    state, step, batch = prepare(Counted(**given), NET, training, Shown(), make_mesh(1))
    rows, seen, before = batch(0), set(), len(traces)
    for _ in range(1000):
        state, metrics = step(state, rows)
        seen.add(np.asarray(metrics["arch/hidden"]).tobytes())
    assert len(seen) > 500  # of 1,024
    assert len(traces) == before + 1 and step._cache_size() == 1


@pytest.mark.eight_devices
def test_eight_devices_give_what_one_gives():
    # Not Adam: where a gradient is nothing but rounding, it makes a whole step of it.
    results = []
    for devices in (1, 8):
        state, step, batch = made(devices, sgd=True)
        state = copy(state)
        for number in range(3):
            state, metrics = step(state, batch(number))
        results.append((state.params, {k: metrics[k] for k in ("loss", "accuracy")}))
    assert made(8, sgd=True)[2](0)["train"]["label"].sharding.num_devices == 8
    assert difference(*results) < 1e-5


@pytest.mark.parametrize("devices", [1, pytest.param(8, marks=pytest.mark.eight_devices)])
def test_several_steps_in_one_call_are_one_after_another(devices):
    state, step, batch = made(devices, sgd=True)
    state, together = copy(state), copy(state)
    batches, each = tuple(batch(number) for number in range(3)), []
    for one in batches:
        state, metrics = step(state, one)
        each.append({name: metrics.pop(name) for name in ("finite", "archs")})
    together, last = several(step)(together, batches)
    assert int(together.step) == 3
    stacked = {name: last.pop(name) for name in ("finite", "archs")}
    assert last.pop("losses").shape == (3,)
    jax.tree.map(np.testing.assert_array_equal, stacked, jax.tree.map(lambda *x: np.stack(x), *each))
    assert metrics.keys() == last.keys()
    assert difference(last, metrics) < 1e-5 and difference(together.params, state.params) < 1e-5
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(together.params), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


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


def test_a_call_of_several_steps_says_which_of_them_was_not_finite():
    def step(state, batch):
        return state + 1, {"loss": batch, "finite": jnp.isfinite(batch).astype(jnp.float32)}

    for values, finite in (((1.0, np.nan, 2.0), [1, 0, 1]), ((1.0, 2.0, 3.0), [1, 1, 1])):
        state, last = several(step)(jnp.int32(0), tuple(map(jnp.float32, values)))
        assert int(state) == 3 and float(last["loss"]) == values[-1]
        assert last["finite"].tolist() == finite


@pytest.mark.parametrize(
    ("steps_per_call", "start", "expected"),
    [(1, 0, [1] * 12), (4, 0, [4, 1, 3, 2, 2]), (5, 0, [5, 5, 2]), (5, 3, [2, 5, 2]), (100, 0, [5, 5, 2])],
)
def test_a_call_ends_where_something_is_recorded(steps_per_call, start, expected):
    """And where it would without an interruption, so that a resumed training is the same."""
    training = Training(
        steps=12, log_every=5, evaluate_every=10, checkpoint_every=5, steps_per_call=steps_per_call
    )
    number, calls = start, []
    while number < training.steps:
        calls.append(steps_of_call(number, training))
        number += calls[-1]
    assert calls == expected and number == 12


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "training.steps is 0"),
        ({"steps": 2.5}, "training.steps is 2.5"),
        ({"batch_size": 0}, "training.batch_size is 0"),
        ({"log_every": 0}, "training.log_every is 0"),
        ({"evaluate_every": -5}, "training.evaluate_every is -5"),
        ({"checkpoint_every": 0}, "training.checkpoint_every is 0"),
        ({"steps_per_call": 0}, "training.steps_per_call is 0"),
        ({"steps_per_call": 2.5}, "training.steps_per_call is 2.5"),
        ({"warmup_steps": -1}, "training.warmup_steps is -1"),
        ({"learning_rate": -1.0}, "training.learning_rate is -1.0"),
        ({"learning_rate": float("nan")}, "training.learning_rate is nan"),
        ({"weight_decay": float("inf")}, "training.weight_decay is inf"),
        ({"l2": -1.0}, "training.l2 is -1.0"),
        ({"learning_rate": "fast"}, "'fast'"),
        ({"learning_rate": None}, "training.learning_rate is None"),
        ({"clip": "x"}, "'x'"),
        ({"average": True}, "training.average is True"),
        ({"devices": 0}, "training.devices is 0"),
        ({"devices": 1.5}, "training.devices is 1.5"),
        ({"model_devices": -1}, "training.model_devices is -1"),
        ({"clip": -1.0}, "training.clip is -1.0"),
        ({"clip": 0.0}, "training.clip is 0.0"),
        ({"average": 1.0}, "training.average is 1.0"),
        ({"warmup_steps": 10}, "training.warmup_steps is 10"),
    ],
)
def test_settings_out_of_range_are_named(settings, message):
    with pytest.raises(ValueError) as error:
        Training(**{"steps": 10, **settings}).optimizer()
    assert message in str(error.value)


def test_a_seed_that_is_none_is_refused():
    for seed in (2.5, -1, "x", True):
        with pytest.raises(ValueError, match=f"seed is {seed!r}, expected a whole number from 0 to 42949"):
            training.fit(TASK, NET, 2, seed=seed)


@pytest.mark.eight_devices
def test_a_batch_that_the_devices_cannot_share_is_refused():
    with pytest.raises(ValueError, match="12 does"):
        shard_batch({"x": np.zeros((12, 3))}, make_mesh(8))
    for size, message in ((12, "12, which"), (72, "64 examples")):
        with pytest.raises(ValueError, match=message):
            prepare(TASK, NET, Training(steps=2, batch_size=size), Uniform(), make_mesh(8))
    for devices in (0, 9):
        with pytest.raises(ValueError, match=f"devices is {devices}; this machine has 8"):
            make_mesh(devices)


def test_training_lowers_the_loss():
    state, step, batch = made()
    state, losses = copy(state), []
    rows = batch(0)
    for _ in range(40):
        state, metrics = step(state, rows)
        losses.append(float(metrics["loss"]))
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


def test_state_is_donated():
    state, step, batch = made()
    state = copy(state)
    step(state, batch(0))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


def steps_beside_pytorch(training, theirs_of, clip=None):
    """The parameters after six steps of random gradients, ours and theirs, by name."""
    torch = pytest.importorskip("torch")
    optimizer, schedule = training.optimizer()
    random = np.random.default_rng(0)
    first = {"kernel": random.normal(size=(3, 2)), "bias": random.normal(size=(2,))}
    params = {name: jnp.asarray(x, jnp.float32) for name, x in first.items()}
    state = optimizer.init(params)
    ours = {name: torch.nn.Parameter(torch.tensor(x)) for name, x in first.items()}
    theirs = theirs_of(torch.optim, ours)
    everything = jax.tree.map(lambda x: jnp.ones(x.shape, bool), params)
    for number in range(6):
        grads = {name: random.normal(size=x.shape) for name, x in first.items()}
        tree = {name: jnp.asarray(grad, jnp.float32) for name, grad in grads.items()}
        params, state = optimizer_lib.update(optimizer, tree, state, params, everything)
        for group in theirs.param_groups:
            group["lr"] = float(schedule(number))
        for name, parameter in ours.items():
            parameter.grad = torch.tensor(grads[name])
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(ours.values(), clip)
        theirs.step()
    return params, {name: parameter.detach().numpy() for name, parameter in ours.items()}


def test_adamw_is_pytorchs():
    def adamw(optim, params):
        decayed = {"params": [params["kernel"]], "weight_decay": 0.05}
        return optim.AdamW([decayed, {"params": [params["bias"]], "weight_decay": 0.0}])

    ours, theirs = steps_beside_pytorch(SETTINGS, adamw)
    for name, parameter in theirs.items():
        np.testing.assert_allclose(ours[name], parameter, rtol=1e-5)


def test_l2_is_the_weight_decay_of_pytorchs_adam():
    settings = dataclasses.replace(SETTINGS, weight_decay=0.0, l2=0.3, clip=1.0)
    ours, theirs = steps_beside_pytorch(
        settings, lambda optim, params: optim.Adam(params.values(), weight_decay=0.3), clip=1.0
    )
    for name, parameter in theirs.items():
        np.testing.assert_allclose(ours[name], parameter, rtol=1e-5)


def test_schedule_rises_then_falls_to_its_end():
    rates = np.array([SCHEDULE(n) for n in range(41)])
    assert rates[0] == pytest.approx(1e-6, rel=1e-3)
    assert rates.argmax() == 4 and rates.max() == pytest.approx(1e-2)
    assert (np.diff(rates[4:]) < 0).all() and rates[-1] == pytest.approx(1e-5, rel=1e-3)


def test_gradients_are_clipped_to_the_norm_that_is_asked_for():
    params = {"kernel": jnp.ones((2, 2))}
    clipped, _ = Training(steps=40, clip=0.5, warmup_steps=4).optimizer()
    plain, _ = Training(steps=40, warmup_steps=4).optimizer()
    large, unit = ({"kernel": jnp.full((2, 2), x)} for x in (100.0, 0.25))  # of norm 200 and 0.5
    a, _ = clipped.update(large, clipped.init(params), params)
    b, _ = plain.update(unit, plain.init(params), params)
    assert difference(a, b) < 1e-6
    # One structure of the state, so that a training may go on with a limit that it did not have.
    assert jax.tree.structure(clipped.init(params)) == jax.tree.structure(plain.init(params))


def test_update_without_masks_is_the_optimizer():
    params = {"kernel": jnp.ones((2, 2))}
    grads = {"kernel": jnp.full((2, 2), 0.5)}
    new, _ = optimizer_lib.update(OPTIMIZER, grads, OPTIMIZER.init(params), params)
    expected, _ = OPTIMIZER.update(grads, OPTIMIZER.init(params), params)
    np.testing.assert_array_equal(new["kernel"], optax.apply_updates(params, expected)["kernel"])


def test_a_shortened_training_has_a_short_warm_up_and_one_of_the_same_length_is_as_it_was():
    given = Training(steps=100, warmup_steps=50)
    assert given.shortened(None) == given.shortened(100) == given
    assert given.shortened(40) == Training(steps=40, warmup_steps=4)
