"""Runs a search: asks, evaluates, tells, records; step by step, or as one compiled program.

`run` and `run_parallel` call a plain Python function of the option values of one architecture, such as
`{"width": 32}`; `scan`, and `run` with `batched=True`, one of a batch of architectures, arrays of option
indices with a leading axis. The same key gives the same architectures in the same order.
"""

import dataclasses
import inspect
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxnas import display, files
from jaxnas.checks import check_key
from jaxnas.search import bounds
from jaxnas.search.blas import one_thread
from jaxnas.search.history import History, Line, digest_of, settings_of
from jaxnas.search.proposals import listed
from jaxnas.search.strategy import State, Strategy, as_told, score_shape
from jaxnas.space import Arch

_log = logging.getLogger(__name__)
_HOPELESS = 20  # A search ends after so many failures without a success.


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a search."""

    arch: Arch  # the best architecture; with several objectives the batch of the Pareto front
    score: Any  # its score; with several objectives float32 [front, objectives]
    costs: dict[str, int | float]  # its costs; {} without a cost function, or with several objectives
    state: State  # the last one
    history: list[Line]  # the lines of the history of this search, in order; see `history`
    resumed: int  # how many evaluations were taken from the history file

    @property
    def failed(self) -> int:
        """How many evaluations failed: their score is NaN."""
        return int(self.state.skipped)

    def to_pandas(self) -> Any:
        """The evaluations as a pandas.DataFrame, in order: scores, costs and architectures."""
        return display.frame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        hidden = ("digest", "settings", "strategy")
        return [{name: x for name, x in line.items() if name not in hidden} for line in self.history]

    def _repr_html_(self) -> str:
        def score(row: Mapping[str, Any]) -> float:  # None where the evaluation failed
            return float(np.nan_to_num(np.max(np.asarray(row["score"], np.float32)), nan=-np.inf))

        best = sorted(self._rows(), key=score, reverse=True)
        return display.table(best, f"{len(self.history):,} evaluations, best first", most=10)


@dataclasses.dataclass(frozen=True)
class Standing:
    """The progress of a search."""

    evaluations: int  # done so far
    budget: int  # of evaluations
    best: float  # score, of several objectives the largest number on the front; NaN while there is none
    failed: int  # how many of the evaluations raised, or gave no finite number

    def __str__(self) -> str:
        failed = f", {self.failed:,} of which failed" if self.failed else ""
        best = "" if math.isnan(self.best) else f"; the best score is {self.best:.4g}"
        return f"{self.evaluations:,} of {self.budget:,} evaluations{failed}{best}"

    def figures(self) -> dict[str, float]:
        """The figures of a line of progress."""
        return {"best": self.best} | ({"failed": self.failed} if self.failed else {})


def run(
    strategy: Strategy,
    evaluate: Callable[..., Any],
    key: jax.Array,
    *,
    batched: bool = False,
    history_path: str | os.PathLike | None = None,
    name: str | None = None,
    objective: str | Mapping[str, Any] | None = None,
    before: Callable[[State], None] | None = None,
    progress: Callable[[Standing], None] | None = None,
) -> Result:
    """Runs a search to its end.

    Args:
      strategy: see `Strategy`.
      evaluate: from the option values of one architecture, as `space.to_dict` gives them, to its score, a
        number (or M of them); higher is better. Of a strategy with fidelities it takes the fidelity, an int,
        too, and may return (score, seconds).
      key: a typed key; the same key, settings and scores give the same search.
      batched: whether `evaluate` takes a batch of architectures instead, arrays of option indices with a
        leading axis n, and returns scores, float [n] (or [n, M]), or (scores, seconds), float [n] each; n is
        the strategy's batch, and less only at the end of a search or of a rung.
      history_path: a JSONL file with a line for each evaluation, appended to after each generation, from
        which the search resumes. Searches of other names may share it, one after the other.
      name: of this search in the file; by default the strategy's.
      objective: a version, or a mapping of all that the scores depend on, such as digests of weights and
        data, to compare with the history. None for a digest of the function's code and constants; what other
        modules do and what arrays hold is in no digest.
      before: called with the state before each generation that has to be evaluated.
      progress: called after each generation.

    Raises:
      ValueError: bounds that no architecture keeps, only failed evaluations (after 20, or at the end), or a
        history that is damaged or of another search, which stays as it is.
      OSError: before the first evaluation, if the history cannot be written.

    Example:
      >>> strategy = search.RandomSearch(Space(width=Choice(1, 2, 3)), evaluations=3, batch=3)
      >>> found = search.run(strategy, lambda values: float(values["width"]), jax.random.key(0))
      >>> strategy.space.to_dict(found.arch), float(found.score)
      ({'width': 3}, 3.0)
    """
    check_search(strategy, evaluate, key, "architectures" if batched else "values")
    history = open_history(strategy, evaluate, key, history_path, name, objective)
    state = strategy.init(key)
    while not strategy.finished(state):
        archs, asked = ask(strategy, state)
        rows = np.flatnonzero(np.asarray(asked.valid))
        if not len(rows):
            state = asked  # exhausted
            break
        told = _recorded(strategy, history.next(int(asked.generation)), len(rows))
        if told is None:
            if before is not None:
                before(state)
            given = jax.tree.map(lambda x, rows=rows: x[rows], archs)
            told = _evaluated(strategy, evaluate, asked, given, batched)
        whole = [np.zeros((strategy.batch, *x.shape[1:]), np.float32) for x in told]
        for all_rows, x in zip(whole, told, strict=True):
            all_rows[rows] = x
        state = strategy.tell(asked, archs, *whole)
        record(strategy, state, history, progress)
    return make_result(strategy, state, history)


def scan(strategy: Strategy, evaluate: Callable[..., Any], key: jax.Array) -> State:
    """Runs a search as one traced loop, for jit, and for vmap over keys.

    A thousand searches at once are `jax.vmap(lambda key: search.scan(strategy, evaluate, key))(keys)`.

    Args:
      strategy: see `Strategy`.
      evaluate: from a batch of architectures to scores, float [batch] (or [batch, M]), traceable. Rows that
        are not valid are evaluated too, and ignored. Of a strategy with fidelities: from a batch and a
        fidelity, int32 [], to scores or (scores, seconds), float [batch] each.

    Returns:
      The last state; its `codes`, `scores` [evaluations, ...] and `size` are the history, in order.

    Example:
      >>> strategy = search.RandomSearch(Space(width=Choice(1, 2, 3)), evaluations=3, batch=3)
      >>> score = lambda archs: archs["width"].astype("float32")  # of a batch
      >>> many = jax.vmap(lambda key: search.scan(strategy, score, key))
      >>> keys = jax.random.split(jax.random.key(0), 1000)
      >>> jax.eval_shape(many, keys).scores.shape  # `jax.jit(many)(keys)` runs a thousand searches
      (1000, 3)
    """
    check_search(strategy, evaluate, key, "architectures")
    shape = (strategy.batch, *score_shape(strategy))

    def turn(state: State) -> State:
        archs, asked = strategy.ask(state)
        if strategy.fidelities is None:
            return strategy.tell(asked, archs, as_told("scores", evaluate(archs), shape))
        told = evaluate(archs, strategy.fidelity(asked))
        scores, *seconds = told if isinstance(told, tuple) else (told,)
        return strategy.tell(asked, archs, as_told("scores", scores, shape), *seconds)

    if strategy.fidelities is not None:
        # How many batches there are depends on the scores and the seconds.
        return jax.lax.while_loop(lambda s: ~strategy.finished(s), turn, strategy.init(key))
    length = -(-strategy.evaluations // strategy.batch)
    return jax.lax.scan(lambda state, _: (turn(state), None), strategy.init(key), length=length)[0]


# ---- The parts of `run`, which `run_parallel` shares.


def check_search(strategy: Any, evaluate: Any, key: Any, given: str) -> None:
    """Checks a strategy, a key, and a function of "values" or of "architectures"."""
    check_strategy(strategy)
    if not callable(evaluate):
        raise TypeError(f"search: evaluate is {evaluate!r}, expected a function of {given}.")
    check_key("search", key)
    arguments = (given,) if strategy.fidelities is None else (given, "fidelity")
    try:
        # What a decorator wraps may take other arguments than the decorated function.
        inspect.signature(evaluate, follow_wrapped=False).bind(*arguments)
    except ValueError:  # Some functions that are not written in Python have no signature.
        return
    except TypeError as error:
        raise TypeError(
            f"search: {type(strategy).__name__} calls evaluate({', '.join(arguments)}): {error}."
        ) from None


def check_strategy(strategy: Any) -> None:
    """Checks that something is a strategy; raises TypeError."""
    if not isinstance(strategy, Strategy):
        raise TypeError(
            f"search: {strategy!r} is no strategy: an instance of a frozen dataclass that inherits "
            "jaxnas.search.Strategy and has a method ask."
        )


def open_history(
    strategy: Strategy,
    evaluate: Callable[..., Any],
    key: jax.Array,
    path: str | os.PathLike | None,
    name: str | None,
    objective: str | Mapping[str, Any] | None,
    **settings: Any,
) -> History:
    """The history of a search with what tells it from others; see `run`."""
    _costs(strategy, strategy.space.smallest())  # raises before anything is evaluated
    told = objective if isinstance(objective, Mapping) else {"objective": objective or digest_of(evaluate)}
    settings = settings_of(strategy, key) | files.plain(told) | settings
    return History(path, name or strategy.name, settings, strategy.evaluations)


def ask(strategy: Strategy, state: State) -> tuple[Arch, State]:
    """`strategy.ask`, with what may be a fit of a predictor by one thread of the BLAS."""
    with one_thread():
        return jax.block_until_ready(strategy.ask(state))


def _recorded(strategy: Strategy, lines: Sequence[Line], count: int) -> tuple[np.ndarray, ...] | None:
    """The results of `_evaluated` from the recorded lines of a generation; None if it is incomplete."""
    if len(lines) != count:
        return None
    scores = np.asarray([line["score"] for line in lines], np.float32)  # null becomes NaN
    if strategy.fidelities is None:
        return (scores,)
    return scores, np.asarray([line.get("seconds", 0.0) for line in lines], np.float32)


def _evaluated(
    strategy: Strategy, evaluate: Callable[..., Any], asked: State, archs: Arch, batched: bool
) -> tuple[np.ndarray, ...]:
    """The scores of n architectures, float32 [n, ...], and their seconds, if there are any."""
    given = [archs] if batched else strategy.space.to_dicts(archs)
    lead = jax.tree.leaves(archs)[0].shape[:1] if batched else ()
    shapes, join = (lead + score_shape(strategy), lead), np.concatenate if batched else np.stack
    fidelity = () if strategy.fidelities is None else (int(strategy.fidelity(asked)),)
    columns = []
    for one in given:
        told = evaluate(one, *fidelity)
        pair = told if fidelity and isinstance(told, tuple) else (told,)
        columns.append([_checked(x, shape) for x, shape in zip(pair, shapes, strict=False)])
    return tuple(join(column) for column in zip(*columns, strict=True))


def _checked(told: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The returned scores or seconds as float32, if it has that shape."""
    try:
        array = np.asarray(told)
    except (TypeError, ValueError):  # rows of different lengths
        array = np.asarray(None)
    if array.shape != shape or array.dtype.kind not in "fiu" and array.dtype != "bfloat16":
        raise ValueError(
            f"search: the evaluation returned {array.dtype}{list(array.shape)}, expected float {list(shape)}"
            + (f" for {shape[0]} architectures." if shape else ": a number.")
        )
    return array.astype(np.float32)


