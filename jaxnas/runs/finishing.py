"""From a found architecture to a result: extract, verify, test, save, retrain, report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import jaxnas
from jaxnas import files, processes, report
from jaxnas.artifacts import needs_module
from jaxnas.cost import cost
from jaxnas.latency import median_times
from jaxnas.recipes.distillation import Distillation, Teacher
from jaxnas.recipes.hard import Fixed
from jaxnas.report import result as results
from jaxnas.report.result import Network, Result
from jaxnas.runs import again
from jaxnas.runs.describe import describe_run
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
from jaxnas.training.evaluate import Evaluator, calibrated, make_evaluator
from jaxnas.training.fit import fit
from jaxnas.training.plain import to_dict
from jaxnas.training.settings import Training
from jaxnas.training.setup import Options, prepare
from jaxnas.training.store import interrupted

Measured = dict[str, tuple[dict[str, float], dict[str, float]]]


def finish(
    task: Task,
    net: nn.Module,
    variables: Any,
    found: Found,
    lab: Lab,
    *,
    named: Mapping[str, Arch] | None = None,
    latency: int = 0,
) -> Result:
    """Brings a found architecture out of its supernet, alone, and describes the run.

    The network is extracted, verified against the supernet, given batch statistics of its own, measured
    once on the test role, saved and exported to subnet/. result.json and report.html are written.

    Args:
      task, net, variables: the trained supernet.
      found: by a search.
      lab: of the run, with a directory.
      named: architectures to compare with, beside those that the search found.
      latency: rows of a batch on which the network is timed beside the largest and the smallest; 0 for none.

    Returns:
      What result.json holds.

    Raises:
      ValueError: a name in `named` that another network of the result has.
    """
    check_task(task)
    results.check_names(named or {}, found.others)
    space, root, mesh = net.space, lab.root, lab.mesh
    costs = lab.costs or cost(net, task.inputs)
    spaces = read_spaces(root)
    roles = tuple(role for role in ("search", "test") if role in task.sizes)
    supernet = {role: make_evaluator(task, net, role, mesh=mesh) for role in roles}
    batch = jax.tree.map(lambda x: jnp.asarray(x[0][:64]), task.evaluation(roles[0], None, 1))
    own = calibrated(task, net, processes.on_host(variables), found.arch)
    small = jaxnas.extract(net, own, found.arch, verify=task.preprocess(batch))

    def network(name: str, arch: Arch, measured: Measured, difference: float | None = None) -> Network:
        return Network(
            name=name,
            architecture=space.to_dict(arch),
            costs=_numbers(costs(arch)),
            metrics={role: metrics for role, (metrics, _) in measured.items()},
            errors={role: errors for role, (_, errors) in measured.items()},
            extraction_error=difference,
        )

    # Reported is the small network's own quality, not the supernet's.
    alone = make_evaluator(task, small.net, "test", mesh=mesh)
    seen = _measured({roles[0]: supernet[roles[0]]}, variables, found.arch)
    best = network("found", found.arch, seen | _measured({"test": alone}, small.variables), small.error)
    others = {
        **found.others,
        "smallest": space.smallest(),
        "largest": space.largest(),
        **(named or {}),
    }
    networks = tuple(
        network(name, arch, _measured(supernet, variables, arch)) for name, arch in others.items()
    )
    result = describe_run(
        task,
        space,
        best,
        lab.config,
        networks=networks,
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
        if latency:
            timed = {"found": found.arch, "smallest": space.smallest(), "largest": space.largest()}
            time_found(task, net, processes.on_host(variables), timed, latency, root)
        publish(root)
    processes.wait("the result is written")
    return result


def search_and_finish(
    task: Task,
    net: nn.Module,
    variables: Any,
    settings: Search | None,
    lab: Lab,
) -> Result:
    """`search_space`, `finish` and, if asked for, `rank`: a small network and its page.

    Args:
      task, net, variables: the trained supernet.
      settings: of the search; None for the defaults.
      lab: of the run, with a directory.

    Raises:
      ValueError: no directory; architectures are to be ranked, and `lab.alone` is None.
    """
    settings, root, alone = Search() if settings is None else settings, lab.root, lab.alone
    if settings.ranked:
        lab.training_alone(f"search.ranked is {settings.ranked}")
    costs = lab.costs or costs_with_latency(task, net, settings.latency, root)
    lab = dataclasses.replace(lab, costs=costs)
    found = search_space(task, net, variables, settings, lab)
    trained = again.trained_by(root)
    config = {
        "network": to_dict(net),
        **{name: trained[name] for name in ("training", "recipe") if name in trained},
        "search": to_dict(settings),
        **({} if alone is None else {"alone": to_dict(alone)}),
        "seed": lab.seed,
        "again": again.calls(trained, settings, lab),
    }
    lab = dataclasses.replace(lab, config=lab.config or config)
    result = finish(task, net, variables, found, lab, latency=settings.latency)
    return enter_ranking(result, task, net, variables, settings, lab)


def enter_ranking(
    result: Result,
    task: Task,
    net: nn.Module,
    variables: Any,
    settings: Search,
    lab: Lab,
) -> Result:
    """Adds to a result how well the supernet ranks, if `settings.ranked` asks for it.

    It comes after all else, since it takes longest. The result and its page are written anew.

    Args:
      result: of the run, as `finish` returns it.
      task, net, variables: the trained supernet.
      settings: of the search.
      lab: of the run.
    """
    if not settings.ranked:
        return result
    ranking = rank(task, net, variables, lab.shortened(settings.ranked_steps), settings.ranked)
    result = dataclasses.replace(result, ranking=ranking)
    if processes.is_first():
        results.write(lab.root, result)
        report.write(lab.root)
    processes.wait("the ranking is written")
    return result


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
      ValueError: a lab without `alone`; a distillation with neither a teacher nor variables.
      Stopped: a signal stopped the training, which is saved; see `fit`.
    """
    space, root, training, seed = net.space, lab.root, lab.training_alone("retrain"), lab.seed
    mesh = training.mesh() if lab.mesh is None else lab.mesh
    costs = lab.costs or cost(net, task.inputs)
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
        _, *teacher = alone(net, host, space.largest(), task.inputs)
        distill = dataclasses.replace(distill, teacher=Teacher(*teacher))
    whole = task.whole()
    trained = fit(
        whole,
        small,
        training,
        recipe=Fixed(distill=distill),
        workdir=root,
        seed=seed,
        options=Options(variables=start, mesh=mesh, stream="retraining"),
    )
    roles = tuple(role for role in ("validation", "test") if role in whole.sizes)
    evaluators = {role: make_evaluator(whole, small, role, mesh=mesh) for role in roles}
    measured = _measured(evaluators, trained.variables)
    network = Network(
        name=name,
        architecture=space.to_dict(arch),
        costs=_numbers(costs(arch)),
        metrics={role: metrics for role, (metrics, _) in measured.items()},
        errors={role: errors for role, (_, errors) in measured.items()},
        weights="from scratch" if variables is None else "fine-tuned",
        seed=seed,
        steps=int(trained.state.step),
    )
    own = {"network": to_dict(net), "retraining": to_dict(training), "seed": seed}
    result = describe_run(whole, space, network, own if lab.config is None else lab.config)
    # Apart from the result, which a run that was killed and resumed gives bit for bit.
    times = {**trained.times, **measure(whole, small, training, mesh)}
    weights = calibrated(whole, small, processes.on_host(trained.variables))
    if processes.is_first():
        result = dataclasses.replace(result, exported_batch=save(root, task, small, weights))
        results.write(root, result)
        files.write_json(root / "times.json", times)
    processes.wait("the retraining is written")
    return result


