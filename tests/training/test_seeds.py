"""Many seeds in one program: each is what a loop of its own makes, and is kept where it is best."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
import tiers
from refusals import check
from small_nets import take
from small_tasks import net_of, perceptron, recalling, task_of

import jaxnas
from jaxnas import tasks
from jaxnas.training import EarlyStopping, Options, Training, make_evaluator, train_seeds
from jaxnas.training.keys import stream
from jaxnas.training.mesh import make_mesh
from jaxnas.training.store import DivergedError

# Images that a seed turns around.
TASK, NET = dataclasses.replace(task_of("images"), flip=True), perceptron(1)
ARCH = NET.space.largest()
SGD = optax.sgd(0.1, momentum=0.9)
TRAINING = Training(steps=12, batch_size=8, evaluate_every=2, devices=1)
SEARCH = EarlyStopping(role="search")


def seeds_of(training=TRAINING, seeds=(3, 5, 8), *, arch=ARCH, sgd=SGD, together=None, role="search", **how):
    stopping = EarlyStopping(role=role, **how)
    options = Options(optimizer=(sgd, lambda step: 0.1), together=together)
    return train_seeds(TASK, NET, training, seeds, arch=arch, stopping=stopping, options=options)


def by_hand(seed, metric, patience):
    """Values of the metric after every second step of one seed, its best variables and their step."""
    key = stream(seed, "seeds")
    params = jaxnas.init(NET, jax.random.fold_in(key, 0), TASK.inputs)["params"]
    key, opt_state, batches = jax.random.fold_in(key, 1), SGD.init(params), TASK.batches("train", 8, 0)
    evaluate, values = make_evaluator(TASK, NET, "search", mesh=make_mesh(1)), []

    @jax.jit
    def grads_of(params, batch, key):
        return jax.grad(lambda p: TASK.loss(tasks.Call(NET, {"params": p}, ARCH, batch, key=key))[0])(params)

    best, best_step = None, 0
    for step in range(12):
        grads = grads_of(params, batches.at(step), jax.random.fold_in(key, step))
        updates, opt_state = SGD.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        if step % 2 and step + 1 - best_step <= patience:
            value = float(evaluate({"params": params}, ARCH)[metric])
            better = max if metric == "accuracy" else min
            if not values or (better(values + [value]) == value and value not in values):
                best, best_step = params, step + 1
            values.append(value)
    return best, best_step, values


@pytest.mark.parametrize(("metric", "patience"), [("loss", 2), ("accuracy", 100)])
def test_each_seed_is_a_training_of_its_own_kept_where_it_was_best(metric, patience):
    found = seeds_of(metric=metric, patience=patience)
    evaluate = make_evaluator(TASK, NET, "test", mesh=make_mesh(1))
    for i, seed in enumerate((3, 5, 8)):
        best, step, values = by_hand(seed, metric, patience)
        assert found.best_steps[i] == step
        limit = max if metric == "accuracy" else min
        assert found.metrics["search"][metric][i] == pytest.approx(limit(values), abs=1e-5)
        own = take(found.variables, i)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), own["params"], best)
        for name, value in evaluate(own, ARCH).items():
            assert found.metrics["test"][name][i] == pytest.approx(float(value), abs=1e-5)


def test_it_does_not_matter_how_many_are_computed_at_once(capsys):
    found = seeds_of()
    for together in (2, 1):
        other = seeds_of(together=together)
        assert other.best_steps.tolist() == found.best_steps.tolist() and other.steps == found.steps == 12
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), other.variables, found.variables
        )
    assert "training 3 of 3, step 12/12" in capsys.readouterr().err


def test_a_patience_begins_with_the_first_measurement_and_ends_a_training():
    still = optax.sgd(0.0)  # nothing gets better
    rare = seeds_of(Training(steps=8, batch_size=8, evaluate_every=4), sgd=still, patience=1)
    assert rare.best_steps.tolist() == [4, 4, 4] and rare.steps == 8
    often = seeds_of(Training(steps=50, batch_size=8, evaluate_every=1), sgd=still, patience=3)
    assert often.steps == 5 and often.best_steps.tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["language", *tiers.nightly("text", "table")])
def test_every_task_takes_it(kind):
    task, net = task_of(kind), recalling() if kind == "language" else net_of(kind)
    settings = Training(steps=3, batch_size=8, warmup_steps=1)
    found = train_seeds(task, net, settings, range(2), arch=net.space.smallest(), stopping=SEARCH)
    for role in ("search", "test"):
        values = found.metrics[role][task.metrics[0].name]
        assert values.shape == (2,) and np.isfinite(values).all() and values[0] != values[1]


def test_what_cannot_be_is_refused_and_a_seed_that_diverges_is_named():
    def case(name, error=ValueError, **options):
        return lambda: seeds_of(**options), error, name

    check(
        case("seeds are []; expected at", seeds=()),
        case("seeds are [1, 1]; expected", seeds=(1, 1)),
        case("'acuracy'", metric="acuracy"),
        case("'test'", role="test"),
        case("'validation'", role="validation"),
        case("network has 3", arch=None),
        case("patience is 0", patience=0),
        case("together is 0", together=0),
        case("'search'", DivergedError, sgd=optax.sgd(float("nan")), metric="loss"),
    )
