"""Runs a search whose evaluations are a user's slow function of one architecture, on parallel workers.

The strategy is asked for the next architecture as soon as a worker is free. What is asked depends only on the
key, the number of workers and the order of the scores, which is that of the history: so a search resumes.
"""

import concurrent.futures as futures_lib
import logging
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxnas.search import runner
from jaxnas.search.strategy import Strategy, begin_evaluation, end_evaluation
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
    history_path: str | os.PathLike | None = None,
    name: str | None = None,
    objective: str | None = None,
    progress: Callable[[runner.Standing], None] | None = None,
) -> runner.Result:
    """Runs a search on parallel workers to its end.

    An evaluation fails if it raises, takes too long, returns no finite number, or its worker dies. Its score
    is then null in the history, beside "error" with the reason, and the search continues; it ends if the
    first 20 fail.

    Args:
      strategy: one that is asked for one architecture at a time, with batch=1.
      evaluate: from the option values of one architecture, as `space.to_dict` gives them, to a number (higher
        is better), or to a dict of numbers of which `metric` is the score.
      key: a typed key; the same key, settings, scores and order of scores give the same search.
      workers: how many architectures are evaluated at a time. A search resumes with the same number only.
      executor: of `concurrent.futures`, `executors.Ray()`, or that of a Dask client, with at least as many
        workers. By default each worker is a process, replaced when it hangs or dies. On Ray an evaluation
        whose worker dies is run again. A worker of another executor that hangs is out of use, and a pool that
        breaks ends the search; its history is kept.
      timeout: seconds that an evaluation may take; None for no limit.
      metric: the score's name, where the evaluation returns a dict. The others are kept in the history.
      history_path: a JSONL file with a line for each evaluation, in the order in which they ended. The search
        resumes from it.
      name, objective, progress: see `search.run`.

    Raises:
      ValueError: a strategy that asks for generations, workers that cannot import `evaluate`, bounds that no
        architecture keeps, only failed evaluations, or a history that is damaged or of another search.
      RuntimeError: an executor that broke, or whose workers are all stuck.
      OSError: before the first evaluation, if the history cannot be written.
    """
    _check(strategy, workers, executor, timeout)
    runner.check_search(strategy, evaluate, key, "values")
    history = runner.open_history(strategy, evaluate, key, history_path, name, objective, workers=workers)
    state = strategy.init(key)
    # The architectures that are being evaluated, and their option values, by the number of their question.
    running: dict[int, tuple[Any, dict[str, Any]]] = {}
    asked, submitted = 0, set[int]()
    with Workers(evaluate, metric, workers, executor, timeout) as crew:
        while True:
            while len(running) < workers and asked < strategy.evaluations and not bool(state.exhausted):
                archs, state = runner.ask(strategy, state)
                if not bool(state.valid[0]):
                    break
                state = begin_evaluation(strategy, state, archs)
                running[asked] = archs, strategy.space.to_dicts(archs)[0]
                asked += 1
            if not running:
                break
            old = history.next(len(history.lines))
            if old:
                number, score, note = _recorded(old[0], running, history_path)
            else:
                for number in running.keys() - submitted:  # some may have begun before the search was stopped
                    crew.submit(number, running[number][1])
                submitted |= running.keys()
                number, score, note = crew.next()
                if "error" in note:
                    _log.warning("search: evaluation %d failed: %s", len(history.lines), note["error"])
            state = end_evaluation(strategy, state, running.pop(number)[0], np.full((1,), score, np.float32))
            runner.record(strategy, state, history, progress, note)
    return runner.make_result(strategy, state, history)


def _check(strategy: Any, workers: Any, executor: Any, timeout: Any) -> None:
    runner.check_strategy(strategy)
    if strategy.batch != 1 or strategy.fidelities is not None or strategy.objectives is not None:
        raise ValueError(
            f"search: {type(strategy).__name__} asks for batches of {strategy.batch}, or for all scores of a "
            "rung. RandomSearch, LocalSearch, RegularizedEvolution, PredictorGuided and Reinforce run in "
            "parallel, with batch=1; for the others call search.run(..., batched=True) with an evaluation "
            "that spreads its batch over workers itself."
        )
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(f"search: workers is {workers!r}, expected an int of at least 1.")
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0
    if timeout is not None and not number:
        raise ValueError(f"search: timeout is {timeout!r}, expected seconds above 0, or None for no limit.")
    if executor is not None and not isinstance(executor, futures_lib.Executor):
        raise TypeError(
            f"search: executor is a {type(executor).__name__}, expected a concurrent.futures.Executor. A "
            "client of Dask makes one by client.get_executor()."
        )


def _recorded(line: dict[str, Any], running: dict[int, Any], path: Any) -> tuple[int, float, dict[str, Any]]:
    """The number of the question that a recorded line answers, and the answer."""
    note = {name: line[name] for name in ("error", "metrics") if name in line}
    score = float("nan") if line["score"] is None else line["score"]
    for number, (_, values) in running.items():
        if values == line["architecture"]:
            return number, score, note
    raise ValueError(
        f"{path} is not the history of this search: at index {line['index']} it recorded "
        f"{line['architecture']}, which is not asked for now. Use the cost function and version that wrote "
        "it, or another file."
    )