def record(
    strategy: Strategy,
    state: State,
    history: History,
    progress: Callable[[Standing], None] | None,
    note: Mapping[str, Any] | None = None,
) -> None:
    """Adds to the history what the state has beyond it, each line with a note, and reports the progress."""
    told = {"score": state.scores, **strategy.columns(state)}
    columns = {column: np.asarray(values) for column, values in told.items()}
    born, first, space = np.asarray(state.born), len(history.lines), strategy.space
    lines = []
    for row, code in enumerate(np.asarray(state.codes)[first : int(state.size)], start=first):
        arch = space.decode(code)
        made = {"index": row, "strategy": history.name, "generation": int(born[row])}
        made |= {"architecture": space.to_dict(arch), **_costs(strategy, arch)}
        lines.append(made | {column: values[row] for column, values in columns.items()} | {**(note or {})})
    history.add(lines)
    if len(history.lines) >= _HOPELESS:
        _check_scores(state, history)
    if progress is not None:
        done, failed = int(state.size), int(state.skipped)
        best = math.nan if done == failed else float(np.max(strategy.best(state)[1]))
        progress(Standing(done, strategy.evaluations, best, failed))


def _costs(strategy: Strategy, arch: Arch) -> dict[str, Any]:
    """The costs of one architecture as plain Python numbers."""
    if strategy.cost is None:
        return {}
    # Called with concrete arrays, since a cost may be more exact on them than under jit.
    return {name: np.asarray(x).item() for name, x in bounds.check_costs(strategy.cost(arch)).items()}


