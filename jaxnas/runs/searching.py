"""From a trained supernet to a found architecture: strategies and replacements within a budget."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import files, processes, search
from jaxnas.network import check_variables
from jaxnas.report.result import ReplacementsOf, SearchOf, SelectionOf
from jaxnas.runs.describe import LivePage
from jaxnas.runs.lab import Lab
from jaxnas.runs.methods import BY_BUDGET, ByStrategy, Replacements, Search
from jaxnas.runs.ranking import trained_alone
from jaxnas.runs.replacing import replacing
from jaxnas.runs.timing import costs_with_latency
from jaxnas.search.bounds import check_bounds
from jaxnas.search.runner import Result, Standing
from jaxnas.space import Arch
from jaxnas.tasks import Task
from jaxnas.tasks.task import check_task
from jaxnas.tensors import check_finite, flatten
from jaxnas.trackers import as_log
from jaxnas.training.deciding import scoring
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.keys import stream
from jaxnas.training.mesh import make_mesh, on_mesh
from jaxnas.training.progress import Clock, Progress, times_line
from jaxnas.training.store import interrupted

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of a search, before extraction.

    Attributes:
      arch: the architecture.
      others: architectures to compare it with, by name.
      searches, selection, replacements: how it was found, for the result.
      times: seconds in all ("seconds"), the shares of "input", "evaluation", "step" (trainings of candidates)
        and what is left, the "strategy" or "selection" itself, and of a strategy
        "evaluations_per_second"; not reproducible.
    """

    arch: Arch
    others: Mapping[str, Arch] = dataclasses.field(default_factory=dict)
    searches: tuple[SearchOf, ...] = ()
    selection: SelectionOf | None = None
    replacements: ReplacementsOf | None = None
    times: Mapping[str, float] = dataclasses.field(default_factory=dict)


def search_space(
    task: Task, net: nn.Module, variables: Any, settings: Search = Search(), lab: Lab = Lab()
) -> Found:
    """Searches the space of a supernet under a budget, with its weights: by a strategy, or by replacements.

    Args:
      task, net, variables: the trained supernet.
      settings: whose method is `ByStrategy` or `Replacements`; by default evolution without a budget.
      lab: of the run. The history is search/history.jsonl of its directory, the times search/times.json.

    Returns:
      The architecture, how it was found, and where the time went.

    Raises:
      ValueError: no architecture keeps the budget (the message says what can be reached), weights are not
        finite, or a history of other weights or data.
    """
    method = ByStrategy() if settings.method is None else settings.method
    if not isinstance(method, BY_BUDGET):
        raise TypeError(
            f"search_space: search.method is {method!r}, which runs.select takes; expected runs.ByStrategy() "
            "or runs.Replacements()."
        )
    finalists = method.finalists if isinstance(method, ByStrategy) else 0
    if finalists:
        lab.training_alone(f"search.method.finalists is {finalists}")
    check_task(task)
    check_complete(lab.workdir, settings)
    space, workdir = net.space, lab.workdir
    costs = lab.cost or costs_with_latency(task, net, settings.latency, workdir)
    reach = search.reachable(space, costs)
    bounds = settings.bounds(reach)
    check_bounds(space, costs, bounds)
    mesh = make_mesh() if lab.mesh is None else lab.mesh
    variables = check_variables(net, variables, task.inputs)
    check_finite(flatten(processes.on_host(variables)), f"the weights of {type(net).__name__}")
    replaced = None
    if isinstance(method, Replacements):
        replaced = replacing(task, net, variables)
        strategies = replaced.strategies(costs, bounds, method.samples, mesh.size)
        history = history_of(workdir, "replacements.jsonl")
    else:
        given = method.strategy
        template: Any = search.Evolution(space, evaluations=300) if given is None else given
        strategy = dataclasses.replace(template, space=space, cost=costs, bounds=bounds)
        strategies, history = {"found": strategy}, history_of(workdir)
        if method.baseline and strategy.learns:
            strategies["random search"] = search.RandomSearch(
                space, cost=costs, bounds=bounds, evaluations=strategy.evaluations, batch=strategy.batch
            )
    scored = task if replaced is None else replaced.task
    evaluate = make_evaluator(scored, net, "search", mesh=mesh, limit=settings.limit)
    clock = Clock(("step", "evaluation"))
    about = None if history is None else scoring(task, variables, settings.limit)
    variables = on_mesh(variables, mesh)
    network = net.described() if hasattr(net, "described") else None
    page = LivePage(task, space, workdir, network=network)
    archs, records, told, fresh, log = {}, [], None, 0, as_log(lab.log)

    def scores(archs: Arch, rows: int) -> np.ndarray:
        with clock.part("evaluation"):
            return evaluate.scores(variables, archs, rows)

    for label, one in strategies.items():
        record = SearchOf(name=one.name, evaluations=one.evaluations, bounds=bounds, reachable=reach)
        page.searches = (*records, record)
        page.begin(f"The {one.name} search begins: what evaluates architectures is being compiled.")
        with Progress(one.evaluations, label=f"{one.name} search") as shown:

            def progress(standing: Standing, one=one, shown=shown) -> None:
                done = standing.evaluations
                shown.update(done, standing.figures())
                log.scalars(done, f"search/{one.name}", standing.figures())
                page.update(f"The {one.name} search has made {standing}.", done, one.evaluations)

            result = search.run(
                one,
                functools.partial(scores, rows=one.batch),
                stream(lab.seed, "random" if label == "random search" else "evolution"),
                batched=True,
                objective=about,
                history_path=history,
                progress=progress,
            )
        archs[label] = result.arch
        if replaced is not None and label == "found":

            def score(arch: Arch, rows=one.batch) -> float:
                return float(scores(jax.tree.map(lambda x: jnp.asarray(x)[None], arch), rows)[0])

            archs[label], told = replaced.choose(result.history, score, costs, settings.budget, bounds)
        elif isinstance(method, ByStrategy) and finalists:
            first = result.arch
            with clock.part("step"):
                archs[label] = best_alone(task, net, method, result, lab)
            if label == "found":
                archs["best inherited"] = first
        fresh = fresh + len(result.history) - result.resumed
        records.append(dataclasses.replace(record, evaluations=len(result.history)))
    times = clock.shares("strategy", evaluations=fresh)
    tell(times, history if fresh else None)  # What evaluated nothing only read the history.
    return Found(archs.pop("found"), archs, tuple(records), replacements=told, times=times)


