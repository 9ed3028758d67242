"""P11: every recipe, strategy, selection and retraining runs on every task."""

import dataclasses
import logging
import math
import types

import numpy as np
import pytest
import tiers
from small_tasks import TASKS, net_of, perceptron, task_of

import jaxnas
from jaxnas import files, runs, search, spaces
from jaxnas.recipes import Distillation, Fixed, Relaxed, Sandwich, Uniform
from jaxnas.report import findings
from jaxnas.report import result as results
from jaxnas.runs.methods import BY_BUDGET
from jaxnas.training import Options, Training, fit
from jaxnas.training.mesh import make_mesh
from jaxnas.training.progress import times_line
from jaxnas.training.step import prepare

TRAINING = Training(steps=3, batch_size=8, learning_rate=1e-2, warmup_steps=1, log_every=1, clip=1.0)
RELAXED = dict(start=1, every=1, cost="macs", cost_weight=0.1, target=0.9, learning_rate=0.1)
# Whole roads begin with the recipe "first", whose architecture parameters every method can search; the others
# train on every task in tests/training/test_mesh.py too.
RECIPES = {
    "first": lambda space: Relaxed(order="first", **RELAXED),
    "uniform": lambda space: Uniform(),
    "sandwich": lambda space: Sandwich(random=1, distill=Distillation(divergence="adaptive_alpha")),
    "fixed": lambda space: Fixed(space.largest()),
    "joint": lambda space: Relaxed(order="joint", relaxation="straight_through", **RELAXED),
    "second": lambda space: Relaxed(order="second", relaxation="softmax", **RELAXED),
}
METHODS = {
    "strategy": None,  # made for the space
    "replacements": runs.Replacements(samples=4),
    "argmax": runs.Argmax(),
    "sampling": runs.Sampling(samples=4, explore=0.5),
    "trials": runs.Trials(samples=4, explore=0.5, steps=(1, 2), eta=2),
    "perturbation": runs.Perturbation(tune_steps=1),
    "pruning": runs.Pruning(),
    "strongest": runs.Pruning(at_once=True),
}
TRAINS, EVALUATES = ("trials", "perturbation"), set(METHODS) - {"argmax"}
SEARCH = runs.Search(limit=2, budget="macs", most_share=0.9)
# Every method searches images; every other task is searched by a strategy, by what reads its predictions, and
# by methods that differ from task to task. The nightly tier has all methods after all recipes.
USUAL = ("strategy", "replacements")
FURTHER = {"text": ("perturbation",), "graphs": ("argmax",), "table": ("sampling", "trials")}
ROADS = [("first", kind, False) for kind in TASKS]
UNTAUGHT = ("sandwich", "table")  # a regression has no classes to learn from another network
PAIRS = ((recipe, kind) for recipe in RECIPES for kind in TASKS if (recipe, kind) != UNTAUGHT)
ROADS += tiers.nightly(*((*pair, True) for pair in PAIRS))


def searched(method, task, net, trained, recipe, lab):
    """What a method finds."""
    settings = dataclasses.replace(SEARCH, method=METHODS[method])
    if method == "strategy":
        sizes = dict(evaluations=6, population=3, parents=2, mutations=1, crossovers=1)
        settings = dataclasses.replace(SEARCH, method=runs.ByStrategy(search.Evolution(net.space, **sizes)))
    if isinstance(settings.method, BY_BUDGET):
        return runs.search_space(task, net, trained.variables, settings, lab)
    return runs.select(task, net, trained.state, settings, recipe, TRAINING, lab)


def check_found(method, found, space, costs):
    """A method finds what it promises, within its budget."""
    largest = int(costs(space.largest())["macs"])
    if method == "replacements":
        replaced = found.replacements
        assert replaced.found.cost <= 0.9 * largest and replaced.found.measured >= 0
        assert all(one.cost <= one.share * largest + 1 for one in replaced.others)
        return
    space.check(found.arch)
    if method == "strategy":
        assert int(costs(found.arch)["macs"]) <= 0.9 * largest and set(found.others) == {"random search"}
        return
    assert found.selection.method == method
    if method == "trials":
        assert len(found.selection.candidates) == 4
        assert sum(len(one.trials) == 2 for one in found.selection.candidates) == 2


def check_times(method, found, path, said):
    """A search says and stores where its own time went, not that of an older one in the same folder."""
    assert files.read_json(path) == dict(found.times) and found.times["seconds"] > 0
    shares = {name: x for name, x in found.times.items() if not name.startswith(("seconds", "evaluations_"))}
    assert min(shares.values()) >= 0 and sum(shares.values()) == pytest.approx(1)
    assert (shares["step"] > 0) == (method in TRAINS)
    assert (shares["evaluation"] > 0) == (method in EVALUATES)
    assert times_line(found.times) in said
    assert f"{100 * shares['evaluation']:.0f} % evaluation" in times_line(found.times)


def check_loaded(net, folder, task, network):
    """The saved network has the figures that a result says it has."""
    small, variables = jaxnas.load_subnet(folder, module=type(net))
    measured = jaxnas.training.make_evaluator(task, small, "test", mesh=make_mesh(1))(variables)
    for name, value in network.metrics["test"].items():
        np.testing.assert_allclose(measured[name], value, rtol=1e-5)


