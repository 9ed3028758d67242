"""Curves of searches on a table: the incumbent after each evaluation.

The incumbent has the best search metric so far; another metric of it is reported.
"""

import dataclasses

import jax
import numpy as np

from jaxnas.tabular.table import Table


@dataclasses.dataclass(frozen=True)
class Anytime:
    """Curves of several searches; S = searches, N = evaluations."""

    found: np.ndarray  # the search metric of the incumbent after each evaluation; float32 [S, N]
    reported: np.ndarray  # the reported metric of the incumbent; float32 [S, N]
    queried: np.ndarray  # the number of different networks evaluated so far; int32 [S, N]
    # How many different networks were evaluated until one of the best class was; NaN for none; float32 [S].
    to_best: np.ndarray


def anytime(table: Table, codes: np.ndarray, scores: np.ndarray, search: str, report: str) -> Anytime:
    """The curves of searches from their histories.

    Args:
      table: that was searched.
      codes: evaluated architectures in order, -1 in rows beyond the end; int32 [S, N, L].
      scores: their scores as the strategy saw them, higher is better, NaN for none; float32 [S, N].
      search, report: names of metrics, each with an objective.
    """
    _, best_value = table.best(search)
    table.best(report)  # raises if there is no such metric
    used = codes[..., 0] >= 0
    rows = _rows(table, codes)
    usable = np.where(used & np.isfinite(scores), scores, -np.inf)
    running = np.maximum.accumulate(usable, axis=1)
    improves = np.concatenate([usable[:, :1] > -np.inf, usable[:, 1:] > running[:, :-1]], axis=1)
    place = np.maximum.accumulate(np.where(improves, np.arange(codes.shape[1]), 0), axis=1)
    incumbent = np.take_along_axis(rows, place, axis=1)
    classes = np.where(used & (rows >= 0), table.classes[np.maximum(rows, 0)], -1)
    queried = np.stack([_different(row) for row in classes])
    best = np.unique(table.classes[table.metrics[search] == np.float32(best_value)])
    hit = np.isin(classes, best)
    first = np.argmax(hit, axis=1)
    to_best = np.where(hit.any(axis=1), queried[np.arange(len(first)), first], np.nan)
    there = (incumbent >= 0) & (running > -np.inf)
    found, reported = (
        np.where(there, table.metrics[name][np.maximum(incumbent, 0)], np.nan).astype(np.float32)
        for name in (search, report)
    )
    return Anytime(found, reported, queried, to_best.astype(np.float32))


def at_seconds(curves: np.ndarray, spent: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Converts curves by evaluation, float [S, N], to values at some seconds, float [T]; float32 [S, T].

    `spent` has the seconds up to and with each evaluation, float [S, N]. The values are NaN before the end of
    the first evaluation; a search that has ended keeps its last one.
    """
    values = []
    for curve, ends in zip(curves, spent, strict=True):
        place = np.searchsorted(ends, seconds, side="right") - 1
        values.append(np.where(place >= 0, curve[np.maximum(place, 0)], np.nan))
    return np.stack(values).astype(np.float32)


def spent_seconds(table: Table, codes: np.ndarray) -> np.ndarray:
    """The seconds, NaN counting as 0, that evaluations took up to and with each of them; float64 [S, N]."""
    rows = _rows(table, codes)
    there = (codes[..., 0] >= 0) & (rows >= 0)
    seconds = np.where(there, table.metrics["training_seconds"][np.maximum(rows, 0)], 0)
    return np.cumsum(np.nan_to_num(seconds), axis=1, dtype=np.float64)


def _rows(table: Table, codes: np.ndarray) -> np.ndarray:
    """The rows of codes int32 [S, N, L], int32 [S, N]."""
    return np.asarray(jax.jit(lambda code: table.row(table.space.decode(code)))(np.maximum(codes, 0)))


def _different(classes: np.ndarray) -> np.ndarray:
    """How many different classes (of 0 or more) there are up to each place."""
    _, first = np.unique(classes, return_index=True)
    new = np.zeros(len(classes), np.int32)
    new[first] = 1
    return np.cumsum(new * (classes >= 0)).astype(np.int32)
