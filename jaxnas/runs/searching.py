"""From a trained supernet to a found architecture: strategies under budgets, and selections."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxnas import files, processes, search
from jaxnas.checks import check_counts, check_increasing, check_numbers
from jaxnas.cost import Cost
from jaxnas.executors import Calls
from jaxnas.network import check_variables
from jaxnas.report.result import (
    Candidate,
    ReplacementsOf,
    SearchOf,
    SelectionOf,
)
from jaxnas.runs.alone import trained_alone
from jaxnas.runs.live_page import LivePage
from jaxnas.runs.ranking import kendall_tau
from jaxnas.runs.replacing import replacing
from jaxnas.runs.timing import costs_with_latency
from jaxnas.space import Arch, Space
from jaxnas.tasks import Task
from jaxnas.tasks.task import check_task
from jaxnas.tensors import check_finite, flatten
from jaxnas.training import relaxations
from jaxnas.training.clock import Clock, times_line
from jaxnas.training.deciding import scoring, scoring_alone
from jaxnas.training.evaluate import Evaluator, make_evaluator
from jaxnas.training.keys import stream
from jaxnas.training.mesh import make_mesh, on_mesh
from jaxnas.training.progress import Progress
from jaxnas.training.recipe import Recipe, check_cost
from jaxnas.training.relaxed import Relaxed
from jaxnas.training.settings import Training
from jaxnas.training.state import TrainState
from jaxnas.training.store import interrupted
from jaxnas.training.trials import begin, make_trials, make_tuner, on_workers

_log = logging.getLogger(__name__)
REMOVALS = ("perturbation", "pruning", "strongest")  # by what the supernet loses without an option
REPLACEMENTS = "replacements"
METHODS = ("strategy", REPLACEMENTS, "argmax", "sampling", "trials", *REMOVALS)
BY_BUDGET = (None, "strategy", REPLACEMENTS)  # what `search_space` does


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """How an architecture is found with the weights of a supernet.

    Attributes:
      method: "strategy", which evaluates architectures under a budget; "replacements", which changes one
        place of the largest network at a time and takes the combination within the budget whose predictions
        should change least (Puzzle, arXiv 2411.19146); or a selection: "argmax" of the
        probabilities, the best of several draws with the supernet's weights ("sampling") or each trained
        alone ("trials"), "perturbation", or, for blocks that stand side by side, "pruning" of the weakest one
        by one, or the "strongest" of a single round. None for "argmax" where the recipe has architecture
        parameters, else for "strategy".
      strategy: of `jaxnas.search`, or another; its space, cost and bounds are those of the run. None for
        evolution.
      baseline: whether random search with as many evaluations runs beside the strategy, unless that
        learns nothing from scores itself.
      budget: name of the cost that is bounded, as "params", "macs" or "latency_ms".
      least, most: bounds on it; None for no bound.
      most_share: the upper bound as a share of the largest network's cost, in place of `most`.
      samples: draws of "sampling" and "trials", and of random search beside "replacements".
      explore: share of the draws for which all options are equally probable.
      slack: where the recipe has a target, draws cost at most that, and at least 1 - `slack` times it.
      trial_steps: steps of each rung of trials; one in `eta` goes on to the next rung.
      canonical: from an architecture to the one that stands for all that are equal to it when trained
        alone, for trials; or None.
      limit: batches of the search role that each candidate of a selection is evaluated on; None for all.
      finalists: how many of the best architectures of a strategy are trained alone, of which the best one is
        then the found one, as in AutoAttend (ICML 2021, section 5.1.2); 0 for none.
      finalist_steps: of each of these trainings; None for as many as a retraining has.
      tune_steps: of training after each decision of "perturbation" and each round of "pruning"; 0 for none.
      renormalise: whether the weights that are left sum to one again where an option is taken out.
      latency: rows of a batch whose latency counts as a cost, "latency_ms", by a table that is measured once;
        the found network is then timed from end to end beside the largest and the smallest. 0 for none.
      ranked: random architectures that are also trained alone, to see how well the supernet ranks; 0 for
        none.
      ranked_steps: of each of these trainings; None for as many as a retraining has.
      incomplete: whether the weights of a training that was stopped may be searched.
    """

    method: str | None = None
    strategy: Any = None
    baseline: bool = True
    budget: str = "params"
    least: float | None = None
    most: float | None = None
    most_share: float | None = None
    samples: int = 16
    explore: float = 0.0
    slack: float = 1.0
    trial_steps: tuple[int, ...] = (300,)
    eta: int = 4
    canonical: Callable[[Arch], Arch] | None = None
    limit: int | None = None
    tune_steps: int = 0
    renormalise: bool = False
    finalists: int = 0
    finalist_steps: int | None = None
    latency: int = 0
    ranked: int = 0
    ranked_steps: int | None = None
    incomplete: bool = False

    def __post_init__(self) -> None:
        group = "search"
        if self.strategy is not None:
            search.check_strategy(self.strategy)
        check_counts(self, "finalists", "latency", "ranked", "tune_steps", least=0, group=group)
        check_counts(self, "finalist_steps", "ranked_steps", "limit", none=True, group=group)
        check_counts(self, "samples", group=group)
        check_counts(self, "eta", least=2, group=group)
        check_numbers(self, "least", "most", none=True, group=group)
        check_numbers(self, "most_share", above=0, none=True, group=group)
        check_numbers(self, "explore", least=0, most=1, group=group)
        check_numbers(self, "slack", above=0, most=1, group=group)
        if self.ranked == 1:
            raise ValueError("search.ranked is 1, expected 0, or at least 2 architectures to compare.")
        if self.finalists and self.method == REPLACEMENTS:
            raise ValueError("search.finalists is for a strategy, and search.method is replacements.")
        if self.tune_steps and self.method not in ("perturbation", "pruning"):
            raise ValueError(
                f"search.tune_steps is {self.tune_steps}, and search.method {self.method!r} makes no "
                "decisions one after another; it is for perturbation and pruning."
            )
        if self.renormalise and self.method not in REMOVALS:
            raise ValueError(
                f"search.renormalise is set, and search.method {self.method!r} takes no option out; it is "
                f"for {', '.join(REMOVALS)}."
            )
        if self.method is not None and self.method not in METHODS:
            raise ValueError(f"search.method is {self.method!r}, expected one of {', '.join(METHODS)}.")
        if self.most is not None and self.most_share is not None:
            raise ValueError(
                f"search.most is {self.most} and search.most_share {self.most_share}: both are the upper "
                "bound. Give one, and None for the other."
            )
        check_increasing(self, "trial_steps", group="search")

    def bounds(self, reachable: Mapping[str, tuple]) -> dict[str, tuple[float | None, float | None]]:
        """The bounds on costs that are asked for, {} for none.

        Args:
          reachable: (least, most) by cost.

        Raises:
          ValueError: the network has no cost of the name `budget`.
        """
        bounded = (self.least, self.most, self.most_share) != (None, None, None)
        # A network may have other costs than the default's; where nothing is bounded, that does no harm.
        if self.budget not in reachable and (bounded or self.budget != Search.budget):
            check_cost("search.budget", self.budget, reachable)
        most = self.most
        if self.most_share is not None:
            # The last options are not the dearest ones in every space.
            most = self.most_share * reachable[self.budget][1]
            most = math.floor(most) if isinstance(reachable[self.budget][1], int) else most
        return {} if most is None and self.least is None else {self.budget: (self.least, most)}


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search brought out, before it is extracted.

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
    task: Task,
    net: nn.Module,
    variables: Any,
    settings: Search | None = None,
    *,
    training: Training | None = None,
    costs: Cost | None = None,
    seed: int = 0,
    workdir: str | os.PathLike | None = None,
    mesh: Mesh | None = None,
    alone: Calls | None = None,
) -> Found:
    """Searches the space of a supernet under a budget, with its weights: by a strategy, or by replacements.

    Args:
      task, net, variables: the trained supernet.
      settings: see `Search`; by default evolution without a budget.
      training: of an architecture alone; asked for by `settings.finalists`.
      costs: of architectures; None for parameters and products.
      seed: of the run.
      workdir: the search goes on from its history in search/history.jsonl, and where its time went is in
        search/times.json; None to keep none.
      mesh: of the devices; None for all.
      alone: the training of finalists on workers, see `scores_alone`; None for here.

    Returns:
      What was found, and where the time went, which is logged at the level INFO, too.

    Raises:
      ValueError: a budget that no architecture keeps, with what can be reached, before anything is evaluated;
        finalists without a `training`; weights of another network, or that are not finite; a history of other
        weights or data; a training in the workdir that was stopped, without `settings.incomplete`.
    """
    settings = Search() if settings is None else settings
    if settings.finalists and training is None:
        raise ValueError(
            f"search.finalists is {settings.finalists}; say by `training` how they are trained alone."
        )
    check_task(task)
    _check_complete(workdir, settings)
    space = net.space
    costs = costs_with_latency(task, net, settings.latency, workdir) if costs is None else costs
    reach = search.reachable(space, costs)
    bounds = settings.bounds(reach)
    search.check_bounds(space, costs, bounds)
    mesh = make_mesh() if mesh is None else mesh
    variables = check_variables(net, variables, task.inputs)
    check_finite(flatten(processes.on_host(variables)), f"the weights of {type(net).__name__}")
    replaced = None
    if settings.method == REPLACEMENTS:
        replaced = replacing(task, net, variables)
        samples = settings.samples if settings.baseline else 0
        strategies = replaced.strategies(costs, bounds, samples, mesh.size)
        history = _history(workdir, "replacements.jsonl")
    else:
        template = (
            search.Evolution(space, evaluations=300) if settings.strategy is None else settings.strategy
        )
        strategy = dataclasses.replace(template, space=space, cost=costs, bounds=bounds)
        strategies, history = {"found": strategy}, _history(workdir)
        if settings.baseline and strategy.learns:
            strategies["random search"] = search.RandomSearch(
                space, cost=costs, bounds=bounds, evaluations=strategy.evaluations, batch=strategy.batch
            )
    scored = task if replaced is None else replaced.task
    evaluate = make_evaluator(scored, net, "search", mesh=mesh, limit=settings.limit)
    clock = Clock(("step", "evaluation"))
    about = None if history is None else scoring(task, variables, settings.limit)
    variables = on_mesh(variables, mesh)
    page = None if workdir is None else LivePage(task, space, workdir)
    archs, records, told, fresh = {}, [], None, 0

    def scores(archs: Arch, rows: int) -> np.ndarray:
        with clock.part("evaluation"):
            return evaluate.scores(variables, archs, rows)

    for label, one in strategies.items():
        record = SearchOf(name=one.name, evaluations=one.evaluations, bounds=bounds, reachable=reach)
        if page is not None:
            page.searches = (*records, record)
            page.begin(f"The {one.name} search begins: what evaluates architectures is being compiled.")
        with Progress(one.evaluations, label=f"{one.name} search") as shown:

            def progress(
                standing: search.Standing, name=one.name, total=one.evaluations, shown=shown
            ) -> None:
                shown.update(standing.evaluations, standing.figures())
                if page is not None:
                    done = standing.evaluations
                    page.update(f"The {name} search has made {standing}.", done, total)

            result = search.run(
                one,
                functools.partial(scores, rows=one.batch),
                stream(seed, "random" if label == "random search" else "evolution"),
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
        elif settings.finalists and training is not None:
            shortened, first = training.shortened(settings.finalist_steps), result.arch
            with clock.part("step"):
                archs[label] = best_alone(
                    *(task, net, shortened, result, settings.finalists),
                    seed=seed,
                    mesh=mesh,
                    alone=alone,
                    workdir=workdir,
                )
            if label == "found":
                archs["best inherited"] = first
        fresh = fresh + len(result.history) - result.resumed
        records.append(dataclasses.replace(record, evaluations=len(result.history)))
    times = clock.shares("strategy", evaluations=fresh)
    _tell(times, history if fresh else None)  # What evaluated nothing only read the history.
    return Found(archs.pop("found"), archs, tuple(records), replacements=told, times=times)


def best_alone(
    task: Task,
    net: nn.Module,
    training: Training,
    result: search.Result,
    count: int,
    *,
    seed: int = 0,
    mesh: Mesh | None = None,
    alone: Calls | None = None,
    workdir: str | os.PathLike | None = None,
) -> Arch:
    """Of the `count` best architectures of a search, the best one on the search role after training alone."""
    finite = [line for line in result.history if line["score"] is not None]  # None: it failed
    best = sorted(finite, key=lambda line: -line["score"])
    distinct = {json.dumps(line["architecture"], sort_keys=True): line["architecture"] for line in best}
    chosen = [net.space.from_dict(values) for values in list(distinct.values())[:count]]
    archs = jax.tree.map(lambda *x: jnp.stack(x), *chosen)
    scores = trained_alone(task, net, training, archs, seed=seed, mesh=mesh, calls=alone, workdir=workdir)
    return chosen[int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))]


def select(
    task: Task,
    net: nn.Module,
    state: TrainState,
    settings: Search,
    *,
    recipe: Recipe,
    training: Training,
    costs: Cost | None = None,
    seed: int = 0,
    workdir: str | os.PathLike | None = None,
    mesh: Mesh | None = None,
    trials: Calls | None = None,
) -> Found:
    """Takes an architecture by the architecture parameters of a search; see `Search.method`.

    A supernet without architecture parameters counts as one for which all options are equally probable.

    Args:
      task, net: what was trained.
      state: the last one of the training.
      settings: see `Search`.
      recipe, training: as in the training.
      costs, seed, mesh: see `search_space`.
      workdir: trials are kept in search/history.jsonl, and where the time went in search/times.json.
      trials: on workers, see `on_workers`; those of a rung run at once. None for one after another, here.

    Raises:
      ValueError: "argmax" without architecture parameters; draws that all miss the target, or whose scores
        are all no numbers.
    """
    _check_complete(workdir, settings)
    space, mesh = net.space, training.mesh() if mesh is None else mesh
    method, variables = settings.method or "argmax", state.evaluated()
    has_logits = state.logits != ()
    logits = processes.on_host(state.logits) if has_logits else space.logits()
    even = isinstance(recipe, Relaxed) and recipe.relaxation == "average"
    probabilities = (relaxations.average if even else relaxations.softmax)(logits)
    found: dict[str, Any] = {}
    clock, history = Clock(("input", "step", "evaluation")), _history(workdir)
    if method == "argmax":
        if not has_logits or even:
            raise ValueError(
                "search.method=argmax needs architecture parameters that were trained, by a recipe such as "
                "Relaxed(relaxation='gumbel_softmax'); take sampling, trials, perturbation or strategy."
            )
        arch = search.argmax(space, logits)
    else:
        evaluate = make_evaluator(task, net, "search", mesh=mesh, limit=settings.limit)
        found["examples"] = evaluate.examples
        if method in REMOVALS:
            arch, found["decisions"] = _without_options(
                task, net, state, settings, probabilities, evaluate, training, seed, mesh, clock
            )
        else:
            drawn = _draw(settings, recipe, space, logits, costs, seed)
            with clock.part("evaluation"):
                supernet = evaluate.scores(variables, drawn.archs)
            told: list[tuple[float, ...]] = [()] * len(supernet)
            if method == "sampling":
                usable = np.isfinite(supernet)
                if not usable.any():
                    raise ValueError(
                        f"sampling: none of the {len(supernet)} scores is a number; look at the evaluation."
                    )
                arch = _row(drawn.archs, int(np.argmax(np.where(usable, supernet, -np.inf))))
            else:
                steps = settings.trial_steps
                here = make_trials(task, net, training, steps, evaluate, mesh, seed=seed, clock=clock)
                kept: dict[str, Any] = {}
                if history is not None:
                    about = {"trained_on": scoring_alone(task, net, training)}
                    kept = {"history_path": history, "objective": about}
                arch, told = _race(space, settings, here, drawn, seed, kept, trials, clock)
                found["trial_steps"] = settings.trial_steps
                firsts = [scores[0] for scores in told]
                found["kendall_tau"] = kendall_tau(supernet, firsts)
            metric = task.metrics[0]
            found["candidates"] = tuple(
                Candidate(
                    architecture=space.to_dict(_row(drawn.archs, row)),
                    explored=bool(drawn.explored[row]),
                    supernet=float(metric.score(supernet[row])),
                    trials=tuple(float(metric.score(score)) for score in told[row]),
                )
                for row in range(len(supernet))
            )
    selection = SelectionOf(
        method=method,
        steps=int(state.step),
        probabilities={name: np.asarray(x, np.float64).tolist() for name, x in probabilities.items()},
        confidence=float(relaxations.confidence(probabilities)),
        **found,
    )
    times = clock.shares("selection")
    _tell(times, history)
    return Found(arch, selection=selection, times=times)


def _check_complete(workdir: str | os.PathLike | None, settings: Search) -> None:
    """Refuses to search the weights of a training that was stopped, unless that is asked for."""
    if workdir is not None and not settings.incomplete and (step := interrupted(workdir)):
        raise ValueError(
            f"the training in {workdir} was interrupted at {step}. Train to its end first, by the same call "
            "or command, or set search.incomplete=True to search its weights as they are."
        )


def _without_options(
    task: Task,
    net: nn.Module,
    state: TrainState,
    settings: Search,
    weights: Arch,
    evaluate: Evaluator,
    training: Training,
    seed: int,
    mesh: Mesh,
    clock: Clock,
) -> tuple[Arch, tuple[dict[str, Any], ...]]:
    """The architecture by what the supernet loses without each option, and what was found on the way."""
    space, variables, tune = net.space, state.evaluated(), None
    if settings.tune_steps:
        tuner = make_tuner(task, net, training, settings.tune_steps, state, mesh, seed=seed, clock=clock)

        def tune(arch: Arch) -> None:
            nonlocal variables
            variables = tuner(arch)

    done = 0

    def scores(archs: Arch) -> np.ndarray:
        # In parts of one size: every call has another number of architectures, and would be compiled anew.
        nonlocal done
        measured = []
        count, part = len(next(iter(archs.values()))), mesh.size
        for i in range(0, count, part):
            one = jax.tree.map(lambda x, i=i: x[i : i + part], archs)
            with clock.part("evaluation"):
                measured.append(evaluate.scores(variables, one, part))
            done += len(measured[-1])
            shown.update(done)
        return np.concatenate(measured)

    options: dict[str, Any] = {"tune": tune, "renormalise": settings.renormalise}
    with Progress(_evaluations(space, settings.method), label=f"{settings.method}, evaluation") as shown:
        if settings.method == "perturbation":
            arch, found = search.perturbation(space, weights, scores, stream(seed, "selection"), **options)
        else:
            at_once = settings.method == "strongest"
            arch, found = search.pruning(space, weights, scores, at_once=at_once, **options)
    return arch, tuple(found)


def _evaluations(space: Space, method: str | None) -> int:
    """How many soft architectures a selection by removals evaluates."""
    positions, blocks = space.length, int(space.sizes.sum())
    if method == "perturbation":
        return blocks + positions
    least = blocks if method == "strongest" else positions + 1
    return sum(left + 1 for left in range(least, blocks + 1))


def _draw(
    settings: Search, recipe: Recipe, space: Any, logits: Arch, costs: Cost | None, seed: int
) -> search.Candidates:
    relative, low, high = None, None, None
    if isinstance(recipe, Relaxed) and recipe.cost is not None:
        relative = recipe.relative_cost(space, costs)
        low, high = (1 - settings.slack) * recipe.target, recipe.target
    return search.candidates(
        space,
        logits,
        stream(seed, "selection"),
        settings.samples,
        explore=settings.explore,
        explore_key=stream(seed, "exploration"),
        cost=relative,
        low=low,
        high=high,
        canonical=settings.canonical if settings.method == "trials" else None,
    )


def _race(
    space: Space,
    settings: Search,
    trials: Callable[[Arch, Any], np.ndarray],
    drawn: search.Candidates,
    seed: int,
    kept: Mapping[str, Any],
    calls: Calls | None,
    clock: Clock,
) -> tuple[Arch, list[tuple[float, ...]]]:
    """The winner of successive halving among candidates, and the scores of each, rung by rung.

    On workers the trials of a rung begin together. They are told one by one and in order as they are here, so
    that the history is the same.
    """
    codes, count = np.asarray(space.encode(drawn.archs)), len(settings.trial_steps)
    race = search.SuccessiveHalving(
        space, given=search.Pool(codes), fidelities=count, eta=settings.eta, batch=1
    )
    rungs = dataclasses.replace(race, batch=len(codes))

    def begin_rung(state: search.State) -> None:
        assert calls is not None
        archs, asked = rungs.ask(state)  # All that are left of the rung, whatever their scores will be.
        begin(calls, space, jax.tree.map(lambda x: x[asked.valid], archs), int(rungs.fidelity(asked)))

    with Progress(race.evaluations, label="trials") as progress:
        result = search.run(
            race,
            trials if calls is None else on_workers(calls, space, clock),
            stream(seed, "trials"),
            batched=True,
            name="trials",
            **kept,
            before=None if calls is None else begin_rung,
            progress=lambda standing: progress.update(standing.evaluations, standing.figures()),
        )
    told = [
        (np.asarray(space.encode(space.from_dict(line["architecture"]))), line["score"])
        for line in result.history
    ]
    scores = [
        tuple(math.nan if score is None else score for code, score in told if np.array_equal(code, own))
        for own in codes
    ]
    return result.arch, scores


def _tell(times: Mapping[str, float], history: pathlib.Path | None) -> None:
    """Logs where the time of a search went, and stores it beside its history."""
    _log.info(times_line(times))
    if history is not None and processes.is_first():
        files.write_json(history.with_name("times.json"), times)


def _row(archs: Arch, row: int) -> Arch:
    return jax.tree.map(lambda x: x[row], archs)


def _history(workdir: str | os.PathLike | None, name: str = "history.jsonl") -> pathlib.Path | None:
    """Where the searches of a workdir keep their history; its folder is made."""
    if workdir is None:
        return None
    path = files.as_path(workdir) / "search" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
