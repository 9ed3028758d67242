"""Language modeling: exact metrics of whole texts, memory from batch to batch, the whole text."""

import dataclasses

import jax
import numpy as np
import pytest
from small_nets import jit
from small_tasks import recalling, task_of

import jaxnas
from jaxnas import tasks
from jaxnas.training import make_evaluator
from jaxnas.training.mesh import make_mesh

TASK, NET = task_of("language"), recalling()
STREAM, ARCH = TASK.dataset.test, NET.space.from_dict({"hidden": 4})


@pytest.fixture(scope="module")
def variables():
    shapes = jax.eval_shape(lambda key: jaxnas.init(NET, key, TASK.inputs), jax.random.key(0))
    random = np.random.default_rng(0)
    return jax.tree.map(lambda x: np.float32(0.3 * random.normal(size=x.shape)), shapes)


def metrics_by_hand(scores):
    """Of the log-probabilities of all tokens of a text but the first."""
    nats = -np.sum(np.asarray(scores, np.float64))
    tokens = len(STREAM) - 1
    return {
        "nats": nats / tokens,
        "perplexity": np.exp(nats / tokens),
        "bits_per_byte": nats / np.log(2) / STREAM.n_bytes,
    }


@pytest.mark.parametrize("by_document", [False, True])
def test_metrics_are_those_of_the_whole_text_read_at_once(variables, by_document):
    """Whatever the length of the pieces: a memory as long as the text leaves nothing out."""
    long = NET.clone(memory_length=len(STREAM))
    inputs = {"tokens": STREAM.tokens[None, :-1], "targets": STREAM.tokens[None, 1:]}
    if by_document:
        inputs["documents"] = STREAM.documents[None, :-1]
    scores, _ = jit(lambda inputs: long.apply(variables, inputs, ARCH))(inputs)
    task = dataclasses.replace(
        TASK, evaluation_rows=1, evaluation_length=8, memory_length=len(STREAM), by_document=by_document
    )
    found = make_evaluator(task, NET, "test", mesh=make_mesh(1))(variables, ARCH)
    assert (len(STREAM) - 1) % 8  # the last piece is filled up
    for name, value in metrics_by_hand(scores).items():
        assert float(found[name]) == pytest.approx(value, rel=1e-5), name


def test_rows_side_by_side_count_every_token_once(variables):
    """Each row goes on in the next piece with its own memory, as when it is read by hand."""
    task = dataclasses.replace(TASK, by_document=False, memory_length=3)
    evaluate = make_evaluator(task, NET, "test", mesh=make_mesh(1), batch_size=4)
    batches = task.evaluation("test", 4)
    assert batches["weight"].sum() == len(STREAM) - 1
    assert batches["bytes"].sum() == pytest.approx(STREAM.n_bytes, rel=1e-5)
    net = NET.clone(memory_length=3)
    apply = jit(lambda inputs: net.apply(variables, inputs, ARCH))
    memory, scores = net.empty_memory(4), []
    for tokens, targets, weight in zip(*(batches[k] for k in ("tokens", "targets", "weight")), strict=True):
        found, memory = apply({"tokens": tokens, "targets": targets, "memory": memory})
        scores.append(np.asarray(found)[weight > 0])
    found = evaluate(variables, ARCH)
    for name, value in metrics_by_hand(np.concatenate(scores)).items():
        assert float(found[name]) == pytest.approx(value, rel=1e-5), name


def test_the_training_loss_is_the_mean_over_all_tokens_and_the_memory_goes_on(variables):
    task = dataclasses.replace(TASK, by_document=False)
    batches = task.batches("train", 4, 0)
    run = jit(
        lambda batch, carry: task.loss(tasks.Call(NET, variables, ARCH, batch, carry, jax.random.key(0)))
    )
    apply = jit(lambda inputs: NET.apply(variables, inputs, ARCH))
    carry, memory = task.carry(NET, 4), NET.empty_memory(4)
    for number in range(2):
        batch = batches.at(number)
        loss, (carry, sums) = run(batch, carry)
        scores, memory = apply({"tokens": batch["tokens"], "targets": batch["targets"], "memory": memory})
        assert float(loss) == pytest.approx(-float(np.mean(scores)), rel=1e-5)
        assert float(sums["tokens"]) == 4 * 8
        np.testing.assert_allclose(carry.inputs, memory.inputs, atol=1e-6)
    # An epoch starts elsewhere in the text, and so without a memory.
    again = dict(batches.at(1), first=np.ones(4, bool))
    fresh, empty = (float(run(again, start)[0]) for start in (carry, task.carry(NET, 4)))
    assert fresh == pytest.approx(empty, rel=1e-6)
    assert float(run(batches.at(1), carry)[0]) != pytest.approx(empty, rel=1e-4)


def test_nothing_is_held_out_of_the_whole():
    whole = TASK.whole()
    assert TASK.sizes == {"train": 400, "search": 90, "validation": 80, "test": 70}
    assert whole.sizes == {"train": 490, "validation": 80, "test": 70} and whole.whole() is whole
    joined = np.concatenate([TASK.dataset.train.tokens, TASK.dataset.search.tokens])
    np.testing.assert_array_equal(whole.dataset.train.tokens, joined)
    assert whole.dataset.train.n_bytes == TASK.dataset.train.n_bytes + TASK.dataset.search.n_bytes


def test_an_evaluation_may_have_another_memory():
    net = TASK.evaluated(NET)
    assert (net.memory_length, NET.memory_length) == (6, 4) and net.space == NET.space
    assert dataclasses.replace(TASK, memory_length=None).evaluated(NET) is NET
