"""Variables of another network are refused at every door, by the arrays that differ."""

import jax
import jax.numpy as jnp
import refusals
import small_tasks
from user_networks import Elastic

import jaxnas
from jaxnas import Choice, Space, runs, training
from jaxnas.elastic import Dense, fixed, width


def zeros(net, inputs):
    shapes = jax.eval_shape(lambda key: jaxnas.init(net, key, inputs), jax.random.key(0))
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def test_variables_of_another_network_are_refused_by_the_arrays_that_differ():
    task, net = small_tasks.task_of("images"), small_tasks.perceptron()
    wide = zeros(small_tasks.perceptron(options=(1, 2, 8)), task.inputs)
    short, long = (zeros(small_tasks.perceptron(n), task.inputs) for n in (1, 3))
    evaluate, arch = training.make_evaluator(task, net, "search"), net.space.largest()
    misshapen = "Perceptron", "params/in_0/kernel", "(16, 8)", "(16, 4)"

    def fit(variables):
        return training.fit(task, net, 1, options=training.Options(variables=variables))

    refusals.check(
        (lambda: evaluate(wide, arch), ValueError, *misshapen),
        (lambda: evaluate.with_errors(short, arch), ValueError, "missing", "params/in_1/kernel"),
        (lambda: evaluate(wide["params"], arch), ValueError, "'params'", "in_0"),
        (lambda: jaxnas.extract(net, wide, arch, inputs=task.inputs), ValueError, *misshapen),
        (lambda: runs.search_space(task, net, wide), ValueError, *misshapen),
        (lambda: fit(wide), ValueError, *misshapen),
        (lambda: fit(long), ValueError, "unexpected", "params/in_2/kernel"),
    )


class Sowing(Elastic):
    def body(self, images, decisions, train):
        hidden = width(int, decisions["hidden"])
        x = images.reshape(images.shape[0], -1)
        x = Dense(name="in")(x, fixed(x.shape[-1]), hidden)
        self.sow("losses", "square", jnp.mean(x**2))
        return Dense(name="out")(x, hidden, fixed(2))


def test_what_a_network_sows_is_none_of_its_variables():
    net, images = Sowing(Space(hidden=Choice(2, 4))), jnp.ones((2, 4, 4, 1))
    variables = jaxnas.init(net, jax.random.key(0), images)
    assert variables.keys() == {"params"}
    small = jaxnas.extract(net, variables, net.space.smallest(), verify=images)
    _, state = small.net.apply(small.variables, images, mutable=["losses"])
    assert state["losses"]["square"][0] > 0
    assert training.fit(small_tasks.task_of("images"), net, 1).variables.keys() == {"params"}
