"""A search space that evolves before its last supernet is trained, and what a workdir keeps of it."""

import dataclasses

import jax
import numpy as np
import pytest
from small_tasks import perceptron, task_of

from jaxnas import runs, search
from jaxnas.training import Training, Uniform, fit, make_evaluator

TASK, NET = task_of("images"), perceptron(2, (1, 2, 3))
TRAINING = Training(steps=12, batch_size=8, learning_rate=3e-2, warmup_steps=2)
SETTINGS = runs.SpaceEvolution(
    turns=2, sample=30, top=5, steps=6, rules={"hidden": search.ShiftRule(most=6, threshold=1e-6)}
)


def evolved(workdir, **changes):
    said = []
    settings = dataclasses.replace(SETTINGS, **changes)
    found = runs.evolve(TASK, NET, TRAINING, Uniform(), settings, workdir, say=said.append)
    return found, said


def test_each_space_is_what_the_errors_of_the_one_before_say(tmp_path):
    (net, variables), said = evolved(tmp_path)
    spaces = runs.read_spaces(tmp_path)
    assert variables is None and net.space == spaces.space and len(said) == 2
    first, second = spaces.sampled
    assert (first.name, second.name) == ("A", "B") and len(first.errors) == 30
    assert first.shifts[0].old == (1, 2, 3) and second.shifts[0].old == first.shifts[0].new
    assert tuple(net.space["hidden"].options) == second.shifts[0].new
    # The errors are those of the sample with the weights of that space's supernet.
    training = dataclasses.replace(TRAINING, steps=6, warmup_steps=0)
    trained = fit(TASK, NET, training)
    key = jax.random.fold_in(runs.space_evolution.stream(0, "spaces"), 0)
    accuracy = make_evaluator(TASK, NET, "search")(trained.variables, NET.space.sample(key, 30))["accuracy"]
    np.testing.assert_allclose(first.errors, 1 - accuracy, atol=1e-6)
    # Once more: nothing is done again, and the last space is measured once.
    again, said = evolved(tmp_path)
    assert again[0].space == net.space and not said
    last = fit(TASK, net, TRAINING)
    measured = runs.measure_last(TASK, net, last.variables, SETTINGS, tmp_path)
    assert [one.name for one in measured.sampled] == ["A", "B", "C"] and not measured.sampled[2].shifts
    assert runs.measure_last(TASK, net, last.variables, SETTINGS, tmp_path) == measured


def test_a_supernet_may_begin_with_the_weights_that_it_shares(tmp_path):
    (net, variables), said = evolved(tmp_path, carry=True, turns=1)
    assert "carried" in said[1]
    fit(TASK, net, dataclasses.replace(TRAINING, steps=1, warmup_steps=0), variables=variables)
    kernel, steps = variables["params"]["in_0"]["kernel"], tmp_path / "space_A" / "checkpoints"
    assert kernel.shape[1] == max(net.space["hidden"].options) and any(steps.iterdir())


def test_what_no_evolution_can_be_is_refused():
    for name in ("turns", "sample", "steps", "limit"):
        with pytest.raises(ValueError, match=f"evolution.{name} is 0"):
            runs.SpaceEvolution(**{name: 0})
