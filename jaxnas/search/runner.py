"""Runs a search: asks, evaluates, tells; step by step with a history, or as one compiled program.

The history is a file from which the search resumes exactly. Both ways are the same search: the same key
gives the same architectures in the same order.
"""

import dataclasses
import inspect
import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxnas import files, processes
from jaxnas.search import bounds, history
from jaxnas.search.blas import one_thread
from jaxnas.search.state import State
from jaxnas.search.strategy import Strategy, as_told, check_key, score_shape
from jaxnas.space import Arch

_log = logging.getLogger(__name__)
TELLING = 20  # After so many failures and no success there is no use in going on.


@dataclasses.dataclass(frozen=True)
class Result:
    """What a search found.

    Attributes:
      arch: the best architecture; with several objectives the batch of the Pareto front.
      score: its score; with several objectives float32 [front, objectives].
      costs: its costs, {} if the strategy has no cost function or several objectives.
      state: the last state of the strategy.
      history: the lines of the history of this search, in order; see `history`.
      resumed: how many evaluations were taken from the history file.
    """

    arch: Arch
    score: Any
    costs: dict[str, int | float]
    state: State
    history: list[history.Line]
    resumed: int

    @property
    def failed(self) -> int:
        """How many evaluations failed: their score is NaN."""
        return int(self.state.skipped)


@dataclasses.dataclass(frozen=True)
class Standing:
    """How far a search has come.

    Attributes:
      evaluations: that are done.
      budget: of evaluations.
      best: the best score, of several objectives the largest number on the front; NaN while there is none.
      failed: how many of the evaluations raised, or gave no finite number.
    """

    evaluations: int
    budget: int
    best: float
    failed: int

    def __str__(self) -> str:
        failed = f", {self.failed:,} of which failed" if self.failed else ""
        best = "" if math.isnan(self.best) else f"; the best score is {self.best:.4g}"
        return f"{self.evaluations:,} of {self.budget:,} evaluations{failed}{best}"

    def figures(self) -> dict[str, float]:
        """What a line of progress shows beside the count."""
        return {"best": self.best} | ({"failed": self.failed} if self.failed else {})


def standing(strategy: Strategy, state: State) -> Standing:
    """How far the search of a state has come."""
    best = math.nan if _all_failed(state) else float(np.max(strategy.best(state)[1]))
    return Standing(int(state.size), strategy.evaluations, best, int(state.skipped))


def scan(strategy: Strategy, evaluate: Callable[..., Any], key: jax.Array) -> State:
    """A search as one traced loop, for jit, and for vmap over keys.

    A thousand searches at once are `jax.vmap(lambda key: search.scan(strategy, evaluate, key))(keys)`.

    Args:
      strategy: of this package, or one's own; see `Strategy`.
      evaluate: from a batch of architectures to scores, float [batch] (or [batch, M]), traceable: what
        it draws or computes by NumPy is the same in each call. Rows that are not valid are evaluated too, and
        ignored. Of a strategy with fidelities: from a batch and a fidelity, int32 [], to scores or
        (scores, seconds), float [batch] each.
      key: a typed key.

    Returns:
      The last state; its `codes`, `scores` [evaluations, ...] and `size` are the history, in order.

    Raises:
      TypeError: something else than a strategy, a function or a typed key.
      ValueError: bounds that no architecture keeps, or scores of another shape.
    """
    check_search(strategy, evaluate, key)
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


def check_search(strategy: Any, evaluate: Any, key: Any) -> None:
    """Checks what a search is made of.

    Raises:
      TypeError: something else than a strategy, a function and a typed key, or a function of more or fewer
        arguments than the strategy gives it.
    """
    check_strategy(strategy)
    if not callable(evaluate):
        raise TypeError(
            f"search: evaluate is {evaluate!r}, expected a function from a batch of architectures to scores."
        )
    _check_arguments(strategy, evaluate)
    check_key(key)


def _check_arguments(strategy: Strategy, evaluate: Callable[..., Any]) -> None:
    given = ("architectures",) if strategy.fidelities is None else ("architectures", "fidelity")
    if hasattr(evaluate, "__wrapped__"):  # It may take other arguments than it says.
        return
    try:
        signature = inspect.signature(evaluate)
    except ValueError:  # Some functions that are not written in Python have none.
        return
    try:
        signature.bind(*given)
    except TypeError:
        raise TypeError(
            f"search: {type(strategy).__name__} calls evaluate({', '.join(given)}), but what was given "
            f"takes {signature}."
        ) from None


def check_strategy(strategy: Any) -> None:
    """Checks that something is a strategy.

    Raises:
      TypeError: it is not.
    """
    if not isinstance(strategy, Strategy):
        what = strategy.__name__ if isinstance(strategy, type) else type(strategy).__name__
        what += " itself, not one of its instances," if isinstance(strategy, type) else ""
        raise TypeError(
            f"search: {what} is no strategy. A strategy is a frozen dataclass that inherits "
            "jaxnas.search.Strategy and has a method ask."
        )


