"""Runs a search whose evaluations are a user's slow function of one architecture, on parallel workers.

The strategy is asked for the next architecture as soon as a worker is free. What is asked depends on the
key, the number of workers and the order in which the scores came, and the history is in that order: so a
search goes on from it exactly.
"""

import concurrent.futures as futures_lib
import dataclasses
import logging
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxnas import files
from jaxnas.search import history, runner
from jaxnas.search.objective import digest_of
from jaxnas.search.pending import begin_evaluation, check_one_at_a_time, end_evaluation
from jaxnas.search.strategy import Strategy
from jaxnas.search.workers import Workers

_log = logging.getLogger(__name__)


def run_parallel(
    strategy: Strategy,
    evaluate: Callable[[dict[str, Any]], Any],
    key: jax.Array,
    *,
    workers: int = 1,
    executor: futures_lib.Executor | None = None,
    timeout: float | None = None,
    metric: str | None = None,
    evaluations: int | None = None,
    history_path: str | os.PathLike | None = None,
    name: str | None = None,
    objective: str | None = None,
    progress: Callable[[runner.Standing], None] | None = None,
) -> runner.Result:
    """Runs a search on parallel workers to its end, and returns what it found.

    An evaluation fails if it raises (SystemExit too), takes too long, returns no finite number, or its
    worker dies. Its score is then null in the history, beside "error" with the reason, and the search goes
    on. Where all fail it ends after the first 20, or when a smaller budget is spent; `progress` counts
    the failures meanwhile, and each is logged as a warning.

    Args:
      strategy: one that is asked for one architecture at a time, with batch=1.
      evaluate: from the option values of one architecture, as `space.to_dict` gives them, to a number
        (higher is better), or to a dict of numbers of which `metric` is the score.
      key: a typed key; the same key, settings, scores and order of scores give the same search.
      workers: how many architectures are evaluated at a time. It decides what is asked, so that a
        search goes on with the same number only.
      executor: of `concurrent.futures`, `executors.Ray()`, or that of a Dask client, with at least as many
        workers. By default each worker is a process, which is replaced when it hangs or dies. On Ray an
        evaluation whose worker dies is run again. A worker of another executor that hangs is out of use,
        and a pool that breaks ends the search; its history is kept.
      timeout: seconds that an evaluation may take; None for no limit.
      metric: the score's name, where the evaluation returns a dict. The others are kept in the history.
      evaluations: the budget, instead of the strategy's own.
      history_path: a JSONL file with a line for each evaluation, in the order in which they ended. If it
        holds evaluations of this search, they are not repeated.
      name: of this search in the file; by default the strategy's.
      objective: what tells this objective from others; see `search.run`.
      progress: called after each evaluation with how far the search has come.

    Raises:
      TypeError: something else than a strategy, a function or a typed key.
      ValueError: a strategy that asks for generations, workers that cannot import `evaluate`, bounds that
        no architecture keeps, only failed evaluations (after 20, or at the end; the message has the first
        reason), or a history that is damaged or of another search.
      RuntimeError: an executor that broke, or whose workers are all stuck.
      OSError: before the first evaluation, if the history cannot be written.
    """
    runner.check_strategy(strategy)
    check_one_at_a_time(strategy)
    runner.check_search(strategy, evaluate, key, "values")
    runner.check_cost(strategy)
    _check_workers(workers, timeout)
    if evaluations is not None:
        strategy = dataclasses.replace(strategy, evaluations=evaluations)
    name = name or strategy.name
    told = {"objective": objective or digest_of(evaluate), "workers": workers}
    settings = history.settings_of(strategy, key) | told
    recorded = [] if history_path is None else history.read(history_path, name)
    history.check_settings(recorded, settings, history_path)
    runner.check_length(recorded, strategy.evaluations, history_path)

    space, state, lines = strategy.space, strategy.init(key), []
    # The architectures that are being evaluated, by the number of their question.
    running: dict[int, Any] = {}
    asked, submitted, crew = 0, set(), None
    try:
        while True:
            while len(running) < workers and asked < strategy.evaluations and not bool(state.exhausted):
                archs, state = runner.ask(strategy, state)
                if not bool(state.valid[0]):
                    break
                state = begin_evaluation(strategy, state, archs)
                running[asked] = archs
                asked += 1
            if not running:
                break
            if len(lines) < len(recorded):
                line = recorded[len(lines)]
                number, note = _recorded(space, running, line, history_path), _note(line)
                score = float("nan") if line["score"] is None else line["score"]
            else:
                if crew is None:
                    crew = Workers(evaluate, workers, executor, timeout)
                for number in running.keys() - submitted:
                    crew.submit(number, _plain(space, running[number]))
                    submitted.add(number)
                outcome = crew.next()
                number = outcome.label
                score, note = _score(outcome.returned, metric, outcome.error)
            state = end_evaluation(strategy, state, running.pop(number), np.full((1,), score, np.float32))
            new = runner.make_lines(strategy, name, settings, state, lines, note)
            if len(lines) < len(recorded):
                runner.check_replay(recorded[len(lines) : len(lines) + 1], new, False, history_path)
            else:
                if "error" in note:
                    _log.warning("search: evaluation %d failed: %s", len(lines), note["error"])
                if history_path is not None:
                    files.append_lines(history_path, new)
            lines += new
            if len(lines) >= runner.TELLING:
                runner.check_scores(state, lines)
            if progress is not None:
                progress(runner.standing(strategy, state))
    finally:
        if crew is not None:
            crew.close()
    return runner.make_result(strategy, state, lines, len(recorded))


