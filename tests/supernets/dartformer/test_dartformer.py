"""DARTFormer: the average of mechanisms, one of them alone, and one for each head."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import promises
import pytest
import refusals
from small_attention import LENGTH, MECHANISMS, RNG, TEXTS, WORDS
from small_attention import dartformer as net_of
from small_nets import jit

import jaxnas
from jaxnas import Choice, Space, data, spaces, tasks
from jaxnas.tasks.task import check_fits

pytestmark = pytest.mark.more  # a whole supernet


@functools.cache
def variables_of(net):
    return jaxnas.init(net, jax.random.key(0), TEXTS)


@pytest.mark.parametrize("heads", [None, 2])
def test_extraction_keeps_the_chosen_mechanisms(heads):
    net, cost = net_of(heads, layers=2), jaxnas.cost(net_of(heads, layers=2), TEXTS)
    names = [mechanism if heads is None else [mechanism, "linear"] for mechanism in MECHANISMS[:3]]
    archs = [net.space.from_dict({"mechanism": name}) for name in names]
    for arch in archs[: 2 if heads is None else 1]:
        promises.check_extracted(net, variables_of(net), arch, TEXTS)
    assert len({int(cost(arch)["macs"]) for arch in archs}) == 3


def test_the_supernet_is_the_plain_average():
    net, variables = net_of(), variables_of(net_of())

    @jit
    def run(arch):
        captured = dict(capture_intermediates=lambda module, _: module.name == "attention_0")
        given = dict(mutable=["intermediates"], **captured)
        _, state = net.apply(variables, TEXTS, {"mechanism": arch}, **given)
        return state["intermediates"]["attention_0"]["__call__"][0]

    blocks, average = [run(jnp.int32(i)) for i in range(4)], run(jnp.full(4, 0.25))
    np.testing.assert_allclose(average, np.mean(blocks, axis=0), rtol=1e-5, atol=1e-6)
    # A block that is taken out leaves the others as they are.
    without = run(jnp.asarray([0.25, 0.25, 0, 0.25]))
    np.testing.assert_allclose(without, average - blocks[2] / 4, rtol=1e-5, atol=1e-6)


def test_what_is_behind_a_text_or_cut_off_there_changes_nothing():
    """As where training batches have several lengths, and evaluations have the greatest."""
    net = net_of(space=spaces.dartformer(("bigbird",)), num_random=1, max_length=24, pool="mean")
    tokens = jnp.asarray(RNG.integers(0, WORDS, (3, 24)), jnp.int32)
    texts = {"tokens": tokens, "mask": jnp.arange(24)[None] < jnp.asarray([[12], [2], [7]])}
    variables, apply = jaxnas.init(net, jax.random.key(0), texts), jit(net.apply)
    behind = jnp.where(texts["mask"], tokens, WORDS - 1 - tokens)
    np.testing.assert_array_equal(apply(variables, texts | {"tokens": behind}), apply(variables, texts))
    for length in (12, 16, 20):
        cut = apply(variables, {name: x[:, :length] for name, x in texts.items()})
        np.testing.assert_allclose(cut, apply(variables, texts), rtol=1e-4, atol=1e-5)


def test_vectors_of_the_task_take_the_place_of_the_embedding():
    net, apply = net_of(), jit(net_of().apply)
    texts = {**TEXTS, "vectors": jnp.asarray(RNG.normal(size=(3, LENGTH, 5)), jnp.float32)}
    variables, arch = jaxnas.init(net, jax.random.key(0), texts), net.space.from_dict({"mechanism": "linear"})
    assert variables["params"]["embed"]["kernel"].shape == (5, net.width)
    promises.check_extracted(net, variables, arch, texts)
    before = apply(variables, texts, arch)
    np.testing.assert_array_equal(apply(variables, {**texts, "tokens": texts["tokens"] * 0}, arch), before)
    assert not np.allclose(apply(variables, {**texts, "vectors": -texts["vectors"]}, arch), before)


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_longformer_classifies_all_positions(pool):
    """By the mean, or by the first position, which is global: its window shows it the next token only."""
    net = net_of(window=4, pool=pool, space=Space(mechanism=Choice("longformer")))
    changed = jnp.eye(LENGTH, dtype=bool)  # one text for each token that is another
    tokens, apply = TEXTS["tokens"][:1], jit(functools.partial(net.apply, variables_of(net)))
    texts = {"tokens": jnp.where(changed, (tokens + 1) % WORDS, tokens), "mask": jnp.ones_like(changed)}
    before = apply({**texts, "tokens": jnp.broadcast_to(tokens, changed.shape)})
    assert np.all(np.any(apply(texts) != before, axis=1))


def test_mistakes_are_refused():
    net, texts = net_of(), [f"{('good', 'bad')[i % 2]} {i}" for i in range(30)]
    several = Space(mechanism=Choice("local"), depth=Choice(1, 2))
    task = tasks.Text(data=data.from_texts(texts, [i % 2 for i in range(30)]))
    size, fitting = task.dataset.vocabulary.size, net.clone(num_classes=2)

    def init(**changes):
        return lambda: net.clone(**changes).init(jax.random.key(0), TEXTS, net.space.smallest())

    check_fits(task, fitting.clone(vocabulary=size))
    refusals.check(
        (lambda: net.clone(space=Space(mechanism=Choice("local", "flash"))), ValueError, "flash"),
        (lambda: net.clone(space=several), ValueError, "'mechanism'", "depth"),
        (lambda: net.clone(space=spaces.dartformer(MECHANISMS, 3)), ValueError, "3"),
        (lambda: net.clone(width=6), ValueError, "width", "6", "2"),
        (lambda: net.clone(pool="mid"), ValueError, "'mid'"),
        (lambda: net.clone(block=0), ValueError, "DARTFormer", "block", "0"),
        (lambda: net.clone(synthesizer="thick"), ValueError, "'thick'"),
        (init(max_length=9), ValueError, "max_length", "9"),
        (init(tune_vectors=True), ValueError, "tune_vectors", "True"),
        (lambda: check_fits(task, fitting), ValueError, "vocabulary", str(WORDS), str(size)),
    )
