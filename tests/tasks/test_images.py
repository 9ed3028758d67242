"""Classification of images: exact metrics, augmentation in training only."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss
from small_nets import random_params
from small_tasks import perceptron, random_images, task_of

from jaxnas import data, tasks
from jaxnas.data import augment
from jaxnas.training import make_evaluator
from jaxnas.training.mesh import make_mesh

TASK, NET = task_of("images"), perceptron()
VARIABLES = {"params": random_params(NET, TASK.inputs.shape)}
PLAIN = dataclasses.replace(TASK, label_smoothing=0.0)


def logits_of(images, arch):
    """Of raw images, standardized by NumPy."""
    pixels = (np.asarray(images, np.float64) - TASK.dataset.mean) / TASK.dataset.std
    return np.asarray(NET.apply(VARIABLES, jnp.asarray(pixels, jnp.float32), arch), np.float64)


def log_probabilities(logits):
    return logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True))


@pytest.mark.parametrize(("devices", "size"), [(1, 7), pytest.param(8, 7, marks=pytest.mark.eight_devices)])
def test_metrics_are_scikit_learns_over_batches_that_do_not_divide_the_data(devices, size):
    evaluate = make_evaluator(TASK, NET, "test", mesh=make_mesh(devices), batch_size=size)
    archs = NET.space.sample(jax.random.key(6), 3)
    found = evaluate(VARIABLES, archs)
    split = TASK.dataset.test
    assert len(split) % evaluate.whole()[0]["label"].shape[1] and found["accuracy"].shape == (3,)
    for i in range(3):
        arch = jax.tree.map(lambda x, i=i: x[i], archs)
        logits = logits_of(split.images[:], arch)
        expected = {
            "accuracy": accuracy_score(split.labels, logits.argmax(1)),
            "loss": log_loss(split.labels, np.exp(log_probabilities(logits)), labels=[0, 1]),
        }
        for name, value in expected.items():
            assert float(found[name][i]) == pytest.approx(value, rel=1e-5)
        if devices == 1:
            one, soft = evaluate(VARIABLES, arch), evaluate(VARIABLES, NET.space.soften(arch))
            for name, value in expected.items():
                assert float(one[name]) == pytest.approx(value, rel=1e-5)
                assert float(soft[name]) == pytest.approx(value, rel=1e-4)


def test_scores_do_not_depend_on_how_many_are_asked_for_at_once():
    evaluate = make_evaluator(TASK, NET, "search", mesh=make_mesh(1))
    archs = NET.space.sample(jax.random.key(1), 5)
    three = jax.tree.map(lambda x: x[:3], archs)
    scores = evaluate.scores(VARIABLES, archs)
    filled = evaluate.scores(VARIABLES, three, 5)
    assert scores.shape == (5,) and filled.shape == (3,)
    np.testing.assert_array_equal(filled, scores[:3])
    assert evaluate.many._cache_size() == 1


def test_the_training_loss_is_cross_entropy_with_smoothed_labels():
    task = dataclasses.replace(PLAIN, label_smoothing=0.2)
    batch, arch = TASK.batches("train", 8, 0).at(0), NET.space.largest()
    loss, (_, sums) = task.loss(tasks.Call(NET, VARIABLES, arch, batch, key=jax.random.key(0)))
    logits = logits_of(batch["image"], arch)
    targets = 0.8 * np.eye(2)[batch["label"]] + 0.1
    expected = -np.mean(np.sum(targets * log_probabilities(logits), axis=1))
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(sums["examples"]) == 8 and float(sums["nats"]) == pytest.approx(8 * expected, rel=1e-5)
    assert float(sums["correct"]) == np.sum(logits.argmax(1) == batch["label"])


def test_images_are_augmented_in_training_only_and_by_each_setting():
    settings = {"mixup": 0.5}, {"crop_padding": 1}, {"flip": True}, {"crop_scale": 0.3}
    settings += {"randaugment": 9.0}, {"cutmix": 1.0}, {"cutmix": 1.0, "mixup": 0.8}
    batch, arch = TASK.batches("train", 64, 0).at(0), NET.space.largest()
    plain = PLAIN.preprocess(batch)
    expected = (batch["image"] - TASK.dataset.mean) / TASK.dataset.std
    np.testing.assert_allclose(plain, expected, rtol=1e-5, atol=1e-6)
    for setting in settings:
        task = dataclasses.replace(PLAIN, **setting)
        first, second = (np.asarray(task.augmented(batch, jax.random.key(number))[0]) for number in range(2))
        assert not np.allclose(first, second) and not np.allclose(first, plain), setting

    def loss(task, key=None, **more):
        return float(task.loss(tasks.Call(NET, VARIABLES, arch, {**batch, **more}, key=key))[0])

    task, counted = dataclasses.replace(PLAIN, flip=True, mixup=0.5), {"weight": np.ones(64, np.float32)}
    assert loss(task, **counted) == loss(PLAIN, **counted)
    assert loss(task, jax.random.key(0)) != loss(task, jax.random.key(1))

    def unchanged(operations):
        more = dataclasses.replace(PLAIN, randaugment=9, randaugment_operations=operations)
        images, _ = more.augmented(batch, jax.random.key(0))
        return np.isclose(images, plain).all(axis=(1, 2, 3)).mean()

    assert unchanged(5) < 0.3 < unchanged(1) < 1  # an operation that was drawn is left out half of the time


def test_a_field_changes_nothing_that_the_others_draw():
    """So that a run with the settings of before is the run of before."""
    batch, key = TASK.batches("train", 16, 0).at(0), jax.random.key(3)
    task = dataclasses.replace(PLAIN, crop_padding=1, flip=True, mixup=0.4)
    images, targets = task.augmented(batch, key)
    crop_key, flip_key, mixup_key = jax.random.split(key, 3)
    expected = augment.pad_and_crop(crop_key, batch["image"], 1)
    expected = task.preprocess({"image": augment.flip(flip_key, expected)})
    expected, soft = augment.mixup(mixup_key, expected, batch["label"], 2, 0.4)
    np.testing.assert_array_equal(images, expected)
    np.testing.assert_array_equal(targets, soft)


def test_all_augmentations_together():
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (40, 12, 16, 3)).astype(np.uint8)
    settings = dict(crop_scale=0.3, crop_padding=2, flip=True, randaugment=9, erase=0.25)
    settings |= dict(mixup=0.8, cutmix=1.0, repeats=3)
    task = tasks.Images(data=data.from_arrays(images, np.arange(40) % 4), **settings)
    batches = task.batches("train", 12, 0)
    rows = batches.rows(0)
    assert (rows.reshape(4, 3) == rows[::3, None]).all() and len(set(rows.tolist())) == 4
    augmented, targets = jax.jit(task.augmented)(batches.at(0), jax.random.key(0))
    assert augmented.shape == (12, 12, 16, 3) and augmented.dtype == jnp.float32
    assert len({image.tobytes() for image in np.asarray(augmented)}) == 12
    np.testing.assert_allclose(np.sum(targets, axis=1), 1, rtol=1e-6)


@pytest.mark.more
def test_nothing_is_held_out_of_the_whole():
    whole = TASK.whole()
    assert TASK.sizes == {"train": 64, "search": 16, "test": 30}
    assert whole.sizes == {"train": 80, "test": 30} and whole.whole() is whole
    train = whole.dataset.train
    found, given = (
        zip(*rows, strict=True) for rows in ((train.images[:], train.labels), random_images(80, 0))
    )
    assert sorted((x.tobytes(), y) for x, y in found) == sorted((x.tobytes(), y) for x, y in given)
    # Standardised as in the search, so that inherited weights see what they know.
    np.testing.assert_array_equal(whole.dataset.mean, TASK.dataset.mean)