@pytest.mark.parametrize("recipe, kind, every", ROADS)
def test_every_method_and_retraining_runs_on_every_task(recipe, kind, every, tmp_path, caplog):
    task = task_of(kind)
    net = perceptron() if kind == "images" else net_of(kind, scan=True)
    net = net.clone(space=spaces.par(2)) if kind == "language" else net
    every = every or kind == "images"
    space, mesh = net.space, make_mesh(1)
    made, costs = RECIPES[recipe](space), jaxnas.cost(net, task.inputs)
    trained = fit(task, net, TRAINING, recipe=made, workdir=tmp_path, options=Options(cost=costs))
    figures = set()
    lab = runs.Lab(tmp_path, 0, TRAINING, mesh, costs, log=[lambda step, values: figures.update(values)])
    side_by_side = len(space) == 1 and next(iter(space.choices.values())).length is not None
    impossible = {"replacements": "regression"} if kind == "table" else {}  # classes have a divergence
    impossible |= {} if made.watches == "probabilities" else {"argmax": "Argmax"}
    impossible |= {} if side_by_side else {"pruning": "Choice", "strongest": "Choice"}
    found = {}
    for method in METHODS if every else (*USUAL, *FURTHER.get(kind, ())):
        if method in impossible:
            with pytest.raises(ValueError, match=impossible[method]):
                searched(method, task, net, trained, made, lab)
            continue
        with caplog.at_level(logging.INFO, "jaxnas"):
            found[method] = searched(method, task, net, trained, made, lab)
        check_found(method, found[method], space, costs)
        check_times(method, found[method], tmp_path / "search" / "times.json", caplog.messages)
    logged = {"trials": "best", "perturbation": "score", "pruning": "score", "strongest": "score"}
    assert {f"search/{method}/{name}" for method, name in logged.items() if method in found} <= figures
    *_, chosen = (one for method, one in found.items() if method != "replacements")
    result = runs.finish(task, net, trained.variables, chosen, lab)
    assert result.found.extraction_error < 1e-5 and results.read(tmp_path) == result
    page = (tmp_path / "report.html").read_text()
    assert task.name in page and task.metrics[0].name.replace("_", " ") in page
    if every:  # what is published below is loaded from every task
        check_loaded(net, tmp_path / "subnet", task, result.found)
    known = {"images": {"mean", "std", "classes"}, "text": {"words", "classes"}, "graphs": {"classes"}}
    assert {"inputs", *known.get(kind, ())} <= files.read_json(tmp_path / "subnet/preprocessing.json").keys()

    short = dataclasses.replace(TRAINING, steps=2)
    for weights in (None, trained.variables) if every else (None,):
        path = tmp_path / "retrained" / f"found-{weights is None}"
        own = dataclasses.replace(lab, workdir=path, alone=short)
        alone = runs.retrain(task, net, chosen.arch, own, variables=weights)
        assert alone.found.weights == ("from scratch" if weights is None else "fine-tuned")
        measured = alone.found.metrics["test"][task.metrics[0].name]
        assert "search" not in alone.task.sizes and np.isfinite(measured)
        times = files.read_json(path / "times.json")
        assert 0 < times["step"] <= 1

    # What the page shows is what it loads, and goes by the weights that were trained alone.
    runs.publish(tmp_path)
    shown = findings.retrained(findings.read_run(tmp_path))
    check_loaded(net, tmp_path / "subnet", task.whole(), shown.network)
    source = tmp_path / "retrained" / shown.folder / "subnet"
    names = {path.name for path in source.iterdir()}
    assert names == {"model.safetensors", "model.stablehlo", "subnet.json", "preprocessing.json"}
    assert all((tmp_path / "subnet" / x).read_bytes() == (source / x).read_bytes() for x in names)


def test_a_random_search_is_its_own_baseline_and_the_page_has_the_settings_of_the_training(tmp_path):
    task, net = task_of("images"), perceptron(1)
    settings = runs.Search(runs.ByStrategy(search.RandomSearch(net.space, evaluations=4, batch=2)))
    trained = fit(task, net, TRAINING, recipe=Sandwich(random=1), workdir=tmp_path)
    result = runs.search_and_finish(task, net, trained.variables, settings, runs.Lab(tmp_path, seed=2))
    assert [one.name for one in result.searches] == ["random"]
    assert result.config["training"] == dataclasses.asdict(TRAINING)
    assert result.config["recipe"] == {"type": "Sandwich", "random": 1} and result.config["seed"] == 2


def test_sampling_takes_the_best_and_never_a_nan(monkeypatch):
    task, net, recipe = task_of("images"), perceptron(1), Relaxed()
    state, lab = prepare(task, net, TRAINING, recipe)[0], runs.Lab(mesh=make_mesh(1))

    def select(*scores):
        evaluator = types.SimpleNamespace(examples=12, scores=lambda *_: np.asarray(scores, np.float32))
        monkeypatch.setattr(runs.selecting, "make_evaluator", lambda *_, **__: evaluator)
        return runs.select(task, net, state, runs.Search(runs.Sampling(samples=3)), recipe, TRAINING, lab)

    found = select(0.1, 0.3, math.nan)
    candidates = found.selection.candidates
    assert len(candidates) == 3 and math.isnan(candidates[2].supernet)
    assert net.space.to_dict(found.arch) == candidates[1].architecture
    with pytest.raises(ValueError, match="scores is a"):
        select(math.nan, math.inf, -math.inf)
