"""Classification of texts: exact metrics, and nothing is seen behind the end of a text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss
from small_tasks import net_of, task_of

import jaxnas
from jaxnas.training import Training, fit, make_evaluator, make_mesh

TASK, NET = task_of("text"), net_of("text")


@pytest.fixture(scope="module")
def variables():
    return jaxnas.init(NET, jax.random.key(0), TASK.inputs)


def test_metrics_are_scikit_learns(variables):
    evaluate = make_evaluator(TASK, NET, "test", mesh=make_mesh(1), batch_size=7)
    arch, split = NET.space.largest(), TASK.dataset.test
    logits = np.asarray(NET.apply(variables, jax.tree.map(jnp.asarray, dict(split.inputs)), arch), np.float64)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = evaluate(variables, arch)
    assert len(split) % 7
    assert float(found["accuracy"]) == pytest.approx(accuracy_score(split.labels, logits.argmax(1)))
    assert float(found["loss"]) == pytest.approx(log_loss(split.labels, probabilities), rel=1e-5)


def test_the_words_decide_and_not_what_fills_a_row_up(variables):
    batch = TASK.batches("train", 8, 0).at(0)
    arch, key = NET.space.largest(), jax.random.key(0)

    def loss(batch):
        return float(TASK.loss(NET, variables, arch, batch, (), key, True)[0])

    filled = {**batch, "tokens": np.where(batch["mask"], batch["tokens"], 0)}
    other = {**batch, "tokens": np.where(batch["mask"], 5, batch["tokens"])}
    assert loss(filled) == loss(batch) != loss(other)


def test_whole_keeps_words_and_masks_together():
    whole = TASK.whole()
    assert whole.sizes == {"train": 88, "test": 30} and whole.whole() is whole
    parts = [TASK.dataset.train, TASK.dataset.search]
    for name in ("tokens", "mask"):
        expected = np.concatenate([split.inputs[name] for split in parts])
        np.testing.assert_array_equal(whole.dataset.train.inputs[name], expected)
    assert TASK.details()["length"] == 7 and TASK.details()["unknown_words"]["test"] == 0


@pytest.mark.slow
def test_a_network_learns_what_the_first_word_says():
    with jax.numpy_dtype_promotion("standard"):  # as Adam needs it
        trained = fit(TASK, NET, Training(steps=60, learning_rate=3e-2))
    assert make_evaluator(TASK, NET, "test")(trained.variables, NET.space.largest())["accuracy"] > 0.9
