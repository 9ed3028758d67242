"""From a found architecture to a result: extract, verify, test, save, retrain, report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import jaxnas
from jaxnas import processes
from jaxnas.artifacts import needs_module
from jaxnas.cost import cost
from jaxnas.recipes.distillation import Distillation, Teacher
from jaxnas.recipes.hard import Fixed
from jaxnas.report import page
from jaxnas.report import result as results
from jaxnas.report.result import Network, Result
from jaxnas.runs.describe import describe_run, trained_by
from jaxnas.runs.lab import Lab
from jaxnas.runs.methods import Search
from jaxnas.runs.publishing import publish, save
from jaxnas.runs.ranking import rank
from jaxnas.runs.searching import Found, search_space
from jaxnas.runs.space_evolution import read_spaces
from jaxnas.runs.timing import costs_with_latency, time_found
from jaxnas.space import Arch
from jaxnas.subnet import alone
from jaxnas.tasks import Task
from jaxnas.tasks.task import check_task
from jaxnas.trackers import as_log
from jaxnas.training.evaluate import Evaluator, calibrated, make_evaluator
from jaxnas.training.fit import fit
from jaxnas.training.plain import to_dict
from jaxnas.training.step import Options
from jaxnas.training.store import interrupted


def finish(
    task: Task,
    net: nn.Module,
    variables: Any,
    found: Found,
    lab: Lab,
    *,
    settings: Search = Search(),
    named: Mapping[str, Arch] | None = None,
) -> Result:
    """Brings a found architecture out of its supernet, alone, and describes the run.

    The network is extracted, verified against the supernet, given batch statistics of its own, measured
    once on the test role, saved and exported to subnet/. result.json and report.html are written. Last, if
    that is asked for, architectures are trained alone to see how well the supernet ranks.

    Args:
      task, net, variables: the trained supernet.
      found: by a search.
      lab: of the run, with a directory.
      settings: of the search: whether networks are timed (`latency`) and ranked.
      named: architectures to compare with, beside those that the search found.
    """
    check_task(task)
    results.check_names(named or {}, found.others)
    space, root, mesh = net.space, lab.root, lab.mesh
    costs = lab.cost or cost(net, task.inputs)
    spaces = read_spaces(root)
    roles = tuple(role for role in ("search", "test") if role in task.sizes)
    supernet = {role: make_evaluator(task, net, role, mesh=mesh) for role in roles}
    batch = jax.tree.map(lambda x: jnp.asarray(x[0][:64]), task.evaluation(roles[0], None, 1))
    own = calibrated(task, net, processes.on_host(variables), found.arch)
    small = jaxnas.extract(net, own, found.arch, verify=task.preprocess(batch))

    def network(name: str, arch: Arch, **measured: Any) -> Network:
        return Network(name=name, architecture=space.to_dict(arch), costs=_numbers(costs(arch)), **measured)

    # Reported is the small network's own quality, not the supernet's.
    test = _measured({"test": make_evaluator(task, small.net, "test", mesh=mesh)}, small.variables)
    seen = _measured({roles[0]: supernet[roles[0]]}, variables, found.arch)
    both = {what: seen[what] | test[what] for what in seen}
    best = network("found", found.arch, **both, extraction_error=small.error)
    others = {**found.others, "smallest": space.smallest(), "largest": space.largest(), **(named or {})}
    result = describe_run(
        task,
        space,
        best,
        lab.config,
        networks=tuple(
            network(name, arch, **_measured(supernet, variables, arch)) for name, arch in others.items()
        ),
        searches=found.searches,
        selection=found.selection,
        replacements=found.replacements,
        spaces=() if spaces is None else spaces.sampled,
        interrupted=f"interrupted at {step}" if (step := interrupted(root)) else "",
        module=type(net).__name__ if needs_module(net) else "",
        loader=getattr(net, "loader", ""),
    )
    if processes.is_first():
        exported = save(root, task, small.net, small.variables)
        linear = dict(task.linear_model(roles))
        result = dataclasses.replace(result, exported_batch=exported, linear=linear)
        results.write(root, result)
        if settings.latency:
            timed = {"found": found.arch, "smallest": space.smallest(), "largest": space.largest()}
            time_found(task, net, processes.on_host(variables), timed, settings.latency, root)
        publish(root)
    processes.wait("the result is written")
    if settings.ranked:
        ranking = rank(task, net, variables, lab.shortened(settings.ranked_steps), settings.ranked)
        result = dataclasses.replace(result, ranking=ranking)
        if processes.is_first():
            results.write(root, result)
            page.write(root)
        processes.wait("the ranking is written")
    as_log(lab.log).result(result.rows(), root / "report.html")
    return result


def search_and_finish(task: Task, net: nn.Module, variables: Any, settings: Search, lab: Lab) -> Result:
    """`search_space` and `finish`: a small network and its page.

    Args:
      task, net, variables: the trained supernet.
      settings: of the search.
      lab: of the run, with a directory.
    """
    root = lab.root
    if settings.ranked:  # before a long search
        lab.training_alone(f"search.ranked is {settings.ranked}")
    costs = lab.cost or costs_with_latency(task, net, settings.latency, root)
    lab = dataclasses.replace(lab, cost=costs)
    found = search_space(task, net, variables, settings, lab)
    trained = trained_by(root)
    config = {
        "network": to_dict(net),
        **{name: trained[name] for name in ("training", "recipe") if name in trained},
        "search": to_dict(settings),
        **({} if lab.alone is None else {"alone": to_dict(lab.alone)}),
        "seed": lab.seed,
    }
    lab = dataclasses.replace(lab, config=lab.config or config)
    return finish(task, net, variables, found, lab, settings=settings)


def retrain(
    task: Task,
    net: nn.Module,
    arch: Arch,
    lab: Lab,
    *,
    name: str = "found",
    variables: Any = None,
    distill: Distillation | None = None,
) -> Result:
    """Trains one architecture alone, on all training data, and measures it.

    With `<run>/retrained/<name>` as its directory, `publish(<run>)` makes it the network of that run.

    Args:
      task: with or without data held out for a search; nothing is held out of this training.
      net: the supernet, or a network of one architecture.
      arch: the architecture.
      lab: of this retraining: `alone` are its settings; it resumes from its directory.
      name: what the network is called in the result.
      variables: of the supernet, to start from its part of them; None for new ones.
      distill: how it learns from a teacher, by default the largest architecture with `variables`; None to
        learn from the labels.

    Returns:
      What result.json holds.

    Raises:
      Stopped: a signal stopped the training, which is saved; see `fit`.
    """
    space, root, training, seed = net.space, lab.root, lab.training_alone("retrain"), lab.seed
    mesh = training.mesh()
    costs = lab.cost or cost(net, task.inputs)
    small, start = net.clone(space=space.fix(arch)), None
    host = None if variables is None else processes.on_host(variables)
    if host is not None:
        _, small, start = alone(net, host, arch, task.inputs)
    if distill is not None and distill.teacher is None:
        if host is None:
            raise ValueError(
                "retrain: the distillation has no teacher, and without variables there is no largest network "
                "to be one. Give Distillation(teacher=...), or start from inherited weights."
            )
        largest = space.largest()
        _, *teacher = alone(net, calibrated(task, net, host, largest), largest, task.inputs)
        distill = dataclasses.replace(distill, teacher=Teacher(*teacher))
    whole, log = task.whole(), as_log(lab.log).within(f"retrained/{root.name}")
    trained = fit(
        whole,
        small,
        training,
        recipe=Fixed(distill=distill),
        workdir=root,
        seed=seed,
        options=Options(variables=start, stream="retraining", log=log),
    )
    roles = tuple(role for role in ("validation", "test") if role in whole.sizes)
    evaluators = {role: make_evaluator(whole, small, role, mesh=mesh) for role in roles}
    network = Network(
        name=name,
        architecture=space.to_dict(arch),
        costs=_numbers(costs(arch)),
        **_measured(evaluators, trained.variables),
        weights="from scratch" if variables is None else "fine-tuned",
        seed=seed,
        steps=int(trained.state.step),
    )
    own = {"network": to_dict(net), "retraining": to_dict(training), "seed": seed}
    result = describe_run(whole, space, network, own if lab.config is None else lab.config)
    weights = calibrated(whole, small, processes.on_host(trained.variables))
    if processes.is_first():
        result = dataclasses.replace(result, exported_batch=save(root, task, small, weights))
        results.write(root, result)
        log.result(result.rows())
    processes.wait("the retraining is written")
    return result


def _measured(evaluators: Mapping[str, Evaluator], variables: Any, arch: Arch | None = None) -> dict:
    """The "metrics" of a network by role, and those of their standard "errors" that are known."""
    found: dict[str, dict] = {"metrics": {}, "errors": {}}
    for role, evaluate in evaluators.items():
        metrics, errors = map(_numbers, evaluate.with_errors(variables, arch))
        found["metrics"][role] = metrics
        found["errors"][role] = {name: error for name, error in errors.items() if np.isfinite(error)}
    return found


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: np.asarray(value).item() for name, value in values.items()}
