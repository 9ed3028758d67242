"""Promises of one-shot training: P1 one program, P6 untouched weights, sharding, honest evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxnas.training.loop import LoopSettings, several, steps_of_call

import jaxnas
from jaxnas import data, spaces
from jaxnas.supernets import ViT, stack_layers, unstack_layers
from jaxnas.training import optimizer as optimizer_lib
from jaxnas.training import step as step_lib
from jaxnas.training.evaluate import make_evaluator

SPACE = spaces.vit((8, 16), (1, 2), (1, 2), (1.0, 2.0))
NET = ViT(
    SPACE,
    image_size=8,
    patch_size=4,
    num_classes=10,
    head_dim=4,
    max_relative_position=1,
    init_std=0.2,
    scan_layers=True,
)
SHAPE = (1, 8, 8, 1)
SCHEDULE = optimizer_lib.warmup_cosine(1e-2, 40, 4)
OPTIMIZER = optimizer_lib.adamw(SCHEDULE)


def batch(seed: int, size: int = 16) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "image": random.integers(0, 17, (size, 8, 8, 1), dtype=np.uint8),
        "label": random.integers(0, 10, (size,)).astype(np.int32),
    }


def preprocess(images):
    return images.astype(jnp.float32) / 8 - 1


def augment(batch, key):
    del key
    targets = jax.nn.one_hot(batch["label"], 10, dtype=jnp.float32)
    return preprocess(batch["image"]), optax.smooth_labels(targets, 0.1)


def make(devices: int = 1, optimizer=OPTIMIZER, **settings):
    mesh = step_lib.data_mesh(devices)
    step = step_lib.make_train_step(NET, optimizer, SCHEDULE, augment, mesh, SHAPE, **settings)
    params = jaxnas.init(NET, jax.random.key(1), SHAPE)["params"]
    # Biases and tokens away from zero, so that an unwanted change shows.
    params = stack_layers(jax.tree.map(lambda x: x + 0.01, params))
    state = step_lib.init_state(params, optimizer, jax.random.key(2))
    return mesh, step, step_lib.replicate(state, mesh)


def sampled(state) -> dict[str, jax.Array]:
    """The architecture that the next step draws."""
    key = jax.random.split(jax.random.fold_in(state.key, state.step), 3)[0]
    return SPACE.sample(key)


def bits(tree) -> list[np.ndarray]:
    return [np.asarray(leaf).view(np.uint32) for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def frozen():
    return make()


def test_steps_leave_inactive_weights_and_moments_bit_identical(frozen):
    mesh, step, state = frozen
    masks = step_lib.active_masks(NET, SHAPE)
    state = jax.tree.map(jnp.copy, state)  # the step consumes it
    changed = 0
    for number in range(8):
        arch = sampled(state)
        moments = state.opt_state[0]
        before = bits((state.params, moments.mu, moments.nu))
        active = [
            np.broadcast_to(mask, leaf.shape)
            for mask, leaf in zip(
                jax.tree.leaves(stack_layers(masks(arch))), jax.tree.leaves(state.params), strict=True
            )
        ]
        state, _ = step(state, step_lib.shard_batch(batch(number), mesh))
        moments = state.opt_state[0]
        after = bits((state.params, moments.mu, moments.nu))
        for old, new, mask in zip(before, after, active * 3, strict=True):
            np.testing.assert_array_equal(old[~mask], new[~mask])
            changed += int((old[mask] != new[mask]).sum())
    assert changed > 1000


def test_the_official_behaviour_moves_inactive_weights():
    mesh, step, state = make(freeze_inactive=False)
    small = {"embed_dim": 0, "depth": 0}
    while any(int(sampled(state)[name]) != option for name, option in small.items()):
        state, _ = step(state, step_lib.shard_batch(batch(0), mesh))

    def kernel():
        return np.array(unstack_layers(state.params)["block_1"]["mlp"]["in"]["kernel"])

    before = kernel()
    state, _ = step(state, step_lib.shard_batch(batch(1), mesh))
    assert not np.array_equal(before, kernel())


def test_one_program_serves_every_architecture(frozen):
    mesh, step, state = frozen
    state = jax.tree.map(jnp.copy, state)
    seen = set()
    for number in range(30):
        seen.add(str(SPACE.to_dict(sampled(state))))
        state, _ = step(state, step_lib.shard_batch(batch(number), mesh))
    assert len(seen) > 10
    assert step._cache_size() == 1


def test_eight_devices_give_what_one_gives():
    # Not Adam: where a gradient is nothing but rounding, it makes a whole step of it.
    sgd = optax.sgd(0.1)
    one_mesh, one_step, one = make(1, sgd)
    mesh, step, state = make(8, sgd)
    assert mesh.size == 8
    for number in range(3):
        one, one_metrics = one_step(one, step_lib.shard_batch(batch(number), one_mesh))
        state, metrics = step(state, step_lib.shard_batch(batch(number), mesh))
        np.testing.assert_allclose(metrics["loss"], one_metrics["loss"], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
def test_several_steps_in_one_call_are_one_after_another(devices):
    mesh, step, state = make(devices, optax.sgd(0.1))
    together = jax.tree.map(jnp.copy, state)
    batches = tuple(step_lib.shard_batch(batch(number), mesh) for number in range(3))
    for one in batches:
        state, metrics = step(state, one)
    together, last = several(step)(together, batches)
    assert int(together.step) == 3
    assert metrics.keys() == last.keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(last[name], value, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(together.params), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    ("steps_per_call", "start", "expected"),
    [(1, 0, [1] * 12), (4, 0, [4, 1, 3, 2, 2]), (5, 0, [5, 5, 2]), (5, 3, [2, 5, 2]), (100, 0, [5, 5, 2])],
)
def test_a_call_ends_where_something_is_recorded(steps_per_call, start, expected):
    """And where it would without an interruption, so that a resumed training is the same."""
    settings = LoopSettings(12, 5, 10, 5, steps_per_call)
    number, calls = start, []
    while number < settings.steps:
        calls.append(steps_of_call(number, settings))
        number += calls[-1]
    assert calls == expected and number == 12


@pytest.mark.parametrize("value", [0, -5])
def test_intervals_below_one_step_are_refused(value):
    with pytest.raises(ValueError, match=f"steps_per_call is {value}; .* at least 1"):
        LoopSettings(12, 5, 10, 5, value)


def test_a_batch_that_does_not_divide_by_the_devices_is_refused():
    with pytest.raises(ValueError, match="12 does not divide by the mesh's 8"):
        step_lib.shard_batch(batch(0, 12), step_lib.data_mesh(8))


def test_training_lowers_the_loss(frozen):
    mesh, step, state = frozen
    state = jax.tree.map(jnp.copy, state)
    losses = []
    for _ in range(40):
        state, metrics = step(state, step_lib.shard_batch(batch(0), mesh))
        losses.append(float(metrics["loss"]))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_adamw_is_pytorchs():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    kernel, bias = random.normal(size=(3, 2)), random.normal(size=(2,))
    params = {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}
    state = OPTIMIZER.init(params)
    names = ("kernel", "bias")
    ours = [torch.nn.Parameter(torch.tensor(x)) for x in (kernel, bias)]
    theirs = torch.optim.AdamW(
        [{"params": ours[:1], "weight_decay": 0.05}, {"params": ours[1:], "weight_decay": 0.0}]
    )
    for number in range(6):
        grads = [random.normal(size=x.shape) for x in (kernel, bias)]
        tree = {k: jnp.asarray(g, jnp.float32) for k, g in zip(names, grads, strict=True)}
        everything = jax.tree.map(lambda x: jnp.ones(x.shape, bool), params)
        params, state = optimizer_lib.update(OPTIMIZER, tree, state, params, everything)
        for group in theirs.param_groups:
            group["lr"] = float(SCHEDULE(number))
        for parameter, grad in zip(ours, grads, strict=True):
            parameter.grad = torch.tensor(grad)
        theirs.step()
    for name, parameter in zip(names, ours, strict=True):
        np.testing.assert_allclose(params[name], parameter.detach().numpy(), rtol=1e-5)


def test_schedule_rises_then_falls_to_its_end():
    rates = np.array([SCHEDULE(n) for n in range(41)])
    assert rates[0] == pytest.approx(1e-6, rel=1e-3)
    assert rates.argmax() == 4 and rates.max() == pytest.approx(1e-2)
    assert (np.diff(rates[4:]) < 0).all() and rates[-1] == pytest.approx(1e-5, rel=1e-3)
    with pytest.raises(ValueError, match="warmup_steps is 40"):
        optimizer_lib.warmup_cosine(1e-3, 40, 40)


def test_accuracy_is_exact_over_a_split_that_batches_do_not_divide():
    content = batch(3, 37)
    split = data.Split("search", content["image"], content["label"])
    params = jaxnas.init(NET, jax.random.key(5), SHAPE)["params"]
    evaluate = make_evaluator(NET, split, 10, preprocess, step_lib.data_mesh(8), role="search")
    archs = SPACE.sample(jax.random.key(6), 3)
    accuracies = evaluate(params, archs)
    apply = jax.jit(NET.apply)
    for i in range(3):
        arch = jax.tree.map(lambda x, i=i: x[i], archs)
        logits = apply({"params": params}, preprocess(content["image"]), arch)
        expected = np.mean(np.argmax(np.asarray(logits), 1) == content["label"])
        assert float(accuracies[i]) == pytest.approx(expected, abs=1e-6)
        assert float(evaluate(params, arch)) == float(accuracies[i])


@pytest.mark.parametrize("role", ["train", "test"])
def test_only_the_search_split_scores_a_search(role):
    content = batch(3)
    split = data.Split(role, content["image"], content["label"])
    with pytest.raises(ValueError, match="search"):
        make_evaluator(NET, split, 10, preprocess, step_lib.data_mesh(1), role="search")


def test_state_is_donated(frozen):
    mesh, step, state = frozen
    state = jax.tree.map(jnp.copy, state)
    step(state, step_lib.shard_batch(batch(0), mesh))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


def test_update_without_masks_is_the_optimizer():
    params = {"kernel": jnp.ones((2, 2))}
    grads = {"kernel": jnp.full((2, 2), 0.5)}
    new, _ = optimizer_lib.update(OPTIMIZER, grads, OPTIMIZER.init(params), params)
    expected, _ = OPTIMIZER.update(grads, OPTIMIZER.init(params), params)
    np.testing.assert_array_equal(new["kernel"], optax.apply_updates(params, expected)["kernel"])