def _check_scores(state: State, history: History) -> None:
    """Raises ValueError if all evaluations failed, with the first reason that the history has."""
    if int(state.skipped) == int(state.size):
        reason = next((f"The first: {line['error']}. " for line in history.lines if "error" in line), "")
        raise ValueError(
            f"search: all {int(state.size)} evaluations failed: they raised, or gave no finite number. "
            f"{reason}Look at the evaluation (or at diverged weights), then start with a new history."
        )


def make_result(strategy: Strategy, state: State, history: History) -> Result:
    """The result of a search, from its last state and its history."""
    _check_scores(state, history)
    count, failed = len(history.lines), int(state.skipped)
    if count < strategy.evaluations and bool(state.exhausted):
        # Only a space that can be listed is known to have no other one.
        level, what = (logging.WARNING, "found") if listed(strategy) is None else (logging.INFO, "left")
        ending = "search: ends after %d of %d evaluations: no other feasible architecture is %s."
        _log.log(level, ending, count, strategy.evaluations, what)
    if failed:
        _log.warning("search: %d of %d evaluations raised, or gave no finite number.", failed, count)
    arch, score = strategy.best(state)
    one = strategy.objectives is None
    score, costs = (float(score), _costs(strategy, arch)) if one else (np.asarray(score), {})
    return Result(arch, score, costs, state, history.lines, history.resumed)
