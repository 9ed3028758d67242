"""Runs a search: asks, evaluates, tells; as one compiled scan, or step by step with a history.

Step by step the history is a file from which the search resumes exactly. Both ways are the same
search: the same key gives the same architectures in the same order.
"""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.search import history as history_lib
from jaxnas.search import state as state_lib
from jaxnas.search.state import State
from jaxnas.space import Arch

_log = logging.getLogger(__name__)
_TELLING = 20  # So many failures and no success: there is no use in going on.


@dataclasses.dataclass(frozen=True)
class Result:
    """What a search found.

    Attributes:
      arch: the best architecture; with several objectives the batch of the Pareto front.
      score: its score; with several objectives float32 [front, objectives].
      costs: its costs, {} if the strategy has no cost function or several objectives.
      state: the last state of the strategy.
      history: the lines of the history of this search, in order.
      resumed: how many evaluations were taken from the history file.
    """

    arch: Arch
    score: Any
    costs: dict[str, int | float]
    state: State
    history: list[dict[str, Any]]
    resumed: int


def scan(strategy: Any, evaluate: Callable[..., Any], key: jax.Array) -> Any:
    """Returns the last state of a search that runs as one `lax.scan`; for jit, and vmap over keys.

    Args:
      strategy: any of this package, or another; see `run`.
      evaluate: from a batch of architectures to scores, float [batch] (or [batch, M]), traceable.
        Rows that are not valid are evaluated too, and ignored.
        Of a strategy with fidelities (one with a method `fidelity`, as `Hyperband`): from a batch and
        a fidelity, int32 [], to scores or (scores, seconds), float32 [batch] each.
      key: a typed key.

    The state's `codes`, `scores` [evaluations, ...] and `size` are the history, in order. A thousand
    searches at once are `jax.vmap(lambda key: search.scan(strategy, evaluate, key))(keys)`.

    Raises TypeError for what is no strategy, and ValueError for bounds that no architecture keeps.
    """
    check_strategy(strategy)
    if _has_fidelities(strategy):
        # How many batches there are depends on the scores and the seconds.
        def turn(state):
            archs, asked = strategy.ask(state)
            told = evaluate(archs, strategy.fidelity(asked))
            return strategy.tell(asked, archs, *(told if isinstance(told, tuple) else (told,)))

        return jax.lax.while_loop(lambda s: ~strategy.finished(s), turn, strategy.init(key))

    def step(state, _):
        archs, asked = strategy.ask(state)
        return strategy.tell(asked, archs, evaluate(archs)), None

    length = -(-strategy.evaluations // state_lib.batch_size(strategy))
    return jax.lax.scan(step, strategy.init(key), length=length)[0]


def check_strategy(strategy: Any) -> None:
    """Raises TypeError where a strategy lacks what `run` and `scan` read of it; see `run`."""
    needed = ["space", "cost", "bounds", "evaluations", "init", "ask", "tell", "finished", "best"]
    missing = [name for name in needed if not hasattr(strategy, name)]
    if not (hasattr(strategy, "batch") or hasattr(strategy, "population")):
        missing.append("batch")
    if missing or not dataclasses.is_dataclass(strategy):
        lacks = f"lacks {', '.join(missing)}" if missing else "is not a dataclass"
        raise TypeError(
            f"search: {type(strategy).__name__} {lacks}. A strategy is a frozen dataclass "
            f"with {', '.join(needed)} and batch (or population); its state has the fields "
            "of jaxnas.search.state.State."
        )


def _has_fidelities(strategy: Any) -> bool:
    """Returns whether a strategy asks for evaluations of several fidelities.

    It has a method `fidelity`, its `tell` takes seconds, and its state's memory holds `fidelity` and
    `seconds` [H] of each evaluation.
    """
    return hasattr(strategy, "fidelity")


def _traceable(strategy: Any, evaluate: Callable[..., Any]) -> bool:
    """Returns whether an evaluation can be a part of a compiled program."""
    one = jax.eval_shape(
        lambda: strategy.space.decode(
            jnp.zeros((state_lib.batch_size(strategy), strategy.space.length), jnp.int32)
        )
    )
    fidelity = (jax.ShapeDtypeStruct((), jnp.int32),) if _has_fidelities(strategy) else ()
    try:
        told = jax.eval_shape(evaluate, one, *fidelity)
    except Exception:  # Whatever it says to arrays without values, on the host it is called with arrays.
        return False
    expected = (state_lib.batch_size(strategy), *state_lib.objectives(strategy))
    parts = told if fidelity and isinstance(told, tuple) and len(told) == 2 else (told,)
    return all(
        isinstance(x, jax.ShapeDtypeStruct) and (x.shape, x.dtype) == (expected, jnp.float32) for x in parts
    )


def run(
    strategy: Any,
    evaluate: Callable[..., Any],
    key: jax.Array,
    *,
    evaluations: int | None = None,
    history_path: str | os.PathLike | None = None,
    name: str | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Result:
    """Runs a search to its end, and returns what it found.

    Where `evaluate` can be traced, and neither a history file nor progress is asked for, the search
    is one compiled program (`scan`); otherwise a loop on the host. The course is the same.

    Args:
      strategy: one of this package, or a frozen dataclass with the same fields (`space`, `cost`,
        `bounds`, `evaluations`, `batch` or `population`) and methods (`init`, `ask`, `tell`,
        `finished`, `best`), whose state has the fields of `State`.
      evaluate: from a batch of architectures (leading axis n) to scores, float [n]; higher is
        better. On the host it is called once per generation; n is the population, and less only
        at the end. Of a strategy with fidelities also from a fidelity; see `scan`.
      key: a typed key; the same key, settings and scores give the same search.
      evaluations: the budget, instead of the strategy's own.
      history_path: a JSONL file with a line for each evaluation, written after each generation.
        If it holds generations of this search, they are not evaluated again: the search goes on as
        if it had never stopped. A generation that is not complete there is evaluated anew.
        Searches of other names share the file.
      name: of this search in the file; by default "random", "evolution", or the strategy's class.
      progress: called after each generation with evaluations done, the budget and the best score
        (NaN while there is none).

    Raises TypeError for what is no strategy; ValueError for bounds that no architecture keeps, scores
    of another shape, only NaN scores (after 20, or at the end), or a history of another search (naming
    what differs, and leaving the file as it is); OSError, before the first evaluation, if the history
    can't be written.
    """
    check_strategy(strategy)
    if evaluations is not None:
        strategy = dataclasses.replace(strategy, evaluations=evaluations)
    names = {"RandomSearch": "random", "Evolution": "evolution"}
    name = name or names.get(type(strategy).__name__, type(strategy).__name__)
    settings = state_lib.as_text(strategy, key)
    everything = history_lib.read(history_path) if history_path is not None else []
    others = [line for line in everything if line["strategy"] != name]
    recorded = [line for line in everything if line["strategy"] == name]
    _check_recorded(recorded, settings, strategy.evaluations, history_path)
    if history_path is not None:
        history_lib.check_writable(history_path)
    elif progress is None and _traceable(strategy, evaluate):
        # Compiled anew in each call: what the evaluation closes over may have changed.
        state = jax.jit(functools.partial(scan, strategy, evaluate))(key)
        _check_scores(state)
        return _result(strategy, state, _lines(strategy, name, settings, state), 0)

    state, lines, resumed = strategy.init(key), [], 0
    while not strategy.finished(state):
        generation = int(state.generation)
        archs, asked = strategy.ask(state)
        rows = np.flatnonzero(np.asarray(asked.valid))
        if not len(rows):
            state = asked  # exhausted
            break
        new = _describe(strategy, name, archs, rows, len(lines), generation)
        fidelity = (strategy.fidelity(asked),) if _has_fidelities(strategy) else ()
        for line in new if fidelity else ():
            line["fidelity"] = int(fidelity[0])
        old = [line for line in recorded if line["generation"] == generation]
        _check_replay(strategy.space, old, new, history_path)
        shape = (*asked.valid.shape, *state_lib.objectives(strategy))
        scores = np.full(shape, np.nan, np.float32)
        if len(old) == len(new):
            scores[rows] = [history_lib.score_from_json(line["score"]) for line in old]
            took = np.asarray([line.get("seconds", 0.0) for line in old], np.float32)
            resumed += len(old)
        else:
            recorded = [line for line in recorded if line["generation"] < generation]
            scores[rows], took = _told(evaluate, archs, rows, shape[1:], fidelity)
        seconds = ()
        if fidelity and took is not None:
            seconds = (np.zeros(shape, np.float32),)
            seconds[0][rows] = took
        for at, (line, row) in enumerate(zip(new, rows, strict=True)):
            line["score"] = history_lib.score_to_json(scores[row])
            if fidelity:
                # What is no number counts as 0, as for the strategy.
                usable = took is not None and np.isfinite(took[at])
                line["seconds"] = float(took[at]) if usable else 0.0
        if not lines:
            new[0]["settings"] = settings
        lines += new
        state = strategy.tell(asked, archs, scores, *seconds)
        if history_path is not None and len(old) < len(new):
            history_lib.write(history_path, others + lines)
        if len(lines) >= _TELLING:
            _check_scores(state)
        if progress is not None:
            failed = _all_failed(state)
            best = float("nan") if failed else float(np.max(strategy.best(state)[1]))
            progress(len(lines), strategy.evaluations, best)
    _check_scores(state)
    return _result(strategy, state, lines, resumed)


def _all_failed(state: Any) -> bool:
    return int(state.skipped) == int(state.size)


def _check_scores(state: Any) -> None:
    if _all_failed(state):
        raise ValueError(
            f"search: all {int(state.size)} scores so far are NaN or infinite; the "
            "evaluation fails for every architecture. Look at the evaluation (or at "
            "diverged weights), then start with a new history."
        )


def _lines(strategy: Any, name: str, settings: dict, state: Any) -> list[dict[str, Any]]:
    """Returns the history of a search that ran as one program, as the loop would have written it."""
    size = int(state.size)
    born, scores = np.asarray(state.born)[:size], np.asarray(state.scores)[:size]
    archs = strategy.space.decode(state.codes[:size])
    lines = []
    for generation in np.unique(born):
        rows = np.flatnonzero(born == generation)
        lines += _describe(strategy, name, archs, rows, len(lines), int(generation))
    for row, line in enumerate(lines):
        if _has_fidelities(strategy):
            line["fidelity"] = int(state.memory.fidelity[row])
        line["score"] = history_lib.score_to_json(scores[row])
        if _has_fidelities(strategy):
            line["seconds"] = float(state.memory.seconds[row])
    lines[0]["settings"] = settings
    return lines


def _result(strategy: Any, state: Any, lines: list[dict[str, Any]], resumed: int) -> Result:
    if len(lines) < strategy.evaluations and getattr(state, "exhausted", True):
        _log.warning(
            "search: stopped after %d of %d evaluations: no other feasible architecture was found.",
            len(lines),
            strategy.evaluations,
        )
    if int(state.skipped):
        _log.warning(
            "search: %d of %d scores were NaN or infinite and were skipped.", int(state.skipped), len(lines)
        )
    arch, score = strategy.best(state)
    if state_lib.objectives(strategy):
        return Result(arch, np.asarray(score), {}, state, lines, resumed)
    return Result(arch, float(score), _costs(strategy, arch), state, lines, resumed)


def _told(
    evaluate: Callable[..., Any], archs: Arch, rows: np.ndarray, objectives: tuple[int, ...], fidelity: tuple
) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the scores of some rows, float32 [rows, ...], and the seconds, if they are told."""
    told, seconds = evaluate(jax.tree.map(lambda x: x[rows], archs), *fidelity), None
    if fidelity and isinstance(told, tuple):
        told, seconds = told
        seconds = _checked(seconds, "seconds ", rows, ())
    return _checked(told, "", rows, objectives), seconds


def _checked(told: Any, what: str, rows: np.ndarray, objectives: tuple[int, ...]) -> np.ndarray:
    """Returns what an evaluation told of some rows, float32 [rows, ...], if it has that shape."""
    told, expected = np.asarray(told), (*rows.shape, *objectives)
    if told.shape != expected or told.dtype.kind not in "fiu" and told.dtype != "bfloat16":
        raise ValueError(
            f"search: the evaluation returned {what}{told.dtype}{list(told.shape)} for "
            f"{len(rows)} architectures, expected float {list(expected)}."
        )
    return told.astype(np.float32)


def _costs(strategy: Any, arch: Arch) -> dict[str, Any]:
    """Returns the costs of one architecture as plain Python numbers."""
    if strategy.cost is None:
        return {}
    # Called with concrete arrays, since a cost may be more exact on them than under jit.
    return {name: np.asarray(x).item() for name, x in strategy.cost(arch).items()}


def _describe(
    strategy: Any, name: str, archs: Arch, rows: np.ndarray, first: int, generation: int
) -> list[dict[str, Any]]:
    """Returns the lines of a generation, still without scores."""
    lines = []
    host = jax.tree.map(np.asarray, archs)
    for i, row in enumerate(rows):
        arch = {key: jnp.asarray(x[row]) for key, x in host.items()}
        lines.append(
            {
                "index": first + i,
                "strategy": name,
                "generation": generation,
                "architecture": strategy.space.to_dict(arch),
                **_costs(strategy, arch),
            }
        )
    return lines


def _check_recorded(recorded: list[dict], settings: dict, evaluations: int, path: Any) -> None:
    if not recorded:
        return
    changed = history_lib.differences(recorded[0].get("settings", {}), settings)
    if changed:
        raise ValueError(
            f"{path} holds a search with other settings: {'; '.join(changed)}. "
            "Restore the settings, or choose another history file or name."
        )
    if len(recorded) > evaluations:
        raise ValueError(
            f"{path} holds {len(recorded)} evaluations of this search, more than "
            f"evaluations={evaluations}. Give at least {len(recorded)}."
        )


def _check_replay(space: Any, old: list[dict], new: list[dict], path: Any) -> None:
    """Checks that the recorded lines of a generation are those that the search asks for."""
    fault = f"{len(old)} architectures, now {len(new)}" if len(old) > len(new) else None
    for line, expected in zip(old, new, strict=False):
        if not history_lib.same_architecture(space, line["architecture"], expected["architecture"]):
            fault = f"architecture {line['architecture']}, now {expected['architecture']}"
        for name in set(expected) - {"architecture", "index", "generation", "strategy"}:
            if line.get(name) != expected[name]:
                fault = f"{name} {line.get(name)}, now {expected[name]}"
        if fault:
            break
    if fault:
        at = new[min(len(new), len(old)) - 1] if len(old) > len(new) else expected
        raise ValueError(
            f"{path} is not the history of this search: in generation "
            f"{at['generation']}, near index {at['index']}, it recorded {fault}. Use "
            "the supernet, cost function and version that wrote it, or another file."
        )
