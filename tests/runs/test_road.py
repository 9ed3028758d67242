"""P11: every recipe, strategy, selection and retraining runs on every task."""

import dataclasses
import functools
import html

import jax
import numpy as np
import pytest
import tiers
from small_tasks import TASKS, net_of, perceptron, task_of

import jaxnas
from jaxnas import files, report, runs, search
from jaxnas.report import findings
from jaxnas.report import result as results
from jaxnas.training import Distillation, Fixed, Options, Relaxed, Sandwich, Training, Uniform, fit, make_mesh

TRAINING = Training(steps=3, batch_size=8, learning_rate=1e-2, warmup_steps=1, log_every=1, clip=1.0)
RELAXED = dict(start=1, every=1, cost="macs", cost_weight=0.1, target=0.9, learning_rate=0.1)
RECIPES = {
    "uniform": lambda space: Uniform(),
    "sandwich": lambda space: Sandwich(random=1, distill=Distillation(divergence="adaptive_alpha")),
    "fixed": lambda space: Fixed(space.largest()),
    "joint": lambda space: Relaxed(order="joint", relaxation="straight_through", **RELAXED),
    "first": lambda space: Relaxed(order="first", **RELAXED),
    "second": lambda space: Relaxed(order="second", relaxation="softmax", **RELAXED),
}
METHODS = {
    "replacements": runs.Replacements(samples=4),
    "argmax": runs.Argmax(),
    "sampling": runs.Sampling(samples=4, explore=0.5),
    "trials": runs.Trials(samples=4, explore=0.5, steps=(1, 2), eta=2),
    "perturbation": runs.Perturbation(tune_steps=1),
    "pruning": runs.Pruning(),
    "strongest": runs.Pruning(at_once=True),
}
SEARCH = runs.Search(limit=2, budget="macs", most_share=0.9)


TRAINED = tiers.pairs(RECIPES, TASKS, (("second", "graphs"), ("sandwich", "language"), ("joint", "text")))
UNTAUGHT = "sandwich", "table"  # a regression has no classes to learn from another network
TRAINED = [pair for pair in TRAINED if getattr(pair, "values", pair) != UNTAUGHT]
# Whole roads begin with a recipe that has architecture parameters, which every method can search.
ROADS = [("first", kind) for kind in TASKS]
OTHERS = ((recipe, kind) for recipe in RECIPES for kind in TASKS if recipe != "first")
ROADS += tiers.nightly(*(pair for pair in OTHERS if pair != UNTAUGHT))


def small_net(kind, recipe):
    if kind == "images" and recipe != "uniform":
        return perceptron()
    return net_of(kind, scan=recipe in ("uniform", "first"))


@pytest.mark.parametrize("recipe, kind", TRAINED)
def test_every_recipe_trains_on_every_task(recipe, kind):
    task, net = task_of(kind), small_net(kind, recipe)
    trained = fit(task, net, TRAINING, recipe=RECIPES[recipe](net.space))
    assert trained.complete and int(trained.state.step) == 3
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(trained.variables["params"]))


def check_loaded(net, folder, task, network):
    """The saved network has the figures that a result says it has."""
    small, variables = jaxnas.load_subnet(folder, module=type(net))
    measured = jaxnas.training.make_evaluator(task, small, "test", mesh=make_mesh(1))(variables)
    for name, value in network.metrics["test"].items():
        np.testing.assert_allclose(measured[name], value, rtol=1e-5)


