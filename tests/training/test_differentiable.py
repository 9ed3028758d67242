"""Differentiable search and recurrent training: gradients, alternation, memory, meshes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxnas.training.differentiable import (
    PairedBatches,
    SearchSettings,
    SearchState,
    make_search_step,
)
from jaxnas.training.language import (
    LanguageState,
    language_loss,
    make_language_evaluator,
    make_language_step,
    state_sharding,
)
from small_nets import difference, jit

import jaxnas
from jaxnas import data, spaces, supernets
from jaxnas.training import relaxations
from jaxnas.training.step import data_mesh, shard_batch

WORDS, ROWS, LENGTH = 11, 8, 4
SPACE = spaces.par(2)
NET = supernets.TransformerXL(
    SPACE,
    vocabulary=WORDS,
    width=8,
    num_heads=2,
    head_dim=4,
    hidden=8,
    memory_length=4,
    dropout=0.1,
    init_std=0.3,
    scan_blocks=True,
    cutoffs=(3, 6),
    div_value=2,
)
RATE = 0.1
RNG = np.random.default_rng(0)


def stream(role, n=600):
    """A text in which the next token depends on the one before the last."""
    tokens = [0, 1]
    while len(tokens) < n:
        tokens.append((2 * tokens[-2] + 1 + int(RNG.integers(2))) % WORDS)
    documents = np.arange(n, dtype=np.int32) // 100
    return data.Stream(role, np.asarray(tokens, np.int32), documents, n)


TRAIN, SEARCH = stream("train"), stream("search", 300)
TEST = stream("test", 103)
STREAMS = (
    data.ContiguousBatches(TRAIN, ROWS, LENGTH),
    data.ContiguousBatches(SEARCH, ROWS, LENGTH),
)


def first_state(logits_optimizer, mesh):
    params = jaxnas.init(NET, jax.random.key(0), jax.ShapeDtypeStruct((1, LENGTH), jnp.int32))["params"]
    logits = SPACE.logits()
    state = SearchState(
        jnp.int32(0),
        params,
        optax.sgd(RATE).init(params),
        logits,
        logits_optimizer.init(logits),
        NET.empty_memory(ROWS),
        NET.empty_memory(ROWS),
        jnp.float32(jnp.nan),
        jax.random.key(1),
    )
    return jax.device_put(state, state_sharding(mesh, state))


@functools.cache
def searcher(order="first", devices=1, **settings):
    """A compiled step, its first state, and its batches."""
    mesh, logits_optimizer = data_mesh(devices), optax.sgd(1.0)
    settings = SearchSettings(order, **settings)
    state = first_state(logits_optimizer, mesh)
    cost = jaxnas.cost(NET, jax.ShapeDtypeStruct((1, LENGTH), jnp.int32))
    step = make_search_step(
        language_loss(NET),
        optax.sgd(RATE),
        optax.constant_schedule(RATE),
        logits_optimizer,
        relaxations.gumbel_softmax,
        optax.constant_schedule(1.0),
        settings,
        mesh,
        state,
        cost=lambda weights: cost(weights)["macs"],
    )
    return step, state, PairedBatches(*STREAMS, settings), mesh


def run(steps, order="first", devices=1, **settings):
    step, state, batches, mesh = searcher(order, devices, **settings)
    state = jax.tree.map(jnp.copy, state)
    states, metrics = [state], []
    for number in range(steps):
        copy = jax.tree.map(jnp.copy, states[-1])  # a step consumes its state
        state, found = step(copy, shard_batch(batches.at(number), mesh))
        states.append(state)
        metrics.append({name: float(value) for name, value in found.items()})
    return states, metrics


def test_logits_stay_until_their_start_and_between_updates():
    states, metrics = run(7, start=2, every=3)
    moved = [
        not np.array_equal(a.logits["block"], b.logits["block"])
        for a, b in zip(states, states[1:], strict=False)
    ]
    assert moved == [False, False, True, False, False, True, False]
    losses = [np.nan, *(m["search_loss"] for m in metrics)]
    pairs = zip(losses, losses[1:], strict=False)
    assert [not np.array_equal(a, b, equal_nan=True) for a, b in pairs] == moved
    # The memory of the search stream goes on with the updates, that of training in every step.
    for before, after, update in zip(states, states[1:], moved, strict=False):
        same = np.array_equal(before.search_memory.inputs, after.search_memory.inputs)
        assert same != update
        assert not np.array_equal(before.memory.inputs, after.memory.inputs)
    assert states[-1].step == 7


def test_the_search_stream_is_read_without_gaps():
    _, _, batches, _ = searcher(start=2, every=3)
    read = [batches.at(step)["search"]["tokens"] for step in (2, 5, 8)]
    for number, tokens in enumerate(read):
        np.testing.assert_array_equal(tokens, STREAMS[1].at(number)["tokens"])


def gradient_by_hand(order, state, batches):
    """The gradient of the logits in the first step, written out, from losses alone."""
    loss = language_loss(NET)
    keys = jax.random.split(jax.random.fold_in(state.key, state.step), 6)[2:]

    def total(logits):
        params = state.params
        if order == "second":
            arch = relaxations.gumbel_softmax(logits, keys[0], 1.0)
            inner = lambda p: loss(p, arch, batches["train"], state.memory, keys[1])[0]  # noqa: E731
            params = jax.tree.map(lambda p, g: p - RATE * g, params, jax.grad(inner)(params))
        arch = relaxations.gumbel_softmax(logits, keys[2], 1.0)
        return loss(params, arch, batches["search"], state.search_memory, keys[3])[0]

    return total


@pytest.mark.parametrize("order", ["first", "second"])
def test_gradients_of_the_logits_are_exact(order):
    """Against differences of the loss, through the step of the weights where it is unrolled."""
    states, _ = run(1, order, every=1)
    _, state, batches, _ = searcher(order, every=1)
    total = jit(gradient_by_hand(order, state, jax.tree.map(jnp.asarray, batches.at(0))))
    # Plain descent with rate 1: the logits moved by the gradient.
    gradient = np.asarray(state.logits["block"]) - np.asarray(states[1].logits["block"])
    for place in ((0, 0), (0, 2), (1, 1)):
        step = np.zeros((2, 3), np.float32)
        step[place] = 0.02
        up, down = (float(total({"block": state.logits["block"] + s})) for s in (step, -step))
        assert gradient[place] == pytest.approx((up - down) / 0.04, rel=0.03, abs=2e-4)


def test_orders_differ():
    logits = [
        np.asarray(run(1, order, every=1)[0][1].logits["block"]) for order in ("first", "second", "joint")
    ]
    assert not np.allclose(logits[0], logits[1], atol=1e-7)
    assert not np.allclose(logits[0], logits[2], atol=1e-7)


def test_joint_search_learns_from_the_training_stream_alone():
    states, metrics = run(30, "joint", start=3)
    np.testing.assert_array_equal(states[3].logits["block"], SPACE.logits()["block"])
    assert not np.array_equal(states[4].logits["block"], states[3].logits["block"])
    np.testing.assert_array_equal(states[-1].search_memory.inputs, states[0].search_memory.inputs)
    assert np.mean([m["loss"] for m in metrics[-5:]]) < metrics[0]["loss"] - 0.2


def test_a_cost_above_its_target_pushes_to_cheaper_blocks():
    free, _ = run(3, every=1)
    dear, metrics = run(3, every=1, cost_weight=2.0, target=500.0)
    even = float(
        jaxnas.cost(NET, jax.ShapeDtypeStruct((1, LENGTH), jnp.int32))(relaxations.softmax(SPACE.logits()))[
            "macs"
        ]
    )
    assert 500 < even
    assert metrics[2]["expected_cost"] < metrics[0]["expected_cost"] < even
    # Identity is the first option, and costs nothing.
    assert np.all(np.asarray(dear[-1].logits["block"])[:, 0] > np.asarray(free[-1].logits["block"])[:, 0])
    reached, _ = run(3, every=1, cost_weight=2.0, target=1e12)
    assert difference(reached[-1].logits, free[-1].logits) < 1e-6


def test_eight_devices_train_as_one():
    one, _ = run(3, every=2)
    eight, _ = run(3, devices=8, every=2)
    assert difference(eight[-1].params, one[-1].params) < 1e-5
    assert difference(eight[-1].logits, one[-1].logits) < 1e-4
    shards = eight[-1].memory.inputs.sharding.shard_shape((2, ROWS, 4, 8))
    assert shards == (2, 1, 4, 8)  # each device remembers its own rows


def test_a_plain_network_trains_alone_and_is_evaluated_exactly():
    net = NET.clone(space=SPACE.fix(spaces.interleaved(2)))
    params, mesh = (
        jaxnas.init(net, jax.random.key(0), jax.ShapeDtypeStruct((1, LENGTH), jnp.int32))["params"],
        data_mesh(1),
    )
    optimizer = optax.sgd(RATE)
    state = LanguageState(
        jnp.int32(0), params, optimizer.init(params), net.empty_memory(ROWS), jax.random.key(0)
    )
    step = make_language_step(language_loss(net), optimizer, optax.constant_schedule(RATE), mesh, state)
    evaluate = make_language_evaluator(net, TEST, 2, LENGTH, mesh, role="test")
    before = float(evaluate(params))
    for number in range(60):
        state, metrics = step(state, shard_batch(STREAMS[0].at(number), mesh))
    assert float(evaluate(state.params)) < before - 0.3

    # The whole text at once, in one row, is the same as 26 segments with a memory.
    long = net.clone(memory_length=102)
    tokens, targets = TEST.tokens[None, :-1], TEST.tokens[None, 1:]
    scores, _ = jit(long.apply)({"params": state.params}, {"tokens": tokens, "targets": targets})
    exact = make_language_evaluator(long, TEST, 1, LENGTH, mesh, role="test")(state.params)
    assert float(exact) == pytest.approx(-float(jnp.mean(scores)), rel=1e-5)


def test_populations_are_evaluated_one_by_one():
    mesh, params = (
        data_mesh(1),
        jaxnas.init(NET, jax.random.key(0), jax.ShapeDtypeStruct((1, LENGTH), jnp.int32))["params"],
    )
    evaluate = make_language_evaluator(NET, SEARCH, 4, LENGTH, mesh, role="search", segments=3)
    archs = SPACE.sample(jax.random.key(1), 3)
    many = evaluate(params, archs)
    soft = evaluate(params, jax.vmap(SPACE.soften)(archs))
    for i in range(3):
        one = evaluate(params, jax.tree.map(lambda x, i=i: x[i], archs))
        np.testing.assert_allclose([many[i], soft[i]], float(one), rtol=1e-5)
    with pytest.raises(ValueError, match="needs the 'search' stream, and got the 'test' stream"):
        make_language_evaluator(NET, TEST, 2, LENGTH, mesh, role="search")


def test_clear_errors():
    with pytest.raises(ValueError, match="order is 'third', expected one of joint, first, second"):
        SearchSettings("third")
    with pytest.raises(ValueError, match="every is 0"):
        SearchSettings(every=0)
    with pytest.raises(ValueError, match="cost_weight needs a target above 0"):
        SearchSettings(cost_weight=1.0)
    with pytest.raises(ValueError, match="there is no cost"):
        make_search_step(
            None, None, None, None, None, None, SearchSettings(cost_weight=1.0, target=2.0), None, None
        )