def _check_workers(workers: Any, timeout: Any) -> None:
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(f"search: workers is {workers!r}, expected an int of at least 1.")
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0
    if timeout is not None and not number:
        raise ValueError(f"search: timeout is {timeout!r}, expected seconds above 0, or None for no limit.")


def _plain(space: Any, archs: Any) -> dict[str, Any]:
    return space.to_dict(jax.tree.map(lambda x: x[0], archs))


def _note(line: history.Line) -> dict[str, Any]:
    return {name: line[name] for name in ("error", "metrics") if name in line}


def _recorded(space: Any, running: dict[int, Any], line: history.Line, path: Any) -> int:
    """The number of the question that a recorded line answers."""
    for number, archs in running.items():
        if _plain(space, archs) == line["architecture"]:
            return number
    raise ValueError(
        f"{path} is not the history of this search: at index {line['index']} it recorded "
        f"{line['architecture']}, which is not asked for now. Use the cost function and version that wrote "
        "it, or another file."
    )


def _score(returned: Any, metric: str | None, error: str | None) -> tuple[float, dict[str, Any]]:
    """The score of an evaluation, NaN if it failed, and what else the history says of it."""
    if error is not None:
        return float("nan"), {"error": error}
    note: dict[str, Any] = {}
    value = returned
    if isinstance(returned, dict):
        if metric not in returned:
            names = list(map(repr, returned))
            told = f"the evaluation returned a dict of {', '.join(names) or 'nothing'}; metric is {metric!r}"
            told += f", expected one of these: give metric={names[0]}" if names else ""
            return float("nan"), {"error": told}
        value = returned[metric]
        others = {str(key): _number(x) for key, x in returned.items()}
        note["metrics"] = {key: x for key, x in others.items() if x is not None}
    number = _number(value)
    if number is None or not np.isfinite(np.float32(number)):
        text = repr(value)
        text = text if len(text) < 100 else text[:97] + "..."
        return float("nan"), {**note, "error": f"the evaluation returned {text}, expected a finite number"}
    return number, note


def _number(value: Any) -> float | None:
    """A number, or an array of shape () that holds one, as a float; None for anything else."""
    if isinstance(value, bool | str | bytes) or value is None:
        return None
    try:
        array = np.asarray(value)
        return float(array) if array.shape == () and array.dtype.kind in "fiu" else None
    except (TypeError, ValueError, RuntimeError):  # By arrays of other libraries.
        return None