def best_alone(task: Task, net: nn.Module, method: ByStrategy, result: Result, lab: Lab) -> Arch:
    """The best on the search role, after training alone, of a search's finalists."""
    finite = [line for line in result.history if line["score"] is not None]  # None: it failed
    best = sorted(finite, key=lambda line: -line["score"])
    distinct = {json.dumps(line["architecture"], sort_keys=True): line["architecture"] for line in best}
    chosen = [net.space.from_dict(values) for values in list(distinct.values())[: method.finalists]]
    archs = jax.tree.map(lambda *x: jnp.stack(x), *chosen)
    scores = trained_alone(task, net, archs, lab.shortened(method.finalist_steps))
    if not np.isfinite(scores).any():
        raise ValueError(
            f"all {len(chosen)} finalists diverged when they were trained alone; lower the learning rate of "
            "runs.Lab(alone=...)."
        )
    return chosen[int(np.argmax(np.where(np.isfinite(scores), scores, -np.inf)))]


def check_complete(workdir: str | os.PathLike | None, settings: Search) -> None:
    """Refuses to search the weights of a training that was stopped, unless that is asked for."""
    if workdir is not None and not settings.incomplete and (step := interrupted(workdir)):
        raise ValueError(
            f"the training in {workdir} was interrupted at {step}. Train to its end first, by the same call "
            "or command, or set search.incomplete=True to search its weights as they are."
        )


def tell(times: Mapping[str, float], history: pathlib.Path | None) -> None:
    """Logs where the time of a search went, and stores it beside its history."""
    _log.info(times_line(times))
    if history is not None and processes.is_first():
        files.write_json(history.with_name("times.json"), times)


def history_of(workdir: str | os.PathLike | None, name: str = "history.jsonl") -> pathlib.Path | None:
    """Where the searches of a workdir keep their history; its folder is made."""
    if workdir is None:
        return None
    path = files.as_path(workdir) / "search" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