def run(
    strategy: Strategy,
    evaluate: Callable[..., Any],
    key: jax.Array,
    *,
    evaluations: int | None = None,
    history_path: str | os.PathLike | None = None,
    name: str | None = None,
    about: Mapping[str, Any] | None = None,
    before: Callable[[State], None] | None = None,
    progress: Callable[[Standing], None] | None = None,
) -> Result:
    """Runs a search to its end, and returns what it found.

    Args:
      strategy: one of this package, or one's own; see `Strategy`.
      evaluate: from a batch of architectures (leading axis n) to scores, float [n] (or [n, M]);
        higher is better. It is called once for each generation; n is the strategy's batch, and less
        only at the end of a search or of a rung. Of a strategy with fidelities it takes the
        fidelity, an int, too, and may return (scores, seconds), float [n] each.
      key: a typed key; the same key, settings and scores give the same search.
      evaluations: the budget, instead of the strategy's own.
      history_path: a JSONL file with a line for each evaluation, appended to after each generation.
        If it holds generations of this search, they are not evaluated again: the search goes on as
        if it had never stopped. A generation that is not complete there is evaluated anew.
        Searches of other names may share the file, one after the other.
      name: of this search in the file; by default the strategy's.
      about: what else the scores depend on, by name, as digests of weights and data; kept in the first line
        of the history and compared.
      before: called before each generation that has to be evaluated, with the state that the strategy was
        asked with; as to begin elsewhere what it will ask for.
      progress: called after each generation with how far the search has come.

    Raises:
      TypeError: something else than a strategy, a function or a typed key.
      ValueError: bounds that no architecture keeps, scores of another shape, only failed evaluations
        (after 20, or at the end), or a history that is damaged or of another search (the message has
        what differs, and the file stays as it is).
      OSError: before the first evaluation, if the history cannot be written.
    """
    check_search(strategy, evaluate, key)
    if evaluations is not None:
        strategy = dataclasses.replace(strategy, evaluations=evaluations)
    check_cost(strategy)
    settings = history.settings_of(strategy, key) | files.plain(about or {})
    name = name or strategy.name
    recorded = [] if history_path is None else history.read(history_path, name)
    processes.wait("the history is read")  # before the first of several processes writes to it
    history.check_settings(recorded, settings, history_path)
    check_length(recorded, strategy.evaluations, history_path)
    state, lines, replaying, resumed = strategy.init(key), [], history_path is not None, 0
    while not strategy.finished(state):
        archs, asked = ask(strategy, state)
        rows = np.flatnonzero(np.asarray(asked.valid))
        if not len(rows):
            state = asked  # exhausted
            break
        old = recorded[len(lines) : len(lines) + len(rows) + 1]
        old = [line for line in old if line["generation"] == int(asked.generation)]
        known = replaying and len(old) == len(rows)
        if before is not None and not known:
            before(state)
        told = _recorded(strategy, old) if known else _evaluated(strategy, evaluate, asked, archs, rows)
        state = strategy.tell(asked, archs, *(_spread(x, rows, strategy.batch) for x in told))
        new = make_lines(strategy, name, settings, state, lines)
        if replaying:
            check_replay(old, new, len(recorded) > len(lines) + len(old), history_path)
        if known:
            resumed += len(new)
        elif history_path is not None and processes.is_first():
            if replaying:  # A killed process, or a smaller budget, left a part of this generation.
                history.cut(history_path, name, keep=len(lines))
            files.append_lines(history_path, new)
        replaying = replaying and known
        lines += new
        if len(lines) >= TELLING:
            check_scores(state, lines)
        if progress is not None:
            progress(standing(strategy, state))
    return make_result(strategy, state, lines, resumed)


def ask(strategy: Strategy, state: State) -> tuple[Arch, State]:
    """`strategy.ask`, with what may be a fit of a predictor by one thread of the BLAS."""
    with one_thread():
        return jax.block_until_ready(strategy.ask(state))


def _evaluated(
    strategy: Strategy, evaluate: Callable[..., Any], asked: State, archs: Arch, rows: np.ndarray
) -> tuple[np.ndarray, ...]:
    """What the evaluation says of some rows: scores, float32 [rows, ...], and seconds if it tells them."""
    archs = jax.tree.map(lambda x: x[rows], archs)
    shape = (len(rows), *score_shape(strategy))
    if strategy.fidelities is None:
        return (_checked(evaluate(archs), "", shape),)
    told = evaluate(archs, int(strategy.fidelity(asked)))
    if not isinstance(told, tuple):
        return (_checked(told, "", shape),)
    return _checked(told[0], "", shape), _checked(told[1], "seconds ", shape[:1])


def _checked(told: Any, what: str, shape: tuple[int, ...]) -> np.ndarray:
    """What an evaluation returned, as float32, if it has that shape."""
    told = np.asarray(told)
    if told.shape != shape or told.dtype.kind not in "fiu" and told.dtype != "bfloat16":
        raise ValueError(
            f"search: the evaluation returned {what}{told.dtype}{list(told.shape)} for "
            f"{shape[0]} architectures, expected float {list(shape)}."
        )
    return told.astype(np.float32)


