"""The largest network that others are compared with, or learn from, is the one that evaluators measure."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_tasks
import user_networks

import jaxnas
from jaxnas import Choice, Space, runs, training
from jaxnas.elastic import Dense, fixed, width
from jaxnas.recipes import Distillation
from jaxnas.runs.replacing import replacing


class Normalized(user_networks.Elastic):
    """Statistics of a batch that are far from those of `init`."""

    def body(self, images, decisions, train):
        x = 5 + 3 * images.reshape(images.shape[0], -1)
        x = nn.BatchNorm(use_running_average=not train, name="norm")(x)
        hidden = width(int, decisions["hidden"])
        y = jnp.tanh(Dense(name="in")(x, fixed(x.shape[-1]), hidden))
        return Dense(name="out")(y, hidden, fixed(2))


NET = Normalized(Space(hidden=Choice(2, 4)))


@pytest.mark.parametrize("kind", ["images", "language"])
def test_replacements_are_compared_with_the_network_as_it_is_evaluated(kind):
    """With statistics of its own, and with the memory of evaluations: its divergence to itself is zero."""
    task, net = small_tasks.task_of(kind), NET if kind == "images" else small_tasks.net_of(kind)
    variables = jaxnas.init(net, jax.random.key(0), task.inputs)
    replaced = replacing(task, net, variables)
    evaluate = training.make_evaluator(replaced.task, net, "search")
    np.testing.assert_allclose(evaluate(variables, replaced.replaced.base)["kl"], 0, atol=1e-6)


def test_the_teacher_of_a_retraining_has_batch_statistics(tmp_path, monkeypatch):
    task, taught = small_tasks.task_of("images"), []
    variables = jaxnas.init(NET, jax.random.key(0), task.inputs)

    def fit(*args, recipe, **options):
        taught.append(recipe.distill.teacher)
        raise KeyboardInterrupt

    monkeypatch.setattr(runs.finishing, "fit", fit)
    lab = runs.Lab(tmp_path, alone=training.Training(steps=1, batch_size=8, devices=1))
    with pytest.raises(KeyboardInterrupt):
        runs.retrain(task, NET, NET.space.smallest(), lab, variables=variables, distill=Distillation())
    batches = [task.batches("train", 8, 0).at(number) for number in range(6)]
    images = np.concatenate([task.preprocess(jax.tree.map(jnp.asarray, batch)) for batch in batches])
    expected = 5 + 3 * images.reshape(len(images), -1).mean(0)
    np.testing.assert_allclose(taught[0].variables["batch_stats"]["norm"]["mean"], expected, atol=0.8)
