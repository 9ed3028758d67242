"""A search space that evolves before its last supernet is trained, and what a workdir keeps of it."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from refusals import check
from small_tasks import perceptron

import jaxnas
from jaxnas import data, runs, search, tasks
from jaxnas.experiments.configs import CONFIGS
from jaxnas.recipes import Uniform
from jaxnas.report.result import SampledSpaceOf
from jaxnas.runs.space_evolution import Spaces, measure_last, read_spaces
from jaxnas.search.space_evolution import Shift, shift_options
from jaxnas.training import Training, fit, make_evaluator


def noise(count):
    """Images whose classes cannot be learnt, so that networks differ and the space moves."""
    random = np.random.default_rng(count)
    return random.integers(0, 256, (count, 4, 4, 1), dtype=np.uint8), random.integers(0, 2, count)


TASK = tasks.Images(data=data.from_arrays(*noise(400), *noise(30), held_out=data.HeldOut(search=0.5)))
NET = perceptron(2, (1, 2, 3))
TRAINING = Training(steps=12, batch_size=8, learning_rate=3e-2, warmup_steps=2)
SETTINGS = runs.SpaceEvolution(
    turns=2, sample=30, top=5, steps=6, rules={"hidden": search.ShiftRule(most=20, threshold=1e-3)}
)


def evolved(workdir, **changes):
    said = []
    settings = dataclasses.replace(SETTINGS, **changes)
    found = runs.evolve(TASK, NET, TRAINING, Uniform(), settings, runs.Lab(workdir), said.append)
    return found, said


def test_each_space_is_what_the_errors_of_the_one_before_say(tmp_path):
    net, said = evolved(tmp_path)
    spaces = read_spaces(tmp_path)
    assert net.space == spaces.space and len(said) == 2
    first, second = spaces.sampled
    assert (first.name, second.name) == ("A", "B") and len(first.errors) == 30
    assert first.shifts[0].old == (1, 2, 3) and second.shifts[0].old == first.shifts[0].new
    assert first.shifts[0].new != first.shifts[0].old and len(spaces.spaces) == 3
    assert tuple(net.space["hidden"].options) == second.shifts[0].new
    # The errors are those of the sample with the weights of that space's supernet.
    trained = fit(TASK, NET, TRAINING.shortened(6))
    key = jax.random.fold_in(jax.random.fold_in(runs.space_evolution.stream(0, "spaces"), 0), 0)
    accuracy = make_evaluator(TASK, NET, "search")(trained.variables, NET.space.sample(key, 30))["accuracy"]
    np.testing.assert_allclose(first.errors, 1 - accuracy, atol=1e-6)
    # Once more: nothing is done again, and the last space is measured once.
    again, said = evolved(tmp_path)
    assert again.space == net.space and not said
    last = fit(TASK, net, TRAINING)
    measured = measure_last(TASK, net, last.variables, SETTINGS, runs.Lab(tmp_path))
    assert [one.name for one in measured.sampled] == ["A", "B", "C"] and not measured.sampled[2].shifts
    assert measure_last(TASK, net, last.variables, SETTINGS, runs.Lab(tmp_path)) == measured


def test_a_sample_has_its_size_and_is_within_the_bound():
    costs = jaxnas.cost(NET, TASK.inputs)
    bound = costs(NET.space.from_dict({"hidden": [2, 2]}))["params"]
    archs = runs.space_evolution._draw(NET, costs, dataclasses.replace(SETTINGS, most=bound), 0, 1)
    drawn, free = (jax.vmap(costs)(x)["params"] for x in (archs, NET.space.sample(jax.random.key(0), 30)))
    assert len(drawn) == 30 and np.max(drawn) <= bound < np.max(free)


def test_a_workdir_of_another_evolution_is_refused(tmp_path):
    evolved(tmp_path, turns=1)
    other = dict(turns=2), dict(rules={}), dict(top=4)
    check(*((lambda x=x: evolved(tmp_path, **x), ValueError, "is of another first space,") for x in other))


def test_mistakes_are_refused_before_anything_is_trained(tmp_path):
    def case(name, **changes):
        return lambda: evolved(tmp_path, **changes), ValueError, name

    check(
        *(case(f"evolution.{name} is 0", **{name: 0}) for name in ("turns", "sample", "steps", "limit")),
        case("evolution.sample is 5", sample=5),
        case("did you mean 'params'?", budget="parms"),
        case("'hiden'", fixed=("hiden",)),
        case("'hiden'", rules={"hiden": search.ShiftRule()}),
        case("are not legal", rules={"hidden": search.ShiftRule(multiple=2)}),
        case("evolution.sample is 30", most=10),
    )
    assert not any(tmp_path.iterdir())


def test_the_rules_of_all_configs_allow_their_options():
    evolving = [config for config in CONFIGS.values() if config.evolution is not None]
    for config in evolving:
        for name, rule in config.evolution.rules.items():
            options = config.network.space[name].options
            assert shift_options(name, options, 0, rule) == options
    assert len(evolving) >= 3


@pytest.mark.parametrize("name, value", [("slope", "steep"), ("old", 3), ("errors", None), ("step", "gone")])
def test_spaces_that_were_changed_are_refused(tmp_path, name, value):
    shift = Shift("hidden", (1, 2), (2, 3), 1.0, 1, -0.1, 0.01, 0.9)
    sampled = SampledSpaceOf(name="A", et_error=0.2, errors=(0.1, 0.3), shifts=(shift,))
    spaces = Spaces((NET.space, NET.space), (sampled,), {"seed": 0})
    spaces.write(tmp_path)
    assert read_spaces(tmp_path) == spaces
    path = tmp_path / "spaces.json"
    values = json.loads(path.read_text())
    (written,) = values["sampled"]
    changed = written if name in written else written["shifts"][0]
    del changed[name]
    changed |= {} if value == "gone" else {name: value}
    path.write_text(json.dumps(values))
    check((lambda: read_spaces(tmp_path), ValueError, "spaces.json", repr(name)))
