"""DARTFormer: the average of mechanisms, one of them alone, and one for each head."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from small_nets import jit

import jaxnas
from jaxnas import Choice, Space, data, spaces, tasks
from jaxnas.supernets import DARTFormer
from jaxnas.supernets.attention import MECHANISMS

pytestmark = pytest.mark.more  # a whole supernet

WORDS, LENGTH, CLASSES = 7, 10, 3
SOME = ("local", "linear", "linformer", "synthesizer")
FURTHER = ("linear", "local", "performer", "sinkhorn", "synthesizer")
RNG = np.random.default_rng(0)
TEXTS = {
    "tokens": jnp.asarray(RNG.integers(0, WORDS, (3, LENGTH)), jnp.int32),
    "mask": jnp.arange(LENGTH)[None] < jnp.asarray([LENGTH, 2, 5])[:, None],
}


@functools.cache
def net_of(heads=None, **changes):
    given = dict(width=8, num_heads=2, hidden=12, block=4, num_projected=3, dropout=0.0, max_length=LENGTH)
    given["space"] = spaces.dartformer(SOME, heads)
    return DARTFormer(num_classes=CLASSES, vocabulary=WORDS, **given | changes)


@functools.cache
def variables_of(heads=None, **changes):
    return jaxnas.init(net_of(heads, **changes), jax.random.key(0), TEXTS)


@pytest.mark.parametrize("heads", [None, 2])
def test_extraction_keeps_the_chosen_mechanisms(heads):
    net, variables = net_of(heads, layers=2), variables_of(heads, layers=2)
    cost, counts = jaxnas.cost(net, TEXTS), set()
    for mechanism in SOME[:3]:
        arch = net.space.from_dict({"mechanism": mechanism if heads is None else [mechanism, "linear"]})
        small = jaxnas.extract(net, variables, arch, verify=TEXTS)
        count = sum(x.size for x in jax.tree.leaves(small.variables))
        assert small.error < 1e-5 and count == cost(arch)["params"]
        counts.add(int(cost(arch)["macs"]))
    assert len(counts) == 3


def outputs_of(net, variables, arch):
    """What the block of attention returns, [B, T, D]."""
    captured = dict(capture_intermediates=lambda module, _: module.name == "attention_0")
    _, state = net.apply(variables, TEXTS, arch, mutable=["intermediates"], **captured)
    return state["intermediates"]["attention_0"]["__call__"][0]


def test_the_supernet_is_the_plain_average():
    net, variables = net_of(), variables_of()
    even = {"mechanism": jnp.full(4, 0.25)}
    blocks = [outputs_of(net, variables, {"mechanism": jnp.int32(i)}) for i in range(4)]
    average = outputs_of(net, variables, even)
    np.testing.assert_allclose(average, np.mean(blocks, axis=0), rtol=1e-5, atol=1e-6)
    # A block that is taken out leaves the others as they are.
    without = outputs_of(net, variables, {"mechanism": jnp.asarray([0.25, 0.25, 0, 0.25])})
    np.testing.assert_allclose(without, average - blocks[2] / 4, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "mechanism",
    [
        "bigbird",
        *tiers.more(*FURTHER),
        *tiers.nightly(*(name for name in MECHANISMS if name not in ("bigbird", *FURTHER))),
    ],
)
def test_what_is_cut_off_behind_a_text_changes_nothing(mechanism):
    """As where training batches have several lengths, and evaluations have the greatest."""
    sizes = dict(num_random=1, summary=2, window=6, chunk=4, num_buckets=2, max_length=24, pool="mean")
    net = net_of(space=spaces.dartformer((mechanism,)), **sizes)
    tokens = jnp.asarray(RNG.integers(0, WORDS, (3, 24)), jnp.int32)
    texts = {"tokens": tokens, "mask": jnp.arange(24)[None] < jnp.asarray([[12], [2], [7]])}
    variables = jaxnas.init(net, jax.random.key(0), texts)
    apply = jit(net.apply)
    whole = apply(variables, texts)
    for length in (12, 16, 20):
        cut = apply(variables, {name: x[:, :length] for name, x in texts.items()})
        np.testing.assert_allclose(cut, whole, rtol=1e-4, atol=1e-5)


def test_vectors_of_the_task_take_the_place_of_the_embedding():
    net = net_of()
    texts = {**TEXTS, "vectors": jnp.asarray(RNG.normal(size=(3, LENGTH, 5)), jnp.float32)}
    variables = jaxnas.init(net, jax.random.key(0), texts)
    assert variables["params"]["embed"]["kernel"].shape == (5, net.width)
    arch = net.space.from_dict({"mechanism": "linear"})
    small = jaxnas.extract(net, variables, arch, verify=texts)
    assert small.error < 1e-5
    apply = jit(net.apply)
    before = apply(variables, texts, arch)
    np.testing.assert_array_equal(apply(variables, {**texts, "tokens": texts["tokens"] * 0}, arch), before)
    assert not np.allclose(apply(variables, {**texts, "vectors": -texts["vectors"]}, arch), before)


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_longformer_classifies_all_positions(pool):
    """By the mean, or by the first position, which is global: its window shows it the next token only."""
    net = net_of(window=4, pool=pool).clone(space=Space(mechanism=Choice("longformer")))
    variables = jaxnas.init(net, jax.random.key(0), TEXTS)
    changed = jnp.eye(LENGTH, dtype=bool)  # one text for each token that is another
    tokens = TEXTS["tokens"][:1]
    texts = {"tokens": jnp.where(changed, (tokens + 1) % WORDS, tokens), "mask": jnp.ones_like(changed)}
    apply = jit(net.apply)
    before = apply(variables, {**texts, "tokens": jnp.broadcast_to(tokens, changed.shape)})
    assert np.all(np.any(apply(variables, texts) != before, axis=1))


@pytest.mark.parametrize("heads, pool", [(None, "first"), *tiers.more((2, "mean"))])
def test_nothing_comes_from_behind_the_end(heads, pool):
    net, variables = net_of(heads, pool=pool), variables_of(heads, pool=pool)
    apply, even = jit(net.apply), jax.tree.map(jax.nn.softmax, net.space.logits())
    changed = {**TEXTS, "tokens": jnp.where(TEXTS["mask"], TEXTS["tokens"], WORDS - 1)}
    before = apply(variables, TEXTS, even)
    np.testing.assert_allclose(apply(variables, changed, even), before, rtol=1e-5, atol=1e-6)
    assert not np.allclose(before[0], before[1])
    gradient = jit(jax.grad(lambda w: jnp.sum(jnp.sin(net.apply(variables, TEXTS, {"mechanism": w})))))(
        even["mechanism"]
    )
    assert np.all(np.abs(gradient) > 0)


def test_every_mechanism_runs_in_it():
    names = ("softmax", "sinkhorn", *spaces.DARTFORMER)
    net = net_of().clone(space=spaces.dartformer(names), window=4, summary=1, num_random=1, chunk=4)
    variables = jaxnas.init(net, jax.random.key(0), TEXTS)
    even = {"mechanism": jnp.full(len(names), 1 / len(names))}
    assert np.isfinite(jit(net.apply)(variables, TEXTS, even)).all()


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(space=Space(mechanism=Choice("local", "flash"))), "with options of"),
        (dict(space=Space(mechanism=Choice("local"), depth=Choice(1, 2))), "one decision, 'mechanism'"),
        (dict(space=spaces.dartformer(SOME, 3)), "repeated 3"),
        (dict(space=None), "expected one such as"),
        (dict(width=6), "twice the 2"),
        (dict(layers=0), "layers is 0"),
        (dict(pool="mid"), "'mid'"),
        (dict(block=0), "DARTFormer: block is 0"),
        (dict(synthesizer="thick"), "'thick'"),
        (dict(dropout=-0.1), "dropout is -0"),
    ],
)
def test_a_network_that_cannot_be_is_refused(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        net_of().clone(**change)


@pytest.mark.parametrize(
    "change, message",
    [(dict(max_length=9), "max_length is 9"), (dict(tune_vectors=True), "tune_vectors is True")],
)
def test_texts_that_do_not_fit_are_refused(change, message):
    net = net_of().clone(**change)
    with pytest.raises(ValueError, match=message):
        net.init(jax.random.key(0), TEXTS, net.space.smallest())


def test_a_vocabulary_smaller_than_that_of_the_texts_is_refused():
    texts = [f"{('good', 'bad')[i % 2]} {i}" for i in range(30)]
    task = tasks.Text(data=data.from_texts(texts, [i % 2 for i in range(30)]))
    size = task.dataset.vocabulary.size
    net = net_of().clone(num_classes=2)
    with pytest.raises(ValueError, match=f"vocabulary is {WORDS}, and texts have {size} different tokens"):
        tasks.check_fits(task, net)
    tasks.check_fits(task, net.clone(vocabulary=size))
