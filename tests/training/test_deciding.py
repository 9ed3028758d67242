"""A workdir is of one training: what decides the weights is compared, and what does not is not."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from refusals import check
from small_tasks import random_images

import jaxnas
from jaxnas import Choice, Space, data, runs, search, tasks
from jaxnas.elastic import Decisions, Dense, fixed, width
from jaxnas.recipes import Fixed, Sandwich, Uniform
from jaxnas.training import Options, Training, fit, restore
from jaxnas.training.checkpoint import ConfigMismatch
from jaxnas.training.deciding import deciding, differences


def make_task(seed=0, relabeled=0, **settings):
    images, labels = random_images(80, seed)
    labels = np.where(np.arange(80) < relabeled, 1 - labels, labels)
    given = data.from_arrays(images, labels, *random_images(30, 1))
    return tasks.Images(**{"data": given, "evaluation_batch_size": 16, **settings})


def make_net(function=nn.relu, name="Net", **choices):
    """A network of a class that is made anew, as in another process."""

    class Net(nn.Module):
        space: Space
        remat: bool = False

        @nn.compact
        def __call__(self, images, arch=None, *, train=False):
            decisions = Decisions(self.space, arch, initializing=self.is_initializing())
            hidden = width(int, decisions["hidden"])
            x = images.reshape(images.shape[0], -1)
            x = function(Dense(name="in")(x, fixed(x.shape[-1]), hidden))
            return Dense(name="out")(x, hidden, fixed(2))

    return Net(Space(**(choices or {"hidden": Choice(2, 4)})))


TRAINING = Training(steps=2, batch_size=8, warmup_steps=1)


def test_each_thing_that_decides_the_weights_is_named_and_no_other():
    task, net = make_task(), make_net()
    first = deciding(task, net, TRAINING, Uniform())

    def changed(task=task, net=net, training=TRAINING, recipe=None):
        lines = differences(first, deciding(task, net, training, recipe or Uniform()))
        return {line.partition(":")[0] for line in lines}

    free = dataclasses.replace(TRAINING, log_every=7, checkpoint_every=3, steps_per_call=2)
    assert changed(make_task(evaluation_batch_size=8), make_net(), free) == set()
    assert changed(net=net.clone(remat=True)) == set()
    assert changed(net=make_net(lambda x: nn.relu(x))) == set()  # other code that computes the same
    cases = (
        (dict(task=make_task(seed=2)), {"data.train.digest"}),
        (dict(task=make_task(relabeled=60)), {"data.train.digest"}),
        (dict(task=make_task(mixup=0.3)), {"task.mixup"}),
        (dict(task=make_task(label_smoothing=0.2)), {"task.label_smoothing"}),
        (dict(recipe=Sandwich()), {"recipe.type"}),
        (dict(recipe=Fixed(net.space.largest())), {"recipe.type"}),
        (dict(training=dataclasses.replace(TRAINING, clip=1.0)), {"training.clip"}),
        (dict(net=make_net(hidden=Choice(4, 2))), {"network.space.hidden.options"}),
        (dict(net=make_net(nn.tanh)), {"program"}),
    )
    for case, names in cases:
        assert changed(**case) >= names
    other = {**first, "program": {"digest": "0", "traced_by": "another version"}}
    assert differences(other, first) == []


def test_the_workdir_of_another_training_is_refused(tmp_path):
    task, net = make_task(), make_net()
    weights, rate = jaxnas.init(net, jax.random.key(3), task.inputs), optax.constant_schedule(0.1)
    run = dict(task=task, net=net, training=TRAINING, recipe=Uniform(), workdir=tmp_path)
    assert fit(**run).complete and fit(**run).complete
    for change, name in (
        (dict(task=make_task(seed=2)), "data.train.digest"),
        (dict(net=make_net(nn.tanh)), "program"),
        (dict(recipe=Sandwich()), "recipe.type"),
        (dict(seed=1), "seed"),
        (dict(options=Options(variables=weights)), "variables"),
        (dict(options=Options(optimizer=(optax.sgd(rate), rate))), "optimizer"),
    ):
        with pytest.raises(ConfigMismatch) as error:
            fit(**{**run, **change})
        assert name in {line.partition(":")[0] for line in error.value.differences}, change
    other = make_net(nn.tanh)
    assert fit(**{**run, "net": other, "options": Options(may_differ=("program",))}).complete
    with pytest.raises(ConfigMismatch, match="program"):
        restore(task, other, TRAINING, Uniform(), tmp_path)
    assert restore(task, net, TRAINING, Uniform(), tmp_path).complete


def test_the_history_of_a_search_is_of_its_weights_and_data(tmp_path):
    task, net = make_task(), make_net()
    settings = runs.Search(runs.ByStrategy(search.RandomSearch(net.space, evaluations=2), baseline=False))

    def found(seed=0, task=task, settings=settings, scale=1.0):
        variables = jax.tree.map(lambda x: scale * x, jaxnas.init(net, jax.random.key(seed), task.inputs))
        return runs.search_space(task, net, variables, settings, runs.Lab(tmp_path))

    assert found().searches == found().searches
    before = (tmp_path / "search" / "history.jsonl").read_bytes()
    check(
        (lambda: found(seed=1), ValueError, "weights", "history.jsonl"),
        (lambda: found(task=make_task(seed=2)), ValueError, "data", "history.jsonl"),
        (lambda: found(settings=dataclasses.replace(settings, limit=1)), ValueError, "limit"),
        (lambda: found(scale=np.nan), ValueError, "NaN", "params/in/kernel"),
    )
    assert (tmp_path / "search" / "history.jsonl").read_bytes() == before
