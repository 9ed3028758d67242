"""The searches of attention from the training of a supernet to a saved network, on tiny data."""

import numpy as np
import pytest
import tiers
from small_tasks import task_of

import jaxnas
from jaxnas import runs, search, spaces, supernets
from jaxnas.recipes import Relaxed, Uniform
from jaxnas.training import Training, fit
from jaxnas.training.mesh import make_mesh

TRAINING = Training(steps=4, batch_size=1, learning_rate=1e-2, warmup_steps=1, log_every=1, clip=1.0)
EVEN = Relaxed(order="joint", relaxation="average")
SOME = ("local", "linear", "synthesizer")


def nodes():
    task = task_of("graphs")
    space = spaces.autoattend(2, ("zero", "gcn", "linear"))
    net = supernets.AutoAttendNodes(space, num_classes=2, width=8, num_heads=2, framed=False)
    return task, net, Uniform(), "strategy"


def texts():
    space = spaces.autoattend(2, ("zero", "identity", "convolution_3", "max_pool"))
    sizes = dict(num_classes=2, vocabulary=6, width=8, num_heads=2, embedding=4)
    return task_of("text"), supernets.AutoAttendText(space, **sizes), Uniform(), "strategy"


def mechanisms(heads, method):
    sizes = dict(num_classes=2, vocabulary=6, max_length=7, width=8, num_heads=2, hidden=8, block=4)
    net = supernets.DARTFormer(spaces.dartformer(SOME, heads), **sizes)
    return task_of("text"), net, EVEN, method


SYSTEMS = {
    "AutoAttend on nodes": nodes,
    "AutoAttend on texts": texts,
    "mechanisms": lambda: mechanisms(None, "perturbation"),
    "heads, one by one": lambda: mechanisms(2, "pruning"),
    "heads, at once": lambda: mechanisms(2, "strongest"),
}


FIRST = ("AutoAttend on nodes", "mechanisms", "heads, at once")
FURTHER = tiers.nightly("AutoAttend on texts", "heads, one by one")


@pytest.mark.parametrize("name", [*FIRST, *FURTHER])
def test_a_search_of_attention_takes_the_whole_road(name, tmp_path, capsys):
    task, net, recipe, method = SYSTEMS[name]()
    mesh = make_mesh(1)
    lab = runs.Lab(tmp_path, mesh=mesh)
    trained = fit(task, net, TRAINING, recipe=recipe, workdir=tmp_path)
    if method == "strategy":
        template = search.Evolution(
            net.space, evaluations=8, random_first=4, population=2, parents=2, mutations=2, crossovers=0
        )
        settings = runs.Search(runs.ByStrategy(template))
        found = runs.search_space(task, net, trained.variables, settings, lab)
    else:
        tune_steps = 0 if method == "strongest" else 2
        made = runs.Perturbation(tune_steps=tune_steps)
        if method != "perturbation":
            made = runs.Pruning(at_once=method == "strongest", tune_steps=tune_steps)
        settings = runs.Search(made, limit=1)
        found = runs.select(task, net, trained.state, settings, recipe, TRAINING, lab)
        counted = task.evaluation("search", None, 1)["weight"]
        assert found.selection.examples == np.count_nonzero(counted) < task.sizes["search"]
        assert len(found.selection.decisions) == {"perturbation": 1, "pruning": 4, "strongest": 1}[method]
        count = sum(len(one["drops"]) + 1 for one in found.selection.decisions)
        assert f"{method}, evaluation {count}/{count}" in capsys.readouterr().err
    result = runs.finish(task, net, trained.variables, found, lab)
    assert result.found.extraction_error < 1e-5

    small, variables = jaxnas.load_subnet(tmp_path / "subnet", module=type(net))
    measured = jaxnas.training.make_evaluator(task, small, "test", mesh=mesh)(variables)
    np.testing.assert_allclose(measured["loss"], result.found.metrics["test"]["loss"], rtol=1e-5)
    page = (tmp_path / "report.html").read_text()
    assert "curve-loss" in page and not any(f"curve-{name}" in page for name in ("temperature", "entropy"))