def _recorded(strategy: Strategy, lines: list[history.Line]) -> tuple[np.ndarray, ...]:
    """What the evaluation said of recorded lines, as `_evaluated`."""
    scores = np.asarray([line["score"] for line in lines], np.float32)  # null becomes NaN
    if strategy.fidelities is None:
        return (scores,)
    return scores, np.asarray([line.get("seconds", 0.0) for line in lines], np.float32)


def _spread(told: np.ndarray, rows: np.ndarray, batch: int) -> np.ndarray:
    """What is known of some rows, as a whole batch."""
    whole = np.zeros((batch, *told.shape[1:]), np.float32)
    whole[rows] = told
    return whole


def make_lines(
    strategy: Strategy,
    name: str,
    settings: dict,
    state: State,
    before: list[history.Line],
    note: Mapping[str, Any] | None = None,
) -> list[history.Line]:
    """The lines of the history behind those that there are, made of the state, with a note in each."""
    told = {"score": state.scores, **strategy.columns(state)}
    columns = {column: np.asarray(values) for column, values in told.items()}
    codes, born = np.asarray(state.codes), np.asarray(state.born)
    lines = []
    for row in range(len(before), int(state.size)):
        arch = strategy.space.decode(codes[row])
        line = {
            "index": row,
            "strategy": name,
            "generation": int(born[row]),
            "architecture": strategy.space.to_dict(arch),
            **_costs(strategy, arch),
            **{column: values[row] for column, values in columns.items()},
            **(note or {}),
        }
        lines.append(line if row else line | {"settings": settings})
    return history.seal(lines, before)


def check_cost(strategy: Strategy) -> None:
    """Checks what the cost function returns, before anything is evaluated.

    Raises:
      TypeError: no dict of numbers by name.
    """
    _costs(strategy, strategy.space.smallest())


def _costs(strategy: Strategy, arch: Arch) -> dict[str, Any]:
    """The costs of one architecture as plain Python numbers."""
    if strategy.cost is None:
        return {}
    # Called with concrete arrays, since a cost may be more exact on them than under jit.
    return {name: np.asarray(x).item() for name, x in bounds.check_costs(strategy.cost(arch)).items()}


def _all_failed(state: State) -> bool:
    return int(state.skipped) == int(state.size)


def check_scores(state: State, lines: list[history.Line]) -> None:
    """Checks that some evaluation gave a number.

    Raises:
      ValueError: none did; the message has the first reason, where the history has one.
    """
    if _all_failed(state):
        reason = next((line["error"] for line in lines if "error" in line), None)
        raise ValueError(
            f"search: all {int(state.size)} evaluations so far failed: "
            + "they raised, or gave no finite number. "
            + ("" if reason is None else f"The first time: {reason}. ")
            + "Look at the evaluation (or at diverged weights), then start with a new history."
        )


def make_result(strategy: Strategy, state: State, lines: list[history.Line], resumed: int) -> Result:
    """What a search found, of its last state and the lines of its history."""
    check_scores(state, lines)
    if len(lines) < strategy.evaluations and bool(state.exhausted):
        _log.warning(
            "search: stopped after %d of %d evaluations: no other feasible architecture was found "
            "(the space has %d in all).",
            len(lines),
            strategy.evaluations,
            strategy.space.cardinality,
        )
    if int(state.skipped):
        _log.warning(
            "search: %d of %d evaluations failed: they raised, or gave no finite number.",
            int(state.skipped),
            len(lines),
        )
    arch, score = strategy.best(state)
    if strategy.objectives is not None:
        return Result(arch, np.asarray(score), {}, state, lines, resumed)
    return Result(arch, float(score), _costs(strategy, arch), state, lines, resumed)


def check_length(recorded: list[history.Line], evaluations: int, path: Any) -> None:
    """Checks that a history has no more evaluations than the budget.

    Raises:
      ValueError: it has more.
    """
    if len(recorded) > evaluations:
        raise ValueError(
            f"{path} holds {len(recorded)} evaluations of this search, more than "
            f"evaluations={evaluations}. Give at least {len(recorded)}."
        )


def check_replay(old: list[history.Line], new: list[history.Line], more: bool, path: Any) -> None:
    """Checks that the recorded lines of a generation are those that the search asked for.

    Args:
      old: the recorded lines of the generation, fewer than asked for if it was not complete.
      new: the lines as they are now.
      more: whether there are recorded lines behind those.
      path: of the history.

    Raises:
      ValueError: they differ, in more than the scores that are evaluated anew.
    """
    wrong = len(old) > len(new) or (len(old) < len(new) and more)
    fault = f"{len(old)} architectures, now {len(new)}" if wrong else None
    for line, expected in zip(old, new, strict=False):
        for name in {*line, *expected} - {"score", "seconds", "digest"}:
            if line.get(name) != expected.get(name):
                fault = f"{name} {line.get(name)}, now {expected.get(name)}"
        if fault:
            break
    if fault:
        raise ValueError(
            f"{path} is not the history of this search: in generation {new[0]['generation']}, from index "
            f"{new[0]['index']}, it recorded {fault}. Use the supernet, cost function and version that "
            "wrote it, or another file."
        )
