"""An architecture by the architecture parameters of a search: argmax, draws, trials, removals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from jaxnas import processes, search
from jaxnas.cost import cost
from jaxnas.recipes import relaxations
from jaxnas.recipes.recipe import Recipe, TrainState
from jaxnas.recipes.relaxed import Relaxed
from jaxnas.recipes.selections import Candidates, argmax, candidates, perturbation, pruning
from jaxnas.report.result import Candidate, SelectionOf
from jaxnas.runs.lab import Lab
from jaxnas.runs.methods import BY_BUDGET, Argmax, Perturbation, Pruning, Sampling, Search, Trials
from jaxnas.runs.ranking import kendall_tau
from jaxnas.runs.searching import Found, check_complete, history_of, tell
from jaxnas.search.runner import Standing
from jaxnas.search.strategy import State
from jaxnas.space import Arch, Space
from jaxnas.tasks import Task
from jaxnas.trackers import as_log
from jaxnas.training.alone import begin, make_trials, make_tuner, on_workers
from jaxnas.training.deciding import scoring_alone
from jaxnas.training.evaluate import Evaluator, make_evaluator
from jaxnas.training.keys import stream
from jaxnas.training.progress import Clock, Progress
from jaxnas.training.settings import Training


def select(
    task: Task,
    net: nn.Module,
    state: TrainState,
    settings: Search,
    recipe: Recipe,
    training: Training,
    lab: Lab = Lab(),
) -> Found:
    """Selects an architecture by the architecture parameters of a search.

    A supernet without architecture parameters counts as one for which all options are equally probable.

    Args:
      task, net: what was trained.
      state: the last one of the training.
      settings: whose method is `Argmax` (the default), `Sampling`, `Trials`, `Perturbation` or `Pruning`.
      recipe, training: as in the training.
      lab: of the run. Trials are recorded in search/history.jsonl of its directory; on workers
        (`lab.workers["trials"]`) those of a rung run at once.

    Raises:
      ValueError: draws that all miss the target, or whose scores are all no numbers.
    """
    check_complete(lab.workdir, settings)
    space, seed, trials = net.space, lab.seed, lab.workers.get("trials")
    mesh = training.mesh() if lab.mesh is None else lab.mesh
    method = Argmax() if settings.method is None else settings.method
    if isinstance(method, BY_BUDGET):
        raise TypeError(f"select: search.method is {method!r}, which runs.search_space takes.")
    has_logits = state.logits != ()
    logits = processes.on_host(state.logits) if has_logits else space.logits()
    even = isinstance(recipe, Relaxed) and recipe.relaxation == "average"
    probabilities = (relaxations.average if even else relaxations.softmax)(logits)
    clock, history = Clock(("input", "step", "evaluation")), history_of(lab.workdir)
    found: dict[str, Any] = {}

    def evaluate() -> Evaluator:
        evaluator = make_evaluator(task, net, "search", mesh=mesh, limit=settings.limit)
        found["examples"] = evaluator.examples
        return evaluator

    if isinstance(method, Argmax):
        if not has_logits or even:
            raise ValueError(
                "runs.Argmax() needs architecture parameters that were trained, by a recipe such as "
                "Relaxed(relaxation='gumbel_softmax'); take Sampling, Trials, Perturbation or ByStrategy."
            )
        arch = argmax(space, logits)
    elif isinstance(method, Perturbation):
        tuner = None
        if method.tune_steps:
            tuning = dataclasses.replace(training, steps=method.tune_steps, warmup_steps=0)
            tuner = make_tuner(task, net, tuning, state, seed)
        arch, found["decisions"] = _without_options(
            method, probabilities, state.evaluated(), evaluate(), tuner, clock, lab
        )
    else:
        drawn = _draw(method, recipe, task, net, logits, lab)
        with clock.part("evaluation"):
            supernet = evaluate().scores(state.evaluated(), drawn.archs)
        told: list[tuple[float, ...]] = [()] * len(supernet)
        if isinstance(method, Trials):
            here = make_trials(task, net, training, method.steps, seed=seed, limit=settings.limit)
            kept: dict[str, Any] = {}
            if history is not None:
                about = {"trained_on": scoring_alone(task, net, training)}
                kept = {"history_path": history, "objective": about}
            calls = here if trials is None else on_workers(trials, space)

            def timed(archs: Arch, fidelity: Any) -> np.ndarray:
                with clock.part("step"):
                    return calls(archs, fidelity)

            arch, told = race(space, method, drawn, timed, kept, lab)
            found["trial_steps"] = method.steps
            first = np.asarray([scores[0] for scores in told])
            there = np.isfinite(first) & np.isfinite(supernet)  # others diverged
            found["kendall_tau"] = kendall_tau(supernet[there], first[there])
        else:
            usable = np.isfinite(supernet)
            if not usable.any():
                raise ValueError(
                    f"sampling: none of the {len(supernet)} scores is a number; look at the evaluation."
                )
            arch = _row(drawn.archs, int(np.argmax(np.where(usable, supernet, -np.inf))))
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
        method=method.name,
        steps=int(state.step),
        probabilities={name: np.asarray(x, np.float64).tolist() for name, x in probabilities.items()},
        confidence=float(relaxations.confidence(probabilities)),
        **found,
    )
    times = clock.shares("selection")
    tell(times, history)
    return Found(arch, selection=selection, times=times)


def _without_options(
    method: Perturbation,
    weights: Arch,
    variables: Any,
    evaluate: Evaluator,
    tuner: Callable[[Arch], Any] | None,
    clock: Clock,
    lab: Lab,
) -> tuple[Arch, tuple[dict[str, Any], ...]]:
    """The architecture by what the supernet loses without each option, and what was found on the way."""
    space, size, done, log = evaluate.net.space, evaluate.mesh.size, 0, as_log(lab.log)

    def tune(arch: Arch) -> None:
        nonlocal variables
        assert tuner is not None
        with clock.part("step"):
            variables = tuner(arch)

    def scores(archs: Arch) -> np.ndarray:
        # In parts of one size: every call has another number of architectures, and would be compiled anew.
        nonlocal done
        measured = []
        for first in range(0, len(next(iter(archs.values()))), size):
            part = jax.tree.map(lambda x, first=first: x[first : first + size], archs)
            with clock.part("evaluation"):
                measured.append(evaluate.scores(variables, part, size))
            done += len(measured[-1])
            shown.update(done)
        log.scalars(done, f"search/{method.name}", {"score": float(measured[0][0])})  # with all that are left
        return np.concatenate(measured)

    options: dict[str, Any] = {"tune": tuner and tune}
    with Progress(_evaluations(space, method), label=f"{method.name}, evaluation") as shown:
        if isinstance(method, Pruning):
            arch, found = pruning(space, weights, scores, at_once=method.at_once, **options)
        else:
            arch, found = perturbation(space, weights, scores, stream(lab.seed, "selection"), **options)
    return arch, tuple(found)


def _evaluations(space: Space, method: Perturbation) -> int:
    """How many soft architectures a selection by removals evaluates."""
    positions, blocks = space.length, int(space.sizes.sum())
    if not isinstance(method, Pruning):
        return blocks + positions
    least = blocks if method.at_once else positions + 1
    return sum(left + 1 for left in range(least, blocks + 1))


def _draw(method: Sampling, recipe: Recipe, task: Task, net: nn.Module, logits: Arch, lab: Lab) -> Candidates:
    space, relative, low, high = net.space, None, None, None
    if isinstance(recipe, Relaxed) and recipe.cost is not None:
        relative = recipe.relative_cost(space, lab.cost or cost(net, task.inputs))
        low, high = (1 - method.slack) * recipe.target, recipe.target
    return candidates(
        space,
        logits,
        stream(lab.seed, "selection"),
        method.samples,
        explore=method.explore,
        explore_key=stream(lab.seed, "exploration"),
        cost=relative,
        low=low,
        high=high,
        canonical=method.canonical if isinstance(method, Trials) else None,
    )


def race(
    space: Space,
    method: Trials,
    drawn: Candidates,
    trials: Callable[[Arch, Any], np.ndarray],
    kept: Mapping[str, Any],
    lab: Lab,
) -> tuple[Arch, list[tuple[float, ...]]]:
    """The winner of successive halving among candidates, and the scores of each, rung by rung.

    On workers the trials of a rung begin together, and are told one by one and in order as they are here, so
    that the history is the same. `kept` are the arguments of `search.run` on its history.
    """
    codes, count = np.asarray(space.encode(drawn.archs)), len(method.steps)
    calls, log = lab.workers.get("trials"), as_log(lab.log)
    racing = search.SuccessiveHalving(
        space, given=search.Pool(codes), fidelities=count, eta=method.eta, batch=1
    )
    rungs = dataclasses.replace(racing, batch=len(codes))

    def begin_rung(state: State) -> None:
        assert calls is not None
        archs, asked = rungs.ask(state)  # All that are left of the rung, whatever their scores will be.
        begin(calls, space, jax.tree.map(lambda x: x[asked.valid], archs), int(rungs.fidelity(asked)))

    with Progress(racing.evaluations, label="trials") as shown:

        def progress(standing: Standing) -> None:
            shown.update(standing.evaluations, standing.figures())
            log.scalars(standing.evaluations, "search/trials", standing.figures())

        result = search.run(
            racing,
            trials,
            stream(lab.seed, "trials"),
            batched=True,
            name="trials",
            **kept,
            before=None if calls is None else begin_rung,
            progress=progress,
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


def _row(archs: Arch, row: int) -> Arch:
    return jax.tree.map(lambda x: x[row], archs)