@pytest.mark.parametrize("recipe, kind", ROADS)
def test_every_method_and_retraining_runs_on_every_task(recipe, kind, tmp_path):
    task, net = task_of(kind), small_net(kind, recipe)
    space, mesh = net.space, make_mesh(1)
    made = RECIPES[recipe](space)
    costs = jaxnas.cost(net, task.inputs)
    trained = fit(task, net, TRAINING, recipe=made, workdir=tmp_path, options=Options(cost=costs, mesh=mesh))
    lab = runs.Lab(tmp_path, alone=TRAINING, mesh=mesh, costs=costs)
    loads_the_same = functools.partial(check_loaded, net, tmp_path / "subnet")
    side_by_side = len(space) == 1 and next(iter(space.choices.values())).length is not None
    impossible = {} if made.watches == "probabilities" else {"argmax": "argmax"}
    impossible |= {} if side_by_side else {"pruning": "Choice", "strongest": "Choice"}

    def select(method):
        settings = dataclasses.replace(SEARCH, method=METHODS[method])
        return runs.select(task, net, trained.state, settings, made, TRAINING, lab)

    for method in ("strategy", *METHODS):
        if method == "strategy":
            strategy = search.Evolution(
                space, evaluations=6, population=3, parents=2, mutations=1, crossovers=1
            )
            settings = dataclasses.replace(SEARCH, method=runs.ByStrategy(strategy))
            found = runs.search_space(task, net, trained.variables, settings, lab)
            bound = 0.9 * int(costs(space.largest())["macs"])
            assert int(costs(found.arch)["macs"]) <= bound and set(found.others) == {"random search"}
            continue
        if method == "replacements":
            settings = dataclasses.replace(SEARCH, method=METHODS[method])
            if kind == "table":  # predictions without classes have no divergence
                with pytest.raises(ValueError, match="regression"):
                    runs.search_space(task, net, trained.variables, settings, lab)
                continue
            replaced = runs.search_space(task, net, trained.variables, settings, lab).replacements
            assert replaced.found.cost <= bound and replaced.found.measured >= 0
            assert all(one.cost <= one.share * bound / 0.9 + 1 for one in replaced.others)
            continue
        if method in impossible:
            with pytest.raises(ValueError, match=impossible[method]):
                select(method)
            continue
        found = select(method)
        space.check(found.arch)
        assert found.selection.method == method
        if method == "trials":
            assert len(found.selection.candidates) == 4
            assert sum(len(one.trials) == 2 for one in found.selection.candidates) == 2
    result = runs.finish(task, net, trained.variables, found, lab)
    assert result.found.extraction_error < 1e-5 and results.read(tmp_path) == result
    page = (tmp_path / "report.html").read_text()
    assert task.name in page and task.metrics[0].name.replace("_", " ") in page

    loads_the_same(task, result.found)
    known = {"images": {"mean", "std", "classes"}, "text": {"words", "classes"}, "graphs": {"classes"}}
    assert {"inputs", *known.get(kind, ())} <= files.read_json(tmp_path / "subnet/preprocessing.json").keys()

    short = dataclasses.replace(TRAINING, steps=2)
    for weights in (None, trained.variables):
        path = tmp_path / "retrained" / f"found-{weights is None}"
        own = dataclasses.replace(lab, workdir=path, alone=short)
        alone = runs.retrain(task, net, found.arch, own, variables=weights)
        assert alone.found.weights == ("from scratch" if weights is None else "fine-tuned")
        measured = alone.found.metrics["test"][task.metrics[0].name]
        assert "search" not in alone.task.sizes and np.isfinite(measured)
        times = files.read_json(path / "times.json")
        assert 0 < times["step"] <= 1 and times["training_step_ms"] > 0
        assert set(findings.TIMES) <= set(times)  # the page has a column for each

    # What the page shows is what it loads, and goes by the weights that were trained alone.
    runs.publish(tmp_path)
    shown = findings.retrained(report.read_run(tmp_path))
    loads_the_same(task.whole(), shown.network)
    source = tmp_path / "retrained" / shown.folder / "subnet"
    names = {path.name for path in source.iterdir()}
    assert names == {"model.safetensors", "model.stablehlo", "subnet.json", "preprocessing.json"}
    assert all((tmp_path / "subnet" / x).read_bytes() == (source / x).read_bytes() for x in names)


def test_the_calls_on_a_page_make_the_run_again(tmp_path):
    task, net = task_of("images"), perceptron()
    strategy = search.Evolution(net.space, evaluations=4, population=2, parents=1, mutations=1, crossovers=1)
    settings = runs.Search(runs.ByStrategy(strategy, baseline=False), budget="macs", most_share=0.9)
    trained = fit(task, net, TRAINING, recipe=Sandwich(random=1), seed=3, workdir=tmp_path / "DIR")
    first = runs.search_and_finish(task, net, trained.variables, settings, runs.Lab(tmp_path / "DIR", seed=2))
    calls = first.config["again"]
    assert calls in html.unescape((tmp_path / "DIR" / "report.html").read_text())
    assert first.config["training"] == dataclasses.asdict(TRAINING)
    names = {"task": task, "net": net, "training": jaxnas.training, "runs": runs, "search": search}
    exec(calls.replace("DIR", str(tmp_path / "again")), names)
    assert names["result"] == first