def timed_calls(
    task: Task, net: nn.Module, training: Training, mesh: Mesh
) -> tuple[dict[str, Callable[[], Any]], int]:
    """The calls to time, "train" (a whole step) and "infer", and the rows of their batch."""
    state, step, batch = prepare(task, net, training, Fixed(), options=Options(mesh=mesh))
    given, kept = batch(0), [state]

    def train() -> Any:
        kept[0], metrics = step(kept[0], given)  # a step consumes its state
        return metrics

    variables = jax.tree.map(jnp.copy, state.variables)
    inputs = task.preprocess(given["train"])
    infer = jax.jit(lambda variables, inputs: net.apply(variables, inputs))
    rows = jax.tree.leaves(inputs)[0].shape[0]
    return {"train": train, "infer": lambda: infer(variables, inputs)}, rows


def measure(task: Task, net: nn.Module, training: Training, mesh: Mesh) -> dict[str, float]:
    """Median time of a training step, in ms, and rows a second at inference, of a network alone."""
    calls, rows = timed_calls(task, net, training, mesh)
    seconds = median_times(calls, repeats=10)
    return {
        "training_step_ms": 1e3 * seconds["train"],
        "inference_rows_per_second": rows / seconds["infer"],
    }


def _measured(evaluators: Mapping[str, Evaluator], variables: Any, arch: Arch | None = None) -> Measured:
    """By role the metrics of a network, and those of their standard errors that are known."""
    found = {}
    for role, evaluate in evaluators.items():
        metrics, errors = map(_numbers, evaluate.with_errors(variables, arch))
        found[role] = metrics, {name: error for name, error in errors.items() if np.isfinite(error)}
    return found


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: np.asarray(value).item() for name, value in values.items()}
